"""The kernel's counts of a run, against readings of the same that go other ways."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.engine.host import find_mount
from penstock.engine.page_cache import evict
from penstock_bench.measurement import (
    CHARGED,
    ResourceUse,
    is_charged,
    list_processes,
    measure_memory,
    measure_use,
)

MIB = 1 << 20


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A file of 8 MiB that is not in the page cache."""
    path = tmp_path / "cold.bin"
    path.write_bytes(os.urandom(8 * MIB))
    mount = find_mount(str(path))
    left = evict([str(path)])
    if left is None or left.cached_bytes or mount is None or mount.file_system not in CHARGED:
        pytest.skip(f"{tmp_path} cannot be read cold, or reads are not charged there ({mount})")
    return path


def reader(path: Path) -> subprocess.Popen[str]:
    """A process that reads a file, spends 0.1 s of processor time, and waits to be ended."""
    code = (
        "import sys, time\n"
        "with open(sys.argv[1], 'rb') as file: file.read()\n"
        "while time.process_time() < 0.1: pass\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "done\n"
    return started


@pytest.fixture
def child(cold: Path) -> Iterator[subprocess.Popen[str]]:
    started = reader(cold)
    yield started
    started.kill()
    started.communicate()


def test_a_cold_file_comes_from_the_device_once(cold: Path) -> None:
    """All of its bytes the first time, none the second, when it is cached."""
    before = measure_use()
    data = cold.read_bytes()
    first = measure_use()
    cold.read_bytes()
    second = measure_use()
    spent = first.since(before)
    assert spent.device_bytes is not None
    assert spent.read_bytes is not None
    assert len(data) <= spent.device_bytes <= len(data) + 2 * MIB  # read-ahead, and little more
    assert len(data) <= spent.read_bytes <= len(data) + MIB
    again = second.since(first)
    assert again.device_bytes is not None
    assert again.device_bytes < MIB
    assert again.read_bytes is not None
    assert again.read_bytes >= len(data)


def test_rings_and_maps_are_seen_at_the_device_only(cold: Path) -> None:
    """`read_bytes` is of read(2): what io_uring and maps bring shows as device bytes alone."""
    dataset = penstock.open(cold, record_bytes=64 * 1024, index="memory")
    for path in ("io_uring", "mmap"):
        evict([str(cold)])
        try:
            loader = penstock.Loader(dataset, 16, budget=penstock.Budget(**{path: "required"}))
            before = measure_use()
            total = sum(batch["data"].nbytes for batch in loader)
        except penstock.errors.UsageError:
            if path == "mmap":
                raise
            continue  # no rings here
        spent = measure_use().since(before)
        loader.close()
        assert total == 8 * MIB
        assert spent.device_bytes is not None
        assert spent.device_bytes >= total
        assert spent.read_bytes is not None
        assert spent.read_bytes < total / 2


def test_counters_are_those_of_proc(tmp_path: Path) -> None:
    """Between two readings of /proc/self/io by hand, for one process."""
    if list_processes():
        pytest.skip("the test's process has children, whose counters are added")

    def by_hand() -> dict[str, int]:
        io = re.findall(r"(\w+): (\d+)", Path("/proc/self/io").read_text())
        return {name: int(value) for name, value in io}

    io_before = by_hand()
    seen = measure_use(is_charged(str(tmp_path)))
    io_after = by_hand()
    assert seen.read_bytes is not None
    assert io_before["rchar"] <= seen.read_bytes <= io_after["rchar"]
    if seen.device_bytes is not None:
        assert io_before["read_bytes"] <= seen.device_bytes <= io_after["read_bytes"]


def test_children_count_while_they_live_and_once_when_they_have_ended(cold: Path) -> None:
    """Bytes and processor time of a child are there before it ends, and not twice after that."""
    before = measure_use()
    started = reader(cold)
    alive = measure_use().since(before)
    assert list_processes() is not None
    assert started.pid in (list_processes() or [])
    started.communicate()  # ends it, and waits for it
    ended = measure_use().since(before)
    for spent in (alive, ended):
        assert spent.device_bytes is not None
        assert 8 * MIB <= spent.device_bytes < 16 * MIB
        assert spent.cpu_s is not None
        assert spent.cpu_s >= 0.08  # a tick each for user and system
    assert ended.cpu_s is not None
    assert alive.cpu_s is not None
    assert ended.cpu_s < 2 * alive.cpu_s + 0.1


def test_processor_time_is_what_the_clock_says() -> None:
    """Against the clock of the process, which rusage does not read."""
    before, began = measure_use(), time.process_time()
    while time.process_time() < began + 0.05:
        pass
    after, ended = measure_use(), time.process_time()
    spent = after.since(before).cpu_s
    assert spent is not None
    assert 0.05 <= spent <= ended - began + 0.02


def test_a_child_may_be_called_anything(tmp_path: Path) -> None:
    """Names with parentheses and spaces do not shift the fields after them."""
    name = tmp_path / "a) R 1 (b 7"
    shutil.copy("/bin/cat", name)
    child = subprocess.Popen([str(name)], stdin=subprocess.PIPE)
    try:
        spent = measure_use().cpu_s
        assert spent is not None
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + ended.ru_utime + ended.ru_stime
        assert abs(spent - own) < 0.1, "it has spent nothing itself"
    finally:
        child.communicate()


def test_shared_pages_count_once(child: subprocess.Popen[str]) -> None:
    """The sum of what /proc/PID/smaps says page by page, of this process and its child."""
    seen = measure_memory()
    total = 0
    for pid in (os.getpid(), *(list_processes() or [])):
        text = Path(f"/proc/{pid}/smaps").read_text()
        total += sum(int(kib) * 1024 for kib in re.findall(r"^Pss: +(\d+) kB", text, re.MULTILINE))
    assert seen.pss is not None
    assert abs(seen.pss - total) < 0.1 * total


def test_the_peak_of_memory_is_remembered() -> None:
    """64 MiB that were touched are in the peak, also when they have been given back."""
    block = bytearray(os.urandom(1)) * (64 * MIB)
    high = measure_memory().peak_rss
    assert high is not None
    assert high >= len(block)
    del block
    assert measure_memory().peak_rss == pytest.approx(high, rel=0.1)


def test_what_the_kernel_does_not_charge_is_none() -> None:
    """The bytes of the device are not known for other file systems."""
    assert not is_charged("/proc")
    assert not is_charged("/proc/nothing")
    seen = measure_use(charged=False)
    assert seen.device_bytes is None
    assert seen.read_bytes is not None


def test_a_counter_that_went_back_is_none() -> None:
    """A process that was left behind takes its counts along: what is left says nothing."""
    before = ResourceUse(2.0, 100, 50)
    assert ResourceUse(1.0, 90, 60).since(before) == (None, None, 10)
    assert ResourceUse(3.0, None, 60).since(before) == (1.0, None, 10)
