"""Ray Data's rows in shards: tasks that fail, are killed, or do not agree."""

from __future__ import annotations

import io
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.engines  # real workers, which are killed
ray = pytest.importorskip("ray", reason="no ray: make test-engines installs it")

from ray.data._internal.execution.interfaces import TaskContext  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import PenstockError, UsageError  # noqa: E402
from tests.trainers.test_ray import add_raylet  # noqa: E402

ROWS = 400


@pytest.fixture(autouse=True)
def ordered(cluster: Any) -> Iterator[None]:
    """Tasks in the order of the rows; what Ray Data says it says to nobody."""
    context = ray.data.DataContext.get_current()
    before = context.execution_options.preserve_order
    context.execution_options.preserve_order = True
    context.target_max_block_size = 4_000  # so that tasks write while they read
    context.enable_progress_bars = False
    context.retried_map_errors, context.max_map_retries = ["this task fails"], 2
    yield
    context.execution_options.preserve_order = before


def make_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of bytes, a text, an array and a label, of its number."""
    number = int(row["id"])
    return {
        "bin": b"%d" % number * (number % 30 * 10),
        "txt": f"nöte {number}",
        "box": np.full((2, 2), number, np.float32),
        "label": number % 7,
    }


def list_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def check_rows(path: Path, count: int = ROWS) -> None:
    """Check that a folder has the rows of `make_row`, in order, and nothing else."""
    data = penstock.open(path, index="memory")
    assert len(data) == count
    for number in range(count):
        sample, row = data[number], make_row({"id": number})
        assert bytes(sample["bin"]) == row["bin"]
        assert bytes(sample["txt"]).decode() == row["txt"]
        assert (np.load(io.BytesIO(sample["box.npy"])) == row["box"]).all()
        assert sample["label"] == row["label"]
    assert {entry.suffix for entry in path.iterdir()} == {".tar", ".json"}
    assert not list(path.parent.glob(".*"))


@pytest.mark.parametrize("to", ["tar", "tfrecord", "records"])
def test_rows_are_written_and_opened(cluster: Any, to: Any, tmp_path: Path) -> None:
    """By two writes to two folders, too: the bytes are the same."""
    rows = ray.data.range(ROWS, override_num_blocks=3).map(make_row)
    if to == "records":
        rows = rows.select_columns("box")
    files = []
    for name in ("a", "b"):
        sink = penstock.ray.Datasink(tmp_path / name, to=to, shard_bytes=50_000, name="rows")
        rows.write_datasink(sink)
        assert sink.result.samples == ROWS
        files.append([Path(file).read_bytes() for file in sink.result.files])
        opened = eval(sink.result.call, {"penstock": penstock})
        field = {"tar": "box.npy", "tfrecord": "box", "records": "data"}[to]
        found = [np.asarray(opened[number][field]).tobytes() for number in range(ROWS)]
        wanted = [make_row({"id": number})["box"].tobytes() for number in range(ROWS)]
        assert [value[-len(row) :] for value, row in zip(found, wanted, strict=True)] == wanted
        if to == "tar":
            check_rows(tmp_path / name)
    assert files[0] == files[1]
    assert len(files[0]) > 2


def test_samples_go_out_and_in(cluster: Any, tmp_path: Path) -> None:
    """What `penstock.ray.Source` reads is written under the samples' numbers, and is the same."""
    (tmp_path / "texts").mkdir()
    for number in range(30):
        (tmp_path / "texts" / f"{number:02d}.txt").write_bytes(b"x" * number)
    source = penstock.ray.Source(tmp_path / "texts")
    sink = penstock.ray.Datasink(tmp_path / "out")
    ray.data.read_datasource(source, override_num_blocks=4).write_datasink(sink)
    data = penstock.open(tmp_path / "out")
    assert [bytes(data[n]["data.bin"]) for n in range(30)] == [b"x" * n for n in range(30)]
    assert list(data.index.keys(np.arange(30))) == [f"{n:08d}" for n in range(30)]
    assert len(sink.result.files) == 4


