"""`penstock bench generate`, as users start it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.bench.files import find_paths
from penstock.bench.workload_file import read_workload
from penstock.cli.app import app
from penstock.errors import UsageError
from tests import warm


def said(*words: object, **environment: str) -> str:
    """The output of the command; an exception of the command is raised."""
    arguments = ["bench", "generate", *map(str, words)]
    return CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False).output


def test_generate(tmp_path: Path) -> None:
    """A workload by name with overrides; the second time nothing is left to do; other sizes are
    refused until they are forced."""
    overrides = [f"++workload.dataset.data_folder={tmp_path}/d"]
    overrides.append("workload.dataset.num_files_train=20")
    first = said("default", *overrides)
    assert f"{tmp_path}/d: 28 files" in first
    assert "28 of them written" in first
    data = read_workload("default", overrides).dataset
    assert len(find_paths(data, "train")) == 20
    assert len(find_paths(data, "valid")) == 8
    assert "0 of them written" in said("default", *overrides)
    forced = ["--seed", 3, "--force", "--contents", "field"]
    assert "28 of them written" in said("default", *overrides, *forced)
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("100\n10000\n")
    some = ["--sizes", sizes, "--part", "train", "--force"]
    assert "20 files" in said("default", *overrides, *some)
    with pytest.raises(UsageError, match="--part is 'test': use train, valid or all"):
        said("default", "--part=test")
    with pytest.raises(UsageError, match="data is generated into a folder"):
        said("default", "++workload.storage.storage_type=s3")


def test_a_rank_writes_its_share(tmp_path: Path) -> None:
    """Ranks are told by what started them."""
    overrides = [f"++workload.dataset.data_folder={tmp_path}/d"]
    overrides.append("workload.dataset.num_files_train=9")
    for rank in range(2):
        share = said("default", *overrides, RANK=str(rank), WORLD_SIZE="2")
        assert f"{9 if rank == 0 else 8} of them written" in share


def test_an_error_is_one_line(tmp_path: Path) -> None:
    """Other data is refused: exit code 1 and one line that names what differs."""
    folder = f"++workload.dataset.data_folder={tmp_path}/d"
    said("default", folder)
    words = ["-m", "penstock", "bench", "generate", "default", folder, "--seed", "3"]
    done = warm.run([sys.executable, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "seed=10, and now seed=3 is asked" in done.stderr
