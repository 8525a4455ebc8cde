"""Ray Train and Ray Data on this machine: a position in checkpoints, a data set in stretches."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.engines  # real clusters, whose nodes are lost
ray = pytest.importorskip("ray", reason="no ray: make test-engines installs it")

from docsite.blocks import find_blocks  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.trainers import scenario  # noqa: E402
from tests.trainers.conftest import STORE  # noqa: E402


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


def test_the_page_runs_as_printed(cluster: Any, data: Path, tmp_path: Path) -> None:
    """What docs/trainers/ray.md does with a cluster, with a folder in place of a bucket."""
    page = (ROOT / "docs" / "trainers" / "ray.md").read_text()
    train, read, write = [block.text for block in find_blocks(page) if block.ran_by]
    names: dict[str, Any] = {"penstock": penstock, "ray": ray}
    for code in (train, read, write):
        here = code.replace("s3://bucket/images", str(scenario.make_data(data)))
        exec(here.replace("/shared/rows", str(tmp_path / "rows")), names)
    assert names["result"].metrics == {"loss": 0.0}
    assert names["rows"].count() == scenario.COUNT
    assert len(penstock.open(tmp_path / "rows")) == scenario.COUNT


def make_shares(data: Path, world: int, **config: Any) -> list[dict[str, Any]]:
    """Make what the workers of a group get."""
    train = penstock.ray.Data(scenario.make_data(data), global_batch_size=12, device="cpu", seed=3)
    return penstock.ray.DataConfig(**config).configure({"train": train}, world, None, None)


def test_shares_are_small_and_open_by_themselves(data: Path) -> None:
    """What is pickled names the saved index: the sum of the shares is the order of one process."""
    pickled = [pickle.dumps(share["train"]) for share in make_shares(data, 3)]
    assert max(map(len, pickled)) < 2000
    shares = [pickle.loads(text) for text in pickled]
    (whole,) = make_shares(data, 1)
    steps = zip(*(share.iter_torch_batches(batch_size=4) for share in shares), strict=True)
    for batch, parts in zip(whole["train"], steps, strict=True):
        valid = [part["data"][part.valid] for part in parts]
        assert sorted(batch.ids.tolist()) == sorted(np.concatenate(valid).ravel().tolist())
    assert len(shares[0]) == len(whole["train"]) == 11


def test_data_that_are_not_split_are_each_workers(data: Path) -> None:
    shares = make_shares(data, 2, datasets_to_split=["other"])
    assert [len(next(iter(share["train"])).ids) for share in shares] == [12, 12]


def test_data_sets_of_ray_go_beside(cluster: Any, data: Path) -> None:
    ours = penstock.ray.Data(scenario.make_data(data), global_batch_size=12, device="cpu")
    datasets = {"train": ours, "val": ray.data.range(8)}
    (share,) = penstock.ray.DataConfig().configure(datasets, 1, None, None)
    assert sum(len(batch["id"]) for batch in share["val"].iter_batches()) == 8
    assert len(share["train"]) == 11


REFUSED = {
    "batch_size": (12, "batch_size is 12, and 2 workers share 12 samples a step: leave it out"),
    "dtypes": ("int32", "dtypes='int32': cast in decode= of penstock.ray.Data"),
    "collate_fn": (1, "collate_fn=1: give penstock.ray.Data decode= or collate_fn="),
    "local_shuffle_buffer_size": (9, "local_shuffle_buffer_size=9: leave it out"),
    "local_shuffle_seed": (9, "local_shuffle_seed=9: give penstock.ray.Data seed="),
    "drop_last": (True, "drop_last=True: give penstock.ray.Data drop_last="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_exact_order_cannot_have_is_refused(name: str, data: Path) -> None:
    value, message = REFUSED[name]
    share = make_shares(data, 2)[0]["train"]
    share.iter_torch_batches(drop_last=False, dtypes=None, prefetch_batches=4, device="cpu")
    with pytest.raises(UsageError, match=re.escape(message)):
        share.iter_torch_batches(**{name: value})


def test_the_config_of_ray_is_refused(data: Path) -> None:
    train = penstock.ray.Data(scenario.make_data(data), global_batch_size=12)
    with pytest.raises(AttributeError, match=r"dataset_config=penstock.ray.DataConfig\(\)"):
        ray.train.DataConfig().configure({"train": train}, 2, None, None)


def test_train_v1(cluster: Any, data: Path, tmp_path: Path) -> None:
    """Ray Train's older version takes the same program; it is chosen before Ray is imported."""
    program = f"""
import penstock, ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
def train():
    shard = ray.train.get_dataset_shard("train")
    batches = penstock.ray.save_when_preempted(shard, print)
    ids = [number for batch in batches for number in batch.ids.tolist()]
    ray.train.report({{"count": len(set(ids))}})
ray.init(address={cluster.address!r}, log_to_driver=False)
data = penstock.ray.Data({str(scenario.make_data(data))!r}, global_batch_size=5)
result = TorchTrainer(
    train,
    datasets={{"train": data}},
    dataset_config=penstock.ray.DataConfig(),
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(storage_path={str(tmp_path)!r}, verbose=0),
).fit()
print(result.metrics["count"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RAY_TRAIN_V2_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split()[-1:] == [str(scenario.COUNT)], done.stderr[-2000:]


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
    raylets = [add_raylet(cluster, "training", address) for address in addresses]
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


@pytest.mark.timeout(900)  # raylets and three groups of workers start
def test_shards_of_groups_that_lose_and_gain_raylets(cluster: Any, tmp_path: Path) -> None:
    """Two workers; one, when a raylet is gone, of which Ray has warned and they have saved; three,
    when two have come: all amid an epoch have the batches that one process has, and each goes on at
    the last report. No sample is in an object store of Ray's."""
    pytest.importorskip("grpc", reason="no grpcio: make test-long installs it")
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    size, steps = 12, 12
    rows = np.arange(size * steps, dtype=np.int64)[:, None].repeat(1 << 10, axis=1)
    np.save(tmp_path / "rows.npy", rows)
    worlds = {0: 2, 6: 1, 8: 3}  # by the step that a group begins at
    saves = {0: 6, 6: 8, 8: 12}
    given = tmp_path / "given"
    given.mkdir()
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(400)
    driver = server.getsockname()

    def train() -> None:
        shard = ray.train.get_dataset_shard("train")
        penstock.ray.restore(shard)
        first, world = shard.state_dict()["step"], ray.train.get_context().get_world_size()
        if world != worlds[first]:
            threading.Event().wait()  # until Ray has seen all raylets and begins again
        with (given / f"{first}-{ray.train.get_context().get_world_rank()}").open("x") as out:
            for _ in range(2):
                batches = shard.iter_torch_batches(batch_size=size // world)
                for batch in penstock.ray.save_when_preempted(batches, save, every=3):
                    assert (batch["data"] == batch["data"][:, :1]).all()
                    samples = batch["data"][:, 0].tolist()
                    print(json.dumps([batch.epoch, batch.step, samples]), file=out, flush=True)
                    done = batch.step + 1
                    if (first, done) == (0, 6):
                        wait_for_driver()
                        while ray.train.get_preemption_info() is None:
                            pass  # each is a message to the others
                    if first and done == saves[first]:
                        save()
                    if (first, done) == (6, 10):
                        wait_for_driver()

    def save() -> None:
        """Save, and wait where a raylet will be gone."""
        shard = ray.train.get_dataset_shard("train")
        with tempfile.TemporaryDirectory() as folder:
            penstock.ray.report({}, shard, folder)
        ray.train.get_all_reported_checkpoints()  # they are kept now
        if shard.state_dict()["step"] == 6:
            wait_for_driver()

    def wait_for_driver() -> None:
        """Wait until the driver has done what it does, or Ray ends this worker."""
        with socket.create_connection(driver) as connection:
            connection.recv(1)

    trainer = TorchTrainer(
        train,
        datasets={
            "train": penstock.ray.Data(tmp_path / "rows.npy", global_batch_size=size, seed=3)
        },
        dataset_config=penstock.ray.DataConfig(),
        scaling_config=ScalingConfig(
            num_workers=(1, 3),
            resources_per_worker={"shards": 1},
            elastic_resize_monitor_interval_s=5.0,
        ),
        run_config=RunConfig(
            storage_path=str(tmp_path / "runs"),
            failure_config=FailureConfig(max_failures=1, controller_failure_limit=3),
        ),
    )
    raylets = [add_raylet(cluster, "shards", f"127.0.1.{number}") for number in (1, 2)]
    cluster.wait_for_nodes(timeout=120)
    before = count_stored()
    # Raylets are started by the main thread, so that another one waits for the workers.
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as waiting, server:
        result = pool.submit(trainer.fit)
        ready = [server.accept()[0] for _ in range(2)]
        announce_end(raylets[1].node_id)
        for connection in ready:
            connection.close()
        for _ in range(2):
            waiting.enter_context(server.accept()[0])
        cluster.remove_node(raylets.pop(), allow_graceful=False)
        waiting.enter_context(server.accept()[0])
        raylets.extend(add_raylet(cluster, "shards", f"127.0.1.{number}") for number in (3, 4))
        result.result()
    stored = count_stored()
    new = [count - before.get(address, 0) for address, count in stored.items()]
    assert max(new) < rows[0].nbytes, new  # the function `train`, and a few words
    held = ray.put(rows[0])
    assert sum(count_stored().values()) >= sum(stored.values()) + rows[0].nbytes, held
    for raylet in raylets:
        cluster.remove_node(raylet)

    alone = DataLoader(
        penstock.open(tmp_path / "rows.npy"), global_batch_size=size, shuffle=True, seed=3
    )
    whole = [scenario.read_numbers(batch["data"][:, 0]) for _ in range(2) for batch in alone]
    for first, end in ((0, 6), (6, 10), (8, 24)):
        world = worlds[first]
        shares = [(given / f"{first}-{rank}").read_text().splitlines() for rank in range(world)]
        expected = [
            [
                json.dumps([*divmod(step, steps), whole[step][rank::world]])
                for step in range(first, end)
            ]
            for rank in range(world)
        ]
        assert shares == expected
    assert len(list(given.iterdir())) == sum(worlds.values())


def add_raylet(cluster: Any, resource: str, address: str) -> Any:
    """Start a raylet of that address, with room for one worker that asks for the resource."""
    return cluster.add_node(
        num_cpus=1,
        resources={resource: 1},
        object_store_memory=STORE,
        node_ip_address=address,
        wait=False,
    )


def announce_end(node_id: str) -> None:
    """Tell Ray that a node will be taken away, as clouds do."""
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    gcs = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    deadline_ms = (time.time_ns() + 600 * 10**9) // 10**6
    assert gcs.drain_node(node_id, reason, "a test", deadline_ms) == (True, "")


def count_stored() -> dict[str, int]:
    """Count the bytes that were ever put into the object store of each node."""
    from ray._private.internal_api import node_stats

    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes]
    return {at[0]: node_stats(*at).store_stats.cumulative_created_bytes for at in places}


def test_another_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"penstock.ray.report was given a list"):
        penstock.ray.report({}, [], tmp_path)
