"""Batches copied to a GPU one step ahead, on a stream of their own, from pinned memory.

The life of batch k, all of it in the thread that calls `next`; C is the stream that is current
there, on which the user computes, and S the stream of copies:

    next(k-1):  its tensors are allocated on C, so that they are memory of C like the user's own
                its bytes are copied into pinned memory that nobody else writes to
                S waits for what C has been given until now   (the memory may have been used there)
                S copies the pinned memory, and an event marks the end of that
    next(k):    C waits for the event                         (what follows on C finds the batch)
                the batch is the user's, and batch k+1 begins

Batch k is copied while the user computes step k-1. Three things could give wrong bytes without an
error, and each has its guard:

    pinned memory is filled again before its copy has been made:  the CPU waits for the event of the
        copy. There are two buffers, so that it waits only if it is two batches ahead of the GPU.
    a tensor is written while C still computes with what was in that memory before:  S waits for C.
    a tensor goes back to the allocator while a stream uses it of which the allocator does not know:
        it is told, of S where a batch in motion is given up, and of the stream that gets the batch
        where that is another than C.

Pinned memory that is dropped is torch's, whose allocator waits for the copies that were made of it.
A CUDA graph reads the same memory at each replay: `fill_batch` copies a batch there, on C, between
two replays and at the speed of the device's memory.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils._pytree import tree_flatten, tree_unflatten

import torch

from .. import _core
from ..errors import UsageError
from ..loader.batch import Batch
from .tensors import map_tensors

_aligned_bytes = 256  # where tensors begin in pinned memory; suits all dtypes
_small_bytes = 32 << 10
"""Bytes of a tensor that torch pins by itself; it divides larger ones among all its threads."""
_copy_threads_max = 8
"""Most threads that copy a batch to pinned memory, one for each 2 MiB, and half of the processors:
others read the next batches meanwhile."""


class CudaStreams:
    """A CUDA device, and the stream of copies to it; "cuda" is the device that is current now."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._copies: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def check(self) -> None:
        """Raise UsageError if nothing may be copied now."""
        if torch.cuda.is_current_stream_capturing():
            raise UsageError("a CUDA graph captures no batches: take one before, and fill_batch it")

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the device."""
        return tensor.device == self._device

    def move(self, value: Any) -> Any:
        """Return a tensor, or an object with `to`, on the device, and wait for that."""
        return value.to(self._device)

    def allocate(self, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device, in memory of the current stream."""
        return torch.empty_like(like, device=self._device)

    def pin(self, size_bytes: int) -> torch.Tensor:
        """Return pinned memory of the CPU, as uint8."""
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def current(self) -> Any:
        """Return the stream that is current in this thread."""
        return torch.cuda.current_stream(self._device)

    def follow(self, stream: Any) -> None:
        """Let later copies wait for what the stream has been given until now."""
        self._copies.wait_stream(stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Give the stream of copies a copy to do."""
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)

    def record(self) -> Any:
        """Return the event that all copies given until now are done."""
        return self._copies.record_event()

    def keep(self, tensor: torch.Tensor, stream: Any = None) -> None:
        """Keep a tensor's memory from being allocated again before the stream, or the stream of
        copies, has done the work given to it until the tensor is gone."""
        tensor.record_stream(self._copies if stream is None else stream)


@dataclass(eq=False)
class PinnedBuffer:
    """Pinned memory for the tensors of one batch, and the end of the copies that read it last."""

    memory: torch.Tensor | None = None
    copied: Any = None  # an event

    def stage(
        self, streams: CudaStreams, pairs: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Copy the sources of pairs (target, source) here, laid out as their targets are."""
        if self.copied is not None:
            self.copied.synchronize()
        begins, size_bytes = [], 0
        for _, source in pairs:
            begins.append(size_bytes)
            size_bytes += _pad(source.nbytes)
        if self.memory is None or len(self.memory) < size_bytes:
            self.memory = None
            self.memory = streams.pin(size_bytes)
        staged = []
        for begin, (target, source) in zip(begins, pairs, strict=True):
            flat = self.memory[begin : begin + source.nbytes].view(source.dtype)
            staged.append(flat.as_strided(target.shape, target.stride()))
        sources = [source for _, source in pairs]
        _copy_in_threads(self.memory[:size_bytes], staged, sources)
        return staged


def pin(data: Any) -> Any:
    """Return a copy with all tensors in pinned memory; objects with `pin_memory` pin themselves."""
    return map_tensors(data, _pin_tensor, lambda item: item.pin_memory())


def _pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in pinned memory."""
    is_simple = _is_plain(tensor) and tensor.is_contiguous() and not tensor.is_pinned()
    if tensor.nbytes < _small_bytes or not is_simple:
        return tensor.pin_memory()
    memory = torch.empty(_pad(tensor.nbytes), dtype=torch.uint8, pin_memory=True)
    pinned = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    _copy_in_threads(memory, [pinned], [tensor])
    return pinned


def _pad(size_bytes: int) -> int:
    return -(-size_bytes // _aligned_bytes) * _aligned_bytes


def _copy_in_threads(
    memory: torch.Tensor, staged: list[torch.Tensor], sources: list[torch.Tensor]
) -> None:
    """Copy sources to their views of staging memory, past the caches, in threads of the core.

    Torch copies in its computing threads: one under torchrun, because of OMP_NUM_THREADS, else one
    for each processor. The slowest, next to reading threads, takes several times as long, and all
    wait for it without sleeping: batches of 1 MB kept 16 processors busy.
    """
    addresses, lengths = [], []
    for view, source in zip(staged, sources, strict=True):
        is_same_layout = source.stride() == view.stride()
        if not is_same_layout:
            view.copy_(source)
        addresses.append((source if is_same_layout else view).data_ptr())
        lengths.append(source.nbytes)
    threads = max(1, min(_copy_threads_max, len(os.sched_getaffinity(0)) // 2))
    _core.pack_extents(
        np.array(addresses, np.uint64),
        np.array(lengths, np.int64),
        _aligned_bytes,
        memory.numpy(),
        threads,
        np.empty(len(lengths), np.uint32),  # checksums, which cost nothing beside the copy
    )


class MovingBatch:
    """A batch on the device, whose bytes are there when `copied` has come.

    If it is dropped before the user has it, the allocator is told that copies write to its memory.
    """

    def __init__(self, streams: CudaStreams, batch: Any, tensors: list[torch.Tensor]) -> None:
        self._streams = streams
        self._stream = streams.current()  # of which the memory is
        self._batch = batch
        self._tensors = tensors  # those that are being copied
        self.copied: Any = None

    def __del__(self) -> None:
        for tensor in self._tensors:
            self._streams.keep(tensor)

    def copy(self, staged: list[torch.Tensor]) -> Any:
        """Give the stream of copies what it has to do, and return the event of its end."""
        self._streams.follow(self._stream)
        for target, source in zip(self._tensors, staged, strict=True):
            self._streams.copy(target, source)
        self.copied = self._streams.record()
        return self.copied

    def hand_over(self) -> Any:
        """Return the batch, for which the stream that is current now waits."""
        stream = self._streams.current()
        stream.wait_event(self.copied)
        if stream != self._stream:
            for tensor in self._tensors:
                self._streams.keep(tensor, stream)
        self._tensors = []
        return self._batch


class CopyTransfer:
    """A `DeviceTransfer` by copies on a stream of their own; see the top of this file.

    Strided tensors of torch's own class are copied ahead. Other tensors, and objects with `to`, are
    moved at once, on the current stream. Tensors on the device stay what they are, and so do values
    that are no tensors.
    """

    def __init__(self, streams: CudaStreams) -> None:
        self._streams = streams
        self._buffers = deque([PinnedBuffer(), PinnedBuffer()])  # the one used last is last

    def check(self) -> None:
        self._streams.check()

    def begin(self, batch: Any) -> MovingBatch:
        with torch.inference_mode(False):  # what is made under it could not be used for training
            pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

            def place(tensor: torch.Tensor) -> Any:
                if self._streams.holds(tensor):
                    return tensor
                if not _is_plain(tensor):
                    return self._streams.move(tensor)
                pairs.append((self._streams.allocate(tensor), tensor))
                return pairs[-1][0]

            def move(value: Any) -> Any:
                return self._streams.move(value) if hasattr(value, "to") else value

            mask = batch.valid if isinstance(batch, Batch) and hasattr(batch, "ids") else None
            placed, mask = map_tensors((batch, mask), place, move)
            if mask is not None:
                placed.keep_valid(mask)
            moving = MovingBatch(self._streams, placed, [target for target, _ in pairs])
            self._buffers.rotate(-1)
            buffer = self._buffers[-1]
            buffer.copied = moving.copy(buffer.stage(self._streams, pairs))
            return moving

    def hand_over(self, moving: MovingBatch) -> Any:
        return moving.hand_over()


def choose_device(device: Any) -> torch.device | None:
    """Return the device that a loader is given. Raises UsageError for one that cannot be used."""
    if device is None:
        return None
    try:
        chosen = None if isinstance(device, bool) else torch.device(device)
    except (RuntimeError, TypeError):
        chosen = None
    if chosen is None or chosen.type not in ("cuda", "cpu"):
        raise UsageError(f"device is {device!r}: use 'cuda', 'cuda:1', 'cpu' or batch.to(device)")
    if chosen.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= count:
            raise UsageError(f"device is {device!r}, of {count} CUDA devices: use one of these")
    return chosen


def fill_batch(target: Any, batch: Any) -> Any:
    """Copy the tensors of a batch into another batch's memory, and return that batch.

    For CUDA graphs: they read the same memory at each replay. capture a graph with the tensors of
    a batch that is kept, and fill that one before each replay. Ids and `valid` are filled too;
    step, epoch, repeats and values that are no tensors are replaced. Raises UsageError, before
    anything is copied, where structure, shapes or dtypes differ, and where a tensor of the batch to
    be filled cannot be written.
    """
    targets, form = tree_flatten(target)
    leaves, given = tree_flatten(batch)
    if form != given:
        raise UsageError(f"the structures {form} and {given} differ: fill by the same loader")
    is_marked = isinstance(target, Batch) and hasattr(target, "ids")
    if is_marked:
        targets += [target.ids, target.valid]
        leaves += [batch.ids, batch.valid]
    for old, new in zip(targets, leaves, strict=True):
        _check_fill(old, new)
    filled = [
        old.copy_(new) if isinstance(old, torch.Tensor) else new
        for old, new in zip(targets, leaves, strict=True)
    ]
    if is_marked:
        target.step, target.epoch, target.repeats = batch.step, batch.epoch, batch.repeats
        filled = filled[:-2]
    if not isinstance(target, dict):
        return tree_unflatten(filled, form)
    target.update(tree_unflatten(filled, form))
    return target


def _check_fill(old: Any, new: Any) -> None:
    """Check that one part of a batch can be filled with another."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            shapes = f"{tuple(old.shape)} {old.dtype} cannot be filled with {tuple(new.shape)}"
            raise UsageError(f"{shapes} {new.dtype}: give drop_last=True, or penstock.pad rows")
        fault = _find_write_fault(old)
        if fault is not None:
            raise UsageError(f"a tensor of shape {tuple(old.shape)} cannot be filled: {fault}")
    elif hasattr(old, "to") or hasattr(new, "to"):
        raise UsageError(f"a {type(old).__name__} cannot be filled: make dicts of tensors")


def _find_write_fault(tensor: torch.Tensor) -> str | None:
    """Return why nothing can be copied into a tensor, and the remedy."""
    if tensor.layout == torch.strided and tensor.numel():
        reach = 0  # of the axes whose elements lie closer together
        for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
            if size > 1 and stride <= reach:
                return (
                    "several of its elements are one in memory (expand, unfold): fill its clone()"
                )
            reach += stride * (size - 1)
    if tensor.is_leaf and tensor.requires_grad and torch.is_grad_enabled():
        return "it is a leaf that requires grad: fill its detach(), which has the same memory"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "it was made in inference mode: fill it there too, or fill its clone()"
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether the memory of a tensor of the CPU is all there is to it."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (
            tensor.is_nested
            or tensor.requires_grad
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
        )
    )
