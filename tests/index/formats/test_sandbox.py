"""Calls in another process: answers, errors, crashes and silence."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.engine.store import StoreFile
from penstock.errors import FormatError, StorageError, WorkerError
from penstock.index.formats.sandbox import Sandbox
from tests.slices import first


def source_of(data: bytes) -> StoreFile:
    """A file in memory; a read of nothing is a failure of the storage."""

    def fetch(offset: int, length: int) -> bytes:
        if not length:
            raise StorageError("the storage is gone")
        return data[offset : offset + length]

    return StoreFile("there", len(data), fetch, -1)


def where(source: StoreFile, more: int) -> tuple[int, bytes, int]:
    """The process, and two reads."""
    print("libraries print")
    return os.getpid(), source.read(1, 2) + source.read(0, source.size), more


def failed_read(source: StoreFile) -> bytes:
    """A read that fails."""
    return source.read(0, 0)


def refused(source: StoreFile) -> None:
    """An error of a format."""
    raise source.flaw(7, "not this")


def aborted(source: StoreFile) -> None:
    """Abort, as the C library does at an assertion, after a read."""
    source.read(0, 1)
    os.abort()


def broken(source: StoreFile) -> None:
    """Crash, as the C library does at a wild pointer."""
    ctypes.string_at(8)


def silent(source: StoreFile) -> None:
    """An endless loop in the interpreter."""
    while True:
        pass


def left(source: StoreFile) -> None:
    """The process ends by itself."""
    sys.stderr.flush()
    os._exit(3)


def killed(source: StoreFile) -> None:
    """End as if the system killed the process for memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def children() -> set[int]:
    """The processes of this one, those that ended and were not waited for among them."""
    found = set()
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(each.name)
            if int((each / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(number)
    return found


def test_calls_share_a_process_and_read_through_the_caller():
    """Reads are answered by the caller's store; what is printed there is no answer."""
    before = children()
    with Sandbox("it") as apart:
        one, data, more = apart.call(source_of(b"abcd"), where, 5)
        two, _, _ = apart.call(source_of(b"efgh"), where, more=6)
        assert one == two != os.getpid()
        assert (data, more) == (b"bcabcd", 5)
        assert children() - before == {one}
    assert children() == before


@pytest.mark.long
def test_errors_keep_their_kind():
    """Errors of the format and of the storage arrive as they are, and the process goes on."""
    with Sandbox("it") as apart:
        first, _, _ = apart.call(source_of(b"abcd"), where, 0)
        with pytest.raises(FormatError, match=r"^there: at byte 7: not this$"):
            apart.call(source_of(b""), refused)
        with pytest.raises(StorageError, match=r"^the storage is gone$"):
            apart.call(source_of(b"abcd"), failed_read)
        assert apart.call(source_of(b"abcd"), where, 0)[0] == first


@pytest.mark.parametrize(
    ("function", "error", "message"),
    first(
        1,
        [
            (aborted, FormatError, "it crashed \\(signal 6\\) on it: it is damaged"),
            (broken, FormatError, "it crashed \\(signal 11\\) on it"),
            (silent, FormatError, "it made no progress for 1 s"),
            (left, WorkerError, "ended by itself \\(status 3\\)"),
            (killed, WorkerError, "was killed \\(signal 9\\)"),
        ],
    ),
)
def test_a_crash_is_an_error(function, error, message):
    """However the other process ends, the caller gets an error, no zombie, and can go on."""
    before = children()
    with Sandbox("it", silent_s=1 if function is silent else 600) as apart:
        with pytest.raises(error, match=f"^there: .*{message}"):
            apart.call(source_of(b"abcd"), function)
        assert children() == before
        assert apart.call(source_of(b"abcd"), where, 0)[1] == b"bcabcd"
    assert children() == before


def taken(source: StoreFile, size: int) -> int:
    """Memory that is asked for, and touched by nobody."""
    return len(np.empty(size, np.uint8))


def test_memory_is_bounded():
    """Memory that a damaged file asks for is refused in the sandbox, not taken from the job."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with Sandbox("numpy") as apart:
        assert apart.call(source_of(b""), taken, 1 << 20) == 1 << 20
        with pytest.raises(MemoryError):
            apart.call(source_of(b""), taken, machine // 2)


@pytest.mark.long
def test_interruption_ends_the_process():
    """An exception in the caller's thread during a call leaves no process behind."""
    before = children()

    def fetch(offset: int, length: int) -> bytes:
        raise KeyboardInterrupt

    with Sandbox("it") as apart, pytest.raises(KeyboardInterrupt):
        apart.call(StoreFile("there", 4, fetch, -1), aborted)
    assert children() == before


@pytest.mark.long
def test_a_process_without_its_caller_ends():
    """The other process ends with the pipe, whatever became of the caller."""
    with Sandbox("it") as apart:
        number, _, _ = apart.call(source_of(b"abcd"), where, 0)
        process = apart._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        until = time.monotonic() + 60
        assert process.wait(until - time.monotonic()) == 0
        assert number == process.pid


@pytest.mark.long
def test_hdf5_is_indexed_apart(tmp_path):
    """The index is the same with and without isolation, saved under the same options."""
    h5py = pytest.importorskip("h5py")
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.arange(4 * number + 4).reshape(-1, 2)
            file["label"] = np.arange(2 * number + 2)
    before = children()
    apart = penstock.open(tmp_path, index="memory")
    assert children() == before
    here = penstock.open(tmp_path, index="memory", isolate=False)
    assert apart.index.fingerprint == here.index.fingerprint
    assert apart.index.options == here.index.options == {}
    with pytest.raises(ValueError, match="isolate is 'no'"):
        penstock.open(tmp_path, index="memory", isolate="no")
    (tmp_path / "1.h5").write_bytes((tmp_path / "1.h5").read_bytes()[:700])
    with pytest.raises(FormatError, match="is no HDF5, or damaged"):
        penstock.open(tmp_path, index="memory")
