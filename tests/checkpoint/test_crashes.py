"""Kills while saving: the last committed checkpoint loads, byte-equal, whichever rank is killed."""

from __future__ import annotations

import pytest

from tests.checkpoint import crashes as checkpoint_crashes
from tests.slices import first, scaled


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "victim", "local"),
    first(1, [(1, 0, 0), (2, 1, 1), (2, 1, 0), (1, 0, 1), (2, 0, 0), (2, 0, 1)], extra=3),
)
def test_killed_at_every_boundary(ranks: int, victim: int, local: int) -> None:
    """A kill at each write, sync, rename, removal and message of three saves, of which two are
    kept, leaves a good checkpoint; with tiers, held saves count as saved."""
    outcome = checkpoint_crashes.run("boundaries", ranks, victim, local)
    assert outcome["wrong"] == []
    assert outcome["boundaries"] > (40 if victim == 0 else 25)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "victim"), first(1, [(1, 0), (2, 1), (2, 0)], extra=2))
def test_killed_while_recovering(ranks: int, victim: int) -> None:
    """Saves that were held are committed by the next job, also if the recovery is killed."""
    outcome = checkpoint_crashes.run("recovery", ranks, victim)
    assert outcome["wrong"] == []
    assert outcome["boundaries"] > 15


@pytest.mark.parametrize("ranks", first(1, [2, 1]))
@pytest.mark.parametrize(
    ("kills", "local"), first(1, [(6, 1), (6, 0), (scaled(100), 0), (scaled(100), 1)], extra=3)
)
def test_killed_at_any_time(ranks: int, kills: int, local: int) -> None:
    """A kill of one rank or all, at random times of a job that writes most of the time, leaves a
    good checkpoint."""
    outcome = checkpoint_crashes.run("random", ranks, kills, local)
    assert outcome["wrong"] == []
    assert outcome["cut off"] > 0
