"""Arrays of Slurm and Kubernetes: the share of each element, and the script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.tasks import WorkPlan
from penstock.tasks.slurm import find_share, parse_tasks
from tests.command import run
from tests.tasks.works import SBATCH, index_bytes

pytestmark = pytest.mark.usefixtures("small_tasks")


def test_shares_of_arrays() -> None:
    """The elements of an array have all tasks between them, each once."""
    for count, elements, least in [(10, 3, 0), (3, 5, 7), (0, 2, 1)]:
        shares = []
        for element in range(least, least + elements):
            numbers = {"ID": element, "MIN": least, "COUNT": elements}
            environ = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in numbers.items()}
            found = find_share(count, environ)
            assert found is not None
            shares += found[1]
        assert sorted(shares) == list(range(count))
    assert find_share(5, {"JOB_COMPLETION_INDEX": "3"}) == ("JOB_COMPLETION_INDEX", [3])
    kubernetes = {"JOB_COMPLETION_INDEX": "1", "PENSTOCK_COMPLETIONS": "2"}
    assert find_share(5, kubernetes) == ("JOB_COMPLETION_INDEX", [1, 3])
    assert find_share(5, {}) is None


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_ARRAY_TASK_ID": "x"},
        {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "0"},
        {"JOB_COMPLETION_INDEX": "1", "PENSTOCK_COMPLETIONS": "0"},
        {  # --array=3,7, of what failed
            "SLURM_ARRAY_TASK_ID": "7",
            "SLURM_ARRAY_TASK_MIN": "3",
            "SLURM_ARRAY_TASK_MAX": "7",
            "SLURM_ARRAY_TASK_COUNT": "2",
        },
    ],
)
def test_arrays_without_shares(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--tasks"):
        find_share(10, environ)


@pytest.mark.parametrize("text", ["", "x", "3:3", "7:5", "10", "0:11", "-1", "1,,2"])
def test_tasks_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--tasks"):
        parse_tasks(text, 10)


def test_slurm(shards: Path, tmp_path: Path) -> None:
    """The script does what is missing, several tasks an element if the cluster's arrays are small;
    a second one does what is left."""
    expected = index_bytes(shards)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("scontrol", "#!/bin/sh\necho 'MaxArraySize = 3'\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    penstock_command = Path(sys.executable).parent / "penstock"
    run("plan-work", "index", shards, tmp_path / "work")
    run("work", tmp_path / "work", "--tasks", "1")
    script = run(
        *("work", tmp_path / "work", "--on", "slurm", "--dry-run", "--sbatch=--time=5"), PATH=path
    ).stdout
    assert "#SBATCH --array=0-1\n" in script
    assert "#SBATCH --time=5\n" in script
    assert "SHARES=(0,2:4 4:6)\n" in script
    done = subprocess.run(
        [penstock_command, "work", tmp_path / "work", "--on", "slurm"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Submitted batch job 1" in done.stdout
    assert WorkPlan.load(tmp_path / "work").list_missing() == []
    run("commit", tmp_path / "work")
    assert Path(f"{shards}.penstock").read_bytes() == expected
    assert "all is done" in run("work", tmp_path / "work", "--on", "slurm", PATH=path).stdout
