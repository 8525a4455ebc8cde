"""The machine: /proc and /sys against other ways to know, and against trees made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.engine.host import Machine, find_mount, read_machine, readahead_bytes


def test_the_machine_is_what_the_c_library_says() -> None:
    """Memory and cores by sysconf, which reads neither file."""
    machine = read_machine()
    assert machine.cores == len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert abs(machine.memory_bytes - memory) <= 0.01 * memory
    assert 0 < machine.room_bytes <= machine.memory_bytes
    assert 0 < machine.usable_cores <= machine.cores


def test_a_mount_is_where_paths_stop_being_on_one_device(tmp_path: Path) -> None:
    """Against os.path.ismount, which looks at device numbers."""
    for path in ("/proc/self", "/dev/shm", str(tmp_path), "/"):
        above = os.path.realpath(path)
        while not os.path.ismount(above):
            above = os.path.dirname(above)
        mount = find_mount(path)
        assert mount is not None
        assert mount.folder == above, path
    assert find_mount(str(tmp_path / "none")) is None


def test_kernel_read_ahead_is_known_of_disks(tmp_path: Path) -> None:
    """The read-ahead of a block device is a number; proc has none."""
    proc = find_mount("/proc")
    assert proc is not None
    assert proc.file_system == "proc"
    assert readahead_bytes(proc) is None
    here = find_mount(str(tmp_path))
    assert here is not None
    if os.path.exists(f"/sys/dev/block/{here.device}"):
        assert (readahead_bytes(here) or 0) >= 0


# -- control groups, in trees made by hand ---------------------------------------------------------


def second(root: Path, path: str, files: dict[str, str], mounted: str = "/") -> Machine:
    """A machine with control groups of version 2: this process is in `path`."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(f"0::{path}\n")
    (root / "proc/self/mountinfo").write_text(
        f"35 30 0:29 {mounted} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
    )
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return read_machine(root)


limits_of_groups = st.lists(st.none() | st.integers(1 << 20, 1 << 40), min_size=1, max_size=4)


@given(limits_of_groups, limits_of_groups)
def test_the_least_of_nested_limits_counts(
    tmp_path_factory: pytest.TempPathFactory, memory: list[int | None], cpu: list[int | None]
) -> None:
    """Each group limits what is below it; "max" is no limit."""
    root = tmp_path_factory.mktemp("machine")
    depth = max(len(memory), len(cpu))
    files = {}
    for level in range(depth):
        inside = "/".join(["a"] * (level + 1))
        if level < len(memory):
            files[f"{inside}/memory.max"] = f"{memory[level] or 'max'}\n"
        if level < len(cpu):
            files[f"{inside}/cpu.max"] = f"{cpu[level] or 'max'} 100000\n"
    machine = second(root, "/" + "/".join(["a"] * depth), files)
    assert machine.memory_limit_bytes == min((limit for limit in memory if limit), default=None)
    quota = min((limit / 100000 for limit in cpu if limit), default=None)
    assert machine.cpu_quota == quota
    if quota is not None:
        assert machine.usable_cores == min(machine.cores, quota)


def test_cached_files_do_not_use_memory_up(tmp_path: Path) -> None:
    """Page cache counts within a limit, and makes room when it is needed."""
    files = {
        "memory.max": "1000000000",
        "memory.current": "700000000",
        "memory.stat": "anon 100000000\nfile 600000000\nactive_file 50000000\n"
        "inactive_file 550000000\n",
    }
    machine = second(tmp_path, "/", files)
    assert machine.memory_used_bytes == 100_000_000
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n")
    assert read_machine(tmp_path).room_bytes == 900_000_000
    assert read_machine(tmp_path).memory_bytes == 4_096_000_000


def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path) -> None:
    """Without a namespace of its own the path is the host's, and the mount begins below it."""
    files = {"memory.max": "5000000", "inner/memory.max": "max"}
    machine = second(tmp_path, "/docker/abc/inner", files, mounted="/docker/abc")
    assert machine.memory_limit_bytes == 5_000_000
    machine = second(tmp_path, "/somewhere/else", files, mounted="/docker/abc")
    assert machine.memory_limit_bytes == 5_000_000


def test_groups_of_version_1(tmp_path: Path) -> None:
    """Controllers have trees of their own there, and no limit is a large number, or -1."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:memory:/job\n3:cpu,cpuacct:/job\n0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "40 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 30 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    top = tmp_path / "sys/fs/cgroup"
    for name, text in {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/job/memory.limit_in_bytes": "300000000",
        "memory/job/memory.usage_in_bytes": "200000000",
        "memory/job/memory.stat": "cache 1\ntotal_cache 1\nactive_file 7\n"
        "total_active_file 80000000\ntotal_inactive_file 20000000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "150000",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    }.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    machine = read_machine(tmp_path)
    assert (machine.memory_limit_bytes, machine.memory_used_bytes) == (300_000_000, 100_000_000)
    assert machine.cpu_quota == 1.5


def test_where_nothing_is_told_nothing_is_said(tmp_path: Path) -> None:
    """No /proc: no limits, and memory as the C library knows it."""
    found = read_machine(tmp_path)
    assert found.memory_limit_bytes is None
    assert found.cpu_quota is None
    assert found.available_bytes is None
    assert found.room_bytes == found.memory_bytes > 0


@pytest.mark.parametrize(
    ("controller", "limit"),
    [("memory", "memory.limit_in_bytes"), ("", "memory.max")],
    ids=["version 1", "version 2"],
)
def test_a_real_control_group(controller: str, limit: str) -> None:
    """A process that was put into a group with a limit finds it."""
    top = Path("/sys/fs/cgroup", controller)
    group = top / f"penstock-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made in {top}: {error.strerror}")
    try:
        if not (group / limit).exists():
            pytest.skip(f"{top} has no memory controller")
        (group / limit).write_text(str(512 << 20))
        code = (
            f"open('{group}/cgroup.procs', 'w').write('0')\n"
            "from penstock.engine.host import read_machine\n"
            "print(read_machine().memory_limit_bytes)"
        )
        source = str(Path(penstock.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        assert done.stdout == f"{512 << 20}\n", done.stderr
    finally:
        group.rmdir()
