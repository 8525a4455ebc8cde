"""The order of a mixture: the dataset drawn at each position, and the sample drawn from it.

Weights are rounded to slots of a period of `limits.mixture_slots` slots. A keyed permutation
shuffles the slots. Position p of a stretch of constant weights is slot p % period of its period
p // period. Each slot belongs to one dataset, and the number of earlier slots of that dataset is
known. So a position maps to a sample by arithmetic, in constant memory, and so does the inverse.

A dataset's samples come in the order of its own passes. The n-th sample drawn from it, counted over
all epochs of the mixture, is at n % count of its pass n // count, and each pass is an `Order`.
Weights decide how fast passes go by, never what a pass holds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import UsageError
from .keys import WORD, Words
from .order import Marks, Order, Ordering, Shuffle, check_words
from .weighted import WeightedOrder, WeightTable

Weights = Sequence[float]
Unit = Literal["steps", "samples"]
Counts = npt.NDArray[np.uint64]


def divide_slots(weights: Weights) -> tuple[int, ...]:
    """Divide the slots of a period among datasets by weight, with largest remainders.

    Raises UsageError if a weight is not a finite number from 0 on, if all weights are 0, or if a
    weight above 0 is too small for one slot.
    """
    period = limits.mixture_slots
    shares = [_check_weight(weight) for weight in weights]
    largest = max(shares, default=0.0)
    if largest == 0:
        raise UsageError(f"weights are {list(weights)!r}: their sum must be above 0")
    total = math.fsum(share / largest for share in shares)
    exact = [share / largest / total * period for share in shares]
    slots = [math.floor(exact_slots) for exact_slots in exact]
    by_remainder = sorted(range(len(slots)), key=lambda d: (slots[d] - exact[d], d))
    for d in by_remainder[: period - sum(slots)]:
        slots[d] += 1
    for d, (share, dataset_slots) in enumerate(zip(shares, slots, strict=True)):
        if share > 0 and dataset_slots == 0:
            what = f"the weight {share!r} of dataset {d} is too small for one of {period} slots"
            raise UsageError(f"{what}: raise it, or use 0")
    return tuple(slots)


def _check_weight(value: object) -> float:
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not 0 <= number < math.inf:
        raise UsageError(f"a weight is {value!r}: use a number from 0 on")
    return number


@dataclass(frozen=True)
class MixtureRecipe:
    """Datasets and weights of a mixture: all that decides its order besides the seed.

    counts:    samples that a pass of each dataset draws: as many as it has, unless it has weights.
    starts:    start of each stretch of constant weights, in positions of the mixture counted over
               all epochs, or in steps (`unit`); the first is 0.
    slots:     for each stretch, the slots of each dataset in a period.
    length:    positions of an epoch.
    unit:      unit of `starts`.
    tables:    weights of each dataset's samples, or None; () if none has any.
    """

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    length: int
    unit: Unit = "steps"
    tables: tuple[WeightTable | None, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each dataset."""
        tables = self.tables or (None,) * len(self.counts)
        return tuple(
            count if table is None else len(table)
            for count, table in zip(self.counts, tables, strict=True)
        )

    @property
    def digest(self) -> str:
        """Hash of 64 bits, as hex digits, that identifies the recipe in saved states."""
        text = repr((1, limits.mixture_slots, *self._fields()))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _fields(self) -> tuple[Any, ...]:
        unit = self.unit if len(self.starts) > 1 else ""  # one stretch has no unit
        fields = self.counts, self.starts, self.slots, self.length, unit
        weights = tuple(table and table.digest for table in self.tables)
        return (*fields, weights) if any(weights) else fields


class _Stretch(NamedTuple):
    """Constant weights from one position on.

    start:   first position, counted over all epochs.
    source:  dataset of each slot.
    nth:     for each slot, the number of earlier slots of the same dataset in the period.
    slots:   slots of each dataset in a period.
    drawn:   samples of each dataset drawn before `start`.
    """

    start: int
    source: npt.NDArray[np.uint16]
    nth: Counts
    slots: Counts
    drawn: Counts

    def locate(self, places: Words) -> tuple[npt.NDArray[np.uint16], Counts]:
        """Return the dataset at each of these places, and how many of its samples came before."""
        since = places - np.uint64(self.start)
        periods = since // np.uint64(limits.mixture_slots)
        slot = (since - periods * np.uint64(limits.mixture_slots)).view(np.int64)
        source = self.source.take(slot)
        drawn = self.slots.take(source)
        drawn *= periods
        drawn += self.drawn.take(source)
        drawn += self.nth.take(slot)
        return source, drawn

    def count_drawn(self, position: int) -> Counts:
        """Count the samples of each dataset before a position of this stretch."""
        periods, rest = divmod(position - self.start, limits.mixture_slots)
        of_rest = np.bincount(self.source[:rest], minlength=len(self.slots))
        return self.drawn + np.uint64(periods) * self.slots + of_rest.astype(np.uint64)


