"""The order, a rank's plan by each assignment, and the placement, at each power of ten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.index import Index
from penstock.order.order import Order
from penstock.plan.assignment import Locality
from penstock.plan.balance import CostBalance
from penstock.plan.placement import Placement
from penstock.plan.steps import Assignment, Steps, plan_steps

from .costs import (
    BLOCK_SAMPLES,
    HOST_RANKS,
    RANK_MB,
    SAMPLE_NS,
    START_S,
    STEP_MS,
    powers,
    read_status,
    time_least,
    trace_peak,
)
from .curves import Curve

BATCH = 32
GAP_BYTES = 16 * 1024


def measure_order(quick: bool) -> list[Curve]:
    """Curves of the order: time of a position, and memory of an order."""
    calls, places = (10 if quick else 100), 4096
    forward, memory = [], []
    for samples in powers(4, 12):
        order = Order(samples, 1)
        positions = np.random.default_rng(1).integers(0, samples, places).astype(np.uint64)
        forward.append((samples, time_least(partial(repeat, calls, order.samples, positions))))
        before = read_status("VmRSS")
        kept = [Order(samples, seed) for seed in range(1_000 if quick else 10_000)]
        memory.append((samples, (read_status("VmRSS") - before) / len(kept)))
    per_position = tuple((samples, seconds / calls / places * 1e9) for samples, seconds in forward)
    return [
        Curve("order: a position", "samples", "ns", 0, SAMPLE_NS, "a sample", per_position),
        Curve("order: memory", "samples", "MB", 0, RANK_MB, "a rank", tuple(memory)),
    ]


def repeat(calls: int, call: Callable[..., object], *arguments: Any) -> None:
    """Call a function so many times."""
    for _ in range(calls):
        call(*arguments)


def place_blocks(samples: int, hosts: int) -> Placement:
    """Place all cache blocks on hosts of equal room, as a job with enough memory does."""
    room = -(-samples // BLOCK_SAMPLES) // hosts + 1
    return Placement(samples, (room,) * hosts, seed=1, cache_block=BLOCK_SAMPLES)


def deal_steps(samples: int, world: int, assignment: Assignment) -> Steps:
    """Make the geometry of a job whose ranks have 32 samples a step, eight ranks a host."""
    locality = balance = None
    if assignment == "local":
        hosts = -(-world // HOST_RANKS)
        nodes = tuple((np.arange(world) // HOST_RANKS).tolist())
        locality = Locality(place_blocks(samples, hosts), nodes)
    if assignment == "balanced":
        balance = CostBalance(
            lambda lengths: lengths, lambda ids: (ids % np.uint64(977)).astype("i8") + 1
        )
    return Steps(
        samples, world * BATCH, world, assignment=assignment, locality=locality, balance=balance
    )


def measure_plans(index: Index, worlds: Sequence[int]) -> list[Curve]:
    """Curves of the plan of a rank's window by each assignment: time of a step, and memory."""
    order = Order(index.count, 3)
    curves = []
    for assignment in ("strided", "contiguous", "local", "balanced"):
        times, peaks = [], []
        for world in worlds:
            steps = deal_steps(index.count, world, assignment)
            rank = world * 2 // 3
            last = 1000 + steps.window(rank)
            call = partial(plan_steps, index, order, steps, rank, 1000, last, GAP_BYTES)
            call()
            times.append((world, 1e3 * time_least(call) / (last - 1000)))
            peaks.append((world, trace_peak(call)))
        power = 1 if assignment in ("local", "balanced") else 0
        redesign = "ranks of a host share it" if power else ""
        name = f"plan, {assignment}"
        spent, most = tuple(times), tuple(peaks)
        curves += [
            Curve(f"{name}: time", "ranks", "ms", power, STEP_MS, "a step", spent, (), redesign),
            Curve(f"{name}: memory", "ranks", "MB", power, RANK_MB, "a rank", most, (), redesign),
        ]
    return curves


def measure_placement(samples: int, hosts: Sequence[int]) -> list[Curve]:
    """Curves of the placement: making it, its memory, and a look-up."""
    making, memory, lookups = [], [], []
    chosen = np.random.default_rng(1).integers(0, samples, 64 * BATCH).astype(np.uint64)
    for number in hosts:
        make = partial(place_blocks, samples, number)
        making.append((number, time_least(make)))
        memory.append((number, trace_peak(make)))
        placement = make()
        seconds = time_least(partial(repeat, 20, placement.owners, chosen))
        lookups.append((number, seconds / 20 / len(chosen) * 1e9))
    return [
        Curve("placement: making it", "hosts", "s", 1, START_S, "once", tuple(making)),
        Curve("placement: memory", "hosts", "MB", 1, RANK_MB, "a rank", tuple(memory)),
        Curve("placement: a look-up", "hosts", "ns", 1, SAMPLE_NS, "a sample", tuple(lookups)),
    ]
