"""Scenarios of training jobs: attempts of worlds of any size, which go on from each other's states,
drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.plan.steps import Assignment
from tests.virtual.scenario import MS, Fault, FaultKind, VirtualScenario, draw_scenario

_ranks_max = 6
_ending = (FaultKind.KILL, FaultKind.ERRORS, FaultKind.LIE)
"""Kinds of faults that end an attempt."""


@dataclass(frozen=True, slots=True)
class JobScenario:
    """A job: what it trains on, and its attempts, of which the last one ends the job.

    attempts:      cluster and faults of each. Two that follow each other and have the same nodes
                   and tiers find the same disks. `ahead` is the steps that a rank reads ahead.
    readahead_bytes:  bytes that a rank reads ahead, of each attempt.
    reload_at:     number of steps of each attempt, after which all ranks leave their epoch and go
                   on from the last state; 0 for never.
    save_every:    steps between states.
    train_ns:      mean time of a step of training.
    """

    seed: int
    samples: int
    epochs: int
    global_batch: int
    assignment: Assignment
    drop_last: bool
    pad: bool
    attempts: tuple[VirtualScenario, ...]
    readahead_bytes: tuple[int, ...]
    reload_at: tuple[int, ...]
    save_every: int
    train_ns: int

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults of all attempts."""
        return tuple(fault for attempt in self.attempts for fault in attempt.faults)

    def simplify(self) -> Iterator[JobScenario]:
        """Give scenarios with one thing less: an attempt, a reload, an epoch, a fault."""
        for number in range(len(self.attempts) - 1):
            yield self._keep([k for k in range(len(self.attempts)) if k != number])
        for number, at in enumerate(self.reload_at):
            if at:
                kept = self.reload_at
                yield replace(self, reload_at=(*kept[:number], 0, *kept[number + 1 :]))
        if self.epochs > 1:
            yield replace(self, epochs=self.epochs - 1)
        for number, attempt in enumerate(self.attempts):
            for simpler in attempt.simplify():
                if (simpler.samples, simpler.epochs) == (attempt.samples, attempt.epochs):
                    attempts = list(self.attempts)
                    attempts[number] = simpler
                    yield replace(self, attempts=tuple(attempts))

    def _keep(self, numbers: list[int]) -> JobScenario:
        return replace(
            self,
            attempts=tuple(self.attempts[k] for k in numbers),
            readahead_bytes=tuple(self.readahead_bytes[k] for k in numbers),
            reload_at=tuple(self.reload_at[k] for k in numbers),
        )


def draw_job_scenario(seed: int) -> JobScenario:
    """Draw a job: one in four has a single attempt."""
    draw = random.Random(f"job {seed}")
    data = draw_scenario(seed)
    samples, epochs = max(data.samples, _ranks_max), draw.choice((1, 2, 3))
    count = draw.choice((1, 2, 2, 3))
    attempts: list[VirtualScenario] = []
    for number in range(count):
        attempt = _draw_attempt(draw, data, samples)
        if attempts and draw.random() < 0.4:  # the same cluster again, which finds its disks
            attempt = _give_faults(attempts[-1], attempt.faults)
        if number == count - 1:
            lasting = tuple(fault for fault in attempt.faults if fault.kind not in _ending)
            attempt = replace(attempt, faults=lasting)
        elif draw.random() < 0.8:
            rank = draw.randrange(len(attempt.nodes))
            kill = Fault(FaultKind.KILL, rank, draw.randrange(draw.choice((10, 40, 120))))
            attempt = replace(attempt, faults=(*attempt.faults, kill))
        attempts.append(attempt)
    world_max = max(len(attempt.nodes) for attempt in attempts)
    global_batch = draw.randrange(world_max, min(samples, 3 * world_max) + 1)
    step_bytes = global_batch * data.fields * data.length_max
    return JobScenario(
        seed,
        samples,
        epochs,
        global_batch,
        draw.choice(("strided", "contiguous", "local")),
        *draw.choice(((False, False), (False, False), (True, False), (False, True))),
        tuple(attempts),
        tuple(draw.choice((1, step_bytes, 8 * step_bytes)) for _ in attempts),
        tuple(draw.choice((0, 0, draw.randrange(1, 20))) for _ in attempts),
        draw.choice((1, 1, 2, 5)),
        draw.choice((MS // 100, MS, 30 * MS)),
    )


def _draw_attempt(draw: random.Random, data: VirtualScenario, samples: int) -> VirtualScenario:
    """Draw the cluster of an attempt on this data."""
    attempt = draw_scenario(draw.randrange(1 << 40))
    nodes = attempt.nodes[:_ranks_max]
    node_count = nodes[-1] + 1
    attempt = replace(
        attempt,
        seed=data.seed,
        samples=samples,
        fields=data.fields,
        length_max=data.length_max,
        epochs=1,
        nodes=nodes,
        ram_blocks=attempt.ram_blocks[:node_count],
        disk_blocks=attempt.disk_blocks[:node_count],
        ahead=draw.choice((1, 2, 4, 8)),
    )
    return _give_faults(attempt, attempt.faults)


def _give_faults(attempt: VirtualScenario, faults: tuple[Fault, ...]) -> VirtualScenario:
    """Give an attempt those of these faults that are of its ranks."""
    world = len(attempt.nodes)
    own = [
        replace(fault, extra=fault.extra % world) if fault.kind is FaultKind.CUT else fault
        for fault in faults
        if fault.rank < world
    ]
    return replace(attempt, faults=tuple(own))
