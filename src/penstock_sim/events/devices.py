"""Devices in virtual time, through which bytes flow as in the corrected model. Pure.

    SharedStorage   readers divide a rate that depends on how many they are; each reads one thing
                    after the other
    Device          takes what comes in its sequence. Bytes go on as they come: what came from
                    another device passes while it comes, and is through when its last byte is

Times are whole nanoseconds, rounded up; rates are bytes/ns (`cpp/sim/fluid.hpp`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from penstock.clock import EventQueue

from ..devices import Floats

Ended = Callable[[int], None]
"""Function called at the end of a read, with the time at which it began."""


class Flow(NamedTuple):
    """Bytes that come from a device: when the first of them came, and the last."""

    begun_ns: int
    ended_ns: int

    def join(self, other: Flow) -> Flow:
        """Return the flow of what both bring."""
        return Flow(min(self.begun_ns, other.begun_ns), max(self.ended_ns, other.ended_ns))


@dataclass(slots=True)
class Device:
    """A device of one node; serves requests in sequence."""

    rate: float
    _free_ns: int = 0

    def take(self, size_bytes: int, flow: Flow) -> Flow:
        """Take the bytes of a flow as they come; return the flow of what has passed."""
        begun_ns = max(self._free_ns, flow.begun_ns)
        self._free_ns = begun_ns + math.ceil(size_bytes / self.rate)
        return Flow(begun_ns, max(self._free_ns, flow.ended_ns))


@dataclass(slots=True)
class _NodeReads:
    """A node's reads: those that wait, by turn, and the one under way."""

    waiting: list[tuple[int, int, int, Ended]] = field(default_factory=list)
    is_reading: bool = False


class SharedStorage:
    """Storage that readers divide: g of them have `shares[g - 1]` bytes/ns each.

    All who read have been served the same number of bytes since the beginning, if idle ones are
    thought to have been; a read ends when that number has grown by its size.
    """

    def __init__(self, queue: EventQueue, shares: Floats) -> None:
        self._queue, self._shares = queue, shares.tolist()
        self._readers = [_NodeReads() for _ in self._shares]
        self._ends: list[tuple[float, int, int, int, Ended]] = []  # in bytes, number, reader, begun
        self._served, self._since_ns = 0.0, 0
        self._numbers = self._plans = 0

    def read(self, reader: int, size_bytes: int, turn_ns: int, ended: Ended) -> None:
        """Read so many bytes for a reader, whose reads go by turn; `ended` is called at the end."""
        self._numbers += 1
        heapq.heappush(self._readers[reader].waiting, (turn_ns, self._numbers, size_bytes, ended))
        if not self._readers[reader].is_reading:
            self._serve()
            self._begin(reader)
            self._plan()

    def _serve(self) -> None:
        now_ns = self._queue.now_ns
        if self._ends:
            self._served += self._shares[len(self._ends) - 1] * (now_ns - self._since_ns)
        self._since_ns = now_ns

    def _begin(self, reader: int) -> None:
        """Begin the next read of a reader."""
        own = self._readers[reader]
        own.is_reading = bool(own.waiting)
        if own.waiting:
            _, number, size_bytes, ended = heapq.heappop(own.waiting)
            heapq.heappush(
                self._ends, (self._served + size_bytes, number, reader, self._since_ns, ended)
            )

    def _plan(self) -> None:
        """Plan the next end of a read; it holds until a read begins or ends."""
        self._plans += 1
        if self._ends:
            left = max(0.0, self._ends[0][0] - self._served)
            delay_ns = math.ceil(left / self._shares[len(self._ends) - 1])
            self._queue.add(self._since_ns + delay_ns, partial(self._end, self._plans))

    def _end(self, plan: int) -> None:
        if plan != self._plans:
            return
        self._serve()
        self._served = max(self._served, self._ends[0][0])
        ended = []
        while self._ends and self._ends[0][0] <= self._served:
            ended.append(heapq.heappop(self._ends)[2:])
        if not self._ends:
            self._served = 0.0
        for reader, _, _ in ended:
            self._begin(reader)
        self._plan()
        for _, begun_ns, call in ended:
            call(begun_ns)
