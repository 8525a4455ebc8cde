"""JAX: two processes of four devices each, whose places and arrays follow their shardings."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

jax = pytest.importorskip("jax")

SAMPLES, WIDTH, BATCH = 90, 8, 16
PROGRAM = Path(__file__).with_name("jax_processes.py")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(5).integers(0, 100, (SAMPLES, WIDTH), np.int32))
    return path


@pytest.fixture(scope="module")
def processes(path: Path) -> list[dict[str, Any]]:
    """The findings of both processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = []
    for number in range(2):
        told = {"number": number, "address": address, "path": str(path), "output": str(path.parent)}
        started.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(told)],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "JAX_COORDINATOR_ADDRESS": address},
            )
        )
    try:
        for each in started:
            _, said = each.communicate(timeout=200)
            assert each.returncode == 0, said[-4000:]
    finally:
        for each in started:
            each.kill()
            each.wait(200)
    return [json.loads((path.parent / f"{number}.json").read_text()) for number in range(2)]


def expected(path: Path, epochs: int) -> list[list[set[int]]]:
    """The global batches of the first epochs, by one process without JAX."""
    with penstock.Loader(
        penstock.open(path, index="memory"), global_batch_size=BATCH, seed=4, rank=0, world_size=1
    ) as loader:
        return [[set(batch.ids.tolist()) for batch in loader] for _ in range(epochs)]


def test_a_loader_before_jax_knows_its_processes(processes: list[dict[str, Any]]) -> None:
    """One warning says what to call; afterwards jax.distributed is asked."""
    for number, found in enumerate(processes):
        (warned,) = found["warnings"]
        assert "JAX_COORDINATOR_ADDRESS=" in warned
        assert "jax.distributed.initialize()" in warned
        assert found["detected"].startswith(
            f"Place(rank={number}, world_size=2, source='jax.distributed'"
        )


def test_coordinates_follow_the_rows(processes: list[dict[str, Any]]) -> None:
    """Processes with equal rows by devices_indices_map have one coordinate, in the rows' order."""
    worlds = {}
    for number, found in enumerate(processes):
        for name, (rank, world_size, rows) in found["coordinates"].items():
            distinct = sorted({tuple(own) for own in rows})
            assert world_size == len(distinct)
            assert distinct[rank] == tuple(rows[number])
            worlds[name] = world_size
    assert worlds == {
        "data": 2,
        "data, model within": 2,
        "model over both": 1,
        "intervals": 2,
        "all model": 1,
        "two axes": 2,
    }


def test_global_arrays(processes: list[dict[str, Any]], path: Path) -> None:
    """Under each sharding both processes compute one sum, and have the samples of the global
    batch; where a model axis spans both, they have equal arrays."""
    data = np.load(path)
    right = expected(path, 2)
    for name in processes[0]["coordinates"]:
        one, other = (found["loaded"][name] for found in processes)
        assert one["len"] == other["len"] == len(right[0])
        for batches, others, epoch in zip(one["epochs"], other["epochs"], right, strict=True):
            assert len(batches) == len(others) == len(epoch)
            for batch, twin, samples in zip(batches, others, epoch, strict=True):
                assert batch["shape"] == [BATCH, WIDTH]
                assert batch["sum"] == twin["sum"]
                if processes[0]["coordinates"][name][1] == 1:
                    assert batch["ids"] == twin["ids"]
                assert {*batch["ids"], *twin["ids"]} == samples
                # The last batch is filled up: to equal shares, which count, then to its full size.
                assert batch["valid"] == len(samples)
                assert batch["sum"] == data[sorted(samples)].sum()


def test_a_last_step_with_fewer_samples_than_processes(processes: list[dict[str, Any]]) -> None:
    """All processes make it, and the sample counts once."""
    assert [found["valid"] for found in processes] == [[16] * 5 + [1]] * 2


def test_without_a_sharding(processes: list[dict[str, Any]]) -> None:
    """Arrays lie on the first device of their process."""
    assert [found["own device"] for found in processes] == [True, True]


