"""Session of a broker: who is connected, what each of them said, and what it is told. Pure.

The broker's shell tells it what has happened, with the time: a connection came (`meet`,
`meet_stranger`), showed the key (`prove`), said something (`hear`), said what is no message
(`reject`), or has gone (`lose`); and time passed (`tick`). It leaves actions that the shell
performs in order: a message to be sent, a connection to be ended.

A connection is in `_callers` from when it is met until the action that ends it. It may join the
ledger, start transfers, and watch; whatever ends it gives back all of that. Numbers of connections
are never used twice.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import limits
from ..errors import UsageError
from .connection import VERSION, Message, WireError
from .federation import HostShare
from .lease import Report
from .ledger import Ledger

_ELSEWHERE = -1
"""Owner of connections over the network, with the key: no user of this host."""


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message to a connection; if that fails, tell the session so by `lose`."""

    caller: int
    message: Message


@dataclass(frozen=True, slots=True)
class EndConnection:
    """Close a connection. It is not named again."""

    caller: int


BrokerAction = SendMessage | EndConnection


@dataclass(slots=True)
class _Caller:
    """A connection. It may have joined; it may watch."""

    number: int
    owner: int
    since_s: float
    host: str
    is_proven: bool
    joined: bool = False
    watch_s: float | None = None


