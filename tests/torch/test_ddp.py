"""Distributed training: torchrun starts real processes, which share epochs through penstock."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import warm

torch = pytest.importorskip("torch")

SAMPLES, WORLD = 45, 2
PROGRAM = Path(__file__).parent / "train.py"


def run_torchrun(*arguments: Path) -> None:
    """Have torchrun start the ranks of train.py."""
    launch = "-m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node"
    done = subprocess.run(
        [sys.executable, *launch.split(), str(WORLD), PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr


def run_ranks(*arguments: Path) -> None:
    """Start the ranks of train.py as torchrun does, without the time that torchrun itself takes."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
    }
    processes = [
        warm.Popen(
            [sys.executable, PROGRAM, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(WORLD)
    ]
    errors = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * WORLD, errors


@pytest.fixture(
    scope="module",
    params=[run_ranks, pytest.param(run_torchrun, marks=pytest.mark.long)],
    ids=["ranks", "torchrun"],
)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[dict[str, Any]]]:
    """The data, and what each rank of train.py found."""
    folder = tmp_path_factory.mktemp("ddp")
    rows = np.random.default_rng(3).standard_normal((SAMPLES, 4), np.float32)
    rows.tofile(folder / "rows.bin")
    request.param(folder / "rows.bin", folder)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]
    return str(folder / "rows.bin"), found


@pytest.mark.parametrize("kind", ["records", "torch"])
def test_ranks_share_an_epoch(kind: str, trained: tuple[str, list[dict[str, Any]]]) -> None:
    """Two ranks take equal steps with equal gradients and states, and see every sample once."""
    _, ranks = trained
    first, rest = zip(*(rank[kind] for rank in ranks), strict=True)
    for phase, steps in ((first, 2), (rest, 2)):
        assert [len(rank["seen"]) for rank in phase] == [steps] * WORLD
        assert [rank["length"] for rank in phase] == [4] * WORLD
        assert phase[0]["grads"] == phase[1]["grads"]
        assert phase[0]["state"] == phase[1]["state"]
    seen = collections.Counter(i for rank in first + rest for step in rank["seen"] for i in step)
    assert set(seen) == set(range(SAMPLES))
    assert sum(seen.values()) == SAMPLES + 1  # padded to equal shares
    assert rest[0]["state"] | {"epoch": 0, "step": 2} == first[0]["state"]
    assert (rest[0]["state"]["epoch"], rest[0]["state"]["step"]) == (1, 0)


@pytest.mark.parametrize("kind", ["records", "torch"])
def test_one_rank_continues_two(kind: str, trained: tuple[str, list[dict[str, Any]]]) -> None:
    """A single rank continues from the state of two with the same global batches."""
    sys.path.insert(0, str(PROGRAM.parent))
    try:
        from tests.torch import train
    finally:
        sys.path.pop(0)
    path, ranks = trained
    state = ranks[0][kind][0]["state"]
    alone = train.made(kind, path)
    alone.load_state_dict(state)
    for step, (ids, _) in enumerate(alone):
        shares = [rank[kind][1]["seen"][step] for rank in ranks]
        together = [i for pair in zip(*shares, strict=True) for i in pair]
        assert together[: len(ids)] == ids.tolist()
