"""Balanced assignment: against plain loops, exact global batches, bounds of balance, caches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import DataError, UsageError
from penstock.extent import Int
from penstock.order import Order
from penstock.order.packed_order import RowOrdering, RowPieces
from penstock.plan import Locality, Placement, Session, Steps
from penstock.plan.balance import CostBalance, _divide_bands, deal, level_costs
from penstock.plan.sample_cost import LengthCost
from penstock_sim.closed_forms import remote_share
from tests.plan.test_assignment import global_steps, strided
from tests.plan.test_steps import fixed_index


def linear(lengths: Int) -> Any:
    return lengths.astype(np.float64)


def balance_table(table: Int, **options: Any) -> CostBalance:
    """The balance of samples that cost what a table says."""
    return CostBalance(linear, lambda ids: table[ids.view(np.int64)], **options)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Steps, Order, Int]:
    """An epoch dealt by costs, many of them equal; costs fit 16 bits, and one is the largest."""
    world = draw(st.integers(1, 9))
    global_batch = world * draw(st.integers(1, 8))
    count = draw(st.integers(world, 300))
    drop_last = draw(st.booleans()) and count >= global_batch
    pad = not drop_last and draw(st.booleans())
    most = draw(st.sampled_from([0, 1, 3, 65535]))
    table = np.random.default_rng(draw(st.integers(0, 99))).integers(0, most, count, endpoint=True)
    balance = balance_table(table, lockstep=draw(st.booleans()))
    steps = Steps(count, global_batch, world, drop_last, pad, "balanced", balance=balance)
    return steps, Order(count, draw(st.integers(0, 99))), table


def by_loops(costs: list[int], quotas: list[int], turn: int, lockstep: bool) -> list[list[int]]:
    """The rows of each rank, as dealt one by one, by the rule as it is worded."""
    most = max(*costs, 1)
    keys = [-int(cost * (65535 / most)) for cost in costs]
    ranks: list[list[int]] = [[] for _ in quotas]
    sums = [0] * len(quotas)
    for number, row in enumerate(sorted(range(len(costs)), key=lambda row: (keys[row], row))):
        stripe = number // len(quotas)
        open_ranks = [
            rank
            for rank, own in enumerate(ranks)
            if len(own) < (min(quotas[rank], stripe + 1) if lockstep else quotas[rank])
        ]
        is_short = lockstep and stripe == min(quotas)  # of the first ranks, in their sequence
        rank = min(
            open_ranks,
            key=lambda r: (sums[r], r if is_short else (r + turn) % len(quotas)),
        )
        sums[rank] -= keys[row]
        ranks[rank].append(row)
    return ranks


@given(jobs())
def test_as_the_rule_is_worded(job: tuple[Steps, Order, Int]) -> None:
    """Vectorised over a window, each rank has what plain loops give it."""
    steps, order, table = job
    assert steps.balance is not None
    for number, dealt in enumerate(global_steps(steps, order)):
        quotas = steps.quotas(number).tolist()
        start, rows = number * steps.global_batch, sum(quotas)
        positions = np.arange(start, start + rows)
        samples = order.samples(positions % steps.count)
        costs = table[samples.view(np.int64)].tolist()
        ranks = by_loops(costs, quotas, start // rows % steps.world_size, steps.balance.lockstep)
        for rank, own in enumerate(ranks):
            if not steps.balance.lockstep:
                own.sort()
            own.sort(key=lambda row: bool(positions[row] >= steps.count))
            assert dealt[rank] == samples[own].tolist()


@given(jobs(), st.data())
def test_global_batches_are_kept(job: tuple[Steps, Order, Int], data: st.DataObject) -> None:
    """Each step has the samples, repeats included, that it has when dealt by place, each rank its
    quota, whichever windows the steps are dealt in."""
    steps, order, _ = job
    without, dealt = global_steps(strided(steps), order), global_steps(steps, order)
    for number, (one, other) in enumerate(zip(without, dealt, strict=True)):
        assert Counter(chain(*one)) == Counter(chain(*other))
        assert [len(ids) for ids in other] == steps.quotas(number).tolist()
    first = data.draw(st.integers(0, len(steps) - 1))
    assert global_steps(steps, order, first) == dealt[first:]
    for rank in range(steps.world_size):
        positions, _, repeats = steps.positions(0, len(steps), rank, order)
        assert steps.positions(len(steps) - 1, len(steps), rank, order)[2] == repeats
        for position in positions[len(positions) - repeats :].tolist():
            assert position < steps.global_batch  # from the head of the epoch


@given(jobs())
def test_loads_are_near(job: tuple[Steps, Order, Int]) -> None:
    """In lockstep loads of full steps differ by no more than two samples do, up to rounding, and
    samples of equal number by no more than neighbours of the sorted batch do."""
    steps, order, table = job
    assert steps.balance is not None
    steps = replace(steps, balance=replace(steps.balance, lockstep=True))
    for dealt in global_steps(steps, order)[: steps.full]:
        costs = table[np.array(dealt)]
        rounding = costs.max() / 65535 * costs.shape[1]
        loads = costs.sum(axis=1)
        assert loads.max() - loads.min() <= costs.max() - costs.min() + 2 * rounding
        stripes = np.sort(costs, axis=None)[::-1].reshape(costs.shape[1], -1)
        apart = stripes.max(axis=1) - stripes.min(axis=1)
        assert (np.ptp(costs.T, axis=1) <= apart + 2 * costs.max() / 65535).all()


def test_one_long_sample_is_made_up_for() -> None:
    """Whoever has the sample that costs half of all gets the cheapest ones besides; stripes of
    neighbours cannot do that."""
    rng = np.random.default_rng(1)
    table = rng.lognormal(6, 1.1, 512 * 40).astype(np.int64)
    spreads = []
    for lockstep in (False, True):
        balance = balance_table(table, lockstep=lockstep)
        steps = Steps(len(table), 512, 16, assignment="balanced", balance=balance)
        loads = table[np.array(global_steps(steps, Order(len(table), 1)))].sum(axis=2)
        spreads.append(float((loads.max(axis=1) / loads.mean(axis=1)).mean()))
    assert spreads[0] < 1.05 < 1.2 < spreads[1]


def test_ties_go_by_position() -> None:
    """Samples of equal cost are taken in the order of the batch; 70,000 rows are no exception."""
    by_cost = deal(level_costs(np.tile([1.0, 2.0], (2, 35_000))), np.zeros(2, np.int64), 1, False)
    expected = np.concatenate([np.arange(1, 70_000, 2), np.arange(0, 70_000, 2)])
    assert (by_cost == expected).all()


def test_no_rank_always_has_the_costliest() -> None:
    """With one sample a rank, the costliest comes to each rank in turn."""
    table = np.arange(1000)
    steps = Steps(1000, 5, 5, assignment="balanced", balance=balance_table(table))
    dealt = np.array(global_steps(steps, Order(1000, 3)))[:, :, 0]
    assert Counter(dealt.argmax(axis=1).tolist()) == dict.fromkeys(range(5), 40)


class Rows(RowOrdering):
    """An ordering of packed rows, of 1 to 3 documents each."""

    shuffle, algorithm, seed = "exact", "rows", 0

    def __init__(self, lengths: list[list[int]]) -> None:
        self.lengths = lengths

    def pieces(self, rows: Any) -> RowPieces:
        own = [self.lengths[row] for row in rows.tolist()]
        lengths = np.array([s for row in own for s in row], np.int64)
        documents = np.arange(len(lengths), dtype=np.uint64)
        offsets = np.cumsum([0, *map(len, own)])
        return RowPieces(offsets, documents, 0 * lengths, lengths, lengths, {})


def test_rows_cost_what_their_documents_cost() -> None:
    """Rows of equal length differ in cost by their documents, and are dealt by it."""
    order: Any = Rows([[8], [4, 4], [2, 2, 4], [8], [4, 4], [8], [2, 2, 4], [4, 4]])
    balance = CostBalance(LengthCost(1, 1))
    assert balance.measure(order, np.arange(3, dtype=np.uint64)).tolist() == [72, 40, 32]
    steps = Steps(8, 8, 4, assignment="balanced", balance=balance)
    loads = []
    for rank in range(4):
        positions = steps.positions(0, 1, rank, order)[0]
        loads.append(balance.measure(order, positions).sum())
    assert sorted(loads) == [80, 104, 104, 112]


# -- with caches -----------------------------------------------------------------------------------


def count_moves(steps: Steps, order: Order, share: float | None) -> int:
    """The samples that are processed away from their owner, in full steps."""
    balance = steps.balance
    assert balance is not None
    if share is not None:
        steps = replace(steps, balance=replace(balance, locality_share=share))
    locality = balance.locality
    assert locality is not None
    moved = 0
    for dealt in global_steps(steps, order)[: steps.full]:
        for rank, own in enumerate(dealt):
            owners = locality.placement.owners(np.array(own, np.uint64))
            moved += int(np.count_nonzero(owners != locality.nodes[rank]))
    return moved


@given(
    nodes=st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple),
    batch=st.integers(1, 9),
    share=st.floats(0.01, 1.0),
    lockstep=st.booleans(),
    pad=st.booleans(),
    seed=st.integers(0, 99),
)
@example(nodes=(0, 1, 2), batch=2, share=0.3, lockstep=False, pad=False, seed=1)
@example(nodes=(0, 1, 2), batch=2, share=0.3, lockstep=False, pad=False, seed=2)
@example(nodes=(2, 1, 0), batch=3, share=1.0, lockstep=True, pad=False, seed=3)
def test_caches_change_no_batch(
    nodes: tuple[int, ...], batch: int, share: float, lockstep: bool, pad: bool, seed: int
) -> None:
    """Nodes of any number of ranks, in any sequence: global batches and quotas are kept, and the
    whole share moves no more samples than must move."""
    count = 7 * batch * len(nodes) + len(nodes) + 1
    table = np.random.default_rng(seed).integers(0, 100, count)
    locality = Locality(Placement(count, (count // 3,) * 4, seed=seed, cache_block=3), nodes)
    balance = balance_table(table, lockstep=lockstep, locality=locality, locality_share=share)
    steps = Steps(count, batch * len(nodes), len(nodes), False, pad, "balanced", balance=balance)
    order = Order(count, seed)
    without = global_steps(strided(steps), order)
    for number, (one, other) in enumerate(zip(without, global_steps(steps, order), strict=True)):
        assert Counter(chain(*one)) == Counter(chain(*other))
        assert [len(ids) for ids in other] == steps.quotas(number).tolist()
    local = replace(steps, assignment="local", balance=None, locality=locality)
    least = 0
    for dealt in global_steps(local, order)[: steps.full]:
        for rank, own in enumerate(dealt):
            owners = locality.placement.owners(np.array(own, np.uint64))
            least += int(np.count_nonzero(owners != nodes[rank]))
    assert count_moves(steps, order, 1.0) == least
    assert count_moves(steps, order, None) >= least


@pytest.mark.parametrize(("share", "width"), [(0.03, 1), (0.25, 8), (1.0, 32)])
def test_moves_follow_the_formula(share: float, width: int) -> None:
    """Where all nodes own all samples, as many move as local assignment's formula says for bands
    of these widths."""
    nodes, ranks, count = 4, 4, 400_000
    rng = np.random.default_rng(1)
    table = rng.lognormal(6, 1.1, count).astype(np.int64)
    locality = Locality(Placement(count, (count,) * nodes, seed=5), tuple(np.arange(16) % nodes))
    balance = balance_table(table, locality=locality, locality_share=share)
    steps = Steps(count, 512, 16, True, assignment="balanced", balance=balance)
    steps = replace(steps, count=512 * 60)
    moved = count_moves(steps, Order(count, 8), None) / (512 * 60)
    bands = _divide_bands(32, share)
    assert max(bands)[0] == width
    expected = sum(w * n * remote_share(w * ranks, nodes) for w, n in bands) / 32
    assert moved == pytest.approx(expected, rel=0.1)


# -- as the run uses it ----------------------------------------------------------------------------


def test_session_agrees() -> None:
    """Plans have the rows that are dealt, in lockstep too."""
    table = np.arange(500)[::-1].copy()
    balance = balance_table(table, lockstep=True)
    steps = Steps(500, 24, 4, assignment="balanced", balance=balance)
    for rank in range(4):
        order = Order(500, 6)
        session = Session(fixed_index(500, 10), order, steps, rank)
        positions, bounds, _ = steps.positions(0, len(steps), rank, order)
        for own in np.split(order.samples(positions), bounds[1:-1]):
            for group in session.admit():
                for planned in group.steps:
                    session.record_arrival(planned.step)
            assert session.hand_over().ids.tolist() == own.tolist()
        assert session.finished


def test_what_does_not_fit() -> None:
    """Costs are needed, and equal numbers of samples; the message has a batch that would do."""
    balance = balance_table(np.arange(100))
    with pytest.raises(UsageError, match="'balanced', which needs them"):
        Steps(100, 10, 2, assignment="balanced")
    with pytest.raises(UsageError, match="assignment='strided' with balance"):
        Steps(100, 10, 2, balance=balance)
    with pytest.raises(UsageError, match=r"to 4 ranks, and a global batch has 10: use 8 or 12"):
        Steps(100, 10, 4, assignment="balanced", balance=balance)
    steps = Steps(100, 10, 2, assignment="balanced", balance=balance)
    with pytest.raises(AssertionError, match="not on positions"):
        steps.ranks(np.arange(10))
    damaged = balance_table(np.array([5] * 50 + [-1] * 50))
    with pytest.raises(DataError, match=r"sample \d+ has the length -1: measure"):
        replace(steps, balance=damaged).positions(0, 5, 0, Order(100, 1))