class BrokerSession:
    """Decisions of a broker about its connections; the ledger divides the host among them.

    host_share:  part of a storage that several hosts share, leased from their broker.
    most:        connections.
    describe:    makes what the process adds to the state that is shown.
    """

    def __init__(
        self,
        ledger: Ledger,
        host_share: HostShare | None = None,
        most: int = limits.broker_members_max,
        describe: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.ledger = ledger
        self.actions: deque[BrokerAction] = deque()
        self.counts: Counter[str] = Counter()
        self._host_share, self._most, self._describe = host_share, most, describe
        self._callers: dict[int, _Caller] = {}
        self._next = 0

    @property
    def wait_s(self) -> float | None:
        """Longest time until `tick`; None while nobody is here."""
        return limits.broker_tick_s if self._callers or self._host_share else None

    # -- who calls ---------------------------------------------------------------------------------

    def meet(self, now_s: float, owner: int, why_not: str | None = None) -> int | str:
        """Admit a connection of this host's user; return its number, or why it is refused.

        why_not:  reason for which this user is not admitted.
        """
        if len(self._callers) >= self._most:
            self.counts["crowded"] += 1
            return f"there are {self._most} connections already"
        if why_not is not None:
            self.counts["strangers"] += 1
            return why_not
        return self._admit(now_s, owner, "", is_proven=True)

    def meet_stranger(self, now_s: float, host: str) -> int | None:
        """Admit a connection over the network before it shows the key; return None if there is no
        room for it.

        Beyond `limits.broker_unproven_max` of them the oldest of the host that has most is ended:
        whoever connects and says nothing keeps no other out.
        """
        strangers = [caller for caller in self._callers.values() if not caller.is_proven]
        if len(strangers) >= limits.broker_unproven_max or len(self._callers) >= self._most:
            self.counts["crowded"] += 1
            if not strangers:
                return None
            ((crowd, _),) = Counter(caller.host for caller in strangers).most_common(1)
            oldest = next(caller for caller in strangers if caller.host == crowd)
            self.lose(oldest.number, now_s)
        return self._admit(now_s, _ELSEWHERE, host, is_proven=False)

    def prove(self, number: int) -> None:
        """Record that a connection has shown the key."""
        if number in self._callers:
            self._callers[number].is_proven = True

    def lose(self, number: int, now_s: float) -> None:
        """End a connection that has gone, or did not show the key in time."""
        caller = self._callers.get(number)
        if caller is not None:
            self.counts["strangers"] += not caller.is_proven
            self._drop(caller, now_s)

    def end(self, now_s: float) -> None:
        """End all connections, and give the host's lease back."""
        for caller in list(self._callers.values()):
            self._drop(caller, now_s)
        if self._host_share is not None:
            self._host_share.close()

    def _admit(self, now_s: float, owner: int, host: str, *, is_proven: bool) -> int:
        number = self._next
        self._next += 1
        self._callers[number] = _Caller(number, owner, now_s, host, is_proven)
        return number

    def _drop(self, caller: _Caller, now_s: float) -> None:
        """End a connection; its share goes to the others."""
        del self._callers[caller.number]
        if caller.joined:
            self.ledger.leave(caller.number)
        self.ledger.transfers.leave(caller.number, now_s)
        self.actions.append(EndConnection(caller.number))

    # -- what is said ------------------------------------------------------------------------------

    def hear(self, number: int, message: Message, now_s: float) -> None:
        """Take a message; what a connection says after its end is not heard."""
        caller = self._callers.get(number)
        if caller is None:
            return
        try:
            self._take(caller, message, now_s)
        except UsageError as error:
            self._refuse(caller, "absurd", str(error))
        except WireError as wrong:
            self.reject(number, wrong.why, now_s)

    def reject(self, number: int, why: str, now_s: float) -> None:
        """End a connection that said what is no message, or none that it may say."""
        caller = self._callers.get(number)
        if caller is not None:
            self._refuse(caller, why, f"a line was {why}")
            self._drop(caller, now_s)

    def _take(self, caller: _Caller, message: Message, now_s: float) -> None:
        say, transfers = message["say"], self.ledger.transfers
        if say == "join":
            self._join(caller, message, now_s)
        elif say == "report" and caller.joined:
            self.ledger.report(caller.number, now_s, Report.of(message))
        elif say == "leave" and caller.joined:
            caller.joined = False
            self.ledger.leave(caller.number)
        elif say == "transfer":
            self._transfer(caller, message, now_s)
        elif say == "moved":
            key = _read_transfer_key(caller, message)
            transfers.moved(key, now_s, _read_number(message, "bytes", least=0.0))
        elif say == "transferred":
            transfers.end(_read_transfer_key(caller, message), now_s)
        elif say == "watch":
            caller.watch_s = now_s
        else:
            raise WireError("unexpected")

    def _transfer(self, caller: _Caller, message: Message, now_s: float) -> None:
        """Begin a transfer. Its caller need not have joined: checkpoints have connections of their
        own."""
        job = message.get("job")
        if not isinstance(job, str):
            raise UsageError(f"transfer.job is {job!r:.100}: use str")
        could = message.get("bytes_per_s")
        self.ledger.transfers.begin(
            _read_transfer_key(caller, message),
            now_s,
            owner=caller.owner,
            job=job,
            bytes=_read_number(message, "bytes"),
            could=math.inf if could is None else _read_number(message, "bytes_per_s"),
        )

    def _join(self, caller: _Caller, message: Message, now_s: float) -> None:
        if caller.joined:
            raise WireError("unexpected")
        if message.get("version") != VERSION:
            what = f"version is {message.get('version')!r:.100}, and this broker speaks {VERSION}"
            raise UsageError(f"{what}: use the same penstock on both sides")
        values: dict[str, Any] = {}
        for name, kind in (("job", str), ("rank", int), ("pid", int), ("name", str)):
            values[name] = message.get(name)
            if type(values[name]) is not kind:
                raise UsageError(f"join.{name} is {values[name]!r:.100}: use {kind.__name__}")
        self.ledger.join(caller.number, now_s, owner=caller.owner, **values)
        caller.joined = True

    def _refuse(self, caller: _Caller, counter: str, why: str) -> None:
        self.counts[counter] += 1
        self._send(caller.number, {"say": "refused", "why": why[:1000]})

    def _send(self, number: int, message: Message) -> None:
        self.actions.append(SendMessage(number, message))

    # -- what time brings --------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Let time pass: send new leases and grants to their holders, the state to those who
        watch."""
        for caller in list(self._callers.values()):
            if not caller.is_proven and now_s - caller.since_s > limits.broker_proof_s:
                self.lose(caller.number, now_s)
        if self._host_share is not None:
            self._host_share.step(self.ledger, now_s)
        for number, lease in self.ledger.tick(now_s).items():
            self._send(number, {"say": "lease", **lease.message()})
        for (number, which), granted in self.ledger.grants(now_s).items():
            self._send(number, {"say": "grant", "id": which, **granted.message()})
        watching = [
            caller
            for caller in self._callers.values()
            if caller.watch_s is not None and caller.watch_s <= now_s
        ]
        if watching:
            state = {"say": "state", **self.state(now_s)}
            for caller in watching:
                caller.watch_s = now_s + 1.0
                self._send(caller.number, state)

    def state(self, now_s: float) -> dict[str, Any]:
        """Return the ledger's state and counts of refusals for JSON."""
        upstream = None if self._host_share is None else self._host_share.state()
        return {
            **self.ledger.state(now_s),
            "refused": dict(self.counts),
            "upstream": upstream,
            **self._describe(),
        }


def _read_transfer_key(caller: _Caller, message: Message) -> tuple[int, int]:
    """Return the key of the transfer that a message is about."""
    which = message.get("id")
    if type(which) is not int or not 0 <= which < 1 << 53:  # no bool; JSON is exact to 2^53
        raise UsageError(f"id is {which!r:.100}: use a whole number, 0 or more")
    return caller.number, which


def _read_number(message: Message, name: str, least: float = 1.0) -> float:
    value = message.get(name)
    most = limits.allocation_number_max
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise UsageError(f"{message['say']}.{name} is {value!r:.100}: use {least:g} or more")
    return float(value)  # type: ignore[arg-type]
