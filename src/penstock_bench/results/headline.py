"""Conclusions from records, in words: for the top of a page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.cli.quantities import counted, number, percent, size

from . import compare
from .recorded import Record, figure
from .recorded import RecordedRun as RecordedRun

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
    ranked = sorted(
        (run for run in runs if run.get("samples_per_s")),
        key=lambda run: -(run.get("samples_per_s") or 0),
    )
    best = ranked[0] if ranked else runs[0] if runs else None
    cautions = tuple(_list_cautions(records))
    if best is None:
        return Headline("", ("Nothing was measured.",), (), cautions)
    asked = next(record.asked for record in records if best in record.runs)
    several = len(runs) > 1
    said = [*_name_fastest(ranked), *_state_utilisation(best, asked, several), *_name_bound(best)]
    if not said:
        said = [*_state_checkpoints(best)] or [
            f"{best.label} was run; none of its figures are known."
        ]
    advice = [line for line in _read_list(best, "advice") if isinstance(line, str)]
    return Headline(best.label, tuple(said), tuple(advice), cautions)


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
    row = next(
        row for row in compare.compare_runs([second, first]) if row.metric.name == "samples/s"
    )
    ratio = row.ratios[1]
    assert ratio is not None  # both rates are known
    told = interval(ratio)
    if ratio.clear is False:
        yield (
            f"{first.label} and {second.label} are equally fast within the noise: {rate} samples/s,"
            f" {told}."
        )
    else:
        yield f"{first.label} is fastest: {rate} samples/s, {told} {second.label}."


def interval(ratio: compare.Ratio) -> str:
    """A ratio with its interval, in as many digits as tell both apart."""
    if ratio.low is None or ratio.high is None:
        return f"{factor(ratio.value)} ×"
    return f"{factor(ratio.value)} × ({factor(ratio.low)}–{factor(ratio.high)})"


def factor(value: float) -> str:
    """A ratio in three digits."""
    return (
        f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


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
    limits = read_limits(run)
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
        above = factor(others[0].samples_per_s / bound.samples_per_s)
        said += f"; the next ceiling, {resource(others[0].resource)}, is {above} × as high"
    yield f"{said}."


class Limit(NamedTuple):
    """Most that a resource allows, and how that was measured."""

    resource: str
    samples_per_s: float
    how: str


def read_limits(run: RecordedRun) -> list[Limit]:
    """The ceilings of a run's roofline: the one that binds, then the others from the lowest."""
    limits = []
    for ceiling in _read_list(run, "ceilings"):
        rate = figure(ceiling, "samples_per_s")
        if rate is not None and rate > 0:
            how = str(ceiling.get("how") or "")
            limits.append(Limit(str(ceiling.get("resource")), rate, how))
    bound = _read_roofline(run).get("bound")
    return sorted(limits, key=lambda limit: (limit.resource != bound, limit.samples_per_s))


def _read_list(run: RecordedRun, name: str) -> list[Any]:
    values = _read_roofline(run).get(name)
    return values if isinstance(values, list) else []


def _read_roofline(run: RecordedRun) -> Mapping[str, Any]:
    values = run.values.get("roofline")
    return values if isinstance(values, Mapping) else {}


def _state_checkpoints(run: RecordedRun) -> Iterator[str]:
    seconds = [saved.seconds for saved in run.checkpoints if saved.seconds]
    if seconds:
        mean = sum(seconds) / len(seconds)
        yield f"{run.label} saved {counted(len(seconds), 'checkpoint')}, each in {number(mean)} s."


# -- what must be known first ----------------------------------------------------------------------


def _list_cautions(records: Sequence[Record]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for record in records:
        notes = record.values.get("notes")
        yield from map(str, notes) if isinstance(notes, list) else ()
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
