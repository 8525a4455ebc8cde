"""One save by itself: its states, and what each step leaves in storage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.budget import Budget
from penstock.checkpoint import load
from penstock.checkpoint.background import build_stall_error, mark
from penstock.checkpoint.loading import open_repository
from penstock.checkpoint.manifest import Attempt
from penstock.checkpoint.save import Ranks, Save, SaveTarget
from penstock.checkpoint.shards import Flush
from penstock.checkpoint.staging import Fence, Staging, StateSnapshot, divide_state
from penstock.checkpoint.tiers import LocalTier, Tiers
from penstock.errors import FormatError, StorageError
from penstock.ranks.place import detect

PLACE = detect(0, 1, {}, {})
ALONE = Ranks(PLACE, lambda text: [text])
STATE = {"weights": np.arange(5000.0), "n": 7}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[SaveTarget]:
    repository = open_repository(tmp_path / "run", make=True)
    folders, together = [LocalTier(tmp_path / "tier")], ALONE.run_together
    tiers = Tiers(folders, repository.path, PLACE.rank, together, b"0a0b0c0d")
    lock = repository.lock(b"0a0b0c0d")
    yield SaveTarget(PLACE, repository, lock, tiers)
    lock.close()
    tiers.close()


def begin(target: SaveTarget, number: int = 1) -> Save:
    attempt = Attempt("0a0b0c0d", number)
    snapshot = StateSnapshot(*divide_state(STATE, None, PLACE), Staging(), Fence(), 1, attempt)
    return Save(
        target,
        number,
        attempt.name,
        snapshot=snapshot,
        flush=Flush(Budget()),
        began_s=0.0,
    )


def hold(target: SaveTarget) -> Save:
    """Make a save that is held, and not in the repository yet."""
    save = begin(target)
    save.write(ALONE, lambda: save.write_shard(0, Flush(Budget(), shared=False)))
    assert save.state == "written"
    save.hold(ALONE, after=None)
    return save


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def check_committed(save: Save, target: SaveTarget, folder: Path) -> None:
    assert save.state == "committed"
    assert [entry.path for entry in target.repository.entries()] == [save.path]
    assert np.array_equal(load(folder / "run").state["weights"], STATE["weights"])
    assert list_files(folder / "tier") == [".lock"]


def test_straight(target: SaveTarget, tmp_path: Path) -> None:
    """Without tiers: staged, written, committed, and no state is entered twice."""
    save = begin(target._replace(tiers=None))
    assert save.state == "staged"
    (shard,) = save.write(ALONE)
    assert save.state == "written"
    assert target.repository.entries() == []
    save.commit(ALONE)
    check_committed(save, target, tmp_path)
    assert save.describe_commit(1.0).bytes == shard.entry.bytes
    with pytest.raises(AssertionError, match="a save that is committed cannot become removed"):
        save.remove()


def test_held_then_committed(target: SaveTarget, tmp_path: Path) -> None:
    """A held save lies on its tier alone, and leaves the tier with its commit."""
    save = hold(target)
    assert save.state == "held"
    assert list_files(tmp_path / "tier") == [".lock", "index", "rank-0.shard"]
    assert list_files(tmp_path / "run") == [".lock"]
    ((copied_bytes, _),) = save.drain(ALONE, lambda: Flush(Budget()))
    check_committed(save, target, tmp_path)
    assert copied_bytes == save.describe_commit(1.0).bytes


def test_held_until_the_repository_is_back(target: SaveTarget, tmp_path: Path) -> None:
    """A save that cannot be drained stays held, and is drained later."""
    save = hold(target)
    (tmp_path / "run").rename(tmp_path / "away")
    with pytest.raises(StorageError):
        save.drain(ALONE, lambda: Flush(Budget()))
    assert save.state == "held"
    (tmp_path / "away").rename(tmp_path / "run")
    save.drain(ALONE, lambda: Flush(Budget()))
    check_committed(save, target, tmp_path)


def test_restored(target: SaveTarget, tmp_path: Path) -> None:
    """The next job begins with the save that was held."""
    held = hold(target)
    (folder,) = tmp_path.glob("tier/*.held")
    assert held._index is not None
    shards = [(shard, str(folder)) for shard in held._index.shards]
    save = Save.restore(target, held._index, shards, Flush(Budget()))
    assert save.state == "held"
    save.drain(ALONE, lambda: Flush(Budget()))
    check_committed(save, target, tmp_path)


def test_removed(target: SaveTarget, tmp_path: Path) -> None:
    """A save that cannot be committed is removed before its error is raised; so is one that was
    held and is damaged, by the caller."""
    abandoned = begin(target)
    abandoned.write(ALONE)
    abandoned.flush.stop()
    with pytest.raises(StorageError, match="abandoned"):
        abandoned.commit(ALONE)
    assert abandoned.state == "removed"
    damaged = hold(target)
    (shard,) = tmp_path.glob("tier/*/rank-0.shard")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(FormatError):
        damaged.drain(ALONE, lambda: Flush(Budget()))
    damaged.remove()
    assert damaged.state == "removed"
    assert target.repository.entries() == []
    assert target.repository.leftovers() == []
    assert list_files(tmp_path) == [".lock", ".lock"]


def test_stall_sentence() -> None:
    """The error of a thread that hangs says what it is about to do, or what it has done last."""
    marked, told = threading.Barrier(2, timeout=240), threading.Barrier(2, timeout=60)

    def save() -> None:
        for action, is_done in (("sync x", False), ("synced x", True)):
            mark(action, is_done=is_done)
            marked.wait()
            told.wait()

    thread = threading.Thread(target=save)
    thread.start()
    for sentence in ("s it has been about to sync x:", "s nothing has happened since it synced x:"):
        marked.wait()
        assert sentence in str(build_stall_error(thread, 3, 1.0))
        told.wait()
    thread.join()
