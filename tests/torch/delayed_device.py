"""A device in the memory of this process, whose work is done late, and as wrongly as may be.

Two streams of the user and one of copies do what they were given in turn, each for itself, and
waits for events alone order one after another: which goes on next is drawn. Memory that is given
back is given out again at once. Whoever reads before a copy, writes to memory that is still read,
or lets go of it too early finds other bytes. `missing` takes one of the guards away.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import torch

GUARDS = ("wait", "follow", "synchronize", "keep for copies", "keep for the user")

Memory = np.ndarray[Any, Any]


class LateEvent:
    """A moment in the work of a stream."""

    def __init__(self, device: DelayedDevice) -> None:
        self._device = device
        self.has_come = False

    def synchronize(self) -> None:
        while not self.has_come and self._device.missing != "synchronize":
            self._device.work()


class LateStream:
    """Work that is done in turn, some time."""

    def __init__(self, device: DelayedDevice) -> None:
        self._device = device
        self._work: deque[LateEvent | Callable[[], object]] = deque()

    def wait_event(self, event: LateEvent) -> None:
        if self._device.missing != "wait":
            self._work.append(event)

    def give(self, work: Callable[[], object]) -> None:
        self._work.append(work)

    def record(self) -> LateEvent:
        event = LateEvent(self._device)
        self._work.append(lambda: setattr(event, "has_come", True))
        return event

    def can_work(self) -> bool:
        head = self._work[0] if self._work else None
        return head is not None and (not isinstance(head, LateEvent) or head.has_come)

    def work(self) -> None:
        work = self._work.popleft()
        if not isinstance(work, LateEvent):
            work()

    @property
    def is_idle(self) -> bool:
        return not self._work


class DelayedDevice:
    """Streams as `CudaStreams` has them; `active` is the user's current stream."""

    def __init__(self, random: Random, missing: str = "") -> None:
        assert missing in ("", *GUARDS)
        self.missing = missing
        self._random = random
        self.users = [LateStream(self), LateStream(self)]
        self._copies = LateStream(self)
        self.active = self.users[0]
        self.lent: dict[int, tuple[Memory, set[LateStream]]] = {}  # by address: users besides
        self._free: dict[LateStream, list[Memory]] = {stream: [] for stream in self.users}
        self._pending: list[tuple[LateStream, Memory, list[LateEvent]]] = []
        self._pinned: dict[int, Memory] = {}
        self.room = 1 << 60
        """Tensors that can be allocated."""

    # -- what `CopyTransfer` asks for ------------------------------------------------------------

    def check(self) -> None:
        pass

    def holds(self, tensor: torch.Tensor) -> bool:
        is_strided = tensor.layout == torch.strided
        return is_strided and tensor.untyped_storage().data_ptr() in self.lent

    def move(self, value: Any) -> Any:
        return value

    def allocate(self, like: torch.Tensor) -> torch.Tensor:
        self.room -= 1
        if self.room < 0:
            raise MemoryError("the device is full")
        layout, stream = torch.empty_like(like), self.active
        for owner, memory, events in list(self._pending):
            if all(event.has_come for event in events):
                self._pending.remove((owner, memory, events))
                self._free[owner].append(memory)
        size_bytes = max(8, -(-layout.nbytes // 8) * 8)
        fitting = [memory for memory in self._free[stream] if len(memory) == size_bytes]
        if fitting:
            block = fitting[-1]  # the one that was given back last
            self._free[stream] = [one for one in self._free[stream] if one is not block]
        else:
            block = np.full(size_bytes, 0xA5, np.uint8)
        handle = block[:]
        self.lent[block.ctypes.data] = block, set()
        weakref.finalize(handle, self._give_back, block, stream)
        typed = torch.from_numpy(handle)[: layout.nbytes].view(like.dtype)
        return typed.as_strided(layout.shape, layout.stride())

    def pin(self, size_bytes: int) -> torch.Tensor:
        block = np.full(max(8, size_bytes), 0xA5, np.uint8)
        handle = block[:]
        self._pinned[block.ctypes.data] = block
        weakref.finalize(handle, self._unpin, block)
        return torch.from_numpy(handle)

    def current(self) -> LateStream:
        return self.active

    def follow(self, stream: Any) -> None:
        if self.missing != "follow":
            self._copies.wait_event(stream.record())

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        to, of = self.borrow(target), self.borrow(source)
        self._copies.give(lambda: to.copy_(of))

    def record(self) -> LateEvent:
        return self._copies.record()

    def keep(self, tensor: torch.Tensor, stream: Any = None) -> None:
        if self.missing != ("keep for copies" if stream is None else "keep for the user"):
            _, users = self.lent[tensor.untyped_storage().data_ptr()]
            users.add(self._copies if stream is None else stream)

    # -- what a test does -------------------------------------------------------------------------

    def borrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory as a kernel has it, which does not keep it from being given back."""
        address = tensor.untyped_storage().data_ptr()
        block = self.lent[address][0] if address in self.lent else self._pinned.get(address)
        if block is None:
            return tensor
        whole = torch.from_numpy(block[: len(block) // tensor.itemsize * tensor.itemsize])
        return whole.view(tensor.dtype).as_strided(
            tensor.shape, tensor.stride(), tensor.storage_offset()
        )

    def read(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Read a tensor on the active stream; what is found is in the list when that has worked."""
        found: list[torch.Tensor] = []
        of = self.borrow(tensor)
        self.active.give(lambda: found.append(of.clone()))
        return found

    def compute(self, like: torch.Tensor) -> None:
        """Write to memory of the active stream, as an operation does that needs some."""
        own = self.borrow(self.allocate(like))
        self.active.give(lambda: own.view(torch.uint8).fill_(0xEE))

    def work(self) -> None:
        """Let one stream do one thing."""
        able = [stream for stream in (*self.users, self._copies) if stream.can_work()]
        assert able, "the streams wait for each other for ever"
        self._random.choice(able).work()

    def work_on(self, most: int) -> None:
        """Let streams do some things, or nothing."""
        for _ in range(self._random.randrange(most + 1)):
            if not self.is_idle:
                self.work()

    def hurry(self) -> None:
        """Let the active stream come as far as it can, and copies no further than it waits for."""
        while not self.active.is_idle:
            (self.active if self.active.can_work() else self._copies).work()

    def finish(self) -> None:
        while not self.is_idle:
            self.work()

    @property
    def is_idle(self) -> bool:
        return all(stream.is_idle for stream in (*self.users, self._copies))

    def _give_back(self, block: Memory, stream: LateStream) -> None:
        _, users = self.lent.pop(block.ctypes.data)
        if users:
            self._pending.append((stream, block, [user.record() for user in users]))
        else:
            self._free[stream].append(block)

    def _unpin(self, block: Memory) -> None:
        """Torch's allocator of pinned memory waits for the copies that it has seen, as here."""
        del self._pinned[block.ctypes.data]
        self._copies.give(lambda: block.fill(0x5A))  # somebody else's by then
