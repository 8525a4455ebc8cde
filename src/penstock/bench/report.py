"""The benchmark's page: one HTML file that needs nothing else. Pure.

Equal records give equal pages. Nothing in a record can become markup, and no key that lets anybody
into storage is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from ..page import document
from ..page.svg import element
from ..page.words import counted, latency, number, percent, size
from . import compare, sections
from .headline import headline
from .recorded import Record, Values, figure, records
from .recorded import RecordedRun as Run
from .sections import known_cell

GENERATOR = "penstock bench"

_secret = re.compile(r"key_id|secret|token|password|credential", re.IGNORECASE)
_given_secret = re.compile(
    r"([\w.-]*(?:key_id|secret|token|password|credential)[\w.-]*(?:\s*[=:]\s*|\s+))[^\s,}]+",
    re.IGNORECASE,
)


def page(values: Sequence[Values], names: Sequence[str] = ()) -> str:
    """The page of one record, or of several beside each other, as `record.json` has them.

    names: what to call each record where a loader is in several of them. Raises FormatError for
    what is no record. Takes less than a second and a megabyte for 120,000 steps of ranks.
    """
    found = records(values, names)
    runs = [run for record in found for run in record.runs]
    titles = list(dict.fromkeys(record.title for record in found))
    asked = next((record.asked for record in found), None)
    body = element("body", *_summary(found, runs, ", ".join(titles)))
    for part in (
        sections.loaders(runs),
        sections.time(runs),
        sections.timeline(runs, asked),
        sections.stalls(runs),
        sections.roofline(runs),
        sections.reading(runs),
        sections.checkpoints(runs),
        sections.ranks(runs),
        _dlio(runs),
        _appendix(found, runs),
    ):
        body.extend(list(part))
    return document.html(f"{', '.join(titles)} – penstock bench", body, GENERATOR)


# -- the top ---------------------------------------------------------------------------------------


def _summary(found: Sequence[Record], runs: Sequence[Run], title: str) -> Iterator[Element]:
    top = headline(found)
    yield element("p", "penstock bench", class_="eyebrow")
    yield element("h1", title)
    yield element("p", _about(found), class_="about")
    yield element("p", " ".join(top.said), class_="verdict")
    if top.advice:
        of = f" {top.best}" if len(runs) > 1 else ""
        yield element("p", f"What would help{of}:")
        yield element("ul", *(element("li", each) for each in top.advice), class_="advice")
    if top.cautions:
        yield element("div", *(element("p", each) for each in top.cautions), class_="caution")
    if facts := list(_facts(found, runs)):
        if len(runs) > 1:
            yield element("p", f"Figures of {top.best}:", class_="soft")
        yield document.facts(facts)


def _about(found: Sequence[Record]) -> str:
    first = found[0]
    said = []
    if first.ranks is not None:
        said.append(f"{counted(first.ranks, 'emulated accelerator')}")
    if (batch := figure(first.workload, "reader", "batch_size")) is not None:
        said.append(f"batches of {batch:,.0f}")
    dataset = first.workload.get("dataset")
    files = figure(dataset, "num_files_train")
    each = figure(dataset, "num_samples_per_file")
    if files and each and isinstance(dataset, Mapping):
        said.append(f"{files * each:,.0f} samples in {files:,.0f} files, {dataset.get('format')}")
    if length := figure(dataset, "record_length_bytes"):
        said.append(f"{size(length / 1e6)} a sample")
    if when := first.values.get("started"):
        said.append(str(when)[:16].replace("T", " "))
    machine = first.values.get("machine")
    if isinstance(machine, Mapping) and machine.get("host"):
        said.append(f"on {machine['host']}")
    if len(found) > 1:
        said.append(f"and {counted(len(found) - 1, 'more record')}")
    return ", ".join(said)


def _facts(found: Sequence[Record], runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """Cards of the fastest run."""
    best = max(runs, key=lambda run: run.get("samples_per_s") or 0, default=None)
    if best is None:
        return
    asked = next(record.asked for record in found if best in record.runs)
    raw, ceiling, net = (best.get("au", name) for name in ("raw", "ceiling", "net"))
    if rate := best.get("samples_per_s"):
        given = best.get("bytes_per_s")
        more = "" if given is None else f"{size(given / 1e6)}/s delivered"
        yield "samples/s", number(rate), more
    if raw is not None:
        yield "utilisation", percent(raw), "" if asked is None else f"asked: {percent(asked)}"
    if ceiling is not None:
        yield "without I/O", percent(ceiling), "the most that this machine can do"
    if net is not None:
        yield "net utilisation", percent(net), "utilisation / without I/O"
    if (stall := best.get("stall_s", "p99")) is not None:
        half = best.get("stall_s", "p50")
        yield "wait, p99", latency(stall), "" if half is None else f"p50: {latency(half)}"
    if (spent := best.get("cpu_s_per_1000")) is not None:
        yield "CPU", f"{number(spent)} s", "for 1,000 samples"


# -- DLIO's own numbers ----------------------------------------------------------------------------


class _Told(NamedTuple):
    """The figure that is right, and how DLIO comes to its own."""

    corrected: Callable[[Run], float | None]
    formula: str


_told = {
    "train_au_mean_percentage": _Told(
        lambda run: _times(run.get("au", "raw"), 100),
        "credits sleeps with the time that they took instead of what was asked for, and its time "
        "has the beginnings and ends of blocks in it",
    ),
    "train_throughput_mean_samples_per_second": _Told(
        lambda run: run.get("samples_per_s"),
        "divides all steps but two by the time of those that are measured, however many these are",
    ),
    "train_io_mean_MB_per_second": _Told(
        lambda run: _times(run.get("bytes_per_s"), 2**-20),
        "is that times the record length of the configuration, not what was delivered; in MiB",
    ),
}


def _dlio(runs: Sequence[Run]) -> Iterator[Element]:
    """DLIO's figures under its names, beside those that are right."""
    known = [run for run in runs if isinstance(run.values.get("dlio"), Mapping)]
    names = list(dict.fromkeys(name for run in known for name in run.values["dlio"]))
    if not names:
        return
    yield element("h2", "DLIO's own numbers")
    said = "By DLIO's formulas, to compare with its results. All else on this page is corrected."
    yield element("p", said, class_="soft")
    headings = [""]
    for run in known:
        of = f"{run.label}: " if len(known) > 1 else ""
        headings += [f"{of}DLIO's formula", f"{of}corrected"]
    told = [name for name in _told if name in names]
    if told:
        yield document.tabled(headings, [_beside(name, known) for name in told], "named")
        yield element(
            "ul",
            *(element("li", element("code", name), f" {_told[name].formula}.") for name in told),
            class_="advice soft",
        )
    if others := [name for name in names if name not in _told]:
        rows = []
        for name in others:
            values = [_listed(run.values["dlio"].get(name)) for run in known]
            cells = [element("td", each, class_="said") for each in values]
            rows.append(document.row(name, cells))
        table = document.tabled(["", *(run.label for run in known)], rows, "texts named")
        yield document.folded("All others", table)


