"""python -m penstock.testing.virtual SEED | --seconds 60 [--first SEED] [--processes N]

With a seed: replay its scenario, with a trace of all actions. With seconds: run scenarios from the
first seed on for so long, on all cores; at the first failure print its seed, a minimised schedule,
and its trace.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from . import (
    ScenarioError,
    VirtualScenario,
    checkpoint_search,
    draw_scenario,
    minimise,
    run_scenario,
)

_seeds_each = 5
"""Seeds that a process runs in one go: about a tenth of a second."""


class Tally(NamedTuple):
    """What scenarios of successive seeds came to, up to the first that failed.

    failure:  what went wrong in the last of them, None if nothing.
    """

    scenarios: int = 0
    virtual_ns: int = 0
    faults: int = 0
    failure: str | None = None


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


def run_seeds(first: int, count: int) -> Tally:
    """Run so many seeds, up to the first that fails."""
    virtual_ns = faults = 0
    for number in range(count):
        try:
            result = run_scenario(draw_scenario(first + number))
        except ScenarioError as error:
            return Tally(number + 1, virtual_ns, faults, str(error))
        virtual_ns += result.virtual_ns
        faults += result.failures
    return Tally(count, virtual_ns, faults)


def _run_in_order(first: int, processes: int, until_s: float) -> Iterator[Tally]:
    """Run seeds, and yield what came of them in their order: which one fails first depends on
    nothing else."""
    if processes == 1:
        while time.monotonic() < until_s:
            yield run_seeds(first, 1)
            first += 1
        return
    with ProcessPoolExecutor(processes) as pool:
        begun: deque[Future[Tally]] = deque()
        while True:
            while len(begun) < 2 * processes and time.monotonic() < until_s:
                begun.append(pool.submit(run_seeds, first, _seeds_each))
                first += _seeds_each
            if not begun:
                return
            tally = begun.popleft().result()
            if tally.failure is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            yield tally


@contextmanager
def _show_progress(seconds: float) -> Iterator[Callable[[float, str], None]]:
    """Show a bar of the time on a terminal, if `rich` is there and it takes longer than two
    seconds."""
    if seconds > 2 and sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            pass
        else:
            with Progress(console=Console(stderr=True), transient=True) as progress:
                bar = progress.add_task("scenarios", total=seconds)
                yield lambda spent_s, what: progress.update(
                    bar, completed=spent_s, description=what
                )
            return
    yield lambda spent_s, what: None


def search(first: int, seconds: float, processes: int) -> int:
    """Run scenarios for so long; return the exit code."""
    begin_s = time.monotonic()
    count = virtual_ns = faults = 0
    with _show_progress(seconds) as show:
        for tally in _run_in_order(first, processes, begin_s + seconds):
            count += tally.scenarios
            virtual_ns += tally.virtual_ns
            faults += tally.faults
            if tally.failure is not None:
                seed, scenario = first + count - 1, draw_scenario(first + count - 1)
                print(f"seed {seed}: {tally.failure}")
                smallest = minimise(scenario, lambda each: find_failure(each) is not None)
                print(f"minimised: {smallest}: {find_failure(smallest)}")
                for fault in smallest.faults:
                    print(f"  {fault}")
                print(f"replay: python -m penstock.testing.virtual {seed}")
                return 1
            show(time.monotonic() - begin_s, f"{count:,} scenarios")
    spent_s = time.monotonic() - begin_s
    print(
        f"{count:,} scenarios from seed {first} on, {faults:,} faults, no failure:"
        f" {count / spent_s:.1f} scenarios and {virtual_ns / 3.6e12 / spent_s:.2f} virtual hours"
        " a second"
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["checkpoint"]:
        return checkpoint_search.main(words[1:])
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.virtual", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed, with a trace")
    parser.add_argument("--seconds", type=float, default=60, help="search for so long")
    parser.add_argument("--first", type=int, default=1, help="first seed of a search")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=int, default=cores, help="of a search: all cores")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return replay(options.seed)
    return search(options.first, options.seconds, options.processes)


if __name__ == "__main__":
    sys.exit(main())
