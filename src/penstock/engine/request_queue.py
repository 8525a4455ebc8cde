"""The queue of requests that wait for storage: the order in which they go, and to which target.
Pure.

After LABIOS (Kougkas et al., HPDC'19), without its service: labels are requests, workers are
targets. A request's purpose decides when it goes, with aging; a policy chooses its target. A
request that must follow another waits until the other is done, wherever that was sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from .. import limits
from ..arguments import check_choice, check_fields, choice, flag, whole
from ..errors import LimitError, UsageError
from ..extent import Int

Kind = Literal["read", "write"]
Purpose = Literal["demand", "prefetch", "sweep", "checkpoint", "convert"]
"""Purpose of the bytes, the most urgent first.

demand: a rank is waiting for them. prefetch: a rank will want them. sweep: the cache is filled.
checkpoint: a snapshot is written. convert: a dataset is written in another form.
"""
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def check_purpose(purpose: object) -> None:
    """Raise UsageError unless the purpose exists."""
    if purpose not in PURPOSES:
        check_choice("purpose", purpose, PURPOSES)


def make_tallies() -> dict[Purpose, Int]:
    """Return a sum of bytes for each purpose, to which engines of all threads may add."""
    return {purpose: np.zeros(1, np.int64) for purpose in PURPOSES}


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes [offset, offset + length) of a file, to be read or written.

    id:          chosen by the caller, unique among requests that are not done.
    file:        its number.
    arrived_ns:  time of arrival, on a clock that never goes back.
    holders:     numbers of the targets that can serve it; () for all of them.

    `extent.Requests` is something else: the columns of one submission to an engine.
    """

    id: int = field(metadata=whole(0))
    kind: Kind = field(metadata=choice(Kind))
    purpose: Purpose = field(metadata=choice(Purpose))
    file: int = field(metadata=whole(0, 1 << 130))
    offset: int = field(metadata=whole(0))
    length: int = field(metadata=whole(0))
    arrived_ns: int = field(metadata=whole(0))
    holders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length


def must_follow(later: Request, earlier: Request) -> bool:
    """True if one of the requests writes bytes of the other, so that their order counts."""
    if earlier.file != later.file or earlier.kind == later.kind == "read":
        return False
    return max(earlier.offset, later.offset) < min(earlier.end, later.end)


# -- policies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Aging:
    """How long a request of each purpose may be overtaken by more urgent ones, in ns.

    A request's turn comes this long after it arrived. A demand is therefore sent before everything
    that waits, except requests that have waited for longer than this. Needs no clock, because all
    requests age alike.
    """

    demand: int = field(default=0, metadata=whole(0, limits.patience_ns_max))
    prefetch: int = field(default=100_000_000, metadata=whole(0, limits.patience_ns_max))
    sweep: int = field(default=1_000_000_000, metadata=whole(0, limits.patience_ns_max))
    checkpoint: int = field(default=2_000_000_000, metadata=whole(0, limits.patience_ns_max))
    convert: int = field(default=5_000_000_000, metadata=whole(0, limits.patience_ns_max))

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, purpose: Purpose) -> int:
        """Return the time of a purpose, in ns; UsageError if there is no such purpose."""
        check_purpose(purpose)
        age_ns: int = getattr(self, purpose)
        return age_ns


AGING = Aging()
"""The default aging."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server of requests as a policy sees it: an engine, a mount, a disk, or an endpoint.

    queued_bytes_max:  most bytes in progress there at a time; a larger request goes alone.
    queued_bytes:      bytes in progress there now.
    available:         whether it takes requests.
    """

    queued_bytes_max: int = field(default=limits.queued_bytes_default, metadata=whole())
    queued_bytes: int = field(default=0, metadata=whole(0))
    available: bool = field(default=True, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)

    def has_room_for(self, request: Request) -> bool:
        """True if a request may be sent now."""
        total_bytes = self.queued_bytes + request.length
        return self.available and (not self.queued_bytes or total_bytes <= self.queued_bytes_max)


