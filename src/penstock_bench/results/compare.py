"""Comparison of runs, metric by metric, with an interval for each ratio. Pure.

Intervals are of 95 %, by bootstrap. With 20 epochs or more, whole epochs are drawn again; with
fewer, pieces of neighbouring steps, each epoch's own, so that a cold first epoch is no noise. They
say how much these runs vary within themselves, and not how another run would: for that, repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from penstock.cli.quantities import counted, duration, number

from ..page import bytes_size
from ..page.quantities import latency, percent
from .recorded import Floats, Record, RecordedRun

RESAMPLES = 1000
_many_epochs = 20  # of so many, epochs are what is drawn
_pieces = 40  # otherwise about so many pieces of all epochs
_least_pieces = 8  # fewer say nothing of chance
_bins = 200  # of a power of ten of waits
_shortest_s = 1e-7
_decades = 11


# -- what is compared ------------------------------------------------------------------------------


class Metric(NamedTuple):
    """A figure of a run. better: 1 if more is better, -1 if less is, 0 if neither.

    drawn: where it comes of steps that are recorded, the figure by these, and in each resample.
    """

    name: str
    value: Callable[[RecordedRun], float | None]
    said: Callable[[float], str]
    better: Literal[-1, 0, 1]
    drawn: Callable[[Resampled], Floats] | None = None


def _make_percentile(percent: int) -> Metric:
    return Metric(
        f"wait for a batch, p{percent}",
        lambda run: run.get("stall_s", f"p{percent}"),
        latency,
        -1,
        lambda drawn: drawn.percentile(percent),
    )


METRICS = (
    Metric("samples/s", lambda run: run.get("samples_per_s"), number, 1, lambda d: d.rate),
    Metric("utilisation", lambda run: run.get("au", "raw"), percent, 1, lambda d: d.share(0)),
    Metric(
        "utilisation, start and first steps counted",
        lambda run: run.get("au", "from_start"),
        percent,
        1,
    ),
    Metric(
        "utilisation, net of the ceiling",
        lambda run: run.get("au", "net"),
        percent,
        1,
        lambda d: d.share(0),  # of which the ceiling is one number
    ),
    _make_percentile(50),
    _make_percentile(95),
    _make_percentile(99),
    Metric(
        "share of time waiting",
        lambda run: run.get("decomposition", "storage_wait"),
        percent,
        -1,
        lambda d: d.share(1),
    ),
    Metric("CPU seconds per 1,000 samples", lambda run: run.get("cpu_s_per_1000"), number, -1),
    Metric("first batch after", lambda run: run.get("first_batch_s"), duration, -1),
    Metric("start-up", lambda run: run.get("startup_s"), duration, -1),
    Metric("staging", lambda run: run.get("staging_s"), duration, -1),
    Metric("peak memory", lambda run: run.get("peak_rss_bytes"), bytes_size, -1),
    Metric("memory, shared pages once", lambda run: run.get("pss_bytes"), bytes_size, -1),
    Metric("bytes delivered", lambda run: run.delivered_bytes, bytes_size, 0),
    Metric("bytes read", lambda run: run.total("read_bytes"), bytes_size, -1),
    Metric("bytes of the device", lambda run: run.get("device_bytes"), bytes_size, 0),
    Metric("a checkpoint takes", lambda run: run.mean_saving_s, duration, -1),
)
"""All metrics, in the order in which they are shown."""


class Ratio(NamedTuple):
    """Ratio of a run's figure to the first run's; low and high: its interval, if there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def clear(self) -> bool | None:
        """True if the ratio is more than chance; None if that cannot be told."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1 <= self.high


def format_ratio(ratio: Ratio) -> str:
    """A ratio with its interval, in as many digits as tell both apart."""
    if ratio.low is None or ratio.high is None:
        return f"{factor(ratio.value)} ×"
    return f"{factor(ratio.value)} × ({factor(ratio.low)}–{factor(ratio.high)})"


def factor(value: float) -> str:
    """A ratio in three digits."""
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{decimals}f}"


@dataclass(frozen=True)
class MetricRow:
    """A metric of all runs, and of all but the first its ratio to the first's."""

    metric: Metric
    values: tuple[float | None, ...]
    ratios: tuple[Ratio | None, ...]


def compare_runs(runs: Sequence[RecordedRun]) -> tuple[MetricRow, ...]:
    """Compare all runs with the first one: a row for each metric that any of them knows. Equal runs
    give equal rows: the draws depend on nothing else."""
    drawn = [Resampled(run, number) for number, run in enumerate(runs)]
    rows = []
    for metric in METRICS:
        values = tuple(metric.value(run) for run in runs)
        if any(value for value in values):
            ratios = [
                _compute_ratio(metric, values[0], value, drawn[0], other)
                for value, other in zip(values[1:], drawn[1:], strict=True)
            ]
            rows.append(MetricRow(metric, values, (None, *ratios)))
    return tuple(rows)


