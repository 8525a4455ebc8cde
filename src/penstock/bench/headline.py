"""What records come to, in words: for the top of the page and the end of a command. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..page.words import counted, number, percent, size
from . import compare
from .recorded import Record, figure
from .recorded import RecordedRun as Run

RESOURCES = {
    "compute": "the accelerators",
    "decode": "decoding on the CPU",
    "bandwidth": "the bandwidth of storage",
    "iops": "the read operations a second of storage",
    "metadata": "opening files",
    "network": "the network",
    "copy": "copying in memory",
}
"""What may bind, in words."""

_explained = 0.7  # who reaches less of the lowest ceiling is not held back by it
_in_memory = 0.5  # of the data in the page cache: then memory is what is measured
_all_of_it = 0.9995
_busy = 0.5  # of the cores, before the run


class Headline(NamedTuple):
    """said: sentences; advice: what would help the best, the fastest run; cautions: what the reader
    must know first."""

    best: str
    said: tuple[str, ...]
    advice: tuple[str, ...]
    cautions: tuple[str, ...]


def headline(records: Sequence[Record]) -> Headline:
    """What these records come to: who is fastest, whether it is enough, what bounds it."""
    runs = [run for record in records for run in record.runs]
    ranked = sorted(
        (run for run in runs if run.get("samples_per_s")),
        key=lambda run: -(run.get("samples_per_s") or 0),
    )
    best = ranked[0] if ranked else runs[0] if runs else None
    cautions = tuple(_cautions(records))
    if best is None:
        return Headline("", ("Nothing was measured.",), (), cautions)
    asked = next(record.asked for record in records if best in record.runs)
    several = len(runs) > 1
    said = [*_fastest(ranked), *_utilised(best, asked, several), *_bound(best)]
    if not said:
        said = [*_saved(best)] or [f"{best.label} was run; none of its figures are known."]
    advice = [each for each in _list(best, "advice") if isinstance(each, str)]
    return Headline(best.label, tuple(said), tuple(advice), cautions)


def resource(name: str) -> str:
    """A resource in words; its own name where there are none."""
    return RESOURCES.get(name, name)


def _fastest(ranked: Sequence[Run]) -> Iterator[str]:
    if len(ranked) == 1:
        yield f"{ranked[0].label} delivers {number(ranked[0].get('samples_per_s') or 0)} samples/s."
    if len(ranked) < 2:
        return
    first, second = ranked[:2]
    rate = number(first.get("samples_per_s") or 0)
    row = next(
        each for each in compare.compare_runs([second, first]) if each.metric.name == "samples/s"
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


def _utilised(run: Run, asked: float | None, several: bool) -> Iterator[str]:
    raw, ceiling, net = (run.get("au", name) for name in ("raw", "ceiling", "net"))
    if raw is None:
        return
    who = f"With {run.label} the" if several else "The"
    said = f"{who} accelerators compute {percent(raw)} of the time"
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


def _bound(run: Run) -> Iterator[str]:
    ceilings = ceilings_of(run)
    measured = run.get("roofline", "measured") or run.get("samples_per_s")
    if not ceilings or not measured:
        return
    bound, *others = ceilings
    reached = measured / bound.samples_per_s
    said = f"{number(bound.samples_per_s)} samples/s, of which {percent(min(1.0, reached))}"
    if reached < _explained:
        yield (
            "None of the ceilings that were measured explains it: the lowest, "
            f"{resource(bound.name)}, is {said} were reached. What is between is the loader's own."
        )
        return
    said = f"What bounds it is {resource(bound.name)}: at most {said} were reached"
    if others:
        above = factor(others[0].samples_per_s / bound.samples_per_s)
        said += f"; the next ceiling, {resource(others[0].name)}, is {above} × as high"
    yield f"{said}."


class Ceiling(NamedTuple):
    """What a resource allows at most, and how that was measured."""

    name: str
    samples_per_s: float
    how: str


def ceilings_of(run: Run) -> list[Ceiling]:
    """The ceilings of a run: what binds, then the others from the lowest."""
    found = []
    for each in _list(run, "ceilings"):
        rate = figure(each, "samples_per_s")
        if rate is not None and rate > 0:
            found.append(Ceiling(str(each.get("resource")), rate, str(each.get("how") or "")))
    bound = _roofline(run).get("bound")
    return sorted(found, key=lambda each: (each.name != bound, each.samples_per_s))


def _list(run: Run, name: str) -> list[Any]:
    found = _roofline(run).get(name)
    return found if isinstance(found, list) else []


def _roofline(run: Run) -> Mapping[str, Any]:
    found = run.values.get("roofline")
    return found if isinstance(found, Mapping) else {}


def _saved(run: Run) -> Iterator[str]:
    known = [each for each in run.checkpoints if each.seconds]
    if known:
        mean = sum(each.seconds or 0 for each in known) / len(known)
        yield f"{run.label} saved {counted(len(known), 'checkpoint')}, each in {number(mean)} s."


# -- what must be known first ----------------------------------------------------------------------


def _cautions(records: Sequence[Record]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for record in records:
        notes = record.values.get("notes")
        yield from (str(each) for each in notes) if isinstance(notes, list) else ()
        yield from _machine(record, len(records) > 1)
        for run in record.runs:
            if run.values.get("verified") is False:
                yield f"{run.label} delivered other bytes than are stored: its speed is no result."
            if said := _remembered(run):
                alike.setdefault(said, []).append(run.label)
    yield from (f"{', '.join(labels)}: {said}" for said, labels in alike.items())
    yield from (str(each) for each in compare.find_differences(records))


def _machine(record: Record, several: bool) -> Iterator[str]:
    load, cores = (figure(record.values, "machine", name) for name in ("load_before", "cores"))
    if load is not None and cores and load > _busy * cores:
        which = f" of {record.name}" if several else ""
        yield (
            f"The machine{which} was at work before the run began: a load of {number(load)} on "
            f"{counted(int(cores), 'core')}."
        )


def _remembered(run: Run) -> str:
    """Epochs that began with much of the data in memory; "" if none did."""
    warm = [
        each
        for each in run.trained
        if each.cached_before is not None and each.cached_before > _in_memory
    ]
    if not warm:
        return ""
    least = min(each.cached_before or 0 for each in warm)
    epochs = counted(len(run.trained), "epoch")
    said = (
        f"{len(warm)} of {epochs} began with " if len(run.trained) > 1 else "the epoch began with "
    )
    said += f"at least {percent(least)}" if least < _all_of_it else "all"
    said += " of the data in the page cache"
    device = [each.total("device_bytes") for each in warm]
    if all(each is not None for each in device):
        read = sum(each or 0 for each in device)
        said += f" and read {size(read / 1e6) if read else 'nothing'} from the device"
    return f"{said}: what is measured there is memory, not storage."
