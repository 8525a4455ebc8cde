"""The engine over several engines passes the suite, with every file everywhere or at one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from penstock.budget import Budget
from penstock.engine.mirrored import MirroredEngine
from penstock.engine.native import NativeEngine
from penstock.engine.protocol import Engine
from penstock.engine.request_queue import Aging
from penstock.testing import EngineSuite, write_files
from tests import held
from tests.slices import long_methods


class MirroredSuite(EngineSuite):
    """The suite over three folders; what differs is who has what, and how much one is asked for."""

    queued_bytes_max = 100_000

    def shown(self, count: int) -> np.ndarray:
        """Return which of `count` files are in which folder."""
        return np.ones((count, 3), np.bool_)

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """Preads from each folder; who does not have a file is not asked, or it would be told."""
        holders = self.shown(len(contents))
        members = []
        for place in range(3):
            own = [
                content if there else None
                for content, there in zip(contents, holders[:, place], strict=True)
            ]
            (folder / f"{place}").mkdir()
            files = write_files(folder / f"{place}", own)
            members.append(NativeEngine(files, budget=Budget(pread="required", threads=1)))
        return MirroredEngine(members, holders, queued_bytes_max=self.queued_bytes_max)

    @contextmanager
    def held(
        self, contents: list[bytes | None], folder: Path, aging: Aging
    ) -> Iterator[tuple[Engine, Callable[[], None]]]:
        """One place with one part at a time under way, which it does not read yet."""
        with held.native(write_files(folder, contents), aging) as (member, release):
            holders = np.ones((len(contents), 1), np.bool_)
            engine = MirroredEngine([member], holders, aging=aging, queued_bytes_max=1)
            yield held.busied(engine), release


@pytest.mark.long
class TestEverywhere(MirroredSuite):
    """Every file in each folder."""


@pytest.mark.long
class TestEverywhereAtOnce(MirroredSuite):
    """Every file in each folder, asked for any number of parts."""

    queued_bytes_max = 1 << 30


@long_methods("test_many_runs")
class TestSomewhere(MirroredSuite):
    """Each file in one folder or two."""

    def shown(self, count: int) -> np.ndarray:
        """File i is not where (i + 1) % 3 is, and every other one only at i % 3."""
        number = np.arange(count)[:, None]
        place = np.arange(3)
        return (place == number % 3) | ((place != (number + 1) % 3) & (number % 2 == 0))