class Policy(Protocol):
    """Order of requests and choice of their target; passes `penstock.testing.PolicySuite`."""

    def rank(self, request: Request) -> int:
        """Return the time in ns at which it is the request's turn: the smallest goes first.

        Depends on the request alone, so it is computed once. Within [arrived_ns, arrived_ns +
        limits.patience_ns_max]: a request that waited for that long is not overtaken any more.
        """
        ...

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """Return the number of one of these targets, each of which has room for the request."""
        ...


@dataclass(slots=True)
class RoundRobin:
    """Policy that ranks by purpose, with aging, and serves the targets in turn."""

    aging: Aging = AGING
    _last: int = field(default=-1, init=False)

    def rank(self, request: Request) -> int:
        """Return the time at which it is the request's turn, by its age."""
        return request.arrived_ns + self.aging.of(request.purpose)

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """Return the next number after the last one chosen."""
        self._last = min(targets, key=lambda number: (number <= self._last, number))
        return self._last


@dataclass(slots=True)
class LeastLoaded:
    """Policy that ranks by purpose, with aging, and chooses the target with the emptiest queue."""

    aging: Aging = AGING

    def rank(self, request: Request) -> int:
        """Return the time at which it is the request's turn, by its age."""
        return request.arrived_ns + self.aging.of(request.purpose)

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """Return the target with the least load; of equals the lowest number."""

        def load(number: int) -> float:
            return min(1.0, targets[number].queued_bytes / targets[number].queued_bytes_max)

        return min(targets, key=lambda number: (load(number), number))


# -- the queue -------------------------------------------------------------------------------------

_Turn = tuple[int, int]
"""Rank and number of arrival: the smallest goes first."""
_Group = tuple[Kind, tuple[int, ...]]
"""Kind and holders: requests of one group may go to the same targets."""


class Dispatch(NamedTuple):
    """A request that was sent to a target; `number` counts them."""

    number: int
    target: int
    request: Request


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """A request that is not done.

    turn:       its own turn, or an earlier one of a request that waits for it.
    blockers:   requests that must be done first.
    followers:  requests that wait for it.
    """

    request: Request
    turn: _Turn
    blockers: set[_QueuedRequest] = field(default_factory=set)
    followers: list[_QueuedRequest] = field(default_factory=list)
    is_sent: bool = False

    @property
    def group(self) -> _Group:
        return self.request.kind, self.request.holders


