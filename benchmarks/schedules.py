"""python -m benchmarks.schedules [--quick]: schedules against what was published, and each other.

PerSched on the ten sets of its paper, beside what its authors' program gives; online rules on the
same sets; which of the two wins there and on random mixes, by either objective; and planners of
exclusive accesses beside their bounds. Nothing is timed but the planners: the rows are the same on
any machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock_sim.schedule import (
    RULES,
    Objective,
    Pattern,
    PeriodicJob,
    Rule,
    fluid_bounds,
    list_schedule,
    lower_bound,
    plan_periodic,
    simulate,
    stagger,
)

from . import __main__ as command
from .record import Record, Row
from .schedule_comparison import Comparison, Outcomes, compare

CLOSE = 0.03
BANDWIDTH = 3e9
"""The bandwidth of the paper's machine, bytes/s."""
OBJECTIVES: tuple[Objective, ...] = ("efficiency", "dilation")
QUICK = (1, 2, 3)


def _job(compute_s: float, gigabytes: float, cores: int) -> PeriodicJob:
    """A job as the paper uses it: a 64th of the cores it was traced on, 64 times slower."""
    return PeriodicJob(64 * compute_s, gigabytes * 1e9, cores / 64 * 1e7, cores / 64)


TURBULENCE_1 = _job(70, 128.2, 32768)
TURBULENCE_2 = _job(1.2, 235.8, 4096)
ASTROPHYSICS = _job(240, 423.4, 8192)
PLASMA = _job(7554, 34304, 32768)


class Published(NamedTuple):
    """A set of jobs, where the search began, and what the authors' program found: Aupy, Gainaru,
    Le Fèvre (TOPC 6(2), 2019); vlefevre/IO-scheduling-simu, its file of results."""

    jobs: Sequence[PeriodicJob]
    shortest_s: float
    efficiency: float
    dilation: float
    period_s: float


_ap, _pp, _t1, _t2 = ASTROPHYSICS, PLASMA, TURBULENCE_1, TURBULENCE_2
SETS = {
    1: Published([_t2] * 10, 900, 0.0973471, 1.89597, 8441.55),
    2: Published([_t2] * 8 + [_ap], 16_000, 0.289837, 1.42833, 15898.6),
    3: Published([_t2] * 6 + [_ap] * 2, 16_000, 0.4798, 1.08724, 15974.7),
    4: Published([_t2] * 4 + [_ap] * 3, 16_000, 0.647361, 1.01402, 111_375),
    5: Published([_t2] * 2 + [_pp], 495_000, 0.815203, 1.02352, 494_902),
    6: Published([_t2] * 2 + [_ap] * 4, 16_000, 0.8142, 1.00541, 157_571),
    7: Published([_t2] * 2 + [_t1], 4544, 0.823546, 1.00726, 36_326),
    8: Published([_ap] + [_pp], 495_000, 0.976078, 1.00547, 3_959_920),
    9: Published([_ap] * 5, 16_000, 0.978893, 1.00003, 141_221),
    10: Published([_ap] + [_t1], 16_000, 0.986171, 1.00919, 126_680),
}


def parity_rows(numbers: Sequence[int], raw: dict[str, object]) -> list[Row]:
    """PerSched beside the authors' program, and beside the best that rules give."""
    rows = []
    for number in numbers:
        published = SETS[number]
        began = time.perf_counter()
        found = plan_periodic(published.jobs, BANDWIDTH, shortest_s=published.shortest_s)
        note = f"T {found.period_s:.2f} s, searched for {time.perf_counter() - began:.1f} s"
        rules = {rule.name: simulate(published.jobs, BANDWIDTH, rule) for rule in RULES}
        bounds = fluid_bounds(published.jobs, BANDWIDTH)
        raw[f"set {number}"] = {
            "cycles": found.cycles,
            "persched": found.outcome,
            "rules": rules,
            "bounds": bounds,
        }
        for objective in OBJECTIVES:
            value, floor = getattr(found.outcome, objective), getattr(published, objective)
            close = abs(value / floor - 1) <= CLOSE
            what = f"set {number} PerSched {objective}"
            rows.append(Row(what, value, "", floor, value / floor, 1.0, close, note=note))
            best = max(rules, key=lambda name: rules[name].score(objective))
            value, floor = getattr(rules[best], objective), getattr(bounds, objective)
            what = f"set {number} best rule {objective}"
            rows.append(
                Row(what, value, "", floor, value / floor, note=f"{best}; floor: the fluid bound")
            )
    return rows


def mix(random: np.random.Generator) -> list[PeriodicJob]:
    """Two to six jobs that write checkpoints through 1 GB/s, and would use 0.3 to 1.5 of it."""
    count = int(random.integers(2, 7))
    cycle_s = np.exp(random.uniform(np.log(60), np.log(3600), count))
    shares = random.dirichlet(np.full(count, 2.0)) * random.uniform(0.3, 1.5) * 1e9
    rates = np.exp(random.uniform(np.log(0.1e9), np.log(2e9), count))
    nodes = random.integers(1, 17, count)
    jobs = []
    for each_s, share, rate, weight in zip(cycle_s, shares, rates, nodes, strict=True):
        volume = min(share, 0.9 * min(rate, 1e9)) * each_s
        jobs.append(
            PeriodicJob(each_s - volume / min(rate, 1e9), volume, float(rate), float(weight))
        )
    return jobs


