"""`penstock.open(normalize=)`: (x - mean) / sd as numpy has it in float64, wherever it is read."""

from __future__ import annotations

import pickle
import shlex
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import penstock
import penstock.torch
import torch
from penstock.dataset.stats import FieldStats
from penstock.engine.native import standardize
from penstock.errors import MissingError, SidecarError, UsageError
from tests.command import run

Array = npt.NDArray[Any]
SHAPE = 60, 3, 40
VALUES = np.random.default_rng(0).normal(280, 9, SHAPE).astype("float32")
VALUES[5, 1, 2] = np.nan


def expect(values: Array, stats: FieldStats) -> Array:
    """Normalised numbers in float64, rounded once."""
    rows = stats.rows or (stats,)
    mean = np.array([row.mean or 0 for row in rows])
    sd = np.array([row.sd or 1 for row in rows])
    if stats.axis is not None:
        shape = [1] * values.ndim
        shape[stats.axis + 1] = len(rows)
        mean, sd = mean.reshape(shape), sd.reshape(shape)
    return ((values.astype("f8") - mean) / sd).astype("f4")


def write(folder: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    """The values in a container, and how they are opened."""
    path = folder / f"data.{kind}"
    options: dict[str, Any] = {}
    name, _, windows = kind.partition("-")
    if name in ("npy", "big"):
        path = folder / "data.npy"
        np.save(path, VALUES.astype(">f4" if name == "big" else "<f4"))
    elif name == "npz":
        np.savez(folder / "data.npz", data=VALUES)
        path = folder / "data.npz"
    elif name == "zarr":
        zarr.create_array(path, data=VALUES, chunks=(8, 3, 40))
    elif name == "hdf5":
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=VALUES, chunks=(7, 3, 13), compression="gzip")
    elif name == "parquet":
        pq.write_table(pa.table({"data": VALUES[:, 0, 0]}), path)
    else:
        pq.write_table(pa.table({"data": [row[: n % 7, 0] for n, row in enumerate(VALUES)]}), path)
    if windows:
        options = {"window": {0: 4, 2: 10}, "stride": {0: 3}, "target": {0: (4, 5)}}
    return path, options


KINDS = ["npy", "big", "npz", "zarr", "hdf5", "parquet", "lists"]


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, "npy-windows", "zarr-windows", "hdf5-windows"])
def test_as_numpy_wherever_it_is_read(kind: str, tmp_path: Path) -> None:
    """In samples, batches, a copy of another process, and with decode: bit by bit the same; and a
    target is normalised as its field."""
    path, options = write(tmp_path, kind)
    plain = penstock.open(path, **options)
    stats = plain.stats()
    data = penstock.open(path, normalize="stats", **options)
    assert data.fingerprint == plain.fingerprint
    assert [made.as_dtype for made in data.fields] == [np.dtype("f4")] * len(plain.fields)
    wanted = []
    for number in range(len(plain)):
        sample = plain[number]
        fields = [n for n in ("data", "data_target") if n in sample]
        wanted.append({n: expect(np.asarray(sample[n]), stats["data"]) for n in fields})
    for one in (data, pickle.loads(pickle.dumps(data))):
        for number, fields in enumerate(wanted):
            for name, values in fields.items():
                found = np.asarray(one[number][name])
                assert found.dtype == np.float32
                assert found.tobytes() == values.tobytes()
    for decode in (None, lambda sample: {n: sample[n] for n in wanted[0]}):
        if kind == "lists" and decode is not None:
            continue
        with penstock.Loader(data, batch_size=16, seed=0, decode=decode) as loader:
            seen = 0
            for batch in loader:
                for name in wanted[0]:
                    for number, row in zip(batch.ids.tolist(), batch[name], strict=True):
                        assert row.tobytes() == wanted[number][name].tobytes()
                        seen += 1
    assert seen == len(data) * len(wanted[0])


def test_worker_processes(tmp_path: Path) -> None:
    """Those of torch have it, in both types."""
    path, _ = write(tmp_path, "npy")
    stats = penstock.open(path).stats(by_axis=0)
    for dtype in ("float32", "bfloat16"):
        if dtype == "bfloat16":
            pytest.importorskip("ml_dtypes")
        data = penstock.open(path, normalize="stats", normalize_dtype=dtype)
        loader = penstock.torch.DataLoader(data, batch_size=20, shuffle=False, num_workers=1)
        batches = torch.cat([batch["data"] for batch in loader])
        wanted = torch.from_numpy(expect(VALUES, stats["data"])).to(getattr(torch, dtype))
        assert batches.dtype == wanted.dtype
        assert torch.equal(batches.nan_to_num(99), wanted.nan_to_num(99))


