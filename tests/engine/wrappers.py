"""Adjectives for engines: Limited, Throttled, Traced, Faulty.

Each wraps any engine, knows nothing but the protocol of `penstock.engine`, and is an engine again,
so they stack in any order: `Limited(Throttled(Traced(engine, trace), bytes_per_s=1e9), 1 << 26)`.
Closing a wrapper closes what it wraps. None starts a thread: they act when called.
"""

from __future__ import annotations

import errno
import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from penstock.clock import Clock, SystemClock
from penstock.engine import AGING, Completion, Engine, Failure, Purpose
from penstock.engine.protocol import Buffer, check_requests
from penstock.engine.request_queue import Aging
from penstock.errors import UsageError
from penstock.extent import Requests

_system_clock = SystemClock()


class _TicketLoad(NamedTuple):
    """Size of a ticket."""

    ticket: int
    bytes: int
    runs: int


class _Waiting(NamedTuple):
    """A waiting ticket. Tickets are unique, so comparisons end there."""

    turn_ns: int
    ticket: int
    load: _TicketLoad
    requests: Requests
    buffers: list[Buffer]
    purpose: Purpose


class Limited:
    """Keeps at most `inflight_bytes_max` and `inflight_runs_max` in flight (None: any number).

    Tickets beyond the limits wait here, in the order of turns, and are submitted by poll when there
    is room; a ticket that is larger than a limit goes alone. Both limits may be changed at any
    time. If the wrapped engine refuses a ticket that has waited (only a wrong file number can cause
    this), each of its extents fails with EINVAL.
    """

    def __init__(
        self,
        engine: Engine,
        inflight_bytes_max: int,
        inflight_runs_max: int | None = None,
        *,
        aging: Aging = AGING,
        clock: Clock = _system_clock,
    ) -> None:
        self.inflight_bytes_max = inflight_bytes_max
        self.inflight_runs_max = inflight_runs_max
        self._engine = engine
        self._aging = aging
        self._clock = clock
        self._waiting: list[_Waiting] = []  # heap
        self._inflight: dict[int, _TicketLoad] = {}  # by ticket of the wrapped engine
        self._submitted = 0

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Submit the requests if there is room, else keep them."""
        check_requests(requests, buffers)  # now: later there is nobody to tell
        load = _TicketLoad(self._submitted, int(requests.length.sum()), len(requests.runs) - 1)
        turn_ns = self._clock.now_ns() + self._aging.of(purpose)
        first = not self._waiting or turn_ns < self._waiting[0].turn_ns
        if first and self._has_room(load):
            self._inflight[self._engine.submit(requests, buffers, purpose)] = load
        else:
            waiting = _Waiting(turn_ns, load.ticket, load, requests, list(buffers), purpose)
            heapq.heappush(self._waiting, waiting)
        self._submitted += 1
        return load.ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report completions of the wrapped engine, and use the room they leave."""
        done = self._advance()  # a limit may have been raised
        for ticket, failures in self._engine.poll(0 if done else timeout_ns):
            done.append(Completion(self._inflight.pop(ticket).ticket, failures))
        return done + self._advance()

    def close(self) -> None:
        """Drop what waits, and close the wrapped engine."""
        self._waiting.clear()
        self._inflight.clear()
        self._engine.close()

    def _has_room(self, load: _TicketLoad) -> bool:
        if not self._inflight:
            return True
        loads = [load, *self._inflight.values()]
        return sum(held.bytes for held in loads) <= self.inflight_bytes_max and (
            self.inflight_runs_max is None
            or sum(held.runs for held in loads) <= self.inflight_runs_max
        )

    def _advance(self) -> list[Completion]:
        """Submit the tickets for which there is room; return the reports on those that were
        refused."""
        refused = []
        while self._waiting and self._has_room(self._waiting[0].load):
            _, _, load, requests, buffers, purpose = heapq.heappop(self._waiting)
            try:
                self._inflight[self._engine.submit(requests, buffers, purpose)] = load
            except UsageError:
                count = len(requests.file)
                failures = tuple(Failure(extent, errno.EINVAL, 0) for extent in range(count))
                refused.append(Completion(load.ticket, failures))
        return refused


