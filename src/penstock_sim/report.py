"""The page of a simulation: one HTML file that needs nothing else. Pure.

Equal inputs give equal pages. Names from a scenario are text wherever they appear.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import yaml

from penstock.cli.quantities import counted, duration, number
from penstock_bench.page import NumberRow, PlottedLine, number_rows, render
from penstock_bench.page.quantities import size, size_unit, time_unit

from .closed_forms import Floats
from .scenario import SOURCES, Result, Scenario
from .sizing import Prices, Sizing
from .sweep import Outcome, Refusal, Sweep, cached_mb, data_mb

POLICIES = {
    "naive": "reads each step from storage when it is due, with one thread",
    "staging": "reads from storage, ahead into staging memory; keeps nothing",
    "deepio": "fills the memory of all nodes before the run; exchanges samples",
    "deepio_opportunistic": "like deepio, but trains on what is in memory instead of what is due",
    "parallel_staging": "before the run each node copies a part of the data, and trains on that",
    "lbann_dynamic": "keeps in memory what a node reads in the first epoch; exchanges samples",
    "lbann_preloading": "fills the memory of all nodes before the run; needs all data to fit",
    "locality_aware": "fills the second tier before the run; samples go to nodes that keep them",
    "nopfs": "each node keeps what it will need most often, by looking ahead; asks peers first",
    "nopfs_published": "like nopfs, but nodes fill their tiers from storage alone",
    "penstock": "each sample is kept once in the cluster and exchanged; filled by the first epoch",
    "penstock_local": "like penstock, and samples go to nodes that keep them",
    "lower_bound": "no policy that uses every sample once an epoch can be faster",
    "by_value": "of drawn samples, each node keeps in memory those worth most (FedCaSe)",
    "recent": "of drawn samples, each node keeps in memory those that it used last (LRU)",
    "fixed": "of drawn samples, each node keeps in memory the first that it meets, for good",
}
"""Each policy in a line."""

REPLACING = frozenset({"deepio_opportunistic", "parallel_staging"})
"""Policies that train on other samples than are due: the bound does not hold for them."""

_styles = (
    *("k-grey dashed", "k-grey", "k-purple", "k-purple dashed"),
    *("k-amber dashed", "k-green", "k-green dashed", "k-amber"),
    *("k-orange", "k-orange dashed", "k-accent thick", "k-sky dashed"),
    *("k-ink dotted", "k-accent thick", "k-orange", "k-green"),
)
_kinds = dict(zip(POLICIES, _styles, strict=True))
COLUMNS_MAX = 60
"""Columns of a small chart; of more epochs, some share a column."""


def render_page(
    scenario: Scenario,
    outcomes: Sequence[Outcome],
    sweeps: Sequence[Sweep] = (),
    *,
    command: str = "",
    remark: str = "",
) -> str:
    """The page of these outcomes, of one model or several, and sweeps.

    command: repeats the simulation.
    remark:  text at the place of sweeps, such as the reason why there are none.
    """
    by_model: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_model.setdefault(outcome.model, []).append(outcome)
    return render(
        "simulation.html",
        title=f"{scenario.name} – penstock simulate",
        heading="What was simulated",
        models=[_tabulate_model(model, results) for model, results in by_model.items()],
        sweeps=[_tabulate_sweep(sweep) for sweep in sweeps],
        swept_model=sweeps[0].model if sweeps else "",
        remark=remark,
        sources=SOURCES,
        **_frame(
            scenario, outcomes, dict.fromkeys(outcome.policy for outcome in outcomes), command
        ),
    )


def render_sizing_page(scenario: Scenario, sizing: Sizing, *, command: str = "") -> str:
    """The page of the settings that were worked out in closed form; `command` repeats it."""
    chosen = [choice for choice in sizing.choices.values() if choice is not None]
    numbers = [
        [row.cost, row.nodes, row.cache_mb, row.storage_mb_s, row.first_s, row.later_s]
        for row in chosen
    ]
    lines: list[PlottedLine] = [
        (
            policy,
            [cost if 0 < cost < math.inf else math.nan for cost in costs.tolist()],
            _kinds[policy],
            True,
        )
        for policy, costs in sizing.least.items()
    ]
    sizes, size_name = size_unit(float(sizing.grid.cache_mb[-1]))
    rates, rate_name = size_unit(float(sizing.grid.storage_mb_s[-1]))
    times, time_name = time_unit(max((max(row[4:]) for row in numbers), default=1.0))
    return render(
        "sizing.html",
        title=f"{scenario.name} – penstock plan",
        heading="What was planned",
        sizing=sizing,
        rows=number_rows(
            [f"{row.policy} ({row.form})" for row in chosen],
            numbers,
            units=(1, 1, sizes, rates, times, times),
        ),
        unit_names=(size_name, rate_name, time_name),
        units=(sizes, rates),
        lines=lines if chosen and len(sizing.grid.nodes) > 1 else [],
        own=float(scenario.training.nodes),
        **_frame(scenario, (), sizing.choices, command)
        | {
            "generator": "penstock plan",
            "verdict": f"{describe_cheapest(sizing)} As the scenario has it: "
            f"{describe_fit(scenario)}",
        },
    )


def describe_cheapest(sizing: Sizing) -> str:
    """The cheapest setting that is fast enough, or what to change if there is none."""
    within = f"epochs of at most {duration(sizing.epoch_s)}"
    choices = [
        choice
        for policy, choice in sizing.choices.items()
        if choice is not None and policy != "lower_bound"
    ]
    if not choices:
        return (
            f"None of {sizing.grid.settings:,} settings has {within}: allow more nodes (--nodes), "
            "faster storage (--storage) or longer epochs (--epoch-seconds)."
        )
    best = min(choices, key=lambda choice: choice.cost)
    return (
        f"The cheapest with {within} costs {number(best.cost)}, {_name_prices(sizing.prices)}: "
        f"{best.policy} on {counted(best.nodes, 'node')}, {size(best.cache_mb)} of cache each, "
        f"storage of "
        f"{size(best.storage_mb_s)}/s."
    )


def _name_prices(prices: Prices) -> str:
    """Name what costs are counted in."""
    if prices == Prices():
        return "a node counting 1 and all else nothing"
    return "in the currency of the prices"


def _frame(
    scenario: Scenario, outcomes: Sequence[Outcome], policies: Iterable[str], command: str
) -> dict[str, Any]:
    """Values of the parts that all pages of a scenario have: their top and their end."""
    given = scenario.model_dump(mode="json")
    nodes, storage = scenario.training.nodes, scenario.system.storage
    storage_mb_s = nodes * float(storage.shares(nodes)[-1])
    return {
        "generator": "penstock simulate",
        "scenario": scenario,
        "verdict": f"{describe_fit(scenario)} {_verdict(outcomes)}".strip(),
        "data_mb": data_mb(scenario),
        "cached_mb": cached_mb(scenario),
        "storage_mb_s": storage_mb_s,
        "policies": [(mark_policy(policy), POLICIES[policy]) for policy in policies],
        "command": command,
        "text": yaml.safe_dump(given, sort_keys=False, default_flow_style=None, width=96),
    }


# -- the scenario ----------------------------------------------------------------------------------


def describe_fit(scenario: Scenario) -> str:
    """Describe in which caches the data fit: that decides which policies pay."""
    data, one = data_mb(scenario), cached_mb(scenario)
    nodes, first = scenario.training.nodes, scenario.system.tiers[0]
    all_nodes = nodes * one
    if data <= first.capacity_mb:
        return f"All data fit into {first.name} of one node."
    if data <= one:
        return "All data fit into the cache of one node, and not into its fastest tier."
    if data <= all_nodes:
        return "All data fit into the caches of all nodes together, and of no single one."
    return (
        f"The data fit nowhere: the caches of all nodes hold {all_nodes / data:.0%} of them, and "
        "the rest comes from storage in every epoch."
    )


def _verdict(outcomes: Sequence[Outcome]) -> str:
    """Compare the fastest policy, penstock and plain reading, by the first model."""
    if not outcomes:
        return ""
    model = outcomes[0].model
    results = {
        outcome.policy: outcome
        for outcome in outcomes
        if isinstance(outcome, Result) and outcome.model == model
    }
    bound = results.pop("lower_bound", None)
    fair = [result for result in results.values() if result.policy not in REPLACING]
    if not fair:
        return ""
    best = min(fair, key=lambda result: result.total_s)
    verdict = f"Fastest is {best.policy} with {duration(best.total_s)}"
    if bound is not None:
        verdict += f", {best.total_s / bound.total_s:.2f} × the lower bound"
    shipped = results.get("penstock")
    if shipped is not None and shipped is not best:
        verdict += f"; penstock takes {duration(shipped.total_s)}"
        if bound is not None:
            verdict += f", {shipped.total_s / bound.total_s:.2f} × the bound"
    plain = results.get("staging")
    if plain is not None and plain is not best:
        verdict += (
            f"; reading storage every time (staging) takes {plain.total_s / best.total_s:.1f} × as "
            f"long as {best.policy}"
        )
    return verdict + "."


# -- the policies by one model ---------------------------------------------------------------------


def rank_results(outcomes: Iterable[Outcome]) -> list[Result]:
    """The bound, then the fastest first; policies that the bound does not hold for are last."""

    def rank(result: Result) -> tuple[bool, bool, float]:
        return result.policy != "lower_bound", result.policy in REPLACING, result.total_s

    return sorted((outcome for outcome in outcomes if isinstance(outcome, Result)), key=rank)


def mark_policy(policy: str) -> str:
    """The policy's name, with a star if it trains on other samples."""
    return f"{policy} *" if policy in REPLACING else policy


