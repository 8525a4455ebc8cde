"""Steps and plans: who processes what, and that every byte of it is asked for once."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.schedules import walk
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock._core import merge_extents
from penstock.errors import UsageError
from penstock.extent import Placed, Requests, merge, separate
from penstock.order.order import Order
from penstock.plan.batch_layout import FieldRows
from penstock.plan.steps import Steps, plan_steps
from tests.plan import merge_numpy
from tests.plan.merge_numpy import rotation_start


@st.composite
def geometries(draw: st.DrawFn) -> Steps:
    world = draw(st.integers(1, 7))
    count = draw(st.integers(world, 200))
    global_batch = draw(st.integers(world, 60))
    drop_last = draw(st.booleans()) and count >= global_batch
    pad = not drop_last and draw(st.booleans())
    assignment = draw(st.sampled_from(["strided", "contiguous"]))
    return Steps(count, global_batch, world, drop_last, pad, assignment)


@given(geometries())
def test_every_position_once(steps: Steps) -> None:
    """Over all ranks and steps each position is dealt once, apart from marked repeats."""
    seen: Counter[int] = Counter()
    for rank in range(steps.world_size):
        positions, bounds, repeats = steps.positions(0, len(steps), rank)
        assert bounds[-1] == len(positions)
        seen.update(positions[: len(positions) - repeats].tolist())
    wanted = len(steps) * steps.global_batch if steps.drop_last else steps.count
    assert seen == Counter(range(wanted))


@given(geometries())
def test_shares_are_even(steps: Steps) -> None:
    """In each step the ranks' shares differ by at most one, and by none where padded."""
    for step in range(len(steps)):
        rows = [steps.rows(step, rank) for rank in range(steps.world_size)]
        assert max(rows) - min(rows) <= (0 if steps.pad and step >= steps.full else 1)
        for rank in range(steps.world_size):
            assert len(steps.positions(step, step + 1, rank)[0]) == rows[rank]


@given(geometries())
def test_contiguous_shares_are_stretches(steps: Steps) -> None:
    """With "contiguous" a rank's positions follow each other within a step, rank after rank."""
    dealt = replace(steps, assignment="contiguous", pad=False)
    for step in range(len(dealt)):
        shares = [dealt.positions(step, step + 1, rank)[0] for rank in range(dealt.world_size)]
        together = np.concatenate(shares)
        assert np.array_equal(together, np.arange(len(together)) + step * dealt.global_batch)


@given(geometries(), st.data())
def test_windows_join(steps: Steps, data: st.DataObject) -> None:
    """Positions do not depend on how the steps are cut into windows."""
    rank = data.draw(st.integers(0, steps.world_size - 1))
    cut = data.draw(st.integers(0, len(steps)))
    whole, _, _ = steps.positions(0, len(steps), rank)
    parts = [steps.positions(0, cut, rank)[0], steps.positions(cut, len(steps), rank)[0]]
    assert np.array_equal(whole, np.concatenate(parts))


@given(
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(1, 9),
    st.booleans(),
)
def test_as_distributed_sampler(world: int, count: int, batch: int, drop_last: bool) -> None:
    """Without shuffling the ranks get what torch's DistributedSampler and batching give them."""
    torch_data = pytest.importorskip("torch.utils.data")
    if count < world or (drop_last and count < batch * world):
        return
    steps = Steps(count, batch * world, world, drop_last, pad=not drop_last)
    for rank in range(world):
        sampler = torch_data.DistributedSampler(
            range(count), world, rank, shuffle=False, drop_last=drop_last
        )
        theirs = list(torch_data.BatchSampler(sampler, batch, drop_last))
        ours = [steps.positions(k, k + 1, rank)[0].tolist() for k in range(len(steps))]
        assert ours == theirs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 20, 1, True), "no batch"),
        ((3, 8, 4), "4 ranks share 3 samples"),
        ((10, 2, 4), "smaller than the world"),
        ((10, 5, 1, True, True), "exclude each other"),
    ],
)
def test_impossible_geometries(arguments: tuple[int, ...], message: str) -> None:
    """A geometry that would leave a rank without work is refused, with the numbers."""
    with pytest.raises(UsageError, match=message):
        Steps(*arguments)


