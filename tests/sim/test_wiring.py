"""The networks and sampling of a scenario, and what is planned from it, against the modules that
work it out."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import app
from penstock.errors import UsageError
from penstock_sim import (
    POLICIES,
    SAMPLED,
    Scenario,
    contention,
    load_scenario,
    parse_scenario,
    simulate,
    sizing,
    sweep,
)
from penstock_sim.importance import History, count_room
from penstock_sim.networks import Dragonfly, Traffic
from penstock_sim.workload import SimulatedWorkload
from tests.slices import first

from .comparison import compare

pytest.importorskip("scipy")

FLY = {
    "kind": "dragonfly",
    "group_switches": 4,
    "global_links": 2,
    "switch_nodes": 2,
    "link_mb_s": 1000.0,
    "gateways": 4,
}


def changed(scenario: Scenario, **parts: Any) -> Scenario:
    """With other values: `training_nodes=3` is that of training.nodes."""
    values = scenario.model_dump()
    for key, value in parts.items():
        part, _, below = key.partition("_")
        if below and part in ("training", "system", "data"):
            values[part][below] = value
        else:
            values[key] = value
    return Scenario.of(values, "here")


def small(**parts: Any) -> Scenario:
    """Eight nodes with links that exchanging samples fills."""
    base = changed(
        load_scenario("s1"),
        data_samples=800,
        training_nodes=8,
        training_global_batch=80,
        training_epochs=3,
        system_network_mb_s=120.0,
    )
    return changed(base, **parts)


def numbers(scenario: Scenario, policy: str) -> list[Any]:
    found = dataclasses.asdict(simulate(scenario, policy))
    return [np.asarray(found[key]).tolist() for key in ("total_s", "epochs_s", "moved_mb", "notes")]


# -- networks --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_a_wide_network_is_as_none(policy: str) -> None:
    """An ideal network and a tree that is not oversubscribed give what no network gives, to the
    last bit; with leaves of any size."""
    plain = numbers(small(), policy)
    shapes = [{"kind": "ideal"}, {"kind": "fat-tree"}]
    shapes += [{"kind": "fat-tree", "leaf_nodes": k, "oversubscription": 1.0} for k in (1, 3, 4)]
    for shape in shapes:
        assert numbers(small(system_network=shape), policy) == plain


def test_oversubscription_slows_who_exchanges() -> None:
    """The more, the slower, and only those who exchange, as long as storage fits through."""
    over = [1.0, 1.5, 2.0, 4.0, 8.0, 16.0]
    shapes = [{"kind": "fat-tree", "leaf_nodes": 2, "oversubscription": each} for each in over]
    for policy in ("naive", "staging", "penstock", "deepio", "penstock_local", "lower_bound"):
        totals = [simulate(small(system_network=each), policy).total_s for each in shapes]
        assert totals == sorted(totals)
        if policy in ("penstock", "deepio"):
            assert totals[-1] > 2 * totals[0]
        if policy in ("naive", "staging", "lower_bound"):
            assert totals[0] == totals[2]


@given(
    st.integers(2, 12),
    st.integers(1, 5),
    st.lists(st.floats(1, 100), min_size=2, max_size=5),
    st.floats(1, 1e4),
)
def test_factors_of_a_tree(nodes: int, leaf: int, over: list[float], link: float) -> None:
    """Factors fall as a tree narrows; both classes at once leave at least half of each alone; and
    peers alone have what the links of a full leaf to the core leave."""
    base = changed(
        load_scenario("s1"),
        training_nodes=nodes,
        training_global_batch=nodes * 10,
        system_network_mb_s=link,
    )
    before = contention.ALL
    for each in sorted(over):
        shape = {"kind": "fat-tree", "leaf_nodes": leaf, "oversubscription": each}
        scenario = changed(base, system_network=shape)
        peers = contention.find_remaining(scenario, peers=True, storage=False)
        storage = contention.find_remaining(scenario, peers=False, storage=True)
        both = contention.find_remaining(scenario, peers=True, storage=True)
        assert peers.storage == storage.peers == 1
        for now, alone, then in zip(both, (peers.peers, storage.storage), before, strict=True):
            assert alone / 2 * (1 - 1e-9) <= now <= alone <= 1
            assert now <= then * (1 + 1e-9)
        before = both
        if nodes > leaf:
            rate = float(sweep.own_value(scenario, "bandwidth")) / nodes
            away = (nodes - leaf) / (nodes - 1) * link * leaf
            if nodes % leaf == 0:
                want = min(1.0, leaf * (link + rate) / each / away)
                assert peers.peers == pytest.approx(want, rel=1e-6)
        else:
            assert peers.peers == 1


@pytest.mark.long
@pytest.mark.parametrize("routing", ["minimal", "valiant", "ugal"])
def test_factor_of_a_dragonfly(routing: Any) -> None:
    """All to all on every terminal: peers get what the network of the check values gives; with
    links four times its links, a quarter of the published even load."""
    shape = {**FLY, "gateways": 2, "routing": routing}
    base = changed(load_scenario("s1"), training_nodes=70, training_global_batch=700)
    scenario = changed(base, system_network=shape, system_network_mb_s=4000.0)
    left = contention.find_remaining(scenario, peers=True, storage=False)
    wide = np.full(72, 1e12)
    network = Dragonfly(
        4, 2, switch_nodes=2, link_bytes_per_s=1e9, node_bytes_per_s=wide, routing=routing
    )
    terminals = np.setdiff1d(np.arange(72), [18, 54])
    among = Traffic.exchange(70, 4e9)
    traffic = Traffic(terminals[among.source], terminals[among.target], among.demand)
    assert left.peers == pytest.approx(network.throughput(traffic), rel=1e-6)
    even = {"minimal": 1.0, "valiant": 0.501, "ugal": 1.0}[routing]
    at_least, at_most = (0.9, 1.3) if even == 1 else (0.95, 1.1)
    assert at_least * even / 4 < left.peers < at_most * even / 4
    assert simulate(scenario, "penstock").notes["network"]["peers"] <= left.peers


def test_factors_are_those_of_the_links() -> None:
    """A network is the same as slower links to peers, and slower storage."""
    shape = {"kind": "fat-tree", "leaf_nodes": 2, "oversubscription": 6.0}
    scenario = small(system_network=shape)
    left = simulate(scenario, "penstock").notes["network"]
    assert left["peers"] < left["storage"] < 1
    storage = scenario.system.storage
    by_hand = small(
        system_network_mb_s=scenario.system.network_mb_s * left["peers"],
        system_storage={
            "link_mb_s": storage.link_mb_s * left["storage"],
            "read_mb_s": {n: rate * left["storage"] for n, rate in storage.read_mb_s.items()},
        },
    )
    for policy in ("penstock", "deepio"):
        found, want = simulate(scenario, policy), simulate(by_hand, policy)
        assert found.epochs_s == pytest.approx(want.epochs_s, rel=1e-6)


def test_narrow_links_slow_routed_networks() -> None:
    """A torus of slower links is slower for who exchanges, and a wide one is ideal."""
    shape = {"kind": "torus", "dims": [3, 3], "switch_nodes": 1, "gateways": 1}
    totals = [
        simulate(small(system_network={**shape, "link_mb_s": rate}), "penstock").total_s
        for rate in (1e6, 200.0, 50.0, 10.0)
    ]
    assert totals[0] == simulate(small(), "penstock").total_s
    assert totals == sorted(totals)
    assert totals[-1] > 2 * totals[0]


def test_storage_through_one_gateway() -> None:
    """Nodes that only read storage wait for the two links of the one gateway's switch, if they
    carry less than its table gives."""
    shape = {"kind": "torus", "dims": [9], "switch_nodes": 1, "gateways": 1, "link_mb_s": 5.0}
    scenario = small(system_network=shape)
    left = contention.find_remaining(scenario, peers=False, storage=True)
    assert left.storage == pytest.approx(2 * 5 / sweep.own_value(scenario, "bandwidth"), rel=1e-6)
    slow = simulate(scenario, "staging")
    assert slow.total_s == pytest.approx(
        simulate(small(), "staging").total_s / left.storage, rel=0.05
    )


# -- sampling --------------------------------------------------------------------------------------

NARROW: dict[str, Any] = {"data_samples": 600, "training_global_batch": 24, "training_epochs": 3}


def loss(ids: np.ndarray, uses: np.ndarray) -> np.ndarray:
    return 1 / (ids + 1.0) / (uses + 1.0) ** 0.5


def holding(scenario: Scenario, mb: float) -> Scenario:
    """With so much memory on each node."""
    tier = scenario.system.tiers[0].model_dump()
    return changed(scenario, system_tiers=[{**tier, "capacity_mb": mb}])


def level(history: History) -> np.ndarray:
    """Some other value: use alone."""
    return history.uses.astype(float)


@pytest.mark.parametrize("value", [None, level])
def test_hits_are_those_of_the_comparison(value: Any) -> None:
    """On one node the hits of each cache are those of the cache alone; bytes and times follow."""
    base = changed(load_scenario("importance"), training_nodes=1, data_sigma_mb=0.0, **NARROW)
    scenario = holding(base, 4.0)
    options = {} if value is None else {"value": value}
    held = count_room(SimulatedWorkload(scenario), "fixed")
    assert held == 40
    want = compare(600, 24, held, loss, seed=42, batches=75, **options)
    assert len(set(want["importance"].hits.values())) == 3
    names = {"by_value": "value", "recent": "recent", "fixed": "fixed"}
    for policy, name in names.items():
        result = simulate(scenario, policy, value=value)
        assert result.notes["hits"] == want["importance"].hits[name]
        assert result.notes["effective"] == want["importance"].effective
        moved = result.moved_mb.sum(axis=0)
        assert moved == pytest.approx(
            75 * 24 * 0.1 * np.array([1 - result.notes["hits"], 0, result.notes["hits"]])
        )


@pytest.mark.long
def test_sampled_policies_by_their_hits() -> None:
    """Fewer reads are less time; naive reads everything; equal scenarios give equal results; and as
    nothing is known ahead, more memory to read ahead into is of no use."""
    scenario = holding(changed(load_scenario("importance"), **NARROW), 2.0)
    results = {policy: simulate(scenario, policy) for policy in scenario.policies}
    assert tuple(results) == SAMPLED
    hits = {policy: result.notes["hits"] for policy, result in results.items()}
    assert 0 == hits["naive"] < min(hits[policy] for policy in SAMPLED[1:])
    by_hits = sorted(SAMPLED[1:], key=lambda policy: -hits[policy])
    times = [results[policy].total_s for policy in by_hits]
    assert times == sorted(times)
    assert results["naive"].total_s > times[-1]
    assert numbers(scenario, "by_value") == numbers(scenario, "by_value")
    staging = scenario.system.staging.model_dump()
    for capacity in (2.0, 2000.0):
        other = changed(scenario, system_staging={**staging, "capacity_mb": capacity})
        assert numbers(other, "by_value") == numbers(scenario, "by_value")


def test_who_needs_an_order_says_so() -> None:
    """By name and reason: what goes by an order that is not known, and what wants none."""
    sampled = changed(load_scenario("importance"), **NARROW)
    for policy in set(POLICIES) - {"naive"}:
        with pytest.raises(UsageError, match=f"^{policy} cannot run in importance: .*not known"):
            simulate(sampled, policy)
    for policy in SAMPLED[1:]:
        with pytest.raises(UsageError, match=f"^{policy} cannot run in s1: .*every sample once"):
            simulate(load_scenario("s1"), policy)
    with pytest.raises(UsageError, match="value is given, and s1 draws nothing"):
        simulate(load_scenario("s1"), "penstock", value=level)
    with pytest.raises(UsageError, match="value returned the shape"):
        simulate(sampled, "recent", value=lambda history: np.ones(3))


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("system.network", {"kind": "mesh"}, "system.network.kind is 'mesh': use one of 'ideal'"),
        ("system.network", {"leaf_nodes": 4}, "system.network.kind is missing"),
        ("system.network", "ideal", "system.network is 'ideal': use"),
        ("system.network", {"kind": "ideal", "dims": [2]}, "system.network.dims is no key"),
        ("system.network", {**FLY, "dims": [3]}, "system.network.dims is no key"),
        ("system.network", {"kind": "torus", "dims": [3]}, "system.network.link_mb_s is missing"),
        ("system.network", {**FLY, "gateways": 0}, "system.network.gateways is 0: use"),
        ("system.network", {**FLY, "routing": "fast"}, "system.network.routing is 'fast': use"),
        ("system.network", {**FLY, "gateways": 69}, "72 terminals, for 4 nodes and 69 gateways"),
        (
            "system.network",
            {**FLY, "group_switches": 1, "global_links": 1},
            "two groups leave no way around; use more",
        ),
        (
            "system.network",
            {"kind": "fat-tree", "oversubscription": 0.5},
            "system.network.oversubscription is 0.5: use",
        ),
        ("sampling", {"kind": "often"}, "sampling.kind is 'often': use one of 'epochs'"),
        ("sampling", {"kind": "importance", "floor": 0}, "sampling.floor is 0: use"),
        ("sampling", {"kind": "importance", "skew": 1}, "sampling.skew is no key"),
        ("sampling", {"kind": "epochs", "floor": 1}, "sampling.floor is no key"),
    ],
)
def test_impossible_values_are_named(path: str, value: Any, said: str) -> None:
    """Key, value and remedy."""
    values = load_scenario("s1").model_dump()
    *parents, last = path.split(".")
    part = values
    for key in parents:
        part = part[key]
    part[last] = value
    with pytest.raises(UsageError) as error:
        parse_scenario(yaml.safe_dump(values), "here")
    assert str(error.value).startswith("here: ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    "shape",
    [
        {**FLY, "group_switches": 16, "global_links": 8, "switch_nodes": 8},
        {"kind": "torus", "dims": [1024] * 8, "switch_nodes": 1, "gateways": 1, "link_mb_s": 1.0},
    ],
)
def test_networks_that_take_too_long_are_refused(shape: Any) -> None:
    """At once, with the bound and what to use."""
    with pytest.raises(UsageError, match=r"s1: system.network: .*limits.network_\w+ = .*: use"):
        simulate(small(system_network=shape), "penstock")


def test_parity_knows_none_of_it() -> None:
    """The published simulator refuses what it has not, also where many are simulated."""
    for parts, key in (
        ({"system_network": {"kind": "fat-tree"}}, "system.network"),
        ({"sampling": {"kind": "importance"}}, "sampling"),
        ({"data_cache_block": 4}, "data.cache_block"),
    ):
        scenario = changed(load_scenario("s1"), **parts)
        found = sweep.run_simulation(sweep.SimulationRun(scenario, "naive", "parity"))
        assert isinstance(found, sweep.Refusal)
        assert f"{key}, which the published simulator does not support" in found.reason


# -- plans -----------------------------------------------------------------------------------------


def by_force(
    scenario: Scenario,
    grid: sizing.SizingGrid,
    epoch_s: float,
    prices: sizing.Prices,
    policy: str,
) -> Any:
    """One setting after the other: its time from a scenario that is written out, its price by
    words; the cheapest, then the one of fewest nodes, then caches, then storage."""
    best: Any = None
    for nodes, cache, storage in itertools.product(grid.nodes, grid.cache_mb, grid.storage_mb_s):
        data_mb = sweep.data_mb(scenario)
        training, system = scenario.training, scenario.system
        share = min(1.0, nodes * cache / data_mb)
        reads = data_mb if policy == "staging" else (1 - share) * data_mb
        table = system.storage.read_mb_s
        rate = storage * np.interp(nodes, list(table), list(table.values()))
        rate /= np.interp(training.nodes, list(table), list(table.values()))
        peers = share * (1 - 1 / nodes) * data_mb / nodes if policy == "penstock" else 0.0
        seconds = max(
            data_mb / nodes / min(training.compute_mb_s, training.preprocess_mb_s * 8),
            reads / min(rate, nodes * system.storage.link_mb_s),
            peers / system.network_mb_s,
        )
        cost = nodes * (prices.node + prices.cache_gb * cache / 1e3)
        cost += prices.storage_gb_s * storage / 1e3
        if seconds <= epoch_s and (best is None or cost < best[0]):
            best = (cost, nodes, cache, storage)
    return best


@pytest.mark.parametrize(
    "prices",
    first(1, [sizing.Prices(9000, 4, 20000), sizing.Prices(), sizing.Prices(1, 50, 0)]),
)
@pytest.mark.parametrize("epoch_s", [1e-3, 0.5, 0.72, 2.0])
def test_a_plan_is_the_cheapest_by_force(epoch_s: float, prices: sizing.Prices) -> None:
    """A small grid's plan is the setting that looking at each finds, for each price and wish."""
    scenario = load_scenario("s1")
    grid = sizing.make_grid(scenario, 600)
    assert 200 < grid.settings <= 600
    found = sizing.find_cheapest(scenario, grid, epoch_s, prices=prices)
    assert found.form == "closed form"
    for policy in ("penstock", "staging", "lower_bound"):
        want, choice = by_force(scenario, grid, epoch_s, prices, policy), found.choices[policy]
        if want is None:
            assert choice is None
            continue
        assert choice is not None
        assert choice.form == "closed form"
        assert (choice.nodes, choice.cache_mb, choice.storage_mb_s) == want[1:]
        assert choice.cost == pytest.approx(want[0], rel=1e-12)
        assert choice.later_s <= epoch_s
        assert found.least[policy].min() == choice.cost
    bound, ours = found.choices["lower_bound"], found.choices["penstock"]
    assert bound is None or ours is None or bound.cost <= ours.cost


