"""Decoding of windows from chunks, and the memory for what later steps need of them."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.protocol import Buffer
from ..engine.threads import ThreadPool
from ..errors import UsageError
from ..extent import Int
from ..index import codecs
from ..index.fields import Codec, Field
from ..index.layout import Layout, Windowed
from ..plan.batch_layout import FieldChunks
from ..plan.chunk_plan import FieldWork, Use
from ..plan.steps import StepPlan

Array = npt.NDArray[Any]
_poll_s = 0.1


class MissingPieceError(Exception):
    """Memory lacks what a plan counts on: an earlier step failed, or another iterator took it."""


class KeptChunks:
    """Memory of one iterator for decoded chunks, as its `ChunkPlan` says, and the turns of its
    steps: each finds what the steps before it have left.

    before:  of the last iterator. It gives up its whole chunks, and keeps nothing from then on.
    """

    def __init__(self, first_step: int, before: KeptChunks | None = None) -> None:
        self.pieces: dict[Use, tuple[Any, Array]] = {}
        """By use: the place in the window, and the values."""
        self.wholes: dict[tuple[int, int], Array] = {} if before is None else before._give_up()
        """By array and chunk."""
        self._next_step = first_step
        self._is_given_up = False
        self.closed = False
        """Set where the iterator is closed: no step waits for another one."""
        self._turn = threading.Condition()
        self._decoding = 0  # steps

    @contextmanager
    def share_cores(self) -> Iterator[int]:
        """Yield how many threads may decode a step: the cores, divided among steps in work."""
        with self._turn:
            self._decoding += 1
            steps = self._decoding
        try:
            yield max(1, len(os.sched_getaffinity(0)) // steps)
        finally:
            with self._turn:
                self._decoding -= 1

    def list_wholes(self) -> dict[int, list[int]]:
        """List the whole chunks of each array."""
        listed: dict[int, list[int]] = {}
        for array, chunk in self.wholes:
            listed.setdefault(array, []).append(chunk)
        return listed

    def keep(
        self, pieces: dict[Use, tuple[Any, Array]], wholes: dict[tuple[int, int], Array]
    ) -> None:
        """Keep what is planned of decoded chunks."""
        with self._turn:
            if not self._is_given_up:
                self.pieces |= pieces
                self.wholes |= wholes

    @contextmanager
    def turn(self, planned: StepPlan) -> Iterator[None]:
        """End a step after all earlier ones, whatever becomes of it: nothing of its own is kept."""
        works = _list_works(planned)
        try:
            yield
        finally:
            self._wait(planned.step)
            for work in works:
                cuts = itertools.chain(*work.cuts.values())
                own = [use for use in cuts if use.step == planned.step]
                self._drop(work, *work.pieces, *own, *work.dropped)
            with self._turn:
                self._next_step = planned.step + 1
                self._turn.notify_all()

    def wait(self, planned: StepPlan) -> None:
        """Wait until all earlier steps have ended; UsageError if the iterator was closed."""
        self._wait(planned.step)
        if self.closed:
            raise UsageError("the iterator was closed")
        for work in _list_works(planned):
            self._drop(work, *(use for use in work.dropped if isinstance(use, Use)))

    def _wait(self, step: int) -> None:
        with self._turn:
            while self._next_step < step and not self.closed:
                self._turn.wait(_poll_s)

    def _drop(self, work: FieldWork, *kept: Use | int) -> None:
        for one in kept:
            if isinstance(one, Use):
                self.pieces.pop(one, None)
            else:
                self.wholes.pop((work.array, one), None)

    def _give_up(self) -> dict[tuple[int, int], Array]:
        with self._turn:
            self._is_given_up = True
            self.pieces, wholes, self.wholes = {}, self.wholes, {}
            return wholes


def _list_works(planned: StepPlan) -> list[FieldWork]:
    chunks = [places for places in planned.layout.fields if isinstance(places, FieldChunks)]
    return [places.work for places in chunks if places.work is not None]


class WindowDecoding:
    """Decoding of the windows of one field of a step: first what needs nothing of earlier steps,
    then the rest. Each chunk is decoded once, by the cores that other steps leave.

    layouts:  of all fields.
    kept:     memory for what the plan keeps; if there is none, of chunks decoded last.
    take:     takes memory for the windows, of a size in bytes.
    """

    def __init__(
        self,
        field: Field,
        layouts: Sequence[Layout],
        layout: Windowed,
        places: FieldChunks,
        buffer: Buffer,
        kept: KeptChunks | None,
        take: Callable[[int], Buffer] | None,
    ) -> None:
        self._field, self._layouts, self._layout, self._kept = field, layouts, layout, kept
        self._places, self._buffer = places, buffer
        self._work = places.work or FieldWork(0)
        shape = len(places.row), *layout.window_shape
        size = math.prod(shape) * field.dtype.itemsize
        memory = np.empty(size, np.uint8) if take is None else take(size)
        self._windows: Array = memory.view(field.dtype).reshape(shape)
        self._pieces: dict[Use, tuple[Any, Array]] = {}
        self._wholes: dict[tuple[int, int], Array] = {}
        self._parts = layout.list_parts(places.number)

    @cached_property
    def _window_places(self) -> Int:
        return self._layout.find_places(self._places.row)

    def decode(self) -> None:
        """Decode the chunks that are read. ValueError if one does not hold what its index says."""
        tasks: list[Callable[[], None]] = []
        for part, codec, at, own in self._parts:
            codec = codec or self._field.codec
            assert codec is not None
            if codec.name == "film":
                self._decode_groups(part, codec, at, own)
            else:
                tasks += self._list_tasks(codec, at)
        cores = len(os.sched_getaffinity(0))
        with nullcontext(cores) if self._kept is None else self._kept.share_cores() as threads:
            _run_tasks(tasks, threads)

    def _decode_groups(self, part: Windowed, codec: Codec, at: Int, own: Int) -> None:
        """Decode groups of one codec: `at`, a run of the chunks that are read."""
        from ..index.codecs import film  # here: most loaders have none

        places, work, frames = self._places, self._work, self._layout.window_shape[0]
        numbers, shape = places.number[at], self._windows.shape[2:]
        memory, end = [self._windows.reshape(-1, *shape)], len(self._windows) * frames
        assert places.pair is not None
        assert part.packets is not None
        pairs = np.flatnonzero((places.chunk >= at[0]) & (places.chunk <= at[-1]))
        group, window = places.chunk[pairs] - at[0], places.pair[pairs]
        pair, place, row = self._layout.find_frames(places.row[window], numbers[group])
        wanted = [(group[pair], row, window[pair] * frames + place)]
        for field in {use.field for cuts in work.cuts.values() for use in cuts}:
            cuts = [
                (use, number)
                for number, chunk in enumerate(numbers.tolist())
                for use in work.cuts.get(chunk, ())
                if use.field == field
            ]
            uses, group = [use for use, _ in cuts], np.array([number for _, number in cuts], "i8")
            layout = self._layouts[field]
            assert isinstance(layout, Windowed)
            windows = np.array([use.window for use in uses], np.int64)
            pair, place, row = layout.find_frames(windows, numbers[group])
            wanted.append((group[pair], row, end + np.arange(len(pair))))
            end += len(pair)
            edges = np.searchsorted(pair, np.arange(len(uses) + 1)).tolist()
            for use, (low, high) in zip(uses, itertools.pairwise(edges), strict=True):
                piece = np.empty((high - low, *shape), np.uint8)
                self._pieces[use] = slice(place[low], place[low] + len(piece)), piece
                memory.append(piece)
        for group in np.flatnonzero(np.isin(numbers, list(work.keep))):
            whole = np.empty((int(part.count_rows(own[[group]])[0]), *shape), np.uint8)
            self._wholes[work.array, int(numbers[group])] = whole
            rows = np.arange(len(whole))
            wanted.append((np.full_like(rows, group), rows, end + rows))
            end += len(whole)
            memory.append(whole)
        problem = film.decode_groups(
            codec.options,
            self._buffer,
            places.base + places.bounds[at[0] : at[-1] + 2],
            part.packets.list_packets(own),
            film.WantedFrames(*map(np.concatenate, zip(*wanted, strict=True))),
            memory,
        )
        if problem is not None:
            raise codecs.BrokenChunk(int(numbers[problem[0]]), problem[1])

    def _list_tasks(self, codec: Codec, at: Int) -> Iterator[Callable[[], None]]:
        """List what decodes chunks one by one: `at`, a run of those that are read."""
        places = self._places
        assert places.pair is not None
        order = np.argsort(places.chunk, kind="stable")
        edges = np.searchsorted(places.chunk[order], np.arange(len(places.number) + 1)).tolist()
        ends = places.base + places.bounds[at[0] : at[-1] + 2]
        read = self._layout.cut_chunks(places.number[at], ends, self._buffer)
        for place, compressed in zip(at.tolist(), read, strict=True):
            rows = places.pair[order[edges[place] : edges[place + 1]]]
            yield partial(self._decode_chunk, codec, compressed, rows)

    def finish(self) -> Array:
        """Return the windows, with what earlier steps have left. MissingPieceError."""
        if (kept := self._kept) is None:
            return self._windows
        work = self._work
        kept.keep(self._pieces, self._wholes)
        rows_of: dict[int, list[int]] = {}
        for use in work.wholes:
            rows_of.setdefault(use.chunk, []).append(use.row)
        held = [(chunk, kept.wholes.get((work.array, chunk))) for chunk in rows_of]
        is_missing = any(whole is None for _, whole in held)
        with kept.share_cores() as threads:
            self._copy([(at, one, rows_of[at]) for at, one in held if one is not None], threads)
        for use in work.pieces:
            into, values = kept.pieces.pop(use, (None, None))
            if values is None:
                is_missing = True
            else:
                self._windows[use.row][into] = values
        if is_missing:  # only now: later steps count on the chunks of this one
            raise MissingPieceError
        return self._windows

    def _decode_chunk(self, codec: Codec, compressed: codecs.CompressedChunk, rows: Int) -> None:
        """Decode a chunk that some rows of the step meet."""
        number, layout, work = compressed.number, self._layout, self._work
        owner = (layout.chunks,) if self._kept is None else None
        decoded = codecs.decode_chunk(codec.name, codec.options, compressed, owner)
        shape = (compressed.samples, *layout.find_shape(number))
        if not isinstance(decoded, np.ndarray) or decoded.shape != shape:
            raise ValueError(f"a chunk is not {shape} of {self._field.dtype} after decoding")
        self._copy([(number, decoded, rows)])
        cuts = work.cuts.get(number, ())
        for field in {use.field for use in cuts}:
            uses, other = [use for use in cuts if use.field == field], self._layouts[field]
            assert isinstance(other, Windowed)
            places = other.find_places(np.array([use.window for use in uses]))
            for use, (into, taken) in zip(uses, other.overlap(number, places), strict=True):
                self._pieces[use] = into, decoded[taken].copy()
        if number in work.keep:
            self._wholes[work.array, number] = decoded

    def _copy(self, decoded: Sequence[tuple[int, Array, Any]], threads: int = 1) -> None:
        """Copy decoded chunks into the windows of rows of the step."""
        places = self._window_places
        met = [(at, one, places[rows], np.asarray(rows)) for at, one, rows in decoded]
        if met:
            self._layout.copy_overlaps(met, self._windows, threads)


def _run_tasks(tasks: Sequence[Callable[[], None]], threads: int) -> None:
    """Run tasks, by several threads if there are; raise the first error."""
    if len(tasks) < 2 or threads < 2:
        for task in tasks:
            task()
        return
    with ThreadPool(min(len(tasks), threads), "penstock-decode") as pool:
        for _ in pool.map(lambda task: task(), tasks):
            pass