def comparison_rows(mixes: int, seed: int, raw: dict[str, object]) -> list[Row]:
    """The winner on random mixes, how often, and by how much; and storage left to itself."""
    found: dict[Objective, list[Comparison]] = {objective: [] for objective in OBJECTIVES}
    fair = []
    random = np.random.default_rng(seed)
    for _ in range(mixes):
        jobs = mix(random)
        fair.append(simulate(jobs, 1e9, Rule("fair")))
        outcomes: Outcomes = ()
        for objective in OBJECTIVES:
            one = compare(jobs, 1e9, objective, outcomes=outcomes)
            outcomes = one.rules
            found[objective].append(one)
    rows = []
    for objective, each in found.items():
        wins = sum(isinstance(one.winner, Pattern) for one in each) / mixes
        ratios = np.array([_ratio(one, objective) for one in each])
        low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95]).tolist()
        raw[f"mixes {objective}"] = {
            "ratios": ratios.tolist(),
            "reasons": [one.reason for one in each],
        }
        note = "part of the mixes"
        rows.append(Row(f"mixes PerSched wins {objective}", wins, "", note=note))
        note = "value of a pattern over that of the best rule; interval: 5 % and 95 % of the mixes"
        rows.append(
            Row(f"mixes {objective}", middle, "", low=low, high=high, note=note, ratio=middle)
        )
        for rule in RULES:
            best = np.mean([dict(one.rules)[rule].score(objective) for one in each])
            left = np.mean([one.score(objective) for one in fair])
            value, floor = abs(float(best)), abs(float(left))
            what = f"mixes {rule.name} {objective}"
            rows.append(Row(what, value, "", floor, value / floor, note="floor: fair sharing"))
    return rows


def equal_rows(mixes: int, seed: int) -> list[Row]:
    """The same mixes where all jobs weigh the same, as they do for `penstock broker`: the rule that
    it uses for transfers is chosen by this."""
    random = np.random.default_rng(seed)
    jobs = [[replace(job, weight=1.0) for job in mix(random)] for _ in range(mixes)]
    rules = RULES[:2]  # with equal weights the others do what min-dilation does
    found = {rule: [simulate(each, 1e9, rule) for each in jobs] for rule in (*rules, Rule("fair"))}
    rows = []
    for objective in OBJECTIVES:
        left = np.mean([getattr(one, objective) for one in found[Rule("fair")]])
        for rule in rules:
            value = float(np.mean([getattr(one, objective) for one in found[rule]]))
            what = f"equal mixes {rule.name} {objective}"
            note = "floor: fair sharing"
            rows.append(Row(what, value, "", float(left), value / float(left), note=note))
    return rows


def _ratio(one: Comparison, objective: Objective) -> float:
    assert one.pattern is not None
    best = max((outcome for _, outcome in one.rules), key=lambda each: each.score(objective))
    return float(getattr(one.pattern.outcome, objective) / getattr(best, objective))


def access_rows(seed: int) -> list[Row]:
    """Planners of exclusive accesses beside their bounds; and what they take."""
    random = np.random.default_rng(seed)
    rows = []
    for jobs, resources, tasks in ((32, 8, 4), (64, 8, 8), (256, 16, 4), (64, 4, 16)):
        given = list(random.integers(0, resources, (jobs, tasks)))
        slots = 1 + max(int(each.max()) for each in list_schedule(given))
        bound = lower_bound(given)
        what = f"list schedule {jobs} jobs, {resources} resources, {tasks} tasks"
        rows.append(Row(what, slots, "slots", bound, slots / bound, note="floor: lower bound"))
    count, nodes = 100_000, 64
    readers, targets = random.integers(0, nodes, (2, count))
    began = time.perf_counter()
    slots = 1 + int(stagger(readers, targets).max())
    took = time.perf_counter() - began
    bound = int(max(np.bincount(readers).max(), np.bincount(targets).max()))
    note = f"{1e6 * took / count:.1f} us an access; floor: the busiest node"
    what = f"stagger {count:,} accesses, {nodes} readers and targets"
    rows.append(Row(what, slots, "slots", bound, slots / bound, 1.0, slots == bound, note=note))
    for readers_count, targets_count in ((8, 8), (32, 8), (64, 16)):
        slots = walk(
            [reader * targets_count // readers_count for reader in range(readers_count)],
            targets_count,
        )
        convoy = walk([0] * readers_count, targets_count)
        bound = max(readers_count, targets_count)
        what = f"rotation {readers_count} readers, {targets_count} targets"
        note = f"{convoy} where all begin with the first target"
        rows.append(Row(what, slots, "slots", bound, slots / bound, 1.0, slots == bound, note=note))
    return rows


def walk(begins: Sequence[int], targets: int) -> int:
    """Slots that readers take who walk all targets in a circle, each target serving them as they
    come."""
    waiting: list[list[int]] = [[] for _ in range(targets)]
    for reader, target in enumerate(begins):
        waiting[target].append(reader)
    left = [targets] * len(begins)
    slots = 0
    while any(left):
        served = [(target, who.pop(0)) for target, who in enumerate(waiting) if who]
        for target, reader in served:
            left[reader] -= 1
            if left[reader]:
                waiting[(target + 1) % targets].append(reader)
        slots += 1
    return slots


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedules", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three sets, few mixes")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    name = "schedules" + ("-quick" if options.quick else "")
    record = Record(name, options.seed, vars(options))
    found: dict[str, object] = {}
    rows = parity_rows(QUICK if options.quick else tuple(SETS), found)
    rows += comparison_rows(10 if options.quick else 100, options.seed, found)
    rows += equal_rows(10 if options.quick else 100, options.seed)
    rows += access_rows(options.seed)
    record.rows = [replace(row, is_computed=True) for row in rows]
    record.raw["schedules"] = {"runs": found}
    command.finish(record)


if __name__ == "__main__":
    main()