def _tabulate_model(model: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Tables and charts of the policies by one model."""
    results = rank_results(outcomes)
    bound = next((result for result in results if result.policy == "lower_bound"), None)
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    values: dict[str, Any] = {
        "name": model,
        "bound": bound,
        "refusals": [
            (mark_policy(refusal.policy), explain_refusal(refusal)) for refusal in refusals
        ],
        "results": results,
    }
    if not results:
        return values | {"rows": [], "unit_names": ("seconds", "seconds", "MB")}
    unit, name = time_unit(max(result.total_s for result in results))
    per_column = -(-len(results[0].epochs_s) // COLUMNS_MAX)
    moving = [result for result in results if result.policy != "lower_bound"]
    times = _stack_times(results, bound, per_column)
    sizes, size_name = size_unit(max(float(row.moved_mb.sum(axis=0).max()) for row in results))
    units = (unit, times["scale"], sizes)
    return values | {
        "unit_names": (name, times["unit"], size_name),
        "rows": _tabulate_results(results, bound, units),
        "replacing": any(result.policy in REPLACING for result in results),
        "per_column": per_column,
        "bars": _stack_totals(results, bound, unit) | {"unit": name},
        "times": times,
        "moved": _stack_bytes(moving, per_column) if moving else None,
        "epochs": _tabulate_epochs(results, per_column, units),
    }


def _stack_totals(results: Sequence[Result], bound: Result | None, unit: float) -> dict[str, Any]:
    """Setup, computing and waiting of each run, in a unit of time."""
    rows = []
    for result in results:
        total = float(result.epochs_s.sum())
        waiting = min(total, max(0.0, float(result.stall_s.sum())))
        note = duration(result.total_s)
        if bound is not None and result is not bound:
            note += f" · {result.total_s / bound.total_s:.2f} × bound"
        lengths = [seconds / unit for seconds in (result.setup_s, total - waiting, waiting)]
        row = {"label": mark_policy(result.policy), "parts": lengths, "note": note}
        rows.append(row | {"strong": result.policy == "penstock"})
    return {"rows": rows}


def _tabulate_results(
    results: Sequence[Result], bound: Result | None, units: tuple[float, float, float]
) -> list[NumberRow]:
    """Numbers of each run; units: of the run, of an epoch and of bytes, as people read them."""
    values = []
    for result in results:
        later = float(result.epochs_s[1:].mean()) if len(result.epochs_s) > 1 else None
        times = [result.total_s, result.total_s / bound.total_s if bound is not None else None]
        times += [result.setup_s, float(result.epochs_s[0]), later, float(result.stall_s.sum())]
        moved: list[float | None] = [float(total) for total in result.moved_mb.sum(axis=0)]
        values.append([*times, *(moved if result.policy != "lower_bound" else [None] * len(moved))])
    kinds = {"penstock": "strong", "lower_bound": "bound"}
    return number_rows(
        [mark_policy(result.policy) for result in results],
        values,
        [kinds.get(result.policy) for result in results],
        (units[0], 1, units[0], units[1], units[1], units[0], *[units[2]] * len(SOURCES)),
    )


def _stack_times(results: Sequence[Result], bound: Result | None, size: int) -> dict[str, Any]:
    """Computing and waiting of each policy's epochs, `size` of them a column, and the bound."""
    high = max(float(_average_groups(result.epochs_s, size).max()) for result in results)
    unit, name = time_unit(high)
    marks = [] if bound is None else (_average_groups(bound.epochs_s, size) / unit).tolist()
    panels = []
    for result in results:
        took = _average_groups(result.epochs_s, size)
        waiting = np.clip(_average_groups(result.stall_s, size), 0, took)
        stacks = (np.stack([took - waiting, waiting], axis=1) / unit).tolist()
        shown_marks = [] if result.policy in REPLACING else marks
        panels.append((result, mark_policy(result.policy), stacks, shown_marks))
    return {"unit": name, "scale": unit, "high": high / unit, "panels": panels}


def _stack_bytes(results: Sequence[Result], size: int) -> dict[str, Any]:
    """Bytes of each policy's epochs by source, `size` epochs a column."""
    high = max(
        float(_average_groups(result.moved_mb, size).sum(axis=1).max()) for result in results
    )
    unit, name = size_unit(high)
    panels = [
        (
            result.policy,
            mark_policy(result.policy),
            result.moved_mb.sum(axis=0).tolist(),
            (_average_groups(result.moved_mb, size) / unit).tolist(),
            len(result.epochs_s),
        )
        for result in results
    ]
    return {"unit": name, "high": high / unit, "panels": panels}


def _tabulate_epochs(
    results: Sequence[Result], size: int, units: tuple[float, float, float]
) -> list[NumberRow]:
    """Numbers of each epoch, or of groups of `size` epochs."""
    names: list[str] = []
    values: list[list[float | None]] = []
    for result in results:
        columns = [result.epochs_s, result.stall_s, *result.moved_mb.T]
        groups = np.stack([_average_groups(column, size) for column in columns], axis=1).tolist()
        names += [result.policy] * len(groups)
        values += [[1 + place * size, *row] for place, row in enumerate(groups)]
    scales = (1, units[1], units[1], *[units[2]] * len(SOURCES))
    return number_rows(names, values, units=scales)


def _average_groups(values: Floats, size: int) -> Floats:
    """Means of `size` rows at a time; the last group may have fewer."""
    starts = np.arange(0, len(values), size)
    counts = np.diff(np.append(starts, len(values)))
    sums = np.add.reduceat(values, starts, axis=0)
    return sums / counts.reshape(-1, *([1] * (values.ndim - 1)))


# -- sweeps, and sizes in closed form --------------------------------------------------------------


def _tabulate_sweep(sweep: Sweep) -> dict[str, Any]:
    """Times of the run by policy and value of what is varied, as lines and as rows."""
    policies = [outcome.policy for outcome in sweep.outcomes[0]]
    totals = [
        [outcome.total_s if isinstance(outcome, Result) else None for outcome in row]
        for row in sweep.outcomes
    ]
    unit, name = time_unit(max((total for row in totals for total in row if total), default=1.0))
    by_policy = dict(zip(policies, zip(*totals, strict=True), strict=True))
    # The thick line is drawn first, so that those on it are seen.
    order = sorted(policies, key=lambda policy: (policy != "penstock", policy == "lower_bound"))
    lines: list[PlottedLine] = [
        (
            mark_policy(policy),
            [math.nan if total is None else total / unit for total in by_policy[policy]],
            _kinds[policy],
            policy == "lower_bound",
        )
        for policy in order
    ]
    rows = number_rows(
        [mark_policy(policy) for policy in policies],
        list(by_policy.values()),
        units=[unit] * len(totals),
    )
    return {"sweep": sweep, "unit": name, "lines": lines, "rows": rows}


def explain_refusal(refusal: Refusal) -> str:
    """The reason why a policy cannot run, without the names of policy and scenario."""
    known = f"{refusal.policy} cannot run in {refusal.scenario}: "
    return f"cannot run: {refusal.reason.removeprefix(known)}"
