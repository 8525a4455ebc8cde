"""The memory that a loader holds: within its budget and one step, whatever it loads and how."""

from __future__ import annotations

import gc
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import penstock
from penstock.index.codecs import RECENT
from penstock.limits import MIB
from penstock.loader.loader import Loader

FORMATS = ("npy", "files", "tar", "parquet")


def write(folder: Path, form: str, lengths: list[int], random: np.random.Generator) -> str:
    """Write records of these lengths; all of npy have the first."""
    contents = [random.bytes(length) for length in lengths]
    if form == "npy":
        rows = [content[: lengths[0]].ljust(lengths[0]) for content in contents]
        np.save(folder / "data.npy", np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1))
        return str(folder / "data.npy")
    if form == "files":
        for number, content in enumerate(contents):
            (folder / f"{number:05}.bin").write_bytes(content)
        return str(folder)
    if form == "tar":
        with tarfile.open(folder / "data.tar", "w") as tar:
            for number, content in enumerate(contents):
                info = tarfile.TarInfo(f"{number:05}.bin")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return str(folder / "data.tar")
    table = pyarrow.table({"data": pyarrow.array(contents, pyarrow.binary())})
    parquet.write_table(table, folder / "data.parquet", row_group_size=max(1, len(contents) // 10))
    return str(folder / "data.parquet")


class Watcher:
    """The bytes that a loader holds: seen after each step, and from its decode threads."""

    def __init__(self, decoded_bytes: int) -> None:
        self.loader: Loader | None = None
        self.decoded_bytes = decoded_bytes
        self.worst_bytes = 0

    def decode(self, sample: dict[str, Any]) -> Any:
        self.look()
        return np.zeros(self.decoded_bytes, np.uint8)

    def look(self) -> None:
        assert self.loader is not None
        if (arena := self.loader._arena) is not None:
            coded = any(field.codec for field in self.loader.dataset.index.fields)
            held_bytes = arena.ahead_bytes + arena.kept_bytes + (RECENT.bytes if coded else 0)
            self.worst_bytes = max(self.worst_bytes, held_bytes)


def run(folder: Path, seed: int) -> None:
    """Load some epochs with a random loader, and check what it held at any time."""
    gc.collect()  # loaders of other tests have their share of what is kept decoded
    random = np.random.default_rng(seed)
    form = FORMATS[seed % len(FORMATS)]
    decode, cached = bool(seed // 4 % 2), bool(seed // 8 % 2) and form != "parquet"
    count, batch = int(random.integers(20, 200)), int(random.integers(1, 20))
    mean_bytes = int(10 ** random.uniform(1, 5))
    lengths = random.integers(1, 2 * mean_bytes, count).tolist()
    budget_bytes = int(10 ** random.uniform(3, 7.5))
    lowered_bytes = max(1, int(budget_bytes * random.uniform(0.02, 1)))
    options: dict[str, Any] = {}
    watcher = Watcher(int(mean_bytes * random.uniform(0.1, 4)) + 1 if decode else 0)
    if decode:
        options |= {"decode": watcher.decode, "decode_threads": 2}
    if cached:
        ram_bytes = int(sum(lengths) * random.uniform(0, 2)) + MIB
        options["cache"] = penstock.Cache(ram_bytes=ram_bytes)
    budget = penstock.Budget(
        readahead_bytes=budget_bytes,
        mmap=str(random.choice(["off", "auto"])),  # type: ignore[arg-type]
    )
    if form == "npy":
        step_bytes = batch * lengths[0]
    elif form == "parquet":  # a step may need every row group
        step_bytes = 2 * sum(lengths) + 200 * count
    else:
        step_bytes = sum(sorted(lengths)[-batch:])
    # As the arena counts: sizes in steps of an eighth, and a page of each of the few blocks.
    step_bytes = int(1.125 * (step_bytes + batch * watcher.decoded_bytes)) + 8 * 4096
    data = penstock.open(write(folder, form, lengths, random))
    with Loader(data, batch, seed=seed, budget=budget, **options) as watcher.loader:
        for epoch in range(4):
            for step, _ in enumerate(watcher.loader):
                watcher.look()
                if (epoch, step) == (1, 0):
                    watcher.loader.budget = budget.replace(readahead_bytes=lowered_bytes)
                    assert watcher.loader._arena is not None
                    assert watcher.loader._arena.kept_bytes <= lowered_bytes
            # What had been requested before arrives in the epoch of the change.
            bound_bytes = (budget_bytes if epoch < 2 else lowered_bytes) + step_bytes
            facts = (form, decode, cached, budget_bytes, lowered_bytes, step_bytes)
            assert 0 < watcher.worst_bytes <= bound_bytes, (epoch, *facts)
            watcher.worst_bytes = 0


@pytest.mark.parametrize("seed", [0, 2, 3, 5, 7, 13])
def test_memory_is_bounded(tmp_path: Path, seed: int) -> None:
    """Memory that is lent and not the user's, or kept, is at most the budget and one step."""
    run(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(16, 216, 20))
def test_memory_is_bounded_for_any_loader(tmp_path: Path, first: int) -> None:
    """Likewise for 200 loaders."""
    for seed in range(first, first + 20):
        (tmp_path / str(seed)).mkdir()
        run(tmp_path / str(seed), seed)


def test_lower_budget_holds_within_the_steps_that_were_requested(tmp_path: Path) -> None:
    """A lower budget frees what is kept at once, and no step is requested above it."""
    lengths = [1_000_000] * 90
    data = penstock.open(write(tmp_path, "npy", lengths, np.random.default_rng(0)))
    budget = penstock.Budget(readahead_bytes=33_600_000, mmap="off")
    with Loader(data, 1, budget=budget) as loader:
        steps = iter(loader)
        for _ in range(30):
            next(steps)
        arena = loader._arena
        assert arena is not None
        assert 15_000_000 < arena.ahead_bytes + arena.kept_bytes <= 34_700_000
        loader.budget = budget.replace(readahead_bytes=2_000_000)
        assert arena.kept_bytes == 0
        while arena.ahead_bytes > 2_000_000:
            before_bytes = arena.ahead_bytes
            next(steps)
            assert arena.ahead_bytes < before_bytes
            assert arena.kept_bytes == 0 or arena.ahead_bytes <= 2_000_000
        next(steps)
        assert arena.ahead_bytes + arena.kept_bytes <= 3_100_000
