"""Peers of nodes in one process, the simplest that pass the suite."""

from __future__ import annotations

import contextlib
import math
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence

from penstock import limits
from penstock.cache.peer import NONE, Fetch, Numbers, Part, Peer, PeerEvents, Reason
from penstock.clock import Clock, SystemClock
from penstock.engine.protocol import Mask


class MemoryPeer(Peer):
    """Nodes in one process, for tests: exact, and deterministic if one thread drives them all.

    Each step takes everything that was sent before, in the order of sending. An answer is copied
    when the asker takes its step. Threads may each drive a node of their own.

    Counters: `late`, answers that came after their fetch had been reported.
    """

    @staticmethod
    def group(
        count: int,
        timeout_s: float = limits.peer_timeout_s,
        clock: Clock | None = None,
    ) -> list[MemoryPeer]:
        """Make the nodes 0 to count - 1, all of which know each other."""
        group: list[MemoryPeer] = []
        group += (
            MemoryPeer(node, group, timeout_s, clock or SystemClock()) for node in range(count)
        )
        return group

    def __init__(
        self, node: int, group: Sequence[MemoryPeer], timeout_s: float, clock: Clock
    ) -> None:
        super().__init__(node, timeout_s, clock, ["late"])
        self._group = group
        self._inbox: deque[Callable[[MemoryPeer], None]] = deque()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)

    def _knows(self, node: int) -> bool:
        return node != self.node and 0 <= node < len(self._group)

    def _send_fetch(self, fetch: Fetch) -> bool:
        """Put the fetch into the other node's inbox."""
        ticket, way = fetch.ticket, self.node
        columns = fetch.keys.copy(), fetch.lengths.copy()
        other = self._group[fetch.node]
        is_open = other._post(lambda peer: peer._add_request(way, *columns, ticket, way))
        if not is_open:
            self._end_fetch(fetch, Reason.GONE)
        return is_open

    def step(self, timeout_ns: int, also: Sequence[int] = ()) -> PeerEvents:
        """Take what is in the inbox; wait for it if there is nothing."""
        self._require_open()
        if not self._inbox:
            waiting = select.poll()
            for descriptor in (self._bell.fileno(), *also):
                waiting.register(descriptor, select.POLLIN)
            waiting.poll(math.ceil(self._wait_ns(timeout_ns) / 1e6))
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(1 << 16)
        for _ in range(len(self._inbox)):
            self._inbox.popleft()(self)
        for fetch in self._find_overdue():
            self._end(fetch, Reason.TIMEOUT)
        return self._report()

    def answer(self, request: int, parts: Sequence[Part], refused: Numbers = NONE) -> None:
        """Put the parts into the asking node's inbox."""
        asked, views, mask = self._settle(request, parts, refused)
        self._group[asked.request.node]._post(lambda peer: peer._receive(asked.ticket, views, mask))

    def close(self) -> None:
        """Forget everything, and tell the others."""
        if self._closed:
            return
        super().close()
        self._inbox.clear()
        self._bell.close()
        self._rope.close()
        node = self.node
        for other in self._group:
            other._post(lambda peer: peer._lose(node))

    def _post(self, message: Callable[[MemoryPeer], None]) -> bool:
        """Leave a message for this peer; False where it is closed."""
        if self._closed:
            return False
        self._inbox.append(message)
        with contextlib.suppress(OSError):  # it has rung already, or has just been closed
            self._rope.send(b"!")
        return True

    def _receive(self, ticket: int, parts: list[memoryview], refused: Mask) -> None:
        fetch = self._fetches.get(ticket)
        if fetch is None:
            self._counters["late"] += 1
            return
        fetch.start(refused)
        for part in parts:
            fetch.take(part)
        self._end(fetch)

    def _lose(self, node: int) -> None:
        for fetch in self._fetches_of(node):
            self._end_fetch(fetch, Reason.GONE)
