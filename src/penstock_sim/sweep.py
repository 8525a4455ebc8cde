"""Simulation of a policy in a scenario, by any of the models; and sweeps, simulations of all
policies of a scenario, and of variants that differ in one key."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, get_args

from penstock.arguments import check_choice, check_function, check_kind
from penstock.errors import UsageError, WorkerError

from . import event_model, fluid_model, parity
from .importance import Value, fedcase
from .scenario import ImportanceSampling, Policy, Result, Scenario, interpolate_rates

Model = Literal["corrected", "parity", "events"]
"""Model of the simulation."""


def simulate(
    scenario: Scenario, policy: str, model: Model = "corrected", *, value: Value | None = None
) -> Result:
    """Simulate one policy in one scenario. Raises UsageError, with the reason, if it cannot run.

    value: worth of samples, if `sampling` draws them by it; by default FedCaSe's.
    """
    check_kind("scenario", scenario, Scenario, "what penstock_sim.load_scenario returns")
    check_kind("policy", policy, str, "the name of one")
    check_function("value", value, "a penstock_sim.Value")
    if value is not None and not isinstance(scenario.sampling, ImportanceSampling):
        raise UsageError(
            f"value is given, and {scenario.name} draws nothing by it: give sampling.kind "
            "importance"
        )
    check_choice("model", model, get_args(Model))
    if model == "parity":
        return parity.simulate(scenario, policy)
    if model == "events":
        return event_model.simulate(scenario, policy)
    return fluid_model.simulate(scenario, policy, value or fedcase)


# -- many simulations ------------------------------------------------------------------------------

Key = Literal["nodes", "cache", "bandwidth"]
"""Name of the quantity that is varied; see `vary`."""

KEYS: tuple[Key, ...] = get_args(Key)

_cache_shares = (0.125, 0.25, 0.5, 1.0, 2.0)
_factors = (0.25, 0.5, 1.0, 2.0, 4.0)

Progress = Callable[[int, int], object]
"""Function called with the number of simulations that are done, and of all simulations."""


class SimulationRun(NamedTuple):
    """Arguments of one simulation."""

    scenario: Scenario
    policy: Policy
    model: Model


@dataclass(frozen=True, slots=True)
class Refusal:
    """A policy that cannot run in a scenario, and the reason."""

    scenario: str
    policy: str
    model: str
    reason: str


Outcome = Result | Refusal


@dataclass(frozen=True, slots=True)
class Sweep:
    """Times of each policy as one key varies.

    key:       the varied quantity; the unit of its values is in `vary`.
    model:     of all simulations.
    values:    ascending.
    own:       the scenario's own value, one of them.
    outcomes:  of each value, one of each policy, in the order that was asked for.
    """

    key: Key
    model: str
    values: tuple[float, ...]
    own: float
    outcomes: tuple[tuple[Outcome, ...], ...]


def run_simulation(run: SimulationRun) -> Outcome:
    """Simulate; return the result, or the reason why there is none."""
    try:
        return simulate(run.scenario, run.policy, run.model)
    except UsageError as error:
        reason = str(error)
    except MemoryError:
        reason = "this machine has too little memory for it: use fewer samples, nodes or epochs"
    return Refusal(run.scenario.name, run.policy, run.model, reason)


def simulate_runs(
    runs: Sequence[SimulationRun], *, processes: int = 1, progress: Progress | None = None
) -> list[Outcome]:
    """Simulate each run; return the outcomes in their order.

    processes: changes only the time. With more than one, the calling script must be importable
    (`if __name__ == "__main__"`), as for all of Python's multiprocessing.

    Raises WorkerError if a process is killed.
    """
    by_number: dict[int, Outcome] = {}
    for number, outcome in _yield_outcomes(runs, min(processes, len(runs))):
        by_number[number] = outcome
        if progress is not None:
            progress(len(by_number), len(runs))
    return [by_number[number] for number in range(len(runs))]


def _yield_outcomes(runs: Sequence[SimulationRun], processes: int) -> Iterator[tuple[int, Outcome]]:
    if processes <= 1:
        yield from ((number, run_simulation(run)) for number, run in enumerate(runs))
        return
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_end_quietly
    )
    try:
        # Processes start with it blocked, and have nothing to say about it while they import.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            numbers = {pool.submit(run_simulation, run): number for number, run in enumerate(runs)}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    except BrokenExecutor:
        raise WorkerError(
            "a process that simulates was killed, perhaps out of memory: use fewer processes "
            "or smaller scenarios"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_quietly() -> None:
    """Let Ctrl-C end a process that simulates without a message."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def vary_keys(
    scenario: Scenario,
    values: Mapping[Key, Sequence[float]],
    *,
    policies: Sequence[Policy] | None = None,
    model: Model = "corrected",
    processes: int = 1,
    progress: Progress | None = None,
) -> list[Sweep]:
    """Vary one key of a scenario after the other, and simulate its policies at each value.

    values: of each key, see `vary` and `choose_values`; the scenario's own is always added.
    policies: by default the scenario's.
    processes, progress: see `simulate_runs`.
    """
    chosen = tuple(policies or scenario.policies)
    axes = {key: sorted({*points, own_value(scenario, key)}) for key, points in values.items()}
    runs = [
        SimulationRun(other, policy, model)
        for key, axis in axes.items()
        for other in [vary(scenario, key, value) for value in axis]
        for policy in chosen
    ]
    simulated = iter(simulate_runs(runs, processes=processes, progress=progress))
    return [
        Sweep(
            key,
            model,
            tuple(axis),
            own_value(scenario, key),
            tuple(tuple(islice(simulated, len(chosen))) for _ in axis),
        )
        for key, axis in axes.items()
    ]


