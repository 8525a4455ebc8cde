"""Transfers of checkpoints and data through storage that loaders read: who goes first. Pure.

Bandwidth is divided among jobs whenever a transfer starts or ends: the job that transfers have
slowed down most goes first, and the bandwidth that it cannot take is the next one's. It is the rule
min-dilation of Gainaru et al., Scheduling the I/O of HPC Applications under Congestion (IPDPS
2015), which our own comparison of their rules favours (`make bench-schedules`, `penstock_sim`).
Jobs have equal weights, as for loaders' shares; then the rule is as efficient as any, and has the
least dilation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import limits
from ..errors import UsageError
from .lease import Grant, Terms

Key = tuple[int, int]
"""Connection of the caller, and number of the transfer on it."""

_turn_s = 10.0
"""Longest interval between two decisions about the order of jobs."""
_prior_s = 60.0
"""Undelayed time credited to a job before its first transfer; else newcomers would always go
first."""
_memory_s = 3600.0
"""Approximate time for which a job's delay is remembered."""
_slow_bytes_per_s = 2.0**20
"""Rate that a transfer could always take: a stuck transfer holds no more."""
_slow_windows = 2
_windows_s = 0.2
"""Shortest time between two reports of moved bytes from which a rate is computed."""


def grant_in_order(
    wanted: Sequence[float], order: Sequence[int], bandwidth: float, *, divisible: bool = True
) -> list[float]:
    """Grant bytes/s to jobs in an order: to each as much as it could take, and no more together
    than `bandwidth`.

    divisible:  True if the last job may get a part of the rate that it could take, so that nothing
                remains while a job could take it; else it waits.
    """
    rates, free = [0.0] * len(wanted), bandwidth
    for number in order:
        rate = min(wanted[number], bandwidth)
        if divisible or rate <= free * (1 + 1e-9):
            rates[number] = min(rate, free)
            free -= rates[number]
    return rates


def grant_fairly(wanted: Sequence[float], bandwidth: float) -> list[float]:
    """Grant bytes/s to all jobs at once, max-min fair: as `grant_in_order` bounds them."""
    rates, free = [0.0] * len(wanted), bandwidth
    ascending = sorted(range(len(wanted)), key=wanted.__getitem__)
    for unserved, number in zip(range(len(wanted), 0, -1), ascending, strict=True):
        rates[number] = min(wanted[number], free / unserved)
        free -= rates[number]
    return rates


@dataclass(slots=True)
class _Writer:
    """A job that transfers, and its delay up to `settled_s`.

    age_s, delay_s:  its run time, and the time its transfers have lost by sharing the storage.
    """

    settled_s: float
    age_s: float = _prior_s
    delay_s: float = 0.0
    open: dict[Key, _Transfer] = field(default_factory=dict)

    @property
    def progress(self) -> float:
        return 1 - self.delay_s / self.age_s

    def sum_open(self, name: str) -> float:
        """Sum a field of the transfers under way."""
        return math.fsum(getattr(transfer, name) for transfer in self.open.values())

    def settle(self, now_s: float, bandwidth: float) -> None:
        """Account for the time since `settled_s`."""
        spent_s = max(0.0, now_s - self.settled_s)
        self.settled_s = max(now_s, self.settled_s)
        self.age_s += spent_s
        if self.open and bandwidth < math.inf:
            wanted = min(bandwidth, self.sum_open("could"))
            self.delay_s += spent_s * max(0.0, 1 - self.sum_open("rate") / wanted)
        if self.age_s > _memory_s:
            self.delay_s *= _memory_s / self.age_s
            self.age_s = _memory_s


@dataclass(slots=True)
class _Transfer:
    """A transfer under way.

    could:    estimate of the bytes/s that it could take.
    taken:    bytes/s that it took recently.
    heard_s:  time of the last report of its bytes `moved`.
    slow:     consecutive windows in which it took much less than its grant.
    """

    bytes: float
    could: float
    heard_s: float
    rate: float = 0.0
    taken: float = 0.0
    moved: float = 0.0
    slow: int = 0
    sent: Grant | None = None
    sent_s: float = -math.inf


