"""Local assignment: who processes what, against plain loops, optimal assignments and theory."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.loader.sampler import StepSampler
from penstock.order.mixture import Mixture, MixtureRecipe, divide_slots
from penstock.order.order import Order, Ordering
from penstock.plan.assignment import Locality, assign_nodes
from penstock.plan.placement import Placement
from penstock.plan.readahead import Session
from penstock.plan.steps import Steps, plan_steps
from penstock.ranks.place import Place
from penstock_sim.closed_forms import remote_share
from tests.plan.test_steps import fixed_index


def by_loops(owners: list[int], quotas: list[int], nodes: list[int]) -> list[int]:
    """The rank of each sample of one global batch, by the rule as it is worded."""
    left = Counter[int]()
    for rank, node in enumerate(nodes):
        left[node] += quotas[rank]
    at = []
    for owner in owners:
        at.append(owner if left[owner] > 0 else -1)
        left[owner] -= at[-1] >= 0
    for row in range(len(at)):
        if at[row] < 0:
            at[row] = min(node for node in left if left[node] > 0)
            left[at[row]] -= 1
    ranks: list[int] = []
    for node in at:
        dealt = Counter(ranks)
        ranks.append(
            min(
                (dealt[rank], rank)
                for rank, other in enumerate(nodes)
                if other == node and dealt[rank] < quotas[rank]
            )[1]
        )
    return ranks


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Steps, Ordering]:
    """An epoch dealt locally: some nodes without ranks, or without room; ranks in any sequence."""
    world = draw(st.integers(1, 9))
    hosts = draw(st.integers(1, 6))
    count = draw(st.integers(world, 300))
    global_batch = draw(st.integers(world, 60))
    drop_last = draw(st.booleans()) and count >= global_batch
    room = draw(st.lists(st.integers(0, 200), min_size=hosts, max_size=hosts).map(tuple))
    placement = Placement(
        count, room, seed=draw(st.integers(0, 9)), cache_block=draw(st.integers(1, 40))
    )
    nodes = draw(st.lists(st.integers(0, hosts - 1), min_size=world, max_size=world).map(tuple))
    steps = Steps(
        count,
        global_batch,
        world,
        drop_last,
        not drop_last and draw(st.booleans()),
        "local",
        Locality(placement, nodes),
    )
    shuffle: Any = draw(st.sampled_from(["exact", "blocked", "none"]))
    order: Ordering = Order(count, draw(st.integers(0, 99)), shuffle=shuffle, block=4, group=3)
    if count > 4 and draw(st.booleans()):
        slots = (divide_slots([1, 2]),)
        order = Mixture(MixtureRecipe((count // 2, count - count // 2), (0,), slots, count), seed=3)
    return steps, order


def global_steps(steps: Steps, order: Ordering, first: int = 0) -> list[list[list[int]]]:
    """The samples of each rank in each step from `first` on."""
    dealt = []
    for rank in range(steps.world_size):
        positions, bounds, repeats = steps.positions(first, len(steps), rank, order)
        ids = order.samples(positions)
        assert repeats == 0 or steps.pad
        dealt.append([part.tolist() for part in np.split(ids, bounds[1:-1])])
    return [list(step) for step in zip(*dealt, strict=True)]


def strided(steps: Steps) -> Steps:
    return Steps(steps.count, steps.global_batch, steps.world_size, steps.drop_last, steps.pad)


@given(jobs())
def test_as_the_rule_is_worded(job: tuple[Steps, Ordering]) -> None:
    """Vectorised over a window, each rank has what plain loops give it, in the batch's order."""
    steps, order = job
    locality = steps.locality
    assert locality is not None
    for number, dealt in enumerate(global_steps(steps, order)):
        quotas = steps.quotas(number)
        start = number * steps.global_batch
        samples = order.samples(np.arange(start, start + quotas.sum()) % steps.count)
        owners = locality.placement.owners(samples).tolist()
        ranks = by_loops(owners, quotas.tolist(), list(locality.nodes))
        for rank in range(steps.world_size):
            assert dealt[rank] == [
                int(sample) for sample, to in zip(samples, ranks, strict=True) if to == rank
            ]
        assert locality.ranks(samples[None], quotas).tolist() == [ranks]


