"""Jobs that save checkpoints and are killed at a given boundary; the test looks at what is left.

A process is forked for each job, from one that has imported everything and has no threads.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from penstock.checkpoint import Checkpoints, boundaries

SAVES = 4
KEEP = 2


def state_of(step: int) -> dict[str, Any]:
    """Some pages, with shared memory and an end that fills no page; another one for each step."""
    weights = np.random.default_rng(step).random(5000)
    return {
        "weights": weights,
        "half": weights[2500:],
        "odd": np.full(33, step, np.uint8),
        "n": step,
    }


def equal(state: Any, step: int) -> bool:
    wanted = state_of(step)
    return state.keys() == wanted.keys() and all(
        np.array_equal(state[name], wanted[name]) for name in wanted
    )


def killed(folder: Path, at: int, first: int = 1) -> tuple[int, int | None]:
    """Save steps from `first` on in a process that dies at a boundary. Returns how many saves were
    known to be committed, and how many boundaries there were if it did not die."""
    done, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _save(folder, at, first, told)
        finally:
            os._exit(1)
    os.close(told)
    with os.fdopen(done) as heard:
        lines = heard.read().splitlines()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return len(lines), None
    assert status == 0, "the job failed by itself"
    return len(lines) - 1, int(lines[-1])


def _save(folder: Path, at: int, first: int, told: int) -> None:
    passed = 0

    def watcher(_: str) -> None:
        nonlocal passed
        if passed == at:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    boundaries.watcher = watcher
    with Checkpoints(folder, keep=KEEP) as checkpoints:
        for step in range(first, first + SAVES):
            checkpoints.save(step, state_of(step), loader={"at": step})
            checkpoints.wait()
            os.write(told, b"committed\n")
    os.write(told, b"%d\n" % passed)
    os._exit(0)


def every_boundary(folder: Path) -> dict[str, Any]:
    """Kill at each boundary of a job that finds a checkpoint of step 0 and leftovers."""
    from penstock.checkpoint import load

    wrong, at = [], 0
    while True:
        place = folder / str(at)
        with Checkpoints(place) as checkpoints:
            checkpoints.save(0, state_of(0), loader={"at": 0})
        killed(place, 5)  # leaves something
        committed, boundaries_passed = killed(place, at)
        found = load(place)
        if found.step not in (committed, committed + 1) or not equal(found.state, found.step):
            wrong.append([at, committed, found.step])
        if found.loader != {"at": found.step}:
            wrong.append([at, "loader", found.loader])
        with Checkpoints(place) as checkpoints:
            checkpoints.save(99, state_of(99))
            checkpoints.wait()
            if checkpoints.folder.leftovers() or checkpoints.load().step != 99:
                wrong.append([at, "afterwards", sorted(os.listdir(place))])
        if boundaries_passed is not None:
            return {"boundaries": at, "wrong": wrong}
        at += 1


def run(folder: Path) -> dict[str, Any]:
    """`every_boundary` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(every_boundary(Path(sys.argv[1]))))
