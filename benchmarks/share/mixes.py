"""What mixes of jobs reach together, by who decides what each gets; and the best that was found.

The best is searched among static shares that are really run: those that the model proposes, then
neighbours of the best so far, first far and then near. Nobody may lose by it what an even split
would give: what starves one job for another is no share that its users would agree to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cluster import at_least
from benchmarks.race import say
from benchmarks.record import Row
from penstock.allocation import Objective, Resources, allocate
from penstock.throughput import JobProfile, Share

from .host import Host, Site, Window
from .modes import Brokered, Mode, Static, Unmanaged, even
from .work import Job

SETTLE_S = 1.5
GAIN, OF_ORACLE, OF_EVEN = 1.289, 0.95, 0.97
SEARCH_TOLERANCE = 0.95
"""In one short window an even share is met to this, or the search would throw away good ones."""
SPREADS = (0.35, 0.15)
"""Of neighbours: by how much shares differ, as a standard deviation of logarithms."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Jobs that run together. `gated`: the mix with a starved job and an idle one."""

    name: str
    about: str
    jobs: Sequence[Job]
    gated: bool = False


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
    """turns: of all modes; tries: settings of the search, without the model's."""

    turns: int
    tries: int
    window_s: float
    try_s: float


@dataclass(frozen=True, slots=True)
class Reached:
    """Of all jobs in one window."""

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
    """What the model would do, by several ways."""
    return [
        list(allocate(profiles, resources, objective, floors, solver=solver).shares)
        for objective, floors, solver in (
            ("utilisation", 1.0, "exact"),
            ("samples", 1.0, "exact"),
            ("utilisation", 1.0, "greedy"),
            ("utilisation", 0.97, "exact"),
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


OBJECTIVES: tuple[Objective, ...] = ("utilisation", "samples")


def searched(
    host: Host, resources: Resources, effort: Effort, seed: int
) -> tuple[dict[Objective, Static], list[dict[str, Any]]]:
    """The best static shares by each objective, and all that was tried."""
    random = np.random.default_rng(seed)
    fair = even(len(host.jobs), resources)
    with fair.over(host):
        windows = host.windows(2 * effort.try_s, SETTLE_S)
    base = Reached.of(host.jobs, windows)
    best: dict[Objective, tuple[float, list[Share]]] = {
        objective: (base.value(objective), list(fair.shares)) for objective in OBJECTIVES
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
        for objective in OBJECTIVES:
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
            objective = OBJECTIVES[number % 2]
            run(neighbour(best[objective][1], resources, spread, random))
    oracles = {
        objective: Static(f"oracle, {objective}", shares) for objective, (_, shares) in best.items()
    }
    return oracles, log


# -- turns -----------------------------------------------------------------------------------------


def measure(site: Site, mix: Mix, effort: Effort, seed: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of a mix, and all that was measured."""
    say(f"{mix.name}: {mix.about}")
    site.warm(mix.jobs)
    resources = site.resources
    brokers = [Brokered(resources, objective) for objective in OBJECTIVES]
    with site.start(mix.jobs) as host:
        host.go()
        oracles, log = searched(host, resources, effort, seed)
        modes: list[Mode] = [even(len(mix.jobs), resources), *brokers, *oracles.values()]
        modes += [Unmanaged()]
        found: dict[str, list[Reached]] = {mode.name: [] for mode in modes}
        for turn in range(effort.turns):
            for mode in modes[turn % len(modes) :] + modes[: turn % len(modes)]:
                found[mode.name].append(tried(host, mode, effort.window_s))
                say(f"  {mode.name}: {found[mode.name][-1]}")
    raw = {
        "jobs": [f"{job.name}: {job.kind}, {job.batch} in {job.step_ms} ms" for job in mix.jobs],
        "searched": log,
        "reached": {name: [list(each.rates) for each in turns] for name, turns in found.items()},
    }
    return rows_of(mix, found, len(log)), raw


def rows_of(mix: Mix, found: dict[str, list[Reached]], tries: int) -> list[Row]:
    rows = []
    fair = found["even"]

    def row(
        what: str, mode: str, other: str, objective: Objective, target: float | None, note: str = ""
    ) -> None:
        unit = "samples/s" if objective == "samples" else "busy"
        ours, theirs = ([each.value(objective) for each in found[name]] for name in (mode, other))
        wanted = target if mix.gated else None
        rows.append(at_least(f"{mix.name}: {what}", ours, unit, theirs, wanted, note))

    broker = "broker, utilisation"
    searched_note = f"the best of {tries} settings that were run"
    row("total throughput, broker / even", broker, "even", "samples", GAIN, mix.about)
    row("accelerators busy, broker / even", broker, "even", "utilisation", None)
    row(
        "total throughput, broker by samples / even",
        *("broker, samples", "even", "samples", None),
    )
    for objective in OBJECTIVES:
        name = "accelerators busy" if objective == "utilisation" else "total throughput"
        row(
            f"{name}, broker by {objective} / oracle",
            f"broker, {objective}",
            f"oracle, {objective}",
            objective,
            OF_ORACLE,
            searched_note,
        )
    row("total throughput, unmanaged / even", "unmanaged", "even", "samples", None)
    row("accelerators busy, unmanaged / even", "unmanaged", "even", "utilisation", None)
    for mode in ("broker, utilisation", "broker, samples", "unmanaged"):
        kept = [
            median(each.rates[job] for each in found[mode])
            / median(each.rates[job] for each in fair)
            for job in range(len(mix.jobs))
        ]
        worst = int(np.argmin(kept))
        target = OF_EVEN if mode != "unmanaged" else None
        rows.append(
            Row(
                f"{mix.name}: worst job of its even share, {mode}",
                *(median(each.rates[worst] for each in found[mode]), "samples/s"),
                *(median(each.rates[worst] for each in fair), kept[worst]),
                *(target, None if target is None else kept[worst] >= target),
                note=mix.jobs[worst].name,
            )
        )
    return rows