class Throttled:
    """Reports like a storage of `bytes_per_s` with a latency of `latency_ns`.

    Requests are submitted at once, and their completions are held back until they are due: when the
    bytes of all earlier tickets and their own have passed at the rate, plus the latency. A ticket
    passes whole, and the next one is the ticket whose turn is first. Rate and latency may be
    changed at any time, for later tickets. With a JumpingClock waiting takes no time.
    """

    def __init__(
        self,
        engine: Engine,
        bytes_per_s: float,
        latency_ns: int = 0,
        clock: Clock = _system_clock,
        *,
        aging: Aging = AGING,
    ) -> None:
        if not bytes_per_s > 0:
            raise UsageError(f"bytes_per_s is {bytes_per_s!r}: use a rate above 0")
        self.bytes_per_s = bytes_per_s
        self.latency_ns = latency_ns
        self._engine = engine
        self._clock = clock
        self._aging = aging
        self._waiting: list[tuple[int, int, int, int]] = []  # heap: turn, ticket, passing, latency
        self._free_ns = 0  # when the last byte of what has begun to pass has passed
        self._due_ns: dict[int, int] = {}  # of tickets that have begun to pass
        self._reading = 0  # tickets that the wrapped engine has not reported
        self._read: dict[int, tuple[Failure, ...]] = {}  # those that it has

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Submit the requests, and queue them for their turn to pass."""
        patience_ns = self._aging.of(purpose)
        ticket = self._engine.submit(requests, buffers, purpose)
        self._reading += 1
        passing_ns = math.ceil(int(requests.length.sum()) * 1e9 / self.bytes_per_s)
        now_ns = self._clock.now_ns()
        self._pass(now_ns)  # what began before this came
        if not self._waiting:
            self._free_ns = max(now_ns, self._free_ns)
        waiting = (now_ns + patience_ns, ticket, passing_ns, self.latency_ns)
        heapq.heappush(self._waiting, waiting)
        self._pass(now_ns)
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report the tickets that are finished and due."""
        now_ns = self._clock.now_ns()
        deadline_ns = now_ns + timeout_ns
        self._note_reads(self._engine.poll(0))
        while True:
            self._pass(now_ns)
            done = self._release(now_ns)
            if done or now_ns >= deadline_ns or not (self._waiting or self._due_ns):
                return done
            due_ns = [self._due_ns[ticket] for ticket in self._read if ticket in self._due_ns]
            free_ns = [self._free_ns] if self._waiting else []
            wake_ns = min([deadline_ns, *due_ns, *free_ns])
            arrived = self._engine.poll(wake_ns - now_ns) if self._reading else []
            self._note_reads(arrived)
            if not arrived:
                # The engine may have waited already, but by a clock of its own.
                self._clock.wait_until_ns(wake_ns)
            now_ns = self._clock.now_ns()

    def close(self) -> None:
        """Drop what is held back, and close the wrapped engine."""
        self._waiting.clear()
        self._due_ns.clear()
        self._read.clear()
        self._engine.close()

    def _pass(self, now_ns: int) -> None:
        """Let tickets begin to pass, one after the other, until the present time."""
        while self._waiting and self._free_ns <= now_ns:
            _, ticket, passing_ns, latency_ns = heapq.heappop(self._waiting)
            self._free_ns += passing_ns
            self._due_ns[ticket] = self._free_ns + latency_ns

    def _note_reads(self, completions: list[Completion]) -> None:
        self._reading -= len(completions)
        self._read |= completions

    def _release(self, now_ns: int) -> list[Completion]:
        due = [
            entry for entry in self._due_ns.items() if entry[1] <= now_ns and entry[0] in self._read
        ]
        for ticket, _ in due:
            del self._due_ns[ticket]
        due.sort(key=lambda entry: (entry[1], entry[0]))
        return [Completion(ticket, self._read.pop(ticket)) for ticket, _ in due]


class TraceEvent(NamedTuple):
    """An event of a trace: a ticket was submitted or reported, or the engine was closed.

    `bytes` and `extents` are those requested by the ticket, `failures` counts the extents that
    failed. The line of close has ticket -1, and what the tickets that were never reported add
    up to.
    """

    event: Literal["submit", "report", "close"]
    ticket: int
    time_ns: int
    bytes: int
    extents: int
    failures: int


class Traced:
    """Writes an event for each submission and each report, and changes nothing.

    `trace` is a list, which grows by a line for each ticket and report, or a function of a line.
    """

    def __init__(
        self,
        engine: Engine,
        trace: list[TraceEvent] | Callable[[TraceEvent], None],
        clock: Clock = _system_clock,
    ) -> None:
        self._engine = engine
        self._write = trace.append if isinstance(trace, list) else trace
        self._clock = clock
        self._inflight: dict[int, tuple[int, int]] = {}  # ticket: bytes, extents
        self._closed = False

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Submit the requests; refused ones leave no event."""
        time_ns = self._clock.now_ns()  # before the engine starts, so that it counts as its time
        ticket = self._engine.submit(requests, buffers, purpose)
        size = int(requests.length.sum()), len(requests.file)
        self._inflight[ticket] = size
        self._write(TraceEvent("submit", ticket, time_ns, *size, 0))
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report completions of the wrapped engine."""
        done = self._engine.poll(timeout_ns)
        time_ns = self._clock.now_ns()
        for ticket, failures in done:
            size = self._inflight.pop(ticket)
            self._write(TraceEvent("report", ticket, time_ns, *size, len(failures)))
        return done

    def close(self) -> None:
        """Close the wrapped engine; writes one event however often it is called."""
        self._engine.close()
        if self._closed:
            return
        self._closed = True
        sizes = [sum(size) for size in zip((0, 0), *self._inflight.values(), strict=True)]
        self._inflight.clear()
        self._write(TraceEvent("close", -1, self._clock.now_ns(), sizes[0], sizes[1], 0))