@given(jobs())
def test_global_batches_are_kept(job: tuple[Steps, Ordering]) -> None:
    """Each step has the samples, repeats included, that it has without locality, and each rank
    its quota of them."""
    steps, order = job
    without = global_steps(strided(steps), order)
    local = global_steps(steps, order)
    for number, (one, other) in enumerate(zip(without, local, strict=True)):
        assert Counter(chain(*one)) == Counter(chain(*other))
        assert [len(ids) for ids in other] == steps.quotas(number).tolist()
        assert [len(ids) for ids in other] == [
            steps.rows(number, rank) for rank in range(steps.world_size)
        ]


@given(jobs())
def test_repeats_come_last(job: tuple[Steps, Ordering]) -> None:
    """In a padded step each sample is valid once, and a rank's repeats are its last rows."""
    steps, order = job
    valid: Counter[int] = Counter()
    for rank in range(steps.world_size):
        positions, _, repeats = steps.positions(0, len(steps), rank, order)
        valid.update(positions[: len(positions) - repeats].tolist())
    whole = len(steps) * steps.global_batch if steps.drop_last else steps.count
    assert valid == Counter(range(whole))


@given(jobs(), st.data())
def test_windows_join(job: tuple[Steps, Ordering], data: st.DataObject) -> None:
    """Positions do not depend on how the steps are cut into windows."""
    steps, order = job
    rank = data.draw(st.integers(0, steps.world_size - 1))
    cut = data.draw(st.integers(0, len(steps)))
    whole, _, _ = steps.positions(0, len(steps), rank, order)
    parts = [
        steps.positions(0, cut, rank, order)[0],
        steps.positions(cut, len(steps), rank, order)[0],
    ]
    assert np.array_equal(whole, np.concatenate(parts))


def test_many_steps_of_many_nodes() -> None:
    """Windows of more bins than 16 bits count are dealt in pieces, of more nodes at once."""
    generator = np.random.default_rng(1)
    for steps, nodes in ((7, 30_000), (2, 70_000)):
        owners = generator.integers(-1, nodes, (steps, nodes)).astype(np.int32)
        capacities = np.ones(nodes, np.int64)
        for step, dealt in zip(owners, assign_nodes(owners, capacities), strict=True):
            assert np.array_equal(np.sort(dealt), np.arange(nodes))
            first = np.unique(step, return_index=True)[1]
            kept = first[step[first] >= 0]
            assert np.array_equal(dealt[kept], step[kept])
            spare = np.setdiff1d(np.arange(nodes), kept)
            assert np.array_equal(dealt[spare], np.sort(dealt[spare]))


@given(jobs())
def test_no_assignment_moves_fewer(job: tuple[Steps, Ordering]) -> None:
    """The samples that stay with their owner are as many as in an optimal linear assignment."""
    optimize = pytest.importorskip("scipy.optimize")
    steps, order = job
    locality = steps.locality
    assert locality is not None
    nodes = np.array(locality.nodes)
    quotas = steps.quotas(0)
    samples = order.samples(np.arange(quotas.sum()) % steps.count)
    owners = locality.placement.owners(samples)
    places = np.repeat(nodes, quotas)
    stays = owners[:, None] == places[None, :]
    best = stays[optimize.linear_sum_assignment(stays, maximize=True)].sum()
    ranks = locality.ranks(samples[None], quotas)[0]
    assert np.count_nonzero(nodes[ranks] == owners) == best


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize(("batch", "ranks"), [(32, 1), (256, 1), (64, 4)])
def test_moves_are_those_expected(nodes: int, batch: int, ranks: int) -> None:
    """Over real orders the fraction that leaves its owner is the binomial's, within a tenth; where
    ranks share a node, with the node's samples of a step."""
    count = 1_000_000
    placement = Placement(count, (count,) * nodes, seed=5)
    world = nodes * ranks
    locality = Locality(placement, tuple(rank % nodes for rank in range(world)))
    steps = 400_000 // (batch * world)
    samples = Order(count, 8).run(0, steps * batch * world).reshape(steps, -1)
    dealt = locality.ranks(samples, np.full(world, batch))
    moved = np.mean(dealt % nodes != placement.owners(samples))
    assert moved == pytest.approx(remote_share(batch * ranks, nodes), rel=0.1)


# -- as the run uses it ----------------------------------------------------------------------------


