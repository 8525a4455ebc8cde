"""Scenarios of the virtual cluster: shape, speeds and faults, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

MS = 1_000_000
S = 1_000_000_000


class FaultKind(Enum):
    """Kind of a fault; `Fault` says what its numbers mean.

    KILL:     the rank ends after its action number `at`; it begins anew `length_ns` later, or never
              if that is 0.
    STOP:     the rank does nothing for a while, as a process that is stopped.
    SLOW:     each turn of the rank takes `extra` ns more for a while.
    CUT:      messages from the rank to rank `extra` are lost for a while.
    JUMP:     the clock of the rank jumps ahead by `length_ns`.
    STALL:    storage answers none of the rank for a while.
    ERRORS:   storage fails reads of some keys for a while.
    FULL:     the node's disk has no room from then on.
    BROKEN:   the node's disk fails writes from then on.
    DAMAGE:   a cache block on the node's disk is damaged.
    BUDGET:   the rank's memory for the disk and for answers becomes `extra` bytes.
    WRONG:    the rank is asked for keys that it does not keep, or that have other lengths.
    TEAR:     the node's disk had only begun to write some cache blocks, or has not, or has put them
              elsewhere: a crash tore them, or its sync lied.
    LIE:      storage answers reads of some keys with other bytes for a while, without an error.
    REFUSE:   the system refuses one kind of action of the rank for a while, by number `extra`.
    """

    KILL = "kill"
    STOP = "stop"
    SLOW = "slow"
    CUT = "cut"
    JUMP = "jump"
    STALL = "stall"
    ERRORS = "errors"
    FULL = "full"
    BROKEN = "broken"
    DAMAGE = "damage"
    BUDGET = "budget"
    WRONG = "wrong"
    REFUSE = "refuse"
    TEAR = "tear"
    LIE = "lie"

    __hash__ = object.__hash__  # Enum's own, in Python, takes long, and each turn looks faults up


_later = (FaultKind.TEAR, FaultKind.LIE)
"""Kinds that are drawn apart, so that scenarios keep their other faults."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what, whom, from when (or from which action on), how long."""

    kind: FaultKind
    rank: int
    at: int
    length_ns: int = 0
    extra: int = 0

    def __str__(self) -> str:
        when = f"action {self.at}" if self.kind is FaultKind.KILL else f"{self.at / MS:.3f} ms"
        return (
            f"{self.kind.value} rank {self.rank} at {when} for {self.length_ns / MS:.3f} ms"
            f" ({self.extra})"
        )


