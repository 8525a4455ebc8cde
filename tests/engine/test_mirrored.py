"""The same data at several places: what one does not bring comes from another, and batches are the
same."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.budget import Budget
from penstock.engine.mirrored import MirroredEngine
from penstock.engine.native import NativeEngine
from penstock.engine.storage_queue import QueuedEngine
from penstock.errors import ChangedError, MissingError, UsageError
from penstock.limits import MIB
from penstock.testing import EngineRead, finish, write_files


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    """Three folders of the same 40 files, whose times differ."""
    random = np.random.default_rng(3)
    folders = [tmp_path / name for name in ("first", "second", "third")]
    folders[0].mkdir()
    for number in range(40):
        (folders[0] / f"{number:02}.bin").write_bytes(
            random.bytes(int(random.integers(1, 200_000)))
        )
    for folder in folders[1:]:
        shutil.copytree(folders[0], folder)
        for path in folder.iterdir():
            os.utime(path, (1, 1))
    return folders


def batches(dataset: penstock.Dataset) -> tuple[list[list[bytes]], dict[str, int]]:
    """The samples of an epoch, and what was counted."""
    with penstock.Loader(dataset, batch_size=7, seed=5) as loader:
        samples = [[bytes(sample) for sample in batch["data"]] for batch in loader]
        return samples, loader.stats()


def test_batches_are_the_same(places: list[Path]) -> None:
    """With mirrors, also such that have a few files only, and after one has lost what it had."""
    expected, _ = batches(penstock.open(places[0], index="memory"))
    for path in list(places[1].iterdir())[::2]:
        path.unlink()
    (places[2] / "07.bin").write_bytes(b"of another size")
    dataset = penstock.open(places[0], index="memory", mirrors=places[1:])
    assert [int((mirror.size >= 0).sum()) for mirror in dataset.index.files.mirrors] == [20, 39]
    samples, stats = batches(dataset)
    assert samples == expected
    assert stats["rerouted"] == 0
    shutil.rmtree(places[0])
    shutil.rmtree(places[1])
    (places[2] / "07.bin").unlink()
    with pytest.raises(MissingError, match=r"07\.bin"):
        batches(dataset)
    at = [dataset.index.key(sample) for sample in range(40)]
    others = [sample for sample in range(40) if "07" not in at[sample]]
    assert all(dataset[sample]["data"] for sample in others)
    with pytest.raises(ChangedError, match=r"07\.bin"):
        dataset[at.index(next(key for key in at if "07" in key))]


def test_all_places_are_read_from(tmp_path: Path) -> None:
    """Parts of large reads are dealt out; together they keep to the bandwidth."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.zeros((32, MIB), np.uint8))
    dataset = penstock.open(
        tmp_path / "first" / "x.npy", index="memory", mirrors=[tmp_path / "second"]
    )
    budget = Budget(pread="required", bytes_per_s=1e9)
    with penstock.Loader(dataset, batch_size=8, budget=budget) as loader:
        assert sum(len(batch.ids) for batch in loader) == 32
        assert isinstance(loader._engine, QueuedEngine)
        engine = loader._engine._engine
        assert isinstance(engine, MirroredEngine)
        shares = [member.counters()["bytes"] for member in engine._members]
        assert sum(shares) == 32 * MIB
        assert min(shares) >= 8 * MIB
        assert loader.stats()["bytes"] == 32 * MIB
        loader.budget = Budget(pread="required", threads=1)
        assert [member.choice.threads for member in engine._members] == [1, 1]


def test_a_place_that_fails_is_left_alone(tmp_path: Path) -> None:
    """A failing place is asked until another one delivers the missing extents, and then left alone
    for a while."""
    contents = [np.random.default_rng(file).bytes(1000) for file in range(200)]
    tables = []
    for name in ("gone", "there"):
        (tmp_path / name).mkdir()
        tables.append(write_files(tmp_path / name, contents))
    shutil.rmtree(tmp_path / "gone")
    members = [NativeEngine(table, budget=Budget(pread="required")) for table in tables]
    engine = MirroredEngine(members, np.ones((200, 2), np.bool_))
    reading = EngineRead(contents, [[(file, 0, 1000)] for file in range(200)])
    ticket = engine.submit(reading.requests, reading.buffers)
    reading.assert_done(finish(engine, [ticket])[ticket])
    counters = engine.counters()  # what failed together was asked for again together
    assert (counters["tickets"], counters["rerouted"]) == (2, 200)
    for file in range(200):
        reading = EngineRead(contents, [[(file, 0, 1000)]])
        ticket = engine.submit(reading.requests, reading.buffers)
        reading.assert_done(finish(engine, [ticket])[ticket])
    assert engine.counters()["rerouted"] < 220  # by seconds, of which this takes few
    engine.close()


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=8), st.data())
def test_what_is_somewhere_arrives(there: list[list[bool]], data: st.DataObject) -> None:
    """Whatever places lose after the engine was made: an extent fails where all have lost it."""
    contents = [np.random.default_rng(file).bytes(1000 + 500 * file) for file in range(len(there))]
    extents = data.draw(
        st.lists(st.tuples(st.integers(0, len(there) - 1), st.integers(0, 900), st.just(100)))
    )
    left = [content if any(row) else None for content, row in zip(contents, there, strict=True)]
    reading = EngineRead(left, [[extent] for extent in extents], 2)
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        members = []
        for place in range(3):
            folder = Path(name) / f"{place}"
            folder.mkdir()
            files = write_files(folder, contents)
            members.append(NativeEngine(files, budget=Budget(pread="required", threads=1)))
            for file, row in enumerate(there):
                if not row[place]:
                    Path(files.path(file)).unlink()
        engine = MirroredEngine(members, np.ones((len(there), 3), np.bool_), queued_bytes_max=300)
        ticket = engine.submit(reading.requests, reading.buffers)
        reading.assert_done(finish(engine, [ticket])[ticket])
        engine.close()


def test_pickled_with_its_mirrors(places: list[Path]) -> None:
    """A process that gets the dataset reads from the same places."""
    for how in ("memory", "auto"):
        dataset = penstock.open(places[0], index=how, mirrors=places[1:])
        again = pickle.loads(pickle.dumps(dataset))
        for one, other in zip(dataset.index.files.mirrors, again.index.files.mirrors, strict=True):
            assert one.root == other.root
            assert (one.size == other.size).all()
            assert (one.mtime_ns == other.mtime_ns).all()
        assert again.fingerprint == penstock.open(places[0], index="memory").fingerprint


def test_no_mirror_of_this(places: list[Path], tmp_path: Path) -> None:
    """A folder without any of the files is refused by name; a mixture of mirrors as well."""
    with pytest.raises(UsageError, match=r"mirrors: .*/nowhere has none of the 40 files"):
        penstock.open(places[0], index="memory", mirrors=[tmp_path / "nowhere"])
    mirrored = penstock.open(places[0], index="memory", mirrors=places[1:])
    with pytest.raises(UsageError, match="mirrors"):
        penstock.mix([(mirrored, 1), (penstock.open(places[1], index="memory"), 1)])


def test_holders_that_cannot_be(tmp_path: Path) -> None:
    """Each file is somewhere, and there is a column for each engine."""
    files = write_files(tmp_path, [b"1"])
    member = NativeEngine(files)
    for holders in (np.ones((1, 2), np.bool_), np.zeros((1, 1), np.bool_), np.ones(1, np.bool_)):
        with pytest.raises(UsageError, match="holders"):
            MirroredEngine([member], holders)
    member.close()
