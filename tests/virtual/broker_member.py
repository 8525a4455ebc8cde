"""Modelled loaders and their transfers, which drive the shipped clients, and oracles of what they
believe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from penstock import limits
from penstock.sharing.connection import ConnectionLost, Message
from penstock.sharing.job_state import JobProfile, Share, predict
from penstock.sharing.lease import Grant, JobMeasurement, Lease, Report
from tests.virtual.broker_process import VirtualEnd, VirtualProcess
from tests.virtual.broker_scenario import CHAOS_NS, MS, BrokerJob, S
from tests.virtual.node import require

_absurd = (math.nan, math.inf, -1.0, 0.0, 1e-300, 1e-12, 1.0, 1e18, 1e300, "x", None, True, [1])
_malformed = 4
"""Lines below that are no messages, and end their connection."""
_babble = (
    b"nonsense",
    b"{}",
    b'{"say":7}',
    b"x" * (limits.broker_line_bytes + 1),
    b'{"say":"report"}',
    b'{"say":"join"}',
    b'{"say":"leave"}',
    b'{"say":"moved","id":7,"bytes":1}',
    b'{"say":"transferred","id":-1}',
    b'{"say":"transfer","id":3,"job":"x","bytes":1e18,"bytes_per_s":1}',
    b'{"say":"transfer","id":4,"job":"x","bytes":NaN}',
    b'{"say":"moved","id":3,"bytes":1e18}',
    b'{"say":"watch"}',
)


@dataclass
class _Heard:
    """The lease or grant that was heard last on a connection, kept apart from the code in test."""

    terms: Lease | Grant | None = None
    ends_s: float = math.inf


class VirtualMember(VirtualProcess):
    """A loader of a job, and its transfer."""

    def __init__(self, cluster: Any, number: int, job: BrokerJob, rank: int) -> None:
        super().__init__(cluster, f"job {number} member {rank}")
        self.number, self.job, self.rank = number, job, rank
        self.home = cluster.brokers[job.host]
        self.needs = (job.samples_per_s, job.cpu_s, job.storage_bytes)
        self.lying_until_ns = 0
        self.end: VirtualEnd | None = None
        self.heard = _Heard()
        self.lease: Lease | None = None
        self.transfer: VirtualTransfer | None = None
        self.has_transferred = not job.transfer_bytes
        self.begun_ns = 0

    @property
    def gap_ns(self) -> float:
        """Longest time between two steps of the loader."""
        return 1.5 * self.job.step_ns

    @property
    def is_transferring(self) -> bool:
        """True while it has a transfer that ends by itself."""
        return self.is_alive and self.transfer is not None and not self.job.holds

    def start(self) -> None:
        self.is_alive = True
        self.begun_ns = self.cluster.queue.now_ns
        self.disturb(0)
        self.end, self.heard, self.lease, self.transfer = None, _Heard(), None, None
        self._tenant = self.cluster.parts.Tenant(
            f"job {self.number}", self.rank, "train", call=self._call, where=self.home.name
        )
        self.later(0, self._step)
        if not self.has_transferred:
            begin_ns = max(0, self.job.transfer_ns - self.cluster.queue.now_ns)
            self.later(begin_ns, self.begin_transfer)

    def leave(self) -> None:
        """End as a program does that is done."""
        if self.is_alive:
            if self.transfer is not None:
                self.transfer.leave()
            self._tenant.close()
            self.kill()

    def begin_transfer(self) -> None:
        self.transfer = VirtualTransfer(self)
        self.transfer.ask()

    def _call(self) -> VirtualEnd | None:
        self.heard = _Heard()
        self.end = self.cluster.connect(self, self.home, 0)
        if self.end is not None:
            self.end.on_heard = self._hear
            self.end.spoil = self._spoil
        return self.end

    def _hear(self, message: Message) -> None:
        if message["say"] == "lease":
            self.heard = _Heard(Lease.of(message), self.now_s + message["lasts_s"])
        elif message["say"] == "refused":
            self.cluster.trace(f"{self.name} is refused: {message['why']}")

    def _spoil(self, message: Message) -> Message:
        """Put absurd numbers into a report."""
        draw, now_ns = self.cluster.draw, self.cluster.queue.now_ns
        if message["say"] == "report" and now_ns < self.lying_until_ns:
            for part in ("profile", "measured"):
                if message[part] is not None:
                    message[part] = {
                        name: draw.choice(_absurd) if draw.random() < 0.3 else value
                        for name, value in message[part].items()
                    }
                    if draw.random() < 0.05:
                        message[part] = draw.choice(_absurd)
            if draw.random() < 0.5:  # all of them such as may be
                message["measured"] = dict.fromkeys(
                    ("samples_per_s", "cores", "bytes_per_s", "samples"), 1e18
                )
        return message

    def babble(self, extra: int) -> None:
        """Say something that is no message, or none that may be said now."""
        if self.end is not None and not self.end.is_closed:
            line, end = _babble[extra % len(_babble)], self.end
            self.cluster.trace(f"{self.name} says {line[:60]!r}")
            try:
                end.send_line(line)
            except ConnectionLost:
                return
            if extra % len(_babble) < _malformed:
                self.cluster.malformed.append(end)

    def _measure(self) -> Report:
        samples_per_s, cpu_s, storage_bytes = self.needs
        told = {"samples_per_s": samples_per_s, "cpu_s": cpu_s, "storage_bytes": storage_bytes}
        share, lease = Share(workers=1e6), self.lease
        if lease is not None:
            rate = math.inf if lease.bytes_per_s is None else lease.bytes_per_s
            share = Share(workers=lease.cores, bytes_per_s=rate)
        reached = predict(JobProfile(**told), share)
        if self.cluster.scenario.objective == "makespan" and self.rank % 2 == 0:
            told["remaining_samples"] = 1e6
        measured = JobMeasurement(
            samples_per_s=reached.samples_per_s,
            cores=reached.samples_per_s * cpu_s,
            bytes_per_s=reached.samples_per_s * storage_bytes,
            stall=max(0.0, reached.idle),
        )
        return Report(profile=told, measured=measured)

    def _step(self) -> None:
        now_s, was_open = self.now_s, self.end is not None and not self.end.is_closed
        self.lease = self._tenant.step(now_s, self._measure)
        is_open = self.end is not None and not self.end.is_closed
        expected = None
        if is_open and isinstance(self.heard.terms, Lease):
            expected = self.heard.terms if now_s < self.heard.ends_s else self.heard.terms.ended
        if is_open or not was_open:
            require(
                self.lease == expected,
                f"{self.name} takes {self.lease} for its lease, and was told {expected}",
            )
        self._check_current()
        delay_ns = self.job.step_ns * self.cluster.draw.uniform(0.5, 1.5)
        self.later(delay_ns, self._step)

    def _check_current(self) -> None:
        """A member that is undisturbed, as is its broker, holds what it was leased last."""
        now_ns, delay_ns = self.cluster.queue.now_ns, self.cluster.scenario.delay_ns
        grace_ns = (limits.broker_retry_s + 1.5) * S * 1.05 + 4 * self.gap_ns + 6 * delay_ns
        if now_ns - max(self.calm_ns, self.home.calm_ns) < grace_ns:
            return
        require(self.lease is not None, f"{self.name} has no lease")
        assert self.end is not None
        far = self.end.other
        sent = self.home.leased.get(far.number)
        if far.is_heard and self.home.sent_ns.get(far.number, 0) < now_ns:
            require(
                self.lease == sent,
                f"{self.name} goes by {self.lease}, and the broker's last word was {sent}",
            )


class VirtualTransfer:
    """A transfer of a member, which waits as `TransferPermit` does."""

    def __init__(self, member: VirtualMember) -> None:
        self.member, self.cluster = member, member.cluster
        self._left = member.job.transfer_bytes
        self._began_ns = self.cluster.queue.now_ns
        self._end: VirtualEnd | None = None
        self._heard = _Heard()
        self._asked_s = self._settled_s = member.now_s
        self._credit = 0.0
        self._wake = 0
        self._own = (self.cluster.scenario.bytes_per_s or 1e9) * 0.5
        self._piece = max(1, member.job.transfer_bytes // member.job.pieces)
        self._session = self.cluster.parts.TransferSession(
            self._left, f"job {member.number}", None, self._call, member.home.name, member.now_s
        )

    def leave(self) -> None:
        self._session.close(self.member.now_s)
        is_closed = self._end is None or self._end.is_closed
        require(is_closed, f"{self.member.name} keeps the connection of a transfer")
        self.member.transfer = None

    def _call(self) -> VirtualEnd | None:
        self._heard, self._asked_s = _Heard(), self.member.now_s
        self._end = self.cluster.connect(self.member, self.member.home, 0)
        if self._end is not None:
            self._end.on_heard = self._hear
            self._end.on_arrival = lambda: self._sleep(0) if self._is_waiting else None
        return self._end

    def _hear(self, message: Message) -> None:
        if message["say"] == "grant":
            self._heard = _Heard(Grant.of(message), self.member.now_s + message["lasts_s"])

    _is_waiting = False

    def _sleep(self, delay_ns: float) -> None:
        self._wake += 1
        wake = self._wake

        def ask() -> None:
            if wake == self._wake and self.member.transfer is self:
                self.ask()

        self.member.later(delay_ns, ask)

    def _expect_rate(self, now_s: float) -> float | None:
        """Return the rate that holds by what was heard."""
        grant = self._heard.terms
        if self._end is None or self._end.is_closed:
            return None
        if not isinstance(grant, Grant):
            return 0.0 if now_s - self._asked_s < limits.grant_wait_s else None
        return grant.bytes_per_s if now_s < self._heard.ends_s else grant.floor_bytes_per_s

    def ask(self) -> None:
        if not self.member.is_alive:  # a message has come for a process that was killed
            return
        self._is_waiting = False
        member, now_s = self.member, self.member.now_s
        was_open = self._end is not None and not self._end.is_closed
        wait_s = self._session.find_wait_s(now_s)
        rate = self._expect_rate(now_s)
        if rate is None:
            self._credit = 0.0
        else:
            earned = rate * (now_s - self._settled_s)
            self._credit = min(self._credit + earned, 0.1 * rate)
        self._settled_s = now_s
        self._check_current(now_s)
        is_open = self._end is not None and not self._end.is_closed
        if wait_s is None and is_open == was_open:
            may = rate is None or (rate > 0 and self._credit >= -1e-6 * self._piece)
            require(may, f"{member.name} transfers at {rate} bytes/s, and owes {-self._credit:g}")
        elif wait_s is not None:
            require(0 <= wait_s <= limits.grant_wait_s, f"{member.name} waits for {wait_s} s")
            may_not = rate is not None and (rate == 0 or self._credit < 1e-6 * self._piece)
            require(may_not, f"{member.name} waits, and may transfer at {rate} bytes/s")
        if wait_s is not None or member.job.holds:
            self._is_waiting = True
            self._sleep(max(MS, (wait_s or 0.5) * 1e9))
            return
        piece = min(self._piece, self._left)
        self._session.move(piece, now_s)
        self._credit -= piece
        self._left -= piece
        if self._left:
            self._sleep(max(MS, piece / self._own * 1e9))
            return
        self.cluster.transfers += 1
        self.leave()
        if self.cluster.queue.now_ns < CHAOS_NS * 3 // 4:
            member.later(S, member.begin_transfer)
        else:
            member.has_transferred = True

    def _check_current(self, now_s: float) -> None:
        """A transfer that is undisturbed, as is its broker, goes by what it was granted last."""
        home, now_ns = self.member.home, self.cluster.queue.now_ns
        quiet_ns = now_ns - max(self.member.calm_ns, home.calm_ns, self._began_ns)
        if quiet_ns < 5 * S + 6 * self.cluster.scenario.delay_ns or not self.cluster.is_roomy:
            return
        is_new = now_s - self._asked_s < limits.grant_wait_s  # connected after a long piece
        require(
            self._end is not None
            and not self._end.is_closed
            and (is_new or self._heard.terms is not None),
            f"{self.member.name} transfers without a grant",
        )
        if self._heard.terms is None:
            return
        require(now_s < self._heard.ends_s, f"{self.member.name} has a grant that has ended")
