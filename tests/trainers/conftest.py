"""Fixtures of the trainers' tests: they run in one process, or in each of two ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.trainers.scenario import RANKS, make_data

_shared = "PENSTOCK_TRAINERS_FOLDER"  # of all ranks


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the scenario's data."""
    folder = tmp_path_factory.mktemp("data") if RANKS == 1 else Path(os.environ[_shared])
    make_data(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder that all ranks have."""
    if RANKS == 1:
        return tmp_path
    path = Path(os.environ[_shared]) / re.sub(r"\W", "_", request.node.name)
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope=lambda fixture_name, config: "session" if RANKS > 1 else "module")
def group() -> Iterator[None]:
    """The process group of all ranks; of this process alone where there are no others."""
    import torch.distributed as dist

    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if RANKS == 1 else {}
    dist.init_process_group("gloo", timeout=timedelta(seconds=120), **alone)
    yield
    dist.destroy_process_group()


@pytest.fixture
def run_on_two_ranks(tmp_path: Path) -> Callable[..., None]:
    """A function that runs the other tests of files on two ranks, which torchrun starts."""

    def run(*files: str) -> None:
        if RANKS > 1:
            pytest.skip("these are the ranks")
        make_data(tmp_path)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
                *("--standalone", "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"),
                *files,
            ],
            cwd=ROOT,
            env={**os.environ, _shared: str(tmp_path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]

    return run


STORE = 80 << 20
"""Bytes of shared memory of a raylet, about the least that Ray takes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray with two cores, whose workers find the tests; raylets may be added."""
    import ray
    from ray.cluster_utils import Cluster

    # Ray's sockets have paths of at most 107 bytes; its log monitor may still write when it ends.
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("HOME", folder)
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
        patch.setenv("RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "0.2")
        # For places that are free; where a raylet has died Ray counts it once more.
        patch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "15")
        (Path(folder) / "ray").mkdir()
        head = {"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()
