"""Scenarios of brokers: hosts, the jobs that share them, and what goes wrong, drawn from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

MS = 10**6
S = 10**9

CHAOS_NS = 60 * S
"""Time in which jobs come and go, and faults begin and end."""


class BrokerFaultKind(Enum):
    """Kinds of faults; `BrokerFault` says whom they befall."""

    KILL = "kill"  # a process; it is started again after so long, with nothing of what it knew
    STOP = "stop"  # a process does nothing for so long
    SLOW = "slow"  # each turn of a process takes `extra` ns more, for so long
    JUMP = "jump"  # the clock of a process jumps ahead by so much
    CUT = "cut"  # the network of a host holds messages up (`extra` & 1) or down, for so long
    LIE = "lie"  # reports of a member carry absurd numbers, for so long
    BABBLE = "babble"  # a member says what is no message, or none that it may say
    NEED = "need"  # a sample of the job costs it something else from then on
    CAPACITY = "capacity"  # the storage of a host without a broker above has another rate


_OFTEN = (
    BrokerFaultKind.KILL,
    BrokerFaultKind.STOP,
    BrokerFaultKind.STOP,
    BrokerFaultKind.STOP,
    BrokerFaultKind.LIE,
    BrokerFaultKind.LIE,
)


@dataclass(frozen=True, slots=True)
class BrokerFault:
    """A fault. job: -1 for the broker number `rank`, else the member `rank` of that job."""

    kind: BrokerFaultKind
    at_ns: int
    length_ns: int = 0
    job: int = -1
    rank: int = 0
    extra: int = 0

    def __str__(self) -> str:
        whom = f"broker {self.rank}" if self.job < 0 else f"job {self.job} member {self.rank}"
        return (
            f"{self.kind.value} {whom} at {self.at_ns / MS:.3f} ms for {self.length_ns / MS:.3f} ms"
            f" ({self.extra})"
        )


@dataclass(frozen=True, slots=True)
class BrokerJob:
    """A job on a host, from when it begins until it ends; 0 if it stays until all is over.

    samples_per_s, cpu_s, storage_bytes:  its needs, all of its members alike.
    step_ns:         between two steps of a member.
    transfer_bytes:  that each member transfers in one go, from `transfer_ns` on; 0 for none.
    pieces:          of a transfer.
    holds:           True if its transfers move nothing, and are ended with the job alone.
    """

    host: int
    members: int
    begin_ns: int
    end_ns: int
    samples_per_s: float
    cpu_s: float
    storage_bytes: float
    step_ns: int
    transfer_bytes: int = 0
    transfer_ns: int = 0
    holds: bool = False
    pieces: int = 20


@dataclass(frozen=True, slots=True)
class BrokerScenario:
    """Hosts with a broker each, their jobs, and faults.

    hosts:         brokers, numbered from 1 on. Broker 0 leases storage to them, if there are two.
    bytes_per_s:   of the storage; 0 for no limit.
    delay_ns:      longest delay of a message.
    own_part:      most that a host takes of a storage that it shares, in parts of the storage.
    drift:         part by which clocks may go faster or slower.
    room:          messages that a connection takes before they wait at their sender.
    """

    seed: int
    hosts: int
    cores: float
    bytes_per_s: float
    objective: str
    floors: float
    jobs: tuple[BrokerJob, ...]
    delay_ns: int
    own_part: float = 1.0
    drift: float = 0.0
    room: int = 400
    faults: tuple[BrokerFault, ...] = ()

    @property
    def is_federated(self) -> bool:
        """True if a broker leases storage to the hosts."""
        return self.hosts > 1

    def simplify(self) -> Iterator[BrokerScenario]:
        """Give scenarios with one thing less: a fault, a job, a member, a transfer, the drift."""
        faults, jobs = self.faults, self.jobs
        for number in range(len(faults)):
            yield replace(self, faults=faults[:number] + faults[number + 1 :])
        if len(jobs) > 1:
            kept = tuple(fault for fault in faults if fault.job < len(jobs) - 1)
            yield replace(self, jobs=jobs[:-1], faults=kept)
        for number, job in enumerate(jobs):
            if job.members > 1:
                fewer = replace(job, members=job.members - 1)
                kept = tuple(
                    fault for fault in faults if fault.job != number or fault.rank < fewer.members
                )
                yield replace(self, jobs=(*jobs[:number], fewer, *jobs[number + 1 :]), faults=kept)
            if job.transfer_bytes:
                without = replace(job, transfer_bytes=0)
                yield replace(self, jobs=(*jobs[:number], without, *jobs[number + 1 :]))
        if self.drift:
            yield replace(self, drift=0.0)


def draw_broker_scenario(seed: int) -> BrokerScenario:
    """Draw a scenario: one in eight is calm, the others have a few faults or many."""
    draw = random.Random(f"broker {seed}")
    hosts = draw.choice((1, 1, 1, 2, 3))
    bytes_per_s = draw.choice((1e8, 1e8, 1e9, 1e10, 0.0))
    if hosts > 1:
        bytes_per_s = bytes_per_s or 1e9
    jobs = tuple(
        _draw_job(draw, hosts, bytes_per_s or 1e9, number)
        for number in range(draw.choice((1, 2, 2, 3, 4)))
    )
    scenario = BrokerScenario(
        seed,
        hosts,
        draw.choice((1.0, 8.0, 64.0)),
        bytes_per_s,
        draw.choice(("utilisation", "utilisation", "samples", "makespan")),
        draw.choice((1.0, 1.0, 0.5, 0.01)),
        jobs,
        draw.choice((MS // 10, 5 * MS, 100 * MS)),
        draw.choice((1.0, 1.0, 0.5, math.inf)),
        draw.choice((0.0, 1e-4, 0.01)),
        draw.choice((4, 400, 400)),
    )
    if not draw.randrange(8):
        return scenario
    if hosts > 1 and draw.randrange(2):  # hosts whose broker above is away
        stay = tuple(
            replace(job, host=1 + number, begin_ns=0, end_ns=0)
            for number, job in enumerate(jobs[:hosts])
        )
        faults = tuple(_draw_absence(draw) for _ in range(draw.randint(1, 3)))
        if draw.randrange(2):  # more than a number holds, all jobs together
            faults += tuple(
                BrokerFault(BrokerFaultKind.LIE, draw.randrange(30 * S), 10 * S, number)
                for number in range(len(jobs))
            )
        return replace(scenario, jobs=stay + jobs[hosts:], faults=faults)
    count = draw.choice((1, 2, 4, 6, 10))
    return replace(scenario, faults=tuple(_draw_fault(draw, scenario) for _ in range(count)))


def _draw_job(draw: random.Random, hosts: int, bytes_per_s: float, number: int) -> BrokerJob:
    begin_ns = 0 if not number else draw.choice((0, draw.randrange(CHAOS_NS)))
    end_ns = draw.choice((0, 0, begin_ns + draw.randrange(1, CHAOS_NS)))
    transfers = draw.random() < 0.4
    return BrokerJob(
        draw.randint(1, hosts),
        draw.choice((1, 1, 2, 3)),
        begin_ns,
        end_ns,
        10 ** draw.uniform(0, 5),
        draw.choice((0.0, 10 ** draw.uniform(-6, 0))),
        draw.choice((0.0, 10 ** draw.uniform(2, 8))),
        draw.choice((100 * MS, 300 * MS, S, 4 * S)),
        int(bytes_per_s * draw.choice((0.01, 1, 10, 10))) if transfers else 0,
        begin_ns + draw.randrange(CHAOS_NS // 2),
        not draw.randrange(4),
        draw.choice((1, 4, 20, 100)),
    )


def _draw_absence(draw: random.Random) -> BrokerFault:
    kind = draw.choice((BrokerFaultKind.KILL, BrokerFaultKind.KILL, BrokerFaultKind.STOP))
    at_ns = draw.randrange(5 * S, CHAOS_NS * 3 // 4)
    length_ns = int(draw.choice((50 * MS, S, 4 * S, 12 * S)) * draw.uniform(0.5, 1.5))
    return BrokerFault(kind, at_ns, min(length_ns, CHAOS_NS - at_ns), rank=0)


def _draw_fault(draw: random.Random, scenario: BrokerScenario) -> BrokerFault:
    kind = draw.choice((*BrokerFaultKind, *_OFTEN))
    of_broker = (BrokerFaultKind.CUT, BrokerFaultKind.CAPACITY)
    of_member = (BrokerFaultKind.LIE, BrokerFaultKind.BABBLE, BrokerFaultKind.NEED)
    first = 0 if scenario.is_federated else 1
    job, rank = -1, draw.randint(first, scenario.hosts)
    if kind in of_member or (kind not in of_broker and draw.randrange(2)):
        job = draw.randrange(len(scenario.jobs))
        rank = draw.randrange(scenario.jobs[job].members)
    if kind is BrokerFaultKind.CUT:
        rank = max(1, rank)
    at_ns = draw.randrange(CHAOS_NS * 3 // 4)
    length_ns = int(draw.choice((50 * MS, S, 4 * S, 12 * S, 40 * S)) * draw.uniform(0.5, 1.5))
    extra = draw.randrange(1 << 16)
    if kind is BrokerFaultKind.SLOW:
        extra = draw.choice((50 * MS, S, 8 * S))
    elif kind is BrokerFaultKind.CUT:
        extra = draw.choice((1, 2, 3, 3))
    return BrokerFault(kind, at_ns, min(length_ns, CHAOS_NS - at_ns), job, rank, extra)
