"""Mirrored reads: one engine over several engines that hold copies of the same files.

Submissions are cut into parts of about `limits.unit_bytes_default`, which wait by purpose, with
aging. A part goes to the member with the fewest bytes under way, of those that have its files and
room for it: so a member that is twice as fast is asked for twice as much. Extents that one member
fails to read are requested from the others. A member that failed where another one succeeded is
left alone for a while.

One thread for each member waits for its reports and hands on queued parts.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from .. import limits
from ..budget import Budget
from ..errors import UsageError
from ..extent import Int, Requests
from .protocol import Buffer, Completion, Failure, ReadingEngine, ReadMethod, check_requests
from .reports import ReportQueue
from .request_queue import AGING, Aging, Purpose, check_purpose
from .threads import join_threads, start_threads

_poll_ns = 100_000_000


@dataclass(slots=True, eq=False)
class _MirroredTicket:
    """A submission, with the number of its parts that are not finished."""

    requests: Requests
    buffers: list[Buffer]
    purpose: Purpose
    number: int = 0
    parts: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _MirroredPart:
    """A part of a submission that one member is asked for.

    rows:   its extents, as numbers within the ticket.
    tried:  members that failed to read them.
    """

    ticket: _MirroredTicket
    requests: Requests
    rows: Int
    tried: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        return int(self.requests.length.sum())

    @property
    def purpose(self) -> Purpose:
        """Purpose of the part; "demand" once a member failed, because the part has already waited
        its turn."""
        return "demand" if self.tried else self.ticket.purpose


class MirroredEngine:
    """Reads from whichever member has the file and room; see `penstock.engine.Engine`.

    members:  engines over the same table of files, each at another place. One thread may submit to
              a member while another polls it. This engine closes them.
    holders:  bool (files, members), True where a member has the file; each file has a holder.
    queued_bytes_max:  most bytes that one member is asked for at a time; a larger part goes alone.

    An extent fails once every holder has failed, with the error of the last one. Threads end with
    `close`, or with the last reference to the engine.
    """

    def __init__(
        self,
        members: Sequence[ReadingEngine],
        holders: npt.NDArray[np.bool_],
        *,
        aging: Aging = AGING,
        queued_bytes_max: int = limits.queued_bytes_default,
    ) -> None:
        self._members = list(members)
        self._holders = holders
        if holders.ndim != 2 or holders.shape[1] != len(members) or not holders.any(axis=1).all():
            shape = holders.shape
            raise UsageError(f"holders has shape {shape}: give (files, members), all files held")
        self._aging, self._queued_bytes_max = aging, queued_bytes_max
        # By the members that a part may go to: a heap of turn, number and the part.
        self._waiting: dict[tuple[int, ...], list[tuple[int, int, _MirroredPart]]] = {}
        self._asked: list[dict[int, _MirroredPart]] = [{} for _ in members]  # by its ticket
        self._queued_bytes = [0] * len(members)
        self._paused_s: dict[int, float] = {}  # until when a member is left alone
        self._numbers = itertools.count()  # of parts
        self._rerouted = 0
        self._reports = ReportQueue()
        self._lock = self._reports.lock  # guards all of the above
        self._more: list[SimpleQueue[None]] = [SimpleQueue() for _ in members]
        threads = [
            threading.Thread(
                target=_watch,
                args=(weakref.ref(self), n, member, more),
                name="penstock-place",
                daemon=True,
            )
            for n, (member, more) in enumerate(zip(self._members, self._more, strict=True))
        ]
        self._finalizer = weakref.finalize(
            self, _end_members, self._members, self._more, threads, self._reports
        )
        self._finalizer.atexit = False
        start_threads(threads, self.close)

    @property
    def choice(self) -> ReadMethod:
        """Read method of the first member."""
        return self._members[0].choice

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Cut the requests into parts, and hand on those that there is room for."""
        self._reports.check_usable()
        check_requests(requests, buffers, len(self._holders))
        check_purpose(purpose)
        ticket = _MirroredTicket(requests, list(buffers), purpose)
        parts = self._cut_parts(ticket)
        with self._lock:
            self._reports.check_usable()
            if sum(map(len, self._waiting.values())) + len(parts) > limits.pieces_max:
                raise UsageError(
                    f"over pieces_max {limits.pieces_max} parts would wait: poll first"
                )
            ticket.number = self._reports.open_ticket()
            for part in parts:
                self._put(part)
            if not parts:
                self._finish(ticket)
            self._feed()
        return ticket.number

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report finished tickets."""
        return self._reports.poll(timeout_ns)

    def adopt(self, budget: Budget) -> None:
        """Divide the budget's bandwidth among the members."""
        member_budget = divide_budget(budget, len(self._members))
        for member in self._members:
            member.adopt(member_budget)

    def survey(self) -> None:
        """Let each member survey its files again."""
        for member in self._members:
            member.survey()

    def counters(self) -> dict[str, int]:
        """Return sums over all members; their tickets are parts here. `busy_ns` is the largest of
        any member; `rerouted` counts extents that were requested from another member after a
        failure."""
        counters = [member.counters() for member in self._members]
        total = {name: sum(values.get(name, 0) for values in counters) for name in counters[0]}
        if "busy_ns" in total:
            total["busy_ns"] = max(values.get("busy_ns", 0) for values in counters)
        return total | {"rerouted": self._rerouted}

    def close(self) -> None:
        """Close all members, and end the threads."""
        if self._reports.is_inherited:
            return
        self._reports.close()
        self._finalizer()
        with self._lock:
            self._waiting.clear()
            for asked in self._asked:
                asked.clear()

    def _cut_parts(self, ticket: _MirroredTicket) -> list[_MirroredPart]:
        """Cut a submission into parts: neighbouring runs with the same holders, of about
        `limits.unit_bytes_default` bytes."""
        requests = ticket.requests
        runs = requests.runs
        if len(runs) == 1:
            return []
        bytes_ = np.add.reduceat(requests.length, runs[:-1])
        cut = np.diff((np.cumsum(bytes_) - bytes_) // limits.unit_bytes_default) != 0
        holders = self._holders[requests.file[runs[:-1]]]
        cut |= (holders[1:] != holders[:-1]).any(axis=1)
        edges = [0, *(np.flatnonzero(cut) + 1).tolist(), len(runs) - 1]
        parts = []
        for first, last in itertools.pairwise(edges):
            a, b = int(runs[first]), int(runs[last])
            rows = np.arange(a, b)
            some = _select_extents(requests, rows, runs[first : last + 1] - a)
            parts.append(_MirroredPart(ticket, some, rows))
        return parts

    # -- what follows is called with the lock held ---------------------------------------------

    def _put(self, part: _MirroredPart) -> None:
        """Queue a part for the holders that have not been tried."""
        holders = np.flatnonzero(self._holders[part.requests.file[0]]).tolist()
        members = tuple(member for member in holders if member not in part.tried)
        turn_ns = time.monotonic_ns() + self._aging.of(part.purpose)
        heappush(self._waiting.setdefault(members, []), (turn_ns, next(self._numbers), part))
        part.ticket.parts += 1

    def _feed(self) -> None:
        """Hand on the waiting parts that there is room for, the most urgent first."""
        if self._reports.is_over:
            return
        now_s = time.monotonic()
        self._paused_s = {m: until_s for m, until_s in self._paused_s.items() if until_s > now_s}
        while (choice := self._choose_next()) is not None:
            number, part = choice
            asked = self._members[number].submit(part.requests, part.ticket.buffers, part.purpose)
            self._asked[number][asked] = part
            self._queued_bytes[number] += part.size_bytes
            self._more[number].put(None)

    def _choose_next(self) -> tuple[int, _MirroredPart] | None:
        """Take the most urgent part for which a member has room; return the member and the part."""
        for members, parts in sorted(self._waiting.items(), key=lambda item: item[1][0]):
            part = parts[0][-1]
            room_bytes = self._queued_bytes_max - part.size_bytes
            loads = [
                (self._queued_bytes[member], member)
                for member in members
                if member not in self._paused_s and self._queued_bytes[member] <= max(0, room_bytes)
            ]
            if loads:
                heappop(parts)
                if not parts:
                    del self._waiting[members]
                return min(loads)[1], part
        if self._waiting and self._paused_s and not any(self._asked):
            self._paused_s.clear()  # nobody else has what waits
            return self._choose_next()
        return None

    def _report(self, number: int, completion: Completion) -> None:
        """Record that a member has read a part, or failed to."""
        part = self._asked[number].pop(completion.ticket)
        self._queued_bytes[number] -= part.size_bytes
        ticket = part.ticket
        if len(completion.failures) < len(part.rows):  # members that were tried could have read it
            until_s = time.monotonic() + limits.mirror_pause_s
            self._paused_s |= dict.fromkeys(part.tried, until_s)
        failed = np.array([failure.extent for failure in completion.failures], np.int64)
        tried = (*part.tried, number)
        untried = self._holders[part.requests.file[0]].copy()  # all files of a part have the same
        untried[list(tried)] = False
        if len(failed) and untried.any():
            again = _select_extents(part.requests, failed, np.arange(len(failed) + 1))
            self._put(_MirroredPart(ticket, again, part.rows[failed], tried))
            self._rerouted += len(failed)
        else:
            rows = part.rows[failed].tolist()
            ticket.failures += [
                failure._replace(extent=row)
                for failure, row in zip(completion.failures, rows, strict=True)
            ]
        ticket.parts -= 1
        if not ticket.parts:
            self._finish(ticket)

    def _finish(self, ticket: _MirroredTicket) -> None:
        completion = Completion(ticket.number, tuple(sorted(ticket.failures)))
        self._reports.report(completion, ticket.buffers)

    def _take_reports(
        self, number: int, reports: Sequence[Completion], error: BaseException | None
    ) -> bool:
        """Process the reports of a member, or its error; return whether it is to be asked again."""
        try:
            with self._lock:
                if self._reports.is_closed:
                    return False
                if error is not None:
                    raise error
                for report in reports:
                    self._report(number, report)
                if reports:
                    self._feed()
        except BaseException as fault:
            self._reports.fail(fault)
            return False
        return True


def _watch(
    engine: weakref.ref[MirroredEngine],
    number: int,
    member: ReadingEngine,
    more: SimpleQueue[None],
) -> None:
    """Wait for the reports of one member, as many as parts were submitted to it.

    Run by a thread that must not keep the engine alive while it waits.
    """
    while True:
        more.get()
        reports: Sequence[Completion] = ()
        while not reports:
            error = None
            try:
                reports = member.poll(_poll_ns)
            except BaseException as raised:
                error = raised
            alive = engine()
            if alive is None or not alive._take_reports(number, reports, error):
                return
            del alive
        for _ in reports[1:]:  # one was acquired above
            more.get()


def _end_members(
    members: Sequence[ReadingEngine],
    more: Sequence[SimpleQueue[None]],
    threads: Sequence[threading.Thread],
    reports: ReportQueue,
) -> None:
    """Close the members and end the threads that watch them, unless they are the parent's."""
    if reports.is_inherited:
        return
    for member, asked in zip(members, more, strict=True):
        member.close()  # which ends a wait for its reports
        asked.put(None)
    join_threads(threads)  # this thread may be one of them, the last that used the engine


def _select_extents(requests: Requests, rows: Int, runs: Int) -> Requests:
    """Return these extents alone, grouped in the given runs."""
    file, offset, length, buffer, target, _ = requests
    return Requests(file[rows], offset[rows], length[rows], buffer[rows], target[rows], runs)


def divide_budget(budget: Budget, members: int) -> Budget:
    """Return the budget of each of several members: together no more bandwidth than one would
    have."""
    if budget.bytes_per_s is None:
        return budget
    return replace(budget, bytes_per_s=budget.bytes_per_s / members)
