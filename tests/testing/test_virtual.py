"""The virtual cluster: it finds bugs, it repeats itself, and the shipped session passes it."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from penstock.plan.cache_actions import Action, Stop
from tests.mutations import Mutation, edit_source, find_bug, make_session, read_mutations
from tests.virtual import (
    Fault,
    FaultKind,
    ScenarioError,
    VirtualScenario,
    draw_scenario,
    minimise,
    run_scenario,
)
from tests.virtual.__main__ import main
from tests.virtual.search import run_in_order, run_seeds
from tests.virtual.shell import VirtualShell

SEEDS = range(1, 41)
EASY = [
    "claimed slots are not looked at again",
    "keys that a peer did not send are not read",
    "a step is reported twice",
    "claims of failed loads are kept",
    "a source is not released after its last want",
]
"""Bugs of the list that few scenarios find; the long test looks for all of them."""


def traced(scenario: VirtualScenario) -> list[str]:
    lines: list[str] = []
    run_scenario(scenario, lines.append)
    return lines


def named(name: str) -> Mutation:
    (mutation,) = (each for each in read_mutations() if each.name == name)
    return mutation


def test_the_session_passes_fixed_seeds() -> None:
    """No oracle finds anything in these scenarios, in which everything that can fail does."""
    scenarios = [draw_scenario(seed) for seed in SEEDS]
    for scenario in scenarios:
        run_scenario(scenario)
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert kinds == set(FaultKind)
    assert any(scenario.is_calm for scenario in scenarios)


def test_the_virtual_shell_performs_every_action() -> None:
    """No action of the session is unknown to its simulated driver; `Stop` alone ends it."""
    assert VirtualShell._performers.keys() == set(Action.__args__) - {Stop}


@pytest.mark.parametrize("seed", [4, 5])
def test_a_run_depends_on_its_scenario_alone(seed: int) -> None:
    """The same scenario gives the same trace, action by action; another seed another one."""
    scenario = draw_scenario(seed)
    trace = traced(scenario)
    assert trace == traced(draw_scenario(seed))
    assert trace != traced(replace(scenario, seed=seed + 1000))
    assert any("FetchKeys" in line or "LoadBlocks" in line for line in trace)


@pytest.mark.parametrize("name", EASY)
def test_a_bug_is_found(name: str) -> None:
    """A session with this bug fails one of the first scenarios, by name of what is wrong."""
    assert find_bug(named(name), named(name).seeds) is not None


def test_the_list_of_bugs_fits_the_source() -> None:
    """Each bug of the list still is an edit of the session, and has a name of its own."""
    mutations = read_mutations()
    assert len(mutations) == len({mutation.name for mutation in mutations}) >= 40
    for mutation in mutations:
        assert edit_source(mutation).count(mutation.new)


@pytest.mark.long
@pytest.mark.parametrize("bug", read_mutations(), ids=lambda bug: bug.name)
def test_every_bug_is_found(bug: Mutation) -> None:
    """Each bug of the list is found by the first seeds."""
    assert find_bug(bug, bug.seeds) is not None


def test_a_failure_is_minimised() -> None:
    """Faults that a failure does not need are left out, the one that it needs stays."""
    session = make_session(named("a refused fetch is forgotten"))

    def fails(scenario: VirtualScenario) -> bool:
        try:
            run_scenario(scenario, session_class=session)
        except ScenarioError:
            return True
        return False

    refusal = Fault(FaultKind.REFUSE, 0, 0, 10**9, extra=1)
    jumps = tuple(Fault(FaultKind.JUMP, rank, 10**6, 5) for rank in (0, 1))
    scenario = replace(shape(nodes=(0, 1), ram_blocks=(8, 8)), faults=(*jumps, refusal))
    assert fails(scenario)
    smallest = minimise(scenario, fails)
    assert smallest.faults == (refusal,)
    assert fails(smallest)
    assert not fails(replace(smallest, faults=()))


def shape(**changes: Any) -> VirtualScenario:
    """A calm scenario of two nodes, small, with changes."""
    scenario = VirtualScenario(
        seed=1,
        nodes=(0, 1),
        samples=16,
        fields=1,
        cache_block=1,
        ram_blocks=(8, 8),
        disk_blocks=(0, 0),
        room=1.0,
        batch=4,
        epochs=2,
        buffers=1,
        ahead=2,
        length_max=40,
        disk_buffer_bytes=1 << 20,
        answer_bytes=1 << 20,
        replicas=0,
        storage_ns=10**6,
        network_ns=10**5,
        disk_ns=10**5,
    )
    return replace(scenario, **changes)


def test_late_claims_keep_to_the_memory_of_the_disk() -> None:
    """Steps that waited for cache blocks which other ranks read do not all take memory at once when
    these are there; without a look at the memory in use they do."""
    scenario = shape(
        seed=3,
        nodes=(0, 0, 0, 0, 1),
        samples=17,
        cache_block=6,
        ram_blocks=(0, 0),
        disk_blocks=(7, 7),
        batch=1,
        buffers=2,
        ahead=8,
        length_max=6000,
        disk_buffer_bytes=1,
        answer_bytes=1,
        replicas=50,
        storage_ns=40_000_000,
        network_ns=50_000,
    )
    run_scenario(scenario)
    session = make_session(named("late claims do not look at memory"))
    with pytest.raises(ScenarioError, match="221184 bytes pass to or from the disk"):
        run_scenario(scenario, session_class=session)


def test_a_step_waits_for_other_ranks_until_one_deadline() -> None:
    """A step that waits for memory behind steps which wait for a stalled rank does not wait for
    that rank once more: its deadline counts from its request on."""
    scenario = shape(
        seed=762,
        nodes=(0, 0, 0, 0, 1),
        samples=26,
        fields=2,
        cache_block=6,
        ram_blocks=(0, 0),
        disk_blocks=(53, 53),
        batch=2,
        ahead=8,
        length_max=1,
        disk_buffer_bytes=1,
        storage_ns=50_000_000,
        network_ns=50_000,
        disk_ns=3_000_000,
        faults=(Fault(FaultKind.STALL, 0, 6_896_520, 165_474_742_959),),
    )
    run_scenario(scenario)
    run_scenario(draw_scenario(202528))
    session = make_session(named("a deadline counts from the memory on"))
    with pytest.raises(ScenarioError, match="step 4 does not come"):
        run_scenario(scenario, session_class=session)


def test_a_replay_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    """A seed's replay prints its scenario, each action with its time and rank, and the counts."""
    assert main(["4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("VirtualScenario(seed=4")
    assert any(" ms  rank 0: " in line for line in lines)
    assert lines[-1].startswith("RunResult(")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_search_says_what_it_did(processes: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A search without a failure prints its scenarios, faults and speed."""
    assert main(["--seconds", "0.2", "--first", "10", "--processes", processes]) == 0
    out = capsys.readouterr().out
    assert " cache scenarios from seed 10 on, " in out
    assert " virtual hours a second" in out


def test_processes_change_nothing_but_time() -> None:
    """Scenarios that several processes run come to what one process finds, in the same order."""
    until_s = time.monotonic() + 0.05
    tallies = list(run_in_order("cache", 10, 2, until_s))
    count = sum(tally.scenarios for tally in tallies)
    assert count
    assert count % len(tallies) == 0
    assert tallies[0] == run_seeds("cache", 10, tallies[0].scenarios)


@pytest.mark.long
def test_the_command_runs_alone() -> None:
    """`python -m tests.virtual` needs nothing but the package."""
    command = [sys.executable, "-m", "tests.virtual", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
