"""The throughput that mixes of jobs reach together, by who decides what each gets; and the best
that was found.

The best is searched among static shares that are really run: those that the model proposes, then
neighbours of the best so far, first far and then near. Nobody may lose by it what an even split
would give: what starves one job for another is no share that its users would agree to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cluster import at_least
from benchmarks.race import say
from benchmarks.record import Row
from benchmarks.share_study import solve_greedily
from penstock.sharing.allocation import Objective, Resources, allocate, solve_exactly
from penstock.sharing.job_state import JobProfile, Share

from .cores import limit_cores
from .host import Host, Site, Window
from .modes import Brokered, Mode, Static, Unmanaged, even
from .work import Job

OBJECTIVES: tuple[Objective, ...] = ("utilisation", "samples")
SETTLE_S = 1.2
GAIN, OF_ORACLE, OF_EVEN, OF_UNMANAGED = 1.289, 0.95, 0.97, 0.98
SEARCH_TOLERANCE = 0.95
"""In one short window an even share is met to this, or the search would throw away good ones."""
SPREADS = (0.35, 0.15)
"""The spreads of neighbours: by how much shares differ, as a standard deviation of logarithms."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Jobs that run together.

    gated:     the mix with a starved job and an idle one, where better shares than the model's are
               looked for: in `crowd` five tries found none that are better than the broker's.
    window_s:  time for which it is watched, some steps of its slowest job.
    """

    name: str
    about: str
    jobs: Sequence[Job]
    gated: bool = False
    window_s: float = 3.0


MIXES = (
    Mix(
        "workstation",
        "an image classifier starved by decoding, a language model that is nearly idle, volumes "
        "bound by bytes",
        (
            Job("classifier", "photos", 32, 80),
            Job("language", "tokens", 8, 100),
            Job("volumes", "volumes", 4, 40),
        ),
        gated=True,
    ),
    Mix(
        "crowd",
        "more is wanted than there is: two jobs starved of cores, one of bytes, speech in between, "
        "a language model that is nearly idle",
        (
            Job("self-supervised", "views", 8, 100),
            Job("classifier", "photos", 16, 60),
            Job("volumes", "volumes", 4, 40),
            Job("speech", "speech", 8, 80),
            Job("language", "tokens", 8, 100),
        ),
    ),
    Mix(
        "alike",
        "three classifiers, all starved: there is nothing to gain, and nothing may be lost",
        tuple(Job(f"classifier {letter}", "photos", 16, 50) for letter in "abc"),
    ),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """turns: of all modes; objectives: of brokers and oracles; tries: settings of the search,
    without the model's, None for no search."""

    turns: int
    objectives: tuple[Objective, ...]
    tries: int | None
    try_s: float = 2.0


def effort_of(mix: Mix, quick: bool) -> Effort:
    """The effort for a mix; where no share of the oracle is a target, it is not searched for."""
    if quick:
        return Effort(1, OBJECTIVES[:1], 2, 1.5)
    return Effort(5, OBJECTIVES[:1], 4 if mix.gated else None)


@dataclass(frozen=True, slots=True)
class Reached:
    """The rates of all jobs in one window."""

    rates: Sequence[float]
    ceilings: Sequence[float]

    @classmethod
    def of(cls, jobs: Sequence[Job], windows: Sequence[Window]) -> Reached:
        return cls([each.samples_per_s for each in windows], [job.ceiling for job in jobs])

    @property
    def total(self) -> float:
        return sum(self.rates)

    @property
    def utilisation(self) -> float:
        """Accelerators that were busy."""
        return sum(rate / most for rate, most in zip(self.rates, self.ceilings, strict=True))

    def value(self, objective: Objective) -> float:
        return self.total if objective == "samples" else self.utilisation

    def worst_of(self, other: Reached) -> float:
        """The job that has least of what it has there."""
        return min(a / b for a, b in zip(self.rates, other.rates, strict=True))

    def __str__(self) -> str:
        each = ", ".join(f"{rate:.0f}" for rate in self.rates)
        return f"{self.total:.0f} samples/s ({each}), {self.utilisation:.2f} busy"


