"""Figures of the benchmark page's sections, from runs. Pure.

The template of the page draws and tabulates them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from penstock.cli.quantities import duration, number

from ..page import bytes_size
from ..page.quantities import latency, percent, time_unit
from . import compare
from .recorded import Floats, Limit, RecordedEpoch, RecordedRun

KINDS = ("k-accent", "k-orange", "k-green", "k-purple", "k-amber", "k-sky", "k-grey", "k-ink")
"""Colours of runs, in their order."""

PARTS = ("computing", "waiting", "barrier", "other")
"""Classes of the parts of a step's time."""

DECOMPOSITION = ("compute", "storage_wait", "barrier", "other")
"""Names of the same parts in a record."""

PHASES = ("setup", "peers", "computing", "local", "storage")
"""Classes of the phases of a run."""

COLUMNS_MAX = 60
"""Columns of a small chart and epochs of a table; of more epochs, some share a column."""

_bins_max = 240
_label_letters = 28
_histogram_bins = 36

WrittenFigure = tuple[float | None, Callable[[float], str]]
"""A figure, None if it is not known, and the function that writes it."""


class NamedBar(NamedTuple):
    """Bar under its name and a note: parts as shares of the whole width, and their classes."""

    label: str
    note: str
    parts: Sequence[float]
    classes: Sequence[str]


def shorten(label: str) -> str:
    """A name that fits beside a bar."""
    return label if len(label) <= _label_letters else f"{label[: _label_letters - 1]}…"


def whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def metric_bars(runs: Sequence[RecordedRun], row: compare.MetricRow) -> list[NamedBar]:
    """A metric of all runs as bars, as long as their shares of the highest."""
    highest = max(value or 0.0 for value in row.values)
    return [
        NamedBar(
            shorten(run.label),
            "–" if value is None else row.metric.said(value),
            [(value or 0.0) / highest],
            [f"fill {kind}"],
        )
        for run, value, kind in zip(runs, row.values, cycle(KINDS), strict=False)
    ]


def ratio_note(row: compare.MetricRow, place: int) -> str:
    """The ratio of a run's figure to the first run's, and what it comes to; "" if there is none."""
    ratio = row.ratios[place]
    if ratio is None:
        return ""
    said = compare.format_ratio(ratio).replace(
        " ", "\u00a0"
    )  # lines break between the words after it
    return f"{said} {compare.judge_ratio(row, place)}".strip()


def read_shares(run: RecordedRun) -> list[float]:
    """Shares of the parts of a step's time; 0 if unknown."""
    return [run.get("decomposition", name) or 0.0 for name in DECOMPOSITION]


def share_bars(runs: Sequence[RecordedRun]) -> list[NamedBar]:
    """Shares of the accelerators' time, of runs that know them."""
    shares = {run.label: read_shares(run) for run in runs}
    return [
        NamedBar(shorten(label), f"{percent(fractions[0])} computing", fractions, PARTS)
        for label, fractions in shares.items()
        if any(fractions)
    ]


def phase_bars(runs: Sequence[RecordedRun]) -> list[NamedBar]:
    """The runs from start to end, on one scale; none if no phase took time."""
    phases = {run.label: sum_phases(run) for run in runs}
    longest = max(map(sum, phases.values()), default=0.0)
    return [
        NamedBar(shorten(label), duration(sum(spent)), [took / longest for took in spent], PHASES)
        for label, spent in phases.items()
        if longest
    ]


def sum_phases(run: RecordedRun) -> list[float]:
    """Seconds of start-up, staging, training, evaluation and checkpoints.

    An epoch's recorded time includes its checkpoints; here training does not.
    """
    saving = sum(saved.seconds or 0.0 for saved in run.checkpoints)
    training, evaluation = (
        sum(epoch.seconds or 0.0 for epoch in run.epochs if epoch.kind == kind)
        for kind in ("train", "eval")
    )
    start_up, staging = (run.get(name) or 0.0 for name in ("startup_s", "staging_s"))
    return [start_up, staging, max(0.0, training - saving), evaluation, saving]


def describe_staging(run: RecordedRun) -> str:
    """A sentence on what staging took; "" if nothing was staged."""
    phases = sum_phases(run)
    staging, training = phases[1:3]
    if not staging:
        return ""
    said = f"{run.label}: staging took {duration(staging)}, {percent(staging / sum(phases))} "
    said += "of the run"
    samples = sum(epoch.samples or 0.0 for epoch in run.epochs if epoch.kind == "train")
    if samples and training:
        rate = samples / (staging + training)
        said += f"; were it counted as training, that would be {number(rate)} samples/s"
    return f"{said}."


