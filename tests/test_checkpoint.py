"""Checkpoints of one process: what is saved is loaded, and nothing else is."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.tree import rebuilt, taken


def round_trip(state: Any) -> Any:
    """Apart, copied, together."""
    parts = taken(state)
    memory = {}
    for block in parts.blocks:
        if block.dense:
            copied = np.frombuffer(ctypes.string_at(block.lowest, block.bytes), np.uint8).copy()
        else:
            copied = np.ascontiguousarray(block.leaves[0].value).reshape(-1).view(np.uint8).copy()
        assert len(copied) == block.bytes
        memory[block.name] = copied
    return rebuilt(parts.skeleton, memory.__getitem__, "here")


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and value; numbers that are none are equal."""
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
    """Types, order, shapes and every bit."""
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
    assert sum(block.bytes for block in taken(state).blocks) == whole.nbytes
    loaded = round_trip(state)
    assert same(loaded, state)
    loaded["whole"][:] = whole + 1
    for view, before in zip(loaded["views"], views, strict=True):
        assert np.array_equal(view, before + 1)


def test_save_and_load(tmp_path: Path) -> None:
    """Two lines; the state may change once `save` has returned."""
    weights = np.arange(100_000.0)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() is None
        assert checkpoints.save(7, {"weights": weights}, loader={"epoch": 3})
        weights[:] = 0
        saved = checkpoints.wait()
    assert saved is not None
    assert saved.step == 7
    found = load(tmp_path)
    assert found.step == 7
    assert found.loader == {"epoch": 3}
    assert np.array_equal(found.state["weights"], np.arange(100_000.0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool", "float8_e4m3fn"])
def test_tensors(tmp_path: Path, dtype: str) -> None:
    """Of any dtype, dense or not, tied or not, as torch has them."""
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
