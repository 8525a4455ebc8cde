"""Ray Train and Ray Data on this machine: a position in checkpoints, a data set in stretches."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.long  # Ray's own start takes most of it
ray = pytest.importorskip("ray", reason="no ray: make test-long installs it")

import penstock  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.trainers import scenario  # noqa: E402


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """Ray with two cores, whose workers find the tests."""
    # Ray's sockets have paths of at most 107 bytes; its log monitor may still write when it ends.
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("HOME", folder)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
        ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        yield
        ray.shutdown()


def test_read_tasks_divide_the_data(tmp_path: Path) -> None:
    """Each sample is in one block, with its fields and its number, whatever the parallelism."""
    (tmp_path / "texts").mkdir()
    for number in range(7):
        (tmp_path / "texts" / f"{number}.txt").write_bytes(b"x" * (number + 1))
    source = penstock.ray.Source(tmp_path / "texts")
    assert source.estimate_inmemory_data_size() == sum(range(1, 8))
    for parallelism in (1, 3, 100):
        tasks = source.get_read_tasks(parallelism)
        assert len(tasks) == min(parallelism, 7)
        assert sum(task.metadata.num_rows for task in tasks) == 7
        rows = [row for task in tasks for block in task() for row in block.to_pylist()]
        assert [row["__id__"] for row in rows] == list(range(7))
        assert [row["data"] for row in rows] == [b"x" * (n + 1) for n in range(7)]


def test_ray_data_reads_every_sample_once(started: None, data: Path) -> None:
    source = penstock.ray.Source(scenario.make_data(data))
    rows = ray.data.read_datasource(source, override_num_blocks=3).take_all()
    assert sorted(row["__id__"] for row in rows) == list(range(scenario.COUNT))
    assert all(np.asarray(row["data"]).tolist() == [row["__id__"]] for row in rows)


def test_a_failed_worker_goes_on_from_its_checkpoint(
    started: None, data: Path, tmp_path: Path
) -> None:
    """What follows the last report is repeated, nothing else, and nothing is left out."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    log = tmp_path / "given"

    def train() -> None:
        loader = scenario.make_loader(DataLoader, data)
        is_resumed = penstock.ray.restore(loader)
        given = 20 if is_resumed else 0
        with log.open("a") as out:
            while given < scenario.EPOCHS * scenario.STEPS:
                for batch in loader:
                    given += 1
                    print(*scenario.read_numbers(batch["x"]), file=out, flush=True)
                    if given == 20 and not is_resumed:
                        with tempfile.TemporaryDirectory() as folder:
                            penstock.ray.report({"given": given}, loader, folder)
                    if given == 25 and not is_resumed:
                        raise RuntimeError("this worker fails")

    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            storage_path=str(tmp_path / "runs"), failure_config=FailureConfig(max_failures=1)
        ),
    )
    trainer.fit()
    given = [[int(word) for word in line.split()] for line in log.read_text().splitlines()]
    expected = scenario.list_rest(scenario.list_expected(data), 0)
    assert given == expected[:25] + expected[20:]


def test_another_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"penstock.ray.report was given a list"):
        penstock.ray.report({}, [], tmp_path)
