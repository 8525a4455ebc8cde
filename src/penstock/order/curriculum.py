"""The order of a curriculum: orders of one dataset that follow each other at named places.

Positions are counted over all epochs. From the start of a stage on, they are the stage's own passes
one after the other, each an epoch of the stage's order, until the next stage starts. Epochs of the
curriculum have one length, whatever a stage's passes have, so that the number of steps is fixed. A
pass goes on across epochs, and the start of the next stage may cut it short.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import UsageError
from .keys import Words
from .order import Marks, Order, Ordering, Shuffle, check_words

StageUnit = Literal["epochs", "steps", "samples"]

_named_max = 12
"""Stages that a state names one by one; further ones are in the digest only."""


@dataclass(frozen=True)
class Curriculum(Ordering):
    """An `Ordering` of stages, each an ordering of the same dataset.

    stages:  the stages' orders of epoch 0, unrelated to each other.
    starts:  start of each stage, ascending from 0, in units over all epochs.
    unit:    unit of `starts`.
    length:  positions of an epoch.

    Its marks are "stage", the number of the stage, "pass", the pass of the stage, and the
    marks of the stage's order; these win.
    """

    stages: tuple[Ordering, ...]
    starts: tuple[int, ...]
    unit: StageUnit
    length: int
    epoch: int = 0
    _begins: tuple[int, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.epoch <= (self.epoch + 1) * self.length <= limits.order_count_max:
            raise UsageError(f"epoch {self.epoch} of a curriculum ends beyond 2^62 samples")
        if not self._begins and self.unit != "steps":
            factor = self.length if self.unit == "epochs" else 1
            begins = tuple(start * factor for start in self.starts)
            object.__setattr__(self, "_begins", begins)

    def __len__(self) -> int:
        return self.length

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.stages[0].seed

    @property
    def shuffle(self) -> Shuffle:  # type: ignore[override]
        return self.stages[0].shuffle

    @property
    def algorithm(self) -> str:
        """Identifier of stages and algorithm; a saved state continues only under the same one."""
        names = [
            f"{start}={_hash(stage.algorithm, 4)}"
            for start, stage in zip(self.starts, self.stages, strict=True)
        ]
        if len(names) > _named_max:
            more = len(names) - _named_max
            names = [*names[:_named_max], f"{more} more, {_hash(','.join(names), 8)}"]
        stages = ",".join(names)
        return f"curriculum-1:{self.unit}:{stages};{self.length}/{self.parts()[0].algorithm}"

    def for_steps(self, global_batch: int, steps: int) -> Curriculum:
        """The same curriculum with starts in steps converted to positions.

        An epoch has `steps` steps of `global_batch` samples each. If these are fewer samples than
        an epoch had (`drop_last`), epochs become so short: every sample drawn is handed over.
        """
        length = min(self.length, steps * global_batch)
        begins = tuple(
            start // steps * length + start % steps * global_batch for start in self.starts
        )
        begins = begins if self.unit == "steps" else ()
        return replace(self, length=length, _begins=begins)

    def rows(self, positions: npt.ArrayLike) -> tuple[Words, Marks]:
        words = check_words(positions, len(self), "position")
        places = words.reshape(-1) + np.uint64(self.epoch * self.length)
        begins = np.array(self._require_begins(), np.uint64)
        stage = np.searchsorted(begins, places, side="right") - 1
        places -= begins[stage]
        turn = places // np.array([len(order) for order in self.stages], np.uint64)[stage]
        samples = np.empty_like(places)
        marks = {"stage": stage.astype(np.int64), "pass": turn.astype(np.int64)}
        for number in np.unique(stage).tolist():
            order = self.stages[number]
            of_stage = stage == number
            for epoch in np.unique(turn[of_stage]).tolist():
                rows = np.flatnonzero(of_stage & (turn == epoch))
                inside = places[rows] - np.uint64(epoch * len(order))
                samples[rows], more = order.at_epoch(epoch).rows(inside)
                for name, column in more.items():
                    marks.setdefault(name, np.zeros(len(places), np.int64))[rows] = column
        shaped = {name: column.reshape(words.shape) for name, column in marks.items()}
        return samples.reshape(words.shape), shaped

    def count_drawn(self, position: int) -> list[int]:
        """Count the samples drawn in each stage, over all epochs, before a position."""
        place = self.epoch * self.length + position
        begins = [*self._require_begins(), limits.order_count_max]
        return [
            min(max(place - begin, 0), end - begin) for begin, end in itertools.pairwise(begins)
        ]

    def parts(self) -> tuple[Order, ...]:
        return tuple(order for stage in self.stages for order in stage.parts())

    def _require_begins(self) -> tuple[int, ...]:
        if not self._begins:
            raise UsageError("starts are in steps: call for_steps first, or use epochs or samples")
        return self._begins


def _hash(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
