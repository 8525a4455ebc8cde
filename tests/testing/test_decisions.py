"""The same decisions live and simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.plan.cache_actions import (
    Action,
    GiveUpReplicas,
    OfferReplicas,
    ProbeRank,
    Stop,
    TakeReplicas,
)
from tests.testing.decisions import EVENTS, draw_live_scenario, follow, run_live

UNUSED = {GiveUpReplicas, OfferReplicas, ProbeRank, Stop, TakeReplicas}
"""Actions of replicas and of peers that are gone, which these scenarios do not have."""


def compare(seed: int, folder: Path) -> set[str]:
    """Assert that a live run and the virtual cluster tell and say the same; return the names of
    what was told and said."""
    scenario = draw_live_scenario(seed)
    live = run_live(scenario, folder / str(seed))
    simulated = follow(scenario, live)
    for number, (here, there) in enumerate(zip(live.entries, simulated, strict=False)):
        assert here == there, f"seed {seed}, entry {number}"
    assert len(live.entries) == len(simulated)
    return {entry.name for entry in simulated}


def test_live_and_simulated_decisions_are_the_same(tmp_path: Path) -> None:
    """The shipped engine over real tiers in threads, and the virtual cluster in the same order of
    events: every event, with its values, and every action is the same, one after the other."""
    names = set().union(*(compare(seed, tmp_path) for seed in (5, 6, 9, 18, 38, 177)))
    actions = {action.__name__ for action in set(Action.__args__) - UNUSED}
    assert names == actions | set(EVENTS) - {"fail", "take_replicas"}


@pytest.mark.long
@pytest.mark.extra
def test_more_decisions_are_the_same(tmp_path: Path) -> None:
    """Live and simulated decisions are the same for 50 seeds."""
    for seed in range(1, 51):
        compare(seed, tmp_path)


def test_a_model_that_differs_is_noticed(tmp_path: Path) -> None:
    """If a modelled slab has less room than the real one, the decisions are not the same; nor if a
    live rank is told something that did not happen."""
    scenario = draw_live_scenario(9)
    live = run_live(scenario, tmp_path / "live")
    assert follow(scenario, live) == live.entries
    simulated = follow(replace(scenario, room=scenario.room / 4), live)
    pairs = zip(live.entries, simulated, strict=False)
    assert next(here.name for here, there in pairs if here != there) == "take_room"
    number = next(n for n, entry in enumerate(live.entries) if entry.name == "take_fetch")
    live.entries.insert(number, live.entries[number]._replace(values=(9999, (), None)))
    with pytest.raises(AssertionError, match="9999.*does not happen"):
        follow(scenario, live)
