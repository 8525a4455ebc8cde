"""The benchmark of scale: its curves, its models, and the oracle of its job."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import report
from benchmarks.record import RESULTS
from benchmarks.scale import curves
from benchmarks.scale.curves import Curve
from benchmarks.scale.exchange import count_calls
from benchmarks.scale.indexes import make_rows, measure_pages
from benchmarks.scale.job import (
    JobError,
    JobSize,
    check_bytes,
    check_share,
    check_whole_step,
    make_index,
    simulate_job,
)
from benchmarks.scale.peers import count_descriptors
from benchmarks.scale.rendezvous import (
    MessageCosts,
    StoreExchange,
    TreeExchange,
    predict_store,
)
from penstock.extent import Int
from penstock.order.order import Order, Ordering
from penstock.plan.batch_layout import Ids
from penstock.plan.steps import Steps

COSTS = MessageCosts(handling_ns=10_000)
SMALL = JobSize(samples=100_003, shards=10, ranks=40)


def curve(power: float, points: curves.Points, simulated: curves.Points = ()) -> Curve:
    """A curve over ranks with a limit of 1,000 s."""
    return Curve("x", "ranks", "s", power, 1000.0, "once", points, simulated)


def test_a_fit_goes_through_the_first_and_the_last_point() -> None:
    """Fixed cost and unit cost are told apart, and the break is where the fit meets the limit."""
    squares = curve(2, ((1, 7.0), (10, 205.0)))
    assert squares.fit() == pytest.approx((5.0, 2.0))
    assert squares.breaks_at == pytest.approx(math.sqrt(995 / 2))
    assert math.isinf(curve(0, ((1, 7.0), (100, 6.0))).breaks_at)


def test_a_cost_says_where_it_comes_from() -> None:
    """Up to the last measured size it was measured, then simulated, then extrapolated."""
    known = curve(1, ((1, 1.0), (10, 10.0)), ((100, 100.0),))
    sources = [known.tell_source(size) for size in (5, 50, 500)]
    assert sources == ["measured", "simulated", "extrapolated"]


@pytest.mark.skipif(not (RESULTS / "scale.json").exists(), reason="no record")
def test_the_page_and_its_charts_are_what_the_command_writes() -> None:
    """docs/scale.md has the table of the record, and the charts beside it are of the record."""
    for path, text in curves.write_pages().items():
        assert path.read_text() == text, f"python -m {report.__name__} writes another {path.name}"


def test_the_simulated_exchange_makes_the_messages_of_the_shipped_one() -> None:
    """The simulation makes each call of the store that the shipped code makes, of each rank."""
    for world in (2, 5, 16):
        calls = count_calls(world)
        assert calls == {"add": world, "set": world, "get": world**2, "delete_key": world}
        assert StoreExchange(world, 400, COSTS).run().messages == calls.total()


@pytest.mark.parametrize("handling_ns", [100, 10_000])
def test_the_formula_of_the_store_is_the_simulation(handling_ns: int) -> None:
    """Where the store is busy throughout, and where ranks wait for the network."""
    costs = MessageCosts(handling_ns)
    for world in (4, 32, 128):
        run, formula = StoreExchange(world, 400, costs).run(), predict_store(world, 400, costs)
        assert formula.seconds == pytest.approx(run.seconds, rel=0.05)
        assert (formula.messages, formula.busy_bytes) == (run.messages, run.busy_bytes)


def test_a_tree_takes_messages_in_proportion_to_its_ranks() -> None:
    """One message up and one down for each rank but the root, and little time."""
    for world in (1, 8, 1000, 20_000):
        assert TreeExchange(world, 400, COSTS).run().messages == 2 * (world - 1)
    assert TreeExchange(20_000, 400, COSTS).run().seconds < 1


def test_pages_give_the_rows_of_a_table(tmp_path: Path) -> None:
    """The model equals the shipped table, and reads one page for a sample at most."""
    costs = measure_pages(tmp_path, 50, 1000)
    assert costs["directory_bytes_a_shard"] < 20
    assert costs["read_bytes_a_sample"] <= 4096
    assert make_rows(10, 3).lengths(np.arange(10)).min() >= 150


def test_a_job_is_planned_as_it_is_due() -> None:
    """Ranks have their samples and bytes; whole steps, the last one too, are made up exactly."""
    found = simulate_job(SMALL, 8, 20, 4)
    assert found.rank_steps == 8 * 20
    assert found.samples == 8 * 20 * SMALL.batch
    assert found.whole_steps[-1] == SMALL.samples // SMALL.global_batch


class Overlapping(Steps):
    """Steps in which rank 7 has the samples of rank 6."""

    __slots__ = ()

    def positions(
        self, first: int, last: int, rank: int, order: Ordering | None = None
    ) -> tuple[Ids, Int, int]:
        return Steps.positions(self, first, last, 6 if rank == 7 else rank, order)


def test_the_oracle_finds_wrong_plans() -> None:
    """A rank that has its neighbour's samples, steps that lack some, and bytes of other samples."""
    order = Order(SMALL.samples, 1)
    right = Steps(SMALL.samples, SMALL.global_batch, SMALL.ranks)
    samples = order.samples(right.positions(5, 6, 7)[0])
    check_share(SMALL, order, 5, 7, samples)
    with pytest.raises(JobError, match="rank 6"):
        check_share(SMALL, order, 5, 6, samples)
    check_whole_step(order, right, 5)
    with pytest.raises(JobError, match="step 5"):
        check_whole_step(order, Overlapping(SMALL.samples, SMALL.global_batch, SMALL.ranks), 5)
    extents = make_index(SMALL.samples, SMALL.shards).extents(samples)
    check_bytes(SMALL, samples, extents)
    with pytest.raises(JobError):
        check_bytes(SMALL, samples, extents._replace(offset=extents.offset + 1))


def test_descriptors_of_peers_grow_with_nodes() -> None:
    """Some for each node that was asked."""
    one, three = count_descriptors(1), count_descriptors(3)
    assert (three - one) % 2 == 0
    assert 2 <= (three - one) / 2 <= 8
