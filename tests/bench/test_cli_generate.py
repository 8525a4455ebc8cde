"""`penstock bench generate`, as users start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from penstock.bench.files import found_paths
from penstock.bench.strict import read_workload


def command(*words: object, code: int = 0, **environment: str) -> str:
    """What the command says."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "bench", "generate", *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_generate(tmp_path: Path) -> None:
    """A workload by name with overrides; the second time nothing is left to do; other sizes are
    refused until they are forced."""
    overrides = [
        f"++workload.dataset.data_folder={tmp_path}/d",
        "workload.dataset.num_files_train=20",
    ]
    said = command("default", *overrides)
    assert f"{tmp_path}/d: 28 files" in said
    assert "28 of them written" in said
    data = read_workload("default", overrides).dataset
    assert len(found_paths(data, "train")) == 20
    assert len(found_paths(data, "valid")) == 8
    assert "0 of them written" in command("default", *overrides)
    refused = command("default", *overrides, "--seed", 3, code=1)
    assert refused.count("\n") == 1
    assert "seed=10, and now seed=3 is asked" in refused
    forced = command("default", *overrides, "--seed", 3, "--force", "--contents", "field")
    assert "28 of them written" in forced
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("100\n10000\n")
    some = ["--sizes", sizes, "--part", "train", "--force"]
    assert "20 files" in command("default", *overrides, *some)
    assert "--part is 'test': use train, valid or all" in command("default", "--part=test", code=1)


def test_a_rank_writes_its_share(tmp_path: Path) -> None:
    """Ranks are told by what started them."""
    overrides = [
        f"++workload.dataset.data_folder={tmp_path}/d",
        "workload.dataset.num_files_train=9",
    ]
    for rank in range(2):
        said = command("default", *overrides, RANK=str(rank), WORLD_SIZE="2")
        assert f"{9 if rank == 0 else 8} of them written" in said