@pytest.mark.parametrize("dtype", ["b1", "i1", "u1", "i2", ">i4", "u4", "i8", "u8", "f2", "<f8"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_types_and_axes(dtype: str, axis: int | None, tmp_path: Path) -> None:
    """Each type of numbers, by each axis; without words, floats alone."""
    random = np.random.default_rng(1)
    values = np.frombuffer(random.bytes(50 * 2 * 3 * 5 * 8), "u1").reshape(50, 2, 3, 40)
    values = random.normal(5, 3, (50, 2, 3, 40)) if dtype[-2] == "f" else values
    values = values > 99 if dtype == "b1" else values.astype(dtype)
    np.save(tmp_path / "a.npy", values)
    plain = penstock.open(tmp_path / "a.npy", index="memory")
    stats = plain.stats(by_axis=axis)
    data = penstock.open(tmp_path / "a.npy", index="memory", normalize=stats)
    with penstock.Loader(data, batch_size=50, shuffle="none") as loader:
        found = next(iter(loader))["data"]
    assert found.tobytes() == expect(values, stats["data"]).tobytes()
    if values.dtype.kind != "f":
        with pytest.raises(UsageError, match="has no field of floats"):
            penstock.open(tmp_path / "a.npy", index="memory", normalize="stats")


def test_halves_are_those_of_torch() -> None:
    """Rounded to even from float32, NaN and infinities kept; by any number of threads."""
    random = np.random.default_rng(2)
    bits = random.integers(0, 2**32, 300_000, np.uint32)
    bits[:4] = 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF, 0x3F808000
    numbers, ones, zeros = bits.view("f4"), np.ones(1), np.zeros(1)
    wanted = torch.from_numpy(numbers.copy()).to(torch.bfloat16)
    for threads in (1, 3):
        out = np.empty(len(bits), np.int16)
        arguments = numbers.view("u1"), "f4", zeros, ones, len(bits), out.view("u1"), True, threads
        standardize(*arguments)
        found = torch.from_numpy(out).view(torch.bfloat16)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num(1), wanted.nan_to_num(1))
    for wrong in (
        {1: "f3"},
        {4: 0},
        {5: out.view("u1")[2:]},
        {2: np.ones(2)},
        {0: bits.view("u1")[1:]},
    ):
        changed = [wrong.get(number, one) for number, one in enumerate(arguments)]
        with pytest.raises(ValueError, match="do not fit|no such numbers"):
            standardize(*changed)


def test_what_does_not_vary_or_is_missing(tmp_path: Path) -> None:
    """A deviation of 0 counts as 1; without a finite number all stay NaN."""
    np.savez(tmp_path / "a.npz", same=np.full((9, 2), 7.5), none=np.full((9, 2), np.nan))
    penstock.open(tmp_path / "a.npz").stats()
    sample = penstock.open(tmp_path / "a.npz", normalize="stats")[3]
    assert sample["same"].tolist() == [0, 0]
    assert np.isnan(sample["none"]).all()


def test_the_command_of_the_error_measures(tmp_path: Path) -> None:
    """Without statistics, or with those of other data, the error has the whole command."""
    path, options = write(tmp_path, "zarr-windows")

    def fail(kind: type[Exception]) -> list[str]:
        with pytest.raises(kind, match="penstock stats") as caught:
            penstock.open(path, normalize="stats", **options)
        assert "\n" not in str(caught.value)
        return shlex.split(str(caught.value).split("`")[1])

    command = fail(MissingError)
    assert "--force" not in command
    run(*command[1:])
    assert penstock.open(path, normalize="stats", **options)[0]["data"].shape == (4, 3, 10)
    run("stats", str(path), "--force")  # of the rows
    command = fail(SidecarError)
    run(*command[1:])
    penstock.open(path, normalize="stats", **options)
    zarr.open_array(path)[0, 0, 0] = 1.0
    fail(SidecarError)


def test_statistics_of_a_selection(tmp_path: Path) -> None:
    """Those of the training samples normalise all; fields that are not named stay as they are."""
    np.savez(tmp_path / "a.npz", t=VALUES, u=VALUES[:, 0] * 2)
    plain = penstock.open(tmp_path / "a.npz")
    stats = plain.split({"train": 0.8, "test": 0.2})["train"].stats()
    data = penstock.open(tmp_path / "a.npz", normalize={"t": stats["t"]})
    assert data[7]["t"].tobytes() == expect(VALUES[7:8], stats["t"]).tobytes()
    assert data[7]["u"].tobytes() == plain[7]["u"].tobytes()
    with penstock.Loader(plain, batch_size=4, seed=1) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with penstock.Loader(data, batch_size=4, seed=1) as loader:
        loader.load_state_dict(state)  # it is the same data
        assert len(next(iter(loader))["t"]) == 4


def test_calls_that_cannot_be(tmp_path: Path) -> None:
    """Each is refused in a line that says why."""
    np.savez(tmp_path / "a.npz", t=VALUES)
    plain = penstock.open(tmp_path / "a.npz")
    rows, whole = plain.stats(by_axis=1), plain.stats()
    np.savez(tmp_path / "b.npz", t=VALUES[:, :, :9])
    data = penstock.open(tmp_path / "a.npz", normalize=whole)
    calls = [
        ("a", {"normalize": "mean"}, "normalize is 'mean'"),
        ("a", {"normalize": {"t": 3}}, "give 'stats', or"),
        ("a", {"normalize": {"v": whole["t"]}}, "no field of numbers 'v', but t"),
        ("a", {"normalize": whole, "normalize_dtype": "int8"}, "use 'float32' or 'bfloat16'"),
        ("b", {"normalize": rows}, r"40 places of axis 1, and it is \(3, 9\)"),
    ]
    for name, options, message in calls:
        with pytest.raises(UsageError, match=message):
            penstock.open(tmp_path / f"{name}.npz", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is normalised: open it without"):
        data.stats()
    with pytest.raises(UsageError, match="is normalised: mix data"):
        penstock.mix([(data, 1), (data, 2)])
