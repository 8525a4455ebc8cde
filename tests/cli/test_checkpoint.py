"""`penstock checkpoint`, run as users run it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from penstock.checkpoint import Checkpoints
from penstock.checkpoint.interval import Costs, Failures, advise_interval
from tests.command import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 10, 20, 30, and what a killed job left."""
    with Checkpoints(tmp_path) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(step, {"x": np.arange(1000), "step": step})
    (tmp_path / "step-40.abc.incomplete").mkdir()
    return tmp_path


def damage(folder: Path) -> None:
    with open(folder / "step-30.3" / "rank-0.shard", "r+b") as file:
        file.write(b"x")


def test_list(folder: Path) -> None:
    lines = run("checkpoint", "list", folder).stdout.splitlines()
    steps = [line.split()[0] for line in lines if "KiB" in line]
    assert steps == ["10", "20", "30"]
    assert "step-40.abc.incomplete: on its way, or left by a job that was killed" in lines
    found = json.loads(run("checkpoint", "list", folder, "--json").stdout)
    assert [row["step"] for row in found["checkpoints"]] == [10, 20, 30]
    assert found["leftovers"] == ["step-40.abc.incomplete"]
    (folder / "step-20.2" / "index").write_bytes(b"")
    assert "damaged" in run("checkpoint", "list", folder).stdout
    assert "is not a folder" in run("checkpoint", "list", folder / "x", code=1).stderr


def test_verify(folder: Path) -> None:
    assert run("checkpoint", "verify", folder).stdout.count("whole") == 3
    damage(folder)
    failed = run("checkpoint", "verify", folder, code=1)
    assert "step 30: " in failed.stdout
    assert "piece 'state.x'" in failed.stdout
    assert "1 of 3 checkpoints are damaged" in failed.stderr
    assert "whole" in run("checkpoint", "verify", folder, "--step", 20).stdout
    said = json.loads(run("checkpoint", "verify", folder, "--json", code=1).stdout)
    assert [row["damage"] is None for row in said["checkpoints"]] == [True, True, False]
    (folder / "none").mkdir()
    for more in ((), ("--json",)):
        missing = run("checkpoint", "verify", folder / "none", *more, code=1).stderr
        assert f"no checkpoint in {folder / 'none'}" in missing


def test_prune(folder: Path) -> None:
    """Old ones and leftovers go, unless a job writes there."""
    said = run("checkpoint", "prune", folder, "--keep", 2, "--dry-run").stdout
    assert said.splitlines() == [
        "step-10.1 would be removed",
        "step-40.abc.incomplete would be removed",
    ]
    with Checkpoints(folder):
        (folder / "step-40.abc.incomplete").mkdir()
        refused = run("checkpoint", "prune", folder, code=1).stderr
        assert "written by another job" in refused
    said = run("checkpoint", "prune", folder, "--keep", 2).stdout
    assert said.splitlines() == ["step-10.1 is removed", "step-40.abc.incomplete is removed"]
    assert sorted(path.name for path in folder.glob("step*")) == ["step-20.2", "step-30.3"]
    assert "nothing to remove" in run("checkpoint", "prune", folder).stdout


def test_interval() -> None:
    """The interval is the module's, in words and as JSON; absurd numbers are refused."""
    asked = (
        "--blocked-seconds",
        2,
        "--commit-seconds",
        40,
        "--step-seconds",
        0.5,
        "--mtbf-hours",
        20000,
    )
    asked += ("--nodes", 512, "--restart-seconds", 600, "--slowdown", 0.03)
    costs = Costs(blocked_s=2.0, commit_s=40.0, step_s=0.5, slowdown=0.03)
    advice = advise_interval(costs, Failures(mtbf_s=7.2e7, nodes=512, restart_s=600.0))
    assert advice.binds == "failures"
    found = json.loads(run("checkpoint", "interval", *asked, "--json").stdout)
    assert found == json.loads(json.dumps(asdict(advice) | {"lost": advice.lost}))
    said = run("checkpoint", "interval", *asked).stdout
    assert f"save every {advice.steps:,} steps" in said
    assert f"lost: {advice.lost:.2%} of all time" in said
    (marked,) = [line for line in said.splitlines() if "binds" in line]
    assert "least is lost to a failure every 39 h 4 min" in marked
    tight = run("checkpoint", "interval", *asked, "--overhead", 0.001).stdout
    (marked,) = [line for line in tight.splitlines() if "binds" in line]
    assert "saves take at most 0.1 % of training's time" in marked
    wrong = run("checkpoint", "interval", *asked[:-2], "--slowdown", -1, code=1).stderr
    assert "slowdown is -1.0" in wrong