@dataclass(frozen=True)
class Mixture(Ordering):
    """An `Ordering` that draws from several datasets by weight.

    Samples are numbered one dataset after the other. Epoch e continues where epoch e-1 ended:
    passes go on across epochs. An epoch may hold a sample several times, or not at all.

    seed, shuffle, block, group:  of the datasets' own orders, see `Order`. The sequence of datasets
                                  depends on the seed, and the stream, alone.
    stream:                       number of the first dataset's stream; the others' follow it.
    """

    recipe: MixtureRecipe
    seed: int
    epoch: int = 0
    shuffle: Shuffle = "exact"
    block: int = 256
    group: int = 64
    stream: int = 0
    _stretches: tuple[_Stretch, ...] = field(default=(), repr=False, compare=False)
    _passes: dict[int, Order | WeightedOrder] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not self._passes:
            self._get_pass(0, 0)  # checks seed, shuffle, block and group
        last = (self.epoch + 1) * self.recipe.length
        if not 0 <= self.epoch <= last <= limits.order_count_max:
            raise UsageError(f"epoch {self.epoch} of a mixture ends beyond 2^62 samples")
        if not self._stretches and (self.recipe.unit == "samples" or len(self.recipe.starts) == 1):
            object.__setattr__(self, "_stretches", self._draw_stretches(self.recipe.starts))

    def __len__(self) -> int:
        return self.recipe.length

    @property
    def algorithm(self) -> str:
        return f"mixture-1:{self.recipe.digest}/{self.parts()[0].algorithm}"

    def for_steps(self, global_batch: int, steps: int) -> Mixture:
        """The same mixture with a schedule in steps converted to one in positions.

        An epoch has `steps` steps of `global_batch` samples each. If these are fewer samples than
        an epoch had (`drop_last`), epochs become so short: every sample drawn is handed over, and
        passes are whole.
        """
        recipe = replace(self.recipe, length=min(self.recipe.length, steps * global_batch))
        if recipe.unit == "samples":
            return replace(self, recipe=recipe)
        starts = [
            start // steps * recipe.length + start % steps * global_batch for start in recipe.starts
        ]
        return replace(self, recipe=recipe, _stretches=self._draw_stretches(starts))

    def marks(self, positions: npt.ArrayLike) -> Marks:
        """Return "source", each position's dataset number, and "pass", that dataset's own epoch."""
        return self.rows(positions)[1]

    def rows(self, positions: npt.ArrayLike) -> tuple[Words, Marks]:
        """Return samples and marks together. Takes about 60 ns a position."""
        words = check_words(positions, len(self), "position")
        source, drawn = self._locate(words.reshape(-1) + np.uint64(self.epoch * len(self)))
        samples, turns = np.empty_like(drawn), np.empty_like(drawn)
        first = 0
        for d, (count, size) in enumerate(zip(self.recipe.counts, self.recipe.sizes, strict=True)):
            rows = np.flatnonzero(source == d)
            if len(rows):
                draws = drawn[rows]
                turn = draws // np.uint64(count)
                turns[rows] = turn
                samples[rows] = self._map_passes(d, turn, draws - turn * np.uint64(count))
                samples[rows] += np.uint64(first)
            first += size
        marks = {
            "source": source.astype(np.int64).reshape(words.shape),
            "pass": turns.view(np.int64).reshape(words.shape),
        }
        return samples.reshape(words.shape), marks

    def positions(self, source: int, turn: int, samples: npt.ArrayLike) -> Words:
        """Return the positions of a dataset's samples in its pass `turn`.

        Positions are counted over all epochs, samples within the dataset. Raises UsageError if the
        schedule never comes to that pass, or if the dataset has weights.
        """
        count = self.recipe.counts[source]
        order = self._get_pass(source, turn)
        if isinstance(order, WeightedOrder):
            raise UsageError(f"dataset {source} has weights: samples may come several times")
        drawn = order.positions(samples) + np.uint64(turn * count)
        begins = np.array([int(s.drawn[source]) for s in self._require_stretches()], np.uint64)
        positions = np.empty_like(drawn)
        # The last stretch that starts with so few drawn: one without this dataset draws none.
        at = np.searchsorted(begins, drawn, side="right") - 1
        for k in np.unique(at).tolist():
            rows = at == k
            stretch = self._require_stretches()[k]
            slots = stretch.slots[source]
            if slots == 0:
                raise UsageError(
                    f"the mixture never comes to pass {turn} of dataset {source}: its weight is 0"
                )
            periods, nth = np.divmod(drawn[rows] - stretch.drawn[source], slots)
            offsets = np.flatnonzero(stretch.source == source).astype(np.uint64)
            positions[rows] = (
                np.uint64(stretch.start) + periods * np.uint64(limits.mixture_slots) + offsets[nth]
            )
        return positions

    def count_drawn(self, position: int) -> list[int]:
        """Count the samples drawn from each dataset, over all epochs, before a position."""
        place = self.epoch * len(self) + position
        stretch = next(s for s in reversed(self._require_stretches()) if s.start <= place)
        counts: list[int] = stretch.count_drawn(place).tolist()
        return counts

    def parts(self) -> tuple[Order, ...]:
        return tuple(self._make_order(source, 0) for source in range(len(self.recipe.counts)))

    # -- implementation ----------------------------------------------------------------------------

    def _locate(self, places: Words) -> tuple[npt.NDArray[np.uint16], Counts]:
        """Return the dataset at each of these places, and how many of its samples came before.

        Places are positions counted over all epochs.
        """
        stretches = self._require_stretches()
        starts = [stretch.start for stretch in stretches]
        ends = [*starts[1:], WORD]
        least, most = (int(places.min()), int(places.max())) if len(places) else (0, 0)
        source = np.empty(places.shape, np.uint16)
        drawn = np.empty(places.shape, np.uint64)
        for stretch, end in zip(stretches, ends, strict=True):
            if stretch.start <= least and most < end:
                return stretch.locate(places)
            if stretch.start <= most and least < end:
                rows = (places >= np.uint64(stretch.start)) & (places < np.uint64(end))
                source[rows], drawn[rows] = stretch.locate(places[rows])
        return source, drawn

    def _map_passes(self, source: int, turns: Counts, places: Words) -> Words:
        """Return the samples of one dataset at these places of its passes."""
        first = int(turns.min())
        if first == int(turns.max()):
            return self._get_pass(source, first).samples(places)
        samples = np.empty_like(places)
        for turn in np.unique(turns).tolist():
            rows = turns == turn
            samples[rows] = self._get_pass(source, turn).samples(places[rows])
        return samples

    def _get_pass(self, source: int, turn: int) -> Order | WeightedOrder:
        """Return the order of one pass of a dataset; the last one of each dataset is kept."""
        order = self._passes.get(source)
        if order is None or order.epoch != turn:
            base = self._make_order(source, turn)
            table = self.recipe.tables[source] if self.recipe.tables else None
            order = base if table is None else WeightedOrder(base, table)
            self._passes[source] = order
        return order

    def _make_order(self, source: int, turn: int) -> Order:
        return Order(
            self.recipe.counts[source],
            self.seed,
            turn,
            shuffle=self.shuffle,
            block=self.block,
            group=self.group,
            stream=self.stream + source,
        )

    def _require_stretches(self) -> tuple[_Stretch, ...]:
        if not self._stretches:
            raise UsageError("the schedule is in steps: call for_steps first, or use samples")
        return self._stretches

    def _draw_stretches(self, starts: Sequence[int]) -> tuple[_Stretch, ...]:
        """Build the stretches, each with the counts of samples drawn before it."""
        period = limits.mixture_slots
        stretches: list[_Stretch] = []
        for k, (start, slots) in enumerate(zip(starts, self.recipe.slots, strict=True)):
            order = Order(period, self.seed, k, stream=self.stream, purpose="mixture")
            shuffled = order.run(0, period)
            edges = np.cumsum(slots)
            source = np.searchsorted(edges, shuffled.view(np.int64), side="right")
            by_source = np.argsort(source, kind="stable")
            nth = np.empty(period, np.uint64)
            begin = np.repeat(edges - slots, slots)
            nth[by_source] = np.arange(period, dtype=np.uint64) - begin.astype(np.uint64)
            drawn = np.zeros(len(slots), np.uint64)
            if stretches:
                drawn = stretches[-1].count_drawn(start)
            slot_counts = np.array(slots, np.uint64)
            stretches.append(_Stretch(start, source.astype(np.uint16), nth, slot_counts, drawn))
        return tuple(stretches)
