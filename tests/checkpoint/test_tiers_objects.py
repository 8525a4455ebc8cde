"""Tiers before an object store: the same guarantees."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("obstore")
pytest.importorskip("moto")
from penstock import limits
from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.object_repository import Prefix
from penstock.errors import MissingError, StorageError
from tests.checkpoint.test_objects import SHORT_S, Place, place, service  # noqa: F401
from tests.checkpoint.test_tiers import SLOW, equal, expect_warnings, held, leave_held_saves, state
from tests.services import Fault
from tests.slices import first


def test_held_then_committed(place: Place, tmp_path: Path) -> None:  # noqa: F811
    with Checkpoints(place.url, local=tmp_path / "tier", budget=SLOW) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state(step), loader={"at": step})
        checkpoints.wait(until="held")
        assert checkpoints.stats()["held"] == [1, 2, 3]
        assert checkpoints.steps() == []
        checkpoints.budget = Budget()
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2, 3]
        assert held(tmp_path / "tier") == []
    assert equal(load(place.url).state, 3)
    assert Prefix.open(place.url).leftovers() == []


@pytest.mark.long
def test_killed(place: Place, tmp_path: Path) -> None:  # noqa: F811
    """The next job drains the held saves to the bucket, and goes on."""
    tier = tmp_path / "tier"
    leave_held_saves(place.url, tier)
    with pytest.raises(MissingError):
        load(place.url)
    with expect_warnings(), Checkpoints(place.url, local=tier) as checkpoints:
        assert checkpoints.steps() == [1, 2, 3]
        assert equal(checkpoints.load().state, 3)
        checkpoints.save(4, state(4))
        checkpoints.wait()
        assert checkpoints.steps() == [2, 3, 4]
    assert held(tier) == []
    assert Prefix.open(place.url).leftovers() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "what"),
    first(1, [("503", "shard"), ("404", "shard"), ("503", "index"), ("404", "index")]),
)
def test_a_service_that_fails(
    place: Place,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    fault: Fault,
) -> None:
    """Held saves stay held, whatever the service answers, and are drained when it recovers."""
    monkeypatch.setattr(limits, "object_deadline_s", SHORT_S)
    failing, tier = False, tmp_path / "tier"

    def rule(method: str, path: str, before: int) -> Fault:
        return fault if failing and method not in ("GET", "HEAD") and f".{what}" in path else None

    with place.through(rule), Checkpoints(place.url, local=tier) as checkpoints:
        failing = True
        for step in (1, 2):
            checkpoints.save(step, state(step))
            with pytest.raises(StorageError):
                checkpoints.wait()
        assert checkpoints.stats()["held"] == [1, 2]
        failing = False
        checkpoints.save(3, state(3))
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2, 3]
    assert held(tier) == []
    assert Prefix.open(place.url).leftovers() == []
