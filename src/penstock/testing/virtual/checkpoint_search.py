"""Search for scenarios of checkpoints that fail, and replay of one: `python -m
penstock.testing.virtual checkpoint SEED | --seconds 60 [--first SEED]`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from .checkpoint_cluster import run_checkpoint_scenario
from .checkpoint_scenario import (
    CheckpointScenario,
    draw_checkpoint_scenario,
    simplify_checkpoint,
)
from .node import ScenarioError


def find_checkpoint_failure(scenario: CheckpointScenario) -> str | None:
    """Return what a run found wrong, None if nothing."""
    try:
        run_checkpoint_scenario(scenario)
    except ScenarioError as error:
        return str(error)
    return None


def minimise_checkpoint(
    scenario: CheckpointScenario, fails: Callable[[CheckpointScenario], bool]
) -> CheckpointScenario:
    """Leave out faults, jobs and saves without which it still fails."""
    while True:
        simpler = next((each for each in simplify_checkpoint(scenario) if fails(each)), None)
        if simpler is None:
            return scenario
        scenario = simpler


def replay_checkpoint(seed: int) -> int:
    """Run a seed with its trace; return the exit code."""
    scenario = draw_checkpoint_scenario(seed)
    print(scenario)
    try:
        result = run_checkpoint_scenario(scenario, print)
    except ScenarioError as error:
        print(f"seed {seed}: {error}")
        return 1
    print(result)
    return 0


def search_checkpoint(first: int, seconds: float) -> int:
    """Run scenarios for so long; return the exit code."""
    begin_s = time.monotonic()
    seed, virtual_ns, faults, commits = first, 0, 0, 0
    while (spent_s := time.monotonic() - begin_s) < seconds:
        scenario = draw_checkpoint_scenario(seed)
        try:
            result = run_checkpoint_scenario(scenario)
        except ScenarioError as error:
            smallest = minimise_checkpoint(
                scenario, lambda each: find_checkpoint_failure(each) is not None
            )
            print(f"seed {seed}: {error}")
            print(f"minimised: {smallest}: {find_checkpoint_failure(smallest)}")
            print(f"replay: python -m penstock.testing.virtual checkpoint {seed}")
            return 1
        virtual_ns += result.virtual_ns
        faults += result.failures
        commits += result.commits
        seed += 1
    count = seed - first
    print(
        f"{count:,} scenarios of checkpoints from seed {first} on, {commits:,} commits,"
        f" {faults:,} faults, no failure: {count / spent_s:.1f} scenarios and"
        f" {virtual_ns / 3.6e12 / spent_s:.2f} virtual hours a second"
    )
    return 0


def main(arguments: Sequence[str]) -> int:
    """Replay or search."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.testing.virtual checkpoint", description=__doc__
    )
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed, with a trace")
    parser.add_argument("--seconds", type=float, default=60, help="search for so long")
    parser.add_argument("--first", type=int, default=1, help="first seed of a search")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return replay_checkpoint(options.seed)
    return search_checkpoint(options.first, options.seconds)