def judge_ratio(row: MetricRow, place: int) -> str:
    """Sum up a ratio in a word or two; "" if nothing can be said."""
    ratio = row.ratios[place]
    if ratio is None or not row.metric.better:
        return ""
    if ratio.clear is None:
        return "same" if ratio.value == 1 else "one value"
    if not ratio.clear:
        return "within noise"
    return "better" if (ratio.value > 1) == (row.metric.better > 0) else "worse"


def basis(runs: Sequence[RecordedRun]) -> str:
    """Explain in a sentence how the intervals were computed."""
    said = dict.fromkeys(Resampled(run, 0).basis for run in runs)
    return (
        f"Intervals are of 95 %, by bootstrap over {'; '.join(said)}. They say how much these runs "
        "vary within themselves; how much another run would differ, only repeating it shows."
    )


def _compute_ratio(
    metric: Metric, first: float | None, value: float | None, base: Resampled, other: Resampled
) -> Ratio | None:
    if not first or value is None:
        return None
    if metric.drawn is None or not (base.enough and other.enough):
        return Ratio(value / first)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = metric.drawn(other) / metric.drawn(base)
        # What resamples differ by, around the ratio of the figures as they were recorded.
        low, high = value / first * np.percentile(drawn[1:] / drawn[0], [2.5, 97.5])
    if not (np.isfinite(low) and np.isfinite(high)):
        return Ratio(value / first)
    return Ratio(value / first, float(low), float(high))


# -- chance ----------------------------------------------------------------------------------------


