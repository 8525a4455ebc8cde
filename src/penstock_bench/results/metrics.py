"""Figures computed from a run's stamps: the right ones, and DLIO's. Pure.

Four times of each step of a rank are known, in ns of one clock: it starts to wait (`asked`), has
its batch (`got`), has computed (`computed`), has left the barrier (`left`). `paused` is the time of
a checkpoint after a step. Utilisation and shares are fractions here, and DLIO's percentages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ns = npt.NDArray[np.int64]

S = 1e-9
"""A nanosecond in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Stamps:
    """One rank's times in one epoch; all arrays are int64 (steps,), in ns.

    nominal:  time that each step's computation should take: useful time.
    began, ended:  of the walk as a whole, on the same clock.
    """

    asked: Ns
    got: Ns
    computed: Ns
    left: Ns
    paused: Ns
    nominal: Ns
    began: int
    ended: int

    def __len__(self) -> int:
        return len(self.asked)


def measured_steps(steps: int, start: int, end: int) -> slice:
    """The steps that are measured: all but some at both ends; all, if none would be left."""
    return slice(start, steps - end) if start + end < steps else slice(0, steps)


def clock_s(stamps: Stamps, measured: slice) -> float:
    """Seconds of these steps, without checkpoints between them."""
    asked, left = stamps.asked[measured], stamps.left[measured]
    if not len(asked):
        return 0.0
    return float(left[-1] - asked[0] - stamps.paused[measured][:-1].sum()) * S


Walks = Sequence[Sequence[Stamps]]
"""Stamps by epoch and rank."""


def utilisation(walks: Walks, start: int, end: int, before_s: float = 0.0) -> float:
    """Mean share of time in which ranks compute: the time that computing should take, of all time.

    start, end:  steps of each epoch that are left out.
    before_s:    time before the first epoch that counts, too.
    """
    if not walks or not walks[0]:
        return 0.0
    shares = []
    for epochs in zip(*walks, strict=True):
        measured = [measured_steps(len(stamps), start, end) for stamps in epochs]
        spent = before_s + sum(map(clock_s, epochs, measured))
        useful = sum(map(_nominal, epochs, measured))
        shares.append(useful / spent if spent > 0 else 0.0)
    return float(np.mean(shares))


def throughput(walks: Walks, start: int, end: int, per_step: float) -> float:
    """Samples a second of all ranks, each epoch by its slowest rank's clock.

    per_step:  samples of a step of one rank.
    """
    steps, spent = 0, 0.0
    for ranks in walks:
        measured = [measured_steps(len(stamps), start, end) for stamps in ranks]
        steps += sum(chosen.stop - chosen.start for chosen in measured)
        spent += max(map(clock_s, ranks, measured), default=0.0)
    return steps * per_step / spent if spent > 0 else 0.0


def decomposition(walks: Walks, start: int, end: int) -> dict[str, float]:
    """Divide the time of all ranks into shares that sum to 1. other: computing beyond its nominal
    time, and the time between stamps."""
    seconds = dict.fromkeys(("storage_wait", "barrier", "compute"), 0.0)
    total = 0.0
    for stamps in (walk for ranks in walks for walk in ranks):
        measured = measured_steps(len(stamps), start, end)
        total += clock_s(stamps, measured)
        seconds["storage_wait"] += _sum(stamps.got, stamps.asked, measured)
        seconds["barrier"] += _sum(stamps.left, stamps.computed, measured)
        seconds["compute"] += _nominal(stamps, measured)
    if total <= 0:
        return {**dict.fromkeys(seconds, 0.0), "other": 1.0}
    shares = {name: value / total for name, value in seconds.items()}
    return {**shares, "other": 1.0 - sum(shares.values())}


def waits_s(walks: Walks, start: int, end: int) -> npt.NDArray[np.float64]:
    """Waits for each batch, of all ranks and epochs."""
    waits = [
        (stamps.got - stamps.asked)[measured_steps(len(stamps), start, end)] * S
        for ranks in walks
        for stamps in ranks
    ]
    return np.concatenate(waits) if waits else np.zeros(0)


def _nominal(stamps: Stamps, measured: slice) -> float:
    return float(stamps.nominal[measured].sum()) * S


def _sum(late: Ns, early: Ns, measured: slice) -> float:
    return float((late[measured] - early[measured]).sum()) * S


