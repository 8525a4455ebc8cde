"""Network models: the fullest link of trees by the tree's description, routed networks against
published check values, closed forms, and conservation of what flows."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LimitError
from penstock_sim.networks import Dragonfly, FatTree, RoutedNetwork, Torus, Traffic
from tests.slices import first

pytest.importorskip("scipy.optimize")

ROUTINGS: list[Any] = ["minimal", "valiant", "ugal"]


def dragonfly(a: int, h: int, p: int, **options: Any) -> Dragonfly:
    links = np.full((a * h + 1) * a * p, options.pop("node_bytes_per_s", 1.0))
    return Dragonfly(a, h, switch_nodes=p, link_bytes_per_s=1.0, node_bytes_per_s=links, **options)


def torus(*dims: int, **options: Any) -> Torus:
    links = np.full(math.prod(dims), 1e6)
    return Torus(dims, switch_nodes=1, link_bytes_per_s=1.0, node_bytes_per_s=links, **options)


def flows(source: Any, target: Any, demand: Any) -> Traffic:
    return Traffic(np.array(source, int), np.array(target, int), np.array(demand, float))


def of_matrix(demands: np.ndarray) -> Traffic:
    """Flows of a matrix of bytes/s, source by target."""
    source, target = np.nonzero(demands)
    return Traffic(source, target, demands[source, target])


def uniform(network: RoutedNetwork) -> Traffic:
    """Each node sends one byte/s in all, as much to each node of each other switch."""
    switch = np.arange(len(network.node_bytes_per_s)) // network.switch_nodes
    away = switch[:, None] != switch[None, :]
    return of_matrix(away / away.sum(axis=1, keepdims=True))


def shifted(network: RoutedNetwork, by: int) -> Traffic:
    """Each node sends one byte/s to the one so much further."""
    nodes = np.arange(len(network.node_bytes_per_s))
    return Traffic(nodes, (nodes + by) % len(nodes), np.ones(len(nodes)))


@st.composite
def traffics(draw: st.DrawFn, nodes: int) -> Traffic:
    ends = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1), st.integers(0, 40))
    held = draw(st.lists(ends, max_size=12))
    source, target, demand = (np.array([each[k] for each in held], int) for k in range(3))
    return Traffic(source, target, demand / 8)


# -- trees -----------------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> FatTree:
    nodes = draw(st.integers(1, 9))
    own = draw(st.lists(st.integers(1, 24), min_size=nodes, max_size=nodes))
    leaf_nodes, over = draw(st.integers(1, 4)), draw(st.sampled_from([0.5, 1.0, 2.0, 3.5]))
    return FatTree(np.array(own) / 8, leaf_nodes, over)


def crossings(tree: FatTree, traffic: Traffic) -> tuple[np.ndarray, np.ndarray]:
    """The flows that cross each link, as bool (flows, links), and the links' capacities: by words,
    not by the numbers that the tree gives to its links."""
    own = tree.node_bytes_per_s
    rows, capacity = [], []
    away = traffic.source != traffic.target
    leaf = np.arange(len(own)) // tree.leaf_nodes
    for node in range(len(own)):
        rows += [away & (traffic.source == node), away & (traffic.target == node)]
        capacity += [own[node]] * 2
    for number in range(leaf.max() + 1):
        at_source, at_target = leaf[traffic.source] == number, leaf[traffic.target] == number
        rows += [at_source & ~at_target, at_target & ~at_source]
        capacity += [own[leaf == number].sum() / tree.oversubscription] * 2
    return np.array(rows).T, np.array(capacity)


@given(st.data())
def test_tree_grows_until_a_link_is_full(data: st.DataObject) -> None:
    """All demands times the throughput fill one link, and no other carries more than it can."""
    tree = data.draw(trees())
    traffic = data.draw(traffics(len(tree.node_bytes_per_s)))
    crosses, capacity = crossings(tree, traffic)
    fullest = (traffic.demand @ crosses / capacity).max()
    throughput = tree.throughput(traffic)
    assert throughput == (pytest.approx(1 / fullest) if fullest else math.inf)


@given(st.data())
def test_tree_ignores_numbers(data: st.DataObject) -> None:
    """Nodes of a leaf, leaves and flows may be renumbered."""
    leaves, held = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    own = np.array(data.draw(st.lists(st.integers(1, 9), min_size=leaves, max_size=leaves)))
    traffic = data.draw(traffics(leaves * held))
    inner = data.draw(st.permutations(range(held)))
    outer = np.array(data.draw(st.permutations(range(leaves))))
    order = np.array(data.draw(st.permutations(range(len(traffic.demand)))), int)
    renamed = (outer[:, None] * held + np.array(inner)).reshape(-1)
    other = Traffic(
        renamed[traffic.source][order], renamed[traffic.target][order], traffic.demand[order]
    )
    moved = np.empty_like(own)
    moved[outer] = own
    one, two = (FatTree(np.repeat(links, held), held, 2.0) for links in (own, moved))
    assert two.throughput(other) == pytest.approx(one.throughput(traffic), rel=1e-9)


def test_tree_by_hand() -> None:
    """Two gateways of 10 bytes/s feed four readers of 4; below one leaf, then over a core of 8."""
    traffic = Traffic.gather(np.arange(4), np.array([4, 5]), 8.0)
    links = np.array([4.0, 4, 4, 4, 10, 10])
    assert FatTree(links, 6).throughput(traffic) == 1 / 2
    # Leaves {0, 1}, {2, 3}, {4, 5}: a leaf of readers gets 8, that of gateways gives 20, over 2.
    assert FatTree(links, 2, 2.0).throughput(traffic) == 1 / 4
    # A flow within a node needs no network.
    assert FatTree(links, 2, 2.0).throughput(flows([3], [3], [1e9])) == math.inf


@pytest.mark.parametrize("nodes", [1, 2, 7, 40])
def test_exchange(nodes: int) -> None:
    """Peers reach the speed of their links, and behind a core of half of it that of the core: of
    n nodes a leaf of k sends (n - k)/(n - 1) of everything through it."""
    traffic = Traffic.exchange(nodes, 100.0)
    links = np.full(nodes, 10.0)
    assert FatTree(links, nodes).throughput(traffic) == pytest.approx(
        0.1 if nodes > 1 else math.inf
    )
    if nodes == 40:
        core = 8 * 10.0 / 2 / (8 * 100.0 * (40 - 8) / (40 - 1))
        assert FatTree(links, 8, 2.0).throughput(traffic) == pytest.approx(core)


# -- routed networks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("routing", "even", "shift"),
    [("minimal", 1.000, 0.125), ("valiant", 0.501, 0.4375), ("ugal", 1.000, 0.5625)],
)
def test_dragonfly_check_values(routing: Any, even: float, shift: float) -> None:
    """Uniform traffic to the other switches, and each switch to its peer in the next group."""
    network = dragonfly(4, 2, 2, routing=routing)
    assert (network.switches, network.groups) == (36, 9)
    assert network.throughput(uniform(network)) == pytest.approx(even, abs=5e-4)
    assert network.throughput(shifted(network, 4 * 2)) == pytest.approx(shift, rel=1e-6)


def test_dragonfly_permutations() -> None:
    """Random permutations of switches: minimal routing shares links by chance, 1/4 or so; what
    Valiant's gives hardly depends on it, 7/16; and UGAL gets more than both."""
    found = []
    for seed in range(3):
        switches = np.random.default_rng(seed).permutation(36)
        nodes = np.arange(72)
        traffic = Traffic(nodes, switches[nodes // 2] * 2 + nodes % 2, np.ones(72))
        found.append([dragonfly(4, 2, 2, routing=each).throughput(traffic) for each in ROUTINGS])
    minimal, valiant, ugal = np.array(found).T
    assert set(np.round(1 / minimal)) <= {4, 6}
    assert valiant == pytest.approx(np.full(3, 0.438), abs=0.025)
    assert ugal == pytest.approx(np.full(3, 0.54), abs=0.025)


@pytest.mark.parametrize(
    "shape", [(2, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 3), (6, 3, 3), (8, 4, 4)]
)
def test_dragonfly_links(shape: tuple[int, int, int]) -> None:
    """Every link has one back; a switch has a - 1 in its group and h out of it, and two groups are
    one link apart."""
    a, h, p = shape
    network = dragonfly(a, h, p)
    links = network.links
    there = sorted(zip(links.source.tolist(), links.target.tolist(), strict=True))
    back = sorted(zip(links.target.tolist(), links.source.tolist(), strict=True))
    assert there == back
    away = links.source // a != links.target // a
    for ends in (links.source, links.target):
        assert np.bincount(ends[away]).tolist() == [h] * network.switches
        if a > 1:
            assert np.bincount(ends[~away]).tolist() == [a - 1] * network.switches
    apart = links.source[away] // a * network.groups + links.target[away] // a
    assert len(np.unique(apart)) == len(apart) == network.groups * (network.groups - 1)


@pytest.mark.long
@pytest.mark.parametrize(
    "shape", [(2, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 3), (6, 3, 3), (8, 4, 4)]
)
@pytest.mark.parametrize("split", ["pair", "common"])
def test_dragonfly_group_shift(shape: tuple[int, int, int], split: Any) -> None:
    """Minimal 1/(a p), Valiant (g - 2)/(2 a p), UGAL their sum, also with one division for all."""
    a, h, p = shape
    groups = a * h + 1
    want = [1 / (a * p), (groups - 2) / (2 * a * p)]
    for routing, throughput in zip(ROUTINGS, [*want, sum(want)], strict=True):
        network = dragonfly(a, h, p, routing=routing, split=split)
        traffic = shifted(network, a * p)
        assert network.throughput(traffic) == pytest.approx(throughput, rel=1e-6)


def ring_load(size: int) -> float:
    """Uniform traffic on a ring, to all nodes alike: the mean of hops, over two ways."""
    return sum(min(hop, size - hop) for hop in range(size)) / size / 2


@pytest.mark.parametrize("dims", [(2,), (3,), (4,), (7,), (8,), (4, 4), (5, 3), (3, 4, 2)])
def test_torus_uniform(dims: tuple[int, ...]) -> None:
    """The longest ring binds at a channel load of k/8, or (k - 1/k)/8 where k is odd; Valiant's
    routing gives half of that."""
    even = of_matrix(np.full((math.prod(dims),) * 2, 1 / math.prod(dims)))
    k = max(dims)
    load = k / 8 if k % 2 == 0 else (k - 1 / k) / 8
    assert load == pytest.approx(ring_load(k))
    minimal, valiant = (torus(*dims, routing=each).throughput(even) for each in ROUTINGS[:2])
    assert minimal == pytest.approx(1 / load)
    # What stays at its switch is not sent around: a part 1/n of it less than 2 * load.
    assert valiant == pytest.approx(1 / (2 * load * (1 - 1 / math.prod(dims))))


@pytest.mark.parametrize("size", [3, 4, 5, 8, 9])
@pytest.mark.parametrize("across", [(), (3,)])
def test_torus_tornado_and_neighbours(size: int, across: tuple[int, ...]) -> None:
    """Tornado traffic loads one way of a ring ceil(k/2) - 1 times, Valiant's routing both ways
    twice the uniform load; neighbours in all directions share nothing."""
    hops = math.ceil(size / 2) - 1
    nodes = np.arange(math.prod((*across, size)))
    line = nodes // size * size
    far = Traffic(nodes, line + (nodes + hops) % size, np.ones(len(nodes)))
    minimal, valiant, ugal = (torus(*across, size, routing=r).throughput(far) for r in ROUTINGS)
    assert minimal == pytest.approx(1 / hops)
    # A path by way of its own ends is as any other: the load is twice the uniform one throughout.
    assert valiant == pytest.approx(1 / (2 * ring_load(max((size, *across)))))
    # In one dimension both ways carry what Valiant's routing sends: nothing is gained by mixing.
    if not across:
        assert ugal == pytest.approx(max(minimal, valiant), rel=1e-6)
    ends = [line + (nodes + step) % size for step in (1, -1)]
    near = Traffic(np.tile(nodes, 2), np.concatenate(ends), np.full(2 * len(nodes), 0.5))
    assert torus(*across, size, routing="minimal").throughput(near) == pytest.approx(2.0)


ROUTED = [dragonfly(2, 1, 1), dragonfly(3, 1, 2), torus(4), torus(3, 2), torus(4, 3)]


def with_routing(network: RoutedNetwork, routing: Any, **options: Any) -> RoutedNetwork:
    return dataclasses.replace(network, routing=routing, **options)


@pytest.mark.parametrize(
    "network",
    first(3, [ROUTED[0], *ROUTED[2:], ROUTED[1]]),
    ids=["fly9", "ring", "3x2", "4x3", "fly12"],
)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_what_flows_is_conserved(network: RoutedNetwork, routing: Any) -> None:
    """The links that a pair's traffic is spread over lead from its source to its target and
    nowhere else; a minimal path is a shortest one."""
    network = with_routing(network, routing)
    links = network.links
    held = network.switch_nodes
    hops = np.full((network.switches,) * 2, np.inf)
    hops[links.source, links.target] = 1
    np.fill_diagonal(hops, 0)
    for over in range(network.switches):
        hops = np.minimum(hops, hops[:, over : over + 1] + hops[over : over + 1])
    sources = [1] if routing == "ugal" else range(network.switches)  # a program for each pair
    for source, target in itertools.product(sources, range(network.switches)):
        rate = 0.25
        loads = network.loads(flows([source * held], [target * held], [rate]))
        gone = np.bincount(links.source, loads, network.switches)
        came = np.bincount(links.target, loads, network.switches)
        want = np.zeros(network.switches)
        want[source] += rate
        want[target] -= rate
        assert gone - came == pytest.approx(want, abs=1e-9)
        if routing == "minimal" and (isinstance(network, Torus) or hops[source, target] <= 1):
            assert loads.sum() == pytest.approx(rate * hops[source, target])
        if routing == "minimal":
            assert loads.sum() <= rate * 3 or isinstance(network, Torus)


@given(st.sampled_from(ROUTED), st.data())
def test_routed_promises(network: RoutedNetwork, data: st.DataObject) -> None:
    """No link is above its capacity, more demand divides the throughput, and UGAL with or without
    a common division is no worse than its two parts."""
    traffic = data.draw(traffics(len(network.node_bytes_per_s)))
    found = {}
    for routing in ROUTINGS:
        routed = with_routing(network, routing)
        found[routing] = routed.throughput(traffic)
        grown = routed.loads(traffic) * min(1e9, found[routing])
        assert grown.max() <= routed.link_bytes_per_s * (1 + 1e-9)
        more = Traffic(traffic.source, traffic.target, traffic.demand * 1e5)
        assert routed.throughput(more) == pytest.approx(found[routing] / 1e5, rel=1e-6)
    common = with_routing(network, "ugal", split="common").throughput(traffic)
    assert common >= max(found["minimal"], found["valiant"]) * (1 - 1e-6)
    assert found["ugal"] >= common * (1 - 1e-6)


@given(st.data())
def test_routed_networks_ignore_where_counting_starts(data: st.DataObject) -> None:
    """Groups of a dragonfly turn, and a torus shifts along any dimension."""
    routing = data.draw(st.sampled_from(ROUTINGS))
    fly = dragonfly(3, 1, 2, routing=routing)
    nodes = len(fly.node_bytes_per_s)
    traffic = data.draw(traffics(nodes))
    by = 3 * 2 * data.draw(st.integers(1, 5))
    turned = Traffic((traffic.source + by) % nodes, (traffic.target + by) % nodes, traffic.demand)
    assert fly.throughput(turned) == pytest.approx(fly.throughput(traffic), rel=1e-6)
    grid = torus(3, 4, routing=routing)
    traffic = data.draw(traffics(3 * 4))
    shift = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 3)))
    moved = [
        (each // 4 + shift[0]) % 3 * 4 + (each % 4 + shift[1]) % 4
        for each in (traffic.source, traffic.target)
    ]
    turned = Traffic(moved[0], moved[1], traffic.demand)
    assert grid.throughput(turned) == pytest.approx(grid.throughput(traffic), rel=1e-6)


def test_gateways_of_a_dragonfly() -> None:
    """All nodes of other groups read through one group: its global links bind, one from each
    group, and the detours over other groups share them."""
    gateways = np.arange(4 * 2)
    traffic = Traffic.gather(np.arange(4 * 2, 72), gateways, 1.0)
    wanted = traffic.demand.sum()
    assert 0 < wanted * dragonfly(4, 2, 2).throughput(traffic) <= 8 * (1 + 1e-9)
    thin = dragonfly(4, 2, 2, node_bytes_per_s=0.01)
    assert wanted * thin.throughput(traffic) == pytest.approx(len(gateways) * 0.01)


def test_no_traffic() -> None:
    """Nothing to carry is carried at any factor."""
    for network in (torus(3), FatTree(np.ones(3))):
        assert network.throughput(flows([], [], [])) == math.inf


def test_too_large_is_said_at_once() -> None:
    """A program that would not end soon is refused, and what to use instead is said."""
    large = dragonfly(8, 4, 4)
    with pytest.raises(LimitError, match='split="common"'):
        large.throughput(uniform(large))
