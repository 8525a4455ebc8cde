"""Every engine and every wrapper passes the suite; ten lines each."""

from __future__ import annotations

from pathlib import Path

from penstock.engine import Engine, MemoryEngine
from penstock.testing import EngineSuite


class TestMemoryEngine(EngineSuite):
    """Byte strings."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """The contents themselves."""
        return MemoryEngine(contents)
