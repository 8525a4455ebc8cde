"""A modelled broker, which drives the shipped session, and oracles of what it leases."""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import replace
from typing import Any

from penstock import limits
from penstock.sharing import Resources
from penstock.sharing.connection import ConnectionLost, Message, WireError
from penstock.sharing.lease import Grant, Lease, Terms
from tests.virtual.broker_process import VirtualEnd, VirtualProcess
from tests.virtual.broker_scenario import S
from tests.virtual.node import require

ROUNDING = 1 + 1e-6
"""Part by which sums of shares may differ by rounding."""
_user = 1000


class VirtualBroker(VirtualProcess):
    """A broker: its session, driven as `penstock.sharing.Broker` does."""

    def __init__(self, cluster: Any, number: int) -> None:
        super().__init__(cluster, f"broker {number}")
        self.number = number
        self.callers: dict[int, VirtualEnd] = {}
        self.backlog: deque[VirtualEnd] = deque()
        self.leased: dict[int, Lease] = {}
        self.granted: dict[int, Grant] = {}
        self.sent_ns: dict[int, int] = {}
        self._turns = 0
        self._busy_ns: int | None = None
        self._reports: dict[int, tuple[float, float]] = {}
        self._wake = 0
        self._ready_ns = 0
        self.share: Any = None
        self.upper_end: VirtualEnd | None = None
        self.has_leased = False

    def start(self) -> None:
        scenario, parts = self.cluster.scenario, self.cluster.parts
        self.is_alive = True
        self.disturb(0)
        rate = scenario.bytes_per_s or math.inf
        is_storage = self.number == 0
        own = Resources(
            cores=1.0 if is_storage else scenario.cores,
            bytes_per_s=rate,
        )
        objective = "utilisation" if is_storage else scenario.objective
        floors = 1.0 if is_storage else scenario.floors
        self.upper_end, self.share, self.has_leased = None, None, False
        if scenario.is_federated and not is_storage:
            tenant = parts.Tenant(
                f"host {self.number}", 0, "broker", call=self._call_upper, where="storage"
            )
            rate *= scenario.own_part
            self.share = parts.HostShare(tenant, "storage", rate)
            own = replace(own, bytes_per_s=rate)
        self.session = parts.BrokerSession(parts.Ledger(own, objective, floors), self.share)
        self.callers, self.backlog = {}, deque()
        self.leased, self.granted, self.sent_ns, self._reports = {}, {}, {}, {}
        self._ready_ns, self._busy_ns = 0, None
        self.arouse()

    def _call_upper(self) -> VirtualEnd | None:
        self.upper_end = self.cluster.connect(self, self.cluster.brokers[0], self.number)
        return self.upper_end

    def arouse(self) -> None:
        """Take a turn as soon as it may."""
        self._sleep(max(0, self._ready_ns - self.cluster.queue.now_ns))

    def _sleep(self, delay_ns: float) -> None:
        self._wake += 1
        wake = self._wake
        self.later(delay_ns, lambda: self._turn() if wake == self._wake else None)

    def _turn(self) -> None:
        """Do what `Broker.serve` does between two naps."""
        session = self.session
        while self.backlog:
            self._accept(self.backlog.popleft())
        for number, end in list(self.callers.items()):
            if end.inbox or end.is_lost:
                self._attend(number, end)
            if number in self.callers and end.unsent:
                self._send(number, None)
            self._perform()
        session.tick(self.now_s)
        members = self._list_members()
        self._perform()
        self._turns += 1
        # What a member had whose connection is lost while leases are sent is divided next time.
        self._check(is_divided=members == self._list_members())
        wait_s = session.wait_s
        nap_ns = limits.broker_nap_ns
        self._ready_ns = self.cluster.queue.now_ns + nap_ns
        if self.backlog or any(end.inbox or end.is_lost for end in self.callers.values()):
            self._sleep(nap_ns)
        elif wait_s is not None:
            self._sleep(nap_ns + wait_s * 1e9)

    def _accept(self, end: VirtualEnd) -> None:
        if end.other.is_closed and not end.inbox:
            return
        if self.number == 0:
            number = self.session.meet_stranger(self.now_s, f"host {end.number}")
        else:
            number = self.session.meet(self.now_s, _user)
        require(isinstance(number, int), f"{self.name} refuses a connection: {number}")
        require(number not in self.callers, f"{self.name} uses number {number} twice")
        end.number = number
        self.callers[number] = end

    def _attend(self, number: int, end: VirtualEnd) -> None:
        try:
            messages = end.receive()
        except WireError as wrong:
            self.session.reject(number, wrong.why, self.now_s)
            return
        except ConnectionLost:
            self.session.lose(number, self.now_s)
            return
        if messages:
            self.session.prove(number)
        for message in messages:
            self._take_note(number, message)
            self.session.hear(number, message, self.now_s)

    def _take_note(self, number: int, message: Message) -> None:
        """Note when a member was heard, and how long it took since it was heard before."""
        if message["say"] == "join":
            self._reports[number] = self.now_s, 0.0
        elif message["say"] == "report" and number in self._reports:
            before_s, gap_s = self._reports[number]
            self._reports[number] = self.now_s, max(self.now_s - before_s, gap_s / 2)

    def _perform(self) -> None:
        while self.session.actions:
            action = self.session.actions.popleft()
            if isinstance(action, self.cluster.parts.SendMessage):
                self._send(action.caller, action.message)
            else:
                end = self.callers.pop(action.caller)
                self.leased.pop(action.caller, None)
                self.granted.pop(action.caller, None)
                end.close()
                if end in self.ends:
                    self.ends.remove(end)

    def _send(self, number: int, message: Message | None) -> None:
        end = self.callers.get(number)
        if end is None:
            return
        try:
            if message is None:
                end.flush()
            else:
                self._note(number, message)
                end.send(message)
        except ConnectionLost:
            self.session.lose(number, self.now_s)

    def _note(self, number: int, message: Message) -> None:
        now_ns = self.cluster.queue.now_ns
        self.cluster.trace(f"{self.name} to {number}: {message}")
        if message["say"] == "lease":
            self.cluster.leases += 1
            self.leased[number], self.sent_ns[number] = Lease.of(message), now_ns
        elif message["say"] == "grant" and message["id"] == 0:
            self.granted[number] = Grant.of(message)

    # -- oracles -----------------------------------------------------------------------------------

    def _check(self, is_divided: bool) -> None:
        """Look at all that is leased and granted now."""
        has_state = is_divided and not self._turns % 8
        state = self.session.state(self.now_s) if has_state else None
        there = self.session.ledger.resources
        members = self._list_members()
        # Who has left may still be connected.
        self.leased = {key: lease for key, lease in self.leased.items() if key in members}
        moving = {key[0] for key in self.session.ledger.transfers._open if not key[1]}
        self.granted = {key: grant for key, grant in self.granted.items() if key in moving}
        for number in members:
            require(number in self.leased, f"{self.name}: member {number} has no lease")
        for name, held in (
            ("cores", [lease.cores for lease in self.leased.values()]),
            ("floors of cores", [lease.floor_cores for lease in self.leased.values()]),
        ):
            require(
                math.fsum(held) <= there.cores * ROUNDING,
                f"{self.name} leases {name} of {math.fsum(held):g}, there are {there.cores:g}",
            )
        if there.bytes_per_s < math.inf:
            for name, rates in (
                ("rates", [lease.bytes_per_s for lease in self.leased.values()]),
                ("floors", [lease.floor_bytes_per_s for lease in self.leased.values()]),
            ):
                of_grant = "bytes_per_s" if name == "rates" else "floor_bytes_per_s"
                rates += [getattr(grant, of_grant) for grant in self.granted.values()]
                require(None not in rates, f"{self.name}: {name} without a limit")
                total = math.fsum(rate for rate in rates if rate is not None)
                require(
                    total <= there.bytes_per_s * ROUNDING,
                    f"{self.name} leases {name} of {total:g}, there are {there.bytes_per_s:g}",
                )
        if state is not None:
            self._check_state(state, there)
        if not self.session.ledger.is_busy:
            self._busy_ns = None
        elif self._busy_ns is None:
            self._busy_ns = self.cluster.queue.now_ns
        if self.share is not None:
            self._check_share()
            self.cluster.check_total()

    def _list_members(self) -> set[int]:
        return set(self.session.ledger._owners)

    def _check_state(self, state: dict[str, Any], there: Resources) -> None:
        json.dumps(state, allow_nan=False)
        members = self._list_members()
        require(
            members <= set(self.callers),
            f"{self.name}: members {sorted(members - set(self.callers))} have no connection",
        )
        jobs = state["jobs"]
        for job in jobs:
            if job["standing"] != "measured":
                require(
                    math.isclose(job["cores"], there.cores / len(jobs), rel_tol=1e-6),
                    f"{self.name}: job {job['job']} is {job['standing']} and has"
                    f" {job['cores']:g} of {there.cores:g} cores, of {len(jobs)} jobs",
                )
            active = [member["cores"] for member in job["members"] if not member["silent"]]
            require(
                max(active, default=0) <= min(active, default=0) * ROUNDING,
                f"{self.name}: active members of {job['job']} have {active} cores",
            )
        if not self.cluster.has_nonsense and self.calm_ns < self.cluster.queue.now_ns:
            self._check_silence(jobs)

    def _check_silence(self, jobs: list[dict[str, Any]]) -> None:
        """Those count as silent who were, for as long as a lease, or twice as long as of late."""
        expected = []
        for number in sorted(self._list_members()):
            heard_s, gap_s = self._reports[number]
            patience_s = min(Terms().patience_s, max(Terms().lease_s, 2 * gap_s))
            expected.append((self.now_s - heard_s, patience_s))
        silent: dict[float, set[bool]] = {}  # members that were heard at one time differ
        for member in (member for job in jobs for member in job["members"]):
            silent.setdefault(member["heard_s"], set()).add(member["silent"])
        for waited_s, patience_s in expected:
            if abs(waited_s - patience_s) > 1:  # a moment passes until it is looked at
                is_silent = waited_s > patience_s
                require(
                    is_silent in silent[waited_s],
                    f"{self.name}: one that was heard {waited_s:.1f} s ago, and has"
                    f" {patience_s:.1f} s, {'is not' if is_silent else 'is'} silent",
                )

    def _check_share(self) -> None:
        """A host that is undisturbed, as is the broker above, holds what it was leased last."""
        end, above = self.upper_end, self.cluster.brokers[0]
        self.has_leased = self.has_leased or self.share.state()["leased"]
        if end is None or end.is_closed or not self.session.ledger.is_busy:
            return
        assert self._busy_ns is not None
        since_ns = self.cluster.queue.now_ns - max(self.calm_ns, above.calm_ns, self._busy_ns)
        if since_ns > 15 * S:
            require(self.share.state()["leased"], f"{self.name} has no lease of the storage")
