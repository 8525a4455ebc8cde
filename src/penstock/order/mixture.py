"""The order of a mixture: which dataset's turn it is at each position, and which of its samples.

Weights are rounded to slots of a period of `limits.mixture_slots`, which a keyed permutation
shuffles. Position p of a stretch of constant weights is slot p % period of its period p // period;
that slot belongs to one dataset, of which so many samples have come before. So a position is
arithmetic, in constant memory, and so is the way back.

A dataset's samples come in the order of its own passes: the n-th sample drawn from it, counted over
all epochs of the mixture, stands at n % count of its pass n // count, which is an `Order` of its
own. Weights decide how fast passes go by, never what a pass holds.
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
from .feistel_numpy import WORD, Words
from .order import Marks, Order, Shuffle, check_words

Weights = Sequence[float]
Unit = Literal["steps", "samples"]
Counts = npt.NDArray[np.uint64]


def divide_slots(weights: Weights) -> tuple[int, ...]:
    """The slots of each dataset in a period: proportional to the weights, by largest remainder.

    UsageError where a weight is no finite number from 0 on, all are 0, or one above 0 is too small
    for a slot.
    """
    period = limits.mixture_slots
    shares = [_weight(weight) for weight in weights]
    largest = max(shares, default=0.0)
    if largest == 0:
        raise UsageError(f"weights are {list(weights)!r}: their sum must be above 0")
    total = math.fsum(share / largest for share in shares)
    exact = [share / largest / total * period for share in shares]
    slots = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(slots)), key=lambda d: (slots[d] - exact[d], d))
    for d in by_remainder[: period - sum(slots)]:
        slots[d] += 1
    for d, (share, held) in enumerate(zip(shares, slots, strict=True)):
        if share > 0 and held == 0:
            raise UsageError(
                f"the weight {share!r} of dataset {d} is too small beside the others for one of "
                f"{period} slots: raise it, or use 0"
            )
    return tuple(slots)


def _weight(value: object) -> float:
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        number = float(value)
    if not 0 <= number < math.inf:
        raise UsageError(f"a weight is {value!r}: use a number from 0 on")
    return number


@dataclass(frozen=True)
class MixtureRecipe:
    """What is mixed, and how: all that decides a mixture's order, besides the seed. A value.

    counts:    samples of each dataset.
    starts:    where each stretch of constant weights begins: positions of the mixture counted over
               all epochs, or steps (`unit`); the first is 0.
    slots:     of each stretch, the slots of each dataset in a period.
    length:    positions of an epoch.
    """

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    length: int
    unit: Unit = "steps"

    @property
    def digest(self) -> str:
        """64 bits that name the recipe, for states."""
        text = repr((1, limits.mixture_slots, *self._fields()))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _fields(self) -> tuple[Any, ...]:
        unit = self.unit if len(self.starts) > 1 else ""  # one stretch has no unit
        return self.counts, self.starts, self.slots, self.length, unit


class _Stretch(NamedTuple):
    """Constant weights from one position on.

    start:   position, counted over all epochs.
    source:  of each slot, whose it is.
    nth:     of each slot, how many of the period's slots of that dataset come before it.
    slots:   of each dataset.
    drawn:   samples of each dataset before `start`.
    """

    start: int
    source: npt.NDArray[np.uint16]
    nth: Counts
    slots: Counts
    drawn: Counts

    def turns(self, places: Words) -> tuple[npt.NDArray[np.uint16], Counts]:
        """Of places in this stretch, whose turn it is, and how often it was before."""
        since = places - np.uint64(self.start)
        periods = since // np.uint64(limits.mixture_slots)
        slot = (since - periods * np.uint64(limits.mixture_slots)).view(np.int64)
        whose = self.source.take(slot)
        drawn = self.slots.take(whose)
        drawn *= periods
        drawn += self.drawn.take(whose)
        drawn += self.nth.take(slot)
        return whose, drawn

    def drawn_at(self, position: int) -> Counts:
        """Samples of each dataset before a position of this stretch."""
        periods, rest = divmod(position - self.start, limits.mixture_slots)
        part = np.bincount(self.source[:rest], minlength=len(self.slots))
        return self.drawn + np.uint64(periods) * self.slots + part.astype(np.uint64)


@dataclass(frozen=True)
class Mixture:
    """Where each position of an epoch of a mixture leads: `penstock.order.Ordering` of datasets
    whose samples are numbered one dataset after the other.

    Epoch e continues where epoch e-1 ended: passes go on across epochs. An epoch may hold a sample
    several times, or not at all.
    seed, shuffle, block, group:  of the datasets' own orders, see `Order`; whose turn it is depends
    on the seed alone.
    """

    recipe: MixtureRecipe
    seed: int
    epoch: int = 0
    shuffle: Shuffle = "exact"
    block: int = 256
    group: int = 64
    _stretches: tuple[_Stretch, ...] = field(default=(), repr=False, compare=False)
    _passes: dict[int, Order] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self._passes:
            self._pass(0, 0)  # checks seed, shuffle, block and group
        last = (self.epoch + 1) * self.recipe.length
        if not 0 <= self.epoch <= last <= limits.order_count_max:
            raise UsageError(f"epoch {self.epoch} of a mixture ends beyond 2^62 samples")
        if not self._stretches and (self.recipe.unit == "samples" or len(self.recipe.starts) == 1):
            object.__setattr__(self, "_stretches", self._drawn_up(self.recipe.starts))

    def __len__(self) -> int:
        return self.recipe.length

    @property
    def algorithm(self) -> str:
        """What computed the order; a saved state continues only under the same identifier."""
        return f"mixture-1:{self.recipe.digest}/{self.parts()[0].algorithm}"

    def at_epoch(self, epoch: int) -> Mixture:
        """The order of another epoch of the same data."""
        return replace(self, epoch=epoch)

    def for_steps(self, global_batch: int, steps: int) -> Mixture:
        """The same for epochs of so many steps of so many samples: what a schedule in steps needs
        to become one in positions."""
        if self.recipe.unit == "samples":
            return self
        starts = [
            start // steps * self.recipe.length + start % steps * global_batch
            for start in self.recipe.starts
        ]
        return replace(self, _stretches=self._drawn_up(starts))

    def samples(self, positions: npt.ArrayLike) -> Words:
        """The samples at these positions, numbered over all datasets one after the other."""
        return self.rows(positions)[0]

    def marks(self, positions: npt.ArrayLike) -> Marks:
        """Of these positions "source", the number of the dataset, and "pass", its own epoch."""
        return self.rows(positions)[1]

    def rows(self, positions: npt.ArrayLike) -> tuple[Words, Marks]:
        """Samples and marks together. About 60 ns a position."""
        words = check_words(positions, len(self), "position")
        source, drawn = self._drawn(words.reshape(-1) + np.uint64(self.epoch * len(self)))
        samples, turns = np.empty_like(drawn), np.empty_like(drawn)
        first = 0
        for d, count in enumerate(self.recipe.counts):
            rows = np.flatnonzero(source == d)
            if len(rows):
                own = drawn[rows]
                turn = own // np.uint64(count)
                turns[rows] = turn
                samples[rows] = self._of_passes(d, turn, own - turn * np.uint64(count))
                samples[rows] += np.uint64(first)
            first += count
        marks = {
            "source": source.astype(np.int64).reshape(words.shape),
            "pass": turns.view(np.int64).reshape(words.shape),
        }
        return samples.reshape(words.shape), marks

    def positions(self, source: int, turn: int, samples: npt.ArrayLike) -> Words:
        """The positions, counted over all epochs, where samples of a dataset (numbered by itself)
        stand in its pass `turn`. UsageError where the schedule never comes to that pass."""
        count = self.recipe.counts[source]
        drawn = self._pass(source, turn).positions(samples) + np.uint64(turn * count)
        begins = np.array([int(s.drawn[source]) for s in self._settled()], np.uint64)
        found = np.empty_like(drawn)
        # The last stretch that begins with so few drawn: one without this dataset draws none.
        at = np.searchsorted(begins, drawn, side="right") - 1
        for k in np.unique(at).tolist():
            rows = at == k
            stretch = self._settled()[k]
            slots = stretch.slots[source]
            if slots == 0:
                raise UsageError(f"pass {turn} of dataset {source} does not come: its weight is 0")
            periods, nth = np.divmod(drawn[rows] - stretch.drawn[source], slots)
            own = np.flatnonzero(stretch.source == source).astype(np.uint64)
            found[rows] = (
                np.uint64(stretch.start) + periods * np.uint64(limits.mixture_slots) + own[nth]
            )
        return found

    def drawn(self, position: int) -> list[int]:
        """Samples drawn from each dataset, over all epochs, before a position of this epoch."""
        place = self.epoch * len(self) + position
        stretch = next(s for s in reversed(self._settled()) if s.start <= place)
        counts: list[int] = stretch.drawn_at(place).tolist()
        return counts

    def parts(self) -> tuple[Order, ...]:
        """The order of each dataset's first pass."""
        return tuple(self._order(source, 0) for source in range(len(self.recipe.counts)))

    # -- how ---------------------------------------------------------------------------------------

    def _drawn(self, places: Words) -> tuple[npt.NDArray[np.uint16], Counts]:
        """Whose turn it is at these places, counted over all epochs, and how many of its samples
        were drawn before."""
        stretches = self._settled()
        starts = [stretch.start for stretch in stretches]
        ends = [*starts[1:], WORD]
        least, most = (int(places.min()), int(places.max())) if len(places) else (0, 0)
        source = np.empty(places.shape, np.uint16)
        drawn = np.empty(places.shape, np.uint64)
        for stretch, end in zip(stretches, ends, strict=True):
            if stretch.start <= least and most < end:
                return stretch.turns(places)
            if stretch.start <= most and least < end:
                rows = (places >= np.uint64(stretch.start)) & (places < np.uint64(end))
                source[rows], drawn[rows] = stretch.turns(places[rows])
        return source, drawn

    def _of_passes(self, source: int, turns: Counts, places: Words) -> Words:
        """The samples of one dataset at these places of its passes."""
        first = int(turns.min())
        if first == int(turns.max()):
            return self._pass(source, first).samples(places)
        found = np.empty_like(places)
        for turn in np.unique(turns).tolist():
            rows = turns == turn
            found[rows] = self._pass(source, turn).samples(places[rows])
        return found

    def _pass(self, source: int, turn: int) -> Order:
        """The order of one pass of a dataset; the last one of each is kept."""
        kept = self._passes.get(source)
        if kept is None or kept.epoch != turn:
            kept = self._passes[source] = self._order(source, turn)
        return kept

    def _order(self, source: int, turn: int) -> Order:
        return Order(
            self.recipe.counts[source],
            self.seed,
            turn,
            shuffle=self.shuffle,
            block=self.block,
            group=self.group,
            stream=source,
        )

    def _settled(self) -> tuple[_Stretch, ...]:
        if not self._stretches:
            raise UsageError(
                "this mixture's schedule is in steps: call for_steps(global_batch, steps) first, "
                "or give the schedule in samples"
            )
        return self._stretches

    def _drawn_up(self, starts: Sequence[int]) -> tuple[_Stretch, ...]:
        """The stretches, each with what was drawn before it."""
        period = limits.mixture_slots
        stretches: list[_Stretch] = []
        for k, (start, slots) in enumerate(zip(starts, self.recipe.slots, strict=True)):
            shuffled = Order(period, self.seed, k, purpose="mixture").run(0, period)
            edges = np.cumsum(slots)
            source = np.searchsorted(edges, shuffled.view(np.int64), side="right")
            by_source = np.argsort(source, kind="stable")
            nth = np.empty(period, np.uint64)
            begin = np.repeat(edges - slots, slots)
            nth[by_source] = np.arange(period, dtype=np.uint64) - begin.astype(np.uint64)
            drawn = stretches[-1].drawn_at(start) if stretches else np.zeros(len(slots), np.uint64)
            held = source.astype(np.uint16)
            stretches.append(_Stretch(start, held, nth, np.array(slots, np.uint64), drawn))
        return tuple(stretches)
