"""The balance of ranks that balanced assignment gives, and its cost a row.

    python -m benchmarks.packing_balance

Packed rows of 131,072 tokens of web-like documents, 2 % of them long (lognormal, median 500, sigma
1.1; the long ones of median 20,000), as a model of width 4,096 takes them. Balance is the largest
sum of a rank's costs over the mean, the mean over steps: a step lasts as long as its slowest rank.
In lockstep it is the sum over microsteps of the costliest row, over the mean. The cost is processor
time of one thread, best of several, by row of the global batch, all of which every rank deals.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.extent import Int
from penstock.order import Order, PackedOrder
from penstock.order.packed_order import PackingRule, choose_window
from penstock.plan import Steps
from penstock.plan.balance import CostBalance, deal, level_costs
from penstock.plan.sample_cost import cost_by_width

from .record import Row

LENGTH, WIDTH = 131_072, 4096
DOCUMENTS = 1_300_000
REPEAT = 30
DEALING_NS = 50.0
RANKS = 64
TARGETS = {4: 1.12, 16: 1.01}

Costs = npt.NDArray[np.float64]


def draw_mix(count: int, seed: int = 1) -> Int:
    """Web-like lengths, and 2 % long ones."""
    rng = np.random.default_rng(seed)
    median = np.where(rng.random(count) < 0.02, 20_000, 500)
    return np.maximum(1, median * rng.lognormal(0, 1.1, count)).astype(np.int64)


def measure_costs() -> Costs:
    """The costs of packed rows of such documents, in the order of an epoch."""
    lengths = draw_mix(DOCUMENTS)
    rule = PackingRule(LENGTH, choose_window(LENGTH, float(lengths.mean())))
    order = PackedOrder(Order(DOCUMENTS, 1), rule, lambda ids: lengths[ids.view(np.int64)])
    rows = np.arange(len(order), dtype=np.uint64)
    return CostBalance(cost_by_width(WIDTH)).measure(order, rows)


def measure_shares(costs: Costs, rows: int, assignment: Any, lockstep: bool) -> Costs:
    """The costs of each rank's rows, (steps, ranks, rows)."""
    balance = CostBalance(lambda own: costs[own], lambda ids: ids.view(np.int64), lockstep)
    batch = RANKS * rows
    steps = Steps(
        len(costs) // batch * batch,
        batch,
        RANKS,
        assignment=assignment,
        balance=balance if assignment == "balanced" else None,
    )
    order = Order(len(costs), 0, shuffle="none")
    dealt = [steps.positions(0, len(steps), rank, order)[0] for rank in range(RANKS)]
    return costs[np.concatenate(dealt).view(np.int64)].reshape(RANKS, -1, rows).swapaxes(0, 1)


def balance_rows() -> list[Row]:
    """Max over mean cost, strided and balanced, in steps and in lockstep."""
    costs = measure_costs()
    rows = []
    for number in (4, 16):
        for assignment in ("strided", "balanced"):
            sums = measure_shares(costs, number, assignment, False).sum(axis=2)
            apart = (sums.max(axis=1) / sums.mean(axis=1)).mean()
            shares = measure_shares(costs, number, assignment, True)
            together = (shares.max(axis=1).sum(axis=1) / shares.mean(axis=1).sum(axis=1)).mean()
            target = TARGETS[number] if assignment == "balanced" else None
            case = f"{RANKS} ranks x {number} rows of 128 k, {assignment}"
            met = None if target is None else bool(apart <= target)
            rows.append(Row(f"max / mean cost, {case}", float(apart), "x", target=target, met=met))
            rows.append(Row(f"max / mean cost of microsteps, {case}", float(together), "x"))
    return rows


def dealing_rows() -> list[Row]:
    """Time of dealing, by row of the global batch."""
    table = draw_mix(1 << 20)
    balance = CostBalance(cost_by_width(WIDTH), lambda ids: table[ids.view(np.int64)])
    order = Order(1 << 20, 0, shuffle="none")
    rows = []
    for ranks, number in ((64, 4), (64, 16), (1024, 4)):
        batch = ranks * number
        steps = Steps(1 << 20, batch, ranks, assignment="balanced", balance=balance)
        window = steps.window(0)
        costs = balance.measure(order, np.arange(window * batch, dtype=np.uint64))
        costs = costs.reshape(window, batch)
        alone, whole = [], []
        for _ in range(REPEAT):
            start = time.thread_time()
            own = deal(level_costs(costs), np.arange(window), ranks, False)
            own[:, ranks - 1 :: ranks].copy().sort(axis=1)
            alone.append((time.thread_time() - start) / costs.size * 1e9)
            start = time.thread_time()
            steps.positions(0, window, ranks - 1, order)
            whole.append((time.thread_time() - start) / costs.size * 1e9)
        name = f"dealing, {ranks} ranks x {number} rows"
        rows.append(
            Row(
                name,
                min(alone),
                "ns a row",
                target=DEALING_NS,
                met=min(alone) <= DEALING_NS,
                note=f"with order, lengths and costs {min(whole):.0f}",
            )
        )
    return rows


def measure_balance() -> list[Row]:
    """All rows of this benchmark."""
    return balance_rows() + dealing_rows()


def main() -> None:
    for row in measure_balance():
        target = f"  (at most {row.target:g})" if row.target is not None else ""
        print(f"{row.name:68} {row.value:8.3f} {row.unit}{target}  {row.note}")


if __name__ == "__main__":
    main()
