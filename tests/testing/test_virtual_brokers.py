"""Brokers in the virtual cluster: it finds bugs, it repeats itself, and what is shipped passes it;
what it found stays mended."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock import limits
from penstock.sharing.allocation import Resources
from penstock.sharing.federation import FallbackRate
from penstock.sharing.lease import JobMeasurement, Lease, Report
from penstock.sharing.ledger import Ledger
from tests.mutations import SHARING, Mutation, find_bug, make_sharing, read_mutations
from tests.virtual import (
    BrokerFault,
    BrokerFaultKind,
    BrokerJob,
    BrokerScenario,
    draw_broker_scenario,
    run_broker_scenario,
)
from tests.virtual.__main__ import main

S = 10**9
ALARMS = [10058, 20758, 30043, 30148, 40413, 50584, 60031]
"""Seeds that an oracle took for faults, and were none."""
EASY = [
    "broker_session: who has gone keeps its share",
    "client: a lost broker's lease is kept",
    "ledger: a silent member's part is dealt twice",
]
"""Bugs that the first seeds find; the long test of the list looks for all of them."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without the warnings of refused jobs."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def shape(**changes: Any) -> BrokerScenario:
    """One host with a job that reads much and one that reads little, with changes."""
    scenario = BrokerScenario(
        seed=1,
        hosts=1,
        cores=8.0,
        bytes_per_s=1e8,
        objective="utilisation",
        floors=1.0,
        jobs=(
            BrokerJob(1, 1, 0, 0, 1e4, 1e-4, 1e6, S),
            BrokerJob(1, 2, 0, 0, 10.0, 1e-3, 1e3, S),
        ),
        delay_ns=10**6,
    )
    return replace(scenario, **changes)


def test_the_broker_passes_fixed_seeds() -> None:
    """No oracle finds anything, with hosts that share a storage and without."""
    scenarios = [draw_broker_scenario(seed) for seed in range(2, 4)]
    assert {scenario.is_federated for scenario in scenarios} == {True, False}
    results = [run_broker_scenario(scenario) for scenario in scenarios]
    assert sum(result.failures for result in results) > 2
    assert sum(result.leases for result in results) > 100


@pytest.mark.long
@pytest.mark.extra
def test_the_broker_passes_more_seeds() -> None:
    results = [run_broker_scenario(draw_broker_scenario(seed)) for seed in range(4, 104)]
    assert sum(result.failures for result in results) > 100
    assert sum(result.transfers for result in results) > 100


def test_all_kinds_of_faults_are_drawn() -> None:
    scenarios = [draw_broker_scenario(seed) for seed in range(300)]
    drawn = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert drawn == set(BrokerFaultKind)
    assert any(not scenario.faults for scenario in scenarios)
    assert {scenario.hosts for scenario in scenarios} == {1, 2, 3}


@pytest.mark.long
def test_a_run_depends_on_its_scenario_alone() -> None:
    """The same scenario gives the same trace, message by message; another seed another one."""

    def trace(scenario: BrokerScenario) -> list[str]:
        lines: list[str] = []
        run_broker_scenario(scenario, lines.append)
        return lines

    stop = BrokerFault(BrokerFaultKind.STOP, 9 * S, 8 * S, rank=1)
    once = trace(shape(faults=(stop,)))
    assert once == trace(shape(faults=(stop,)))
    assert once != trace(shape(faults=(stop,), seed=2))
    assert any("'lease'" in line for line in once)


def named(name: str) -> Mutation:
    (mutation,) = (each for each in read_mutations() if each.name == name)
    return mutation


@pytest.mark.long
@pytest.mark.parametrize("name", EASY)
def test_a_bug_is_found(name: str) -> None:
    assert find_bug(named(name), named(name).seeds) is not None


@pytest.mark.long
def test_what_is_made_anew_without_a_bug_passes() -> None:
    """It is the bug that is found, not the making anew."""
    mutation = named(EASY[0])
    parts = make_sharing(mutation._replace(new=mutation.old))
    run_broker_scenario(draw_broker_scenario(1), parts=parts)


def test_bugs_of_sharing_are_edits() -> None:
    """Each piece stands once in its module: `find_bug` would raise."""
    bugs = [each for each in read_mutations() if each.module in SHARING]
    assert len(bugs) >= 12
    for bug in bugs:
        assert bug.path.read_text().count(bug.old) == 1, bug.name


