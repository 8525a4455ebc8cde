"""Scenarios of checkpoints: jobs that save to one repository, and what goes wrong, drawn from a
seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

MS = 10**6
S = 10**9


class CheckpointFaultKind(Enum):
    """Kinds of faults. `at` is a time in nanoseconds, or a number of actions or messages."""

    KILL = "kill"  # a process, at an action: before it, after it, or within
    POWER = "power"  # cut, at a time: of all processes, and of what was not synced
    STOP = "stop"  # a process, from an action on, for so long
    ERROR = "error"  # one change of storage fails, by its number; it may be done all the same
    FAIL = "fail"  # calls to storage fail, for so long; `extra` says which part of them
    FULL = "full"  # storage is full for so long: writes leave a part
    STALL = "stall"  # a call to storage takes so long, from an action on
    LIE = "lie"  # syncs do nothing, for so long
    DAMAGE = "damage"  # what is read is damaged, for so long
    LOSE = "lose"  # a message between ranks, by its number
    LATE = "late"  # requests are performed, and later, though their answers were errors; so long
    UNANSWERED = "unanswered"  # one put of an object, by its number, is late, or done

    __hash__ = object.__hash__  # Enum's own, in Python, takes long, and each action looks faults up


_OF_OBJECTS = (CheckpointFaultKind.LATE,)
_LATER = (CheckpointFaultKind.UNANSWERED,)
"""Kinds that are drawn apart, so that scenarios keep their other faults."""
_OFTEN = [
    CheckpointFaultKind.KILL,
    CheckpointFaultKind.POWER,
    CheckpointFaultKind.ERROR,
    CheckpointFaultKind.ERROR,
    CheckpointFaultKind.LATE,
    CheckpointFaultKind.LATE,
    CheckpointFaultKind.DAMAGE,
]
_BY_NUMBER = (
    CheckpointFaultKind.KILL,
    CheckpointFaultKind.STOP,
    CheckpointFaultKind.STALL,
    CheckpointFaultKind.ERROR,
)


@dataclass(frozen=True, slots=True)
class CheckpointFault:
    """A fault. job, rank: of the process, where it is one's."""

    kind: CheckpointFaultKind
    at: int
    length_ns: int = 0
    job: int = 0
    rank: int = 0
    extra: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kind.value} at {self.at} for {self.length_ns / MS:.3f} ms, job {self.job},"
            f" rank {self.rank} ({self.extra})"
        )


@dataclass(frozen=True, slots=True)
class CheckpointJob:
    """A job: its ranks, the saves that it makes, and the time at which it begins. uses_tiers:
    False for a job that leaves out the tiers of the others."""

    ranks: int
    saves: int
    begin_ns: int
    uses_tiers: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointScenario:
    """Jobs that save to one repository, one after the other or at once, and faults.

    is_folder:  False for an object store.
    hosts:      with tiers, hosts of the ranks; 0 without.
    has_conditions:  False if the service writes on no condition: then one job writes at a time.
    delay_ns:   mean time of an action.
    """

    seed: int
    is_folder: bool
    hosts: int
    keep: int
    jobs: tuple[CheckpointJob, ...]
    delay_ns: int
    readers: int = 0
    has_conditions: bool = True
    faults: tuple[CheckpointFault, ...] = ()

    def has_fault(self, *kinds: CheckpointFaultKind) -> bool:
        """Tell whether there is a fault of these kinds."""
        return any(fault.kind in kinds for fault in self.faults)

    def simplify(self) -> Iterator[CheckpointScenario]:
        """Give scenarios with one thing less: a fault, a job, a save, the readers."""
        for number in range(len(self.faults)):
            faults = self.faults
            yield replace(self, faults=faults[:number] + faults[number + 1 :])
        if len(self.jobs) > 1:
            left = self.jobs[:-1]
            faults = tuple(fault for fault in self.faults if fault.job < len(left))
            yield replace(self, jobs=left, faults=faults)
        for number, job in enumerate(self.jobs):
            if job.saves > 1:
                fewer = replace(job, saves=job.saves - 1)
                jobs = (*self.jobs[:number], fewer, *self.jobs[number + 1 :])
                yield replace(self, jobs=jobs)
        if self.readers:
            yield replace(self, readers=0)


def draw_checkpoint_scenario(seed: int) -> CheckpointScenario:
    """Draw a scenario: one in eight is calm, the others have a few faults or many."""
    draw = random.Random(f"checkpoint {seed}")
    is_folder = draw.random() < 0.6
    hosts = draw.choice((0, 0, 1, 2))
    delay_ns = draw.choice((MS, 20 * MS))
    begin_ns, jobs = 0, []
    for _ in range(draw.choice((1, 2, 2, 3))):
        ranks, saves = max(hosts, draw.randint(1, 3)), draw.randint(1, 5)
        jobs.append(CheckpointJob(ranks, saves, begin_ns, bool(draw.randrange(6))))
        pauses = (10, 100, 1000) if is_folder else (10, 40, 200)
        begin_ns += int(delay_ns * draw.choice(pauses) * draw.uniform(0.5, 2))
    scenario = CheckpointScenario(
        seed,
        is_folder,
        hosts,
        draw.choice((2, 2, 3)),
        tuple(jobs),
        delay_ns,
        draw.choice((0, 0, 1, 2)),
        is_folder or len(jobs) > 1 or draw.random() < 0.7,
    )
    if not draw.randrange(8):
        return scenario
    span_ns = begin_ns + 300 * delay_ns
    count = draw.choice((1, 1, 2, 3, 6))
    faults = [_draw_fault(draw, scenario, span_ns) for _ in range(count)]
    if not is_folder and all(fault.kind is not CheckpointFaultKind.LATE for fault in faults):
        apart = random.Random(f"later {seed}")
        for _ in range(apart.choice((0, 0, 1, 2))):
            put, job = apart.randrange(8), apart.randrange(len(jobs))
            faults.append(CheckpointFault(CheckpointFaultKind.UNANSWERED, put, job=job))
    return replace(scenario, faults=tuple(faults))


def _draw_fault(draw: random.Random, scenario: CheckpointScenario, span_ns: int) -> CheckpointFault:
    kinds = [kind for kind in CheckpointFaultKind if kind not in _LATER] + _OFTEN * 2
    if scenario.is_folder:
        kinds = [CheckpointFaultKind.POWER if kind in _OF_OBJECTS else kind for kind in kinds]
    kind = draw.choice(kinds)
    job = draw.randrange(len(scenario.jobs))
    rank = draw.randrange(scenario.jobs[job].ranks)
    if kind is CheckpointFaultKind.ERROR:
        rank = draw.choice((0, 0, rank))
    length_ns = int(scenario.delay_ns * draw.choice((3, 30, 300, 3000)) * draw.uniform(0.5, 1.5))
    at = draw.choice((draw.randrange(span_ns), scenario.jobs[job].begin_ns))
    if kind is CheckpointFaultKind.POWER:
        at = draw.randrange(span_ns)
    if kind in _BY_NUMBER:
        at = draw.randrange(draw.choice((30, 60, 150)))
    elif kind is CheckpointFaultKind.LOSE:
        at = draw.randrange(15)
    return CheckpointFault(kind, at, length_ns, job, rank, draw.randrange(1 << 16))
