"""Training jobs in the virtual cluster: they pass, they repeat themselves, and bugs are found."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.mutations import JOBS, Mutation, find_bug, make_parts, read_mutations
from tests.virtual import (
    FaultKind,
    JobScenario,
    ScenarioError,
    draw_job_scenario,
    minimise,
    run_job_scenario,
)
from tests.virtual.__main__ import main

SEEDS = range(1, 41)
BUGS = [mutation for mutation in read_mutations() if mutation.module in JOBS]
EASY = [
    "session: one arrival moves one step",
    "cursor: a restored epoch counts as begun",
    "step_reader: steps arrive in the order of reports",
    "ticket_router: one report of a poll is delivered",
    "steps: strided ranks begin at the same place",
]
"""Bugs of the list that few jobs find; the long test looks for all of them."""


def named(name: str) -> Mutation:
    (mutation,) = (each for each in BUGS if each.name == name)
    return mutation


def traced(scenario: JobScenario) -> list[str]:
    lines: list[str] = []
    run_job_scenario(scenario, lines.append)
    return lines


def test_jobs_pass_fixed_seeds() -> None:
    """No oracle finds anything in jobs whose worlds shrink and grow between attempts."""
    scenarios = [draw_job_scenario(seed) for seed in SEEDS]
    results = [run_job_scenario(scenario) for scenario in scenarios]
    worlds = [[len(attempt.nodes) for attempt in job.attempts] for job in scenarios]
    pairs = [pair for sizes in worlds for pair in pairwise(sizes)]
    assert any(before < after for before, after in pairs)
    assert any(before > after for before, after in pairs)
    assert sum(result.attempts > 1 for result in results) > 10
    assert {job.assignment for job in scenarios} == {"strided", "contiguous", "local"}
    assert {(job.pad, job.drop_last) for job in scenarios} == {
        (False, False),
        (True, False),
        (False, True),
    }
    assert {fault.kind for job in scenarios for fault in job.faults} == set(FaultKind)


def test_ranks_go_back_within_an_attempt() -> None:
    """Ranks leave an epoch while reads are under way, and go on from the last state."""
    lines = [line for seed in SEEDS for line in traced(draw_job_scenario(seed))]
    assert sum("goes back to the last state" in line for line in lines) > 10


def test_a_run_depends_on_its_scenario_alone() -> None:
    """The same scenario gives the same trace, action by action; another seed another one."""
    scenario = draw_job_scenario(3)
    trace = traced(scenario)
    assert trace == traced(draw_job_scenario(3))
    assert trace != traced(draw_job_scenario(4))
    assert any("takes step" in line for line in trace)
    assert any("the attempt ends" in line for line in trace)


@pytest.mark.parametrize("name", EASY)
def test_a_bug_is_found(name: str) -> None:
    """A reader, router, session, cursor or geometry with this bug fails one of the first jobs."""
    assert find_bug(named(name), named(name).seeds) is not None


def test_what_is_made_anew_without_a_bug_passes() -> None:
    """Bugs are found, and not the making anew of the modules."""
    for module in JOBS:
        bug = next(each for each in BUGS if each.module == module)
        run_job_scenario(draw_job_scenario(1), parts=make_parts(bug._replace(new=bug.old)))


def test_a_failure_is_minimised() -> None:
    """Attempts, faults and epochs that a failure does not need are left out."""
    parts = make_parts(named("step_reader: failures are forgotten"))

    def fails(scenario: JobScenario) -> bool:
        try:
            run_job_scenario(scenario, parts=parts)
        except ScenarioError:
            return True
        return False

    scenario = next(job for job in map(draw_job_scenario, range(1, 100)) if fails(job))
    smallest = minimise(scenario, fails)
    assert fails(smallest)
    assert FaultKind.ERRORS in {fault.kind for fault in smallest.faults}
    assert len(smallest.faults) < len(scenario.faults)
    run_job_scenario(smallest)
    assert not fails(
        replace(smallest, attempts=tuple(replace(one, faults=()) for one in smallest.attempts))
    )


def test_a_seed_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints each action of a seed, and a search says how much it tried."""
    assert main(["job", "3"]) == 0
    assert "takes step 0 of epoch 0" in capsys.readouterr().out
    assert main(["job", "--seconds", "0.1", "--first", "5"]) == 0
    assert " job scenarios from seed 5 on" in capsys.readouterr().out
