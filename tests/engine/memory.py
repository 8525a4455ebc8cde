"""An engine in memory, the simplest that passes the suite: tests of wrappers and suites use it."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import numpy as np

from penstock.clock import Clock, SystemClock
from penstock.engine import AGING, Completion, Failure, Purpose
from penstock.engine.protocol import Buffer, check_requests
from penstock.engine.request_queue import Aging
from penstock.errors import UsageError
from penstock.extent import Requests

_system_clock = SystemClock()


class MemoryEngine:
    """An engine over byte strings: exact, single-threaded, and deterministic.

    File i is `contents[i]`; None is a missing file. Every outstanding ticket is executed
    and reported by the next poll, in the order of turns, failures in the order of extents.
    """

    def __init__(
        self,
        contents: Sequence[bytes | bytearray | memoryview | None],
        *,
        aging: Aging = AGING,
        clock: Clock = _system_clock,
    ) -> None:
        self._contents = [
            None if content is None else np.frombuffer(content, np.uint8) for content in contents
        ]
        self._aging = aging
        self._clock = clock
        self._pending: list[tuple[int, int, Requests, list[Buffer]]] = []  # turn, ticket, ...
        self._submitted = 0
        self._closed = False

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Check the requests and keep them for the next poll."""
        self._require_open()
        check_requests(requests, buffers, len(self._contents))
        turn_ns = self._clock.now_ns() + self._aging.of(purpose)
        ticket = self._submitted
        self._submitted += 1
        self._pending.append((turn_ns, ticket, requests, list(buffers)))
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Execute and report everything that was submitted; never waits."""
        self._require_open()
        pending, self._pending = self._pending, []
        return [
            Completion(ticket, self._read(requests, buffers))
            for _, ticket, requests, buffers in sorted(pending, key=lambda entry: entry[:2])
        ]

    def close(self) -> None:
        """Drop everything that was not polled."""
        self._closed = True
        self._pending.clear()
        self._contents.clear()

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed: make a new one")

    def _read(self, requests: Requests, buffers: list[Buffer]) -> tuple[Failure, ...]:
        failures = []
        columns = (column.tolist() for column in requests[:-1])
        for extent, (file, offset, length, buffer, target) in enumerate(zip(*columns, strict=True)):
            content = self._contents[file]
            if content is None:
                failures.append(Failure(extent, errno.ENOENT, 0))
                continue
            data = content[offset : offset + length]
            buffers[buffer][target : target + len(data)] = data
            if len(data) < length:
                failures.append(Failure(extent, 0, len(data)))
        return tuple(failures)
