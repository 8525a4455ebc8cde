"""Decoding of windows from chunks, and the memory for what later steps need of them."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.protocol import Buffer
from ..engine.threads import ThreadPool
from ..errors import UsageError
from ..extent import Int
from ..index import codecs
from ..index.fields import Field
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
        self._turn = threading.Condition()

    def list_wholes(self) -> dict[int, list[int]]:
        """List the whole chunks of each array."""
        listed: dict[int, list[int]] = {}
        for array, chunk in self.wholes:
            listed.setdefault(array, []).append(chunk)
        return listed

    @contextmanager
    def turn(self, planned: StepPlan, is_closed: Callable[[], bool]) -> Iterator[None]:
        """Wait until all earlier steps are built or have failed, and hold the turn. Whatever
        becomes of the step, nothing of its own is kept behind.

        is_closed:  asked now and then; UsageError if it says so.
        """
        with self._turn:
            while self._next_step < planned.step:
                if is_closed():
                    raise UsageError("the iterator was closed")
                self._turn.wait(_poll_s)
        chunks = [places for places in planned.layout.fields if isinstance(places, FieldChunks)]
        works = [places.work for places in chunks if places.work is not None]
        for work in works:
            self._drop(work, *(use for use in work.dropped if isinstance(use, Use)))
        try:
            yield
        finally:
            for work in works:
                own = [
                    use for cuts in work.cuts.values() for use in cuts if use.step == planned.step
                ]
                self._drop(work, *work.pieces, *own, *work.dropped)
            with self._turn:
                self._next_step = planned.step + 1
                self._turn.notify_all()

    def keep(
        self,
        layouts: Sequence[Layout],
        work: FieldWork,
        chunk: int,
        decoded: Array,
        rows: Int | None,
    ) -> None:
        """Keep what is planned of a decoded chunk.

        rows:  those that were decoded; None: all.
        """
        pieces: dict[Use, tuple[Any, Array]] = {}
        cuts = work.cuts.get(chunk, ())
        for field in {use.field for use in cuts}:
            uses, layout = [use for use in cuts if use.field == field], layouts[field]
            assert isinstance(layout, Windowed)
            places = layout.find_places(np.array([use.window for use in uses]))
            for use, (into, taken) in zip(uses, layout.overlap(chunk, places, rows), strict=True):
                pieces[use] = into, decoded[taken].copy()
        with self._turn:
            if self._is_given_up:
                return
            self.pieces |= pieces
            if chunk in work.keep:
                self.wholes[work.array, chunk] = decoded

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


def decode_windows(
    field: Field,
    layouts: Sequence[Layout],
    layout: Windowed,
    chunks: Sequence[codecs.CompressedChunk],
    places: FieldChunks,
    kept: KeptChunks | None,
    take: Callable[[int], Buffer] | None = None,
) -> Array:
    """Decode windows, each chunk once, by as many threads as there are cores.

    layouts:  of all fields.
    chunks:   those that were read.
    kept:     memory for what the plan keeps; if there is none, of chunks decoded last.
    take:     takes memory for the windows, of a size in bytes.

    ValueError if a chunk does not hold what its index says; MissingPieceError.
    """
    work, windows, pair = places.work, places.row, places.pair
    assert pair is not None
    at = layout.find_places(windows)
    samples: Array | None = None
    lock = threading.Lock()
    order = np.argsort(places.chunk, kind="stable")
    edges = np.searchsorted(places.chunk[order], np.arange(len(chunks) + 1)).tolist()

    def make_samples() -> Array:
        """Make the memory of the samples, once a chunk has the shape that its index says."""
        nonlocal samples
        with lock:
            if samples is None:
                shape, dtype = (len(windows), *layout.window_shape), field.dtype
                if take is None:
                    samples = np.empty(shape, dtype)
                else:
                    samples = take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
            return samples

    def gather(chunk: int, decoded: Array, rows: Int | None, wanted: Any) -> None:
        made = make_samples()
        layout.gather(chunk, decoded, at[wanted], rows, [made[row] for row in wanted])

    def decode(number: int) -> None:
        compressed = chunks[number]
        wanted = pair[order[edges[number] : edges[number + 1]]]
        rows = out = None
        if work is None or compressed.number not in work.keep:
            later = work.cuts.get(compressed.number, ()) if work is not None else ()
            run = None
            if len(wanted) == 1 and not later:
                run = layout.find_run(compressed.number, at[wanted[0]])
            if run is not None:
                rows, out = run[0], make_samples()[wanted[0]][run[1]]
            else:
                needs = np.array([use.window for use in later], np.int64)
                rows = layout.list_rows(compressed.number, np.append(windows[wanted], needs))
        owner = (layout.chunks,) if kept is None and rows is None else None
        compressed = compressed._replace(rows=rows, out=out)
        codec = layout.find_codec(compressed.number) or field.codec
        assert codec is not None
        decoded = codecs.decode_chunk(codec.name, codec.options, compressed, owner)
        count = compressed.samples if rows is None else len(rows)
        shape = (count, *layout.find_shape(compressed.number))
        if not isinstance(decoded, np.ndarray) or decoded.shape != shape:
            raise ValueError(f"a chunk is not {shape} of {field.dtype} after decoding")
        if decoded is not out:
            gather(compressed.number, decoded, rows, wanted)
        if kept is not None and work is not None:
            kept.keep(layouts, work, compressed.number, decoded, rows)

    tasks = [partial(decode, number) for number in range(len(chunks))]
    is_missing = False
    if kept is not None and work is not None:
        rows_of: dict[int, list[int]] = {}
        for use in work.wholes:
            rows_of.setdefault(use.chunk, []).append(use.row)
        for chunk, rows in rows_of.items():
            whole = kept.wholes.get((work.array, chunk))
            if whole is None:
                is_missing = True
            else:
                tasks.append(partial(gather, chunk, whole, None, rows))
        for use in work.pieces:
            into, values = kept.pieces.pop(use, (None, None))
            if values is None:
                is_missing = True
            else:
                make_samples()[use.row][into] = values
    threads = min(len(tasks), len(os.sched_getaffinity(0)))
    if threads < 2:
        for task in tasks:
            task()
    else:
        with ThreadPool(threads, "penstock-decode") as pool:
            for _ in pool.map(lambda task: task(), tasks):
                pass
    if is_missing:  # only now: later steps count on the chunks of this one
        raise MissingPieceError
    return make_samples()
