"""Mixtures of windows that are decoded, clips and parts of arrays: each is that of its data set
alone."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.dataset.dataset import Dataset
from penstock.errors import FormatError, UsageError
from tests.index.formats.films import OPEN, write_film

WINDOWS: dict[str, Any] = {"window": {0: 6}, "stride": {0: 2}, "target": {0: (6, 8)}}
CLIPS = {"frames": 5, "every": 2, "stride": 3, "short": "pad"}
Samples = dict[str, list[tuple[Dataset, list[Any]]]]


def write_zarr(folder: Path, seed: int = 0) -> Dataset:
    array = np.random.default_rng(seed).integers(0, 999, (60, 4)).astype("i4")
    zarr.create_array(folder / "x.zarr", data=array, chunks=(7, 3))
    return penstock.open(folder / "x.zarr", index="memory", **WINDOWS)


def write_hdf5(folder: Path) -> Dataset:
    array = np.random.default_rng(5).integers(0, 999, (41, 4)).astype("i4")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("data", data=array, chunks=(10, 4), compression="gzip")
    return penstock.open(folder / "x.h5", index="memory", isolate=False, **WINDOWS)


def write_clips(folder: Path, codec: str, options: Any, counts: list[int]) -> Dataset:
    for number, count in enumerate(counts):
        write_film(folder / f"{number}", count, codec, options, seed=count)
    return penstock.open(folder, clips=CLIPS, index="memory")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Data sets that can be mixed as they are, and their samples."""
    made = [tmp_path_factory.mktemp("part") for _ in range(5)]
    found = {
        "windows": [write_zarr(made[0]), write_zarr(made[1], 1), write_hdf5(made[2])],
        "clips": [
            write_clips(made[3], "libx264", OPEN, [25, 31]),
            write_clips(made[4], "mpeg4", {"g": "12", "bf": "2"}, [28]),
        ],
    }
    return {
        kind: [(data, [data[number] for number in range(len(data))]) for data in parts]
        for kind, parts in found.items()
    }


@given(data=st.data())
def test_samples_are_those_of_the_parts(known: Samples, data: st.DataObject) -> None:
    """In each step of each rank, whatever is kept of chunks, and after resuming."""
    kind = data.draw(st.sampled_from(sorted(known)), "kind")
    parts = data.draw(st.lists(st.sampled_from(known[kind]), min_size=2, max_size=4), "parts")
    mixture = penstock.mix([(part, 1 + number) for number, (part, _) in enumerate(parts)])
    mixture = pickle.loads(pickle.dumps(mixture))
    alone = [sample for _, samples in parts for sample in samples]
    first = np.cumsum([0, *(len(samples) for _, samples in parts)])
    world = data.draw(st.integers(1, 3), "world")
    has_cache = world == 1 and data.draw(st.booleans(), "cache")
    arguments: dict[str, Any] = {
        "batch_size": data.draw(st.integers(1, 9), "batch"),
        "seed": data.draw(st.integers(0, 99), "seed"),
        "shuffle": data.draw(st.sampled_from(["exact", "blocked"]), "shuffle"),
        "cache": penstock.Cache(ram_bytes=1 << 20) if has_cache else None,
        "budget": penstock.Budget(
            decoded_bytes=data.draw(st.sampled_from([0, 4000, 200_000, 1 << 26]), "memory")
        ),
    }
    for rank in range(world):
        loader = penstock.Loader(mixture, rank=rank, world_size=world, **arguments)
        stop = data.draw(st.integers(0, len(loader) - 1), "stop")
        batches = list(itertools.islice(loader, stop))
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        loader = penstock.Loader(mixture, rank=rank, world_size=world, **arguments)
        loader.load_state_dict(state)
        batches += loader
        loader.close()
        assert [batch.step for batch in batches] == list(range(len(loader)))
        for batch in batches:
            origins = mixture.origins(batch.ids)
            assert np.array_equal(origins["source"], batch["source"])
            for row, number in enumerate(batch.ids.tolist()):
                source = int(batch["source"][row])
                assert source == np.searchsorted(first, number, side="right") - 1
                for name, value in alone[number].items():
                    if not name.startswith("__"):
                        assert np.array_equal(batch[name][row], value)
                own = parts[source][0].origins([number - first[source]])
                for name in own.keys() & origins.keys():
                    assert origins[name][row] == own[name][0]
    number = int(batches[0].ids[0])
    for name in (name for name in alone[number] if not name.startswith("__")):
        assert np.array_equal(mixture[number][name], alone[number][name])


def test_windows_and_their_targets_share_chunks(known: Samples) -> None:
    """A chunk is read and decoded once for both, as it is without a mixture."""
    parts = [(part, 1) for part, _ in known["windows"][:2]]
    array, target = penstock.mix(parts).index.layouts
    assert array.chunks is target.chunks


def test_what_is_not_mixed(known: Samples, tmp_path: Path) -> None:
    """Windows of other shapes, and those of which only some are decoded."""
    (clips, _), (arrays, _) = known["clips"][0], known["windows"][0]
    path = write_film(tmp_path / "film", 40).path
    shorter = penstock.open(path, clips={**CLIPS, "frames": 4}, index="memory")
    with pytest.raises(UsageError, match="the fields of dataset 1"):
        penstock.mix([(clips, 1), (shorter, 1)])
    with pytest.raises(UsageError, match="the fields of dataset 1"):
        penstock.mix([(clips, 1), (arrays, 1)])
    np.save(tmp_path / "x.npy", np.zeros((60, 4), "i4"))
    plain = penstock.open(tmp_path / "x.npy", index="memory", **WINDOWS)
    with pytest.raises(UsageError, match="decoded in one part only"):
        penstock.mix([(arrays, 1), (plain, 1)])


def test_a_damaged_group_names_its_film(tmp_path: Path) -> None:
    """The error has the part's file and codec."""
    parts = [
        write_clips(tmp_path / name, "libx264", OPEN, [count])
        for name, count in (("a", 30), ("b", 31))
    ]
    mixture = penstock.mix([(part, 1) for part in parts])
    extents, _ = parts[1].index.units(np.array([1], np.uint64))
    path = tmp_path / "b" / "0.mp4"
    was = path.stat()
    with path.open("r+b") as file:
        file.seek(int(extents.offset[0]))
        file.write(bytes(int(extents.length[0])))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    with (
        penstock.Loader(mixture, 4, seed=1) as loader,
        pytest.raises(FormatError, match=r"b/0.mp4 at byte .*cannot be decoded as film"),
    ):
        list(loader)