def summarise_waits(waits_s: npt.NDArray[np.float64]) -> dict[str, float]:
    """Percentiles, largest and mean of the waits for batches."""
    if not len(waits_s):
        return dict.fromkeys(("p50", "p95", "p99", "max", "mean"), 0.0)
    p50, p95, p99 = np.percentile(waits_s, (50, 95, 99)).tolist()
    largest, mean = float(waits_s.max()), float(waits_s.mean())
    return {"p50": p50, "p95": p95, "p99": p99, "max": largest, "mean": mean}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the mean, by 2,000 bootstrap samples of these values."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (2000, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), (2.5, 97.5)).tolist()
    return low, high


# -- DLIO's formulas -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointBlock:
    """DLIO's times of the steps between two checkpoints, of one rank, in seconds.

    load:   until the batch was there; proc: until it was computed, too; compute: that alone.
    """

    load: Sequence[float]
    proc: Sequence[float]
    compute: Sequence[float]
    start: float
    end: float


def blocks(stamps: Stamps) -> list[CheckpointBlock]:
    """Divide an epoch at its checkpoints. One after the last step begins an empty block, as in
    DLIO."""
    cuts = (np.flatnonzero(stamps.paused) + 1).tolist()
    pieces, begun_ns = [], stamps.began
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(stamps)], strict=True)):
        asked, got = stamps.asked[first:last], stamps.got[first:last]
        computed = stamps.computed[first:last]
        paused = number < len(cuts)
        ended_ns = int(stamps.left[last - 1]) if paused else stamps.ended
        pieces.append(
            CheckpointBlock(
                ((got - asked) * S).tolist(),
                ((computed - asked) * S).tolist(),
                ((computed - got) * S).tolist(),
                begun_ns * S,
                ended_ns * S,
            )
        )
        begun_ns = ended_ns + int(stamps.paused[last - 1]) if paused else ended_ns
    return pieces


def dlio_block(
    block: CheckpointBlock, steps: int, batch: int, start: int, end: int
) -> tuple[float, float]:
    """Utilisation in percent, and samples a second, of a block of one rank.

    steps:  of the epoch; start, end: steps that are left out there. The sum that is taken as time
    has barriers in it, and the throughput leaves out two steps however many the time leaves out.
    """
    last = steps - 1 - end
    spent = block.end - block.start - sum(block.proc[:start]) - sum(block.proc[last + 1 :])
    useful = sum(block.compute[start : last + 1])
    if spent == 0:
        return 0.0, 0.0
    return (100 * useful / spent if useful else 0.0), (len(block.compute) - 2) / spent * batch


def dlio_eval(
    block: CheckpointBlock, steps: int, batch: int, start: int, end: int
) -> tuple[float, float]:
    """`dlio_block` of an evaluation, of which all steps count in the throughput."""
    spent = block.end - block.start
    rate = len(block.compute) / spent * batch if spent > 0 else 0.0
    return dlio_block(block, steps, batch, start, end)[0], rate


def weigh_blocks(blocks: Sequence[CheckpointBlock], values: Sequence[float]) -> float:
    """The mean of the blocks' values, weighted by their steps."""
    steps = sum(len(block.compute) for block in blocks)
    if not steps:
        return 0.0
    pairs = zip(blocks, values, strict=True)
    return sum(len(block.compute) * value for block, value in pairs) / steps


def dlio_metric(
    kind: str,
    au: Sequence[Sequence[float]],
    rates: Sequence[Sequence[float]],
    record_bytes: float,
    asked: float,
) -> dict[str, Any]:
    """DLIO's entries for "train" or "eval".

    au, rates:  by epoch and rank, in percent and samples a second. Of ranks, utilisations are
    averaged and rates added up; for evaluations DLIO itself adds nothing up.
    """
    percent = [float(np.mean(rank_values)) for rank_values in au]
    samples = [float(np.sum(rank_values)) for rank_values in rates]
    mean_au, mean, stdev = float(np.mean(percent)), float(np.mean(samples)), float(np.std(samples))
    mib = record_bytes / 2**20
    return {
        f"{kind}_au_percentage": percent,
        f"{kind}_au_mean_percentage": mean_au,
        f"{kind}_au_meet_expectation": "success" if mean_au >= 100 * asked else "fail",
        f"{kind}_au_stdev_percentage": float(np.std(percent)),
        f"{kind}_throughput_samples_per_second": samples,
        f"{kind}_throughput_mean_samples_per_second": mean,
        f"{kind}_throughput_stdev_samples_per_second": stdev,
        f"{kind}_io_mean_MB_per_second": mean * mib,
        f"{kind}_io_stdev_MB_per_second": stdev * mib,
    }


def replace_nonfinite(values: Any) -> Any:
    """Replace NaN and infinity by null, as JSON has neither."""
    if isinstance(values, Mapping):
        return {key: replace_nonfinite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [replace_nonfinite(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    if isinstance(values, np.generic):
        return replace_nonfinite(values.item())
    return values
