"""So many cores for some processes together, whatever they do with them: the kernel's own limit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000
"""Short against a step, so that nobody stands still for one."""


@contextlib.contextmanager
def limit_cores(cores: float, pids: Sequence[int]) -> Iterator[bool]:
    """Hold processes to `cores` together, while within; False if this machine does not let us."""
    group = _make_group()
    if group is None:
        yield False
        return
    quota_us = round(cores * PERIOD_US)
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        _move(pids, group)
        yield True
    finally:
        _move(pids, group.parent)
        group.rmdir()


def _make_group() -> Path | None:
    """Make a group below the root, of version 1 or 2; None if that cannot be done."""
    parent = ROOT / "cpu" if (ROOT / "cpu").is_dir() else ROOT
    group = parent / f"penstock-bench-{os.getpid()}"
    try:
        if parent == ROOT:
            (parent / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
    except OSError:
        return None
    return group


def _move(pids: Sequence[int], group: Path) -> None:
    """Put processes into a group; one that has ended is in none."""
    for pid in pids:
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text(str(pid))
