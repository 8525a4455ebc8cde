"""Windows of compressed chunks through a loader: decoded as seldom as memory allows, and right
whatever becomes of the steps before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock.dataset.dataset import Dataset
from penstock.errors import FormatError
from penstock.index.codecs import registry

ROWS, CHUNK, WINDOW = 400, 20, 10


def write(folder: Path) -> tuple[np.ndarray[Any, Any], Path, list[Any]]:
    array = np.random.default_rng(0).integers(0, 1 << 20, (ROWS, 6)).astype("i4")
    with h5py.File(folder / "a.h5", "w") as file:
        made = file.create_dataset("x", data=array, chunks=(CHUNK, 6), compression="gzip")
        places = [made.id.get_chunk_info(number) for number in range(ROWS // CHUNK)]
    return array, folder / "a.h5", places


def open_windows(path: Path) -> Dataset:
    options: dict[str, Any] = {"window": {"0": WINDOW}, "stride": {"0": 2}, "isolate": False}
    return penstock.open(path, index="memory", **options)


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the chunks that are decoded."""
    numbers: list[int] = []
    decode = registry.CODECS["hdf5"]

    def counted(options: Any, chunk: Any) -> Any:
        numbers.append(chunk.number)
        return decode(options, chunk)

    monkeypatch.setitem(registry.CODECS, "hdf5", counted)
    return numbers


def check(batch: penstock.Batch, array: np.ndarray[Any, Any]) -> None:
    for row, number in enumerate(batch.ids.tolist()):
        np.testing.assert_array_equal(batch["x"][row], array[2 * number : 2 * number + WINDOW])


@pytest.mark.parametrize(
    "decode", [None, lambda sample: {"x": sample["x"]}], ids=["arrays", "decode"]
)
@pytest.mark.parametrize("share", [0, 4, 1])
def test_chunks_are_read_and_decoded_as_seldom_as_memory_allows(
    tmp_path: Path, decodes: list[int], share: int, decode: Any
) -> None:
    """What is decoded is read, and nothing else; a second epoch decodes nothing, if all is kept."""
    array, path, places = write(tmp_path)
    budget = penstock.Budget(decoded_bytes=array.nbytes // share if share else 0)
    with penstock.Loader(open_windows(path), 4, seed=1, budget=budget, decode=decode) as loader:
        for batch in loader:
            check(batch, array)
        first, read = len(decodes), loader.stats()["bytes"]
        assert read == sum(places[number].size for number in decodes)
        for batch in loader:
            check(batch, array)
    if share == 1:
        assert sorted(decodes) == list(range(ROWS // CHUNK))
    elif share == 4:
        assert first < 8 * ROWS // CHUNK
        assert len(decodes) < 2 * first + ROWS // CHUNK
    else:
        assert first > 12 * ROWS // CHUNK


def test_iterators_that_take_turns(tmp_path: Path) -> None:
    """Two iterators of a loader are both right, though one has taken the other's memory."""
    array, path, _ = write(tmp_path)
    budget = penstock.Budget(decoded_bytes=array.nbytes // 3)
    with penstock.Loader(open_windows(path), 4, seed=1, budget=budget) as loader:
        one = iter(loader)
        check(next(one), array)
        old = loader._kept
        two = iter(loader)
        for left, right in zip(one, two, strict=False):
            check(left, array)
            check(right, array)
        assert old is not None
        assert old.pieces == old.wholes == {}


def test_an_iterator_that_is_dropped(tmp_path: Path) -> None:
    """The next one begins with what is in memory, and is right."""
    array, path, _ = write(tmp_path)
    budget = penstock.Budget(decoded_bytes=array.nbytes)
    with penstock.Loader(open_windows(path), 4, seed=1, budget=budget) as loader:
        for steps in (3, 1, 7, 1000):
            for step, batch in enumerate(loader):
                check(batch, array)
                if step == steps:
                    break


def test_memory_that_changes(tmp_path: Path, decodes: list[int]) -> None:
    """Another budget is adopted in the middle of an epoch; the windows stay the same."""
    array, path, _ = write(tmp_path)
    with penstock.Loader(
        open_windows(path), 4, seed=1, budget=penstock.Budget(decoded_bytes=0)
    ) as loader:
        seen = []
        for step, batch in enumerate(loader):
            check(batch, array)
            seen += batch.ids.tolist()
            if step == 10:
                loader.budget = penstock.Budget(decoded_bytes=array.nbytes)
            if step == 30:
                loader.budget = penstock.Budget(decoded_bytes=array.nbytes // 5)
    assert sorted(seen) == list(range(196))


def test_steps_after_a_damaged_chunk(tmp_path: Path, decodes: list[int]) -> None:
    """Each step with a window of the damaged chunk is an error; all others come, and are right,
    though they count on steps that failed. Those few are read anew, and nothing stays in memory."""
    array, path, places = write(tmp_path)
    budget = penstock.Budget(decoded_bytes=array.nbytes // 3)
    with penstock.Loader(open_windows(path), 2, seed=1, budget=budget) as loader:
        for batch in loader:
            check(batch, array)
    undamaged = len(decodes)
    decodes.clear()
    with path.open("r+b") as file:
        file.seek(places[7].byte_offset + 4)
        file.write(b"\xff" * 8)
    data = open_windows(path)
    with penstock.Loader(data, 2, seed=1, budget=budget) as loader:
        order = data.order(1).samples(np.arange(len(data), dtype=np.uint64)).reshape(-1, 2)
        wanted = [
            not any(7 * CHUNK - WINDOW < 2 * int(number) < 8 * CHUNK for number in step)
            for step in order
        ]
        batches, came = iter(loader), []
        while True:
            try:
                batch = next(batches)
            except FormatError:
                came.append(False)
                continue
            except StopIteration:
                break
            check(batch, array)
            came.append(True)
        assert loader._kept is not None
        assert loader._kept.pieces == {}
    assert came == wanted
    assert len(decodes) < 2 * undamaged
    assert 5 < sum(wanted) < len(wanted)
