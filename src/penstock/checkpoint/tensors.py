"""Tensors of torch as leaves of a state: where they lie in memory, and from it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import torch

from ..errors import UsageError
from .array_leaves import Leaf, Memory, span


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def leaf(tensor: torch.Tensor, path: str) -> Leaf:
    """A dense tensor; UsageError where it is of another kind."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise UsageError(
            f"{path or 'the state'} is a {type(tensor).__name__} ({tensor.layout}, on"
            f" {tensor.device}), not a dense tensor: save what it is made of; of sharded tensors"
            " use torch.distributed.checkpoint with penstock's writer"
        )
    value = tensor.detach().resolve_conj().resolve_neg()
    size = value.element_size()
    strides = tuple(stride * size for stride in value.stride())
    lowest, start, extent = span(value.data_ptr(), tuple(value.shape), strides, size)
    return Leaf(
        path or "state",
        "torch",
        value,
        str(value.dtype).removeprefix("torch."),
        size,
        tuple(value.shape),
        strides,
        lowest,
        extent,
        start,
        str(value.device),
    )


def packed(tensor: torch.Tensor) -> Memory:
    """A copy of its elements in C order, as bytes."""
    dense = tensor.contiguous().view(-1).view(torch.uint8)
    memory: Memory = dense.cpu().numpy()
    return memory


def copied(tensor: torch.Tensor, address: int, into: Memory) -> None:
    """Copy from the memory of a tensor's device into memory of the host. It is there once `settled`
    has returned.

    address:  where to begin, in the storage that the tensor is of.
    """
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    start = address - storage.data_ptr()
    torch.from_numpy(into).copy_(whole[start : start + len(into)], non_blocking=True)


def mark() -> Any:
    """What the devices have been told to do up to here, by this thread; see `aside`."""
    return torch.cuda.current_stream().record_event() if torch.cuda.is_available() else None


@contextmanager
def aside(mark: Any) -> Iterator[None]:
    """Copies made within begin once a device has come to a mark of another thread, and go on beside
    what it does after that."""
    if mark is None:
        yield
        return
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_event(mark)
    with torch.cuda.stream(stream):
        yield


def settled() -> None:
    """Returns once all copies have been made that were begun here."""
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def pinned(memory: Memory) -> bool:
    """Let the device copy to memory by itself, at full speed; False where it cannot."""
    if not torch.cuda.is_available():
        return False
    found = _runtime().cudaHostRegister(memory.ctypes.data, len(memory), 0)
    return int(found) == 0


def unpinned(memory: Memory) -> None:
    """Undo that, before the memory is given back."""
    _runtime().cudaHostUnregister(memory.ctypes.data)


def _runtime() -> Any:
    cudart: Any = torch.cuda.cudart
    return cudart()


def tensor(
    block: Memory, dtype: str, shape: Sequence[int], strides: Sequence[int] | None, at: int
) -> torch.Tensor:
    """A view of a block; ValueError or RuntimeError where it does not lie in it."""
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"unknown dtype {dtype!r}")
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=kind)
    size = kind.itemsize
    memory = torch.from_numpy(block[at : at + (len(block) - at) // size * size])
    if at % size:  # numpy lets elements lie anywhere
        memory = memory.clone()
    whole = memory.view(kind)
    if strides is None:
        return whole[: int(np.prod(shape, dtype=np.int64))].view(tuple(shape))
    if any(stride % size for stride in strides):
        raise ValueError(f"strides {strides} of elements of {size} bytes")
    return whole.as_strided(tuple(shape), [stride // size for stride in strides])
