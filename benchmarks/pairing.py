"""Paired, interleaved measurement: two contenders take turns, and only their ratio is trusted.

A shared machine drifts by more than the differences of interest, but slowly: two blocks that follow
each other see the same machine. Turns go A B, B A, A B, ... so that a steady drift cancels.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .contender import Contender, Measurement
from .record import WIDTH_MAX

BLOCK_S = 0.25
BLOCK_EPOCHS_MAX = 64
RESAMPLES = 2_000
TRY_TURNS = 4
"""So many turns or fewer are a try, which need not settle."""
ROW_VARIABLE = "PENSTOCK_BENCH_ROW_S"
"""Environment variable by which `benchmarks.figures` gives a study less time for each row."""
FEW_TURNS = 5
"""Turns that every pair has, however long they take."""
ROW_S = float(os.environ.get(ROW_VARIABLE, 2.5))
"""Seconds for the turns of a pair: after them it has no more than `FEW_TURNS`, settled or not."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """A number of pairs: as wanted, fewer (down to `least`) when they would take too long.

    row_s:  see `count_turns`.
    """

    wanted: int
    least: int
    seconds_max: float
    row_s: float = ROW_S

    def count(self, pair_seconds: float) -> int:
        affordable = int(self.seconds_max / max(pair_seconds, 1e-9))
        return max(self.least, min(self.wanted, affordable))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of (subject, reference) and what follows from them."""

    pairs: list[tuple[Measurement, Measurement]]

    @property
    def ratios(self) -> list[float]:
        """The subject's rate over the reference's, pair by pair."""
        return [subject.rate_per_s / other.rate_per_s for subject, other in self.pairs]

    @property
    def ratio(self) -> float:
        return float(np.median(self.ratios))

    def interval(self, seed: int) -> tuple[float, float]:
        """95 % bootstrap interval of the median ratio."""
        return bootstrap_interval(self.ratios, seed)


def bootstrap_interval(values: list[float], seed: int) -> tuple[float, float]:
    """95 % percentile interval of the median, by resampling."""
    random = np.random.default_rng(seed)
    drawn = random.choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(low), float(high)


def is_settled(ratios: Sequence[float]) -> bool:
    """Whether the interval of the median is narrow enough for a verdict."""
    low, high = bootstrap_interval(list(ratios), 0)
    return high - low <= WIDTH_MAX * float(np.median(ratios))


def count_turns(
    least: int, list_ratios: Callable[[], Sequence[Sequence[float]]], row_s: float = ROW_S
) -> Iterator[int]:
    """Yield the numbers of turns: `least` of them, then more while one of the lists of ratios is
    not settled. Of either there are no more than `FEW_TURNS` once they would take longer than
    `row_s`. Only the width of an interval counts, so that nobody is favoured.

    list_ratios:  makes the ratios of the turns so far, a list for each pair of contenders.
    """
    began, turn = time.perf_counter(), 0
    while True:
        is_late = turn > 0 and (time.perf_counter() - began) / turn * (turn + 1) > row_s
        if is_late and turn >= min(least, FEW_TURNS):
            return
        if turn >= least and (least <= TRY_TURNS or all(map(is_settled, list_ratios()))):
            return
        yield turn
        turn += 1


def divide_pairs(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Quotients of the pairs that are whole: `theirs` to `ours`."""
    return [other / own for own, other in zip(ours, theirs, strict=False)]


def epochs_per_block(epoch_seconds: float) -> int:
    """Epochs that fill a block: long against a wake-up, short against the machine's drift."""
    return min(BLOCK_EPOCHS_MAX, max(1, math.ceil(BLOCK_S / epoch_seconds)))


def compare(
    subject: Contender, subject_s: float, reference: Contender, reference_s: float, pairs: Pairs
) -> Comparison:
    """Measures the two in turns; `_s` are the seconds of one epoch, known from a first run."""
    epochs = {
        id(subject): epochs_per_block(subject_s),
        id(reference): epochs_per_block(reference_s),
    }
    pair_seconds = subject_s * epochs[id(subject)] + reference_s * epochs[id(reference)]
    comparison = Comparison([])
    turns = count_turns(pairs.count(pair_seconds), lambda: [comparison.ratios], pairs.row_s)
    for turn in turns:
        first, second = (subject, reference) if turn % 2 == 0 else (reference, subject)
        blocks = {id(one): one.measure(epochs[id(one)]) for one in (first, second)}
        comparison.pairs.append((blocks[id(subject)], blocks[id(reference)]))
    return comparison
