"""Torch tensors as arrays of a state: their memory, and tensors made from memory again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

import torch

from ..errors import UsageError
from .manifest import Memory


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def describe_tensor(tensor: torch.Tensor, path: str) -> tuple[Any, ...]:
    """Return a dense tensor's value without its history, dtype, bytes of an element, shape, strides
    in bytes, address, device, and True if its elements are in C order without gaps; UsageError if
    it is of another kind."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = f"{type(tensor).__name__} ({tensor.layout}, on {tensor.device}), not a dense tensor"
        remedy = "save its parts, or use penstock.checkpoint.dcp"
        raise UsageError(f"{path or 'the state'} is a {kind}: {remedy}")
    value = tensor.detach().resolve_conj().resolve_neg()
    size = value.element_size()
    strides = tuple(stride * size for stride in value.stride())
    dtype = str(value.dtype).removeprefix("torch.")
    device, packed = str(value.device), value.is_contiguous()
    return value, dtype, size, tuple(value.shape), strides, value.data_ptr(), device, packed


def pack_tensor(tensor: torch.Tensor) -> Memory:
    """Copy a tensor's elements in C order, as bytes."""
    dense = tensor.contiguous().view(-1).view(torch.uint8)
    memory: Memory = dense.cpu().numpy()
    return memory


def begin_copy(tensor: torch.Tensor, address: int, into: Memory) -> None:
    """Start to copy from the memory of a tensor's device into memory of the host. The copy is done
    once `wait_for_copies` has returned.

    address:  of the first byte, in the storage of the tensor.
    """
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    start = address - storage.data_ptr()
    # Devices of other kinds are waited for here: `wait_for_copies` knows CUDA's alone.
    torch.from_numpy(into).copy_(whole[start : start + len(into)], non_blocking=tensor.is_cuda)


def copy_elements(tensor: torch.Tensor, index: Sequence[npt.NDArray[np.int64]]) -> Memory:
    """Copy elements by their indices, as bytes."""
    return pack_tensor(tensor[tuple(map(torch.from_numpy, index))])


def begin_gather(
    tensor: torch.Tensor, addresses: npt.NDArray[np.int64], length: int
) -> torch.Tensor:
    """Start to gather `length` bytes from each address in the storage of a device's tensor."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    starts = torch.from_numpy(addresses - storage.data_ptr()).to(tensor.device)
    return whole[starts[:, None] + torch.arange(length, device=tensor.device)]


def end_gather(rows: torch.Tensor) -> Memory:
    """Copy gathered bytes to the host: a row for each address."""
    gathered: Memory = rows.cpu().numpy()
    return gathered


def record_marks(devices: Iterable[str]) -> dict[str, Any]:
    """Record, on each of these CUDA devices, the end of the work that this thread has queued; see
    `use_side_streams`."""
    return {
        device: torch.cuda.current_stream(device).record_event() for device in _find_cuda(devices)
    }


@contextmanager
def use_side_streams(marks: Mapping[str, Any]) -> Iterator[None]:
    """Let copies from each device in this context start once the device has reached the mark that
    another thread recorded there, and run beside its later work."""
    with ExitStack() as stack:
        for device, mark in marks.items():
            stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_event(mark)
            stack.enter_context(torch.cuda.stream(stream))
        yield


def wait_for_copies(devices: Iterable[str]) -> None:
    """Wait for all copies from these devices that this thread has started, on the streams that are
    current there."""
    for device in _find_cuda(devices):
        torch.cuda.current_stream(device).synchronize()


def _find_cuda(devices: Iterable[str]) -> list[str]:
    return sorted(device for device in set(devices) if torch.device(device).type == "cuda")


def pin_memory(memory: Memory) -> bool:
    """Let devices copy to this memory at full speed; False if they cannot."""
    if not torch.cuda.is_available():
        return False
    code = _get_cuda_runtime().cudaHostRegister(memory.ctypes.data, len(memory), 0)
    if int(code) == 0:
        return True
    with suppress(RuntimeError):  # the runtime keeps the error for the next kernel, which raises it
        torch.zeros(1, device="cuda")
    return False


def unpin_memory(memory: Memory) -> None:
    """Undo `pin_memory`, before the memory is given back."""
    _get_cuda_runtime().cudaHostUnregister(memory.ctypes.data)


def _get_cuda_runtime() -> Any:
    cudart: Any = torch.cuda.cudart
    return cudart()


def view_tensor(
    block: Memory, dtype: str, shape: Sequence[int], strides: Sequence[int] | None, at: int
) -> torch.Tensor:
    """Make a tensor that is a view of a block; ValueError or RuntimeError if it does not fit."""
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"unknown dtype {dtype!r}")
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=kind)
    size = kind.itemsize
    memory = torch.from_numpy(block[at : at + (len(block) - at) // size * size])
    if at % size:  # numpy allows elements without alignment
        memory = memory.clone()
    whole = memory.view(kind)
    if strides is None:
        return whole[: int(np.prod(shape, dtype=np.int64))].view(tuple(shape))
    if any(stride % size for stride in strides):
        raise ValueError(f"strides {strides} of elements of {size} bytes")
    return whole.as_strided(tuple(shape), [stride // size for stride in strides])