def tried(host: Host, mode: Mode, window_s: float) -> Reached:
    with mode.over(host):
        return Reached.of(host.jobs, host.windows(window_s, SETTLE_S))


# -- the oracle ------------------------------------------------------------------------------------


def proposals(profiles: Sequence[JobProfile | None], resources: Resources) -> list[list[Share]]:
    """The shares that the model would give, by several ways."""
    return [
        list(allocate(profiles, resources, objective, floors, solver=solver).shares)
        for objective, floors, solver in (
            ("utilisation", 1.0, solve_exactly),
            ("samples", 1.0, solve_exactly),
            ("utilisation", 1.0, solve_greedily),
            ("utilisation", 0.97, solve_exactly),
        )
    ]


def neighbour(
    shares: Sequence[Share], resources: Resources, spread: float, random: np.random.Generator
) -> list[Share]:
    """Other shares, which are all there is together."""
    least = 1e-3
    cores, rates = (
        np.maximum(part / total, least) * np.exp(random.normal(0, spread, len(shares))) * total
        for part, total in (
            (np.array([share.workers for share in shares]), resources.cores),
            (np.array([share.bytes_per_s for share in shares]), resources.bytes_per_s),
        )
    )
    cores *= resources.cores / cores.sum()
    rates *= resources.bytes_per_s / rates.sum()
    return [
        Share(workers=float(core), bytes_per_s=float(rate))
        for core, rate in zip(cores, rates, strict=True)
    ]


