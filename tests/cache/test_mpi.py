"""Peers over MPI, by real ranks: the suite, liars, an owner that stops, and a cluster's run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.mpi import launch

HERE = Path(__file__).parent
DEADLINE_S = 300


def run(count: int, program: str, *words: object) -> str:
    """Run a program on so many ranks, which have to end well, and return their output."""
    command = launch()
    if not command:
        pytest.skip("no mpi4py or no mpiexec: pip install mpi4py mpich")
    start = [*command, "-n", str(count), sys.executable, HERE / program, *words]
    done = subprocess.run(
        [str(each) for each in start], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long  # three ranks that poll take all cores; test_cluster is short
@pytest.mark.timeout(DEADLINE_S)
def test_suite() -> None:
    """Every test of PeerSuite, each node a rank."""
    assert "passed" in run(3, "mpi_ranks.py", "--color=no", "-o", "addopts=", "--timeout=120")


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S)
def test_owner_that_stops() -> None:
    """Fetches of an owner that is stopped end in time, and nothing is written afterwards."""
    run(2, "mpi_stops.py")


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S)
def test_liar() -> None:
    """A message that is no request or no answer is refused and counted, and does no harm."""
    run(2, "mpi_liars.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("mpi") / "x.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (2000, 5000), np.uint8))
    return path


def cluster(path: Path, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(4, "mpi_cluster.py", path, *words).splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("end", ["close", "leave"])
def test_cluster(data: Path, end: str) -> None:
    """Ranks of MPI exchange samples by it, and every byte leaves storage once."""
    total = 2000 * 5000
    found = cluster(data, "auto", "multiple", end)
    assert found["by_mpi"] == [True] * 4
    assert found["read"] == [total, total]
    assert 0.8 * total < found["peer_bytes"] < 1.2 * total  # half of two epochs


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S)
def test_rank_that_stops(data: Path) -> None:
    """The others' batches are right, and wait for its host no longer than a fetch may take."""
    others = cluster(data, "auto", "multiple", "stop")["found"]
    del others[1]
    assert sum(timeouts for _, timeouts in others) > 0
    assert max(waited_s for waited_s, _ in others) < 100


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S)
def test_mpi_without_threads(data: Path) -> None:
    """MPI without threads is not used for peers; asking for it is told why, on all ranks."""
    found = cluster(data, "auto", "serialized", "close")
    assert found["by_mpi"] == [False] * 4
    errors = cluster(data, "mpi", "serialized", "close")["errors"]
    assert len(errors) == 4
    assert all("MPI_THREAD_MULTIPLE" in each for each in errors)
