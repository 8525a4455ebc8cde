"""Plan of decoded chunks: what each step of windows decodes, and what it keeps for later steps.
Pure.

The windows of an exact shuffle meet each compressed chunk many times, far apart. Which windows come
next is known, so a step that decodes a chunk cuts the pieces of later windows from it at once. Of
all pieces, memory holds those that are needed first (Belady's rule). A chunk is kept whole instead
where its pieces would take more memory, on average, or where memory holds all chunks.

A piece waits half of the time between two decodes of its chunk, on average. So with windows of W
bytes in all and memory of M bytes, a chunk is decoded about W / 2M times: twice, where windows do
not overlap and memory holds a quarter of the data.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import limits
from ..extent import Int
from ..index.fields import Field
from ..index.layout import Layout, Windowed

_golden = (math.sqrt(5) - 1) / 2  # its multiples are spread evenly
_ahead = 1.9  # bytes of pieces to come that are planned, for each byte of memory
_never = 1 << 62  # position of a use that is not known yet


class Use(NamedTuple):
    """The need that one window has of one chunk.

    position:  bytes of the pieces of all uses before it.
    field:     number of the field.
    row:       the window's place in the step.
    """

    position: int
    step: int
    field: int
    row: int
    window: int
    chunk: int
    bytes: int


@dataclass(slots=True)
class FieldWork:
    """Work of one field of one step.

    pieces:   its uses that are in memory.
    wholes:   its uses of chunks that are in memory.
    reads:    chunks that it reads and decodes, and its uses of them.
    cuts:     uses of later steps, or of the step's other fields, to be cut from these chunks.
    keep:     those of the chunks to be kept whole.
    dropped:  pieces, if they were cut, and numbers of whole chunks that memory has no room for.
    array:    number of the array: of the first field that has its chunks.
    """

    array: int
    pieces: list[Use] = member(default_factory=list)
    wholes: list[Use] = member(default_factory=list)
    reads: dict[int, list[Use]] = member(default_factory=dict)
    cuts: dict[int, list[Use]] = member(default_factory=dict)
    keep: set[int] = member(default_factory=set)
    dropped: list[Use | int] = member(default_factory=list)


Works = Sequence[Mapping[int, FieldWork]]
"""The work of each field of windows, of some steps."""


class ChunkPlan:
    """Plan of the chunks that one walk through an epoch decodes.

    list_samples:  samples of the steps [first, last), and the bounds of the steps in them.
    steps:         end of the walk.
    room_bytes:    memory for what is kept.
    wholes:        chunks that are in memory now, by array.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        layouts: Sequence[Layout],
        list_samples: Callable[[int, int], tuple[npt.NDArray[np.uint64], Int]],
        first_step: int,
        steps: int,
        room_bytes: int,
        wholes: dict[int, list[int]],
    ) -> None:
        self._list_samples, self._steps = list_samples, steps
        self._next_step = self._next_listed = first_step
        self._decided: dict[int, dict[int, FieldWork]] = {}
        groups: dict[int, dict[int, Windowed]] = {}
        for number, layout in enumerate(layouts):
            if isinstance(layout, Windowed):
                groups.setdefault(id(layout.chunks), {})[number] = layout
        self._arrays = []
        for group in groups.values():
            first = next(iter(group))
            itemsize = fields[first].dtype.itemsize
            self._arrays.append(_ArrayPlan(group, itemsize, wholes.get(first, ())))
        self.adopt(room_bytes)

    def adopt(self, room_bytes: int) -> None:
        """Adopt other memory, from the next step that is decided on."""
        total = sum(array.total_bytes for array in self._arrays)
        for array in self._arrays:
            array.room_bytes = room_bytes * array.total_bytes // max(1, total)

    def decide(self, step: int) -> dict[int, FieldWork]:
        """Return the work of each field of windows in a step; the same whenever it is asked."""
        while step not in self._decided:
            self._look_ahead()
            self._decided[self._next_step] = {
                number: work
                for array in self._arrays
                for number, work in array.decide(self._next_step).items()
            }
            self._next_step += 1
        return self._decided[step]

    def forget(self, step: int) -> None:
        """Forget a step that was handed over."""
        self._decided.pop(step, None)

    def _look_ahead(self) -> None:
        """List the uses of steps to come: some more at each step, so that none waits long."""
        listed = 0
        while self._next_listed < self._steps and (
            self._next_listed <= self._next_step
            or (listed < limits.uses_a_step and any(array.sees_little for array in self._arrays))
        ):
            last = min(self._steps, self._next_listed + 16)
            ids, bounds = self._list_samples(self._next_listed, last)
            for array in self._arrays:
                listed += array.list_uses(ids.view(np.int64), bounds, self._next_listed)
            self._next_listed = last
            for array in self._arrays:
                array.sees_end = last == self._steps


