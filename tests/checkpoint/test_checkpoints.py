"""Checkpoints of one process: a load gives exactly the state that was saved."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.manifest import pad_length
from penstock.checkpoint.pytree import rebuild_state, split_state
from penstock.checkpoint.staging import Staging, divide_blocks
from penstock.engine.native import crc32c


def round_trip(state: Any) -> Any:
    """Split a state, stage it and rebuild it; check that each part has its checksum, and zeros up
    to a multiple of 64."""
    parts = split_state(state)
    sizes = [block.bytes for block in parts.blocks]
    (cuts,) = divide_blocks(sizes, 1, 64)
    staged = Staging().stage(parts.blocks, cuts)
    memory = {block.name: np.zeros(block.bytes, np.uint8) for block in parts.blocks}
    at = 0
    for cut, crc in zip(cuts, staged.checksums, strict=True):
        end = at + pad_length(cut.bytes)
        assert crc == crc32c(staged.memory[at:end].data)
        assert not staged.memory[at + cut.bytes : end].any()
        memory[parts.blocks[cut.block].name][cut.start : cut.stop] = staged.memory[at:][: cut.bytes]
        at = end
    assert at == len(staged.memory)
    return rebuild_state(parts.skeleton, memory.__getitem__, "here")


def same(a: Any, b: Any) -> bool:
    """True if two states are equal in type, structure and value; NaNs are equal."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(
            same(x, y) for x, y in zip(a.values(), b.values(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.floats() | st.tuples(st.text())
DTYPES = (
    st_np.boolean_dtypes()
    | st_np.integer_dtypes(endianness="?")
    | st_np.floating_dtypes(endianness="?")
    | st_np.complex_number_dtypes()
    | st_np.datetime64_dtypes()
    | st_np.unicode_string_dtypes(min_len=1)
)
ARRAYS = st_np.arrays(DTYPES, st_np.array_shapes(min_dims=0, min_side=0, max_side=4))
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | ARRAYS
STATES = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
    ),
)


@given(STATES)
def test_any_state_comes_back(state: Any) -> None:
    """Types, order, shapes and every bit come back."""
    assert same(round_trip(state), state)


@given(st.data())
def test_views_share_memory_again(data: st.DataObject) -> None:
    """Views of one array, with steps and backwards, are views of one array when loaded; each byte
    is saved once."""
    whole = np.arange(60, dtype=np.int16).reshape(6, 10)
    indices = st_np.basic_indices(whole.shape, allow_newaxis=True, allow_ellipsis=True)
    drawn = [whole[data.draw(indices)] for _ in range(data.draw(st.integers(1, 4)))]
    views = [view for view in drawn if isinstance(view, np.ndarray)]  # the others are copies
    state = {"whole": whole, "views": views}
    assert sum(block.bytes for block in split_state(state).blocks) == whole.nbytes
    loaded = round_trip(state)
    assert same(loaded, state)
    loaded["whole"][:] = whole + 1
    for view, before in zip(loaded["views"], views, strict=True):
        assert np.array_equal(view, before + 1)


def test_save_and_load(tmp_path: Path) -> None:
    """Two lines save and load; the state may change once `save` has returned."""
    weights = np.arange(100_000.0)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() is None
        assert checkpoints.save(7, {"weights": weights}, loader={"epoch": 3})
        weights[:] = 0
        saved = checkpoints.wait()
    assert saved is not None
    assert saved.step == 7
    loaded = load(tmp_path)
    assert loaded.step == 7
    assert loaded.loader == {"epoch": 3}
    assert np.array_equal(loaded.state["weights"], np.arange(100_000.0))


def test_large_pieces_and_a_used_arena() -> None:
    """Parts that several threads copy have one checksum; the former content of the arena does not
    show."""
    staging = Staging()
    random = np.random.default_rng(0)
    for size in (7 << 20, (5 << 20) + 1, 3):
        arrays = [random.integers(0, 256, size + i, np.uint8) for i in range(3)]
        staged = staging.collect(arrays)
        at = 0
        for array, crc in zip(arrays, staged.checksums, strict=True):
            part = staged.memory[at : at + pad_length(len(array))]
            assert np.array_equal(part[: len(array)], array)
            assert crc == crc32c(part.data)
            at += len(part)
    assert staging.bytes >= 21 << 20
    staging.close()
    assert staging.bytes == 0


def test_what_a_device_copies() -> None:
    """The path of tensors outside the memory of the host works, tried with a tensor in it."""
    torch = pytest.importorskip("torch")
    from penstock.checkpoint import tensors

    tensor = torch.arange(100, dtype=torch.int32)[10:].view(9, 10).t()
    (block,) = split_state(tensor).blocks
    into = np.zeros(8, np.uint8)
    tensors.begin_copy(tensor, block.lowest + 4, into)
    tensors.wait_for_copies(["cpu"])
    assert into.view(np.int32).tolist() == [11, 12]


def test_prepared(tmp_path: Path) -> None:
    """The arena of the first save exists before it."""
    state = {"x": np.ones(5 << 20, np.uint8)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.prepare(state)
        memory = checkpoints._staging.reserve(1).ctypes.data
        checkpoints.save(1, state)
        checkpoints.wait()
        assert checkpoints._staging.reserve(5 << 20).ctypes.data == memory
    assert load(tmp_path).state["x"].all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool", "float8_e4m3fn"])
def test_tensors(tmp_path: Path, dtype: str) -> None:
    """Tensors of any dtype, dense or not, tied or not, come back as torch has them."""
    torch = pytest.importorskip("torch")
    tensor = torch.arange(24).reshape(4, 6).to(getattr(torch, dtype))
    state = {
        "tied": [tensor, tensor.t()],
        "column": tensor[:, 1].clone()[::2],
        "scalar": tensor[1, 1],
        "expanded": tensor[:1].clone().expand(5, 6),
        "none": tensor[:0],
        "last": torch.nn.Parameter(torch.ones(3)),
        "channels": torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
    loaded = load(tmp_path).state

    def equal(a: Any, b: Any) -> bool:
        a, b = a.detach(), b.detach()
        return bool(
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.contiguous().view(-1).view(torch.uint8).tolist()
            == b.contiguous().view(-1).view(torch.uint8).tolist()
        )

    for name in state.keys() - {"tied"}:
        assert equal(loaded[name], state[name]), name
    assert all(map(equal, loaded["tied"], state["tied"]))
    assert loaded["channels"].is_contiguous(memory_format=torch.channels_last)
    loaded["tied"][0].zero_()
    assert not loaded["tied"][1].contiguous().view(-1).view(torch.uint8).any()
