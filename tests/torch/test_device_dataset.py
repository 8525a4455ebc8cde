"""DeviceLoader gives the batches of DataLoader, bit for bit, and continues its states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.errors import StateError, UsageError  # noqa: E402
from penstock.torch.device_loader import DeviceLoader  # noqa: E402
from penstock.torch.loader import DataLoader  # noqa: E402
from tests.slices import first  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class Pair(NamedTuple):
    x: Any
    y: Any


def decode(sample: dict[str, Any]) -> Any:
    data = np.frombuffer(sample["data"], np.uint8)
    number = sample["__id__"]
    return {
        "pair": Pair(data.astype(np.float32), number),
        "parts": (torch.tensor([number], dtype=torch.bfloat16), number / 2),
        "name": f"sample {number}",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resident")


@pytest.fixture(scope="module")
def equal(folder: Path) -> penstock.Dataset:
    """137 records of 24 bytes."""
    data = np.random.default_rng(0).integers(0, 256, (137, 24), np.uint8)
    (folder / "records.bin").write_bytes(data.tobytes())
    return penstock.open(folder / "records.bin", record_bytes=24, index="memory")


@pytest.fixture(scope="module")
def ragged(folder: Path) -> penstock.Dataset:
    """90 files in three classes: many of one length, some of others, one empty."""
    random = np.random.default_rng(1)
    for i in range(90):
        path = folder / "files" / f"class{i % 3}" / f"{i:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(0 if i == 40 else 33 if i % 4 else i))
    return penstock.open(folder / "files", index="memory")


def same(one: Any, other: Any) -> None:
    """Values of the same types, structure and bits, wherever tensors lie."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one.cpu(), other.cpu())
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, penstock.Ragged):
        same(one.values, other.values)
        same(one.offsets, other.offsets)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            same(mine, theirs)
    else:
        assert one == other


def epochs(loader: Any, count: int) -> Iterator[Any]:
    for _ in range(count):
        yield from loader


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decoded", first(1, [False, True]))
@given(
    kind=st.sampled_from(["equal", "ragged", "selected", "selected ragged"]),
    batch=st.sampled_from([1, 4, 7, 30]),
    shuffle=st.sampled_from([True, False, "blocked"]),
    drop_last=st.booleans(),
    place=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]),
    seed=st.integers(0, 2**64 - 1),
)
def test_same_batches_as_the_ordinary_loader(
    device: str, decoded: bool, equal: Any, ragged: Any, kind: str, batch: int, shuffle: Any,
    drop_last: bool, place: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    if decoded and "ragged" in kind:
        return  # what differs in length is not collated
    dataset = ragged if "ragged" in kind else equal
    if "selected" in kind:
        dataset = dataset.select(fraction=0.7, seed=seed)
    arguments: dict[str, Any] = {
        "dataset": dataset,
        "batch_size": batch,
        "shuffle": shuffle,
        "drop_last": drop_last,
        "rank": place[0],
        "world_size": place[1],
        "seed": seed,
        "decode": decode if decoded else None,
    }
    ordinary, resident = DataLoader(**arguments), DeviceLoader(**arguments, device=device)
    assert len(ordinary) == len(resident)
    assert list(ordinary.sampler) == list(resident.sampler)
    for one, other in zip(epochs(ordinary, 2), epochs(resident, 2), strict=True):
        same(one, other)
        if not decoded:
            assert torch.equal(torch.as_tensor(one.ids).cpu(), other.ids.cpu())
        assert ordinary.state_dict() == resident.state_dict()
    ordinary.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sample_bytes", [1, 24])
def test_small_pieces_of_loading_make_no_difference(
    equal: Any, ragged: Any, device: str, sample_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded one sample at a time, or a few: rows become ragged only where lengths differ."""
    monkeypatch.setattr("penstock.torch.device_loader._loading_bytes", 3 * sample_bytes)
    for data in (equal, ragged):
        pair = [kind(data, 8, True, seed=1) for kind in (DataLoader, DeviceLoader)]
        for one, other in zip(*pair, strict=True):
            same(one, other)
        pair[0].close()


def test_resumes_on_another_world_and_from_the_other_loader(equal: Any) -> None:
    """A state of two ranks in the ordinary loader is continued by three of ours, and back."""

    def ids(kind: Any, world: int, state: Any, steps: int | None) -> tuple[list[set[int]], Any]:
        common = {"shuffle": True, "drop_last": True, "seed": 3, "global_batch_size": 6}
        loaders = [kind(equal, **common, rank=r, world_size=world) for r in range(world)]
        found = []
        for loader in loaders:
            if state:
                loader.load_state_dict(state)
            taken = [batch.ids.tolist() for _, batch in zip(range(steps or 99), loader)]  # noqa: B905
            found.append(taken)
        steps_of = [set().union(*step) for step in zip(*found, strict=True)]
        return steps_of, loaders[0].state_dict()

    whole, _ = ids(DataLoader, 1, {}, None)
    first, state = ids(DataLoader, 2, {}, 5)
    second, state = ids(DeviceLoader, 3, state, 7)
    third, state = ids(DataLoader, 6, state, 4)
    rest, _ = ids(DeviceLoader, 2, state, None)
    assert [*first, *second, *third, *rest] == whole


def test_epochs_are_named_and_iterators_independent(equal: Any) -> None:
    loader = DeviceLoader(equal, 50, True, seed=1, device="cpu")
    begun = iter(loader)
    first = next(begun).ids.tolist()
    loader.set_epoch(0)
    assert next(iter(loader)).ids.tolist() == first
    assert next(iter(loader)).ids.tolist() != first  # epoch 1
    assert len(list(begun)) == 2
    loader.sampler.set_epoch(0)
    assert next(iter(loader)).ids.tolist() == first


def test_batches_stay_what_they_were(equal: Any) -> None:
    """A batch is the user's: changing one changes neither later batches nor the data."""
    loader = DeviceLoader(equal, 137, device="cpu")
    (one,) = loader
    kept = one["data"].clone()
    one["data"].zero_()
    (again,) = loader
    assert torch.equal(again["data"], kept)


def test_close_gives_the_memory_back_and_the_loader_goes_on(equal: Any) -> None:
    loader = DeviceLoader(equal, 10, True, device="cpu")
    before = next(iter(loader))["data"]
    loader.close()
    loader.set_epoch(0)
    assert torch.equal(next(iter(loader))["data"], before)


def test_refusals(equal: Any) -> None:
    with pytest.raises(UsageError, match=r"penstock\.open"):
        DeviceLoader([1, 2, 3])
    with pytest.raises(UsageError, match="auto"):
        DeviceLoader(equal, shuffle="auto")
    mixed = penstock.mix([(equal, 1), (equal, 1)])
    with pytest.raises(UsageError, match="mixture"):
        DeviceLoader(mixed, shuffle=True)
    with pytest.raises(StateError):
        DeviceLoader(equal, seed=1).load_state_dict(DataLoader(equal, seed=2).state_dict())
    with pytest.raises(UsageError, match="batch_size"):
        DeviceLoader(equal, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_does_not_fit_is_refused(folder: Path) -> None:
    path = folder / "large.bin"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 42)
    data = penstock.open(path, record_bytes=1 << 20, index="memory")
    with pytest.raises(penstock.errors.LimitError, match="free"):
        next(iter(DeviceLoader(data, device="cuda")))
