"""States as trees: nested containers become JSON, and their arrays become blocks of bytes.

A state is made of dicts, OrderedDicts, lists, tuples, None, bool, int, float, str, bytes, numpy
arrays and scalars, and dense torch tensors. `split_state` splits it into a skeleton (JSON) and
blocks; `rebuild_state` joins them. There is no pickle: loading runs no code from
the checkpoint.

A block is memory that is written as it is. Arrays that overlap in memory (tied weights, views)
share a block, and share it again when they are loaded: bytes that torch.save writes twice are
written once. Arrays that are not dense, such as every tenth column, are made dense if nothing else
overlaps them, so that the array they were cut from is not written whole.

JSON has no names for most of these types, so a skeleton writes them as objects of one key:

    {"dict": {...}}  {"items": [[key, value], ...]} where keys are not all strings  {"ordered": ...}
    {"tuple": [...]}  {"float": "nan"}  {"array": {...}}  {"scalar": [dtype, hexadecimal]}
"""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from ..errors import FormatError, UsageError
from .manifest import STATE_BLOCK, Memory

Json = Any

_DEPTH_MAX = 100
_KINDS = "biufcmMSUV"
"""Kinds of numpy's dtypes whose values are their bytes."""


class Leaf(NamedTuple):
    """An array of the state in memory.

    kind:     "numpy", "torch" or "bytes": the type that it has again after loading.
    strides:  in bytes.
    lowest:   the address of its first byte.
    extent:   the bytes that it spans from there.
    start:    offset of the element with all indices 0 from `lowest`, in bytes.
    device:   the device that its addresses belong to: "cpu", or the name that torch gives it.
    packed:   True if its elements are in C order without gaps.
    """

    path: str
    kind: str
    value: Any
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    lowest: int
    extent: int
    start: int
    device: str
    packed: bool

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize


@dataclass(frozen=True, slots=True)
class ArrayBlock:
    """Bytes of the state that are written together.

    name:    the key path of its first array; no other block has it.
    leaves:  the arrays in it, kept alive; an array that is not dense is alone.
    nodes:   the arrays in it, as the skeleton describes them.
    kind:    of its pieces.
    """

    name: str
    bytes: int
    lowest: int
    device: str
    leaves: tuple[Leaf, ...]
    dense: bool
    nodes: tuple[dict[str, Any], ...] = ()
    kind: str = STATE_BLOCK


@dataclass(frozen=True, slots=True)
class SplitState:
    """A state, split. The blocks are the state's own memory until they are copied."""

    skeleton: Json
    blocks: tuple[ArrayBlock, ...]

    @property
    def content(self) -> dict[str, Any]:
        """Description for the index: the blocks that all ranks hold, and the skeleton."""
        sizes = {block.name: block.bytes for block in self.blocks if block.kind == STATE_BLOCK}
        return {"blocks": sizes, "tree": self.skeleton}


def split_state(state: Any) -> SplitState:
    """Split a state. UsageError names the key path of a part that cannot be saved. Copies
    nothing."""
    leaves: list[tuple[Leaf, dict[str, Any]]] = []
    skeleton = _encode_node(state, "", 0, leaves)
    return SplitState(skeleton, tuple(_group_blocks(leaves)))


def rebuild_state(skeleton: Json, memory: Callable[[str], Memory], where: str) -> Any:
    """Rebuild the state.

    memory:  returns the bytes of a block by its name; arrays are views of them.

    FormatError names `where` if the skeleton is not valid or asks for bytes outside a block.
    """
    try:
        return _decode_node(skeleton, memory)
    except (
        *(LookupError, TypeError, ValueError, AttributeError),
        *(RuntimeError, ArithmeticError, BufferError),
    ) as error:
        what = f"{where} describes no state that this version of penstock knows"
        raise FormatError(f"{what} ({error})") from None


# -- apart -----------------------------------------------------------------------------------------


