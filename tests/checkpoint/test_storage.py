"""Checkpoints on storage whose calls fail, do less than they were asked, or hang: on a real file
system, see benchmarks/emulation/faulty.py.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import emulation
from benchmarks.emulation.faulty import OPERATIONS, Faulty

import penstock
from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.repository import Folder
from penstock.errors import StalledError, StorageError, UsageError
from tests import ROOT, warm
from tests.slices import first

pytestmark = pytest.mark.skipif(
    emulation.usable() is not None, reason=f"no emulated storage: {emulation.usable()}"
)
RANKS = Path(__file__).with_name("ranks.py")
EXAMPLE = ROOT / "examples" / "checkpoint_deadline.py"
SOON_S = 0.05
"""Time for which tests wait for a call that hangs."""
END_S = 60


@pytest.fixture(scope="module")
def mounted() -> Iterator[Faulty]:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, Faulty(folder) as storage:
        yield storage


@pytest.fixture
def storage(mounted: Faulty) -> Iterator[Faulty]:
    """Give the storage in order, before and after; calls that hang end with the test."""
    mounted.clear()
    yield mounted
    mounted.clear()
    for thread in threading.enumerate():
        if thread.name == "penstock-checkpoint":
            thread.join(END_S)


@pytest.fixture
def folder(storage: Faulty) -> Path:
    return Path(tempfile.mkdtemp(dir=storage.path))


def state_of(step: int) -> dict[str, Any]:
    """Make a state of some pages and an end that fills none."""
    return {"x": np.random.default_rng(step).random(3000), "n": step}


def equal(state: Any, step: int) -> bool:
    return state["n"] == step and np.array_equal(state["x"], state_of(step)["x"])


def save_until_end(checkpoints: Checkpoints, step: int) -> StorageError | None:
    """Save a step; the error with which the save ends, or None."""
    checkpoints.save(step, state_of(step))
    try:
        checkpoints.wait()
    except StorageError as error:
        return error
    return None


def check(checkpoints: Checkpoints, *steps: int) -> None:
    """Check that these checkpoints exist, that all of them load, and that nothing else is left."""
    assert checkpoints.steps() == list(steps)
    for step in steps:
        assert equal(load(checkpoints.folder.path, step).state, step)
    names = os.listdir(checkpoints.folder.path)
    assert len(names) == 1 + len(steps), names


# -- errors ----------------------------------------------------------------------------------------

CALLS = [
    ("mkdir", ".incomplete"),
    ("fallocate", "rank-0.shard"),
    ("create", "rank-0.shard"),
    ("open", "rank-0.shard"),
    ("write", "rank-0.shard"),
    ("fsync", "rank-0.shard"),
    ("flush", "rank-0.shard"),
    ("fsyncdir", ".incomplete"),
    ("create", "index.part"),
    ("write", "index.part"),
    ("fsync", "index.part"),
    ("flush", "index.part"),
    ("rename", "/index$"),
    ("open", ".lock"),
    ("read", ".lock"),
    ("rename", "/step-2.2$"),
]
"""Calls of a save in their order, each with the part of its path that identifies it."""


@pytest.mark.parametrize(
    ("operation", "part", "code"),
    # Each call fails once, the first ones in every way.
    first(
        len(CALLS) + 4,
        [
            *[(*call, errno.EIO) for call in CALLS],
            *[(*call, code) for call in CALLS for code in (errno.EDQUOT, errno.ESTALE)],
        ],
    ),
)
def test_a_call_that_fails(
    storage: Faulty, folder: Path, operation: str, part: str, code: int
) -> None:
    """The next call raises an error that names the failure, the place and the remedy. Nothing is
    committed or left behind, earlier checkpoints load, and the next save succeeds."""
    if operation == "fallocate" and code != errno.EDQUOT:
        return  # only a convenience
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, state_of(1))
    checkpoints.wait()
    remedy = "make room there" if code == errno.EDQUOT else "check the folder and its file system"
    for who in ("save", "wait", "close"):
        storage.error(operation, code, part)
        assert checkpoints.save(2, state_of(2))
        with pytest.raises(StorageError) as caught:
            checkpoints.save(3, state_of(3)) if who == "save" else getattr(checkpoints, who)()
        assert storage.hits(operation)
        assert caught.value.errno == code
        assert caught.match(
            rf"^{folder}/.*step-2.* cannot be written: {os.strerror(code)}: {remedy}"
        )
        assert caught.match("save again: nothing was committed$")
        storage.clear()
        check(checkpoints, 1)
    with Checkpoints(folder) as checkpoints:
        assert save_until_end(checkpoints, 4) is None
        check(checkpoints, 1, 4)


LOOKED_AT = ("/index$", "/rank-0.shard$", "/.lock$", ".incomplete$")
ANY = [(operation, "") for operation in OPERATIONS if operation != "getattr"]


@pytest.mark.long
@pytest.mark.parametrize("how", first(1, ["error", "late"]))
def test_any_call_that_fails_once(storage: Faulty, folder: Path, how: str) -> None:
    """Each call of a save and of its removals fails once, by its number. Nothing is committed, or
    the commit is whole and the error names it; the next save leaves all in order."""
    failed = befallen = 0
    kinds = ANY + [("getattr", part) for part in LOOKED_AT] * (how == "error")
    with Checkpoints(folder, keep=2) as checkpoints:
        for step in (1, 2):
            assert save_until_end(checkpoints, step) is None
        there = [1, 2]
        for operation, part in kinds:
            number = 0
            while True:
                step = there[-1] + 1
                getattr(storage, how)(operation, errno.EIO, part, after=number, times=1)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # of what was not removed
                    error = save_until_end(checkpoints, step)
                hit = storage.hits(operation)
                storage.clear()
                befallen += hit
                failed += error is not None
                committed = checkpoints.steps()[-1] == step
                assert committed == (error is None or f"step-{step}." in str(error).split(": ")[-1])
                assert checkpoints.steps()[-1] == (step if committed else there[-1])
                assert equal(checkpoints.load().state, checkpoints.steps()[-1])
                if committed:
                    there.append(step)
                there.append(there[-1] + 1)
                assert save_until_end(checkpoints, there[-1]) is None, (operation, number)
                there = there[-2:]
                check(checkpoints, *there)
                if not hit:
                    break
                number += 1
    assert befallen > 25
    assert failed > 15


def test_what_cannot_be_removed(storage: Faulty, folder: Path) -> None:
    """Leftovers of a failed save that cannot be removed are removed by the next save that
    succeeds."""
    with Checkpoints(folder) as checkpoints:
        assert save_until_end(checkpoints, 1) is None
        for step in (2, 3):
            storage.error("fsync", errno.EIO, "rank-0")
            storage.error("unlink", errno.EIO)
            assert save_until_end(checkpoints, step) is not None
            storage.clear()
            assert checkpoints.folder.leftovers()
        assert checkpoints.steps() == [1]
        assert save_until_end(checkpoints, 4) is None
        check(checkpoints, 1, 4)


@pytest.mark.parametrize(
    ("operation", "part"),
    [("unlink", "index"), ("unlink", "rank-0"), ("fsyncdir", "step-1.1"), ("rmdir", "step-1.1")],
)
def test_retention_that_fails(storage: Faulty, folder: Path, operation: str, part: str) -> None:
    """The new checkpoint stands, and old ones are removed later."""
    with Checkpoints(folder, keep=2) as checkpoints:
        for step in (1, 2):
            assert save_until_end(checkpoints, step) is None
        storage.error(operation, errno.EIO, part)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert save_until_end(checkpoints, 3) is None
        assert storage.hits(operation)
        assert [str(each.message).partition(": ")[0] for each in said] == [
            "a checkpoint was committed, but older ones were not removed"
        ] * (part in ("index", "step-1.1") and operation != "rmdir")
        assert checkpoints.steps()[-2:] == [2, 3]
        storage.clear()
        assert save_until_end(checkpoints, 4) is None
        check(checkpoints, 3, 4)


def test_a_name_that_may_be_lost(storage: Faulty, folder: Path) -> None:
    """If the sync of the folder fails after the rename, the checkpoint exists, and the error says
    so."""
    with Checkpoints(folder) as checkpoints:
        storage.error("fsyncdir", errno.EIO, after=2)
        failed = save_until_end(checkpoints, 1)
        assert failed is not None
        assert str(failed).startswith(f"{folder} cannot be written: Input/output error: check")
        assert f"save again: {folder}/step-1.1 is there, but a power cut may" in str(failed)
        check(checkpoints, 1)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_what_cannot_be_looked_at_is_not_gone(storage: Faulty, folder: Path, code: int) -> None:
    """If an index cannot be read for a moment, its checkpoint is neither removed nor skipped."""
    with Checkpoints(folder) as checkpoints:
        for step in (1, 2):
            assert save_until_end(checkpoints, step) is None
        storage.error("getattr", code, "/index")
        for look in (checkpoints.steps, checkpoints.load, checkpoints.latest):
            with pytest.raises(StorageError, match="index cannot be read"):
                look()
    with pytest.raises(StorageError, match="index cannot be read"):
        Checkpoints(folder)
    storage.error("getattr", code, folder.name)
    with pytest.raises(StorageError, match="cannot be read"):
        load(folder)
    storage.clear()
    with Checkpoints(folder) as checkpoints:
        check(checkpoints, 1, 2)
    with pytest.raises(UsageError, match="is a file: name a folder"):
        load(folder / ".lock")


@pytest.mark.parametrize("operation", ["create", "flock", "write", "truncate"])
def test_a_lock_that_fails(storage: Faulty, folder: Path, operation: str) -> None:
    storage.error(operation, errno.EIO, ".lock")
    with pytest.raises(StorageError, match=r"\.lock cannot be written: Input/output error: check"):
        Checkpoints(folder)
    storage.clear()
    with Checkpoints(folder) as checkpoints:
        assert save_until_end(checkpoints, 1) is None


@pytest.mark.parametrize("direct", ["off", "auto"])
def test_short_writes_and_reads(storage: Faulty, folder: Path, direct: Any) -> None:
    """Short writes and reads of shards, index and lock are continued where they ended."""
    storage.short("write", 1000)
    storage.short("read", 777)
    with Checkpoints(folder, budget=Budget(direct=direct)) as checkpoints:
        for step in (1, 2):
            assert save_until_end(checkpoints, step) is None
        assert storage.hits("write") > 2 * 24
        check(checkpoints, 1, 2)
        storage.short("write", 0)  # no error, and nothing done
        failed = save_until_end(checkpoints, 3)
        assert failed is not None
        assert failed.errno == errno.EIO
        storage.clear()
        check(checkpoints, 1, 2)


def test_reads_that_fail(storage: Faulty, folder: Path) -> None:
    with Checkpoints(folder) as checkpoints:
        assert save_until_end(checkpoints, 1) is None
        for part in ("index", "rank-0.shard"):
            storage.error("read", errno.EIO, part)
            with pytest.raises(StorageError, match=f"{part} cannot be read: Input/output error"):
                checkpoints.load()
            storage.clear()
        check(checkpoints, 1)


# -- storage that hangs ----------------------------------------------------------------------------

HANGS = [
    ("mkdir", ".incomplete", r"make /.*\.incomplete"),
    ("create", "rank-0.shard", r"create /.*rank-0.shard"),
    ("write", "rank-0.shard", r"write /.*rank-0.shard from byte 0 on"),
    ("fsync", "rank-0.shard", r"sync /.*rank-0.shard"),
    ("fsyncdir", ".incomplete", r"sync folder /.*\.incomplete"),
    ("fsync", "index.part", r"sync /.*/index\.part"),
    ("rename", "/step-2.2$", r"rename /.*\.incomplete"),
]


@pytest.mark.parametrize(("operation", "part", "what"), HANGS)
def test_who_waits_is_told(
    storage: Faulty, folder: Path, operation: str, part: str, what: str
) -> None:
    """Training is not held up; a caller that waits gets an error that names the hanging call, and
    all ends well once it does not hang any more."""
    with Checkpoints(folder, busy="skip") as checkpoints:
        assert save_until_end(checkpoints, 1) is None
        storage.hang(operation, part)
        assert checkpoints.save(2, state_of(2))
        storage.await_hang(operation)
        assert not checkpoints.save(3, state_of(3))
        assert checkpoints.skipped == 1
        if operation in ("write", "fsync"):  # or the kernel lets nobody look into the folder
            assert equal(load(folder).state, 1)
        said = rf"step 2 is still under way after 0.05 s .* for .* s it .*about to {what}:"
        for wait in (checkpoints.wait, checkpoints.close):
            with pytest.raises(StalledError, match=said) as caught:
                wait(timeout_s=SOON_S)
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.errno == errno.ETIMEDOUT
        with pytest.raises(StalledError, match="after 0 s of waiting"):
            checkpoints.wait(0)
        storage.clear()
        saved = checkpoints.wait(END_S)
        assert saved is not None
        assert saved.step == 2
        assert checkpoints.save(4, state_of(4))
        checkpoints.close(END_S)
        check(checkpoints, 1, 2, 4)


def test_a_loader_goes_on(storage: Faulty, folder: Path, tmp_path: Path) -> None:
    """A loader reads from other storage, epoch after epoch, and its state is saved when storage is
    back."""
    data = np.arange(4000).reshape(400, 10)
    np.save(tmp_path / "data.npy", data)
    dataset = penstock.open(tmp_path / "data.npy", index="memory")
    with (
        penstock.Loader(dataset, 20, rank=0, world_size=1) as loader,
        Checkpoints(folder, busy="skip") as checkpoints,
    ):
        storage.hang("write", "rank-0")
        assert checkpoints.save(0, state_of(0), loader=loader)
        storage.await_hang("write")
        for _ in range(2):
            for batch in loader:
                assert np.array_equal(batch["data"], data[batch.ids])
                assert not checkpoints.save(1, state_of(1), loader=loader)
        assert checkpoints.skipped == 40
        storage.clear()
        checkpoints.wait()
        assert checkpoints.save(2, state_of(2), loader=loader)
        assert checkpoints.load().loader == loader.state_dict()


def test_retention_that_hangs(storage: Faulty, folder: Path) -> None:
    """The checkpoint is committed, and `last` says so."""
    with Checkpoints(folder, keep=2, busy="skip") as checkpoints:
        for step in (1, 2):
            assert save_until_end(checkpoints, step) is None
        storage.hang("unlink", "index")
        assert checkpoints.save(3, state_of(3))
        storage.await_hang("unlink")
        with pytest.raises(StalledError, match=r"about to remove /.*step-1.1/index"):
            checkpoints.wait(SOON_S)
        assert checkpoints.last is not None
        assert checkpoints.last.step == 3
        storage.clear()
        checkpoints.wait()
        check(checkpoints, 2, 3)


@pytest.mark.parametrize(("operation", "part", "what"), HANGS)
def test_what_hangs_is_abandoned(
    storage: Faulty, folder: Path, operation: str, part: str, what: str
) -> None:
    """An abandoned save ends when storage answers. It is not committed then, unless the commit was
    the call that hung."""
    with Checkpoints(folder, busy="skip") as checkpoints:
        assert save_until_end(checkpoints, 1) is None
        storage.hang(operation, part)
        assert checkpoints.save(2, state_of(2))
        storage.await_hang(operation)
        with pytest.raises(StalledError, match=f"about to {what}:"):
            checkpoints.abandon(SOON_S)
        assert not checkpoints.save(3, state_of(3))
        storage.clear()
        checkpoints.wait()
        run_ranks = [2] if part in ("index.part", "/step-2.2$") else []
        check(checkpoints, 1, *run_ranks)
        assert checkpoints.save(4, state_of(4))
        checkpoints.wait()
        check(checkpoints, 1, *run_ranks, 4)


def test_a_drain_that_hangs_is_abandoned(storage: Faulty, folder: Path, tmp_path: Path) -> None:
    """The save stays held, and the next one brings it along once storage answers."""
    with Checkpoints(folder, local=tmp_path) as checkpoints:
        storage.hang("fsync", "rank-0.shard")
        checkpoints.save(1, state_of(1))
        checkpoints.wait(until="held")
        storage.await_hang("fsync")
        with pytest.raises(StalledError, match="about to sync"):
            checkpoints.abandon(SOON_S)
        storage.clear()
        with pytest.raises(StorageError, match="abandoned"):
            checkpoints.wait()
        assert checkpoints.stats()["held"] == [1]
        checkpoints.save(2, state_of(2))
        checkpoints.wait()
        check(checkpoints, 1, 2)


def test_closed_while_it_hangs(storage: Faulty, folder: Path) -> None:
    """An abandoned save is not waited for, and the folder stays locked; the save is not
    committed."""
    with Checkpoints(folder) as checkpoints:
        assert save_until_end(checkpoints, 1) is None
        storage.hang("fsync", "rank-0")
        assert checkpoints.save(2, state_of(2))
        storage.await_hang("fsync")
        with pytest.raises(StalledError):
            checkpoints.abandon(SOON_S)
    with pytest.raises(UsageError, match="closed"):
        checkpoints.save(3, state_of(3))
    with pytest.raises(UsageError, match="written by another job"):
        Checkpoints(folder)
    storage.clear()
    checkpoints.wait()
    check(checkpoints, 1)


def test_timeouts_are_seconds(folder: Path) -> None:
    with Checkpoints(folder) as checkpoints:
        for wrong in (-1, float("nan")):
            with pytest.raises(UsageError, match="timeout_s is"):
                checkpoints.wait(wrong)
        assert checkpoints.wait(0) is None
        checkpoints.abandon(0)
        checkpoints.save(1, state_of(1))
        checkpoints.close(float("inf"))


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_dcp_on_storage_that_hangs(storage: Faulty, folder: Path) -> None:
    """The future is DCP's; a caller that waits for the save before, or closes, gets an error that
    names the hanging call."""
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from penstock.checkpoint.dcp import Reader, Storage

    with Storage(folder) as home:
        storage.hang("fsync", "rank-0")
        future = dcp.async_save({"w": torch.ones(5)}, storage_writer=home.writer(1))
        storage.await_hang("fsync")
        said = r"step 1 is still under way after 0.05 s .* about to sync /.*rank-0.shard:"
        with pytest.raises(StalledError, match=said):
            home.writer(2, timeout_s=SOON_S)
        with pytest.raises(StalledError, match=said):
            home.close(SOON_S)
        storage.clear()
        future.result()
        storage.error("fsync", errno.EIO, "index")
        future = dcp.async_save({"w": torch.zeros(5)}, storage_writer=home.writer(2))
        with pytest.raises(dcp.api.CheckpointException, match="Input/output error"):
            future.result()
        with pytest.warns(RuntimeWarning, match="step 2 was not committed"):
            home.writer(3)
        storage.clear()
    assert len(os.listdir(folder)) == 2
    state = {"w": torch.zeros(5)}
    dcp.load(state, storage_reader=Reader(folder))
    assert torch.equal(state["w"], torch.ones(5))


# -- the end of a process --------------------------------------------------------------------------

UNTIL_THE_END = """
import atexit, os, sys
atexit.register(lambda: os.write(1, b"ended\\n"))  # the last to be called
from penstock.checkpoint import Checkpoints
from penstock.errors import StalledError
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(1, {"x": 1})
os.read(0, 1)  # the save hangs: given up before, it would never come to that
if sys.argv[2] == "abandoned":
    try:
        checkpoints.abandon(0.05)
    except StalledError:
        pass
