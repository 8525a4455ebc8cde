"""Ranks whose states differ: what is committed is one rank's, or the save is refused."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import limits
from penstock.checkpoint import Checkpoint, Checkpoints, load
from penstock.checkpoint.comparison import sum_samples
from penstock.checkpoint.manifest import Attempt
from penstock.checkpoint.pytree import split_state
from penstock.errors import StateError, UsageError
from tests.checkpoint.rank_threads import run_job, save_unequal
from tests.checkpoint.test_checkpoints import same

SMALL = 256
ATTEMPT = Attempt("0a0b0c0d", 1)


@pytest.fixture(scope="module", autouse=True)
def _small_limits() -> Iterator[None]:
    """Let arrays of 256 bytes be compared, and cut at 128; those of 4096 are compared whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "checkpoint_first_rank_bytes", SMALL)
        patch.setattr(limits, "checkpoint_piece_bytes", 128)
        patch.setattr(limits, "checkpoint_piece_bytes_min", 128)
        yield


def make_state(sizes: list[int]) -> dict[str, Any]:
    """Make a state of arrays of these sizes; every third is not dense, every fourth in a list."""
    random = np.random.default_rng(len(sizes))
    arrays = [
        random.integers(0, 256, (size, 1 + (n % 3 == 1)), np.uint8) for n, size in enumerate(sizes)
    ]
    leaves = [array[:, 0] for array in arrays]
    return {"n": 0} | {f"w{n}": [leaf] if n % 4 == 3 else leaf for n, leaf in enumerate(leaves)}


def get_leaf(state: dict[str, Any], number: int) -> Any:
    leaf = state[f"w{number}"]
    return leaf[0] if isinstance(leaf, list) else leaf


CHANGES = st.tuples(
    st.integers(1, 3),  # rank
    st.integers(0, 7),  # leaf
    st.sampled_from(["byte", "two", "all", "dtype", "shape", "number"]),
)


def change(state: dict[str, Any], leaf: int, how: str) -> None:
    """Change a leaf as a rank on its own might have."""
    array = get_leaf(state, leaf)
    if how == "number":
        state["n"] += 1
    elif how == "dtype":
        state[f"w{leaf}"] = array.view(np.int8)
    elif how == "shape":
        state[f"w{leaf}"] = array[None]
    elif len(array):
        at = {"byte": [len(array) // 2], "two": [0, -1], "all": slice(None)}[how]
        array[at] += 1


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=8),
    st.integers(2, 4),
    st.lists(CHANGES, max_size=3),
)
@example([3000], 2, [(1, 0, "two")])  # half from one rank, half from the other
@example([20, 3000], 2, [(1, 0, "all")])  # statistics of a batch
@example([600, 20], 2, [(1, 0, "dtype")])
def test_never_parts_of_several_ranks(
    sizes: list[int], ranks: int, changes: list[tuple[int, int, str]]
) -> None:
    """A commit has rank 0's whole state, and each rank's own value. If a large array
    differs, all ranks raise an error that names it and the ranks."""
    states = [make_state(sizes) for _ in range(ranks)]
    for rank, leaf, how in changes:
        change(states[rank % ranks], leaf % len(sizes), how)
    differing = {
        (number, rank)
        for number in range(len(sizes))
        for rank in range(ranks)
        if not same(get_leaf(states[0], number), get_leaf(states[rank], number))
    }
    shapes = {pair for pair in differing if is_shaped_otherwise(states, *pair)}
    large = {pair for pair in differing if sizes[pair[0]] >= SMALL}

    def work(checkpoints: Checkpoints, rank: int) -> Checkpoint:
        own = {"rank": rank, "seeds": np.full(rank * 300, rank)}
        checkpoints.save(1, states[rank], per_rank=own)
        checkpoints.wait()
        return checkpoints.load()

    with tempfile.TemporaryDirectory() as folder:
        results = run_job(folder, ranks, work)
        left = sorted(path.name for path in Path(folder).iterdir())
    if refused := shapes or large:
        assert left == [".lock"]
        for error in results:
            assert isinstance(error, UsageError)
            assert any(f"'state.w{number}" in str(error) for number, _ in refused)
            assert all(str(rank) in str(error) for _, rank in refused)
            assert "nothing was committed" in str(error)
    else:
        for rank, loaded in enumerate(results):
            assert same(loaded.state, dense(states[0]))
            assert loaded.per_rank["rank"] == rank
            assert np.array_equal(loaded.per_rank["seeds"], np.full(rank * 300, rank))


def is_shaped_otherwise(states: list[dict[str, Any]], number: int, rank: int) -> bool:
    first, other = (get_leaf(states[each], number) for each in (0, rank))
    return bool(first.shape != other.shape or first.dtype != other.dtype) and first.size > 0


