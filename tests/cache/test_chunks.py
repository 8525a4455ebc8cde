"""Compressed chunks in the cache of a job: what is read of them, and what comes out, on hosts that
share them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import UsageError
from tests.cache.test_cache import Gathering, expected, global_batches, run, total
from tests.index.formats.films import OPEN, write_film
from tests.loader import test_clips
from tests.slices import fraction

Array = np.ndarray[Any, Any]
ROWS = 120


def write_zarr(folder: Path, array: Array) -> penstock.Dataset:
    zarr.create_array(folder / "x.zarr", data=array, chunks=(7, 2))
    return penstock.open(
        folder / "x.zarr", index="memory", window={0: 5}, stride={0: 1}, target={0: (5, 7)}
    )


def write_hdf5(folder: Path, array: Array) -> penstock.Dataset:
    """Large chunks, and a number for each row, uncompressed."""
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=array, chunks=(11, 3), compression="gzip")
        file.create_dataset("n", data=np.arange(ROWS))
    return penstock.open(folder / "x.h5", index="memory", isolate=False)


def write_parquet(folder: Path, array: Array) -> penstock.Dataset:
    columns = {"n": np.arange(ROWS), "x": list(array)}
    pq.write_table(pa.table(columns), folder / "x.parquet", row_group_size=25)
    return penstock.open(folder / "x.parquet", index="memory")


def mix_formats(folder: Path, array: Array) -> penstock.Dataset:
    """A part that is compressed, and one that is not, in another dtype."""
    zarr.create_array(folder / "y.zarr", data=array, chunks=(7, 2))
    np.save(folder / "y.npy", array.astype("i2"))
    zarrs = penstock.open(folder / "y.zarr", as_dtype="int64", index="memory")
    files = penstock.open(folder / "y.npy", as_dtype="int64", index="memory")
    return penstock.mix([(zarrs, 1), (files, 2)], rename=[{zarrs.fields[0].name: "data"}, None])


def mix_clips(folder: Path, _: Array) -> penstock.Dataset:
    parts = []
    for name, codec, options in (("a", "libx264", OPEN), ("b", "mpeg4", {"g": "12", "bf": "2"})):
        write_film(folder / name / "film", 40, codec, options, seed=len(parts))
        clips = {"seconds": 0.5, "fps": 8, "stride": 0.1, "short": "pad"}
        parts.append(penstock.open(folder / name, clips=clips, index="memory"))
    return penstock.mix([(part, 1) for part in parts])


KINDS = {
    one.__name__: one for one in (write_zarr, write_hdf5, write_parquet, mix_formats, mix_clips)
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[penstock.Dataset, Any]]:
    """Data of each kind, and its samples as they are without a cache."""
    array = np.random.default_rng(0).integers(0, 9999, (ROWS, 3))
    found = {}
    for name, write in KINDS.items():
        data = write(tmp_path_factory.mktemp(name), array)
        found[name] = data, [data[number] for number in range(len(data))]
    return found


def check_against(samples: list[Any]) -> Callable[[penstock.Batch], None]:
    def check(batch: penstock.Batch) -> None:
        for row, number in enumerate(batch.ids.tolist()):
            for name in set(batch) - {"source", "pass"}:
                assert np.array_equal(batch[name][row], samples[number][name])

    return check


@fraction(2)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    hosts=st.sampled_from([[0], [0, 1], [0, 1, 1]]),
    ram_bytes=st.sampled_from([0, 900, 1 << 20]),
    cache_block_bytes=st.sampled_from([None, 1, 400]),
    assignment=st.sampled_from(["local", "strided"]),
    disk_bytes=st.sampled_from([0, 1 << 20]),
    shuffle=st.sampled_from(["exact", "blocked"]),
    decoded_bytes=st.sampled_from([0, 30_000]),
)
def test_any_chunks_come_as_they_do_without_a_cache(
    made, kind, hosts, ram_bytes, cache_block_bytes, assignment, disk_bytes, shuffle, decoded_bytes
):
    """All samples, field by field, from memory, disk and other hosts. Where hosts can keep the
    data, chunks are read once."""
    data, samples = made[kind]
    budget = penstock.Budget(decoded_bytes=decoded_bytes)
    how = {"shuffle": shuffle, "block": 5, "group": 4}
    options = {"global_batch_size": 12, "seed": 3, "budget": budget, **how}
    with tempfile.TemporaryDirectory() as folder:
        told = run(
            data,
            hosts,
            ram_bytes,
            cache_block_bytes=cache_block_bytes,
            assignment=assignment,
            disk=(Path(folder), disk_bytes) if disk_bytes else None,
            check=check_against(samples),
            **options,
        )
    assert global_batches(told) == expected(data, **options)
    if ram_bytes > 900:
        assert total(told, "loaded_bytes") == data.index.total_bytes
        assert total(told, "direct_bytes") == 0
        assert total(told, "peer_bytes") == 0 or len(hosts) > 1


@pytest.mark.parametrize("decoded_bytes", [0, 1 << 26])
def test_clips_resume_on_any_world_of_hosts(tmp_path: Path, decoded_bytes: int) -> None:
    """From every step, on 1, 2 and 3 ranks of two hosts that keep groups of pictures for each
    other, clips go on in the same sequence, frame by frame; each group is read once."""
    films = test_clips.write(tmp_path)
    data = test_clips.open_clips(tmp_path)
    budget = penstock.Budget(decoded_bytes=decoded_bytes)
    states: list[Any] = [None]

    def take_steps(world: int, state: Any = None) -> list[list[int]]:
        gathering = Gathering(world)

        def take(rank: int) -> tuple[list[list[int]], dict[str, Any]]:
            cache = penstock.Cache(
                ram_bytes=1 << 20,
                host=f"host {rank % 2}",
                listen="127.0.0.1",
                gather=gathering.of(rank),
            )
            how: dict[str, Any] = {"global_batch_size": test_clips.BATCH, "seed": 3}
            how |= {"rank": rank, "world_size": world, "cache": cache, "budget": budget}
            steps = []
            with penstock.Loader(data, **how) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for batch in loader:
                    test_clips.check(batch, data, films)
                    steps.append(batch.ids.tolist())
                    if state is None and rank == 0:
                        states.append(loader.state_dict())
                gathering.of(rank)("done")  # until then it answers the others
                return steps, loader.stats()

        with ThreadPoolExecutor(world) as threads:
            steps, stats = zip(*threads.map(take, range(world)), strict=True)
        assert sum(one["loaded_bytes"] for one in stats) <= data.index.total_bytes
        assert not any(one["direct_bytes"] for one in stats)
        assert world == 1 or any(one["peer_bytes"] for one in stats)
        return [sorted(itertools.chain(*rows)) for rows in zip(*steps, strict=True)]

    whole = take_steps(1)
    assert sorted(itertools.chain(*whole)) == list(range(len(data)))
    for step, state in enumerate(states[1:-1], 1):
        for world in (1, 2, 3):
            assert take_steps(world, state) == whole[step:]


def test_copies_of_what_other_hosts_keep_are_not_made_of_chunks(tmp_path: Path) -> None:
    """Many samples share a chunk: the use of one does not say when it is used next."""
    data = write_hdf5(tmp_path, np.zeros((ROWS, 3), np.int64))
    cache = penstock.Cache(ram_bytes=1 << 20, replicas=True)
    with penstock.Loader(data, 4, cache=cache) as loader, pytest.raises(UsageError, match="chunks"):
        next(iter(loader))