@dataclass(frozen=True, slots=True)
class VirtualScenario:
    """A cluster, what its ranks ask for, and what goes wrong.

    nodes:        node of each rank.
    ram_blocks, disk_blocks:  cache blocks that each node keeps.
    room:         room of a slab or disk, in parts of what its cache blocks need.
    ahead:        steps that a rank asks for before the first of them is there.
    lost:         part of the messages that are lost; `damaged` and `refused` likewise.
    """

    seed: int
    nodes: tuple[int, ...]
    samples: int
    fields: int
    cache_block: int
    ram_blocks: tuple[int, ...]
    disk_blocks: tuple[int, ...]
    room: float
    batch: int
    epochs: int
    buffers: int
    ahead: int
    length_max: int
    disk_buffer_bytes: int
    answer_bytes: int
    replicas: int
    storage_ns: int
    network_ns: int
    disk_ns: int
    lost: float = 0.0
    damaged: float = 0.0
    refused: float = 0.0
    faults: tuple[Fault, ...] = ()

    @property
    def is_calm(self) -> bool:
        """True if nothing fails and nobody is so slow that it is given up: then each cache block is
        read from storage once."""
        can_fail = self.faults or self.lost or self.damaged or self.refused or self.room < 1
        return not can_fail and self.storage_ns < 100 * MS

    def simplify(self) -> Iterator[VirtualScenario]:
        """Give scenarios with one thing less: a fault, losses, an epoch, half of the samples."""
        faults = self.faults
        for number in range(len(faults)):
            yield replace(self, faults=faults[:number] + faults[number + 1 :])
        if self.lost:
            yield replace(self, lost=0.0)
        if self.damaged:
            yield replace(self, damaged=0.0)
        if self.refused:
            yield replace(self, refused=0.0)
        if self.epochs > 1:
            yield replace(self, epochs=self.epochs - 1)
        if self.samples > 1:
            yield replace(self, samples=self.samples // 2)


def draw_scenario(seed: int) -> VirtualScenario:
    """Draw a scenario: one in eight is calm, the others have a few faults or many."""
    draw = random.Random(seed)
    node_count = draw.choice((1, 2, 2, 3, 4))
    nodes = tuple(node for node in range(node_count) for _ in range(draw.choice((1, 1, 2, 3))))
    cache_block = draw.choice((1, 1, 2, 3, 5))
    samples = draw.randrange(4, 60)
    blocks = -(-samples // cache_block)
    is_calm = not draw.randrange(8)

    def share(part: float) -> tuple[int, ...]:
        return tuple(
            int(part * blocks / node_count * draw.uniform(0.5, 1.5)) for _ in range(node_count)
        )

    ram = share(draw.choice((0.0, 0.4, 1.0, 1.5)))
    disk = share(draw.choice((0.0, 0.0, 0.5, 1.5)))
    length_max = draw.choice((1, 40, 40, 300, 6000))
    mean_block = length_max * cache_block
    fast = draw.choice((1, 1, 20))
    storage_ns = draw.choice((MS // 10, 2 * MS, 50 * MS)) * fast
    scenario = VirtualScenario(
        seed,
        nodes,
        samples,
        draw.choice((1, 1, 2)),
        cache_block,
        ram,
        disk,
        1.0 if is_calm or draw.random() < 0.7 else draw.uniform(0.1, 1),
        draw.randrange(1, 9),
        draw.choice((1, 2, 2, 3)),
        draw.choice((1, 1, 2)),
        draw.choice((1, 2, 4)),
        length_max,
        draw.choice((1, 4096, 4 * mean_block + 4096, 1 << 22)),
        draw.choice((1, 2 * length_max, 20 * length_max, 1 << 22)),
        draw.choice((0, 5, 50)),
        storage_ns,
        draw.choice((MS // 20, MS, 20 * MS)),
        draw.choice((MS // 10, 3 * MS)),
    )
    is_tight = not draw.randrange(4)
    if is_tight:  # ranks that wait for each other's cache blocks, for want of memory
        scenario = replace(
            scenario,
            nodes=(0, 0, 0, 0, *range(1, node_count)),
            ram_blocks=(0,) * node_count,
            disk_blocks=(blocks,) * node_count,
            disk_buffer_bytes=1,
            cache_block=draw.choice((3, 6)),
            ahead=8,
            batch=draw.choice((1, 2)),
        )
    if is_calm:
        return scenario
    span_ns = max(
        20 * MS, (samples * scenario.epochs // scenario.batch + 2) * storage_ns // len(nodes)
    )
    faults = tuple(
        _draw_fault(draw, scenario, span_ns) for _ in range(draw.choice((0, 1, 2, 4, 8, 12)))
    )
    if is_tight:  # what one of them could not read all others claim at once
        faults += tuple(
            Fault(FaultKind.ERRORS, rank, draw.randrange(span_ns), span_ns, draw.randrange(5))
            for rank in range(4)
        )
    apart = random.Random(f"later {seed}")
    faults += tuple(
        replace(_draw_fault(apart, scenario, span_ns), kind=apart.choice(_later))
        for _ in range(apart.choice((0, 0, 0, 1, 3)))
    )
    if is_tight and apart.randrange(2):  # for one of them, and memory behind it
        stall = Fault(FaultKind.STALL, apart.randrange(4), apart.randrange(span_ns // 4), 200 * S)
        faults = (*faults, stall)
    lost, damaged, refused = (draw.choice((0.0, 0.0, 0.0, 0.02, 0.3)) for _ in range(3))
    return replace(scenario, faults=faults, lost=lost, damaged=damaged, refused=refused)


def _draw_fault(draw: random.Random, scenario: VirtualScenario, span_ns: int) -> Fault:
    kinds = [kind for kind in FaultKind if kind not in _later]
    kind = draw.choice([*kinds, *[FaultKind.REFUSE] * 3])
    rank = draw.randrange(len(scenario.nodes))
    length_ns = int(draw.choice((MS, 50 * MS, S, 15 * S, 200 * S)) * draw.uniform(0.5, 1.5))
    at = draw.randrange(span_ns)
    extra = draw.randrange(1 << 16)
    if kind is FaultKind.KILL:
        at = draw.randrange(200)
        length_ns = draw.choice((0, length_ns))
    elif kind is FaultKind.REFUSE:
        at = draw.choice((0, at))
    elif (
        kind is FaultKind.STOP
    ):  # mostly while cache blocks are read, and longer than all deadlines
        at = draw.choice((at, at // 4, at // 16))
        length_ns = draw.choice((length_ns, 400 * S))
    elif kind is FaultKind.SLOW:
        extra = draw.choice((MS, 30 * MS))
    elif kind is FaultKind.BUDGET:
        extra = draw.choice((1, 4096, 1 << 16, 1 << 22))
    elif kind is FaultKind.CUT:
        extra = draw.randrange(len(scenario.nodes))
    return Fault(kind, rank, at, length_ns, extra)