def test_resume_at_each_step(processes: list[dict[str, Any]]) -> None:
    """By get_state and set_state, as Grain's handler for Orbax calls them."""
    for found in processes:
        whole = found["loaded"]["model over both"]["epochs"][1]
        *rests, done = found["loaded"]["rests"]
        assert rests == [whole] * len(whole)
        assert done == whole


def test_shardings_that_are_refused(processes: list[dict[str, Any]]) -> None:
    for found in processes:
        said = found["errors"]
        assert "rows {0: ((0, 3),), 1: ((3, 4),)}: give" in said["uneven"]
        assert "rows {0: ((0, 2), (4, 8)), " in said["no share"]
        assert "12 samples are not divided evenly by" in said["division"]
        assert "place no mesh: give a mesh, or no axes" in said["axes"]
        assert "place is a Mesh: give a Place" in said["mesh"]
    assert "Place(rank=0, world_size=1" in processes[0]["errors"]["outside"]
    assert "no device of this process is in" in processes[1]["errors"]["outside"]


def test_a_cache_among_processes_of_jax(processes: list[dict[str, Any]], path: Path) -> None:
    """Peers read storage once, and unequal ones are told at the step."""
    one, other = (found["cache"] for found in processes)
    assert one["ids"] == other["ids"]
    assert one["bytes"] + other["bytes"] == SAMPLES * WIDTH * 4
    for found in processes:
        said = found["cache"]["unequal"]
        assert "ranks 0 and 1 have to get equal batches and do not: at epoch 0, step 1" in said


def test_one_process(path: Path, tmp_path: Path) -> None:
    """Without a sharding arrays lie on one device; Grain's handler saves and restores a run."""
    handler = pytest.importorskip("grain.checkpoint").CheckpointHandler()
    epath = pytest.importorskip("etils.epath")
    data = penstock.open(path, index="memory")
    loader = penstock.jax.Loader(data, BATCH, seed=1)
    whole = [batch["__id__"].tolist() for batch in loader]
    loader.set_epoch(0)
    batches = iter(loader)
    first = [next(batches)["__id__"].tolist() for _ in range(2)]
    handler.save(epath.Path(tmp_path), item=loader)
    other = handler.restore(epath.Path(tmp_path), item=penstock.jax.Loader(data, BATCH, seed=1))
    assert first + [batch["__id__"].tolist() for batch in other] == whole
    assert len(whole[-1]) == BATCH
    loader.close()
    other.close()


def test_the_last_step(path: Path) -> None:
    """It is filled up and marked, or left out; numbers have JAX's 32 bits."""
    data = penstock.open(path, index="memory")
    loader = penstock.jax.Loader(data, BATCH, seed=1)
    *_, last = batches = list(loader)
    assert len(loader) == len(batches) == 6
    assert last["__valid__"].tolist() == [True] * 10 + [False] * 6
    assert last["__id__"].dtype == np.int32
    assert len(set(last["__id__"].tolist())) == 10
    loader.close()
    loader = penstock.jax.Loader(data, BATCH, seed=1, drop_last=True)
    assert [batch["__id__"].tolist() for batch in loader] == [
        batch["__id__"].tolist() for batch in batches[:-1]
    ]
    unfinished = iter(loader)
    next(unfinished)
    loader.close()
    assert list(unfinished) == []


def test_numbers_that_32_bits_do_not_hold(tmp_path: Path) -> None:
    """Without jax_enable_x64 they are left out, not cut."""
    for count in (2**31, 2**31 + 1):
        path = tmp_path / f"{count}.bin"
        with open(path, "wb") as file:
            file.truncate(count)
        data = penstock.open(path, record_bytes=1, index="memory")
        loader = penstock.jax.Loader(data, 2, shuffle="none")
        assert ("__id__" in next(iter(loader))) == (count <= 2**31)
        loader.close()


