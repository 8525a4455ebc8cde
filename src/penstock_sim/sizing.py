"""Sizing: the cheapest cluster that is fast enough, among a million sizes of a scenario. Pure.

A grid of nodes, caches and storage bandwidths is computed by `closed_forms`. Nothing is simulated,
and all results say so. The grid's axes mean the same as in `sweep.vary`: the batch of a node stays,
all tiers grow alike, and the storage's whole table is scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.errors import UsageError
from penstock.extent import Int

from . import closed_forms, sweep
from .closed_forms import Floats
from .fluid_model import stage_mb_s
from .scenario import EpochSampling, IdealSpec, Scenario, interpolate_rates
from .workload import BYTES

FORMS: Mapping[str, Callable[[closed_forms.Settings], closed_forms.Forecast]] = {
    "penstock": lambda settings: closed_forms.forecast_penstock(settings, "strided"),
    "penstock_local": lambda settings: closed_forms.forecast_penstock(settings, "local"),
    "nopfs": closed_forms.forecast_nopfs,
    "staging": closed_forms.forecast_storage,
    "lower_bound": closed_forms.forecast_least,
}
"""Policies that have a closed form, by the simulator's names."""

Progress = Callable[[int, int], object]
"""Function called with the number of settings that are done, and of all settings.

Each setting counts once for each policy."""


class Range(NamedTuple):
    """A range of values from the least to the most, both above 0."""

    least: float
    most: float


class Prices(NamedTuple):
    """Prices in any currency.

    node:          of a node without cache.
    cache_gb:      of a GB of cache on one node.
    storage_gb_s:  of a GB/s of storage.

    If two settings cost the same, fewer nodes, then smaller caches are taken.
    """

    node: float = 1.0
    cache_gb: float = 0.0
    storage_gb_s: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class SizingGrid:
    """Settings to be computed: every combination of three axes, each ascending.

    nodes:         int64.
    cache_mb:      of a node, all tiers together, float64; the first is 0, no cache.
    storage_mb_s:  total rate of storage for the *scenario's* number of nodes, float64; for other
                   numbers it changes in the proportion of the scenario's table.
    """

    nodes: Int
    cache_mb: Floats
    storage_mb_s: Floats

    @property
    def settings(self) -> int:
        """Number of combinations."""
        return len(self.nodes) * len(self.cache_mb) * len(self.storage_mb_s)


class NodeSettings(NamedTuple):
    """The settings of one number of nodes; arrays are (caches, storages). forecasts: by policy."""

    nodes: int
    cost: Floats
    forecasts: dict[str, closed_forms.Forecast]


class Choice(NamedTuple):
    """The cheapest setting in which a policy is fast enough; binding: one of the `RESOURCES`."""

    policy: str
    nodes: int
    cache_mb: float
    storage_mb_s: float
    first_s: float
    later_s: float
    binding: str
    cost: float
    form: str = closed_forms.FORM


@dataclass(frozen=True, eq=False, slots=True)
class Sizing:
    """Cheapest settings of a grid.

    epoch_s:  time that a later epoch may take.
    choices:  by policy, None if no setting is fast enough.
    least:    by policy, the least cost with each number of nodes, infinite for none.
    form:     method by which all this was computed: not a simulation.
    """

    grid: SizingGrid
    epoch_s: float
    prices: Prices
    choices: Mapping[str, Choice | None]
    least: Mapping[str, Floats]
    form: str = closed_forms.FORM


