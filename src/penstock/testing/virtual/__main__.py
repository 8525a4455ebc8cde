"""python -m penstock.testing.virtual SEED | --seconds 60 [--first SEED]

With a seed: replay its scenario, with a trace of all actions. With seconds: run scenarios from the
first seed on for so long; at the first failure print its seed, a minimised schedule, and its trace.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from . import ScenarioError, VirtualScenario, draw_scenario, minimise, run_scenario


def find_failure(scenario: VirtualScenario) -> str | None:
    """Return what a run found wrong, None if nothing."""
    try:
        run_scenario(scenario)
    except ScenarioError as error:
        return str(error)
    return None


def replay(seed: int) -> int:
    """Run a seed with its trace; return the exit code."""
    scenario = draw_scenario(seed)
    print(scenario)
    try:
        result = run_scenario(scenario, print)
    except ScenarioError as error:
        print(f"seed {seed}: {error}")
        return 1
    print(result)
    return 0


def search(first: int, seconds: float) -> int:
    """Run scenarios for so long; return the exit code."""
    begin_s = time.monotonic()
    seed, virtual_ns, faults = first, 0, 0
    while (spent_s := time.monotonic() - begin_s) < seconds:
        scenario = draw_scenario(seed)
        try:
            result = run_scenario(scenario)
        except ScenarioError as error:
            smallest = minimise(scenario, lambda each: find_failure(each) is not None)
            print(f"seed {seed}: {error}")
            print(f"minimised: {smallest}: {find_failure(smallest)}")
            for fault in smallest.faults:
                print(f"  {fault}")
            print(f"replay: python -m penstock.testing.virtual {seed}")
            return 1
        virtual_ns += result.virtual_ns
        faults += result.failures
        seed += 1
    count = seed - first
    print(
        f"{count:,} scenarios from seed {first} on, {faults:,} faults, no failure:"
        f" {count / spent_s:.1f} scenarios and {virtual_ns / 3.6e12 / spent_s:.2f} virtual hours"
        " a second"
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.virtual", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed, with a trace")
    parser.add_argument("--seconds", type=float, default=60, help="search for so long")
    parser.add_argument("--first", type=int, default=1, help="first seed of a search")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return replay(options.seed)
    return search(options.first, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
