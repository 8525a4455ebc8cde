"""A fixture of all tests of checkpoints."""

from __future__ import annotations

import pytest

from penstock.checkpoint import tiers


@pytest.fixture(autouse=True)
def all_the_free_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tiers have all that is free, however full the disk is on which the tests run."""
    monkeypatch.setattr(tiers, "_RESERVE", 1 << 62)
