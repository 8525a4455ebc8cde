"""Links planted in a folder of checkpoints: whatever name of penstock's they have, nothing outside
of the folder is written or removed."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.checkpoint import Checkpoints, load
from penstock.errors import PenstockError, UsageError

_watcher: Callable[[str, str], None] | None = None
"""Told the action and the path of each action on the file system, before it happens."""

_FOR_WRITING = os.O_WRONLY | os.O_RDWR
_PLACES = {"open": 0, "os.mkdir": 0, "os.rename": 1}
"""Arguments that are the path which an action makes."""


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    place = _PLACES.get(event)
    if _watcher is None or place is None:
        return
    if event == "open":
        if not (flags := arguments[2] or 0) & _FOR_WRITING:
            return
        event = f"open {flags:o}"
    path = arguments[place]
    if isinstance(path, str | bytes | os.PathLike):
        _watcher(event, os.fsdecode(path))


sys.addaudithook(_hear)  # for ever; it does nothing while nobody watches


@contextmanager
def watched(watcher: Callable[[str, str], None]) -> Iterator[None]:
    global _watcher
    _watcher = watcher
    try:
        yield
    finally:
        _watcher = None


class Outside:
    """Files beside the folders of a job, which nobody is to touch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.file = folder / "file"
        self.file.write_text("precious")
        for name in ("index", "rank-0.shard", "index.part"):
            (folder / name).write_text(name)
        self._was = self._read()

    def _read(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.iterdir()}

    def check(self) -> None:
        assert self._read() == self._was


def run_job(tmp_path: Path, *, tier: bool, saves: int = 3) -> list[int]:
    """Save steps, of which the last two are kept. Returns those that load."""
    local = tmp_path / "tier" if tier else None
    steps = []
    with (
        contextlib.suppress(PenstockError),  # refused, by name
        Checkpoints(tmp_path / "run", keep=2, local=local) as checkpoints,
    ):
        for step in range(1, saves + 1):
            checkpoints.save(step, {"a": np.full(9000, step)})
            checkpoints.wait()
        steps = checkpoints.steps()
    for step in steps:
        assert (load(tmp_path / "run", step).state["a"] == step).all()
    return steps


def name_place(tmp_path: Path, path: str) -> str | None:
    """Name a path alike in all jobs and saves; None if it is not in a folder of the job."""
    relative = os.path.relpath(path, tmp_path)
    if not relative.startswith(("run/", "tier/")):
        return None
    return re.sub(r"step-\d+((?:\.[0-9a-f]+)+)", "step", relative)


def trace(tmp_path: Path, *, tier: bool) -> list[tuple[str, str]]:
    """List the actions that make or change a name, each once."""
    seen: dict[tuple[str, str], None] = {}

    def watch(event: str, path: str) -> None:
        if (name := name_place(tmp_path, path)) is not None:
            seen[event, name] = None

    with watched(watch):
        assert run_job(tmp_path, tier=tier) == [2, 3]
    return list(seen)


def plant(path: str, target: Path) -> None:
    """Put a link in the place of what is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        os.rename(path, f"{path}.away")
    elif os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)


@pytest.mark.parametrize("tier", [False, True])
def test_at_any_name(tmp_path: Path, tier: bool) -> None:
    """A link that is there when penstock comes to a name is refused, or replaced, and so is one
    that takes the place of a file; the next job does no harm either."""
    (tmp_path / "traced").mkdir()
    actions = trace(tmp_path / "traced", tier=tier)
    assert {name for _, name in actions} >= {
        *("run/.lock", "run/step.incomplete", "run/step.incomplete/rank-0.shard"),
        *("run/step.incomplete/index.part", "run/step.incomplete/index", "run/step"),
    }
    for number, (wanted, wanted_name) in enumerate(actions):
        place = tmp_path / str(number)
        place.mkdir()
        outside = Outside(place / "outside")
        is_file = wanted.startswith("open") or wanted_name.endswith("index")
        target = outside.file if is_file else outside.folder
        planted = []

        def watch(event: str, path: str, place: Path = place, target: Path = target) -> None:
            if not planted and (event, name_place(place, path)) == (wanted, wanted_name):  # noqa: B023
                planted.append(path)  # noqa: B023
                plant(path, target)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a tier that fails, a save that is not held
            with watched(watch):
                run_job(place, tier=tier, saves=1)
            assert planted, wanted_name
            outside.check()
            run_job(place, tier=tier, saves=1)
        outside.check()


@pytest.mark.parametrize("make", [os.symlink, os.link, lambda _, path: os.mkfifo(path)])
def test_lock(tmp_path: Path, make: Callable[[Any, Any], None]) -> None:
    """The lock of a folder or tier is a file with one name, or the job is refused."""
    outside = Outside(tmp_path / "outside")
    for name in ("run", "tier"):
        (tmp_path / name).mkdir()
        make(outside.file, tmp_path / name / ".lock")
        with pytest.raises(UsageError, match=r"\.lock is .*nothing is written to it"):
            Checkpoints(tmp_path / name)
        with pytest.raises(UsageError, match=r"\.lock is .*nothing is written to it"):
            Checkpoints(tmp_path / "else", local=tmp_path / name)
    outside.check()


def test_folders_left_by_others(tmp_path: Path) -> None:
    """A link with the name of a leftover is removed, and nothing that it leads to; so is a
    checkpoint that was moved elsewhere."""
    outside = Outside(tmp_path / "outside")
    run_job(tmp_path, tier=False)
    run = tmp_path / "run"
    (run / "step-1.0a0b0c0d1.incomplete").symlink_to(outside.folder)
    (run / "step-2.2").rename(tmp_path / "moved")
    (run / "step-2.2").symlink_to(tmp_path / "moved")
    with Checkpoints(run, keep=2) as checkpoints:
        assert [checkpoints.load(step).step for step in checkpoints.steps()] == [2, 3]
        checkpoints.save(4, {"a": 4})
        checkpoints.wait()
        assert checkpoints.steps() == [3, 4]
    assert sorted(path.name for path in run.iterdir()) == [".lock", "step-3.3", "step-4.4"]
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["index", "rank-0.shard"]
    outside.check()
