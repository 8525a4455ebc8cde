"""The cache when the world changes: process groups that are made anew, ranks that are killed and
started again. The global batches are those of a run that nothing happened to."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from tests import warm
from tests.cache.ranks import Rank, begin, ended

pytest.importorskip("zmq")

SAMPLES, WIDTH, BATCH = 1200, 100, 24
STEPS = SAMPLES // BATCH
LOADER = {"global_batch_size": BATCH, "seed": 3, "assignment": "strided"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(8).integers(0, 256, (SAMPLES, WIDTH), np.uint8))
    return path


def expected(path: Path, epochs: int) -> list[list[int]]:
    """The global batches, by one rank without a cache."""
    with penstock.Loader(penstock.open(path), rank=0, world_size=1, **LOADER) as loader:
        return [batch.ids.tolist() for _ in range(epochs) for batch in loader]


def together(shares: list[list[list[int]]]) -> list[list[int]]:
    """Global batches, of what each rank has of them by turns."""
    found = []
    for rows in zip(*shares, strict=True):
        batch = [*itertools.chain(*rows)]
        for rank, row in enumerate(rows):
            batch[rank :: len(rows)] = row
        found.append(batch)
    return found


@pytest.mark.parametrize(
    ("assignment", "groups"),
    [
        pytest.param(
            "local", [([0, 1], None), ([0, 1], 20), ([0, 1], None)], marks=pytest.mark.long
        ),
        ("strided", [([0, 1], None), ([0, 1, 2], 17), ([2, 1], 9), ([1], None)]),
        pytest.param("local", [([0, 1], 17), ([0, 2], 9), ([0, 2], None)], marks=pytest.mark.long),
        pytest.param(
            "local",
            [([0], 13), ([1, 0, 2, 3], 1), ([3, 0], None), ([1, 2, 0], None)],
            marks=pytest.mark.long,
        ),
    ],
    ids=["the same", "one comes, one goes", "one is replaced", "others"],
)
@pytest.mark.long
def test_a_loader_goes_on_in_another_group(
    assignment: str, groups: list[tuple[list[int], int | None]], path: Path, tmp_path: Path
) -> None:
    """torch.distributed is ended and begun with other processes, or in another order of ranks; the
    loaders stay, take the state, and share a cache anew. None: until the epoch ends."""
    pytest.importorskip("torch")
    processes = []
    for number in range(1 + max(max(members) for members, _ in groups)):
        told = {
            "number": number,
            "path": str(path),
            "output": str(tmp_path),
            "ram_bytes": SAMPLES * WIDTH,
            "loader": LOADER | {"assignment": assignment},
            "groups": groups,
        }
        words = [sys.executable, str(Path(__file__).with_name("regroup.py")), json.dumps(told)]
        processes.append(warm.Popen(words, stderr=subprocess.PIPE, text=True))
    try:
        for each in processes:
            _, said = each.communicate(timeout=240)
            assert each.returncode == 0, said
    finally:
        for each in processes:
            each.kill()
            each.wait(240)
    found: list[list[int]] = []
    for number, (members, _) in enumerate(groups):
        shares = [
            json.loads((tmp_path / f"{number}-{rank}.json").read_text())
            for rank in range(len(members))
        ]
        found += together(shares)
    right = expected(path, epochs=3)[: len(found)]
    if assignment == "local":
        found, right = [sorted(each) for each in found], [sorted(each) for each in right]
    assert found == right
    assert len(found) % STEPS == 0


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_a_job_goes_on_from_its_state_after_a_kill(seed: int, path: Path) -> None:
    """At random steps, a random rank, by kill -9; the others are ended as launchers do, and all are
    started again from the last state that was saved, as many as there happen to be."""
    draw = np.random.default_rng(seed)
    state: dict[str, Any] | None = None
    found: list[list[int]] = []
    for world in (4, 3, 2):
        hosts = draw.integers(0, 2, world)
        ranks = [
            Rank(
                path,
                rank,
                world,
                cache={
                    "ram_bytes": SAMPLES * WIDTH // 2,
                    "cache_block_bytes": 3 * WIDTH,
                    "host": str(host),
                    "listen": "127.0.0.1",
                },
                loader=LOADER,
            )
            for rank, host in enumerate(hosts)
        ]
        with ended(ranks):
            for each in ranks:
                if state is not None:
                    each.tell("load", state)
            begin(ranks)
            saved, lost = (int(number) for number in draw.integers(1, 12, 2))
            shares = [[taken.ids for taken in each.take(saved)] for each in ranks]
            found += together(shares)
            states = [each.state() for each in ranks]
            assert all(each == states[0] for each in states)
            state = states[0]
            for each in ranks:  # what nobody will remember
                each.tell("take", lost)
            ranks[draw.integers(world)].send(signal.SIGKILL)
    assert found == expected(path, epochs=1)[: len(found)]
    assert len(found) >= 3
