"""Searches for scenarios that fail, and what is left of one that does.

A kind of scenarios has the word that names it on the command line, a seed's scenario, and a run of
it. Which scenario fails first depends on the first seed alone, and not on the number of processes.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from tests.virtual.broker_cluster import run_broker_scenario
from tests.virtual.broker_scenario import draw_broker_scenario
from tests.virtual.checkpoint_cluster import run_checkpoint_scenario
from tests.virtual.checkpoint_scenario import draw_checkpoint_scenario
from tests.virtual.cluster import run_scenario
from tests.virtual.job_cluster import run_job_scenario
from tests.virtual.job_scenario import draw_job_scenario
from tests.virtual.node import ScenarioError
from tests.virtual.scenario import draw_scenario

_seeds_each = 5
"""Seeds that a process runs in one go: about a tenth of a second."""


class Simplifiable(Protocol):
    """A scenario that may have things that its failure does not need."""

    def simplify(self) -> Iterator[Self]:
        """Give scenarios with one thing less."""


AnyScenario = TypeVar("AnyScenario", bound=Simplifiable)


class ScenarioKind(NamedTuple):
    """Scenarios of one kind: drawn by a seed, and run, with a function that prints a trace if one
    is given. `run` returns `virtual_ns` and `failures`, and raises ScenarioError."""

    draw: Callable[[int], Any]
    run: Callable[..., Any]


KINDS = {
    "cache": ScenarioKind(draw_scenario, run_scenario),
    "checkpoint": ScenarioKind(draw_checkpoint_scenario, run_checkpoint_scenario),
    "broker": ScenarioKind(draw_broker_scenario, run_broker_scenario),
    "job": ScenarioKind(draw_job_scenario, run_job_scenario),
}


class Tally(NamedTuple):
    """Sums over scenarios of successive seeds, up to the first that failed.

    failure:  what went wrong in the last of them, None if nothing.
    """

    scenarios: int = 0
    virtual_ns: int = 0
    faults: int = 0
    failure: str | None = None


def minimise(scenario: AnyScenario, fails: Callable[[AnyScenario], bool]) -> AnyScenario:
    """Leave out of a scenario what it fails without."""
    while True:
        simpler = next((each for each in scenario.simplify() if fails(each)), None)
        if simpler is None:
            return scenario
        scenario = simpler


def find_failure(kind: str, scenario: Any) -> str | None:
    """Return what a run found wrong, None if nothing."""
    try:
        KINDS[kind].run(scenario)
    except ScenarioError as error:
        return str(error)
    return None


def replay(kind: str, seed: int) -> int:
    """Run a seed with its trace; return the exit code."""
    scenario = KINDS[kind].draw(seed)
    print(scenario)
    try:
        result = KINDS[kind].run(scenario, print)
    except ScenarioError as error:
        print(f"seed {seed}: {error}")
        return 1
    print(result)
    return 0


def run_seeds(kind: str, first: int, count: int) -> Tally:
    """Run so many seeds, up to the first that fails."""
    draw, run = KINDS[kind]
    virtual_ns = faults = 0
    for number in range(count):
        try:
            result = run(draw(first + number))
        except ScenarioError as error:
            return Tally(number + 1, virtual_ns, faults, str(error))
        virtual_ns += result.virtual_ns
        faults += result.failures
    return Tally(count, virtual_ns, faults)


def _spare_collections() -> None:
    """Have the garbage collector of this process look at what runs make alone, and less often."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def run_in_order(kind: str, first: int, processes: int, until_s: float) -> Iterator[Tally]:
    """Run seeds from `first` on, and yield what came of them in their order."""
    if processes == 1:
        while time.monotonic() < until_s:
            yield run_seeds(kind, first, 1)
            first += 1
        return
    with ProcessPoolExecutor(processes, initializer=_spare_collections) as pool:
        begun: deque[Future[Tally]] = deque()
        while True:
            while len(begun) < 2 * processes and time.monotonic() < until_s:
                begun.append(pool.submit(run_seeds, kind, first, _seeds_each))
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


def search(kind: str, first: int, seconds: float, processes: int) -> int:
    """Run scenarios for so long; return the exit code."""
    begin_s = time.monotonic()
    count = virtual_ns = faults = 0
    with _show_progress(seconds) as show:
        for tally in run_in_order(kind, first, processes, begin_s + seconds):
            count += tally.scenarios
            virtual_ns += tally.virtual_ns
            faults += tally.faults
            if tally.failure is not None:
                seed, scenario = first + count - 1, KINDS[kind].draw(first + count - 1)
                print(f"seed {seed}: {tally.failure}")
                smallest = minimise(scenario, lambda each: find_failure(kind, each) is not None)
                print(f"minimised: {smallest}: {find_failure(kind, smallest)}")
                for fault in smallest.faults:
                    print(f"  {fault}")
                print(f"replay: python -m tests.virtual {kind} {seed}")
                return 1
            show(time.monotonic() - begin_s, f"{count:,} scenarios")
    spent_s = time.monotonic() - begin_s
    print(
        f"{count:,} {kind} scenarios from seed {first} on, {faults:,} faults, no failure:"
        f" {count / spent_s:.1f} scenarios and {virtual_ns / 3.6e12 / spent_s:.2f} virtual hours"
        " a second"
    )
    return 0
