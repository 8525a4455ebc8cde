"""The published simulator, reproduced: its own numbers, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.published_simulator import ROWS

from penstock.errors import UsageError
from penstock_sim import Scenario, load_scenario, simulate
from penstock_sim.parity import RULES, _draw, _draw_alike, draw_stream
from tests.slices import first


@pytest.mark.parametrize("policy", RULES)
@pytest.mark.parametrize("name", first(2, ROWS))
def test_run_times_agree_to_the_last_bit(name: str, policy: str) -> None:
    """Run time, setup and the counts of the logs are those of the published program."""
    row = ROWS[name][policy]
    result = simulate(load_scenario(name), policy, "parity")
    assert result.total_s == row.run_s
    assert result.setup_s == row.setup_s
    counts = ("staging", "storage", "local", "remote")
    assert tuple(result.notes[count] for count in counts) == row.logged
    assert result.setup_s + result.epochs_s.sum() == pytest.approx(row.run_s, rel=1e-12)


@pytest.mark.parametrize("policy", RULES)
def test_printed_run_times_of_the_small_scenario(policy: str) -> None:
    """The run times that were printed of s1 are met within half a percent."""
    took = simulate(load_scenario("s1"), policy, "parity").total_s
    assert took == pytest.approx(ROWS["s1"][policy].printed_s, rel=5e-3)


@pytest.mark.long
@pytest.mark.parametrize("policy", RULES)
def test_printed_run_times_of_the_full_scenario(policy: str) -> None:
    """The run times that were printed of s2 are met within a percent."""
    took = simulate(load_scenario("s2"), policy, "parity").total_s
    assert took == pytest.approx(ROWS["s2-15"][policy].printed_s, rel=1e-2)


def test_stream_is_the_published_one() -> None:
    """Ids and sizes come from the legacy generator, in the published sequence of calls."""
    small, large = draw_stream(load_scenario("s1")), draw_stream(load_scenario("s2-15"))
    assert small.ids[0, :5].tolist() == [6252, 4684, 1731, 4742, 4521]
    assert small.sizes[:3].round(6).tolist() == [0.040589, 0.020408, 0.026455]
    assert sum(small.sizes.tolist()) == 272.80464310475304
    assert sum(large.sizes.tolist()) == 10015.442010422514


def test_draws_of_one_call_are_those_of_many() -> None:
    """DeepIO's replaced ids do not depend on whether they are drawn one by one."""
    for begin, end in (([0, 10, 20], [9, 19, 29]), ([3], [17])):
        one, many = (np.random.RandomState(7) for _ in range(2))
        drawn = _draw(one, begin, end, 6 * len(begin), 2)
        np.testing.assert_array_equal(drawn, _draw_alike(many, begin, end, 6 * len(begin), 2))
        assert one.randint(1 << 30) == many.randint(1 << 30)


def test_uneven_shards_run() -> None:
    """Samples that no shard holds, and shards of several sizes, change nothing but numbers."""
    given: dict[str, Any] = load_scenario("s1").model_dump()
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
    given = load_scenario("s1").model_dump()
    given["system"]["tiers"] = given["system"]["tiers"][:1]
    given["system"]["tiers"][0]["capacity_mb"] = 10.0
    with pytest.raises(UsageError, match=rf"(?s){policy}.*{word}"):
        simulate(Scenario.model_validate(given), policy, "parity")