@pytest.mark.parametrize("how", ["raised", "killed"])
def test_a_task_that_is_repeated(cluster: Any, how: str, tmp_path: Path) -> None:
    """A task has written some shards when it fails, or its process is killed; then it is repeated:
    every row is there once, in order."""
    path, flag = tmp_path / "run" / "out", tmp_path / "flag"

    def fail_once(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["txt"][0] == "nöte 380" and not flag.exists():
            (hidden,) = path.parent.iterdir()
            task = TaskContext.get_current()
            written = [entry.name for entry in hidden.iterdir()]
            mine = [name for name in written if name.startswith(f"{task.task_idx}-")]
            flag.write_text(f"{task.op_name} {len(mine)}")
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("this task fails")
        return batch

    sink = penstock.ray.Datasink(path, shard_bytes=60_000)
    rows = ray.data.range(ROWS, override_num_blocks=2).map(make_row)
    rows.map_batches(fail_once, batch_size=20).write_datasink(sink)
    operator, parts = flag.read_text().split()
    assert operator.endswith("->Write")
    assert int(parts) > 0
    check_rows(path)


def test_a_node_that_is_lost(cluster: Any, tmp_path: Path) -> None:
    """A node has written a part, and is gone with what it has: another one does its tasks."""
    path = tmp_path / "run" / "out"
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(250)
    driver = server.getsockname()

    def wait_in_one(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["txt"][0] == "nöte 0":
            with socket.create_connection(driver) as connection:
                connection.sendall(ray.get_runtime_context().get_node_id().encode())
                connection.recv(1)  # until the other node is gone
        return batch

    raylets = [add_raylet(cluster, "sink", f"127.0.2.{number}") for number in (1, 2)]
    cluster.wait_for_nodes(timeout=120)
    place = {"num_cpus": 0, "resources": {"sink": 1}}
    rows = ray.data.range(ROWS, override_num_blocks=2).map(make_row, **place)
    rows = rows.map_batches(wait_in_one, batch_size=20, **place)
    sink = penstock.ray.Datasink(path, shard_bytes=60_000)
    with server, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(rows.write_datasink, sink, ray_remote_args=place)
        with server.accept()[0] as connection:
            waiting = connection.recv(100).decode()
            while not list(path.parent.glob(".out.*/[0-9]*")):
                assert not writing.done()
                time.sleep(0.01)
            (lost,) = [raylet for raylet in raylets if raylet.node_id != waiting]
            cluster.remove_node(lost, allow_graceful=False)
        writing.result()
    check_rows(path)
    raylets.remove(lost)
    cluster.remove_node(raylets[0])


def spoil(row: dict[str, Any]) -> dict[str, Any]:
    """Another column in the second half of the rows."""
    return make_row(row) | ({"more": 1} if row["id"] >= ROWS // 2 else {})


FAILURES = {
    "differ": (spoil, "blocks of tasks 0 and 1 differ in columns: more "),
    "types": (lambda row: {"x": {"a": 1}}, "column 'x' holds dict, and tar bytes, text and num"),
    "nulls": (lambda row: {"x": None if row["id"] == 3 else b"x"}, "column 'x' has 1 nulls in "),
    "raises": (lambda row: 1 // (row["id"] - 399) and row, "division by zero"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_write_that_fails_leaves_nothing(cluster: Any, name: str, tmp_path: Path) -> None:
    make, message = FAILURES[name]
    rows = ray.data.range(ROWS, override_num_blocks=2).map(make)
    sink = penstock.ray.Datasink(tmp_path / "out", shard_bytes=20_000)
    with pytest.raises(Exception, match=message) as failure:
        rows.write_datasink(sink)
    assert name == "raises" or isinstance(failure.value, UsageError), failure.type
    assert sink.result is None
    with pytest.raises(PenstockError):
        penstock.open(tmp_path / "out")
    assert name != "differ" or list_names(tmp_path) == []  # others may still have tasks that end


def test_what_cannot_be_written_is_refused(cluster: Any, tmp_path: Path) -> None:
    """Nothing at all, and what is refused before anything runs."""
    with pytest.raises(UsageError, match="there are no rows to write to "):
        rows = ray.data.range(9).filter(lambda row: False)
        rows.write_datasink(penstock.ray.Datasink(tmp_path / "out"))
    assert list_names(tmp_path) == []
    with pytest.raises(UsageError, match="path is 's3://bucket/x': write to a folder"):
        penstock.ray.Datasink("s3://bucket/x")
    with pytest.raises(UsageError, match="and something is there"):
        penstock.ray.Datasink(tmp_path.parent)
