"""Mixtures of containers that compress and others: each sample is that of its part read alone."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import FormatError
from tests.index.formats import containers as made

SHAPED = [made.write_npy, made.write_zarr, made.write_hdf5_gzip, made.write_records]
RAGGED = [made.write_tar, made.write_parquet, made.write_arrow_zstd, made.write_litdata_zstd]


def write_numbers(folder: Path, kind: str, count: int) -> penstock.Dataset:
    """Negative numbers too, in a type of their own for each container."""
    import h5py
    import zarr

    types = {"npy": "i2", "zarr": "i4", "hdf5": "i8"}
    rows = np.arange(-count, 2 * count).reshape(count, 3).astype(types[kind])
    if kind == "npy":
        np.save(folder / "x.npy", rows)
        return penstock.open(folder / "x.npy", as_dtype="int64", index="memory")
    if kind == "zarr":
        zarr.create_array(folder / "x.zarr", data=rows, chunks=(4, 2))
        return penstock.open(folder / "x.zarr", as_dtype="int64", index="memory")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(5, 3), compression="gzip")
    return penstock.open(folder / "x.h5", index="memory", isolate=False)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[penstock.Dataset]]:
    """Data sets that can be mixed as they are, but for the names of fields."""
    root = tmp_path_factory.mktemp("containers")
    found: dict[str, list[penstock.Dataset]] = {"shaped": [], "ragged": [], "numbers": []}
    for number, (kind, write) in enumerate(
        [("shaped", write) for write in SHAPED] + [("ragged", write) for write in RAGGED]
    ):
        folder = root / str(number)
        folder.mkdir()
        wide = 12 if kind == "shaped" else 0
        contents = [b"%d:%d;" % (number, n) * (1 + n % 5) for n in range(13 + 3 * number)]
        path, options = write(folder, [each.ljust(wide, b".")[: wide or None] for each in contents])
        found[kind].append(penstock.open(path, index="memory", **options))
    for kind in ("npy", "zarr", "hdf5"):
        (root / kind).mkdir()
        found["numbers"].append(write_numbers(root / kind, kind, 17))
    return found


@functools.cache
def read_alone(part: penstock.Dataset) -> list[Any]:
    """Samples of a data set that is not mixed."""
    return [content(sample) for sample in part]


_marks = {"source", "pass", "label"}


def content(sample: Mapping[str, Any]) -> Any:
    """The only field of a sample, as numbers."""
    (name,) = (name for name in sample if not name.startswith("__") and name not in _marks)
    value = sample[name]
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes | memoryview) else value


def sums(sample: dict[str, Any]) -> dict[str, Any]:
    """Decode: what tells the content of one sample from that of others."""
    values = content(sample)
    weights = np.arange(1, values.size + 1)
    return {"sum": int(values.ravel().astype(np.int64) @ weights), "id": sample["__id__"]}


@given(data=st.data())
def test_samples_are_those_of_the_parts(
    known: dict[str, list[penstock.Dataset]], data: st.DataObject
) -> None:
    """In each step of each rank, whether decoded by part or not, and after resuming."""
    by_part = data.draw(st.booleans(), "decode")
    kind = "all" if by_part else data.draw(st.sampled_from(sorted(known)), "kind")
    choice = [one for some in known.values() for one in some] if kind == "all" else known[kind]
    parts = data.draw(st.lists(st.sampled_from(choice), min_size=2, max_size=5), "parts")
    world = data.draw(st.integers(1, 3), "world")
    more: dict[str, Any] = (
        {"decode": [sums] * len(parts)}
        if by_part
        else {"rename": [{part.fields[0].name: "x"} for part in parts]}
    )
    mixture = penstock.mix([(part, 1 + number) for number, part in enumerate(parts)], **more)
    mixture = pickle.loads(pickle.dumps(mixture))
    alone = [sample for part in parts for sample in read_alone(part)]
    first = np.cumsum([0, *map(len, parts)])
    arguments = {
        "batch_size": data.draw(st.integers(1, 9), "batch"),
        "seed": data.draw(st.integers(0, 99), "seed"),
        "shuffle": data.draw(st.sampled_from(["exact", "blocked"]), "shuffle"),
    }
    for rank in range(world):
        loader = penstock.Loader(mixture, rank=rank, world_size=world, **arguments)
        stop = data.draw(st.integers(0, len(loader) - 1), "stop")
        batches: list[penstock.Batch] = []
        for batch in loader:
            batches.append(batch)
            if len(batches) == stop:
                state = json.loads(json.dumps(loader.state_dict()))
                loader.close()
                loader = penstock.Loader(mixture, rank=rank, world_size=world, **arguments)
                loader.load_state_dict(state)
                break
        batches += loader if stop > 0 else []
        loader.close()
        assert [batch.step for batch in batches] == list(range(len(loader)))
        for batch in batches:
            for row, number in enumerate(batch.ids.tolist()):
                if by_part:
                    own = sums({"x": alone[number], "__id__": number})
                    assert (batch["sum"][row], batch["id"][row]) == (own["sum"], number)
                else:
                    assert batch["source"][row] == np.searchsorted(first, number, side="right") - 1
                    assert np.array_equal(batch["x"][row], alone[number])
            if len(batch.ids):
                number = int(batch.ids[0])
                assert np.array_equal(content(mixture[number]), alone[number])


def test_whole_numbers_of_other_types(tmp_path: Path) -> None:
    """Numbers that batches have in one type keep their value, whatever type they are stored in."""
    np.save(tmp_path / "a.npy", np.array([[4_000_000_000], [4_000_000_001]], np.uint32))
    np.save(tmp_path / "b.npy", np.array([[-1], [-2]], np.int32))
    np.save(tmp_path / "c.npy", np.array([[-5], [-6], [7]], np.int64))
    parts = [
        penstock.open(tmp_path / f"{name}.npy", as_dtype="int64", index="memory") for name in "abc"
    ]
    mixture = penstock.mix([(part, 1) for part in parts])
    assert mixture[2]["data"].dtype == np.int64
    expected = [[4_000_000_000], [4_000_000_001], [-1], [-2], [-5], [-6], [7]]
    for cache in (None, penstock.Cache(ram_bytes=1 << 20)):
        with penstock.Loader(mixture, 3, seed=1, cache=cache) as loader:
            for batch in loader:
                assert batch["data"].tolist() == [expected[number] for number in batch.ids]


@pytest.mark.long  # a process that imports torch
def test_worker_processes(known: dict[str, list[penstock.Dataset]]) -> None:
    """They decode as threads do."""
    torch = pytest.importorskip("penstock.torch")
    parts = [known["ragged"][1], known["shaped"][1], known["numbers"][1]]
    mixture = penstock.mix([(part, 1) for part in parts], decode=[sums] * 3)
    options = {"shuffle": True, "seed": 2}
    by_threads, by_processes = (
        [
            (batch["id"].tolist(), batch["sum"].tolist())
            for batch in torch.DataLoader(mixture, 7, num_workers=1, workers=kind, **options)
        ]
        for kind in ("threads", "processes")
    )
    assert by_threads == by_processes


def test_a_damaged_chunk_names_its_file(tmp_path: Path) -> None:
    """The error has the part's file and codec, with a decode for each part and without."""
    parts = []
    for name, write in (("a", made.write_npy), ("b", made.write_hdf5_gzip)):
        (tmp_path / name).mkdir()
        path, options = write(tmp_path / name, [b"content of a sample"] * 10)
        parts.append(penstock.open(path, index="memory", **options))
    extents, _ = parts[1].index.units(np.array([0], np.uint64))
    with (tmp_path / "b" / "x.h5").open("r+b") as file:
        file.seek(int(extents.offset[0]) + 3)
        file.write(b"\xff\xff\xff\xff")
    parts[1] = penstock.open(tmp_path / "b" / "x.h5", index="memory", isolate=False)
    for more in ({"rename": [{"data": "x"}, None]}, {"decode": [sums, sums]}):
        mixture = penstock.mix([(part, 1) for part in parts], **more)  # type: ignore[arg-type]
        assert content(parts[0][0]).tobytes() == b"content of a sample"
        with pytest.raises(FormatError, match=r"b/x\.h5 at byte .*decoded as hdf5"):
            mixture[10]
        with pytest.raises(FormatError, match=r"b/x\.h5 at byte .*decoded as hdf5"):
            list(penstock.Loader(mixture, 20))