def _beside(name: str, runs: Sequence[Run]) -> Element:
    cells = []
    for run in runs:
        cells += [
            known_cell(figure(run.values, "dlio", name), number),
            known_cell(_told[name].corrected(run), number),
        ]
    return document.row(name, cells)


def _times(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _listed(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    said = [number(each) if isinstance(each, float) else _text(each) for each in values[:20]]
    return ", ".join(said) + (", …" if len(values) > 20 else "")


# -- the end ---------------------------------------------------------------------------------------


def _appendix(found: Sequence[Record], runs: Sequence[Run]) -> Iterator[Element]:
    yield element("h2", "How it was measured")
    yield element(
        "p",
        "Utilisation is what steps should compute by the workload, divided by the time that they "
        "took; without I/O means the same steps with batches that are there. Waits are from asking "
        "for a batch to having it. Steps at the ends of an epoch that the workload excludes are "
        "left out, checkpoints are cut out of the clock. Sizes are decimal: 1 MB is 10⁶ bytes.",
        class_="soft",
    )
    headings = ["", *(each.name for each in found)] if len(found) > 1 else ["", ""]
    circumstances = _columns([_circumstances(each) for each in found])
    yield document.tabled(headings, circumstances, "texts named")
    for record in found:
        if command := record.values.get("command"):
            yield element("p", "To repeat it:" if len(found) == 1 else f"{record.name}:")
            yield document.code(_open(str(command)))
    settings = [_said_of(run.values.get("settings")) for run in runs]
    if any(settings):
        yield element("h3", "What each loader was set to")
        yield document.tabled(["", *(run.label for run in runs)], _columns(settings), "texts named")
    workloads = [_said_of(record.workload) for record in found]
    if any(workloads):
        table = document.tabled(
            ["key", *(each.name for each in found)] if len(found) > 1 else ["key", "value"],
            _columns(workloads),
            "texts named",
        )
        yield document.folded("The workload, in full", table)


def _circumstances(record: Record) -> dict[str, str]:
    """Machine, versions and what was asked for, as text."""
    said = {}
    for key in ("started", "ended", "ranks", "hosts", "seed", "compat"):
        if (value := record.values.get(key)) is not None:
            said[key] = str(value)
    for key, value in _section(record, "machine").items():
        if value is not None:
            memory = key == "memory_bytes" and isinstance(value, int | float)
            said[key.removesuffix("_bytes")] = size(value / 1e6) if memory else str(value)
    said |= {key: str(value) for key, value in _section(record, "versions").items()}
    if overrides := record.values.get("overrides"):
        said["overrides"] = _open(" ".join(map(str, overrides)))
    return said


def _section(record: Record, name: str) -> Values:
    found = record.values.get(name)
    return found if isinstance(found, Mapping) else {}


def _said_of(values: Any) -> dict[str, str]:
    """Keys with dots and values as text; what lets one into storage is not among them."""
    if not isinstance(values, Mapping):
        return {}
    return {
        key: "(withheld)" if _secret.search(key) and value is not None else _text(value)
        for key, value in compare.flatten(values)
    }


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _open(text: str) -> str:
    """Text without what lets one into storage."""
    return _given_secret.sub(r"\1(withheld)", text)


def _columns(values: Sequence[Mapping[str, str]]) -> list[Element]:
    """A row for each key of any column; those that differ stand out."""
    rows = []
    for key in dict.fromkeys(key for each in values for key in each):
        said = [each.get(key, "–") for each in values]
        cells = [element("td", each, class_="said") for each in said]
        rows.append(document.row(key, cells, "strong" if len(set(said)) > 1 else None))
    return rows
