"""Modelled processes, each with a clock of its own, and their connections."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock import limits
from penstock.sharing.broker_session import BrokerSession, SendMessage
from penstock.sharing.client import Tenant
from penstock.sharing.connection import ConnectionLost, Message, WireError, parse_message
from penstock.sharing.federation import HostShare
from penstock.sharing.ledger import Ledger
from penstock.sharing.transfer_permit import TransferSession


class SharingParts(NamedTuple):
    """Classes of `penstock.sharing` that brokers and members drive; tests give ones with a bug."""

    BrokerSession: type[BrokerSession] = BrokerSession
    HostShare: type[HostShare] = HostShare
    Ledger: type[Ledger] = Ledger
    SendMessage: type[SendMessage] = SendMessage
    Tenant: type[Tenant] = Tenant
    TransferSession: type[TransferSession] = TransferSession


class VirtualEnd:
    """One end of a connection, with the methods of `penstock.sharing.connection.Lines`."""

    def __init__(self, cluster: Any, host: int, is_caller: bool) -> None:
        self._cluster, self._host, self._is_caller = cluster, host, is_caller
        self.other: VirtualEnd
        self.inbox: deque[bytes | None] = deque()
        self.unsent: deque[bytes] = deque()
        self.under_way = 0
        self.number = -1
        self.is_closed = self.is_lost = False
        self.on_arrival: Callable[[], None] = lambda: None
        self.on_heard: Callable[[Message], None] = lambda message: None
        self.spoil: Callable[[Message], Message] = lambda message: message
        self._last_ns = 0

    @property
    def waiting(self) -> int:
        return sum(map(len, self.unsent))

    @property
    def is_heard(self) -> bool:
        """True if all that was sent from here has been read."""
        return not (self.unsent or self.under_way or any(self.other.inbox))

    def fileno(self) -> int:
        return 0

    def receive(self) -> list[Message]:
        if self.is_lost:
            raise ConnectionLost("reset")
        if self.inbox and self.inbox[0] is None:
            raise ConnectionLost("closed")
        messages = []
        while self.inbox and self.inbox[0] is not None:
            line = self.inbox.popleft()
            assert line is not None
            if len(line) > limits.broker_line_bytes:
                raise WireError("oversized")
            messages.append(parse_message(line))
        for message in messages:
            self.on_heard(message)
        if messages:
            self.other.on_arrival()  # there is room again
        return messages

    def send(self, message: Mapping[str, Any]) -> None:
        self.send_line(json.dumps(self.spoil(dict(message))).encode())

    def send_line(self, line: bytes) -> None:
        """Send a line, whatever it is."""
        self.unsent.append(line)
        self.flush()
        if self.waiting > limits.broker_waiting_bytes:
            raise ConnectionLost("does not read")

    def flush(self) -> None:
        if self.is_lost or self.is_closed:
            raise ConnectionLost("reset")
        room = self._cluster.scenario.room
        while self.unsent and self.under_way + len(self.other.inbox) < room:
            self._post(self.unsent.popleft())

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.unsent.clear()
            self._post(None)

    def expire(self) -> None:
        """Notice that the other side does not answer."""
        if not self.is_closed:
            self.is_lost = True
            self.on_arrival()

    def _post(self, line: bytes | None) -> None:
        at_ns = self._cluster.find_arrival_ns(self._host, self._is_caller)
        self._last_ns = max(self._last_ns, at_ns)
        self.under_way += line is not None  # an end is no message
        self._cluster.queue.add(self._last_ns, partial(self._arrive, line))

    def _arrive(self, line: bytes | None) -> None:
        self.under_way -= line is not None
        if not self.other.is_closed:
            self.other.inbox.append(line)
            self.other.on_arrival()
        elif line is not None:
            self._cluster.queue.add_in(self._cluster.scenario.delay_ns, self.expire)


class VirtualProcess:
    """A process with a clock of its own."""

    def __init__(self, cluster: Any, name: str) -> None:
        self.cluster, self.name = cluster, name
        draw = cluster.draw
        drift = cluster.scenario.drift
        self._speed: float = 1 + draw.uniform(-drift, drift)
        self._ahead_s: float = draw.uniform(0, 1e6)
        self.life = 0  # counts up when it is killed
        self.is_alive = False
        self.stopped_until_ns = self.slow_until_ns = self.slow_ns = 0
        self.calm_ns = 0  # nothing has befallen it since
        self.ends: list[VirtualEnd] = []

    @property
    def now_s(self) -> float:
        return self._ahead_s + int(self.cluster.queue.now_ns) * 1e-9 * self._speed

    @property
    def is_stopped(self) -> bool:
        return int(self.cluster.queue.now_ns) < self.stopped_until_ns

    def jump(self, length_ns: int) -> None:
        self._ahead_s += length_ns * 1e-9

    def later(self, delay_ns: float, call: Callable[[], None]) -> None:
        """Make a call after a delay, unless this process is dead or is killed; once it goes on, if
        it is stopped."""
        if not self.is_alive:  # a message has come for a process that was killed
            return
        life, queue = self.life, self.cluster.queue
        if queue.now_ns < self.slow_until_ns:
            delay_ns += self.slow_ns

        def attempt() -> None:
            if self.life != life:
                return
            if self.is_stopped:
                queue.add(self.stopped_until_ns, attempt)
                return
            self.cluster.guard(self.name, call)

        queue.add_in(delay_ns, attempt)

    def disturb(self, length_ns: int) -> None:
        """Note that something befalls it for so long."""
        self.calm_ns = max(self.calm_ns, self.cluster.queue.now_ns + length_ns)

    def kill(self) -> None:
        self.is_alive = False
        self.life += 1
        self.stopped_until_ns = 0
        ends, self.ends = self.ends, []
        for end in ends:
            end.close()
