"""Checkpoints that wait on a tier: their memory is free sooner, they survive a kill, and they are
committed in order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, LocalTier, background, load
from penstock.checkpoint.tiers import Tiers
from penstock.errors import MissingError, StorageError, UsageError
from tests import warm

MIB = 1 << 20
SLOW = Budget(bytes_per_s=1)
"""Budget towards the repository: the first turn is taken at once, the second never."""


def state(step: int) -> dict[str, Any]:
    return {"x": np.full(3 * MIB, step, np.uint8), "n": step}


def equal(content: Any, step: int) -> bool:
    return content["n"] == step and np.array_equal(content["x"], state(step)["x"])


def held(*tiers: Path) -> list[str]:
    return sorted(path.name for tier in tiers for path in tier.glob("*.held"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return tmp_path / "tier"


KILLED = """
import os, signal, sys
import numpy as np
from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, LocalTier
home, *folders = sys.argv[2:]
tiers = [LocalTier(folder, 1 << 30) for folder in folders]
checkpoints = Checkpoints(home, local=tiers, budget=Budget(bytes_per_s=1))
for step in map(int, sys.argv[1].split(",")):
    checkpoints.save(step, {"x": np.full(3 << 20, step, np.uint8), "n": step}, loader={"at": step})
checkpoints.wait(until="held")
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave_held_saves(repository: Path | str, *tiers: Path, steps: str = "1,2,3") -> None:
    """Make the files of a job that held these steps and was killed before any of them was
    drained."""
    done = warm.run([sys.executable, "-c", KILLED, steps, repository, *tiers], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(held(*tiers)) == len(steps.split(","))


@contextmanager
def expect_warnings(*words: str) -> Iterator[None]:
    """Check that these warnings are given, once each, and no others."""
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        yield
    texts = [str(warning.message) for warning in caught_warnings]
    assert len(texts) == len(words), texts
    assert all(word in text for word, text in zip(words, texts, strict=True)), texts


# -- held, then committed --------------------------------------------------------------------------


def test_the_next_begins_when_one_is_held(repository: Path, tier: Path) -> None:
    """While the repository is slow, nothing is committed, and nothing waits, until it is fast."""
    with Checkpoints(repository, local=tier, budget=SLOW, busy="skip") as checkpoints:
        for step in (1, 2, 3):
            checkpoints.wait(until="held")
            assert checkpoints.save(step, state(step), loader={"at": step})
        checkpoints.wait(until="held")
        assert checkpoints.stats()["held"] == [1, 2, 3]
        assert checkpoints.steps() == []
        assert checkpoints.last is None
        assert len(held(tier)) == 3
        checkpoints.budget = Budget()
        saved = checkpoints.wait()
        assert saved is not None
        assert (saved.step, saved.path) == (3, str(repository / "step-3.3"))
        assert checkpoints.steps() == [1, 2, 3]
        assert held(tier) == []
        assert checkpoints.stats()["held"] == []
    last = load(repository)
    assert equal(last.state, 3)
    assert last.loader == {"at": 3}


def test_shards_are_the_same(repository: Path, tier: Path, tmp_path: Path) -> None:
    """Shards are the same by a tier or straight, past the page cache or not, of any length."""
    for direct in ("auto", "off"):
        for size in (0, 1, 4095, 4096, 4097, 33 * MIB + 5):
            data = {"x": np.random.default_rng(size).integers(0, 256, size, np.uint8)}
            budget = Budget(direct=direct)  # type: ignore[arg-type]
            for place, local in ((repository, tier), (tmp_path / "straight", None)):
                with Checkpoints(place, local=local, budget=budget) as checkpoints:
                    checkpoints.save(size, data)
            loaded = [load(place, size) for place in (repository, tmp_path / "straight")]
            assert all(np.array_equal(checkpoint.state["x"], data["x"]) for checkpoint in loaded)


def test_a_small_tier_is_not_waited_for_for_ever(repository: Path, tmp_path: Path) -> None:
    """One save fits on the first tier, two on the second; a fourth finds room when one is
    drained."""
    local = [LocalTier(tmp_path / "a", 4 * MIB), LocalTier(tmp_path / "b", 7 * MIB)]
    with Checkpoints(repository, local=local, budget=SLOW, keep=9) as checkpoints:
        places = []
        for step in range(3):
            checkpoints.save(step, state(step))
            checkpoints.wait(until="held")
            places.append(checkpoints.stats()["place"])
        assert places == [str(tmp_path / name) for name in "abb"]
        checkpoints.budget = Budget()
        for step in range(3, 20):
            checkpoints.save(step, state(step))
        checkpoints.wait()
        assert set(checkpoints.stats()["bytes_per_s"]) == {*places, str(repository)}
        assert len(checkpoints.steps()) == 9
    assert all(equal(load(repository, step).state, step) for step in range(11, 20))


def test_abandoned_saves_stay_held(repository: Path, tier: Path) -> None:
    """A job that has to end before a deadline ends, and loses nothing."""
    checkpoints = Checkpoints(repository, local=tier, budget=SLOW)
    checkpoints.save(1, state(1))
    checkpoints.save(2, state(2))
    checkpoints.wait(until="held")
    checkpoints.abandon()
    checkpoints.close()
    assert load_steps(repository) == []
    with Checkpoints(repository, local=tier) as checkpoints:
        assert checkpoints.steps() == [1, 2]


def load_steps(repository: Path) -> list[int]:
    with Checkpoints(repository) as checkpoints:
        return checkpoints.steps()


# -- after a kill ----------------------------------------------------------------------------------


def test_held_saves_are_committed_by_the_next_job(repository: Path, tier: Path) -> None:
    leave_held_saves(repository, tier)
    with pytest.raises(MissingError, match="there is no checkpoint"):
        load(repository)
    with expect_warnings(), Checkpoints(repository, local=tier) as checkpoints:
        last = checkpoints.latest()
        assert last is not None
        assert equal(last.state, 3)
        assert last.loader == {"at": 3}
        assert checkpoints.steps() == [1, 2, 3]
        assert held(tier) == []
        checkpoints.save(4, state(4))
        checkpoints.wait()
        assert checkpoints.steps() == [2, 3, 4]


def test_a_home_that_went_on(repository: Path, tier: Path) -> None:
    """A held save is not committed over checkpoints that a job without tiers has saved since."""
    with Checkpoints(repository) as checkpoints:
        checkpoints.save(1, state(1))
    leave_held_saves(repository, tier, steps="2,3")
    with Checkpoints(repository) as checkpoints:
        checkpoints.save(2, state(7) | {"n": 2})
    why = "was held on tiers and is not committed: another checkpoint"
    with expect_warnings(f"step 2 {why}", f"step 3 {why}"):
        Checkpoints(repository, local=tier).close()
    assert held(tier) == []
    assert load_steps(repository) == [1, 2]
    assert load(repository).state["x"][0] == 7


def test_damage_on_a_tier(repository: Path, tier: Path) -> None:
    """If a byte is altered, nothing of that save is committed; the saves before are."""
    leave_held_saves(repository, tier)
    shard = next(tier.glob("step-3.*/rank-0.shard"))
    with open(shard, "r+b") as file:
        file.seek(12345)
        file.write(b"!")
    with expect_warnings("step 3 was held on tiers and is not committed: shards of it are missing"):
        Checkpoints(repository, local=tier).close()
    assert load_steps(repository) == [1, 2]
    assert equal(load(repository).state, 2)


def test_a_lost_last_index_makes_held_saves_welcome(repository: Path, tier: Path) -> None:
    """An index that is damaged where it lies does not keep what was held after it from being
    committed."""
    with Checkpoints(repository) as checkpoints:
        checkpoints.save(1, state(1))
    leave_held_saves(repository, tier, steps="2,3")
    (index,) = repository.glob("step-1.*/index")
    index.write_bytes(index.read_bytes()[:-9] + b"!" * 9)
    Checkpoints(repository, local=tier).close()
    assert held(tier) == []
    assert load_steps(repository) == [1, 2, 3]
    assert equal(load(repository).state, 3)


@pytest.mark.parametrize("name", ["index", "rank-0.shard"])
def test_what_is_not_whole_is_removed(repository: Path, tier: Path, name: str) -> None:
    """A shard without the index was not held; an index without its shards is of no use: both are
    removed."""
    leave_held_saves(repository, tier)
    next(tier.glob(f"step-2.*/{name}")).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Checkpoints(repository, local=tier).close()
    assert load_steps(repository) == [1, 3]
    assert held(tier) == []


def test_two_homes_on_one_tier(repository: Path, tier: Path, tmp_path: Path) -> None:
    """Two repositories use one tier, one after the other: saves held for one stay until it is
    opened."""
    leave_held_saves(repository, tier)
    with Checkpoints(tmp_path / "other", local=tier) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(9, state(9))
    assert len(held(tier)) == 3
    with Checkpoints(repository, local=tier) as checkpoints:
        assert checkpoints.steps() == [1, 2, 3]


def test_a_home_that_cannot_be_written_when_a_job_begins(small_disk: Path, tier: Path) -> None:
    """The error comes at once, and no held save is lost."""
    repository = small_disk / "home"
    os.mkdir(repository)
    leave_held_saves(repository, tier, steps="1")
    with pytest.raises(StorageError, match="No space left on device"):
        Checkpoints(repository, local=tier)
    assert len(held(tier)) == 1
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    with Checkpoints(repository, local=tier) as checkpoints:
        assert checkpoints.steps() == [1]


# -- faults ----------------------------------------------------------------------------------------


def test_two_jobs_on_one_tier(repository: Path, tier: Path, tmp_path: Path) -> None:
    with Checkpoints(repository, local=tier):
        with pytest.raises(UsageError, match=f"{tier} is written by another job"):
            Checkpoints(tmp_path / "other", local=tier)
        Checkpoints(tmp_path / "other").close()
    Checkpoints(tmp_path / "other", local=tier).close()


def test_a_full_tier(repository: Path, small_disk: Path) -> None:
    """A full tier is not chosen."""
    with expect_warnings(), Checkpoints(repository, local=small_disk) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.wait()
        assert checkpoints.stats()["place"] == str(repository)
        assert checkpoints.stats()["predicted_s"][str(small_disk)] is None
    assert equal(load(repository).state, 1)


def test_what_a_tier_leaves_to_others(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier without a number of bytes leaves a sixteenth of its file system."""
    monkeypatch.undo()  # of the fixture of all tests
    tiers = Tiers([LocalTier(small_disk)], "home", 0, lambda work: [work()], b"0a0b0c0d")
    with closing(tiers):
        (room,) = tiers.measure_rooms([0])
        system = os.statvfs(small_disk)
    free, whole = (blocks * system.f_frsize for blocks in (system.f_bavail, system.f_blocks))
    assert room.free_bytes == free - whole // 16


def test_a_read_only_tier(repository: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with (
        expect_warnings("Read-only file system"),
        Checkpoints(repository, local=small_disk) as checkpoints,
    ):
        for step in (1, 2):
            checkpoints.save(step, state(step))
    assert equal(load(repository).state, 2)


def test_a_tier_that_vanishes(repository: Path, tier: Path) -> None:
    """One warning comes, however many saves; training goes on, with everything committed."""
    with (
        expect_warnings("No such file or directory"),
        Checkpoints(repository, local=tier) as checkpoints,
    ):
        checkpoints.save(1, state(1))
        checkpoints.wait()
        shutil.rmtree(tier)
        for step in range(2, 16):
            checkpoints.save(step, state(step))
            checkpoints.wait()
        assert checkpoints.steps() == [13, 14, 15]


def test_a_held_save_that_vanishes(repository: Path, tier: Path) -> None:
    """The error says so; later saves succeed."""
    checkpoints = Checkpoints(repository, local=tier, budget=SLOW)
    checkpoints.save(1, state(1))
    checkpoints.save(2, state(2))
    checkpoints.wait(until="held")
    shutil.rmtree(next(tier.glob("step-2.*")))
    checkpoints.budget = Budget()
    with pytest.raises(MissingError, match=r"step-2.*is not there"):
        checkpoints.wait()
    checkpoints.save(3, state(3))
    checkpoints.wait()
    assert checkpoints.steps() == [1, 3]
    assert checkpoints.folder.leftovers() == []
    checkpoints.close()


def test_a_home_that_fails(repository: Path, tier: Path) -> None:
    """Held saves stay held, the error is raised, and the next save drains all of them in order."""
    with Checkpoints(repository) as checkpoints:
        checkpoints.save(1, state(1))
    checkpoints = Checkpoints(repository, local=tier)
    away = repository.with_name("away")
    os.rename(repository, away)
    checkpoints.save(2, state(2))
    with pytest.raises(StorageError, match="No such file or directory"):
        checkpoints.wait()
    assert checkpoints.stats()["held"] == [2]
    checkpoints.save(3, state(3))
    with pytest.raises(StorageError, match="No such file or directory"):
        checkpoints.wait()
    assert checkpoints.stats()["held"] == [2, 3]
    os.rename(away, repository)
    checkpoints.save(4, state(4))
    checkpoints.wait()
    assert checkpoints.steps() == [2, 3, 4]
    checkpoints.close()
    assert held(tier) == []


def test_a_commit_that_fails_when_it_is_one(repository: Path, tier: Path) -> None:
    """A commit that raised an error but happened is found, and not made a second time."""
    failing = [f"sync folder {repository}"]  # the rename is done

    def watcher(what: str) -> None:
        if what in failing:
            failing.clear()
            raise StorageError("the answer was lost")

    with Checkpoints(repository, local=tier) as checkpoints:
        background.watcher = watcher
        try:
            checkpoints.save(1, state(1))
            with pytest.raises(StorageError, match="the answer was lost"):
                checkpoints.wait()
        finally:
            background.watcher = None
        assert checkpoints.stats()["held"] == [1]
        checkpoints.save(2, state(2))
        saved = checkpoints.wait()
        assert saved is not None
        assert saved.step == 2
        assert checkpoints.steps() == [1, 2]


def test_a_home_that_fails_until_the_end(repository: Path, tier: Path) -> None:
    """The next job commits the saves that this one could not."""
    checkpoints = Checkpoints(repository, local=tier)
    os.rename(repository, repository.with_name("away"))
    checkpoints.save(1, state(1))
    with pytest.raises(StorageError):
        checkpoints.close()
    os.rename(repository.with_name("away"), repository)
    with Checkpoints(repository, local=tier) as checkpoints:
        assert checkpoints.steps() == [1]


def test_a_state_that_cannot_be_saved(repository: Path, tier: Path) -> None:
    with Checkpoints(repository, local=tier) as checkpoints:
        with pytest.raises(UsageError, match=r"state\.f"):
            checkpoints.save(1, {"f": len})
        checkpoints.save(1, state(1))
        checkpoints.wait()
        assert checkpoints.steps() == [1]


def test_wrong_use(repository: Path) -> None:
    with pytest.raises(UsageError, match="a tier is a folder of this host"):
        Checkpoints(repository, local="s3://bucket/x")
    with pytest.raises(UsageError, match=r"Tier\.bytes is 0"):
        LocalTier(repository, 0)
    with pytest.raises(UsageError, match="name one tier or more"):
        Checkpoints(repository, local=[])