class RequestQueue:
    """Requests that wait for a few targets.

    Guarantees:
    - Every request is sent once.
    - A read returns the bytes written by the writes that were put before it, and the write that was
      put last remains: no two requests of which one writes bytes of the other are in progress
      together or out of order.
    - No target has more in progress than it accepts.
    - Requests that wait for nothing are sent by the rank that the policy gave them, among those
      that a target with room can serve.
    - A request that a more urgent one waits for is as urgent as that.

    No clock, no storage: call `put` as requests come, `take` while it returns some, `done` as they
    end, `withdraw` for a request that is not wanted any more.
    """

    def __init__(self, policy: Policy, targets: Sequence[Target]) -> None:
        self._policy = policy
        self._targets = list(targets)
        self._put_count = self._sent_count = 0
        self._undone: dict[int, _QueuedRequest] = {}  # by id
        self._by_file: dict[int, dict[int, _QueuedRequest]] = defaultdict(dict)
        self._ready: dict[_Group, list[tuple[_Turn, _QueuedRequest]]] = defaultdict(list)
        self._last_ns = 0

    def __len__(self) -> int:
        """Return the number of requests that are not done."""
        return len(self._undone)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets in their present state."""
        return tuple(self._targets)

    def update(self, number: int, target: Target) -> None:
        """Replace a target whose properties changed; its bytes in progress are kept."""
        queued_bytes = self._targets[number].queued_bytes
        self._targets[number] = replace(target, queued_bytes=queued_bytes)

    def put(self, request: Request) -> None:
        """Add a request. UsageError if its id is in use, a holder is no target, or it arrived
        before the last one; LimitError beyond `limits.pieces_max`."""
        known = not request.holders or max(request.holders) < len(self._targets)
        if request.id in self._undone or not known or request.arrived_ns < self._last_ns:
            bounds = f"holders below {len(self._targets)} and an arrival from {self._last_ns} ns on"
            raise UsageError(f"{request} cannot be queued: give a new id, {bounds}")
        if len(self._undone) >= limits.pieces_max:
            raise LimitError(f"pieces_max {limits.pieces_max} requests wait: finish some first")
        self._last_ns = request.arrived_ns
        queued = _QueuedRequest(request, (self._policy.rank(request), self._put_count))
        self._put_count += 1
        for earlier in self._by_file[request.file].values():
            if must_follow(request, earlier.request):
                queued.blockers.add(earlier)
                earlier.followers.append(queued)
                self._hasten(earlier, queued.turn)
        if not queued.blockers:
            self._release(queued)
        self._undone[request.id] = self._by_file[request.file][request.id] = queued

    def take(self) -> Dispatch | None:
        """Return the request to send next; None if nothing may be sent before something ends or
        arrives."""
        for _, queued in sorted(self._list_heads(), key=lambda head: head[0]):
            request = queued.request
            with_room = {
                number: self._targets[number]
                for number in request.holders or range(len(self._targets))
                if self._targets[number].has_room_for(request)
            }
            if with_room:
                number = self._policy.choose(request, with_room)
                target = with_room[number]
                total_bytes = target.queued_bytes + request.length
                self._targets[number] = replace(target, queued_bytes=total_bytes)
                queued.is_sent = True
                self._sent_count += 1
                return Dispatch(self._sent_count - 1, number, request)
        return None

    def _list_heads(self) -> Iterator[tuple[_Turn, _QueuedRequest]]:
        """Yield the most urgent ready request of each group."""
        for group, waiting in list(self._ready.items()):
            while waiting and (waiting[0][1].is_sent or waiting[0][1].turn != waiting[0][0]):
                heappop(waiting)  # it was sent, withdrawn or hastened
            if waiting:
                yield waiting[0]
            else:
                del self._ready[group]

    def done(self, dispatch: Dispatch) -> None:
        """Note that a request ended, successfully or not. Call it once for each."""
        target = self._targets[dispatch.target]
        queued_bytes = target.queued_bytes - dispatch.request.length
        self._targets[dispatch.target] = replace(target, queued_bytes=queued_bytes)
        self._drop(self._undone[dispatch.request.id])

    def withdraw(self, number: int) -> None:
        """Remove a request that waits; requests that waited for it go on."""
        queued = self._undone[number]
        queued.is_sent = True  # the heap skips it
        for earlier in queued.blockers:
            earlier.followers.remove(queued)
        self._drop(queued)

    def _drop(self, queued: _QueuedRequest) -> None:
        request = queued.request
        del self._undone[request.id], self._by_file[request.file][request.id]
        if not self._by_file[request.file]:
            del self._by_file[request.file]
        for later in queued.followers:
            later.blockers.discard(queued)
            if not later.blockers:
                self._release(later)

    def _hasten(self, queued: _QueuedRequest, turn: _Turn) -> None:
        """Make a request as urgent as one that waits for it, and likewise all that it waits for."""
        hastened = [queued]
        while hastened:
            blocker = hastened.pop()
            if blocker.is_sent or blocker.turn[0] <= turn[0]:
                continue
            blocker.turn = (turn[0], blocker.turn[1])
            if not blocker.blockers:
                self._release(blocker)
            hastened += blocker.blockers

    def _release(self, queued: _QueuedRequest) -> None:
        """Make a request ready, because it waits for no other any more."""
        heappush(self._ready[queued.group], (queued.turn, queued))
