"""Faults of a checkpoint's folder: they give a clear error, or a whole checkpoint, never a half
one."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.loading import verify_checkpoint
from penstock.checkpoint.repository import Folder
from penstock.errors import FormatError, MissingError, StorageError, UsageError
from tests import warm
from tests.slices import thinned

STATE = {"a": np.arange(20), "b": np.ones(7, np.uint8), "n": 3}


def saved(folder: Path, *steps: int) -> None:
    with Checkpoints(folder) as checkpoints:
        for step in steps:
            checkpoints.save(step, STATE | {"n": step})


def equal(state: Any, step: int) -> bool:
    return state["n"] == step and all(np.array_equal(state[name], STATE[name]) for name in "ab")


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.wide
@pytest.mark.parametrize("name", ["index", "rank-0.shard"])
@pytest.mark.parametrize("how", ["altered", "cut"])
def test_damage_at_every_byte(tmp_path: Path, name: str, how: str) -> None:
    """No byte may be altered or missing: loading and verifying name the file."""
    saved(tmp_path, 5)
    folder = Folder(tmp_path)
    path = Path(folder.entry().path) / name
    whole = path.read_bytes()
    for at in thinned(range(len(whole))):
        if how == "cut":
            path.write_bytes(whole[:at])
        else:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(FormatError, match=name):
            load(tmp_path)
        with pytest.raises(FormatError, match=name):
            verify_checkpoint(folder, folder.entry())
    path.write_bytes(whole)
    assert equal(load(tmp_path).state, 5)
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError, match=name):
        load(tmp_path)


def test_damage_names_the_piece(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    path = Path(Folder(tmp_path).entry().path) / "rank-0.shard"
    with open(path, "r+b") as file:
        file.seek(3)
        file.write(b"x")
    with pytest.raises(FormatError, match=r"rank-0.shard is damaged: piece 'state.a' at 0, 160 by"):
        load(tmp_path)


def test_a_link_is_no_shard(tmp_path: Path) -> None:
    """Nor where it leads to the very bytes: what is there could be removed or changed elsewhere."""
    saved(tmp_path, 5)
    path = Path(Folder(tmp_path).entry().path) / "rank-0.shard"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match=r"rank-0.shard is damaged: it is a symbolic link"):
        load(tmp_path)


def test_the_one_before_is_offered(tmp_path: Path) -> None:
    """A damaged checkpoint is skipped only on request; the error names the one before."""
    saved(tmp_path, 5, 6)
    shard = Path(Folder(tmp_path).entry(6).path) / "rank-0.shard"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"The checkpoint before it is of step 5"):
        load(tmp_path)
    with pytest.warns(RuntimeWarning, match="loading step 5"):
        assert equal(load(tmp_path, fall_back=True).state, 5)
    shard.unlink()
    with pytest.raises(MissingError, match=r"rank-0.shard is not there"):
        load(tmp_path)


def test_a_shard_of_another_checkpoint(tmp_path: Path) -> None:
    """Whole files that do not belong together are refused."""
    saved(tmp_path, 5)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(6, {"a": np.arange(1, 21), "b": STATE["b"], "n": 6})
    folder = Folder(tmp_path)
    shutil.copy(
        os.path.join(folder.entry(5).path, "rank-0.shard"),
        os.path.join(folder.entry(6).path, "rank-0.shard"),
    )
    with pytest.raises(FormatError, match="not the one that the index names"):
        load(tmp_path, 6)


def test_a_renamed_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    os.rename(Folder(tmp_path).entry().path, tmp_path / "step-7.1")
    with pytest.raises(FormatError, match="is of step 5"):
        load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="is not a folder"):
        load(tmp_path / "none")
    with pytest.raises(MissingError, match="there is no checkpoint"):
        load(tmp_path)
    saved(tmp_path, 5)
    with pytest.raises(MissingError, match="no checkpoint of step 6: it has 5"):
        load(tmp_path, 6)


# -- storage ---------------------------------------------------------------------------------------


def ended(checkpoints: Checkpoints) -> StorageError | None:
    """Return how the save under way ends."""
    try:
        checkpoints.wait()
    except StorageError as error:
        return error
    return None


def test_disk_full(small_disk: Path) -> None:
    """If a shard or the index does not fit, nothing is committed, and the room is free again."""
    refused = 0
    with Checkpoints(small_disk, keep=2) as checkpoints:
        checkpoints.save(0, STATE | {"n": 0})
        checkpoints.wait()
        free = os.statvfs(small_disk).f_bfree
        for kib in range(40, 100, 4):
            checkpoints.save(1, {"big": np.zeros(kib << 10, np.uint8)})
            failed = ended(checkpoints)
            if failed is None:
                checkpoints.folder.delete(checkpoints.folder.entry(1))
                continue
            assert "No space left on device: make room there" in str(failed)
            assert failed.errno == errno.ENOSPC
            refused += 1
            assert os.statvfs(small_disk).f_bfree == free
            assert checkpoints.steps() == [0]
            assert equal(checkpoints.load().state, 0)
        assert 0 < refused < 15
        checkpoints.save(2, STATE | {"n": 2})
    assert equal(load(small_disk).state, 2)


def test_read_only(small_disk: Path) -> None:
    saved(small_disk, 5)
    with Checkpoints(small_disk) as checkpoints:
        checkpoints.save(6, STATE | {"n": 6})
        checkpoints.wait()
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    with pytest.raises(StorageError, match="Read-only file system"):
        Checkpoints(small_disk)
    assert equal(load(small_disk).state, 6)


def test_the_folder_vanishes(tmp_path: Path) -> None:
    """The error comes with the next call, and the job may go on without checkpoints."""
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, STATE)
    checkpoints.wait()
    shutil.rmtree(folder)
    assert checkpoints.save(2, STATE)
    with pytest.raises(StorageError, match="No such file or directory"):
        checkpoints.save(3, STATE)
    checkpoints.save(4, STATE)
    with pytest.raises(StorageError, match=r"step-4.*nothing was committed"):
        checkpoints.close()
    assert not folder.exists()


def test_two_writers(tmp_path: Path) -> None:
    """A second writer is refused, in this process and in another, and told who the first is."""
    with Checkpoints(tmp_path):
        with pytest.raises(UsageError, match=f"written by another job .process {os.getpid()}"):
            Checkpoints(tmp_path)
        code = "import sys; from penstock.checkpoint import Checkpoints; Checkpoints(sys.argv[1])"
        done = warm.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
        assert "written by another job" in done.stderr
    Checkpoints(tmp_path).close()


def test_a_writer_that_was_replaced(tmp_path: Path) -> None:
    """If locks do not work, the name in the file decides who may commit."""
    first = Checkpoints(tmp_path)
    first.save(1, STATE)
    first.wait()
    (tmp_path / ".lock").unlink()
    with Checkpoints(tmp_path) as second:
        second.save(2, STATE | {"n": 2})
        second.wait()
        first.save(3, STATE)
        with pytest.raises(UsageError, match=r"another job now .*nothing was committed"):
            first.close()
        assert second.steps() == [1, 2]


def test_a_worker_does_not_hold_the_lock(tmp_path: Path) -> None:
    """A forked process that outlives the job does not keep others out."""
    checkpoints = Checkpoints(tmp_path)
    until, end = os.pipe()
    begun, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(told, b"begun")
        os.read(until, 1)
        os._exit(0)
    os.read(begun, 5)
    checkpoints.close()
    try:
        Checkpoints(tmp_path).close()
    finally:
        os.close(end)
        os.waitpid(child, 0)
        for each in (until, begun, told):
            os.close(each)


def test_foreign_files_stay(tmp_path: Path) -> None:
    """Foreign files are not removed, and do not keep checkpoints from being removed."""
    saved(tmp_path, 1)
    note = Path(Folder(tmp_path).entry().path) / "note.txt"
    note.write_text("mine")
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (2, 3, 4):
            checkpoints.save(step, STATE)
        checkpoints.wait()
        assert checkpoints.steps() == [3, 4]
    assert note.read_text() == "mine"


# -- states ----------------------------------------------------------------------------------------


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("make", "path", "what"),
    [
        (lambda: {"f": [1, len]}, r"state.f\[1\]", "builtin_function_or_method"),
        (lambda: {"x": {1, 2}}, r"state.x", "builtins.set"),
        (lambda: {"x": np.array([None])}, r"state.x", "ndarray of object"),
        (lambda: {"x": np.zeros(1, "i4,i4")}, r"state.x", "ndarray of"),
        (lambda: {"x": np.ma.zeros(2)}, r"state.x", "MaskedArray"),
        (lambda: {(1, b"x"): 1}, r"state", "key of type bytes"),
        (lambda: {Path("x"): 1}, r"state", "key of type PosixPath"),
        (cyclic, r"state\[0\]\[0\]", "does it contain itself"),
    ],
)
def test_unsupported_values(tmp_path: Path, make: Callable[[], Any], path: str, what: str) -> None:
    """The key path and the type are named at once; nothing is begun, and saving goes on."""
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UsageError, match=what) as told:
            checkpoints.save(1, make())
        assert told.match(path)
        assert checkpoints.steps() == []
        checkpoints.save(1, STATE)
        checkpoints.wait()
        assert checkpoints.steps() == [1]
        assert checkpoints.folder.leftovers() == []


def test_unsupported_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with Checkpoints(tmp_path) as checkpoints:
        for value in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
            with pytest.raises(UsageError, match=r"state.layers\[0\] is a Tensor .*not a dense"):
                checkpoints.save(1, {"layers": [value]})


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep is 1"):
        Checkpoints(tmp_path, keep=1)
    with pytest.raises(UsageError, match="busy is .later."):
        Checkpoints(tmp_path, busy="later")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"s3:/bucket/x: write two slashes"):
        Checkpoints("s3:/bucket/x")
    with pytest.raises(UsageError, match="initialise torch.distributed first"):
        Checkpoints(tmp_path, rank=0, world_size=2)
    checkpoints = Checkpoints(tmp_path)
    for step in (-1, 1.0, True):
        with pytest.raises(UsageError, match="step is"):
            checkpoints.save(step, STATE)  # type: ignore[arg-type]
    checkpoints.close()
    checkpoints.close()
    with pytest.raises(UsageError, match="closed"):
        checkpoints.save(1, STATE)


# -- several saves ---------------------------------------------------------------------------------


def test_busy_and_budget(tmp_path: Path) -> None:
    """One save runs at a time; the next is skipped or waits; the rate may change meanwhile."""
    big = {"x": np.zeros(8 << 20, np.uint8)}
    with Checkpoints(tmp_path, busy="skip", budget=Budget(bytes_per_s=1)) as checkpoints:
        assert checkpoints.save(1, big)
        assert not checkpoints.save(2, big)
        assert checkpoints.skipped == 1
        checkpoints.budget = Budget()
        checkpoints.wait()
        assert checkpoints.save(3, big)
        checkpoints.wait()
        assert checkpoints.steps() == [1, 3]
        checkpoints.budget = Budget(bytes_per_s=1)
        checkpoints.save(4, big)
        checkpoints.abandon()
        assert checkpoints.steps() == [1, 3]
        assert checkpoints.folder.leftovers() == []


def test_going_back(tmp_path: Path) -> None:
    """If a run goes on from an earlier step, its saves are the latest, and stay."""
    saved(tmp_path, 10, 20, 30)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert equal(checkpoints.load(20).state, 20)
        checkpoints.save(25, STATE | {"n": 25})
        checkpoints.wait()
        assert checkpoints.steps() == [30, 25]
        checkpoints.save(30, STATE | {"n": 31})
        checkpoints.wait()
        assert checkpoints.steps() == [25, 30]
        assert checkpoints.load(30).state["n"] == 31


@pytest.mark.parametrize("direct", ["auto", "off", "required"])
def test_direct(tmp_path: Path, direct: Any) -> None:
    """Data of any length is written through the page cache and past it."""
    for size in (0, 1, 4095, 4096, 4097, 1 << 20):
        state = {"x": np.random.default_rng(size).integers(0, 256, size, np.uint8)}
        with Checkpoints(tmp_path, budget=Budget(direct=direct)) as checkpoints:
            checkpoints.save(size, state)
        assert np.array_equal(load(tmp_path, size).state["x"], state["x"])
