"""The order of the requests that wait for storage, and the accounts of its rate. Pure.

A request's purpose decides when it goes, with aging. Where a rate bounds the queue, each purpose
has a part of it for sure (`FLOORS`), and what is left goes by purpose. A request that must follow
another one waits until that is done. (The idea of one queue for all requests of a process is of
LABIOS, Kougkas et al., HPDC'19; its service and its several targets are left out.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from .. import limits
from ..arguments import check_choice, check_fields, choice, whole
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


_patience = whole(0, limits.patience_ns_max)


@dataclass(frozen=True, slots=True)
class Aging:
    """How long a request of each purpose may be overtaken by more urgent ones, in ns.

    A request's turn comes this long after it arrived. A demand is therefore sent before everything
    that waits, except requests that have waited for longer than this. Needs no clock, because all
    requests age alike. Checkpoints and conversions are many requests each, and live on their floor
    of a rate, not on the age of single requests.
    """

    demand: int = field(default=0, metadata=_patience)
    prefetch: int = field(default=100_000_000, metadata=_patience)
    sweep: int = field(default=1_000_000_000, metadata=_patience)
    checkpoint: int = field(default=limits.patience_ns_max, metadata=_patience)
    convert: int = field(default=limits.patience_ns_max, metadata=_patience)

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, purpose: Purpose) -> int:
        """Return the time of a purpose, in ns; UsageError if there is no such purpose."""
        check_purpose(purpose)
        age_ns: int = getattr(self, purpose)
        return age_ns


AGING = Aging()
"""The default aging."""


@dataclass(slots=True, eq=False)
class Request:
    """Bytes [offset, offset + length) of a file, to be read or written, and the turn to do so.

    file:        its number; None if no other request has bytes in common with this one.
    arrived_ns:  time of arrival, on a clock that never goes back.
    number:      of its turn, in the order in which turns come; None until it comes, at `start_ns`.
    is_over:     whether the turn has ended, or was given up.

    `extent.Requests` is something else: the columns of one submission to an engine.
    """

    kind: Kind = field(metadata=choice(Kind))
    purpose: Purpose = field(metadata=choice(Purpose))
    length: int = field(metadata=whole(0))
    arrived_ns: int = field(metadata=whole(0))
    file: int | None = None
    offset: int = field(default=0, metadata=whole(0))
    number: int | None = None
    start_ns: int = 0
    is_over: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "Request.")

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length


def must_follow(later: Request, earlier: Request) -> bool:
    """True if one of the requests writes bytes of the other, so that their order counts."""
    if later.file is None or earlier.file != later.file or earlier.kind == later.kind == "read":
        return False
    return max(earlier.offset, later.offset) < min(earlier.end, later.end)


def choose_next(
    requests: Sequence[Request],
    aging: Aging = AGING,
    inflight_bytes_max: int | None = None,
    floors: Mapping[Purpose, RateAccount] = MappingProxyType({}),
    now_ns: int = 0,
) -> int | None:
    """Choose the request whose turn comes next; return its row, None if none may begin now.

    requests:            all that are not over, in the order of their arrival.
    inflight_bytes_max:  most bytes that have their turn at a time; a larger request goes alone.
    floors:              the accounts of `FLOORS`, if a rate bounds the queue.

    - No two requests of which one writes bytes of the other have their turn together, or out of
      order: a read returns what the writes before it wrote, and the last write remains.
    - Of those that wait for no other one, the turn is whose purpose has had less than its floor,
      for the longest time; then whose age is up first; of equals, who came first. A request that a
      more urgent one waits for is as urgent as that.
    - A request that has waited for `limits.patience_ns_max` is not overtaken any more.
    """
    turns_ns = [(request.arrived_ns + aging.of(request.purpose), 0) for request in requests]
    for row, request in enumerate(requests if floors else ()):
        late_ns = now_ns - floors[request.purpose].find_start_ns(request.arrived_ns)
        if late_ns >= 0:
            turns_ns[row] = -1 - late_ns, PURPOSES.index(request.purpose)
    rows_of_file: dict[int, list[int]] = defaultdict(list)
    blocked = set()
    for row, request in enumerate(requests):
        if request.file is not None:
            rows_of_file[request.file].append(row)
    for rows in rows_of_file.values():
        while rows:  # the last first, so that its urgency is final when it is passed on
            later = rows.pop()
            for row in rows:
                if must_follow(requests[later], requests[row]):
                    blocked.add(later)
                    turns_ns[row] = min(turns_ns[row], turns_ns[later])
    waiting = [
        (turns_ns[row], row)
        for row, request in enumerate(requests)
        if request.number is None and row not in blocked
    ]
    if not waiting:
        return None
    _, first = min(waiting)
    inflight_bytes = sum(request.length for request in requests if request.number is not None)
    total_bytes = inflight_bytes + requests[first].length
    is_full = inflight_bytes_max is not None and total_bytes > inflight_bytes_max
    return None if inflight_bytes and is_full else first


# -- the rate --------------------------------------------------------------------------------------

_BURST_NS = 100_000_000
"""Unused time of the rate that may be used later: threads that wait wake up late."""


class RateAccount:
    """The bytes that moved, against a rate that may change. Times are of one clock that never goes
    back.

    Bytes may start to move as soon as all bytes before them are paid for. A change of the rate
    applies to what is owed, too.
    """

    def __init__(self) -> None:
        self._bytes_per_s: float | None = None
        self._paid_ns = 0  # when everything that moved so far is paid for

    def set_rate(self, bytes_per_s: float | None, now_ns: int) -> None:
        """Change the rate; None is unlimited."""
        old = self._bytes_per_s
        if bytes_per_s == old:
            return
        owed_ns = self.find_wait_ns(now_ns)
        self._bytes_per_s = bytes_per_s
        self._paid_ns = now_ns
        if owed_ns and old is not None and bytes_per_s is not None:
            self._paid_ns += _round_up_ns(owed_ns * (old / bytes_per_s))

    def find_wait_ns(self, now_ns: int) -> int:
        """Return the time until bytes may start to move; 0 for now."""
        return 0 if self._bytes_per_s is None else max(0, self._paid_ns - now_ns)

    def find_start_ns(self, asked_ns: int) -> int:
        """Return the time from which bytes are paid for that were asked for at this time."""
        return max(self._paid_ns, asked_ns - _BURST_NS)

    def charge(self, bytes_: float, asked_ns: int) -> None:
        """Charge bytes that start to move, and were asked for at this time."""
        if self._bytes_per_s is not None:
            start_ns = self.find_start_ns(asked_ns)
            self._paid_ns = start_ns + _round_up_ns(bytes_ * 1e9 / self._bytes_per_s)


FLOORS = dict(zip(PURPOSES, (0.3, 0.1, 0.1, 0.375, 0.05), strict=True))
"""Parts of the rate that purposes get for sure while their requests wait.

A save beside a loop that wants everything takes 1 / 0.375 = 2.7 times as long as without one. The
parts are less than 1 together, so that all can be given at once. Each has an account, which is
charged with what goes because of it, and not with what goes because nothing more urgent waits.
"""


def _round_up_ns(time_ns: float) -> int:
    return -int(-min(time_ns, 2.0**63) // 1)  # 292 years at most
