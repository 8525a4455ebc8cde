"""The page of a simulation: one HTML file that needs nothing else. Pure.

Equal inputs give equal pages. The page is built as a tree (`svg.element`), so names from a
scenario are text wherever they appear; its policy of content lets a browser load nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np
import yaml

from ..page import (
    chart,
    counted,
    document,
    duration,
    element,
    number,
    ratio,
    size,
    size_unit,
    time_unit,
)
from .devices import Floats, shares
from .results import SOURCES, Result
from .scenario import Scenario
from .sizing import Sizing
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
    "nopfs": "each node keeps what it will need most often, by looking ahead",
    "penstock": "each sample is kept once in the cluster and exchanged; filled by the first epoch",
    "penstock_local": "like penstock, and samples go to nodes that keep them",
    "lower_bound": "no policy that uses every sample once an epoch can be faster",
    "by_value": "of drawn samples, each node keeps in memory those worth most (FedCaSe)",
    "recent": "of drawn samples, each node keeps in memory those that it used last (LRU)",
    "fixed": "of drawn samples, each node keeps in memory the first that it meets, for good",
}
"""Each policy in a line."""

REPLACING = frozenset({"deepio_opportunistic", "parallel_staging"})
"""Policies that train on other samples than those that are due: the bound is not theirs."""

MODELS = {
    "corrected": (
        "Bytes flow through devices that are shared: storage by its table of measured rates, each "
        "node's links, tiers and staging threads; a step begins when all nodes are done with the "
        "one before, and all policies but those with a star read the same seeded order. There is "
        "no latency of single requests, no other job and no failure: what a real cluster adds "
        "comes on top."
    ),
    "parity": (
        "The published simulator of clairvoyant prefetching, reproduced with its faults, which "
        "docs/simulator.md lists. It is here to compare with published figures; to decide "
        "anything, use the corrected model."
    ),
}
"""What each model assumes."""

_kinds = {
    "naive": "k-grey dashed",
    "staging": "k-grey",
    "deepio": "k-purple",
    "deepio_opportunistic": "k-purple dashed",
    "parallel_staging": "k-amber dashed",
    "lbann_dynamic": "k-green",
    "lbann_preloading": "k-green dashed",
    "locality_aware": "k-amber",
    "nopfs": "k-orange",
    "penstock": "k-accent thick",
    "penstock_local": "k-sky dashed",
    "lower_bound": "k-ink dotted",
    "by_value": "k-accent thick",
    "recent": "k-orange",
    "fixed": "k-green",
}
_source_names = ("shared storage", "caches of other nodes", "the node's own cache")
_time_kinds = ("setup", "computing", "waiting")
_time_names = ("before the first step", "computing", "waiting for data")
_most_columns = 60  # of a small chart: of more epochs, some share one


def page(
    scenario: Scenario,
    outcomes: Sequence[Outcome],
    sweeps: Sequence[Sweep] = (),
    *,
    command: str = "",
    remark: str = "",
) -> str:
    """The page of these outcomes, of one model or several, and sweeps.

    command: what repeats it.
    remark:  stands where sweeps would, such as why there are none.
    """
    models = list(dict.fromkeys(each.model for each in outcomes))
    body = element("body", *_summary(scenario, outcomes))
    for model in models:
        body.extend(_model(model, [each for each in outcomes if each.model == model]))
    if sweeps or remark:
        body.extend(_sweeps(sweeps, remark))
    policies = list(dict.fromkeys(each.policy for each in outcomes))
    body.extend(_appendix("What was simulated", scenario, policies, command))
    return document.html(f"{scenario.name} – penstock simulate", body, "penstock simulate")


def sizing_page(scenario: Scenario, found: Sizing, *, command: str = "") -> str:
    """The page of what was worked out in closed form; `command` repeats it."""
    body = element("body", *_summary(scenario, ()), *_sized(scenario, found))
    body.extend(_appendix("What was planned", scenario, list(found.choices), command))
    return document.html(f"{scenario.name} – penstock plan", body, "penstock simulate")


# -- the scenario ----------------------------------------------------------------------------------


def regime(scenario: Scenario) -> str:
    """Where the data fit: what decides which policies pay."""
    data, one = data_mb(scenario), cached_mb(scenario)
    nodes, first = scenario.training.nodes, scenario.system.tiers[0]
    every = nodes * one
    if data <= first.capacity_mb:
        return f"All data fit into {first.name} of one node."
    if data <= one:
        return "All data fit into the cache of one node, and not into its fastest tier."
    if data <= every:
        return "All data fit into the caches of all nodes together, and of no single one."
    return (
        f"The data fit nowhere: the caches of all nodes hold {every / data:.0%} of them, and the "
        "rest comes from storage in every epoch."
    )


def _summary(scenario: Scenario, outcomes: Sequence[Outcome]) -> Iterator[Element]:
    training, system = scenario.training, scenario.system
    data, one = data_mb(scenario), cached_mb(scenario)
    every = one * training.nodes
    wanted = training.nodes * training.compute_mb_s
    given = float(shares(system.storage.read_mb_s, system.storage.link_mb_s, training.nodes)[-1])
    given *= training.nodes
    yield element("p", "penstock simulate", class_="eyebrow")
    yield element("h1", scenario.name)
    yield element("p", scenario.about, class_="about")
    yield element("p", f"{regime(scenario)} {_verdict(outcomes)}".strip(), class_="verdict")
    mean = data / scenario.data.samples
    tiers = ", ".join(f"{tier.name} {size(tier.capacity_mb)}" for tier in system.tiers)
    facts = (
        ("data", size(data), f"{scenario.data.samples:,} samples of {size(mean)}"),
        (
            "training",
            counted(training.nodes, "node"),
            f"{counted(training.epochs, 'epoch')} of {counted(scenario.steps, 'step')}; global "
            f"batch {training.global_batch:,}",
        ),
        ("cache of one node", size(one), f"{ratio(one / data)} × the data: {tiers}"),
        ("caches of all nodes", size(every), f"{ratio(every / data)} × the data"),
        (
            "training takes up to",
            f"{size(wanted)}/s",
            f"storage gives {size(given)}/s to all nodes: {ratio(given / wanted)} × that",
        ),
    )
    yield document.facts(facts)


def _verdict(outcomes: Sequence[Outcome]) -> str:
    """How the fastest policy does, and penstock, by the first model."""
    if not outcomes:
        return ""
    results = _results(each for each in outcomes if each.model == outcomes[0].model)
    bound = results.pop("lower_bound", None)
    fair = [each for each in results.values() if each.policy not in REPLACING]
    if not fair:
        return ""
    best = min(fair, key=lambda each: each.total_s)
    said = f"Fastest is {best.policy} with {duration(best.total_s)}"
    if bound is not None:
        said += f", {best.total_s / bound.total_s:.2f} × the lower bound"
    own = results.get("penstock")
    if own is not None and own is not best:
        said += f"; penstock takes {duration(own.total_s)}"
        if bound is not None:
            said += f", {own.total_s / bound.total_s:.2f} × the bound"
    plain = results.get("staging")
    if plain is not None and plain is not best:
        said += (
            f"; reading storage every time (staging) takes {plain.total_s / best.total_s:.1f} × as "
            f"long as {best.policy}"
        )
    return said + "."


# -- the policies by one model ---------------------------------------------------------------------


def _model(model: str, outcomes: Sequence[Outcome]) -> Iterator[Element]:
    results = ranked(outcomes)
    bound = next((each for each in results if each.policy == "lower_bound"), None)
    yield element("h2", f"The run by policy: {model} model")
    yield element("p", MODELS[model], class_="soft")
    if results:
        yield _totals(results, bound)
    yield _table(results, bound, [each for each in outcomes if isinstance(each, Refusal)])
    if not results:
        return
    yield element("h3", "Epoch by epoch")
    yield _times(results, bound)
    if moving := [each for each in results if each.policy != "lower_bound"]:
        yield element("h3", "Where bytes came from")
        yield _bytes(moving)
    yield document.folded("Numbers of each epoch", _epochs(results))


def _results(outcomes: Iterable[Outcome]) -> dict[str, Result]:
    return {each.policy: each for each in outcomes if isinstance(each, Result)}


def ranked(outcomes: Iterable[Outcome]) -> list[Result]:
    """The bound, then the fastest first; those that the bound does not hold for are last."""

    def rank(each: Result) -> tuple[bool, bool, float]:
        return each.policy != "lower_bound", each.policy in REPLACING, each.total_s

    return sorted((each for each in outcomes if isinstance(each, Result)), key=rank)


def _parts(result: Result) -> tuple[float, float, float]:
    """Setup, computing and waiting, in seconds."""
    total = float(result.epochs_s.sum())
    waiting = min(total, max(0.0, float(result.stall_s.sum())))
    return result.setup_s, total - waiting, waiting


def marked(policy: str) -> str:
    """The policy, with a star where it trains on other samples."""
    return f"{policy} *" if policy in REPLACING else policy


def _totals(results: Sequence[Result], bound: Result | None) -> Element:
    unit, name = time_unit(max(each.total_s for each in results))
    rows = []
    for each in results:
        note = duration(each.total_s)
        if bound is not None and each is not bound:
            note += f" · {each.total_s / bound.total_s:.2f} × bound"
        mark = "strong" if each.policy == "penstock" else ""
        parts = [part / unit for part in _parts(each)]
        rows.append(chart.Bar(marked(each.policy), parts, note, mark))
    drawn = chart.bars(
        f"Time of the run by policy: {', '.join(f'{row.label} {row.note}' for row in rows)}",
        rows,
        _time_kinds,
        f"time of the run, {name}",
        number,
        rule=bound is not None,
    )
    caption = "How long the run takes, and what it is spent on. Shorter is better."
    if any(each.policy in REPLACING for each in results):
        caption += " * trains on other samples than a full shuffle would: not held by the bound."
    return document.figure(
        caption,
        document.legend(_time_kinds, _time_names, "" if bound is None else "lower bound"),
        document.wide(drawn),
    )


def _table(results: Sequence[Result], bound: Result | None, refusals: Sequence[Refusal]) -> Element:
    headings = ["policy", "run, s", "× bound", "before it, s", "first epoch, s"]
    headings += ["later epochs, mean s", "waiting, s", *(f"{name}, MB" for name in SOURCES)]
    names, kinds, values = [], [], []
    for each in results:
        later = float(each.epochs_s[1:].mean()) if len(each.epochs_s) > 1 else None
        times = [each.total_s, each.total_s / bound.total_s if bound is not None else None]
        times += [each.setup_s, float(each.epochs_s[0]), later, float(each.stall_s.sum())]
        moved: list[float | None] = [float(total) for total in each.moved_mb.sum(axis=0)]
        if each.policy == "lower_bound":
            moved = [None] * len(moved)
        names.append(marked(each.policy))
        kinds.append({"penstock": "strong", "lower_bound": "bound"}.get(each.policy))
        values.append([*times, *moved])
    rows = document.number_rows(names, values, kinds)
    for refusal in refusals:
        reason = element("td", why(refusal), class_="reason", colspan=len(headings) - 1)
        rows.append(document.row(marked(refusal.policy), [reason]))
    return document.tabled(headings, rows)


def _times(results: Sequence[Result], bound: Result | None) -> Element:
    """Each policy's epochs: computing and waiting, the bound across them."""
    epochs = len(results[0].epochs_s)
    each = -(-epochs // _most_columns)
    high = max(float(_grouped(result.epochs_s, each).max()) for result in results)
    unit, name = time_unit(high)
    marks = [] if bound is None else (_grouped(bound.epochs_s, each) / unit).tolist()
    panels = []
    for result in results:
        took = _grouped(result.epochs_s, each)
        waiting = np.clip(_grouped(result.stall_s, each), 0, took)
        first = f"first {duration(float(result.epochs_s[0]))}"
        drawn = chart.columns(
            f"Time of each epoch, {result.policy}: {first}, last "
            f"{duration(float(result.epochs_s[-1]))}",
            (np.stack([took - waiting, waiting], axis=1) / unit).tolist(),
            _time_kinds[1:],
            high=high / unit,
            said=number,
            marks=[] if result.policy in REPLACING else marks,
            last=len(result.epochs_s),
        )
        panels.append(document.panel(marked(result.policy), first, drawn))
    rule = "" if bound is None else "lower bound"
    caption = f"How long each epoch takes, in {name}; all on one scale.{_shared(each)}"
    return document.grid(caption, document.legend(_time_kinds[1:], _time_names[1:], rule), panels)


def _shared(each: int) -> str:
    return "" if each == 1 else f" A column is the mean of {each} epochs."


def _bytes(results: Sequence[Result]) -> Element:
    """Each policy's epochs: bytes by source."""
    each = -(-len(results[0].epochs_s) // _most_columns)
    high = max(float(_grouped(result.moved_mb, each).sum(axis=1).max()) for result in results)
    unit, name = size_unit(high)
    panels = []
    for result in results:
        storage, peers, local = (float(total) for total in result.moved_mb.sum(axis=0))
        drawn = chart.columns(
            f"Bytes of each epoch by source, {result.policy}: in all {size(storage)} from storage, "
            f"{size(peers)} from peers, {size(local)} from the node itself",
            (_grouped(result.moved_mb, each) / unit).tolist(),
            SOURCES,
            high=high / unit,
            said=number,
            last=len(result.epochs_s),
        )
        panels.append(document.panel(marked(result.policy), f"{size(storage)} from storage", drawn))
    caption = (
        f"What is read in each epoch, in {name}, by all nodes together; all on one scale. What is "
        f"read before the run counts in the first epoch.{_shared(each)}"
    )
    if results[0].model == "parity":
        caption += (
            " This model counts what is read ahead in the epoch that asks for it, often the first."
        )
    return document.grid(caption, document.legend(SOURCES, _source_names), panels)


def _epochs(results: Sequence[Result]) -> Element:
    """Numbers of each epoch, or of groups of them."""
    each = -(-len(results[0].epochs_s) // _most_columns)
    headings = ["policy", "epoch" if each == 1 else f"mean of {each} epochs from", "took, s"]
    headings += ["waiting, s", *(f"{name}, MB" for name in SOURCES)]
    names: list[str] = []
    values: list[list[float | None]] = []
    for result in results:
        columns = [result.epochs_s, result.stall_s, *result.moved_mb.T]
        grouped = np.stack([_grouped(column, each) for column in columns], axis=1)
        names += [result.policy] * len(grouped)
        values += [[1 + group * each, *row] for group, row in enumerate(grouped.tolist())]
    return document.tabled(headings, document.number_rows(names, values))


def _grouped(values: Floats, each: int) -> Floats:
    """Means of so many rows at a time; the last group may have fewer."""
    starts = np.arange(0, len(values), each)
    counts = np.diff(np.append(starts, len(values)))
    sums = np.add.reduceat(values, starts, axis=0)
    return sums / counts.reshape(-1, *([1] * (values.ndim - 1)))


# -- sweeps ----------------------------------------------------------------------------------------


class _Told(NamedTuple):
    title: str
    axis: str
    caption: str


_sweep_words = {
    "nodes": _Told(
        "More or fewer nodes",
        "nodes",
        "The batch of a node stays, so the global batch grows with the nodes.",
    ),
    "cache": _Told(
        "Larger or smaller caches",
        "caches of all nodes together, as a multiple of the data",
        "All tiers grow alike; staging memory stays.",
    ),
    "bandwidth": _Told(
        "Faster or slower storage",
        "what storage gives to all nodes together, MB/s",
        "The whole table of rates is scaled; each node's link to storage stays.",
    ),
}


def _sweeps(sweeps: Sequence[Sweep], remark: str) -> Iterator[Element]:
    yield element("h2", "If the cluster were another")
    if sweeps:
        yield element(
            "p",
            f"By the {sweeps[0].model} model. Both axes are logarithmic; a line ends where its "
            "policy cannot run.",
        )
    if remark:
        yield element("p", remark, class_="soft")
    for each in sweeps:
        told = _sweep_words[each.key]
        yield element("h3", told.title)
        yield _swept(each, told)


def _swept(sweep: Sweep, told: _Told) -> Element:
    policies = [each.policy for each in sweep.outcomes[0]]
    totals = [[_total(each) for each in row] for row in sweep.outcomes]
    unit, name = time_unit(max((each for row in totals for each in row if each), default=1.0))
    series = {
        policy: [float("nan") if total is None else total / unit for total in column]
        for policy, column in zip(policies, zip(*totals, strict=True), strict=True)
    }
    # The thick line is drawn first, so that those on it are seen.
    order = sorted(policies, key=lambda policy: (policy != "penstock", policy == "lower_bound"))
    drawn = chart.lines(
        f"{told.title}: time of the run by policy; the table has the numbers",
        sweep.values,
        [
            chart.Line(marked(policy), series[policy], _kinds[policy], policy == "lower_bound")
            for policy in order
        ],
        own=sweep.own,
        axes=(told.axis, f"time of the run, {name}"),
        said=number,
    )
    headings = ["policy, s", *(number(value) for value in sweep.values)]
    rows = document.number_rows(
        [marked(policy) for policy in policies],
        list(zip(*totals, strict=True)),
    )
    return document.figure(
        told.caption,
        document.wide(drawn),
        document.folded("Numbers", document.tabled(headings, rows)),
    )


def _total(outcome: Outcome) -> float | None:
    return outcome.total_s if isinstance(outcome, Result) else None


# -- sizes, in closed form -------------------------------------------------------------------------


def _sized(scenario: Scenario, found: Sizing) -> Iterator[Element]:
    grid, prices = found.grid, found.prices
    yield element("h2", f"The cheapest that is fast enough: {found.form}")
    yield element(
        "p",
        f"By {found.form}; nothing was simulated: {grid.settings:,} settings, of "
        f"{_span(grid.nodes)} nodes, {_span(grid.cache_mb)} MB of cache on each, and storage that "
        f"gives {_span(grid.storage_mb_s)} MB/s to {scenario.training.nodes} nodes. An epoch after "
        f"the first may take {duration(found.epoch_s)}. A node costs {number(prices.node)}, a GB "
        f"of cache on one {number(prices.cache_gb)}, a GB/s of storage "
        f"{number(prices.storage_gb_s)}.",
        class_="soft",
    )
    headings = ["policy", "cost", "nodes", "cache of a node, MB", "storage, MB/s"]
    headings += ["first epoch, s", "later epochs, s"]
    chosen = [each for each in found.choices.values() if each is not None]
    rows = document.number_rows(
        [f"{each.policy} ({each.form})" for each in chosen],
        [
            [each.cost, each.nodes, each.cache_mb, each.storage_mb_s, each.first_s, each.later_s]
            for each in chosen
        ],
    )
    for policy, each in found.choices.items():
        if each is None:
            none = element("td", "none is fast enough", class_="reason", colspan=len(headings) - 1)
            rows.append(document.row(f"{policy} ({found.form})", [none]))
    yield document.tabled(headings, rows)
    if not chosen or len(grid.nodes) < 2:
        return
    drawn = chart.lines(
        f"Least cost by nodes, {found.form}; the table has the cheapest",
        grid.nodes.tolist(),
        [
            chart.Line(
                policy,
                [cost if 0 < cost < math.inf else math.nan for cost in least.tolist()],
                _kinds[policy],
                True,
            )
            for policy, least in found.least.items()
        ],
        own=float(scenario.training.nodes),
        axes=("nodes", "least cost"),
        said=number,
    )
    caption = f"The least cost with each number of nodes, {found.form}; no line: not fast enough."
    yield document.figure(caption, document.wide(drawn))


def _span(values: Any) -> str:
    return f"{number(float(values[0]))} to {number(float(values[-1]))}"


# -- the end of the page ---------------------------------------------------------------------------


def _appendix(
    heading: str, scenario: Scenario, policies: Sequence[str], command: str
) -> Iterator[Element]:
    yield element("h2", heading)
    yield element(
        "p",
        "Sizes are decimal: 1 MB is 10⁶ bytes. Equal scenarios give equal pages.",
        class_="soft",
    )
    entries: list[Element] = []
    for policy in policies:
        entries += [element("dt", marked(policy)), element("dd", POLICIES[policy])]
    yield element("dl", *entries, class_="policies")
    if command:
        yield element("p", "To repeat it:")
        yield document.code(command)
    given: dict[str, Any] = scenario.model_dump(mode="json")
    text = yaml.safe_dump(given, sort_keys=False, default_flow_style=None, width=96)
    yield document.folded("The scenario, in full", document.code(text))


def why(refusal: Refusal) -> str:
    """Why a policy cannot run, where policy and scenario are known."""
    known = f"{refusal.policy} cannot run in {refusal.scenario}: "
    return f"cannot run: {refusal.reason.removeprefix(known)}"
