"""Power cuts: they take no part of a committed checkpoint.

strace shows, independent of our own account, in which order the system was asked to write, to sync
and to rename. A power cut may lose data that is not synced, and names whose folder is not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
import numpy as np
from penstock.checkpoint import Checkpoints, LocalTier
local = [LocalTier(folder, 1 << 30) for folder in sys.argv[2:]] or None
with Checkpoints(sys.argv[1], keep=2, local=local) as checkpoints:
    for step in range(4):
        checkpoints.save(step, {"a": np.full(10_000, step), "n": step})
        checkpoints.wait()
"""
CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)")
UNFINISHED = " <unfinished ...>"
RESUMED = re.compile(r"\s*<\.\.\. \w+ resumed>(.*)")
OPENED = re.compile(r"^(\d+)<([^>]*)>")


def asked(folder: Path, *places: Path) -> list[tuple[str, list[str]]]:
    """List the calls that changed files of the folder, in order, with the paths that they name.

    places:  the repository in it, and tiers.
    """
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    log = folder.parent / "calls"
    calls = "trace=write,pwrite64,openat,mkdir,rename,fsync,fdatasync,unlink,rmdir"
    command = ["strace", "-f", "-y", "-s", "300", "-e", calls, "-o", str(log)]
    code = [sys.executable, "-c", CODE, *map(str, places or (folder,))]
    subprocess.run([*command, *code], check=True)
    found = []
    begun: dict[str, str] = {}  # by thread, calls within which another one's were made
    for line in log.read_text(errors="replace").splitlines():
        thread, _, what = line.partition(" ")
        if what.endswith(UNFINISHED):
            begun[thread] = what.removesuffix(UNFINISHED)
            continue
        if resumed := RESUMED.match(what):
            what = begun.pop(thread) + resumed[1]
        call = CALL.search(what)
        if call is None or int(call[3]) < 0:
            continue
        name, arguments = call[1], call[2]
        if name == "openat" and "O_CREAT" not in arguments:
            continue
        opened = OPENED.match(arguments)
        paths = [opened[2]] if opened else re.findall(r'"([^"]*)"', arguments)
        if paths and paths[0].startswith(str(folder)):
            found.append((name, paths))
    return found


def test_synced_before_it_is_named(tmp_path: Path) -> None:
    """Before a rename commits, all data of the folder and its names are synced. After it, before
    anything is removed, the name itself is. Before data is removed, the removal of its index is."""
    folder = tmp_path / "checkpoints"
    data: set[str] = set()  # files with bytes that are not synced
    names: set[str] = set()  # folders with names that are not synced
    commits = removals = 0
    for name, paths in asked(folder):
        path = paths[0]
        parent = os.path.dirname(path)
        if name in ("write", "pwrite64"):
            data.add(path)
        elif name in ("fsync", "fdatasync"):
            data.discard(path)
            names.discard(path)
        elif name == "rename":
            if path.endswith(".incomplete"):
                commits += 1
                assert not [each for each in data | names if each.startswith(path)]
            else:  # the index, into its folder
                assert path not in data
            names.add(os.path.dirname(paths[1]))
        elif name == "unlink":
            if path.endswith("index"):
                assert str(folder) not in names, "the commit is durable before older ones go"
            else:
                assert parent not in names, "an index goes, durably, before its data"
                removals += 1
                continue
            names.add(parent)
        elif name in ("openat", "mkdir"):
            names.add(parent)
    assert commits == 4
    assert removals == 2
    assert not [path for path in data if not path.endswith(".lock")]


def test_held_is_synced_before_it_is_named(tmp_path: Path) -> None:
    """Before the index on a tier marks a save as held, its shard and all names on the way there are
    synced. Before any of that is removed, the commit in the repository is."""
    folder = tmp_path / "checkpoints"
    home, tier = str(folder / "home"), str(folder / "tier")
    data: set[str] = set()
    names: set[str] = set()
    holds = removals = 0
    for name, paths in asked(folder, Path(home), Path(tier)):
        path = paths[0]
        if path.endswith(".lock"):
            continue
        if name in ("write", "pwrite64"):
            data.add(path)
        elif name in ("fsync", "fdatasync"):
            data.discard(path)
            names.discard(path)
        elif name == "rename":
            assert path not in data
            names.add(os.path.dirname(paths[1]))
        elif name == "openat" and path.startswith(tier) and path.endswith("/index.part"):
            holds += 1
            assert not [each for each in data | names if each.startswith(tier)]
            names.add(os.path.dirname(path))
        elif name == "unlink" and path.startswith(tier):
            assert home not in names, "the commit is durable before the tier is cleared"
            removals += path.endswith(".shard")
        elif name in ("openat", "mkdir"):
            names.add(os.path.dirname(path))
    assert holds > 0
    assert removals <= holds <= 4