class _ArrayPlan:
    """Plan of the chunks of one array; see `ChunkPlan`.

    fields:  the fields of its windows, by number: itself, and a target.
    """

    def __init__(self, fields: dict[int, Windowed], itemsize: int, wholes: Iterable[int]) -> None:
        layout = next(iter(fields.values()))
        self._fields, self._itemsize = fields, itemsize
        self._chunk_bytes = layout.chunk_elements * itemsize
        self.total_bytes = self._chunk_bytes * layout.chunks.count
        self.room_bytes = 0
        self.sees_end = False
        self._bytes = 0  # of what is kept
        self._decided_bytes = self._listed_bytes = 0  # of all pieces so far
        self._ahead_uses = 0
        self._uses: dict[int, list[Use]] = {}  # by step, of those not decided
        self._future: dict[int, deque[Use]] = {}  # by chunk
        self._begun: set[int] = set()  # chunks
        self._pieces: set[Use] = set()
        self._wholes: dict[int, int] = {}  # chunk: the position of its next use
        # A heap by -position, whether it is a whole chunk, and what is kept; some are outdated.
        self._farthest: list[tuple[int, bool, Any]] = []
        for chunk in wholes:
            self._keep_whole(chunk)

    @property
    def sees_little(self) -> bool:
        """True if more of the steps to come should be known."""
        few = self._ahead_uses < limits.uses_ahead_max
        return few and self._listed_bytes - self._decided_bytes < _ahead * self.room_bytes

    def list_uses(self, samples: Int, bounds: Int, first: int) -> int:
        """List the uses of these samples, of steps from `first` on; return their number."""
        columns = []
        for field, layout in self._fields.items():
            pair, chunk = layout.find_pairs(samples)
            elements = layout.measure_pieces(samples.take(pair), chunk)
            size = elements * self._itemsize + limits.piece_bytes
            columns.append((np.full(len(pair), field), pair, chunk, size))
        number, pair, chunk, size = map(np.concatenate, zip(*columns, strict=True))
        step = np.searchsorted(bounds, pair, side="right") - 1
        sequence = np.argsort(step, kind="stable")
        row, window = pair - bounds.take(step), samples.take(pair)
        listed = [
            column[sequence].tolist() for column in (step + first, number, row, window, chunk, size)
        ]
        for step_number in range(first, first + len(bounds) - 1):
            self._uses[step_number] = []
        ends = itertools.accumulate(listed[-1], initial=self._listed_bytes)
        for use in map(Use, ends, *listed):
            self._uses[use.step].append(use)
            waiting = self._future.setdefault(use.chunk, deque())
            waiting.append(use)
            if len(waiting) == 1 and use.chunk in self._wholes:
                self._keep_whole(use.chunk)  # again: its next use is known now
        self._listed_bytes += int(size.sum())
        self._ahead_uses += len(pair)
        return len(pair)

    def decide(self, step: int) -> dict[int, FieldWork]:
        """Decide the work of the next step, by field."""
        array = next(iter(self._fields))
        works = {number: FieldWork(array) for number in self._fields}
        decoding: dict[int, int] = {}  # chunk: the field that reads it
        for use in self._uses.pop(step):
            self._future[use.chunk].popleft()
            self._decided_bytes += use.bytes
            self._ahead_uses -= 1
            work = works[use.field]
            if use in self._pieces:
                self._drop(use)
                work.pieces.append(use)
            elif use.chunk in self._wholes:
                work.wholes.append(use)
            elif decoding.setdefault(use.chunk, use.field) == use.field:
                work.reads.setdefault(use.chunk, []).append(use)
            else:
                works[decoding[use.chunk]].cuts.setdefault(use.chunk, []).append(use)
                work.pieces.append(use)
        for chunk in {use.chunk for work in works.values() for use in work.wholes}:
            self._keep_whole(chunk)  # its next use is another one now
        for chunk in decoding if self.room_bytes else ():
            later = self._list_later(chunk, _ahead * self.room_bytes)
            if self.total_bytes <= self.room_bytes or self._wants_whole(later):
                self._keep_whole(chunk)
                works[decoding[chunk]].keep.add(chunk)
                continue
            if chunk not in self._begun:
                # All chunks that are begun together would have to be decoded together again, when
                # memory is full: no piece would wait less than the others.
                self._begun.add(chunk)
                share = max(0.2, len(self._begun) * _golden % 1)
                later = self._list_later(chunk, share * _ahead * self.room_bytes)
            for use in later:
                self._pieces.add(use)
                self._bytes += use.bytes
                heapq.heappush(self._farthest, (-use.position, False, use))
            works[decoding[chunk]].cuts.setdefault(chunk, []).extend(later)
        dropped = self._drop_farthest()
        for work in works.values():
            for chunk, cuts in work.cuts.items():
                work.cuts[chunk] = [use for use in cuts if use.step == step or use in self._pieces]
        works[array].dropped = dropped
        return works

    def _wants_whole(self, later: list[Use]) -> bool:
        """True if pieces would take more memory, on average, than the chunk that they are of."""
        size = float(sum(use.bytes for use in later))
        seen_bytes = max(1, self._listed_bytes - self._decided_bytes)
        if not self.sees_end:  # then, as many more come
            size *= max(1.0, _ahead * self.room_bytes / seen_bytes)
        return size > 1.5 * self._chunk_bytes

    def _list_later(self, chunk: int, ahead_bytes: float) -> list[Use]:
        """List the uses to come that are not in memory, within so many bytes of pieces."""
        end = self._decided_bytes + ahead_bytes
        near = itertools.takewhile(lambda use: use.position < end, self._future[chunk])
        return [use for use in near if use not in self._pieces]

    def _drop_farthest(self) -> list[Use | int]:
        """Drop what is needed last, until the rest fits."""
        dropped: list[Use | int] = []
        while self._bytes > self.room_bytes:
            position, is_whole, kept = heapq.heappop(self._farthest)
            if self._wholes.get(kept) == -position if is_whole else kept in self._pieces:
                self._drop(kept)
                dropped.append(kept)
        if len(self._farthest) > 2 * (len(self._pieces) + len(self._wholes)) + 1024:
            self._farthest = [(-use.position, False, use) for use in self._pieces]
            self._farthest += [(-at, True, chunk) for chunk, at in self._wholes.items()]
            heapq.heapify(self._farthest)
        return dropped

    def _keep_whole(self, chunk: int) -> None:
        if chunk not in self._wholes:
            self._bytes += self._chunk_bytes
        later = self._future.get(chunk)
        self._wholes[chunk] = later[0].position if later else _never
        heapq.heappush(self._farthest, (-self._wholes[chunk], True, chunk))

    def _drop(self, kept: Use | int) -> None:
        if isinstance(kept, int):
            del self._wholes[kept]
            self._bytes -= self._chunk_bytes
        else:
            self._pieces.remove(kept)
            self._bytes -= kept.bytes