def dense(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: dense(value) for name, value in state.items()}
    if isinstance(state, list):
        return [dense(value) for value in state]
    return np.ascontiguousarray(state) if isinstance(state, np.ndarray) else state


def test_through_a_tier(tmp_path: Path) -> None:
    """A save that would be held first is refused alike, and nothing of it is held."""
    assert run_job(tmp_path / "run", 2, save_unequal, local=tmp_path / "tier") == [[2], [2]]
    assert [path.name for path in (tmp_path / "tier").iterdir()] == [".lock"]


def test_own_values_and_another_number_of_ranks(tmp_path: Path) -> None:
    """The common state loads on any number of ranks, a rank's own value on as many as saved it."""

    def work(checkpoints: Checkpoints, rank: int) -> None:
        checkpoints.save(1, {"n": 5}, per_rank={"seed": 10 + rank} if rank else None)
        checkpoints.wait()

    assert run_job(tmp_path, 3, work) == [None] * 3
    alone = load(tmp_path)
    assert (alone.state, alone.ranks) == ({"n": 5}, 3)
    with pytest.raises(StateError, match="of the 3 ranks that saved it"):
        _ = alone.per_rank
    own = [load(tmp_path, rank=rank, world_size=3).per_rank for rank in range(3)]
    assert own == [None, {"seed": 11}, {"seed": 12}]
    with Checkpoints(tmp_path, rank=0, world_size=1) as checkpoints:
        checkpoints.save(2, {"n": 6})
        checkpoints.wait()
    assert load(tmp_path, rank=1, world_size=2).per_rank is None


@given(st.integers(1, 400), st.integers(2, 5), st.booleans(), st.sampled_from([1, 2, 8, 12]))
def test_arrays_that_are_not_dense(length: int, step: int, back: bool, size: int) -> None:
    """The sum of an array does not depend on how it lies in memory, and changes with each byte."""
    dtype = np.dtype(f"S{size}")
    whole = (
        np.random.default_rng(length).integers(48, 99, length * step * size, np.uint8).view(dtype)
    )
    array = whole.reshape(length, step)[:: -1 if back else 1, 0]

    def sum_alone(value: Any) -> int:
        (block,) = split_state({"x": value}).blocks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "checkpoint_sample_lines", 1 << 20)
            patch.setattr(limits, "checkpoint_first_rank_bytes", 1)
            return sum_samples([block], 2, ATTEMPT)[0]

    packed = array.copy()
    assert sum_alone(array) == sum_alone(packed)
    packed.view(np.uint8)[-1] ^= 1
    assert sum_alone(array) != sum_alone(packed)


def test_tensors_have_the_sums_of_arrays() -> None:
    """Elements of tensors, and bytes that a device gathers, are those that lie in memory."""
    torch = pytest.importorskip("torch")
    from penstock.checkpoint import tensors

    array = np.arange(6000, dtype=np.float32).reshape(2000, 3)
    tensor = torch.from_numpy(array)
    blocks = [split_state(value).blocks[0] for value in (array[:, 1].copy(), tensor[:, 1])]
    assert [block.dense for block in blocks] == [True, False]
    one, two = sum_samples(blocks[:1], 2, ATTEMPT), sum_samples(blocks[1:], 2, ATTEMPT)
    assert one == two != [0]
    starts = np.array([0, 24000 - 64, 65])
    rows = tensors.end_gather(tensors.begin_gather(tensor, array.ctypes.data + starts, 64))
    assert [row.tobytes() for row in rows] == [array.tobytes()[at : at + 64] for at in starts]


@pytest.mark.parametrize("fraction", [0.01, 0.03, 0.1])
def test_differences_that_samples_miss(fraction: float) -> None:
    """A block of which a fraction of the lines differs is missed as often as it is said, and a
    stretch of two parts of it never is."""
    lines, saves = 1 << 14, 100
    one = np.zeros((lines, 64), np.uint8)
    scattered, stretch = one.copy(), one.copy()
    scattered[np.random.default_rng(0).random(lines) < fraction, 7] = 1
    stretch[1000 : 1000 + 2 * lines // limits.checkpoint_sample_lines, 7] = 1
    sums = [
        [
            tuple(sum_samples(split_state(array).blocks, 16, Attempt("0a0b0c0d", save)))
            for array in (one, scattered, stretch)
        ]
        for save in range(saves)
    ]
    missed = sum(a == b for a, b, _ in sums) / saves
    bound = (1 - fraction) ** limits.checkpoint_sample_lines
    assert missed <= bound + 4 * (bound * (1 - bound) / saves) ** 0.5
    assert all(a != c for a, _, c in sums)