os.write(1, b"ends\\n")
"""


@pytest.mark.parametrize("abandoned", [False, True])
def test_the_end_of_a_process(storage: Faulty, folder: Path, abandoned: bool) -> None:
    """The end of a process waits for a save under way, and not for an abandoned one."""
    storage.hang("fsync", "rank-0")
    words = [sys.executable, "-c", UNTIL_THE_END, folder, "abandoned" if abandoned else "not"]
    with warm.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        storage.await_hang("fsync")
        process.stdin.close()
        assert process.stdout.readline() == "ends\n"
        if not abandoned:
            storage.clear()
        assert process.stdout.readline() == "ended\n"
        assert process.wait(END_S) == 0
    assert [each.step for each in Folder(folder).entries()] == ([] if abandoned else [1])


@pytest.mark.parametrize("how", ["well", "hangs", "fails"])
def test_a_deadline(storage: Faulty, folder: Path, how: str) -> None:
    """The example ends in time, by itself, and its output is true."""
    words = [sys.executable, EXAMPLE, folder, "--grace", "20" if how != "hangs" else "1.2"]
    with warm.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begins after step 0\n"
        while not Folder(folder).entries():
            time.sleep(0.001)
        if how != "well":  # no other save begins before the signal comes
            storage.hang("write", "rank-0")
            storage.await_hang("write")
        before = Folder(folder).entry().step
        process.send_signal(signal.SIGTERM)
        if how == "fails":
            storage.error("write", errno.EIO, "rank-0")
        said, complained = process.stdout.readline().split(), process.stderr.read()
        assert process.wait(END_S) == 0, complained
    storage.clear()
    found = load(folder)
    assert np.array_equal(found.state["weights"], np.full(1000, float(found.step)))
    if how == "well":
        assert said == ["saved", "step", str(found.step)]
        assert found.step >= before  # the signal may come with no step after the last save
    elif how == "hangs":
        assert said == ["gave", "up"]
        assert "StalledError" not in complained
        assert "about to write" in complained
    else:
        assert said == ["failed"]
        assert "Input/output error" in complained


# -- several ranks ---------------------------------------------------------------------------------


@contextlib.contextmanager
def run_ranks(scenario: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run two ranks; none is left, whatever happens."""
    pytest.importorskip("torch")
    with warm.Popen(
        [sys.executable, RANKS, scenario, str(folder), "2"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as job:
        try:
            yield job
        except BaseException:
            os.killpg(job.pid, signal.SIGKILL)
            raise


@pytest.mark.long
def test_ranks_whose_storage_fails(storage: Faulty, folder: Path) -> None:
    """Both ranks raise, whichever rank failed, nothing of the save stays, and the next save
    succeeds."""
    storage.error("fsync", errno.EIO, "rank-0", times=1)
    storage.error("create", errno.EIO, "rank-1", after=1, times=1)
    storage.error("mkdir", errno.EIO, "step-3.", times=1)  # of whoever is the first
    with run_ranks("told", folder / "x") as job:
        said = json.loads(job.communicate()[0])
    assert job.returncode == 0
    for rank, (errors, steps) in enumerate(said):
        assert [error.partition(folder.name)[2][:10] for error in errors] == [
            f"/x/step-{step}." for step in (1, 2, 3)
        ]
        assert [error.startswith("rank ") for error in errors[:2]] == [rank == 1, rank == 0]
        assert all("Input/output error: check the folder" in error for error in errors)
        assert steps == [4]
    assert len(os.listdir(folder / "x")) == 2


@pytest.mark.long
def test_a_rank_whose_storage_hangs(storage: Faulty, folder: Path) -> None:
    """The other rank waits for as long as it wants to, and neither is held up by the hanging
    save."""
    storage.hang("fsync", "rank-1", times=1)
    storage.hang("fallocate", "rank-1", after=1, times=1)
    with run_ranks("stalled", folder / "x") as job:
        for step, operation in enumerate(("fsync", "fallocate")):
            storage.await_hang(operation)
            while len(list(folder.glob(f"stalled-{step}-*"))) < 2:
                assert job.poll() is None
                time.sleep(0.001)
            storage.clear(operation)
        said = json.loads(job.communicate()[0])
    assert job.returncode == 0
    for rank, (*stalls, skipped, steps) in enumerate(said):
        assert skipped == 2
        assert steps == [0, 2]
        for where, stall in zip(("sync", "reserve", "reserve"), stalls, strict=True):
            assert (
                f"about to {f'{where} {folder}/x' if rank else 'wait for the other ranks'}" in stall
            )