class Resampled:
    """Figures of a run by its measured steps, and in RESAMPLES worlds that are as likely."""

    def __init__(self, run: RecordedRun, number: int) -> None:
        self.run, self.number = run, number

    @cached_property
    def _strata(self) -> list[list[tuple[int, slice]]]:
        """Pieces to draw from, as (epoch, steps); pieces of one list are drawn from each other."""
        epochs = self.run.trained
        if len(epochs) >= _many_epochs:
            return [[(place, self.run.measured(epoch)) for place, epoch in enumerate(epochs)]]
        each_epoch = -(-_pieces // max(1, len(epochs)))
        strata = []
        for place, epoch in enumerate(epochs):
            steps = range(epoch.steps)[self.run.measured(epoch)]
            edges = np.linspace(steps.start, steps.stop, min(each_epoch, len(steps)) + 1)
            bounds = pairwise(edges.round().astype(int).tolist())
            strata.append([(place, slice(low, high)) for low, high in bounds])
        return strata

    @property
    def enough(self) -> bool:
        """True if there are enough pieces for an interval."""
        return sum(map(len, self._strata)) >= _least_pieces and min(map(len, self._strata)) > 1

    @property
    def basis(self) -> str:
        """The pieces that are drawn, in words."""
        count = sum(map(len, self._strata))
        epochs = counted(len(self.run.trained), "epoch")
        if not self.enough:
            return f"nothing for {self.run.label}: too few steps"
        if len(self._strata) == 1 and len(self.run.trained) > 1:
            return epochs
        steps = max(piece.stop - piece.start for pieces in self._strata for _, piece in pieces)
        return f"{count} pieces of up to {counted(steps, 'step')} in {epochs}"

    @cached_property
    def _weights(self) -> Floats:
        """1 + RESAMPLES x pieces: each once; then how often it is drawn. One less than there are is
        drawn, and all count for more, to keep the variance of few pieces right (Rao and Wu)."""
        rng = np.random.Generator(np.random.Philox(key=[self.number, 0]))
        weights = []
        for pieces in self._strata:
            count = len(pieces)
            draws = rng.multinomial(max(1, count - 1), [1 / count] * count, RESAMPLES)
            weights.append(np.vstack([np.ones(count), draws * (count / max(1, count - 1))]))
        return np.concatenate(weights, axis=1)

    @cached_property
    def _sums(self) -> Floats:
        """Pieces x 5: computing, waiting, at the barrier, other, and steps."""
        seconds = [epoch.parts_s for epoch in self.run.trained]
        return np.array(
            [
                [*seconds[place][steps].sum(axis=0), len(seconds[place][steps])]
                for pieces in self._strata
                for place, steps in pieces
            ]
        )

    @cached_property
    def _drawn(self) -> Floats:
        return np.asarray(self._weights @ self._sums)

    def share(self, column: int) -> Floats:
        """A column of `_sums` over the time."""
        return np.asarray(self._drawn[:, column] / self._drawn[:, :4].sum(axis=1))

    @property
    def rate(self) -> Floats:
        """Samples a second."""
        samples = sum(epoch.samples or 0.0 for epoch in self.run.trained)
        return self.share(4) * (samples / max(1, sum(epoch.steps for epoch in self.run.trained)))

    @cached_property
    def _cumulated(self) -> tuple[int, Floats]:
        """The first bin that has any wait, and the number of waits up to each bin from there on."""
        bins = [_assign_bins(epoch.wait_s) for epoch in self.run.trained]
        counts = np.array(
            [
                np.bincount(waits[waits >= 0], minlength=1 + _bins * _decades)
                for pieces in self._strata
                for place, steps in pieces
                for waits in [bins[place][:, steps]]
            ]
        )
        used = np.flatnonzero(counts.any(axis=0))
        first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
        drawn = self._weights @ counts[:, first : last + 1].astype(np.float64)
        return first, np.cumsum(drawn, axis=1)

    def percentile(self, percent: int) -> Floats:
        """Percentile of the waits, to about 1 %; 0 if there are none."""
        first, cumulated = self._cumulated
        wanted = cumulated[:, -1] * (percent / 100)
        bins = first + (cumulated < wanted[:, None]).sum(axis=1)
        return np.where(bins == 0, 0.0, _shortest_s * 10 ** ((bins - 0.5) / _bins))


def _assign_bins(waits_s: Floats) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The bin of each wait; -1 if it is not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.floor(np.log10(waits_s / _shortest_s) * _bins) + 1
    logs = np.where(waits_s <= _shortest_s, 0.0, np.minimum(logs, _bins * _decades))
    return np.where(np.isnan(waits_s), -1, logs).astype(np.int64)


# -- whether it is fair ----------------------------------------------------------------------------


class Difference(NamedTuple):
    """A value that differs between records. serious: it makes the comparison of loaders void."""

    name: str
    values: tuple[str, ...]
    serious: bool

    def __str__(self) -> str:
        return f"{self.name} is not the same: {' | '.join(self.values)}"


_PLACES = {
    "dataset.data_folder",
    "dataset.keep_files",
    "storage.storage_root",
    "checkpoint.checkpoint_folder",
    "output.folder",
    "output.log_file",
    "workflow.generate_data",
    "workflow.profiling",
    "workflow.debug",
}
"""Keys of a workload for places, and for work beside training: not compared."""

_TUNING = {
    "framework",
    "reader.data_loader",
    "reader.read_threads",
    "reader.computation_threads",
    "reader.prefetch_size",
    "reader.transfer_size",
    "reader.pin_memory",
    "reader.multiprocessing_context",
    "reader.odirect",
    "reader.dont_use_mmap",
    "metric.au",
}
"""Keys for the way of reading: these may differ, and are told."""


def find_differences(records: Sequence[Record]) -> tuple[Difference, ...]:
    """Find the values that differ between records, the serious ones first: workload, ranks, then
    seed, machine and versions. An unknown value does not differ."""
    return tuple(sorted(_find_differences(records), key=lambda difference: not difference.serious))


def _find_differences(records: Sequence[Record]) -> Iterator[Difference]:
    flat = [dict(flatten(record.workload)) for record in records]
    for key in dict.fromkeys(key for workload in flat for key in workload):
        if key not in _PLACES and not key.startswith("profiling."):
            values = [workload.get(key) for workload in flat]
            yield from _compare_values(key, values, key not in _TUNING and key != "train.seed")
    for key, serious in (("ranks", True), ("hosts", True), ("seed", False), ("compat", False)):
        yield from _compare_values(key, [record.values.get(key) for record in records], serious)
    for section in ("machine", "versions"):
        entries = [record.values.get(section) or {} for record in records]
        for key in dict.fromkeys(key for entry in entries for key in entry):
            if key != "load_before":
                yield from _compare_values(
                    f"{section}.{key}", [entry.get(key) for entry in entries], False
                )


def _compare_values(name: str, values: Sequence[Any], serious: bool) -> Iterator[Difference]:
    known = [value for value in values if value is not None]
    if any(value != known[0] for value in known[1:]):
        said = tuple("unknown" if value is None else str(value) for value in values)
        yield Difference(name, said, serious)


def flatten(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value by its keys with dots between; {mean: 1, stdev: 0} is 1."""
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and "mean" in value and not value.get("stdev"):
            value = value["mean"]
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        else:
            yield name, value