@pytest.mark.parametrize("decode", [None, lambda sample: {"data": sample["data"]}])
def test_arrays_outlive_the_memory_of_batches(tmp_path: Path, decode: Any) -> None:
    """Arrays on the CPU are the memory of a batch, which is used again for later ones: not while
    an array, or a computation with one that is gone, still reads it."""
    data = np.random.default_rng(7).integers(0, 2**30, (400, 4096), np.int32)
    np.save(tmp_path / "rows.npy", data)
    dataset = penstock.open(tmp_path / "rows.npy", index="memory")
    loader = penstock.jax.Loader(dataset, 20, seed=2, decode=decode)
    double = jax.jit(lambda x: (x * 2).sum(1))
    kept, sums, aligned = [], [], 0
    for epoch in range(2):
        for step, batch in enumerate(loader):
            ids = batch["__id__"]
            pointer = batch["data"].addressable_shards[0].data.unsafe_buffer_pointer()
            aligned += pointer % 4096 == 0
            sums.append((ids, double(batch["data"])))
            if step % 3 == epoch:
                kept.append(batch)
            del batch
    assert aligned, "no array was the memory of a batch: the test shows nothing"
    assert len(sums) == 40
    for ids, found in sums:
        wanted = (data[np.asarray(ids)] * np.int32(2)).sum(1, dtype=np.int32)
        np.testing.assert_array_equal(found, wanted)
    for batch in kept:
        np.testing.assert_array_equal(batch["data"], data[np.asarray(batch["__id__"])])
    loader.close()


def test_arrays_ahead_are_not_counted(path: Path) -> None:
    """The next batch is put on its device a step early, and the state names it as not given."""
    data = penstock.open(path, index="memory")
    put, loader = [], penstock.jax.Loader(data, BATCH, seed=1)
    make = loader._make_arrays
    loader._make_arrays = lambda batch: put.append(batch.step) or make(batch)
    whole = [batch["__id__"].tolist() for batch in loader]
    put.clear()
    loader.set_epoch(0)
    batches = iter(loader)
    for step in range(1, len(whole)):
        next(batches)
        assert put[-1] == step
        other = penstock.jax.Loader(data, BATCH, seed=1)
        other.load_state_dict(loader.state_dict())
        assert [batch["__id__"].tolist() for batch in other] == whole[step:]
        other.close()
    loader.close()


def test_arrays_that_jax_does_not_have(tmp_path: Path) -> None:
    """Rows of different lengths, and strings, are named with their field."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * (number + 1))
    data = penstock.open(tmp_path, index="memory")
    loader = penstock.jax.Loader(data, 3)
    with pytest.raises(penstock.errors.UsageError, match=r"batch\['data'\] has rows of different"):
        next(iter(loader))
    loader.close()
    loader = penstock.jax.Loader(data, 3, decode=lambda sample: {"name": "x"})
    with pytest.raises(penstock.errors.UsageError, match=r"batch\['name'\]\[0\] has <U1"):
        next(iter(loader))
    loader.close()


def test_rows_that_are_not_those_of_the_samples(path: Path) -> None:
    """A leaf that has neither the rows of the samples nor those of the step is named with both."""
    data = penstock.open(path, index="memory")

    def take_sums(rows: list[Any]) -> dict[str, Any]:
        return {"rows": np.stack([row["data"] for row in rows]), "sums": np.arange(3)}

    loader = penstock.jax.Loader(data, BATCH, decode=lambda sample: sample, collate=take_sums)
    remedy = "make one a sample"
    with pytest.raises(
        penstock.errors.UsageError, match=rf"batch\['sums'\] has 3 rows, not 16: {remedy}"
    ):
        next(iter(loader))
    loader.close()


def test_rows_of_a_last_step_without_ids(path: Path) -> None:
    """Batches that are no dicts do not say how many samples the last step has."""
    data = penstock.open(path, index="memory")
    loader = penstock.jax.Loader(data, BATCH, decode=lambda sample: (sample["data"],))
    batches = iter(loader)
    for _ in range(len(loader) - 1):
        assert next(batches)[0].shape == (BATCH, WIDTH)
    with pytest.raises(
        penstock.errors.UsageError, match=r"batch\[0\] has 10 rows, not 16: .*drop_last"
    ):
        next(batches)
    loader.close()
    loader = penstock.jax.Loader(
        data, BATCH, drop_last=True, decode=lambda sample: (sample["data"],)
    )
    assert [batch[0].shape for batch in loader] == [(BATCH, WIDTH)] * (SAMPLES // BATCH)
    loader.close()
