"""Whoever is killed while saving: the last committed checkpoint loads, byte-equal."""

from __future__ import annotations

from pathlib import Path

import checkpoint_crashes


def test_killed_at_every_boundary(tmp_path: Path) -> None:
    """At each write, sync, rename and removal of four saves, of which two are kept."""
    found = checkpoint_crashes.run(tmp_path)
    assert found["wrong"] == []
    assert found["boundaries"] > 40