class Transfers:
    """All transfers under way, and their grants.

    Grants never add up to more than there is. No bandwidth is idle while a transfer could take it.
    Every transfer gets its turn, and ends if it takes its granted rate.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._writers: dict[tuple[int, str], _Writer] = {}
        self._open: dict[Key, tuple[_Writer, _Transfer]] = {}
        self._anew = False
        self._decided_s = -math.inf
        self._bandwidth = math.inf

    @property
    def is_busy(self) -> bool:
        """True while a transfer is under way."""
        return bool(self._open)

    @property
    def taken_bytes_per_s(self) -> float:
        """Bytes/s that all transfers took recently."""
        return math.fsum(transfer.taken for _, transfer in self._open.values())

    @property
    def could_bytes_per_s(self) -> float:
        """Bytes/s that all transfers could take; inf if unknown."""
        return math.fsum(transfer.could for _, transfer in self._open.values())

    def begin(
        self, key: Key, now_s: float, *, owner: int, job: str, bytes: float, could: float = math.inf
    ) -> None:
        """Start a transfer; transfers of one job go together. `could` is its largest rate."""
        if key in self._open:
            raise UsageError(f"transfer {key[1]} has started already: use another id")
        most = limits.broker_transfers_max
        if sum(caller == key[0] for caller, _ in self._open) >= most:
            raise UsageError(f"there are {most} transfers on this connection: end one first")
        self._writers = {
            name: known
            for name, known in self._writers.items()
            if known.open or now_s - known.settled_s < _memory_s
        }
        writer = self._writers.setdefault((owner, job), _Writer(now_s))
        writer.settle(now_s, self._bandwidth)
        writer.open[key] = transfer = _Transfer(bytes, max(could, _slow_bytes_per_s), now_s)
        self._open[key] = writer, transfer
        self._anew = True

    def moved(self, key: Key, now_s: float, bytes: float) -> None:
        """Record the bytes transferred so far, and learn the rate that the transfer can take."""
        _, transfer = self._find(key)
        passed_s = now_s - transfer.heard_s
        if passed_s < _windows_s or bytes < transfer.moved:
            return
        transfer.taken = (bytes - transfer.moved) / passed_s
        transfer.moved, transfer.heard_s = bytes, now_s
        if not 0 < transfer.rate < math.inf:
            return
        transfer.slow = transfer.slow + 1 if transfer.taken < 0.5 * transfer.rate else 0
        if transfer.slow >= _slow_windows:
            transfer.could = max(_slow_bytes_per_s, 2 * transfer.taken)
            self._anew = True
        elif transfer.taken >= 0.9 * transfer.rate and transfer.could < self._bandwidth:
            transfer.could *= 4
            self._anew = True

    def end(self, key: Key, now_s: float) -> None:
        """End a transfer, done or given up."""
        writer, _ = self._find(key)
        writer.settle(now_s, self._bandwidth)
        del self._open[key], writer.open[key]
        self._anew = True

    def leave(self, caller: int, now_s: float) -> None:
        """End all transfers of a caller that has gone."""
        for key in [key for key in self._open if key[0] == caller]:
            self.end(key, now_s)

    def tick(self, now_s: float, bandwidth: float) -> dict[Key, Grant]:
        """Return new and renewed grants, of `bandwidth` together."""
        for writer, transfer in self._open.values():
            silent = now_s - transfer.heard_s > self._terms.lease_s
            if silent and transfer.could > _slow_bytes_per_s:
                writer.settle(now_s, self._bandwidth)
                transfer.could, transfer.taken = _slow_bytes_per_s, 0.0
                self._anew = True
        due = now_s - self._decided_s >= _turn_s
        if self._anew or due or bandwidth != self._bandwidth:
            self._decide(now_s, bandwidth)
        return self._renew_grants(now_s)

    def _find(self, key: Key) -> tuple[_Writer, _Transfer]:
        if key not in self._open:
            raise UsageError(f"transfer {key[1]} has not started: say that first")
        return self._open[key]

    def _decide(self, now_s: float, bandwidth: float) -> None:
        writers = [writer for writer in self._writers.values() if writer.open]
        for writer in writers:
            writer.settle(now_s, self._bandwidth)
        self._anew, self._decided_s, self._bandwidth = False, now_s, bandwidth
        if bandwidth == math.inf:
            for _, transfer in self._open.values():
                transfer.rate = math.inf
            return
        writers.sort(key=lambda writer: writer.progress)
        wanted = [writer.sum_open("could") for writer in writers]
        rates = grant_in_order(wanted, range(len(writers)), bandwidth)
        for writer, rate in zip(writers, rates, strict=True):
            transfers = writer.open.values()
            dealt = grant_fairly([transfer.could for transfer in transfers], rate)
            for transfer, transfer_rate in zip(transfers, dealt, strict=True):
                transfer.rate = transfer_rate

    def _renew_grants(self, now_s: float) -> dict[Key, Grant]:
        grants = {}
        for key, (_, transfer) in self._open.items():
            sent = transfer.sent
            rate = None if transfer.rate == math.inf else transfer.rate
            floor = None if rate is None else self._bandwidth / len(self._open)
            due = now_s - transfer.sent_s >= self._terms.lease_s / 2
            new = Grant(bytes_per_s=rate, floor_bytes_per_s=floor, lasts_s=self._terms.lease_s)
            if due or sent != new:
                transfer.sent_s = now_s
                transfer.sent = grants[key] = new
        return grants

    def state(self) -> list[Mapping[str, Any]]:
        """Return the transfers of each job for JSON."""
        return [
            {
                "job": job,
                "owner": owner,
                "transfers": len(writer.open),
                "bytes": writer.sum_open("bytes"),
                "moved": writer.sum_open("moved"),
                "bytes_per_s": None if self._bandwidth == math.inf else writer.sum_open("rate"),
                "measured": writer.sum_open("taken"),
                "progress": writer.progress,
            }
            for (owner, job), writer in self._writers.items()
            if writer.open
        ]
