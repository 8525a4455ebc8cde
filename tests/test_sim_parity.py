"""The published simulator, reproduced: its own numbers, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.sim import Scenario, load, simulate
from penstock.sim.parity import RULES, _drawn, _drawn_alike, stream_of


def scaled() -> Scenario:
    """s2 with a fifteenth of the samples and of all capacities but the staging buffer's."""
    given = load("s2").model_dump()
    given["name"] = "s2/15"
    given["data"]["samples"] = 10_000
    given["system"]["staging"]["capacity_mb"] = 256.0
    for tier, capacity in zip(given["system"]["tiers"], (51200 / 15, 102400 / 15), strict=True):
        tier["capacity_mb"] = capacity
    return Scenario.model_validate(given)


# The published simulator's run times, setup times and log counts (staging, storage, local, remote),
# seed 42; and the run times that were printed, of the full size.
# fmt: off
S1: dict[str, tuple[float, float, tuple[int, ...], float]] = {
    "naive": (27.880995127567974, 0, (0, 100000, 0, 0), 27.78),
    "staging": (10.286017715453724, 0, (91266, 100000, 0, 0), 10.24),
    "deepio": (8.445991307628555, 1.1110784182411646, (100000, 0, 24955, 75045), 8.41),
    "deepio_opportunistic":
        (8.414666479986405, 1.1110784182411646, (100000, 0, 50183, 49817), 8.40),
    "parallel_staging": (10.139298941384494, 2.8235580198318333, (100000, 0, 100000, 0), 10.11),
    "lbann_dynamic": (7.718027995985746, 0, (98447, 4, 32417, 67579), 7.71),
    "lbann_preloading": (8.445991307628555, 1.1110784182411646, (100000, 0, 24955, 75045), 8.41),
    "locality_aware": (8.445991307628555, 1.1110784182411646, (100000, 0, 24955, 75045), 8.41),
    "nopfs": (7.807088446631754, 0, (97944, 34392, 64939, 669), 7.78),
    "lower_bound": (7.334912889387344, 0, (200000, 0, 0, 0), 7.30),
}
S2: dict[str, tuple[float, float, tuple[int, ...], float]] = {
    "naive": (1010.376129357102, 0, (0, 100000, 0, 0), 15130.54),
    "staging": (332.07681015838125, 0, (89588, 100000, 0, 0), 4982.27),
    "deepio": (296.21485940920354, 40.62085390624933, (100000, 0, 24955, 75045), 4433.27),
    "deepio_opportunistic":
        (295.961452123752, 40.62085390624933, (100000, 0, 50133, 49867), 4432.90),
    "parallel_staging": (332.1464588689146, 76.63636396651225, (100000, 0, 100000, 0), 4972.65),
    "lbann_dynamic": (270.7069780045165, 0, (96426, 4, 32417, 67579), 4051.12),
    "lbann_preloading": (296.21485940920354, 40.62085390624933, (100000, 0, 24955, 75045), 4433.27),
    "locality_aware": (296.21485940920354, 40.62085390624933, (100000, 0, 24955, 75045), 4433.27),
    "nopfs": (258.03576987902875, 0, (99557, 4287, 95703, 10), 3836.12),
    "lower_bound": (255.5940055029563, 0, (200000, 0, 0, 0), 3825.66),
}
# fmt: on


@pytest.mark.parametrize("policy", RULES)
@pytest.mark.parametrize("of", ["s1", "s2/15"])
def test_run_times_agree_to_the_last_bit(of: str, policy: str) -> None:
    """Run time, setup and the counts of the logs are those of the published program."""
    scenario, row = (load("s1"), S1[policy]) if of == "s1" else (scaled(), S2[policy])
    result = simulate(scenario, policy, "parity")
    assert result.notes["end_s"] == row[0]
    assert result.setup_s == row[1]
    logged = tuple(result.notes[name] for name in ("staging", "storage", "local", "remote"))
    assert logged == row[2]
    assert result.total_s == pytest.approx(row[0], rel=1e-12)


@pytest.mark.parametrize("policy", RULES)
def test_printed_run_times_of_the_small_scenario(policy: str) -> None:
    """What was printed of s1 is within half a percent."""
    assert simulate(load("s1"), policy, "parity").total_s == pytest.approx(S1[policy][3], rel=5e-3)


@pytest.mark.long
@pytest.mark.parametrize("policy", RULES)
def test_printed_run_times_of_the_full_scenario(policy: str) -> None:
    """What was printed of s2 is within a percent."""
    assert simulate(load("s2"), policy, "parity").total_s == pytest.approx(S2[policy][3], rel=1e-2)


def test_stream_is_the_published_one() -> None:
    """Ids and sizes come from the legacy generator, in the published sequence of calls."""
    small, large = stream_of(load("s1")), stream_of(scaled())
    assert small.ids[0, :5].tolist() == [6252, 4684, 1731, 4742, 4521]
    assert small.sizes[:3].round(6).tolist() == [0.040589, 0.020408, 0.026455]
    assert sum(small.sizes.tolist()) == 272.80464310475304
    assert sum(large.sizes.tolist()) == 10015.442010422514


def test_draws_of_one_call_are_those_of_many() -> None:
    """DeepIO's replaced ids do not depend on whether they are drawn one by one."""
    for first, end in (([0, 10, 20], [9, 19, 29]), ([3], [17])):
        one, many = (np.random.RandomState(7) for _ in range(2))
        drawn = _drawn(one, first, end, 6 * len(first), 2)
        np.testing.assert_array_equal(drawn, _drawn_alike(many, first, end, 6 * len(first), 2))
        assert one.randint(1 << 30) == many.randint(1 << 30)


def test_uneven_shards_run() -> None:
    """Samples that no shard holds, and shards of several sizes, change nothing but numbers."""
    given: dict[str, Any] = load("s1").model_dump()
    given["data"]["samples"] = 1003
    given["training"]["epochs"] = 2
    scenario = Scenario.model_validate(given)
    for policy in RULES:
        result = simulate(scenario, policy, "parity")
        reads = sum(result.notes[name] for name in ("storage", "local", "remote"))
        assert reads == (0 if policy == "lower_bound" else 2 * 1000)


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        ("lbann_dynamic", "memory"),
        ("lbann_preloading", "memory"),
        ("parallel_staging", "second tier"),
        ("locality_aware", "second tier"),
        ("penstock", "corrected"),
        ("belady", "corrected"),
    ],
)
def test_policies_that_cannot_run_say_why(policy: str, word: str) -> None:
    """A policy that the scenario has no room for is refused by name and reason."""
    given = load("s1").model_dump()
    given["system"]["tiers"] = given["system"]["tiers"][:1]
    given["system"]["tiers"][0]["capacity_mb"] = 10.0
    with pytest.raises(UsageError, match=rf"(?s){policy}.*{word}"):
        simulate(Scenario.model_validate(given), policy, "parity")