def covered(requests: list[Requests]) -> Counter[tuple[int, int, int, int, int]]:
    return Counter(
        row for r in requests for row in zip(*(column.tolist() for column in r[:5]), strict=True)
    )


@st.composite
def placed_extents(draw: st.DrawFn) -> tuple[Placed, int]:
    parts = draw(st.integers(1, 5))
    n = draw(st.integers(0, 60))
    part = np.sort(np.array(draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)), int))
    columns = [
        np.array(draw(st.lists(st.integers(0, most), min_size=n, max_size=n)), np.int64)
        for most in (2, 500, 40)
    ]
    file, offset, length = columns
    placed = Placed(
        file.astype(np.uint32),
        offset,
        length,
        part.astype(np.uint32),
        np.arange(n, dtype=np.int64) * 64,
    )
    return placed, parts


@given(placed_extents(), st.integers(0, 100))
def test_merge_keeps_every_extent(case: tuple[Placed, int], gap: int) -> None:
    """Merged requests hold the same extents, in runs that a single read can serve."""
    placed, parts = case
    requests = merge(placed, parts, gap)
    assert len(requests) == parts
    assert covered(requests) == Counter(zip(*(c.tolist() for c in placed), strict=True))
    for k, r in enumerate(requests):
        assert r.runs[0] == 0
        assert r.runs[-1] == len(r.file)
        for a, b in zip(r.runs[:-1], r.runs[1:], strict=True):
            assert 0 < b - a <= limits.run_extents_max
            assert r.buffer[a:b].min() == k  # with the earliest part that wants it
            assert len(set(r.file[a:b].tolist())) == 1
            ends = r.offset[a:b] + r.length[a:b]
            gaps = r.offset[a + 1 : b] - ends[:-1]
            assert np.all((gaps >= 0) & (gaps <= gap))


@given(placed_extents(), st.integers(0, 100), st.integers(1, 9), st.data())
def test_merge_is_that_of_numpy(
    case: tuple[Placed, int], gap: int, readers: int, data: st.DataObject
) -> None:
    """Column by column, in one sequence; also of many files, and of offsets of all sizes."""
    placed, parts = case
    turn = data.draw(st.integers(0, readers - 1)), readers
    scale = data.draw(st.sampled_from([1, 512, 1 << 20, 1 << 45]))
    file = placed.file * np.uint32(data.draw(st.sampled_from([0, 1, 1 << 28])))
    placed = placed._replace(file=file, offset=placed.offset * scale, length=placed.length * scale)
    made = merge_extents(*placed, parts, gap * scale, *turn)
    for ours, wanted in zip(made, merge_numpy.merge(placed, parts, gap * scale, turn), strict=True):
        assert ours.tolist() == wanted.tolist()