def _encode_node(
    value: Any, path: str, depth: int, leaves: list[tuple[Leaf, dict[str, Any]]]
) -> Json:
    if depth > _DEPTH_MAX:
        what = f"the state is nested deeper than {_DEPTH_MAX} at {path[:80]}"
        raise UsageError(f"{what}: does it contain itself?")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if isfinite(value) else {"float": repr(value)}
    if kind in (list, tuple):
        items = [_encode_node(v, f"{path}[{i}]", depth + 1, leaves) for i, v in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if kind in (dict, OrderedDict):
        root = f"{path}." if path else ""
        children = [_encode_node(v, f"{root}{k}", depth + 1, leaves) for k, v in value.items()]
        if kind is dict and all(type(key) is str for key in value):
            return {"dict": dict(zip(value, children, strict=True))}
        keys = [_encode_key(key, path) for key in value]
        pairs = [list(pair) for pair in zip(keys, children, strict=True)]
        return {"items" if kind is dict else "ordered": pairs}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS and not value.dtype.names:
        return {"scalar": [value.dtype.str, value.tobytes().hex()]}
    leaf = make_leaf(value, path)
    node: dict[str, Any] = {"kind": leaf.kind, "dtype": leaf.dtype, "shape": list(leaf.shape)}
    leaves.append((leaf, node))
    return {"array": node}


def _encode_key(key: Any, path: str) -> Json:
    if key is None or type(key) in (bool, int, float, str):
        return _encode_node(key, path, 0, [])
    if type(key) is tuple:
        return {"tuple": [_encode_key(element, path) for element in key]}
    what = f"{path or 'the state'} has a key of type {type(key).__name__}: {key!r:.80}"
    raise UsageError(f"{what}: use strings, numbers or tuples of them as keys")


def make_leaf(value: Any, path: str) -> Leaf:
    """Describe an array, a dense tensor of torch, or bytes; UsageError if it is none of these."""
    strides: tuple[int, ...]
    device, kind = "cpu", "numpy"
    if "torch" in sys.modules and import_tensors().is_tensor(value):  # or there can be none
        kind = "torch"
        described = import_tensors().describe_tensor(value, path)
        value, dtype, size, shape, strides, address, device, packed = described
    else:
        if type(value) is bytes:
            value, kind = np.frombuffer(value, np.uint8), "bytes"
        if not isinstance(value, np.ndarray):
            what = f"{type(value).__module__}.{type(value).__qualname__}"
            remedy = "save numbers, strings, arrays, tensors and containers of them"
            raise UsageError(f"{path or 'the state'} is of type {what}: {remedy}")
        if type(value) is not np.ndarray or value.dtype.kind not in _KINDS or value.dtype.names:
            kind = f"{type(value).__name__} of {value.dtype}"
            raise UsageError(f"{path or 'the state'} is a {kind}: use numbers, times or strings")
        dtype, size, shape, strides = value.dtype.str, value.itemsize, value.shape, value.strides
        address, packed = value.ctypes.data, value.flags.c_contiguous
    start, extent = 0, 0
    if 0 not in shape and size:
        reaches = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
        start = -sum(reach for reach in reaches if reach < 0)
        extent = sum(map(abs, reaches)) + size
    lowest, path = address - start, path or "state"
    return Leaf(
        path, kind, value, dtype, size, shape, strides, lowest, extent, start, device, packed
    )


def pack_array(leaf: Leaf) -> Memory:
    """Copy an array's elements in C order, as bytes."""
    if leaf.kind == "torch":
        data: Memory = import_tensors().pack_tensor(leaf.value)
        return data
    return np.ascontiguousarray(leaf.value).reshape(-1).view(np.uint8)


def import_tensors() -> Any:
    """Import the module that knows torch, and torch with it."""
    from . import tensors

    return tensors


def _group_blocks(leaves: list[tuple[Leaf, dict[str, Any]]]) -> list[ArrayBlock]:
    """Group arrays that overlap into blocks, in the order of the state. Completes the nodes."""
    groups: list[list[int]] = []
    device, end = "", -1
    for i in sorted(range(len(leaves)), key=lambda i: (leaves[i][0].device, leaves[i][0].lowest)):
        leaf = leaves[i][0]
        if not leaf.extent:
            continue
        if groups and leaf.device == device and leaf.lowest < end:
            groups[-1].append(i)
            end = max(end, leaf.lowest + leaf.extent)
        else:
            groups.append([i])
            device, end = leaf.device, leaf.lowest + leaf.extent
    blocks = []
    for group in sorted(map(sorted, groups)):
        members = [leaves[i] for i in group]
        first = members[0][0]
        lowest = min(leaf.lowest for leaf, _ in members)
        size = max(leaf.lowest + leaf.extent for leaf, _ in members) - lowest
        dense = len(members) > 1 or size <= first.bytes
        name = first.path
        for leaf, node in members:
            node["block"] = name
            if dense and not leaf.packed:
                node["strides"] = list(leaf.strides)
            if dense and (at := leaf.lowest + leaf.start - lowest):
                node["at"] = at
        blocks.append(
            ArrayBlock(
                name,
                size if dense else first.bytes,
                lowest,
                first.device,
                tuple(leaf for leaf, _ in members),
                dense,
                tuple(node for _, node in members),
            )
        )
    return blocks


# -- together --------------------------------------------------------------------------------------


def _decode_node(node: Json, memory: Callable[[str], Memory]) -> Any:
    if isinstance(node, list):
        return [_decode_node(child, memory) for child in node]
    if not isinstance(node, Mapping):
        return node
    ((word, content),) = node.items()
    if word == "array":
        return _decode_array(content, memory)
    if word == "tuple":
        return tuple(_decode_node(child, memory) for child in content)
    if word == "dict":
        return {key: _decode_node(child, memory) for key, child in content.items()}
    if word in ("items", "ordered"):
        pairs = ((_decode_node(key, memory), _decode_node(child, memory)) for key, child in content)
        return dict(pairs) if word == "items" else OrderedDict(pairs)
    if word == "float":
        return float(content)
    if word == "scalar":
        text, digits = content
        dtype = _parse_dtype(text)
        if len(digits) != 2 * dtype.itemsize:
            raise ValueError(f"{digits!r:.80} is no element of {text}")
        return np.ndarray((1,), dtype, bytes.fromhex(digits).ljust(1))[0]
    raise ValueError(f"unknown word {word!r}")


def _parse_dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.kind not in _KINDS or dtype.str != text:
        raise ValueError(f"unknown dtype {text!r}")
    return dtype


def _decode_array(node: Mapping[str, Any], memory: Callable[[str], Memory]) -> Any:
    kind, counts = node["kind"], node["shape"]
    if not isinstance(counts, list):
        raise ValueError(f"the shape is {counts!r:.80}, no list")
    shape = tuple(map(_parse_count, counts))
    block = memory(node["block"]) if "block" in node else np.empty(0, np.uint8)
    at = _parse_count(node.get("at", 0))
    strides = tuple(map(operator.index, node["strides"])) if "strides" in node else None
    if at > len(block):
        raise ValueError(f"an array begins at {at:,} in a block of {len(block):,} bytes")
    if kind == "torch":
        return import_tensors().view_tensor(block, node["dtype"], shape, strides, at)
    if kind == "bytes":
        (size,) = shape
        if at + size > len(block):
            raise ValueError(f"{size:,} bytes at {at:,} in a block of {len(block):,}")
        return block[at : at + size].tobytes()
    if kind != "numpy":
        raise ValueError(f"unknown kind {kind!r}")
    dtype = _parse_dtype(node["dtype"])
    if 0 in shape or not dtype.itemsize:
        return np.zeros(shape, dtype)
    return np.ndarray(shape, dtype, block.data, at, strides)


def _parse_count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.80} is no whole number from 0 on")
    return value
