"""Brokers, the jobs that they lease to, and transfers, in one thread and in virtual time.

Each broker drives the session that production drives (`penstock.sharing.broker_session`), each
loader a `Tenant`, each host of several a `HostShare`, each transfer a `TransferSession`. Sockets
are modelled: lines come whole and in order, late or not at all, and an end is noticed late. Every
process has a clock of its own, which may go faster, slower, or jump ahead.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from penstock.sharing.lease import Terms
from penstock_sim.event_queue import EventQueue
from tests.virtual.broker_host import ROUNDING, VirtualBroker
from tests.virtual.broker_member import VirtualMember
from tests.virtual.broker_process import SharingParts, VirtualEnd, VirtualProcess
from tests.virtual.broker_scenario import (
    CHAOS_NS,
    MS,
    BrokerFault,
    BrokerFaultKind,
    BrokerScenario,
    S,
)
from tests.virtual.node import ScenarioError, require

_calm_ns = 75 * S
"""Time without faults after which all is as it should be: the longest patience, and a doubt."""
_dead_ns = 10 * S
"""Time after which a side of a connection notices that the other does not answer."""
_events_max = 400_000


class BrokerResult(NamedTuple):
    """Counts of a run."""

    virtual_ns: int
    events: int
    leases: int
    transfers: int
    failures: int


class BrokerCluster:
    """The parts of a run. parts: the classes that decide."""

    def __init__(
        self,
        scenario: BrokerScenario,
        trace: Callable[[str], None] | None = None,
        parts: SharingParts | None = None,
    ) -> None:
        self.scenario = scenario
        self.parts = SharingParts() if parts is None else parts
        self.queue = EventQueue()
        self.draw = random.Random(f"broker run {scenario.seed}")
        self._trace_line = trace
        self._cuts: dict[tuple[int, bool], int] = {}
        self.leases = self.transfers = 0
        self._failures = 0
        self.malformed: list[VirtualEnd] = []
        self._has_left = False
        numbers = range(0 if scenario.is_federated else 1, scenario.hosts + 1)
        self.brokers = {number: VirtualBroker(self, number) for number in numbers}
        self.members = {
            (number, rank): VirtualMember(self, number, job, rank)
            for number, job in enumerate(scenario.jobs)
            for rank in range(job.members)
        }
        kinds = {fault.kind for fault in scenario.faults}
        self.is_roomy = scenario.room > 100
        self.has_nonsense = bool(kinds & {BrokerFaultKind.LIE, BrokerFaultKind.BABBLE})
        of_hosts = any(
            fault.job < 0 and fault.rank and fault.kind is not BrokerFaultKind.CAPACITY
            for fault in scenario.faults
        )
        self._is_total_exact = not (of_hosts or kinds & {BrokerFaultKind.CUT, BrokerFaultKind.JUMP})

    def run(self) -> BrokerResult:
        """Run until faults have ended, and all is freed; raise ScenarioError for what is wrong."""
        for broker in self.brokers.values():
            broker.start()
        for member in self.members.values():
            self.queue.add(member.job.begin_ns, member.start)
            if member.job.end_ns:
                self.queue.add(member.job.end_ns, member.leave)
        for fault in self.scenario.faults:
            self.queue.add(fault.at_ns, partial(self._befall, fault))
        self._run_until(CHAOS_NS + _calm_ns)
        while any(member.is_transferring for member in self.members.values()):
            require(self.queue.now_ns < CHAOS_NS + self._transfers_ns, "a transfer does not end")
            self._run_until(self.queue.now_ns + 5 * S)
        self._check_calm()
        for member in self.members.values():
            member.leave()
        self._run_until(self.queue.now_ns + 5 * S)
        self._check_end()
        return BrokerResult(
            self.queue.now_ns, self.queue.made, self.leases, self.transfers, self._failures
        )

    @property
    def _transfers_ns(self) -> int:
        """Time without faults in which all transfers end: one and a half times what the
        part of the storage takes that they have at least, and some more."""
        scenario = self.scenario
        changes = any(fault.kind is BrokerFaultKind.CAPACITY for fault in scenario.faults)
        least = 0.1 if changes else 1.0  # of the storage
        part = Terms().transfer_part * min(least, 1 / scenario.hosts, scenario.own_part)
        rate = scenario.bytes_per_s * part or 1e9
        total = sum(job.members * job.transfer_bytes for job in scenario.jobs if not job.holds)
        return int(1.5 * total / rate * S) + 2 * _calm_ns

    def trace(self, text: str) -> None:
        if self._trace_line is not None:
            self._trace_line(f"{self.queue.now_ns / MS:12.3f} ms  {text}")

    def guard(self, name: str, call: Callable[[], None]) -> None:
        """Make a call of a process; an exception in it ends the process, which none may do."""
        try:
            call()
        except ScenarioError:
            raise
        except Exception as error:
            raise ScenarioError(f"{name} ends by {type(error).__name__}: {error}") from error

    def _run_until(self, until_ns: int) -> None:
        is_over = False

        def end() -> None:
            nonlocal is_over
            is_over = True

        self.queue.add(until_ns, end)
        while not is_over:
            require(self.queue.made < _events_max, "the run does not end")
            self.queue.step()

    # -- connections -------------------------------------------------------------------------------

    def connect(
        self, caller: VirtualProcess, called: VirtualBroker, host: int
    ) -> VirtualEnd | None:
        """Make a connection to a broker; over the network of a host, or within one (0)."""
        if not host and not called.is_alive:
            return None
        near, far = VirtualEnd(self, host, True), VirtualEnd(self, host, False)
        near.other, far.other = far, near
        far.number = host
        caller.ends.append(near)
        far.on_arrival = called.arouse
        if isinstance(caller, VirtualBroker):
            near.on_arrival = lambda: None  # it looks at each turn
        life = called.life

        def arrive() -> None:
            if near.is_closed or near.is_lost:
                return
            if self._is_cut(host):
                self.queue.add_in(100 * MS, arrive)
            elif called.is_alive and called.life == life:
                called.ends.append(far)
                called.backlog.append(far)
                called.arouse()
            else:
                near.expire()

        if not host:
            arrive()
        else:
            self.queue.add(self.find_arrival_ns(host, True), arrive)
            self._watch(near, far, host)
        return near

    def _watch(self, near: VirtualEnd, far: VirtualEnd, host: int) -> None:
        """Let both sides notice when a connection has been cut for long."""
        began_ns: int | None = None

        def look() -> None:
            nonlocal began_ns
            if near.is_closed and far.is_closed:
                return
            if not self._is_cut(host):
                began_ns = None
            elif began_ns is None:
                began_ns = self.queue.now_ns
            elif self.queue.now_ns - began_ns >= _dead_ns:
                for end in (near, far):
                    self.queue.add_in(self.draw.randrange(2 * S), end.expire)
                return
            self.queue.add_in(S, look)

        self.queue.add_in(S, look)

    def _is_cut(self, host: int) -> bool:
        now_ns = self.queue.now_ns
        return any(self._cuts.get((host, side), 0) > now_ns for side in (True, False))

    def find_arrival_ns(self, host: int, is_caller: bool) -> int:
        """Return the time at which a message that is sent now arrives."""
        delay_ns = 1 + int(self.scenario.delay_ns * self.draw.random())
        cut_ns = self._cuts.get((host, is_caller), 0) if host else 0
        return max(self.queue.now_ns, cut_ns) + delay_ns

    # -- faults ------------------------------------------------------------------------------------

    def _befall(self, fault: BrokerFault) -> None:
        kind, length_ns, now_ns = fault.kind, fault.length_ns, self.queue.now_ns
        process: Any
        if fault.job < 0:
            process = self.brokers[fault.rank]
        else:
            process = self.members[fault.job, fault.rank]
        if not process.is_alive:
            return
        self._failures += 1
        self.trace(str(fault))
        process.disturb(length_ns)
        match kind:
            case BrokerFaultKind.KILL:
                process.kill()
                self.queue.add_in(length_ns, partial(self._restart, process))
            case BrokerFaultKind.STOP:
                process.stopped_until_ns = max(process.stopped_until_ns, now_ns + length_ns)
            case BrokerFaultKind.SLOW:
                process.slow_until_ns, process.slow_ns = now_ns + length_ns, fault.extra
                process.disturb(length_ns + 2 * fault.extra)
            case BrokerFaultKind.JUMP:
                process.jump(length_ns)
                process.disturb(5 * S)
            case BrokerFaultKind.CUT:
                for side, bit in ((True, 1), (False, 2)):
                    if fault.extra & bit:
                        self._cuts[fault.rank, side] = now_ns + length_ns
            case BrokerFaultKind.LIE:
                process.lying_until_ns = now_ns + length_ns
            case BrokerFaultKind.BABBLE:
                process.babble(fault.extra)
            case BrokerFaultKind.NEED:
                draw = random.Random(fault.extra)
                needs = tuple(need * 10 ** draw.uniform(-2, 2) for need in process.needs)
                for (job, _), member in self.members.items():
                    if job == fault.job:
                        member.needs = needs
            case BrokerFaultKind.CAPACITY:
                there = process.session.ledger.resources
                if process.share is None and fault.rank and there.bytes_per_s < math.inf:
                    rate = self.scenario.bytes_per_s * random.Random(fault.extra).uniform(0.1, 3)
                    process.session.ledger.resources = replace(there, bytes_per_s=rate)

    def _restart(self, process: VirtualBroker | VirtualMember) -> None:
        is_over = isinstance(process, VirtualMember) and process.job.end_ns
        if process.is_alive or (is_over and self.queue.now_ns >= is_over):
            return
        self.trace(f"{process.name} begins again")
        process.start()

    # -- oracles -----------------------------------------------------------------------------------

    def check_total(self) -> None:
        """Hosts that were ever leased a part of the storage take no more of it than there is, if
        all have heard what they were told."""
        hosts = [broker for number, broker in self.brokers.items() if number]
        self._has_left |= any(
            broker.has_leased and not broker.session.ledger.is_busy for broker in hosts
        )
        if not self._is_total_exact or self._has_left:
            return
        for broker in hosts:
            end = broker.upper_end
            if end is not None and not end.is_closed and not end.other.is_heard:
                return
        taken = [broker.share.state()["bytes_per_s"] for broker in hosts if broker.has_leased]
        require(
            math.fsum(taken) <= self.scenario.bytes_per_s * ROUNDING,
            f"hosts take {taken} bytes/s, there are {self.scenario.bytes_per_s:g}",
        )

    def _check_calm(self) -> None:
        """Long after the last fault, those who said what is no message have been ended, and
        all members hold leases, which add up to what there is; one whose step takes longer than the
        two before counts as silent for a while."""
        require(all(end.other.is_closed for end in self.malformed), "who babbles stays")
        for broker in self.brokers.values():
            if not broker.number:
                continue
            members = [member for member in self.members.values() if member.home is broker]
            there = [member for member in members if member.is_alive]
            for member in there:
                require(member.lease is not None, f"{member.name} has no lease at the end")
            if there and all(member.job.step_ns <= S for member in there):
                # What members hold can be of two divisions, while leases are on their way.
                cores = math.fsum(lease.cores for lease in broker.leased.values())
                require(
                    math.isclose(cores, self.scenario.cores, rel_tol=1e-6),
                    f"{broker.name} leases {cores:g} of {self.scenario.cores:g} cores at the end",
                )

    def _check_end(self) -> None:
        for broker in self.brokers.values():
            state = broker.session.state(broker.now_s)
            require(not state["jobs"], f"{broker.name} keeps jobs: {state['jobs']}")
            require(not state["transfers"], f"{broker.name} keeps {state['transfers']}")
            require(not broker.session.ledger.is_busy, f"{broker.name} is busy for nobody")
            require(not broker.callers, f"{broker.name} keeps connections")
        require(
            all(end.is_closed for member in self.members.values() for end in member.ends),
            "a member keeps connections",
        )


def run_broker_scenario(
    scenario: BrokerScenario,
    trace: Callable[[str], None] | None = None,
    parts: SharingParts | None = None,
) -> BrokerResult:
    """Run a scenario; raise ScenarioError for what is wrong."""
    return BrokerCluster(scenario, trace, parts).run()
