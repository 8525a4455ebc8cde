"""The benchmark's page: one HTML file that needs nothing else. Pure.

Its headline concludes from records, in words, which run is fastest and what bounds it.

Equal records give equal pages. Nothing in a record can become markup, and no key that lets anybody
into storage is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.cli.quantities import counted, number

from ..page import render
from ..page.quantities import percent, size
from . import compare
from . import sections as page_sections
from .recorded import Record, RecordedRun, Values, figure, list_at, mapping_at, records

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
        limited=[(run, limits) for run in runs if (limits := run.limits)],
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
        factor=compare.factor,
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
    dataset = mapping_at(first.workload, "dataset")
    files = figure(dataset, "num_files_train")
    per_file = figure(dataset, "num_samples_per_file")
    if files and per_file:
        samples, container = files * per_file, dataset.get("format")
        said.append(f"{samples:,.0f} samples in {files:,.0f} files, {container}")
    if length := figure(dataset, "record_length_bytes"):
        said.append(f"{size(length / 1e6)} a sample")
    if when := first.values.get("started"):
        said.append(str(when)[:16].replace("T", " "))
    if host := mapping_at(first.values, "machine").get("host"):
        said.append(f"on {host}")
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
    for key, value in mapping_at(record.values, "machine").items():
        if value is not None:
            memory = key == "memory_bytes" and isinstance(value, int | float)
            said[key.removesuffix("_bytes")] = size(value / 1e6) if memory else str(value)
    versions = mapping_at(record.values, "versions")
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


# -- conclusions, for the top of the page ----------------------------------------------------------


RESOURCES = {
    "compute": "the accelerators",
    "decode": "decoding on the CPU",
    "bandwidth": "the bandwidth of storage",
    "iops": "the read operations a second of storage",
    "metadata": "opening files",
    "copy": "copying in memory",
    "staging": "staging",
}
"""Resources that may bind, in words."""

_explained = 0.7  # a run that reaches less of the lowest ceiling is not held back by it
_in_memory = 0.5  # of the data in the page cache: then memory is what is measured
_all_of_it = 0.9995
_busy = 0.5  # of the cores, before the run


class Headline(NamedTuple):
    """Label of the fastest run, sentences, advice for that run, and cautions to read first."""

    best: str
    said: tuple[str, ...]
    advice: tuple[str, ...]
    cautions: tuple[str, ...]


def conclude(records: Sequence[Record]) -> Headline:
    """Conclude which run is fastest, whether it is fast enough, and what bounds it."""
    runs = [run for record in records for run in record.runs]
    medians = [run for record in records for run in _choose_medians(record)]
    ranked = sorted(medians, key=lambda run: -(run.get("samples_per_s") or 0))
    best = ranked[0] if ranked else runs[0] if runs else None
    cautions = tuple(_list_cautions(records))
    if best is None:
        return Headline("", ("Nothing was measured.",), (), cautions)
    asked = next(record.asked for record in records if best in record.runs)
    several = len(runs) > 1
    said = [*_name_fastest(ranked), *_state_utilisation(best, asked, several), *_name_bound(best)]
    if not said and (mean_s := best.mean_saving_s):
        saves = counted(len(best.checkpoints), "checkpoint")
        said = [f"{best.label} saved {saves}, each in {number(mean_s)} s."]
    said = said or [f"{best.label} was run; none of its figures are known."]
    return Headline(best.label, tuple(said), best.advice, cautions)


def _choose_medians(record: Record) -> list[RecordedRun]:
    """Choose of each loader's runs the one of median throughput."""
    known = [run for run in record.runs if run.get("samples_per_s")]
    by_loader: dict[str, list[RecordedRun]] = {}
    for run in sorted(known, key=lambda run: run.get("samples_per_s") or 0):
        by_loader.setdefault(str(run.values.get("loader")), []).append(run)
    return [repeats[(len(repeats) - 1) // 2] for repeats in by_loader.values()]


def resource(name: str) -> str:
    """A resource in words, or its own name if there are none."""
    return RESOURCES.get(name, name)


def _name_fastest(ranked: Sequence[RecordedRun]) -> Iterator[str]:
    if len(ranked) == 1:
        yield f"{ranked[0].label} delivers {number(ranked[0].get('samples_per_s') or 0)} samples/s."
    if len(ranked) < 2:
        return
    first, second = ranked[:2]
    rate = number(first.get("samples_per_s") or 0)
    rows = compare.compare_runs([second, first])
    row = next(row for row in rows if row.metric.name == "samples/s")
    ratio = row.ratios[1]
    assert ratio is not None  # both rates are known
    told = compare.format_ratio(ratio)
    if ratio.clear is False:
        yield (
            f"{first.label} and {second.label} are equally fast within the noise: {rate} samples/s,"
            f" {told}."
        )
    else:
        yield f"{first.label} is fastest: {rate} samples/s, {told} {second.label}."


def _state_utilisation(run: RecordedRun, asked: float | None, several: bool) -> Iterator[str]:
    raw, ceiling, net = (run.get("au", name) for name in ("raw", "ceiling", "net"))
    if raw is None:
        return
    subject = f"With {run.label} the" if several else "The"
    said = f"{subject} accelerators compute {percent(raw)} of the time"
    if net is not None and ceiling is not None:
        said += (
            f"; with the same steps and no I/O it is {percent(ceiling)}, so {percent(net)} of what "
            "this machine can do"
        )
    yield f"{said}."
    if asked is None:
        return
    if raw >= asked:
        yield f"The workload asks for {percent(asked)}: met."
    elif ceiling is not None and ceiling < asked:
        yield (
            f"The workload asks for {percent(asked)}, which this machine does not reach even "
            "without I/O: no storage and no loader can meet it here."
        )
    else:
        yield f"The workload asks for {percent(asked)}: missed by {100 * (asked - raw):.1f} points."


def _name_bound(run: RecordedRun) -> Iterator[str]:
    limits = run.limits
    measured = run.get("roofline", "measured") or run.get("samples_per_s")
    if not limits or not measured:
        return
    bound, *others = limits
    reached = measured / bound.samples_per_s
    said = f"{number(bound.samples_per_s)} samples/s, of which {percent(min(1.0, reached))}"
    if reached < _explained:
        yield (
            "None of the ceilings that were measured explains it: the lowest, "
            f"{resource(bound.resource)}, is {said} were reached. The gap is the loader's own."
        )
        return
    said = f"What bounds it is {resource(bound.resource)}: at most {said} were reached"
    if others:
        above = compare.factor(others[0].samples_per_s / bound.samples_per_s)
        said += f"; the next ceiling, {resource(others[0].resource)}, is {above} × as high"
    yield f"{said}."


# -- what must be known first ----------------------------------------------------------------------


def _list_cautions(records: Sequence[Record]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for record in records:
        yield from map(str, list_at(record.values, "notes"))
        yield from _check_load(record, len(records) > 1)
        for run in record.runs:
            if run.values.get("verified") is False:
                yield f"{run.label} delivered other bytes than are stored: its speed is no result."
            if said := _describe_cached(run):
                alike.setdefault(said, []).append(run.label)
    yield from (f"{', '.join(labels)}: {said}" for said, labels in alike.items())
    yield from map(str, compare.find_differences(records))


def _check_load(record: Record, several: bool) -> Iterator[str]:
    load, cores = (figure(record.values, "machine", name) for name in ("load_before", "cores"))
    if load is not None and cores and load > _busy * cores:
        which = f" of {record.name}" if several else ""
        yield (
            f"The machine{which} was at work before the run began: a load of {number(load)} on "
            f"{counted(int(cores), 'core')}."
        )


def _describe_cached(run: RecordedRun) -> str:
    """Describe the epochs that began with much of the data in memory; "" if none did."""
    warm = [
        epoch
        for epoch in run.trained
        if epoch.cached_before is not None and epoch.cached_before > _in_memory
    ]
    if not warm:
        return ""
    least = min(epoch.cached_before or 0 for epoch in warm)
    epochs = counted(len(run.trained), "epoch")
    said = (
        f"{len(warm)} of {epochs} began with " if len(run.trained) > 1 else "the epoch began with "
    )
    said += f"at least {percent(least)}" if least < _all_of_it else "all"
    said += " of the data in the page cache"
    device_bytes = [epoch.total("device_bytes") for epoch in warm]
    if None not in device_bytes:
        read = sum(count or 0 for count in device_bytes)
        said += f" and read {size(read / 1e6) if read else 'nothing'} from the device"
    return f"{said}: what is measured there is memory, not storage."