# -- over time -------------------------------------------------------------------------------------


def _to_fractions(sums: Floats) -> list[list[float]]:
    """Rows of parts as shares of their sum; nothing of nothing."""
    totals = sums.sum(axis=1, keepdims=True)
    fractions = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
    return [[float(value) for value in row] for row in fractions]


def epochs_per_column(runs: Sequence[RecordedRun]) -> int:
    """Epochs that share a column of a small chart, at most."""
    return max(-(-len(run.trained) // COLUMNS_MAX) for run in runs)


def stack_epochs(run: RecordedRun) -> list[list[float]]:
    """Shares of the time of measured steps: columns of one or several epochs x parts."""
    sums = np.array([epoch.parts_s[run.measured(epoch)].sum(axis=0) for epoch in run.trained])
    starts = np.arange(0, len(sums), epochs_per_column([run]))
    return _to_fractions(np.add.reduceat(sums, starts, axis=0))


def count_steps(run: RecordedRun) -> int:
    return sum(epoch.steps for epoch in run.trained)


def steps_per_bin(run: RecordedRun) -> int:
    return -(-count_steps(run) // _bins_max)


def stack_steps(run: RecordedRun) -> tuple[list[list[float]], list[int], list[str]]:
    """Shares of the time of all steps, bins x parts; the epochs' ends in bins, and their names."""
    size = steps_per_bin(run)
    epochs = [epoch.parts_s for epoch in run.trained]
    names = [f"epoch {epoch.number:,}" for epoch in run.trained]
    if len(epochs) > _bins_max // 4:  # too many to tell apart: they share bins
        epochs = [np.concatenate(epochs)]
        names = [f"epochs {run.trained[0].number:,} to {run.trained[-1].number:,}"]
    bounds, stacks = [0], []
    for parts_s in epochs:
        stacks += _to_fractions(np.add.reduceat(parts_s, np.arange(0, len(parts_s), size), axis=0))
        bounds.append(len(stacks))
    return stacks, bounds, names


def epoch_figures(run: RecordedRun, epoch: RecordedEpoch) -> list[WrittenFigure]:
    """Figures of an epoch's row, after its kind."""
    shares: Sequence[float | None] = (None, None)
    waits: Sequence[float | None] = (None, None)
    if epoch.steps:
        steps = run.measured(epoch)
        shares = _to_fractions(epoch.parts_s[steps].sum(axis=0, keepdims=True))[0][:2]
        wait_s = epoch.wait_s[:, steps]
        wait_s = wait_s[~np.isnan(wait_s)]
        waits = np.percentile(wait_s, [50, 99]).tolist() if len(wait_s) else waits
    rate = epoch.samples / epoch.seconds if epoch.samples and epoch.seconds else None
    return [
        (epoch.seconds, duration),
        (rate, number),
        *((share, percent) for share in shares),
        *((wait, latency) for wait in waits),
        (epoch.total("cpu_s"), duration),
        (epoch.bytes, bytes_size),
        (epoch.total("read_bytes"), bytes_size),
        (epoch.total("device_bytes"), bytes_size),
        (epoch.cached_before, percent),
        (epoch.cached_after, percent),
    ]


# -- waiting ---------------------------------------------------------------------------------------


class StallCounts(NamedTuple):
    """Waits of runs in bins of one logarithmic axis from low to high.

    zeros: waits of no time, by run; most: the highest of all counts.
    """

    low: float
    high: float
    counts: dict[str, list[int]]
    zeros: dict[str, int]
    most: int


def count_stalls(runs: Sequence[RecordedRun]) -> StallCounts:
    """Histograms of the waits for batches. Each run has some."""
    waits = np.concatenate([run.stalls_s for run in runs])
    waits = waits[waits > 0]
    low, high = (float(waits.min()), float(waits.max())) if len(waits) else (1e-6, 1e-3)
    low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
    edges = np.geomspace(low, high, _histogram_bins + 1)
    counts = {run.label: np.histogram(run.stalls_s, edges)[0].tolist() for run in runs}
    zeros = {run.label: int((run.stalls_s <= 0).sum()) for run in runs}
    most = max(max(*counts[run.label], zeros[run.label]) for run in runs)
    return StallCounts(low, high, counts, zeros, most)


def stall_marks(run: RecordedRun) -> list[tuple[str, float]]:
    """Percentiles of the waits with their names, as the record has them or from its steps."""
    marks = []
    for percentile in (50, 95, 99):
        wait = run.get("stall_s", f"p{percentile}")
        wait = float(np.percentile(run.stalls_s, percentile)) if wait is None else wait
        marks.append((f"p{percentile} {latency(wait)}", wait))
    return marks


# -- bytes -----------------------------------------------------------------------------------------


def stack_cached(run: RecordedRun) -> list[tuple[float, float]]:
    """Shares of the data in the page cache before epochs, and added by them; [] if unknown."""
    if all(epoch.cached_before is epoch.cached_after is None for epoch in run.trained):
        return []
    epochs = run.trained[:: epochs_per_column([run])]
    pairs = [(epoch.cached_before or 0.0, epoch.cached_after or 0.0) for epoch in epochs]
    return [(min(before, after), max(0.0, after - before)) for before, after in pairs]


def count_bytes(run: RecordedRun) -> tuple[float | None, float | None, float | None]:
    """Bytes delivered, read by the process, and read from the device."""
    device = run.get("device_bytes")
    device = run.total("device_bytes") if device is None else device
    return run.delivered_bytes, run.total("read_bytes"), device


# -- checkpoints, ranks ----------------------------------------------------------------------------


def checkpoint_seconds(run: RecordedRun) -> list[float]:
    """Times of the checkpoints that are known."""
    return [saved.seconds for saved in run.checkpoints if saved.seconds is not None]


def longest_checkpoint(runs: Sequence[RecordedRun]) -> float:
    """The longest time of all checkpoints. Each run has some."""
    return max(max(checkpoint_seconds(run)) for run in runs)


def average_groups(values: Sequence[float], unit: float) -> list[tuple[float]]:
    """Values in a unit as columns, each the mean of neighbours if there are too many."""
    groups = np.array_split(np.array(values) / unit, min(len(values), COLUMNS_MAX))
    return [(float(group.mean()),) for group in groups]


def checkpoint_figures(run: RecordedRun) -> list[WrittenFigure]:
    """Figures of a run's checkpoints, of which one at least is known."""
    seconds = np.array(checkpoint_seconds(run))
    sizes = [saved.bytes for saved in run.checkpoints if saved.bytes is not None]
    rates = [
        saved.bytes / saved.seconds for saved in run.checkpoints if saved.bytes and saved.seconds
    ]
    return [
        (float(len(seconds)), number),
        (float(np.mean(sizes)) if sizes else None, bytes_size),
        (float(seconds.mean()), duration),
        (float(seconds.min()), duration),
        (float(seconds.max()), duration),
        (float(np.mean(rates)) if rates else None, lambda rate: f"{bytes_size(rate)}/s"),
    ]


def stack_ranks(
    runs: Sequence[RecordedRun],
) -> tuple[float, str, list[tuple[RecordedRun, Any, str]]]:
    """Highest column and unit of time; of each run its ranks x parts, and a note on waiting."""
    sums = [_sum_by_rank(run) for run in runs]
    high = max(float(seconds.sum(axis=1).max()) for seconds in sums)
    unit, name = time_unit(high)
    rows = []
    for run, seconds in zip(runs, sums, strict=True):
        waits = seconds[:, 1] / seconds.sum(axis=1)
        note = f"waiting {percent(float(waits.min()))} to {percent(float(waits.max()))}"
        rows.append((run, (seconds / unit).tolist(), note))
    return high / unit, name, rows


def _sum_by_rank(run: RecordedRun) -> Floats:
    """Ranks x parts, in seconds over all measured steps."""
    total = np.zeros((len(run.trained[0].ranks), len(PARTS)))
    for epoch in run.trained:
        seconds = epoch.by_rank_s[:, run.measured(epoch)].sum(axis=1)
        total[: len(seconds)] += seconds[: len(total)]
    return total


def limit_rows(limits: Sequence[Limit], measured: float | None) -> list[tuple[str, float, str]]:
    """Name and value of each limit, and a note with its ratio to what was measured."""
    rows = []
    for limit in limits:
        note = f"{number(limit.samples_per_s)} samples/s"
        note += f", {compare.factor(limit.samples_per_s / measured)} ×" if measured else ""
        rows.append((limit.resource, limit.samples_per_s, note))
    return rows


def pair_headings(runs: Sequence[RecordedRun]) -> list[str]:
    """Headings of DLIO's figures and those that are right, for each run."""
    headings = [""]
    for run in runs:
        before = f"{run.label}: " if len(runs) > 1 else ""
        headings += [f"{before}DLIO's formula", f"{before}corrected"]
    return headings
