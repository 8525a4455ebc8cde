"""The cost of local assignment a sample, and the samples that it moves away from their owner.

    python benchmarks/dealing.py

One thread, processor time, best of several: a busy machine slows all alike. Every rank deals whole
global batches, so the cost is by sample of the global batch. Memory is what numpy and Python hold
at most while dealing, beyond what they hold before.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.order.order import Order
from penstock.plan.assignment import Locality, assign_nodes
from penstock.plan.placement import Placement
from penstock.plan.steps import Steps
from penstock_sim.closed_forms import remote_share

COUNT = 10**9
NODES = 4096
BATCH = 32
REPEAT = 20
TARGET_NS = 50.0
MOVES = [(nodes, seats) for nodes in (2, 4, 16, 64) for seats in (8, 32, 256)]
MOVES_SAMPLES = 1 << 21
"""Enough for each fraction to be within some per cent of its formula."""


def job(uneven: bool) -> tuple[Order, Steps]:
    """A thousand million samples on 4,096 nodes of one rank, of one capacity or of several."""
    room = tuple(COUNT // NODES + 1 - uneven * (node % 7) * 5_000 for node in range(NODES))
    locality = Locality(Placement(COUNT, room, seed=1), tuple(range(NODES)))
    steps = Steps(COUNT, NODES * BATCH, NODES, assignment="local", locality=locality)
    return Order(COUNT, seed=3), steps


def best_ns(call: Callable[[], object], samples: int) -> list[float]:
    """Nanoseconds a sample, one value a repetition."""
    found = []
    for _ in range(REPEAT):
        start = time.thread_time()
        call()
        found.append((time.thread_time() - start) / samples * 1e9)
    return found


def row(name: str, values: list[float], unit: str, target: float | None) -> dict[str, Any]:
    """A row whose target is an upper limit."""
    value = min(values)
    met = target is None or value <= target
    return {
        "name": name, "value": value, "unit": unit, "floor": None, "target": target, "met": met,
        "raw": values,
    }  # fmt: skip


def cost_rows() -> list[dict[str, Any]]:
    order, steps = job(uneven=False)
    _, uneven = job(uneven=True)
    held = steps.global_batch
    positions = np.arange(held, dtype=np.uint64)
    samples = order.samples(positions)
    quotas = steps.quotas(0)
    assert steps.locality is not None
    assert uneven.locality is not None
    placement, other = steps.locality.placement, uneven.locality.placement
    owners = placement.owners(samples[None])

    def dealt(steps: Steps) -> Callable[[], object]:
        return lambda: steps.positions(5, 6, 77, order)

    contenders: list[tuple[str, Callable[[], object], float | None]] = [
        ("order", lambda: order.samples(positions), None),
        ("owners, equal shares", lambda: placement.owners(samples), None),
        ("owners, unequal shares", lambda: other.owners(samples), None),
        ("seats of owners", lambda: assign_nodes(owners, quotas), None),
        ("a rank's positions, equal shares", dealt(steps), TARGET_NS),
        ("a rank's positions, unequal shares", dealt(uneven), TARGET_NS),
    ]
    found = [row(name, best_ns(call, held), "ns/sample", most) for name, call, most in contenders]
    tracemalloc.start()
    dealt(steps)()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found.append(row("most memory while dealing", [peak / held], "B/sample", None))
    started = time.perf_counter()
    job(uneven=True)
    found.append(row("making it", [(time.perf_counter() - started) * 1e3], "ms", None))
    return found


def moved(nodes: int, seats: int) -> float:
    """The fraction of samples that real orders have dealt away from their owner."""
    count = 10**8
    placement = Placement(count, (count,) * nodes, seed=5)
    locality = Locality(placement, tuple(range(nodes)))
    steps = MOVES_SAMPLES // (seats * nodes)
    samples = Order(count, 8).run(0, steps * seats * nodes).reshape(steps, -1)
    ranks = locality.ranks(samples, np.full(nodes, seats))
    return float(np.mean(ranks != placement.owners(samples)))


def move_rows() -> list[dict[str, Any]]:
    """Fractions of the samples; `floor` is the formula."""
    found = []
    for nodes, seats in MOVES:
        line = row(f"moved, {nodes} nodes, {seats} each a step", [moved(nodes, seats)], "", None)
        found.append(line | {"floor": float(remote_share(seats, nodes))})
    return found


def rows() -> list[dict[str, Any]]:
    return cost_rows() + move_rows()


def main() -> None:
    print(f"{'':40}{'value':>9} {'unit':12}{'floor':>8}{'target':>8}  met")
    for line in rows():
        floor = "" if line["floor"] is None else f"{line['floor']:.4f}"
        target = "" if line["target"] is None else f"{line['target']:g}"
        met = "" if line["target"] is None else "yes" if line["met"] else "NO"
        value = f"{line['value']:.4f}" if line["floor"] is not None else f"{line['value']:.2f}"
        print(f"{line['name']:40}{value:>9} {line['unit']:12}{floor:>8}{target:>8}  {met}")


if __name__ == "__main__":
    main()
