"""Caches of jobs in which several processes get equal batches: real processes in gloo groups."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import warm

pytest.importorskip("torch")
pytest.importorskip("zmq")

SAMPLES, WIDTH, BATCH = 480, 1000, 24
MESH = {"shape": [2, 2], "names": ["dp", "tp"], "world": 4}
LOADER = {"loader": {"global_batch_size": BATCH}}
CACHE = {"ram_bytes": SAMPLES * WIDTH + (1 << 20)}
STAGES = {
    "world": 6,  # pp 3 x dp 2; the stage in the middle reads nothing
    "place": {"ranks": [0, 1, 0, 0, 0, 1], "world": 2, "readers": [0, 1, 4, 5]},
    "idle": [2, 3],
}
JOBS: dict[str, dict[str, Any]] = {
    "dp": {"shape": [2], "names": ["dp"], "world": 2} | LOADER | CACHE,
    "dp_tp": MESH | LOADER | CACHE,
    "stages": STAGES | LOADER | CACHE,
    "idle": MESH | LOADER | CACHE | {"idle": [2], "wait_s": 1},
    "local": MESH
    | CACHE
    | {
        "loader": {"global_batch_size": BATCH, "assignment": "local"},
        "hosts": ["a", "a", "b", "b"],
    },
    "spans": MESH
    | CACHE
    | {
        "loader": {"global_batch_size": BATCH, "assignment": "local"},
        "hosts": ["a", "b", "b", "b"],
    },
    "left_out": {
        "world": 4,
        "place": {"ranks": [0, 0, 1, 1], "world": 3, "readers": [0, 1, 2, 3]},
    }
    | LOADER
    | CACHE,
    "checked": MESH | LOADER | {"check_peers": 3},
    "unequal": MESH | LOADER | {"check_peers": 3, "seeds": [3, 3, 3, 4]},
    "auto": {"shape": [1, 2], "names": ["dp", "tp"], "world": 2}
    | {"loader": {"global_batch_size": BATCH, "shuffle": "auto"}},
    "same_batch": MESH | LOADER | {"same_batch": True},
}


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The walk of every rank of each job."""
    output = tmp_path_factory.mktemp("places")
    path = output / "rows.npy"
    np.save(path, np.random.default_rng(8).integers(0, 256, (SAMPLES, WIDTH), np.uint8))
    jobs = {name: job | {"path": str(path)} for name, job in JOBS.items()}
    program = str(Path(__file__).with_name("place_ranks.py"))
    processes = []
    for number in range(6):
        told = json.dumps({"number": number, "output": str(output), "jobs": jobs})
        processes.append(
            warm.Popen([sys.executable, program, told], stderr=subprocess.PIPE, text=True)
        )
    try:
        for each in processes:
            _, said = each.communicate(timeout=100)
            assert each.returncode == 0, said
    finally:
        for each in processes:
            each.kill()
            each.wait(240)
    return {
        name: [
            json.loads((output / f"{name}-{rank}.json").read_text()) for rank in range(job["world"])
        ]
        for name, job in jobs.items()
    }


def count_bytes(ranks: list[dict[str, Any]]) -> int:
    """Bytes that all ranks of a job have read from storage."""
    return sum(rank.get("bytes", 0) for rank in ranks)


def errors(ranks: list[dict[str, Any]]) -> list[str]:
    return [rank.get("error", "") for rank in ranks]


@pytest.mark.long
def test_storage_is_read_once_by_peers(walks: dict[str, Any]) -> None:
    """Four processes of one host as dp 2 x tp 2 read the bytes that two as dp 2 do, and peers have
    the batches of that rank."""
    alone, peers = walks["dp"], walks["dp_tp"]
    assert errors(alone + peers) == [""] * 6
    assert count_bytes(peers) == count_bytes(alone) == SAMPLES * WIDTH
    assert [rank["place"] for rank in peers] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    for rank, peer in enumerate(peers):
        assert peer["steps"] == alone[rank // 2]["steps"]


def test_stages_that_read_nothing_are_left_out(walks: dict[str, Any]) -> None:
    """The first and the last stage of a pipeline share a cache; nobody waits for the middle one."""
    stages = walks["stages"]
    assert errors(stages) == [""] * 6
    assert count_bytes(stages) == SAMPLES * WIDTH
    assert stages[0]["steps"] == stages[4]["steps"]
    assert stages[1]["steps"] == stages[5]["steps"]
    seen = itertools.chain(*stages[0]["steps"], *stages[1]["steps"])
    assert sorted(seen) == list(range(SAMPLES))
    assert stages[2]["steps"] == stages[3]["steps"] == []


def test_a_rank_that_never_iterates(walks: dict[str, Any]) -> None:
    """The others wait as long as the store lets them, and are told its name."""
    said = errors(walks["idle"])
    assert said.pop(2) == ""
    for text in said:
        assert "waited for rank 2 in vain" in text
        assert "give Place(readers=...)" in text


def test_local_assignment_by_coordinates(walks: dict[str, Any]) -> None:
    """Each host keeps and processes its own coordinate's samples; peers have equal batches."""
    ranks = walks["local"]
    assert errors(ranks) == [""] * 4
    assert ranks[0]["steps"] == ranks[1]["steps"]
    assert ranks[2]["steps"] == ranks[3]["steps"]
    seen = itertools.chain(*ranks[0]["steps"], *ranks[2]["steps"])
    assert sorted(seen) == list(range(SAMPLES))


def test_local_assignment_needs_a_coordinate_on_one_host(walks: dict[str, Any]) -> None:
    for text in errors(walks["spans"]):
        assert text.startswith("UsageError: data coordinate 0 spans 2 hosts")
        assert "data coordinate 0 spans 2 hosts (a, b)" in text


def test_a_coordinate_of_nobody(walks: dict[str, Any]) -> None:
    """Samples that no process would read are an error on all."""
    for text in errors(walks["left_out"]):
        assert "no rank of 4 reads data coordinate 2 of 3" in text


def test_peers_that_differ_are_told(walks: dict[str, Any]) -> None:
    """Equal peers go on; the ranks of the other coordinate do not notice that these differ."""
    checked, unequal = walks["checked"], walks["unequal"]
    assert errors(checked) == [""] * 4
    assert errors(unequal)[:2] == ["", ""]
    for text in errors(unequal)[2:]:
        assert (
            "UsageError: ranks 2 and 3 have to get equal batches and do not: at epoch 0, step 2"
            in text
        )
        assert "sample 0 of the batch is " in text
    assert [len(rank["steps"]) for rank in unequal] == [20, 20, 2, 2]


def test_one_choice_of_shuffle_for_all_processes(walks: dict[str, Any]) -> None:
    """The peers of a single data coordinate take the choice of the first of them."""
    one, other = walks["auto"]
    assert errors([one, other]) == ["", ""]
    assert one["steps"] == other["steps"]
    assert len(one["steps"]) == SAMPLES // BATCH


def test_batches_of_other_ranks(walks: dict[str, Any]) -> None:
    """A check of user code sees that ranks of two coordinates have other samples."""
    for text in errors(walks["same_batch"]):
        assert "ranks 0 and 2 have to get equal batches and do not: at batch 0, sample 0 of" in text