def test_merge_of_a_window_is_that_of_numpy() -> None:
    """As many extents as a window has, neighbours and strangers, above both limits of a run."""
    random = np.random.default_rng(0)
    for files, span, length in ((1, 9_000, 4096), (40, 9_000, 60_000), (3, 1 << 40, 2 << 20)):
        count = 8_192
        place = random.integers(0, span, count)
        placed = Placed(
            random.integers(0, files, count).astype(np.uint32),
            place * (length if span < 1 << 20 else 1),
            random.integers(length // 2, length + 1, count),
            random.integers(0, 32, count).astype(np.uint32),
            np.arange(count),
        )
        for gap in (0, 16 << 10):
            made = merge_extents(*placed, 32, gap, 2, 5)
            for ours, wanted in zip(made, merge_numpy.merge(placed, 32, gap, (2, 5)), strict=True):
                assert (ours == wanted).all()


@given(placed_extents(), st.integers(0, 100), st.data())
def test_merge_begins_where_it_is_told(
    case: tuple[Placed, int], gap: int, data: st.DataObject
) -> None:
    """The same reads of the same parts, from one of all of them on in the order of storage, and
    then those before it."""
    placed, parts = case

    def reads(requests: Requests) -> list[list[tuple[int, ...]]]:
        rows = list(zip(*(column.tolist() for column in requests[:5]), strict=True))
        return [rows[a:b] for a, b in itertools.pairwise(requests.runs.tolist())]

    ascending = merge(placed, parts, gap)
    every = sorted((run for part in ascending for run in reads(part)), key=lambda run: run[0][:2])
    chosen = data.draw(st.integers(0, max(0, len(every) - 1)))
    turn = chosen, max(1, len(every))
    for plain, turned in zip(ascending, merge(placed, parts, gap, turn), strict=True):
        late = [run for run in reads(plain) if run[0][:2] >= every[chosen][0][:2]]
        early = [run for run in reads(plain) if run[0][:2] < every[chosen][0][:2]]
        if len({run[0][:2] for run in every}) == len(every):
            assert reads(turned) == late + early
        assert Counter(map(tuple, reads(turned))) == Counter(map(tuple, reads(plain)))


def test_rotated_readers_do_not_wait() -> None:
    """They walk all targets in the fewest slots; readers that start alike queue."""
    for readers, targets in itertools.product(range(1, 25), repeat=2):
        starts = [rotation_start(reader, readers, targets) for reader in range(readers)]
        assert all(0 <= start < targets for start in starts)
        assert walk(starts, targets) == max(readers, targets)
        assert walk([0] * readers, targets) == readers + targets - 1


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_ranks_begin_at_different_files(world: int, files: int, rows: int) -> None:
    """If all ranks read from all files, they begin at as many as there can be, and go on from
    there."""
    index = fixed_index(world * files * rows, 24, files)
    steps = Steps(index.count, index.count, world)
    order = Order(index.count, 0, shuffle="none")
    begun: Counter[int] = Counter()
    for rank in range(world):
        (group,) = plan_steps(index, order, steps, rank, 0, 1, 0)
        file = group.steps[0].requests.file.astype(np.int64)
        assert (np.diff(file) % files <= 1).all()
        begun[int(file[0])] += 1
    assert max(begun.values()) <= -(-world // files)


def test_neighbours_share_a_read() -> None:
    """Adjacent records of one window are read by as few reads as the limits allow."""
    n = 1000
    placed = Placed(
        np.zeros(n, np.uint32),
        np.random.default_rng(0).permutation(n).astype(np.int64) * 4096,
        np.full(n, 4096),
        np.zeros(n, np.uint32),
        np.arange(n, dtype=np.int64) * 4096,
    )
    (requests,) = merge(placed, 1, 0)
    assert len(requests.runs) - 1 == -(-n // limits.run_extents_max)


def test_many_files_and_large_offsets_sort() -> None:
    """File and offset sort together also where they do not fit into one 63-bit key."""
    file = np.array([2**31, 0, 2**31, 5], np.uint32)
    offset = np.array([2**61, 7, 3, 2**60], np.int64)
    placed = Placed(file, offset, np.ones(4, np.int64), np.zeros(4, np.uint32), np.arange(4))
    (requests,) = merge(placed, 1, 0)
    assert requests.file.tolist() == [0, 5, 2**31, 2**31]
    assert requests.offset.tolist() == [7, 2**60, 3, 2**61]


def test_separate_keeps_the_sequence() -> None:
    """Unmerged requests are one run an extent, in batch order, cut at the steps."""
    n = 10
    columns = np.arange(n, dtype=np.int64)
    placed = Placed(columns.astype(np.uint32), columns, columns, np.zeros(n, np.uint32), columns)
    first, second = separate(placed, np.array([0, 4, 10]))
    assert first.offset.tolist() == [0, 1, 2, 3]
    assert second.runs.tolist() == list(range(7))


@given(
    st.integers(4, 60),
    st.integers(4, 20),
    st.sampled_from([None, 0, 4096]),
    st.integers(0, 9),
    st.integers(1, 4).flatmap(lambda world: st.tuples(st.just(world), st.integers(0, world - 1))),
)
def test_window_places_every_sample(
    count: int, batch: int, gap: int | None, seed: int, place: tuple[int, int]
) -> None:
    """Executing a window's requests on a byte array gives each step's samples in batch order, on
    every rank."""
    record = 24
    world, rank = place
    data = np.random.default_rng(seed).integers(0, 256, (count, record)).astype(np.uint8)
    index = fixed_index(count, record)
    order, steps = Order(count, seed), Steps(count, batch, world)
    groups = plan_steps(index, order, steps, rank, 0, len(steps), gap)
    for group in groups:
        buffers = [np.zeros(step.layout.bytes, np.uint8) for step in group.steps]
        for number, step in enumerate(group.steps):
            for _, offset, length, buffer, target in zip(*step.requests[:5], strict=True):
                target_bytes = buffers[number + buffer][target : target + length]
                target_bytes[:] = data.reshape(-1)[offset:][:length]
        for step, buffer in zip(group.steps, buffers, strict=True):
            assert np.array_equal(buffer.reshape(-1, record), data[step.ids.astype(int)])
            assert np.array_equal(
                step.ids, order.samples(np.arange(count))[step.step * batch :][:batch][rank::world]
            )


def fixed_index(count: int, record: int, files: int = 1) -> penstock.Index:
    """An index of fixed records in equal files that need not exist."""
    from penstock.extent import Files
    from penstock.index.fields import Field
    from penstock.index.layout import Fixed
    from penstock.index.table import Index

    names = [f"records{number}.bin" for number in range(files)]
    size = np.full(files, count // files * record)
    table = Files.of("/nowhere", names, size, np.zeros(files, np.int64))
    ends = np.arange(files + 1) * (count // files)
    layout = Fixed(ends, np.zeros(files, np.int64), record)
    return Index(
        format="records",
        files=table,
        fields=(Field("data", np.dtype(np.uint8), (record,)),),
        layouts=(layout,),
        sources=table,
    )


def test_ragged_window(tmp_path: Path) -> None:
    """Samples of different lengths lie one after the other, and `row_at` finds them again."""
    for i in range(9):
        (tmp_path / f"{i}.bin").write_bytes(bytes([i]) * (i % 4))
    index = penstock.open(tmp_path, index="memory").index
    (group,) = plan_steps(index, Order(9, 3), Steps(9, 9, 1), 0, 0, 1, 0)
    (step,) = group.steps
    (layout,) = step.layout.fields
    assert isinstance(layout, FieldRows)
    assert layout.bounds is not None
    assert np.diff(layout.bounds).tolist() == [int(i) % 4 for i in step.ids]
    for row, (start, end) in enumerate(zip(layout.bounds[:-1], layout.bounds[1:], strict=True)):
        if end > start:
            assert layout.row_at(int(start)) == row
    assert layout.row_at(10**9) is None


def test_no_merged_run_is_longer_than_the_limit() -> None:
    """Neighbours of about a megabyte, one after the other: each run of several is short enough."""
    sizes = np.random.default_rng(1).integers(900_000, 1_300_000, 200)
    ends = np.cumsum(sizes)
    zeros, offset = np.zeros(200, np.uint32), ends - sizes
    placed = Placed(zeros, offset, sizes, zeros, offset)
    (requests,) = merge(placed, 1, 0)
    first, last = requests.runs[:-1], requests.runs[1:] - 1
    span = requests.offset[last] + requests.length[last] - requests.offset[first]
    assert span.max() <= limits.run_bytes_max
    assert (last > first).any()