def test_a_plan_as_simulated() -> None:
    """The closed form of the scenario as it is comes near to what is simulated; and the caches that
    are chosen hold what storage cannot give in time."""
    scenario = load_scenario("s1")
    own = sweep.own_value(scenario, "bandwidth")
    one = sizing.SizingGrid(np.array([4]), np.array([sweep.cached_mb(scenario)]), np.array([own]))
    found = sizing.find_cheapest(scenario, one, 1e9)
    for policy, choice in found.choices.items():
        result = simulate(scenario, policy)
        assert choice is not None
        assert choice.later_s == pytest.approx(result.epochs_s[1:].mean(), rel=0.2), policy
    grid = sizing.make_grid(scenario, 20_000, storage_mb_s=sizing.Range(10, 10))
    chosen = sizing.find_cheapest(scenario, grid, 0.7, prices=sizing.Prices(1, 1)).choices[
        "penstock"
    ]
    assert chosen is not None
    exact = sizing.make_settings(scenario, chosen.nodes, np.array([0.0]), np.array([10.0]))
    missing = exact.samples * exact.sample_bytes - 0.7 * exact.storage_bytes_per_s
    assert missing / chosen.nodes <= chosen.cache_mb * 1e6


def command(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["penstock", *words])
    with pytest.raises(SystemExit) as ended:
        app.main()
    return int(ended.value.code or 0)


