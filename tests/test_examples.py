"""The examples run, and print what stands beside them, or what is true whichever rank is first."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from benchmarks.mpi import launch

from tests import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("[0-9]*.py"))


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example(script: Path) -> None:
    """Each script prints exactly its .out file. UPDATE_EXAMPLES=1 writes those anew."""
    done = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    golden = script.with_suffix(".out")
    if os.environ.get("UPDATE_EXAMPLES"):
        golden.write_text(done.stdout)
    assert done.stdout == golden.read_text()
    assert done.stderr == ""


def test_every_example_has_its_output() -> None:
    """No script without a golden output, and none without its script.

    Those of trainers run in trainers/test_examples.py.
    """
    scripts = [*SCRIPTS, *EXAMPLES.glob("trainer_*.py")]
    assert sorted(script.stem for script in scripts) == sorted(
        output.stem for output in EXAMPLES.glob("*.out")
    )


# -- several ranks -------------------------------------------------------------------------------


def run_ranks(
    command: list[str | Path], timeout_s: float = 110, code: int = 0, **environ: str
) -> str:
    """Run ranks by a launcher and return what they print; `code` is the exit code they end with."""
    for _ in range(3):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        )
        # Threads of torch's gloo outlive destroy_process_group. One exit in a hundred of a process
        # that imports torch alone ends so on a busy machine.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def storage_bytes(output: str) -> list[int]:
    return [int(found) for found in re.findall(r"(\d+) bytes from storage", output)]


@pytest.mark.long  # torchrun itself starts ranks in processes/test_ddp.py
def test_torchrun(tmp_path: Path) -> None:
    """Two ranks, as on two hosts, read every byte once."""
    pytest.importorskip("torch")
    pytest.importorskip("zmq")
    launch = "-m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node=2"
    script = [EXAMPLES / "cluster_torchrun.py", tmp_path / "x.npy", "--hosts=2"]
    output = run_ranks([sys.executable, *launch.split(), *script], GLOO_SOCKET_IFNAME="lo")
    assert storage_bytes(output) == [np.load(tmp_path / "x.npy").nbytes, 0]
    shares = [int(found) for found in re.findall(r"(\d+)% of the samples", output)]
    assert all(90 <= share < 100 for share in shares)
    assert len(shares) == 2


@pytest.mark.long
@pytest.mark.timeout(300)  # torchrun starts three times
@pytest.mark.parametrize(
    ("example", "killed_at", "resumed_at"),
    [("checkpoint_torchrun.py", 27, (20, 25)), ("packed_torchrun.py", 17, (10, 15))],
)
def test_killed_and_resumed(
    tmp_path: Path, example: str, killed_at: int, resumed_at: tuple[int, int]
) -> None:
    """Two ranks are killed and three go on: model, optimizer and order of samples, or of packed
    rows, are, bit by bit, those of one rank that nobody killed."""
    pytest.importorskip("torch")
    if example == "packed_torchrun.py":
        pytest.importorskip("tokenizers")
    launch = "-m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node"

    def run(ranks: int, folder: str, *more: str, code: int = 0) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        script = [EXAMPLES / example, tmp_path / folder, *more]
        return run_ranks(
            [sys.executable, *launch.split(), str(ranks), *script],
            code=code,
            GLOO_SOCKET_IFNAME="lo",
        )

    alone = run(1, "alone")
    assert "1 ranks begin after step 0" in alone
    last = alone.splitlines()[-1]
    assert "after step" in last
    assert last.partition(":")[0] not in run(2, "killed", "--killed-at", str(killed_at), code=1)
    resumed = run(3, "killed")
    begun = int(re.findall(r"3 ranks begin after step (\d+)", resumed)[0])
    assert begun in resumed_at
    assert resumed.splitlines()[-1] == last


@pytest.mark.long
@pytest.mark.parametrize("hosts", [[], ["2"]])
def test_mpiexec(tmp_path: Path, hosts: list[str]) -> None:
    """Four ranks of MPI, on one host and as on two, read every byte once."""
    pytest.importorskip("mpi4py", reason="no mpi4py: pip install mpi4py mpich")
    command = launch()
    if not command:
        pytest.skip("no mpiexec: pip install mpich")
    script = EXAMPLES / "cluster_mpi.py"
    output = run_ranks([*command, "-n", "4", sys.executable, script, tmp_path / "x.npy", *hosts])
    data = np.load(tmp_path / "x.npy")
    assert storage_bytes(output) == [data.nbytes, 0]
    assert re.findall(r"sum (\d+)", output) == [str(data.sum(dtype=np.int64))] * 2


@pytest.mark.engines
@pytest.mark.timeout(700)  # Ray starts some ten processes: 40 s, and minutes on a busy machine
def test_ray(tmp_path: Path) -> None:
    """Two workers of Ray Train share a host, and read every byte once."""
    pytest.importorskip("ray", reason="no ray: make test-engines installs it")
    pytest.importorskip("torch")
    # Short, because names of sockets are; Ray would leave it and what it puts into HOME.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as left:
        output = run_ranks(
            [sys.executable, EXAMPLES / "cluster_ray.py", tmp_path / "x.npy"],
            timeout_s=600,
            HOME=left,
            RAY_TMPDIR=left,
            RAY_AUTH_MODE="disabled",
            RAY_USAGE_STATS_ENABLED="0",
            RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.2",
        )
    read = json.loads(output.rpartition("by epoch:")[2].splitlines()[0])
    assert read == [np.load(tmp_path / "x.npy").nbytes, 0]
