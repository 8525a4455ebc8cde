"""python -m benchmarks.convoys: ranks that read sorted steps from targets that serve one at a time.

The reads are those of `plan_steps`, of an exact order over files that lie on several targets; a
target serves one read after the other, for an exponential time, as they come; each rank has some
in flight. All begin a step together and wait for each other at its end. Ascending, from each
rank's place on (as planned), and by the slots of `stagger`, which knows all ranks' reads; beside
the most that one target or rank has to do. Simulated: the rows are the same on any machine.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np

from penstock.extent import Files
from penstock.index.fields import Field
from penstock.index.layout import Fixed
from penstock.index.table import Index
from penstock.order.order import Order
from penstock.plan.steps import Steps, plan_steps
from penstock_sim.schedule import stagger

from . import __main__ as command
from .record import Record, Row

ROWS = 64
"""Samples of a rank in a step."""
STEPS = 10
SHAPES = (
    # ranks, targets, files, requests in flight
    *itertools.product((8, 64), (8,), (8, 64), (1, 4, 16)),
    (16, 16, 1000, 4),
)


def index_of(files: int, skewed: bool) -> Index:
    """Records that need not exist; of skewed files the first has as many as all others."""
    counts = np.full(files, 10_000)
    if skewed:
        counts[0] = counts[1:].sum()
    table = Files.of("/nowhere", [f"{n:05}" for n in range(files)], counts * 4096, counts * 0)
    ends = np.concatenate([[0], np.cumsum(counts)])
    return Index(
        format="records",
        files=table,
        fields=(Field("data", np.dtype(np.uint8), (4096,)),),
        layouts=(Fixed(ends, np.zeros(files, np.int64), 4096),),
        sources=table,
    )


def planned(index: Index, ranks: int, step: int, seed: int) -> list[np.ndarray]:
    """The file of each read of a step, of each rank, in the order of submission."""
    steps = Steps(index.count, ranks * ROWS, ranks)
    order = Order(index.count, seed)
    found = []
    for rank in range(ranks):
        (group,) = plan_steps(index, order, steps, rank, step, step + 1, 0)
        requests = group.steps[0].requests
        found.append(requests.file[requests.runs[:-1]].astype(np.int64))
    return found


def staggered(files: Sequence[np.ndarray], targets: int) -> list[np.ndarray]:
    """The same reads by the slots of an open shop."""
    reader = np.repeat(np.arange(len(files)), [len(each) for each in files])
    slots = stagger(reader, np.concatenate(files) % targets)
    return [
        each[np.argsort(slots[reader == number], kind="stable")]
        for number, each in enumerate(files)
    ]


def makespan(work: Sequence[np.ndarray], targets: int, depth: int, times: np.ndarray) -> float:
    """The time at which the last read ends: each target serves one at a time, as they come."""
    coming = [iter((each % targets).tolist()) for each in work]
    queues: list[deque[int]] = [deque() for _ in range(targets)]
    serving: list[tuple[float, int, int]] = []  # heap: end, target, reader
    idle = [True] * targets
    durations = iter(times.tolist())
    now = 0.0

    def serve(target: int) -> None:
        if idle[target] and queues[target]:
            idle[target] = False
            heapq.heappush(serving, (now + next(durations), target, queues[target].popleft()))

    def ask(reader: int) -> None:
        target = next(coming[reader], None)
        if target is not None:
            queues[target].append(reader)
            serve(target)

    for _, reader in itertools.product(range(depth), range(len(work))):
        ask(reader)
    while serving:
        now, target, reader = heapq.heappop(serving)
        idle[target] = True
        ask(reader)
        serve(target)
    return now


def measured(ranks: int, targets: int, files: int, depth: int, skewed: bool, seed: int) -> Row:
    """The time that the steps take, planned; against ascending, by slots, and the bound."""
    index = index_of(files, skewed)
    random = np.random.default_rng(seed)
    took = {"ascending": 0.0, "planned": 0.0, "slots": 0.0}
    bound = 0.0
    for step in range(STEPS):
        work = planned(index, ranks, step, seed)
        times = random.standard_exponential(sum(map(len, work)))
        orders = {
            "ascending": [np.sort(each) for each in work],
            "planned": work,
            "slots": staggered(work, targets),
        }
        for name, order in orders.items():
            took[name] += makespan(order, targets, depth, times)
        load = np.bincount(np.concatenate(work) % targets)
        bound += max(int(load.max()), -(-max(map(len, work)) // depth)) * times.mean()
    name = f"{ranks} ranks, {targets} targets, {files} files{', one large' if skewed else ''}"
    return Row(
        f"{name}; {depth} in flight",
        took["planned"] / bound,
        "of the bound",
        took["ascending"] / bound,
        took["planned"] / took["ascending"],
        note=f"by slots: {took['slots'] / bound:.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convoys", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    record = Record("convoys", options.seed, vars(options))
    for shape, skewed in itertools.product(SHAPES, (False, True)):
        if not skewed or shape[2] == 8:
            record.rows.append(measured(*shape, skewed, options.seed))
    command.finish(record)


if __name__ == "__main__":
    main()
