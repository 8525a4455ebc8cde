"""Runs that are killed at any step: selections, weights, mixtures and curricula go on exactly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from tests import warm
from tests.loader.killed_ranks import make_dataset

STEPS = 30
KINDS = ("selection", "weights", "mixture", "curriculum")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; the last may have been cut."""
    text = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def read_alone(folder: Path, job: dict[str, Any]) -> list[list[list[int]]]:
    """The global batches of one process that nobody kills."""
    found: list[list[list[int]]] = []
    loader = penstock.Loader(make_dataset(folder, job), **job["options"], rank=0, world_size=1)
    while len(found) < STEPS:
        for batch in loader:
            stage, source = (batch.get(name, batch.ids * 0) for name in ("stage", "source"))
            found.append(sorted(np.stack([stage, source, batch.ids], 1).astype(int).tolist()))
            if len(found) == STEPS:
                break
    loader.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_every_pair_goes_on_after_kill(tmp_path: Path, one: str, other: str) -> None:
    """All ranks are killed at random steps, and as many others go on from the last step that all
    have finished: the global batches are those of a run that nobody kills."""
    kinds = {one, other}
    random = np.random.default_rng(KINDS.index(one) * 4 + KINDS.index(other))
    made = [name for name, kind in (("select", "selection"), ("weigh", "weights")) if kind in kinds]
    # Where the kinds are two of the same, or in the other sequence, they are made elsewhere.
    on_top = KINDS.index(one) > KINDS.index(other)
    job: dict[str, Any] = {
        "folder": str(tmp_path),
        "seed": int(random.integers(1 << 30)),
        "on_parts": [] if on_top else made,
        "mixed": "mixture" in kinds,
        "on_top": made if on_top else made[:1] if one == other else [],
        "later": made[::-1] if "curriculum" in kinds else None,
        "start": int(random.integers(3, 12)),
        "options": {"global_batch_size": 12, "seed": 5, "drop_last": bool(random.integers(2))},
        "steps": STEPS,
    }
    expected = read_alone(tmp_path, job)
    found: list[list[list[int]]] = []
    state, kills = None, 0
    while len(found) < STEPS:
        world = int(random.integers(1, 4))
        logs = [tmp_path / f"{kills}-{rank}" for rank in range(world)]
        told = [
            job
            | {"rank": rank, "world": world, "log": str(log), "state": state, "step": len(found)}
            for rank, log in enumerate(logs)
        ]
        command = [sys.executable, "-m", "tests.loader.killed_ranks"]
        ranks = [
            warm.Popen([*command, json.dumps(each)], stdout=subprocess.PIPE, lean=True)
            for each in told
        ]
        steps = int(random.integers(1, 12)) if kills < 5 else STEPS
        for _ in range(steps):  # of the first rank: the others are wherever they are
            if not os.read(ranks[0].stdout.fileno(), 1):
                break
        if kills < 5:
            for process in ranks:
                with contextlib.suppress(ProcessLookupError):  # at its end before that
                    os.kill(process.pid, signal.SIGKILL)
        for process in ranks:
            process.communicate()
            assert process.returncode in ((0, -signal.SIGKILL) if kills < 5 else (0,))
        lines = [read_lines(log) for log in logs]
        for row in range(min(map(len, lines))):
            step = [each[row] for each in lines]
            assert {each["step"] for each in step} == {len(found) + 1}
            state = step[0]["state"]
            assert all(each["state"] == state for each in step)
            found.append(sorted(drawn for each in step for drawn in each["drawn"]))
        kills += 1
    assert kills > 1
    assert found == expected
