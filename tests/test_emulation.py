"""The emulated storage of the benchmarks: what it serves, how slowly, how it fails and ends."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from benchmarks import emulation
from benchmarks.emulation import Mount, Shared

import penstock
from penstock import limits
from penstock.loader.batch import BatchReader
from tests import ROOT

MIB = 1 << 20
END_S = 30

needs_storage = pytest.mark.skipif(
    emulation.usable() is not None, reason=f"no emulated storage: {emulation.usable()}"
)
needs_throttling = pytest.mark.skipif(
    emulation.throttling_usable() is not None,
    reason=f"no throttled disk: {emulation.throttling_usable()}",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of a file of 4 MiB, a small one and one in a sub-folder."""
    random = np.random.default_rng(1)
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    for name, size in (("large", 4 * MIB), ("small", 1000), ("sub/deep", 5000)):
        (folder / name).write_bytes(random.bytes(size))
    return folder


@pytest.fixture
def storage() -> Iterator[Shared]:
    with Shared() as shared:
        yield shared


def seconds(call: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.monotonic()
    call()
    return time.monotonic() - start


def mounted(path: str) -> bool:
    """True if something is mounted there."""
    return f" {path} " in Path("/proc/self/mounts").read_text()


def pread(mount: Mount, offset: int, length: int) -> bytes:
    """A range of the large file."""
    with open(f"{mount.path}/large", "rb", buffering=0) as file:
        return os.pread(file.fileno(), length, offset)


@needs_storage
@pytest.mark.parametrize("direct", [False, True])
def test_a_mount_shows_the_source(storage: Shared, source: Path, direct: bool) -> None:
    """Names, sizes, times and contents are those of the source, and nothing can be written."""
    mount = storage.mount(source, direct=direct)
    below = Path(mount.path)
    assert sorted(os.listdir(below)) == ["large", "small", "sub"]
    for name in ("large", "small", "sub/deep"):
        assert (below / name).read_bytes() == (source / name).read_bytes()
        assert (below / name).stat().st_mtime_ns == (source / name).stat().st_mtime_ns
    with pytest.raises(FileNotFoundError):
        (below / "absent").read_bytes()
    with pytest.raises(OSError, match="Read-only"):
        (below / "small").write_bytes(b"")


@needs_storage
def test_a_long_folder_is_listed_whole(storage: Shared, tmp_path: Path) -> None:
    """A listing that takes several answers has every name once."""
    names = [f"{number:04d}-{'x' * 60}" for number in range(1000)]
    for name in names:
        (tmp_path / name).touch()
    assert sorted(os.listdir(storage.mount(tmp_path).path)) == names


@needs_storage
def test_each_mount_has_a_cache_of_its_own(storage: Shared, source: Path) -> None:
    """Data that one node has read costs it nothing the second time, and another node all of it."""
    first, second = storage.mount(source, keep=True), storage.mount(source, keep=True)
    for _ in range(2):
        pread(first, 0, MIB)
    assert MIB <= first.counters()["bytes"] < 2 * MIB
    assert second.counters()["bytes"] == 0
    pread(second, 0, MIB)
    assert second.counters()["bytes"] >= MIB


@needs_storage
def test_without_a_cache_requests_are_reads(storage: Shared, source: Path) -> None:
    """With `direct` the storage serves exactly the bytes asked for, each time."""
    mount = storage.mount(source, direct=True)
    for _ in range(3):
        pread(mount, 100, 5000)
    counted = mount.counters()
    assert (counted["reads"], counted["bytes"]) == (3, 15000)
    storage.reset()
    assert storage.counters()["reads"] == 0


@needs_storage
def test_latency_is_paid_for_each_request(storage: Shared, source: Path) -> None:
    """Reads one after the other add up, reads at the same time do not."""
    storage.set(read_ns=50_000_000)
    mount = storage.mount(source, direct=True)
    assert seconds(lambda: [pread(mount, i * 4096, 4096) for i in range(4)]) >= 4 * 0.05
    threads = [threading.Thread(target=pread, args=(mount, i * 4096, 4096)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mount.counters()["outstanding_max"] > 1


@needs_storage
def test_two_mounts_share_one_bandwidth(storage: Shared, source: Path) -> None:
    """2 x 2 MiB at 8 MiB/s take half a second, whichever node asks, and idling earns nothing."""
    storage.set(bytes_per_s=8 * MIB)
    mounts = [storage.mount(source, direct=True) for _ in range(2)]

    def both() -> None:
        threads = [threading.Thread(target=pread, args=(one, 0, 2 * MIB)) for one in mounts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert seconds(both) >= 0.49
    assert storage.counters()["bytes"] == 4 * MIB


@needs_storage
def test_slots_bound_what_is_served_at_once(storage: Shared, source: Path) -> None:
    """With one slot of the storage, two nodes wait for each other."""
    storage.set(read_ns=50_000_000, slots=1)
    mounts = [storage.mount(source, direct=True) for _ in range(2)]

    def both() -> None:
        threads = [threading.Thread(target=pread, args=(one, 0, 4096)) for one in mounts * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert seconds(both) >= 4 * 0.05 * 0.99


@needs_storage
def test_faults_do_what_they_say(storage: Shared, source: Path) -> None:
    """Errors, short reads, hangs and truncation hit the range asked for, and end when told."""
    mount = storage.mount(source, direct=True)
    good = pread(mount, 0, 4096)

    mount.fault("error", errno.EIO, (8192, 8193))
    assert pread(mount, 0, 8192)[:4096] == good
    with pytest.raises(OSError) as failed:
        pread(mount, 8000, 4096)
    assert failed.value.errno == errno.EIO

    mount.fault("short", 100)
    assert pread(mount, 0, 4096) == good[:100]

    mount.fault("truncate", where=(3000, 1 << 62))
    assert pread(mount, 0, 4096) == good[:3000]
    assert pread(mount, 4096, 4096) == b""
    assert os.stat(f"{mount.path}/large").st_size == 4 * MIB

    mount.fault("hang", 200_000_000)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        pread(mount, 0, 4096)
    assert time.monotonic() - start >= 0.2

    mount.fault("none")
    assert pread(mount, 0, 4096) == good


@needs_storage
def test_closing_ends_mount_and_server(source: Path) -> None:
    """After `with` nothing is mounted, no server runs, no folder is left."""
    with Shared() as storage:
        mount = storage.mount(source)
        file = os.open(f"{mount.path}/large", os.O_RDONLY)
        os.pread(file, 100, 0)
        assert mounted(mount.path)
    with contextlib.suppress(OSError):  # the file went with the mount
        os.close(file)
    assert not mounted(mount.path)
    assert not os.path.exists(mount.path)
    with pytest.raises(ProcessLookupError):
        os.kill(mount.pid, 0)


@needs_storage
def test_a_read_that_hangs_does_not_keep_the_mount(source: Path) -> None:
    """Closing while a read hangs fails the read and returns."""
    said: list[object] = []

    def read(mount: Mount) -> None:
        try:
            said.append(pread(mount, 0, 4096))
        except OSError as error:
            said.append(error)

    with Shared() as storage:
        mount = storage.mount(source, direct=True)
        mount.fault("hang", 3600 * 10**9)
        reader = threading.Thread(target=read, args=(mount,))
        reader.start()
        while mount.counters()["reads"] == 0:
            os.sched_yield()
        closing = seconds(storage.close)
    reader.join(END_S)
    assert closing < END_S
    assert isinstance(said[0], OSError)


@needs_storage
def test_mounts_end_with_a_killed_owner(source: Path) -> None:
    """kill -9 of the process that mounted leaves no mount, no server, no folder."""
    code = (
        "import sys; from benchmarks.emulation import Shared; "
        "mount = Shared().mount(sys.argv[1]); "
        "print(mount.path, mount.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(source)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        path, server = owner.stdout.readline().split()
        assert mounted(path)
        watched = os.pidfd_open(int(server))
        owner.send_signal(signal.SIGKILL)
    try:
        assert select.select([watched], [], [], END_S)[0], "the server outlived its owner"
    finally:
        os.close(watched)
    assert not mounted(path)
    assert not os.path.exists(path)


# -- penstock on such storage ----------------------------------------------------------------------

RECORD = 4096


def records(mount: Mount) -> penstock.Dataset:
    """The large file as records."""
    return penstock.open(f"{mount.path}/large", record_bytes=RECORD, index="memory")


@needs_storage
def test_all_of_a_step_is_asked_for_at_once(storage: Shared, source: Path) -> None:
    """Cold shared storage gets many reads in flight from the first step on, and one open."""
    storage.set(read_ns=200_000_000)
    mount = storage.mount(source)
    dataset = records(mount)
    before = mount.counters()
    storage.reset()
    with penstock.Loader(dataset, 64, seed=1, rank=0, world_size=1) as loader:
        batch = next(iter(loader))
        assert loader.stats()["threads"] == limits.remote_threads
    expected = np.fromfile(source / "large", np.uint8).reshape(-1, RECORD)
    np.testing.assert_array_equal(batch["data"], expected[batch.ids])
    counted = mount.counters()
    assert counted["outstanding_max"] > 16
    assert counted["metas"] < before["metas"] + 16


@needs_storage
def test_what_is_kept_leaves_storage_alone(storage: Shared, source: Path) -> None:
    """Once a cache has all of the data, an epoch asks storage for no bytes, and once for the size
    and time of each file."""
    mount = storage.mount(source)
    cache = penstock.Cache(ram_bytes=16 * MIB)
    with penstock.Loader(records(mount), 64, cache=cache, rank=0, world_size=1) as loader:
        assert len(list(loader)) == 16
        storage.reset()
        assert len(list(loader)) == 16
        counted = mount.counters()
    assert (counted["reads"], counted["metas"]) == (0, 1)


@needs_storage
def test_shared_storage_serves_what_is_planned_only(storage: Shared, source: Path) -> None:
    """Pieces between those of another rank are read without what lies between them."""
    mount = storage.mount(source)
    dataset = records(mount)
    piece = 32  # records: 128 KiB, as much as the kernel would read ahead
    ids = [i for i in range(len(dataset)) if i // piece % 2 == 0]
    storage.reset()
    reader = BatchReader(dataset.index)
    batch = reader.read(np.array(ids, np.uint64))
    reader.close()
    assert len(batch.ids) == len(ids)
    assert mount.counters()["bytes"] == len(ids) * RECORD


@needs_storage
def test_faults_of_storage_are_errors_that_name_the_sample(storage: Shared, source: Path) -> None:
    """EIO is a StorageError, a vanished end a ChangedError; short reads are completed."""
    mount = storage.mount(source, direct=True)
    dataset = records(mount)
    expected = np.fromfile(source / "large", np.uint8).reshape(-1, RECORD)

    def read(*ids: int) -> np.ndarray:
        reader = BatchReader(dataset.index)
        try:
            return np.asarray(reader.read(np.array(ids, np.uint64))["data"])
        finally:
            reader.close()

    mount.fault("short", 1000)
    np.testing.assert_array_equal(read(3, 500), expected[[3, 500]])
    mount.fault("error", errno.EIO, (RECORD * 7, RECORD * 8))
    np.testing.assert_array_equal(read(6, 8), expected[[6, 8]])
    with pytest.raises(penstock.errors.StorageError, match=r"large at byte 28,672"):
        read(300, 7)
    mount.fault("hang", 100_000_000)
    with pytest.raises(penstock.errors.StorageError, match="timed out"):
        read(1)
    mount.fault("truncate", where=(RECORD * 900 + 10, 1 << 62))
    with pytest.raises(penstock.errors.ChangedError, match="cut short: 10 of"):
        read(900)


@needs_throttling
def test_a_throttled_disk_is_slow_for_who_joins(tmp_path: Path) -> None:
    """4 MiB at 4 MiB/s take most of a second, and no group is left behind."""
    data = tmp_path / "data"
    data.write_bytes(os.urandom(4 * MIB))
    os.sync()
    read = ["dd", f"if={data}", "of=/dev/null", "bs=1M", "iflag=direct", "status=none"]
    try:
        with emulation.throttled_disk(tmp_path, bytes_per_s=4 * MIB) as join:
            taken = seconds(lambda: subprocess.run([*join, *read], check=True))
    except FileNotFoundError as absent:
        pytest.skip(f"no disk below the temporary folder: {absent}")
    assert taken >= 0.6
    assert not list(emulation.BLKIO.glob(f"penstock-{os.getpid()}-*"))
