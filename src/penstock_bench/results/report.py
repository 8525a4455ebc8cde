"""The benchmark's page: one HTML file that needs nothing else. Pure.

Equal records give equal pages. Nothing in a record can become markup, and no key that lets anybody
into storage is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.cli.quantities import counted, number, size

from ..page import render
from . import compare
from . import sections as page_sections
from .headline import conclude, factor, read_limits, resource
from .recorded import Record, RecordedRun, Values, figure, records

_secret = re.compile(r"key_id|secret|token|password|credential", re.IGNORECASE)
_given_secret = re.compile(
    r"([\w.-]*(?:key_id|secret|token|password|credential)[\w.-]*(?:\s*[=:]\s*|\s+))[^\s,}]+",
    re.IGNORECASE,
)

PairRow = tuple[str, Sequence[tuple[float | None, float | None]]]
"""Row of DLIO's figures, each beside the right one: its name, and a pair for each run."""

TextRow = tuple[str, Sequence[str]]
"""Row of a table of texts: its name, and a text for each column."""


def render_page(values: Sequence[Values], names: Sequence[str] = ()) -> str:
    """The page of one record, or of several beside each other, as `record.json` has them.

    names: of the records, to tell runs apart if a loader is in several of them. Raises FormatError
    for values that are no record. Takes less than a second and a megabyte for 120,000 steps of
    ranks.
    """
    compared = records(values, names)
    runs = [run for record in compared for run in record.runs]
    heading = ", ".join(dict.fromkeys(record.title for record in compared))
    best = max(runs, key=lambda run: run.get("samples_per_s") or 0, default=None)
    trained = [run for run in runs if run.trained]
    dlio_runs = [run for run in runs if isinstance(run.values.get("dlio"), Mapping)]
    corrected, others = _tabulate_dlio(dlio_runs)
    settings = [_flatten_open(run.values.get("settings")) for run in runs]
    workloads = [_flatten_open(record.workload) for record in compared]
    return render(
        "bench.html",
        title=f"{heading} – penstock bench",
        generator="penstock bench",
        heading=heading,
        about=_describe(compared),
        headline=conclude(compared),
        best=best,
        best_asked=next((record.asked for record in compared if best in record.runs), None),
        records=compared,
        runs=runs,
        asked=next((record.asked for record in compared), None),
        colours=dict(
            zip((run.label for run in runs), page_sections.KINDS * len(runs), strict=False)
        ),
        trained=trained,
        stalled=[run for run in runs if len(run.stalls_s)],
        limited=[(run, limits) for run in runs if (limits := read_limits(run))],
        cached=[run for run in trained if page_sections.stack_cached(run)],
        saved=[run for run in runs if page_sections.checkpoint_seconds(run)],
        crowds=[run for run in trained if len(run.trained[0].ranks) > 1],
        dlio_runs=dlio_runs,
        dlio_corrected=corrected,
        dlio_others=others,
        circumstances=_tabulate([_list_circumstances(record) for record in compared]),
        commands=[
            (record.name, _withhold_secrets(str(record.values["command"])))
            for record in compared
            if record.values.get("command")
        ],
        settings=_tabulate(settings),
        workloads=_tabulate(workloads),
        sections=page_sections,
        compare=compare,
        factor=factor,
        resource=resource,
    )


# -- the top ---------------------------------------------------------------------------------------


def _describe(compared: Sequence[Record]) -> str:
    first = compared[0]
    said = []
    if first.ranks is not None:
        said.append(f"{counted(first.ranks, 'emulated accelerator')}")
    if (batch := figure(first.workload, "reader", "batch_size")) is not None:
        said.append(f"batches of {batch:,.0f}")
    dataset = first.workload.get("dataset")
    files = figure(dataset, "num_files_train")
    per_file = figure(dataset, "num_samples_per_file")
    if files and per_file and isinstance(dataset, Mapping):
        samples, container = files * per_file, dataset.get("format")
        said.append(f"{samples:,.0f} samples in {files:,.0f} files, {container}")
    if length := figure(dataset, "record_length_bytes"):
        said.append(f"{size(length / 1e6)} a sample")
    if when := first.values.get("started"):
        said.append(str(when)[:16].replace("T", " "))
    machine = first.values.get("machine")
    if isinstance(machine, Mapping) and machine.get("host"):
        said.append(f"on {machine['host']}")
    if len(compared) > 1:
        said.append(f"and {counted(len(compared) - 1, 'more record')}")
    return ", ".join(said)


# -- DLIO's own numbers ----------------------------------------------------------------------------

_corrected: dict[str, Callable[[RecordedRun], float | None]] = {
    "train_au_mean_percentage": lambda run: _scale(run.get("au", "raw"), 100),
    "train_throughput_mean_samples_per_second": lambda run: run.get("samples_per_s"),
    "train_io_mean_MB_per_second": lambda run: _scale(run.get("bytes_per_s"), 2**-20),
}
"""The right figures under DLIO's names."""


def _tabulate_dlio(runs: Sequence[RecordedRun]) -> tuple[list[PairRow], list[TextRow]]:
    """DLIO's figures beside those that are right, and the texts of its others; by DLIO's names."""
    names = list(dict.fromkeys(name for run in runs for name in run.values["dlio"]))
    beside: list[PairRow] = [
        (name, [(figure(run.values, "dlio", name), correct(run)) for run in runs])
        for name, correct in _corrected.items()
        if name in names
    ]
    others: list[TextRow] = [
        (name, [_list_text(run.values["dlio"].get(name)) for run in runs])
        for name in names
        if name not in _corrected
    ]
    return beside, others


def _scale(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _list_text(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    said = [number(item) if isinstance(item, float) else _to_text(item) for item in values[:20]]
    return ", ".join(said) + (", …" if len(values) > 20 else "")


# -- the end ---------------------------------------------------------------------------------------


def _list_circumstances(record: Record) -> dict[str, str]:
    """Machine, versions and what was asked for, as text."""
    said = {}
    for key in ("started", "ended", "ranks", "hosts", "seed", "compat"):
        if (value := record.values.get(key)) is not None:
            said[key] = str(value)
    machine, versions = record.values.get("machine"), record.values.get("versions")
    for key, value in machine.items() if isinstance(machine, Mapping) else ():
        if value is not None:
            memory = key == "memory_bytes" and isinstance(value, int | float)
            said[key.removesuffix("_bytes")] = size(value / 1e6) if memory else str(value)
    if isinstance(versions, Mapping):
        said |= {key: str(value) for key, value in versions.items()}
    if overrides := record.values.get("overrides"):
        said["overrides"] = _withhold_secrets(" ".join(map(str, overrides)))
    return said


def _flatten_open(values: Any) -> dict[str, str]:
    """Keys with dots and values as text, without the values that let one into storage."""
    if not isinstance(values, Mapping):
        return {}
    return {
        key: "(withheld)" if _secret.search(key) and value is not None else _to_text(value)
        for key, value in compare.flatten(values)
    }


def _to_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _withhold_secrets(text: str) -> str:
    """Text without what lets one into storage."""
    return _given_secret.sub(r"\1(withheld)", text)


def _tabulate(columns: Sequence[Mapping[str, str]]) -> list[TextRow]:
    """A row for each key of any column."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return [(key, [column.get(key, "–") for column in columns]) for key in keys]
