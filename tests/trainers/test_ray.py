"""Ray Train and Ray Data on this machine: a position in checkpoints, a data set in stretches."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.long  # Ray's own start takes most of it
ray = pytest.importorskip("ray", reason="no ray: make test-long installs it")

from docsite.blocks import find_blocks  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.trainers import scenario  # noqa: E402

STORE = 80 << 20  # bytes of shared memory of a raylet, about the least that Ray takes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray with two cores, whose workers find the tests; raylets may be added."""
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
        # For places that are free; where a raylet has died Ray counts it once more.
        patch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "15")
        (Path(folder) / "ray").mkdir()
        head = {"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


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


def test_ray_data_reads_every_sample_once(cluster: Any, data: Path) -> None:
    source = penstock.ray.Source(scenario.make_data(data))
    rows = ray.data.read_datasource(source, override_num_blocks=3).take_all()
    assert sorted(row["__id__"] for row in rows) == list(range(scenario.COUNT))
    assert all(np.asarray(row["data"]).tolist() == [row["__id__"]] for row in rows)


def test_the_page_reads_as_printed(cluster: Any, data: Path) -> None:
    """What docs/trainers/ray.md does with a cluster, with a folder in place of a bucket."""
    page = (ROOT / "docs" / "trainers" / "ray.md").read_text()
    (block,) = [block for block in find_blocks(page) if block.ran_by]
    assert "s3://bucket/images" in block.text
    names: dict[str, Any] = {"penstock": penstock, "ray": ray}
    exec(block.text.replace("s3://bucket/images", str(scenario.make_data(data))), names)
    assert names["rows"].count() == scenario.COUNT


def test_a_failed_worker_goes_on_from_its_checkpoint(
    cluster: Any, data: Path, tmp_path: Path
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


@pytest.mark.timeout(900)  # raylets and two groups of workers start: minutes on a busy machine
def test_workers_of_a_raylet_that_is_gone(cluster: Any, data: Path, tmp_path: Path) -> None:
    """Four raylets of different addresses train two to four workers; one is removed after six
    steps. Three go on after the last report: each epoch is complete, and two steps are repeated."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    size, reported, reached = 12, 4, 6  # 12 is divided by 2, 3 and 4 workers
    addresses = [f"127.0.0.{number}" for number in range(2, 6)]
    raylets = [
        cluster.add_node(
            num_cpus=1,
            resources={"training": 1},
            object_store_memory=STORE,
            node_ip_address=address,
            wait=False,
        )
        for address in addresses
    ]
    cluster.wait_for_nodes(timeout=120)
    given = tmp_path / "given"
    given.mkdir()
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(400)
    driver = server.getsockname()

    def train() -> None:
        loader = scenario.make_loader(DataLoader, data, global_batch_size=size)
        is_resumed = penstock.ray.restore(loader)
        context = ray.train.get_context()
        place = [context.get_world_size(), ray.util.get_node_ip_address()]
        assert loader.place.source == "torch.distributed"
        if not is_resumed and context.get_world_size() < len(addresses):
            threading.Event().wait()  # until Ray has seen all raylets and begins again with four
        with (given / f"{is_resumed}-{context.get_world_rank()}").open("x") as out:
            while loader.epoch < scenario.EPOCHS:
                for number, batch in enumerate(loader, 1):
                    samples = scenario.read_numbers(batch["x"])
                    print(
                        json.dumps([*place, batch.epoch, batch.step, samples]), file=out, flush=True
                    )
                    if (batch.step + 1) % reported == 0:
                        with tempfile.TemporaryDirectory() as folder:
                            penstock.ray.report({}, loader, folder)
                    if number == reached and not is_resumed:
                        ray.train.get_all_reported_checkpoints()  # they are kept now
                        with socket.create_connection(driver) as connection:
                            connection.recv(1)  # until the driver is done, or Ray ends this

    def remove() -> list[socket.socket]:
        waiting = [server.accept()[0] for _ in raylets]
        cluster.remove_node(raylets[2], allow_graceful=False)
        return waiting

    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(
            num_workers=(2, 4),
            resources_per_worker={"training": 1},
            elastic_resize_monitor_interval_s=5.0,
        ),
        run_config=RunConfig(
            storage_path=str(tmp_path / "runs"),
            # The first attempt after it may still count on the raylet, and has a limit of its own.
            failure_config=FailureConfig(max_failures=1, controller_failure_limit=3),
        ),
    )
    with server, ThreadPoolExecutor(1) as pool:
        removed = pool.submit(remove)
        trainer.fit()
        for connection in removed.result():
            connection.close()
    assert {path.name for path in given.iterdir()} == {
        *(f"False-{rank}" for rank in range(4)),
        *(f"True-{rank}" for rank in range(3)),
    }
    # Samples of all ranks by epoch and step, of the workers before and after.
    before, after = defaultdict(list), defaultdict(list)
    seen_addresses = {4: set(), 3: set()}
    for path in sorted(given.iterdir()):
        for line in path.read_text().splitlines():
            world, address, epoch, step, samples = json.loads(line)
            seen_addresses[world].add(address)
            (before if world == 4 else after)[epoch, step] += samples
    assert seen_addresses[4] == set(addresses)
    assert seen_addresses[3] == set(addresses) - {addresses[2]}
    alone = {"global_batch_size": size, "place": penstock.Place(0, 1)}
    whole = {
        (epoch, step): batch
        for epoch, batches in enumerate(scenario.list_expected(data, **alone))
        for step, batch in enumerate(batches)
    }
    order = list(whole)
    assert list(before) == order[:reached]
    assert list(after) == order[reported:]
    for share, world in ((before, 4), (after, 3)):
        for at, samples in share.items():
            assert set(samples) >= set(whole[at])
            assert len(samples) == len(whole[at]) + -len(whole[at]) % world  # shares are equal


def test_another_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"penstock.ray.report was given a list"):
        penstock.ray.report({}, [], tmp_path)