def test_plan_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table, page, JSON and CSV agree, and each says that it is a closed form."""
    words = ["plan", "s1", "--epoch-seconds", "0.5", "--settings", "600", "--json"]
    assert command(monkeypatch, tmp_path, *words, "--output", "a.csv") == 0
    printed, shown = capsys.readouterr()
    values = json.loads(printed)
    best = values["cheapest"]["penstock"]
    assert values["form"] == best["form"] == "closed form"
    rows = [line for line in shown.splitlines() if line.strip().startswith(tuple(sizing.FORMS))]
    assert len(rows) == len(sizing.FORMS)
    assert all("closed form" in row for row in rows)
    page = (tmp_path / "s1-plan.html").read_text()
    assert page.count("closed form") > len(sizing.FORMS)
    assert f'<data value="{best["cost"]!r}">' in page
    with (tmp_path / "a.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == np.prod([len(values[k]) for k in ("nodes", "cache_mb", "storage_mb_s")])
    assert {each["form"] for each in lines} == {"closed form"}
    fast = [each for each in lines if float(each["penstock_later_s"]) <= 0.5]
    assert min(float(each["cost"]) for each in fast) == best["cost"]
    assert command(monkeypatch, tmp_path, *words) == 0
    assert (tmp_path / "s1-plan.html").read_text() == page


def test_a_plan_that_nothing_reaches_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page too is written, without a cheapest size."""
    words = ["plan", "s1", "--epoch-seconds", "1e-9", "--settings", "600"]
    assert command(monkeypatch, tmp_path, *words) == 0
    assert "None of " in capsys.readouterr().out
    assert "closed form" in (tmp_path / "s1-plan.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("s9",), "there is no scenario 's9'"),
        (("s1", "--nodes", "4-8"), "--nodes is '4-8'"),
        (("s1", "--nodes", "8:4"), "nodes is 8:4"),
        (("s1", "--nodes", "1:inf"), "nodes is 1:inf"),
        (("s1", "--nodes", "1:401"), "whole numbers up to 400"),
        (("s1", "--cache", "nan:2"), "--cache is 'nan': use a unit, as in 1GB:1TB"),
        (("s1", "--cache", "100:2GB"), "--cache is '100': use a unit"),
        (("s1", "--storage", "2GB/s:1GB/s"), "storage_mb_s is 2000:1000"),
        (("s1", "--prices", "gold=1"), "--prices is 'gold=1'"),
        (("s1", "--prices", "node=-1"), "from 0 on"),
        (("s1", "--settings", "1"), "settings is 1"),
        (("s1", "--epoch-seconds", "nan"), "epoch_s is nan"),
        (("s1", "--output", "no/a.csv"), "there is no folder no"),
        (("s1", "-o", "a.csv", "-o", "b.csv"), "--output is a.csv, b.csv: give one file .html"),
        (("s1", "-o", "a.txt"), "give one file .html and one file .csv"),
        (("importance",), "importance has sampling, which the closed forms do not model"),
    ],
)
def test_bad_plans_are_one_message(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each mistake is named, and nothing is written."""
    assert command(monkeypatch, tmp_path, "plan", "--epoch-seconds", "1", *words) == 1
    assert said in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