class Fault(NamedTuple):
    """A fault of an extent; the parts combine.

    errno:  if not 0, nothing arrives, and this is the reason that is reported.
    cut:    number of bytes at the end that do not arrive, reported as a file that ended early.
    flip:   a mask for exclusive-or with every byte that arrives. Not reported.
    """

    errno: int = 0
    cut: int = 0
    flip: int = 0

    def got(self, length: int) -> int:
        """Return how many of `length` bytes arrive."""
        return 0 if self.errno else max(0, length - self.cut)


class _Afflicted(NamedTuple):
    """A ticket in flight, and the faults of its extents."""

    ticket: int
    requests: Requests
    buffers: list[Buffer]
    faults: dict[int, Fault]


class Faulty:
    """Fails as instructed: `fault(ticket, extent)` is applied to an extent; None leaves it alone.

    `hold(ticket)` is for how many polls a report stays back behind others; it never makes poll
    return empty. Tickets count submissions from 0, so that faults that are functions of their
    arguments, such as `seeded_faults`, strike the same extents whatever is wrapped. Bytes that
    do not arrive leave their destination untouched. Real failures are reported as they are.
    """

    def __init__(
        self,
        engine: Engine,
        fault: Callable[[int, int], Fault | None] = lambda ticket, extent: None,
        hold: Callable[[int], int] = lambda ticket: 0,
    ) -> None:
        self._engine = engine
        self._fault = fault
        self._hold = hold
        self._inflight: dict[int, _Afflicted] = {}  # by ticket of the wrapped engine
        self._held: list[tuple[int, Completion]] = []  # polls to go
        self._submitted = 0

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Submit only the bytes of each extent that shall arrive."""
        check_requests(requests, buffers)
        ticket = self._submitted
        length = requests.length.copy()
        faults = {}
        for extent in range(len(length)):
            fault = self._fault(ticket, extent)
            if fault is not None:
                faults[extent] = fault
                length[extent] = fault.got(int(length[extent]))
        engine_ticket = self._engine.submit(requests._replace(length=length), buffers, purpose)
        self._inflight[engine_ticket] = _Afflicted(ticket, requests, list(buffers), faults)
        self._submitted += 1
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report, with the faults, the tickets that need not wait; at least one if there are
        any."""
        for ticket, failures in self._engine.poll(0 if self._held else timeout_ns):
            completion = _afflict(self._inflight.pop(ticket), failures)
            self._held.append((self._hold(completion.ticket), completion))
        soonest = min((polls for polls, _ in self._held), default=0)
        done = [completion for polls, completion in self._held if polls <= max(soonest, 0)]
        self._held = [
            (polls - 1, completion) for polls, completion in self._held if polls > max(soonest, 0)
        ]
        return done

    def close(self) -> None:
        """Drop what is held back, and close the wrapped engine."""
        self._inflight.clear()
        self._held.clear()
        self._engine.close()


def _afflict(ticket: _Afflicted, failures: tuple[Failure, ...]) -> Completion:
    """Flip the bytes that shall be flipped, and add the faults to the real failures."""
    reported = {failure.extent: failure for failure in failures}
    for extent, fault in ticket.faults.items():
        length = int(ticket.requests.length[extent])
        wanted = fault.got(length)
        if extent not in reported and (fault.errno or wanted < length):
            reported[extent] = Failure(extent, fault.errno, wanted)
        got = reported[extent].got if extent in reported else length
        start = int(ticket.requests.target[extent])
        arrived = ticket.buffers[ticket.requests.buffer[extent]][start : start + got]
        np.bitwise_xor(arrived, np.uint8(fault.flip), out=arrived)
    return Completion(ticket.ticket, tuple(reported[extent] for extent in sorted(reported)))


def seeded_faults(
    seed: int, errno_share: float = 0.0, cut_share: float = 0.0, flip_share: float = 0.0
) -> Callable[[int, int], Fault | None]:
    """Faults that strike these shares of the extents, decided by seed, ticket and extent alone."""

    def fault(ticket: int, extent: int) -> Fault | None:
        bits = _mix_bits(seed, ticket, extent)
        share = bits / 2**64
        if share < errno_share:
            return Fault(errno=errno.EIO)
        if share < errno_share + cut_share:
            return Fault(cut=1 + bits % 4096)
        if share < errno_share + cut_share + flip_share:
            return Fault(flip=1 + bits % 255)
        return None

    return fault


def seeded_holds(seed: int, polls_max: int) -> Callable[[int], int]:
    """Reports held back for 0 to `polls_max` polls, decided by seed and ticket alone."""
    return lambda ticket: _mix_bits(seed, ticket) % (polls_max + 1)


def _mix_bits(*values: int) -> int:
    """Return 64 bits that depend on every bit of the values (the finalizer of SplitMix64,
    chained)."""
    mask = (1 << 64) - 1
    state = 0
    for value in values:
        state = (state + value + 0x9E3779B97F4A7C15) & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state