def place_data(count: int, nodes: tuple[int, ...]) -> Locality:
    return Locality(
        Placement(count, (count // 2,) * (max(nodes) + 1), seed=2, cache_block=3), nodes
    )


def deal(count: int, nodes: tuple[int, ...], rank: int, **options: Any) -> StepSampler:
    asked = {"batch_size": None, "global_batch_size": 24, "drop_last": False, "pad": False}
    return StepSampler(
        "data",
        Order(count, 6),
        **{**asked, **options},
        place=Place(rank, len(nodes)),
        assignment="local",
    )


@given(
    worlds=st.lists(
        st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple), min_size=1, max_size=4
    ),
    pad=st.booleans(),
    data=st.data(),
)
def test_resume_on_other_nodes(
    worlds: list[tuple[int, ...]], pad: bool, data: st.DataObject
) -> None:
    """A run that goes on with other ranks on other nodes continues the same global batches."""
    count = data.draw(st.integers(24, 200))
    order = Order(count, 6)
    steps = -(-count // 24)
    found: list[Counter[int]] = []
    state: dict[str, Any] = {}
    for number, nodes in enumerate(worlds):
        samplers = [deal(count, nodes, rank, pad=pad) for rank in range(len(nodes))]
        stop = steps
        if number + 1 < len(worlds):
            stop = data.draw(st.integers(len(found), steps))
        for each in samplers if state else []:
            each.restore(state)
        if len(found) == steps:
            break
        begun = {each.begin(place_data(count, nodes)) for each in samplers}
        assert begun == {(0, len(found))}
        shares = [each.tasks(0, len(found)) for each in samplers]
        while len(found) < stop:
            parts = [next(share) for share in shares]
            found.append(
                Counter(
                    i for part in parts for i in part.ids[: len(part.ids) - part.repeats].tolist()
                )
            )
            for each in samplers:
                each.cursor.move(0, len(found))
        state = samplers[0].cursor.state()
        assert all(each.cursor.state() == state for each in samplers)
    assert found == [
        Counter(order.run(k * 24, min(24, count - k * 24)).tolist()) for k in range(steps)
    ]


def test_course_and_session_agree() -> None:
    """Whoever reads ahead and whoever hands whole batches to workers have the same rows; both bear
    the same marks as the plan."""
    count, nodes = 500, (0, 1, 1, 0, 2)
    for rank in range(len(nodes)):
        dealt = deal(count, nodes, rank)
        dealt.begin(place_data(count, nodes))
        order = dealt.order.at_epoch(1)
        session = Session(fixed_index(count, 10), order, dealt.steps, rank)
        for share in dealt.tasks(1):
            for group in session.admit():
                for planned in group.steps:
                    session.record_arrival(planned.step)
            assert session.hand_over().ids.tolist() == share.ids.tolist()
        assert session.finished
        assert dealt.rank_samples == sum(len(share.ids) for share in dealt.tasks(0))


def test_marks_follow_their_samples() -> None:
    """A mixture's marks of a row are those of the sample that stands there."""
    order = Mixture(MixtureRecipe((60, 40), (0,), (divide_slots([1, 1]),), 100), seed=3)
    locality = Locality(Placement(100, (50, 50), seed=1), (0, 1))
    steps = Steps(100, 20, 2, assignment="local", locality=locality)
    for rank in range(2):
        (group,) = plan_steps(fixed_index(100, 8), order, steps, rank, 0, 5, 0)
        for planned in group.steps:
            assert np.array_equal(planned.marks["source"], planned.ids >= 60)


def test_nodes_are_needed_to_begin_and_not_before() -> None:
    """The length is known before the nodes are; the epoch is dealt by those that it begins with."""
    dealt = StepSampler(
        "data", Order(100, 1), batch_size=10, global_batch_size=None, drop_last=False, pad=False,
        place=None, assignment="local",
    )  # fmt: skip
    assert len(dealt) == 10
    assert dealt.steps.locality is None
    nodes = Locality(Placement(100, (100,), seed=0), (0,))
    assert dealt.begin(nodes) == (0, 0)
    assert dealt.steps.locality is nodes


def test_what_does_not_fit() -> None:
    """Local assignment needs to know who keeps what, on the nodes that there are."""
    placement = Placement(100, (50, 50), seed=0)
    with pytest.raises(UsageError, match="no node keeps any: use 'strided'"):
        Steps(100, 10, 2, assignment="local")
    with pytest.raises(UsageError, match="nodes of 3 ranks, not 2"):
        Steps(100, 10, 2, assignment="local", locality=Locality(placement, (0, 1, 1)))
    with pytest.raises(UsageError, match="leave it out"):
        Steps(100, 10, 2, locality=Locality(placement, (0, 1)))
    for nodes in ((), (0, 2), (-1,), (0.5,)):
        with pytest.raises(UsageError, match=r"Locality\.nodes"):
            Locality(placement, nodes)  # type: ignore[arg-type]