def searched(
    host: Host, resources: Resources, effort: Effort, seed: int
) -> tuple[dict[Objective, Static], list[dict[str, Any]]]:
    """The best static shares by each objective, and all that was tried."""
    if effort.tries is None:
        return {}, []
    random = np.random.default_rng(seed)
    fair = even(len(host.jobs), resources)
    with fair.over(host):
        windows = host.windows(2 * effort.try_s, SETTLE_S)
    base = Reached.of(host.jobs, windows)
    best: dict[Objective, tuple[float, list[Share]]] = {
        objective: (base.value(objective), list(fair.shares)) for objective in effort.objectives
    }
    log: list[dict[str, Any]] = []

    def run(shares: list[Share]) -> None:
        found = tried(host, Static("tried", shares), effort.try_s)
        kept = found.worst_of(base)
        say(f"    {found}, worst {kept:.2f} of even")
        log.append(
            {
                "shares": [(share.workers, share.bytes_per_s) for share in shares],
                "rates": list(found.rates),
                "worst_of_even": kept,
            }
        )
        for objective in effort.objectives:
            value = found.value(objective)
            if kept >= SEARCH_TOLERANCE and value > best[objective][0]:
                best[objective] = value, shares

    seen: set[tuple[float, ...]] = set()
    for shares in proposals([each.profile for each in windows], resources):
        key = tuple(round(share.workers, 2) for share in shares)
        if key not in seen:
            seen.add(key)
            run(shares)
    for spread in SPREADS:
        for number in range(effort.tries // len(SPREADS)):
            objective = effort.objectives[number % len(effort.objectives)]
            run(neighbour(best[objective][1], resources, spread, random))
    oracles = {
        objective: Static(f"oracle, {objective}", shares) for objective, (_, shares) in best.items()
    }
    return oracles, log


# -- turns -----------------------------------------------------------------------------------------


def measure(site: Site, mix: Mix, effort: Effort, seed: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of a mix, and all that was measured."""
    say(f"  {mix.name}: {mix.about}")
    site.warm(mix.jobs)
    resources = site.resources
    with site.start(mix.jobs) as host:
        host.go()
        oracles, log = searched(host, resources, effort, seed)
        # Modes that are held against each other follow each other: the machine's speed drifts.
        modes: list[Mode] = [*oracles.values(), even(len(mix.jobs), resources), Unmanaged()]
        modes += [Brokered(resources, objective) for objective in effort.objectives]
        found: dict[str, list[Reached]] = {mode.name: [] for mode in modes}
        cores = resources.cores + count_other_cores(host, modes[len(oracles)])
        with limit_cores(cores, [each.pid for each in host.running]) as is_held:
            # A B, B A, A B: who ends a turn begins the next, and has settled already.
            turns = [modes[:: -1 if turn % 2 else 1] for turn in range(effort.turns)]
            for mode, times in groupby(chain.from_iterable(turns)):
                with mode.over(host):
                    time.sleep(SETTLE_S)
                    for _ in times:
                        windows = host.windows(mix.window_s)
                        found[mode.name].append(Reached.of(host.jobs, windows))
                        say(f"    {mode.name}: {found[mode.name][-1]}")
    raw = {
        "mix": asdict(mix),
        "cores": cores if is_held else None,
        "searched": log,
        "reached": {name: [list(each.rates) for each in turns] for name, turns in found.items()},
    }
    note = f"all in a group of {cores:.2f} cores" if is_held else "unmanaged has all cores"
    return rows_of(mix, found, len(log), note), raw


def count_other_cores(host: Host, mode: Mode) -> float:
    """Cores that the jobs use for other things than decoding: to read, to collate, to step."""
    with mode.over(host):
        windows = host.windows(SETTLE_S, SETTLE_S)
    return sum(each.process_cores - each.cores for each in windows)


def rows_of(mix: Mix, found: dict[str, list[Reached]], tries: int, held: str) -> list[Row]:
    """Totals by samples and by accelerators, and who has least of an even share."""
    rows: list[Row] = []
    modes = [name for name in found if name.startswith("broker")] + ["unmanaged"]
    for mode in modes:
        gated = mix.gated and mode == f"broker, {OBJECTIVES[0]}"
        of = f"{mix.name}: {mode}"
        for objective, what, unit in (
            ("samples", "total throughput", "samples/s"),
            ("utilisation", "accelerators busy", "of them"),
        ):
            ours, theirs = (
                [each.value(objective) for each in found[name]] for name in (mode, "even")
            )
            target = GAIN if gated and objective == "samples" else None
            note = mix.about if objective == "samples" and mode == modes[0] else ""
            rows.append(at_least(f"{of}, {what} / even", ours, unit, theirs, target, note))
            if mode != "unmanaged":
                free = [each.value(objective) for each in found["unmanaged"]]
                target = OF_UNMANAGED if objective == "samples" else None
                rows.append(at_least(f"{of}, {what} / unmanaged", ours, unit, free, target, held))
        oracle = mode.replace("broker", "oracle")
        if oracle in found and oracle != mode:
            rows.append(of_oracle(mix, found, mode, oracle, tries))
        rows.append(worst_row(mix, found, mode))
    return rows


def of_oracle(mix: Mix, found: dict[str, list[Reached]], mode: str, oracle: str, tries: int) -> Row:
    """By the objective that both have."""
    objective: Objective = "samples" if mode.endswith("samples") else "utilisation"
    ours, theirs = ([each.value(objective) for each in found[name]] for name in (mode, oracle))
    what, unit = (
        ("total throughput", "samples/s")
        if objective == "samples"
        else ("accelerators busy", "of them")
    )
    return at_least(
        f"{mix.name}: {mode}, {what} / oracle's",
        *(ours, unit, theirs, OF_ORACLE if mix.gated else None),
        f"the best of {tries} settings that were run, floors kept",
    )


def worst_row(mix: Mix, found: dict[str, list[Reached]], mode: str) -> Row:
    """The job that keeps least of what an even split brings it, by medians of pairs."""

    def list_rates(name: str, job: int) -> list[float]:
        return [each.rates[job] for each in found[name]]

    jobs = [(list_rates(mode, job), list_rates("even", job)) for job in range(len(mix.jobs))]
    kept = [median(a / b for a, b in zip(*rates, strict=True)) for rates in jobs]
    worst = int(np.argmin(kept))
    ours, even = jobs[worst]
    return at_least(
        f"{mix.name}: {mode}, worst job / its even share",
        *(ours, "samples/s", even, None if mode == "unmanaged" else OF_EVEN),
        mix.jobs[worst].name,
    )