def own_value(scenario: Scenario, key: Key) -> float:
    """Return the scenario's own value of a key, in the units of `vary`."""
    match key:
        case "nodes":
            return float(scenario.training.nodes)
        case "cache":
            return cached_mb(scenario) * scenario.training.nodes / data_mb(scenario)
        case "bandwidth":
            rates = scenario.system.storage.read_mb_s
            return float(interpolate_rates(rates, scenario.training.nodes))
    raise UsageError(f"sweep is {key!r}: use one of {', '.join(KEYS)}")


def choose_values(scenario: Scenario, key: Key) -> list[float]:
    """Choose a few values of a key, ascending, all of which the scenario may have.

    Its own value and values near it are left out.
    """
    here = own_value(scenario, key)
    values = []
    for value in _cache_shares if key == "cache" else [here * factor for factor in _factors]:
        if not 0.8 < value / here < 1.25:
            with contextlib.suppress(UsageError):
                vary(scenario, key, value)
                values.append(value)
    return values


def vary(scenario: Scenario, key: Key, value: float) -> Scenario:
    """Return the scenario with another value of one key. Raises UsageError if it cannot have it.

    nodes:      their number; the batch of a node stays, so the global batch grows with them.
    cache:      all tiers of all nodes together, in sizes of the data; staging memory stays, and the
                tiers keep their proportions.
    bandwidth:  total rate of shared storage for the scenario's nodes, MB/s; its whole table is
                scaled, and a node's own link to it stays.
    """
    if not (0 < value < float("inf")):
        raise UsageError(f"{key} is {value!r}: use a finite number above 0")
    factor = value / own_value(scenario, key)
    given: dict[str, Any] = scenario.model_dump()
    training: dict[str, Any] = given["training"]
    system: dict[str, Any] = given["system"]
    match key:
        case "nodes":
            if value != int(value):
                raise UsageError(f"nodes is {value!r}: use a whole number")
            training["global_batch"] = scenario.batch * int(value)
            training["nodes"] = int(value)
        case "cache":
            for tier in system["tiers"]:
                tier["capacity_mb"] *= factor
        case "bandwidth":
            table = system["storage"]["read_mb_s"]
            system["storage"]["read_mb_s"] = {n: rate * factor for n, rate in table.items()}
    return Scenario.of(given, f"{key} is {value!r}")


def count_accesses(runs: Sequence[SimulationRun]) -> int:
    """Number of accesses to samples in all runs, to which their time is proportional."""
    return sum(
        run.scenario.steps * run.scenario.training.global_batch * run.scenario.training.epochs
        for run in runs
    )


def data_mb(scenario: Scenario) -> float:
    """Expected size of all data, MB: normal sizes, of which negative ones are drawn again."""
    data = scenario.data
    if data.mean_mb > 9 * data.sigma_mb:  # none is negative
        return data.samples * data.mean_mb
    normal = NormalDist(data.mean_mb, data.sigma_mb)
    cut = data.sigma_mb**2 * normal.pdf(0) / (1 - normal.cdf(0))
    return data.samples * (data.mean_mb + cut)


def cached_mb(scenario: Scenario) -> float:
    """Total capacity of the tiers of one node, MB."""
    return sum(tier.capacity_mb for tier in scenario.system.tiers)