@pytest.mark.long
def test_a_seed_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "2"]) == 0
    assert "'say': 'lease'" in capsys.readouterr().out


# -- what it found ---------------------------------------------------------------------------------


def test_a_broker_outlives_absurd_measurements_of_several_jobs() -> None:
    """Jobs that each report the most that a number may be were more than that together, which ended
    the broker of a host that shares a storage."""
    ledger = Ledger(Resources(cores=1, bytes_per_s=1e9))
    most = limits.allocation_number_max
    profile = {"samples_per_s": most, "cpu_s": 0.0, "storage_bytes": 1.0}
    for member in range(2):
        ledger.join(member, 0.0, job=str(member), rank=0, pid=1, name="train")
        measured = JobMeasurement(samples_per_s=most, bytes_per_s=most)
        ledger.report(member, 0.0, Report(profile=profile, measured=measured))
    ledger.transfers.begin((0, 0), 0.0, owner=0, job="0", bytes=1.0)
    ledger.transfers.moved((0, 0), 1.0, most)
    ledger.tick(1.0)
    assert ledger.report_together(most).measured.bytes_per_s == most


def test_a_transfer_of_large_pieces_keeps_its_rate() -> None:
    """While it paid for a piece, it looked as if it could take nothing, and was granted 1 MiB/s
    from then on, of 20 MB/s."""
    bytes = 500_000_000
    job = BrokerJob(1, 1, 0, 0, 1e4, 1e-4, 1e6, S, bytes, 46 * S, pieces=4)
    assert run_broker_scenario(shape(jobs=(job,))).transfers == 1


def test_transfers_of_a_host_ask_for_more_than_it_is_leased() -> None:
    """A host whose jobs read nothing said that its transfers could take what it was leased, and so
    was never leased more."""
    ledger = Ledger(Resources(cores=1, bytes_per_s=1e6))
    ledger.transfers.begin((0, 0), 0.0, owner=0, job="a", bytes=1e9)
    ledger.tick(0.0)
    profile = ledger.report_together(1e9).profile
    assert profile is not None
    assert profile["samples_per_s"] == 1e9


@pytest.mark.parametrize(
    "seed",
    [30039, 70234, 81365, 90037, *(pytest.param(seed, marks=pytest.mark.long) for seed in ALARMS)],
)
def test_seeds_that_found_something(seed: int) -> None:
    """30039: a transfer that looked for its broker late. 70234: a host that asked for nothing.
    81365: a lease that was renewed late. 90037: a lease from before the others were back."""
    run_broker_scenario(draw_broker_scenario(seed))


def test_a_host_asks_though_a_job_does_not_say_how_much_is_left() -> None:
    """With the objective "makespan" it said nothing any more of what its jobs and transfers could
    take, and kept the lease of what it had said before."""
    ledger = Ledger(Resources(cores=1, bytes_per_s=1e6), "makespan")
    ledger.join(0, 0.0, job="a", rank=0, pid=1, name="train")
    told = {"samples_per_s": 100.0, "cpu_s": 0.0, "storage_bytes": 1e3}
    measured = JobMeasurement(samples_per_s=100, bytes_per_s=1e5)
    ledger.report(0, 1.0, Report(profile=told, measured=measured))
    ledger.tick(1.0)
    ledger.transfers.begin((0, 0), 1.0, owner=0, job="a", bytes=1e9)
    profile = ledger.report_together(1e9).profile
    assert profile is not None
    assert profile["samples_per_s"] == 1e9 + 1e5


def test_a_host_waits_for_the_leases_of_others() -> None:
    """If the broker above hangs, leases end one after the other: a host that went up to its floor
    at the end of its own took what others still had."""
    holding = FallbackRate(math.inf, limits.broker_gather_s)
    lease = Lease(cores=1, bytes_per_s=25, floor_cores=1, floor_bytes_per_s=50, lasts_s=5)
    assert holding.rate(lease, 0.0) == 25
    assert holding.rate(lease.ended, 5.0, has_ended=True) == 25
    assert holding.rate(lease.ended, 9.9, has_ended=True) == 25
    assert holding.rate(lease.ended, 10.0, has_ended=True) == 50
    assert holding.rate(lease, 11.0) == 25