def make_grid(
    scenario: Scenario,
    settings: int = 1_000_000,
    *,
    nodes: Range | None = None,
    cache_mb: Range | None = None,
    storage_mb_s: Range | None = None,
) -> SizingGrid:
    """Make a grid of at most about `settings` settings, spread evenly over logarithms of ranges.

    Raises UsageError for impossible ranges.

    By default nodes and storage go from an eighth to eight times the scenario's own, and caches
    from an eighth of what the most nodes need to hold the data together to all data on each node.
    """
    keys = {
        "sampling": not isinstance(scenario.sampling, EpochSampling),
        "system.network": not isinstance(scenario.system.network, IdealSpec),
    }
    scenario.refuse_other_parts(keys, "the closed forms do not model: leave it out, or simulate")
    if not 8 <= settings <= 10**9:
        raise UsageError(f"settings is {settings}: use 8 to 1000000000")
    most = scenario.data.samples // scenario.batch
    own_nodes = scenario.training.nodes
    ways = nodes or Range(max(1, own_nodes // 8), min(most, own_nodes * 8))
    for name, given in (("nodes", ways), ("cache_mb", cache_mb), ("storage_mb_s", storage_mb_s)):
        if given is not None and not 0 < given.least <= given.most < np.inf:
            raise UsageError(
                f"{name} is {given.least:g}:{given.most:g}: use numbers above 0, the least first"
            )
    if ways != (int(ways.least), int(ways.most)) or ways.most > most:
        raise UsageError(
            f"nodes is {ways.least:g}:{ways.most:g}: use whole numbers up to {most}, as an epoch "
            f"must hold a step of {scenario.batch} samples a node"
        )
    counts = np.unique(np.rint(np.geomspace(*ways, max(2, int(settings ** (1 / 3))))))
    data_mb, bandwidth = sweep.data_mb(scenario), sweep.own_value(scenario, "bandwidth")
    rows = max(3, int((settings / len(counts)) ** 0.5))
    caches = np.geomspace(*(cache_mb or (data_mb / 8 / ways.most, data_mb)), rows - 1)
    storages = np.geomspace(*(storage_mb_s or (bandwidth / 8, bandwidth * 8)), rows)
    return SizingGrid(
        counts.astype(np.int64), np.unique(np.append(0.0, caches)), np.unique(storages)
    )


def find_cheapest(
    scenario: Scenario,
    grid: SizingGrid,
    epoch_s: float,
    *,
    prices: Prices = Prices(),  # noqa: B008 - immutable
    seen: Callable[[NodeSettings], object] | None = None,
    progress: Progress | None = None,
) -> Sizing:
    """Find the cheapest setting of the grid whose epochs, after the first, take `epoch_s` at most.

    seen:  function called once with the settings of each number of nodes.
    """
    if not 0 < epoch_s < np.inf:
        raise UsageError(f"epoch_s is {epoch_s!r}: use a finite number of seconds above 0")
    if not all(0 <= price < np.inf for price in prices):
        raise UsageError(f"prices are {prices}: use finite numbers from 0 on")
    choices: dict[str, Choice | None] = dict.fromkeys(FORMS)
    least = {policy: np.full(len(grid.nodes), np.inf) for policy in FORMS}
    total = grid.settings * len(FORMS)
    cache_mb, storage_mb_s = grid.cache_mb[:, None], grid.storage_mb_s[None, :]
    for row, nodes in enumerate(grid.nodes.tolist()):
        settings = make_settings(scenario, nodes, cache_mb, storage_mb_s)
        block = NodeSettings(
            nodes,
            nodes * (prices.node + prices.cache_gb * cache_mb / 1e3)
            + prices.storage_gb_s * storage_mb_s / 1e3,
            {policy: form(settings) for policy, form in FORMS.items()},
        )
        for policy, forecast in block.forecasts.items():
            cost = np.where(forecast.later_s <= epoch_s, block.cost, np.inf)
            at = int(np.argmin(cost))  # of equal ones the first: the smallest cache
            least[policy][row] = cost.flat[at]
            best = choices[policy]
            if cost.flat[at] < (np.inf if best is None else best.cost):
                cache, storage = divmod(at, len(grid.storage_mb_s))
                choices[policy] = Choice(
                    policy,
                    nodes,
                    float(grid.cache_mb[cache]),
                    float(grid.storage_mb_s[storage]),
                    float(forecast.first_s.flat[at]),
                    float(forecast.later_s.flat[at]),
                    closed_forms.RESOURCES[forecast.binding.flat[at]],
                    float(cost.flat[at]),
                )
        if seen is not None:
            seen(block)
        if progress is not None:
            progress(total * (row + 1) // len(grid.nodes), total)
    return Sizing(grid, epoch_s, prices, choices, least)


def make_settings(
    scenario: Scenario, nodes: int, cache_mb: Floats, storage_mb_s: Floats
) -> closed_forms.Settings:
    """Make the settings of other sizes of a scenario; units as in `SizingGrid`."""
    training, system = scenario.training, scenario.system
    samples = scenario.steps * training.global_batch
    mean_mb = sweep.data_mb(scenario) / scenario.data.samples
    each_s = max(
        mean_mb / training.compute_mb_s + training.step_overhead_s / scenario.batch,
        mean_mb / stage_mb_s(scenario),
    )
    # Tiers give at once what they hold, in proportion to their room.
    one = sweep.cached_mb(scenario)
    tiers = [tier.rate_mb_s * one / tier.capacity_mb for tier in system.tiers]
    table = system.storage.read_mb_s
    scale = float(interpolate_rates(table, nodes) / interpolate_rates(table, training.nodes))
    return closed_forms.Settings(
        nodes=nodes,
        samples=samples,
        sample_bytes=mean_mb * BYTES,
        cache_bytes=cache_mb * BYTES,
        capacity=scenario.batch,
        epochs=training.epochs,
        compute_samples_per_s=1 / each_s,
        storage_bytes_per_s=storage_mb_s * scale * BYTES,
        storage_node_bytes_per_s=system.storage.link_mb_s * BYTES,
        peer_bytes_per_s=system.network_mb_s * BYTES,
        cache_bytes_per_s=min(tiers) * BYTES,
    )
