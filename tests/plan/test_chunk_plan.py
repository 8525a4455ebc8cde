"""The plan of decoded chunks, replayed: every need is met by what was read or kept."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.extent import Int
from penstock.index.fields import Field
from penstock.index.layout import RowTable, Windows
from penstock.index.windows import WindowGrid
from penstock.plan.chunk_plan import ChunkPlan, Use

ITEM = np.dtype("V4096")


def lay_out(length: int, chunk: int, size: int, stride: int, target: int) -> list[Windows]:
    """Windows of a row of elements, and targets of one element at a place behind their start."""
    edges = np.minimum(np.arange(-(-length // chunk) + 1) * chunk, length)
    table = RowTable(None, None, np.diff(edges))
    steps = (length - max(size, target + 1)) // stride + 1
    return [
        Windows(
            edges,
            table,
            WindowGrid((length,), (extent,), (start,), (stride,), (steps,), (1,), steps),
            (chunk,),
        )
        for start, extent in ((0, size), (target, 1))
    ]


class Replay:
    """Replay of a plan: what is in memory after each step, by the plan's words alone."""

    def __init__(self, layouts: list[Windows], batch: int, room_bytes: int, seed: int) -> None:
        self.count = layouts[0].count
        self.ids = np.random.default_rng(seed).permutation(self.count).astype(np.uint64)
        self.steps, self.batch = -(-self.count // batch), batch
        self.layouts = layouts
        self.plan = ChunkPlan(
            [Field("x", ITEM, layout.grid.size) for layout in layouts],
            layouts,
            self.list_samples,
            0,
            self.steps,
            room_bytes * ITEM.itemsize,
            {},
        )
        self.pieces: set[Use] = set()
        self.wholes: set[int] = set()
        self.decodes: Counter[int] = Counter()

    def list_samples(self, first: int, last: int) -> tuple[npt.NDArray[np.uint64], Int]:
        ids = self.ids[first * self.batch : last * self.batch]
        return ids, np.minimum(np.arange(last - first + 1) * self.batch, len(ids))

    def run(self, step: int) -> None:
        works = self.plan.decide(step)
        assert self.plan.decide(step) is works
        for field, layout in enumerate(self.layouts):
            samples = self.ids[step * self.batch : (step + 1) * self.batch].view(np.int64)
            pair, chunk = layout.find_pairs(samples)
            wanted = Counter(zip(pair.tolist(), chunk.tolist(), strict=True))
            work, met = works[field], Counter[tuple[int, int]]()
            for use in work.pieces:
                self.pieces.remove(use)
                met[use.row, use.chunk] += 1
            for use in work.wholes:
                assert use.chunk in self.wholes
                met[use.row, use.chunk] += 1
            for chunk_read, uses in work.reads.items():
                self.decodes[chunk_read] += 1
                met.update((use.row, chunk_read) for use in uses)
                assert uses
                for use in work.cuts.get(chunk_read, ()):
                    assert use.chunk == chunk_read
                    assert use not in self.pieces
                    self.pieces.add(use)
            assert met == wanted
            assert work.keep <= set(work.reads)
            self.wholes |= work.keep
        for work in works.values():  # at the end of the step, which may need what is dropped
            for kept in work.dropped:
                if isinstance(kept, Use):
                    self.pieces.discard(kept)
                else:
                    self.wholes.remove(kept)
        self.plan.forget(step)

    def count_bytes(self) -> int:
        chunk_bytes = math.prod(self.layouts[0].chunk) * ITEM.itemsize
        return len(self.wholes) * chunk_bytes + sum(use.bytes for use in self.pieces)


@example(length=7, chunk=1, size=4, stride=1, target=0, batch=1, rooms=[3], seed=0)
@given(
    length=st.integers(1, 60),
    chunk=st.integers(1, 20),
    size=st.integers(1, 20),
    stride=st.integers(1, 6),
    target=st.integers(0, 25),
    batch=st.integers(1, 7),
    rooms=st.lists(st.integers(0, 80), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)
def test_every_need_is_met_within_memory(
    length: int,
    chunk: int,
    size: int,
    stride: int,
    target: int,
    batch: int,
    rooms: list[int],
    seed: int,
) -> None:
    """Each window has each of its chunks once: read in the step, whole, or as a piece that is in
    memory; and memory is never exceeded between steps, whatever it is changed to."""
    length = max(length, size, target + 1)
    replay = Replay(lay_out(length, chunk, size, stride, target), batch, rooms[0], seed)
    for step in range(replay.steps):
        room_bytes = rooms[step * len(rooms) // replay.steps]
        replay.plan.adopt(room_bytes * ITEM.itemsize)
        replay.run(step)
        assert replay.count_bytes() <= room_bytes * ITEM.itemsize
    assert not replay.pieces
    assert sum(replay.decodes.values()) >= len(replay.decodes)


def test_memory_for_all_decodes_once() -> None:
    """Where memory holds all chunks, each is decoded once; without memory, once a step."""
    layouts = lay_out(1000, 50, 30, 1, 40)
    all_kept, none_kept = (Replay(layouts, 8, room, 1) for room in (1000, 0))
    for replay in (all_kept, none_kept):
        for step in range(replay.steps):
            replay.run(step)
    assert set(all_kept.decodes.values()) == {1}
    assert min(none_kept.decodes.values()) > 30


def test_decodes_fall_as_memory_grows() -> None:
    """With memory M and windows of W bytes, a chunk is decoded about W / 2M times an epoch: pieces
    wait half of the time between two decodes."""
    layouts = lay_out(40_000, 1000, 100, 25, 120)
    windows_bytes = layouts[0].count * 101
    for room_bytes in (4000, 10_000, 20_000):
        replay = Replay(layouts, 4, room_bytes, 2)
        for step in range(replay.steps):
            replay.run(step)
        decodes = sum(replay.decodes.values()) / 40
        assert decodes <= 1.35 * windows_bytes / (2 * room_bytes) + 1, room_bytes


def test_blocks_of_windows_keep_chunks_whole() -> None:
    """Windows that come soon after each other need more than a chunk of it: it is kept whole."""
    layouts = lay_out(4000, 100, 50, 1, 60)
    replay = Replay(layouts, 8, 1000, 3)
    starts = np.arange(0, replay.count, 400)
    blocks = [np.random.default_rng(int(at)).permutation(400) + at for at in starts]
    ids = np.concatenate(blocks)
    replay.ids = ids[ids < replay.count].astype(np.uint64)
    for step in range(replay.steps):
        replay.run(step)
    assert sum(replay.decodes.values()) / 40 < 2
