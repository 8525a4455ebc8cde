"""Shares of a simulated host: an even split against the optimum and the greedy, in random mixes.

    python -m benchmarks.share_study [--mixes 2000] [--seed 1]

Mixes of 2 to 6 jobs on 32 cores and 1.5 GB/s; uniform: ceilings of 300 to 3,000 samples/s, 2 to 20
ms of a core and 20 to 600 kB a sample. Nothing is measured: throughputs are the model's own, so the
figures say what dividing well is worth if profiles are right, and are the same on any machine.
`published` is what another implementation found in mixes drawn alike.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.sharing.allocation import (
    Float,
    Objective,
    Program,
    Resources,
    Solution,
    Solver,
    allocate,
    even_share,
    score,
    solve_exactly,
)
from penstock.sharing.job_state import JobProfile, predict

HOST = Resources(cores=32, bytes_per_s=1.5e9)


class Case(NamedTuple):
    """A published comparison: the objective, the part of an even split that each job keeps, and the
    gain in percent; None where only ours is known."""

    objective: Objective
    floors: float
    published: float | None = None


CASES = (
    Case("samples", 0.0, 30.7),
    Case("utilisation", 0.0, 24.3),
    Case("makespan", 0.0),
    Case("samples", 1.0),
    Case("utilisation", 1.0, 14.5),
    Case("makespan", 1.0),
)

Rates = np.ndarray
"""Samples/s of each job of a mix."""


def mixes(count: int, seed: int) -> list[list[JobProfile]]:
    """Random mixes of jobs."""
    random = np.random.default_rng(seed)
    return [
        [
            JobProfile(
                samples_per_s=random.uniform(300, 3000),
                cpu_s=random.uniform(2e-3, 20e-3),
                storage_bytes=random.uniform(20e3, 600e3),
                remaining_samples=random.uniform(1e5, 1e7),
            )
            for _ in range(random.integers(2, 7))
        ]
        for _ in range(count)
    ]


def even_rates(jobs: Sequence[JobProfile]) -> Rates:
    """The rates that an even split brings."""
    share = even_share(jobs, HOST)
    return np.array([predict(job, share).samples_per_s for job in jobs])


def rates_of(
    jobs: Sequence[JobProfile],
    objective: Objective,
    floors: float,
    solver: Solver = solve_exactly,
) -> Rates:
    """The rates that an allocation brings."""
    found = allocate(jobs, HOST, objective, floors, solver=solver).predictions
    return np.array([each.samples_per_s for each in found if each is not None])


def rates_with_whole_workers(jobs: Sequence[JobProfile]) -> Rates:
    """Rates of the best shares once their workers are whole: bandwidth is divided anew."""
    found = allocate(jobs, HOST)
    workers = round_workers(np.array([share.workers for share in found.shares]), int(HOST.cores))
    cost = np.array([[job.cpu_s for job in jobs], [job.storage_bytes for job in jobs]])
    model = np.array([job.samples_per_s for job in jobs])
    most = np.minimum(model, workers / cost[0])
    limit = np.array([math.inf, HOST.bytes_per_s])
    least = np.minimum(found.floors, most)
    return solve_exactly(Program(1 / model, least, most, cost, limit)).rates


def round_workers(wanted: Float, cores: int) -> Float:
    """Round to whole workers for each job, `cores` in all and at least one each.

    Shares are rounded down, and the rest goes to the largest remainders: workers go one by one to
    the job that is shortest of its share, which is the same, and makes up for the first one of jobs
    whose share is less than one.
    """
    dealt = np.ones(len(wanted))
    for _ in range(cores - len(wanted)):
        dealt[np.argmax(wanted - dealt)] += 1
    return dealt


def solve_greedily(program: Program) -> Solution:
    """Raise one job at a time by one unit of the first resource, a worker, and its part of the
    second.

    The job is raised that gains most for the greater part of the rest that it takes. Exact if one
    resource binds; else a heuristic. Both resources are given together: one alone adds nothing to a
    job that is short of the other.
    """
    value, room, spare = program.value, program.room, program.spare
    nothing = np.where(np.isfinite(spare), 1e-12 * spare, 0.0)
    raised = np.zeros(len(value))
    while True:
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(program.cost > 0, program.cost / spare[:, None], 0.0).max(axis=0)
            gain = np.where(raised < room, value / share, 0.0)  # 0 where nothing is left
            if not gain.max(initial=0.0) > 0:
                return Solution(program.least + raised, None)
            job = np.argmax(gain)
            step = min(1 / program.cost[0, job], 1 / share[job])
        step = min(step, room[job] - raised[job])
        full = raised[job] + step >= room[job] * (1 - 1e-12)
        raised[job] = room[job] if full else raised[job] + step
        spare = spare - program.cost[:, job] * step
        spare[spare <= nothing] = 0.0


def row(name: str, value: float, unit: str, published: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": float(value), "unit": unit, "published": published}


def gain_rows(
    drawn: list[list[JobProfile]], evens: list[Rates], cases: Sequence[Case] = CASES
) -> list[dict[str, Any]]:
    """The optimum over the even split, and whom it starves without floors."""
    starving = {"utilisation": 59.0}
    rows = []
    for objective, floors, published in cases:
        started = time.process_time()
        rates = [rates_of(jobs, objective, floors) for jobs in drawn]
        took_ms = (time.process_time() - started) / len(drawn) * 1e3
        gains = [
            score(jobs, ours, objective) / score(jobs, even, objective) - 1
            for jobs, ours, even in zip(drawn, rates, evens, strict=True)
        ]
        least = [(ours / even).min() for ours, even in zip(rates, evens, strict=True)]
        name = f"{objective}, {'even split kept' if floors else 'no floors'}"
        rows.append(row(f"{name}: over even", 100 * np.mean(gains), "%", published))
        if floors:
            rows.append(row(f"{name}: worst job of all, of its even share", min(least), ""))
        else:
            starved = 100 * np.mean(np.array(least) < 0.2)
            rows.append(
                row(f"{name}: a job below 0.2 of even", starved, "%", starving.get(objective))
            )
        rows.append(row(f"{name}: time", took_ms, "ms"))
    return rows


def greedy_rows(drawn: list[list[JobProfile]]) -> list[dict[str, Any]]:
    """The greedy, as a part of the optimum of utilisation."""
    rows = []
    for floors, mean, worst in ((1.0, 0.9992, 0.953), (0.0, 0.998, 0.845)):
        parts = [
            score(jobs, rates_of(jobs, "utilisation", floors, solve_greedily), "utilisation")
            / score(jobs, rates_of(jobs, "utilisation", floors), "utilisation")
            for jobs in drawn
        ]
        name = f"greedy, {'even split kept' if floors else 'no floors'}, of the optimum"
        rows.append(row(f"{name}: mean", np.mean(parts), "", mean))
        rows.append(row(f"{name}: worst", min(parts), "", worst))
    return rows


def whole_rows(drawn: list[list[JobProfile]], evens: list[Rates]) -> list[dict[str, Any]]:
    """The oversubscription by rounding up, and what whole workers cost instead."""
    over, parts, least = [], [], []
    for jobs, even in zip(drawn, evens, strict=True):
        rates = rates_of(jobs, "utilisation", 1.0)
        rounded = rates_with_whole_workers(jobs)
        used = np.array([job.cpu_s for job in jobs]) * rates
        over.append(np.ceil(used - 1e-9).sum() - HOST.cores)
        parts.append(score(jobs, rounded, "utilisation") / score(jobs, rates, "utilisation"))
        least.append((rounded / even).min())
    name = "whole workers, even split kept"
    return [
        row("rounded up: mixes oversubscribed", 100 * np.mean(np.array(over) > 0), "%", 77.0),
        row("rounded up: most workers too many", max(over), "", 5.0),
        row(f"{name}, of the optimum: mean", np.mean(parts), ""),
        row(f"{name}, of the optimum: worst", min(parts), ""),
        row(f"{name}: worst job of all, of its even share", min(least), ""),
    ]


def study(count: int = 2000, seed: int = 1) -> list[dict[str, Any]]:
    """Rows: name, value, unit, published (None where nothing was)."""
    drawn = mixes(count, seed)
    evens = [even_rates(jobs) for jobs in drawn]
    return gain_rows(drawn, evens) + greedy_rows(drawn) + whole_rows(drawn, evens)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.share_study", description=__doc__)
    parser.add_argument("--mixes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{'':66}{'value':>9} {'unit':5}{'published':>9}")
    for line in study(options.mixes, options.seed):
        published = "" if line["published"] is None else f"{line['published']:g}"
        print(f"{line['name']:66}{line['value']:9.4g} {line['unit']:5}{published:>9}")


if __name__ == "__main__":
    main()
