"""Data, and tasks that are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import limits
from tests.tasks.works import write_shard


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, or a few texts, a task."""
    monkeypatch.setattr(limits, "task_bytes", 1)
    monkeypatch.setattr(limits, "task_text_bytes", 300)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(6):
        write_shard(tmp_path / "data", number)
    return tmp_path / "data"
