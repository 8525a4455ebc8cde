"""shuffle="auto" on two ranks: rank 0 measures, and the other one is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import warm

pytest.importorskip("torch")

PROGRAM = """
import json, sys
import torch.distributed as dist
import penstock

folder, rank, fails = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fails"
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
dataset = penstock.open(f"{folder}/records.bin", record_bytes=64, index="memory")
direct = "required" if fails else "auto"  # a read past the page cache is made, and fails
budget = penstock.Budget(mmap="off", direct=direct, threads=1 + rank)
dist.barrier()
if fails and rank == 0:  # a file that rank 0 does not find as it was
    with open(f"{folder}/records.bin", "ab") as file:
        file.write(b"more")
loader = penstock.Loader(dataset, 64, shuffle="auto", seed=1, budget=budget)
try:
    ids = [batch.ids.tolist() for batch in loader]
    print(json.dumps({"shuffle": loader.stats()["shuffle"], "state": loader.state_dict(),
                      "ids": ids}))
except penstock.PenstockError as error:
    print(json.dumps({"error": str(error)}))
dist.barrier()
dist.destroy_process_group()
"""


def found_by(folder: Path, how: str) -> list[dict[str, object]]:
    """The lines that each rank prints, read."""
    ranks = [
        warm.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(rank), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return [json.loads(out) for out, _ in said]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of 20,000 records."""
    (tmp_path / "records.bin").write_bytes(np.arange(160_000).tobytes())
    return tmp_path


@pytest.mark.long
def test_both_ranks_have_what_rank_0_chose(folder: Path) -> None:
    """Choice, figures and states are equal, and the ranks share the epoch exactly."""
    one, other = found_by(folder, "works")
    assert one["shuffle"] == other["shuffle"]
    assert one["state"] == other["state"]
    seen = [i for rank in (one, other) for step in rank["ids"] for i in step]  # type: ignore[attr-defined]
    assert sorted(seen) == list(range(20_000))


def test_a_failure_of_rank_0_reaches_the_other(folder: Path) -> None:
    """If rank 0 cannot measure, the others are told so instead of waiting."""
    one, other = found_by(folder, "fails")
    assert "records.bin" in str(one["error"])
    assert str(other["error"]).startswith("rank 0 could not choose a shuffle")
