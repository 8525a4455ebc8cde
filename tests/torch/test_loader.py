"""penstock.torch.DataLoader against torch's own: the same batches, the same errors, and more."""

from __future__ import annotations

import collections
import gc
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests import warm
from tests.shared_memory import named_memory

torch = pytest.importorskip("torch")

import torch.utils.data as torch_data  # noqa: E402
from torch.utils.data import DistributedSampler  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import CollateError, ForkError, StateError, UsageError, WorkerError  # noqa: E402
from penstock.torch.device_copies import pin  # noqa: E402
from penstock.torch.loader import DataLoader  # noqa: E402
from tests.slices import first  # noqa: E402


class Point(NamedTuple):
    x: torch.Tensor
    y: float


class Numbers(torch_data.Dataset[Any]):
    """A torch dataset of n samples, each made by a function of its number."""

    def __init__(self, n: int, make: Callable[[int], Any] = int) -> None:
        self.n = n
        self.make = make

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if i >= self.n:
            raise IndexError(i)
        return self.make(i)


class Listed(Numbers):
    """Answers lists of numbers, which must be plain ints."""

    def __getitems__(self, ids: list[int]) -> list[Any]:
        assert type(ids) is list
        assert all(type(i) is int for i in ids)
        return [("listed", self.make(i)) for i in ids]


class Unlisted(Numbers):
    """Has `__getitems__`, but none that can be called: torch then asks for single items."""

    __getitems__ = None


def structure(i: int) -> Any:
    """A sample with everything that default_collate knows."""
    return {
        "tensor": torch.full((2, 3), float(i)),
        "half": torch.tensor([i], dtype=torch.bfloat16),
        "scalar": torch.tensor(i),
        "transposed": torch.arange(6).reshape(2, 3).t() + i,
        "bool": torch.tensor([i % 2 == 0]),
        "complex": torch.tensor([complex(i, 1)]),
        "array": np.arange(4, dtype=np.uint8) + i,
        "number": np.float32(i),
        "ints": (i, -i),
        "float": i / 2,
        "text": str(i),
        "bytes": bytes([i]),
        "point": Point(torch.tensor([i]), float(i)),
        "nested": {"list": [i, [i + 1]], "ordered": collections.OrderedDict(a=i, b=str(i))},
        "empty": torch.zeros(0),
    }


def same(a: Any, b: Any) -> bool:
    """True if two batches are equal in structure, types, dtypes and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def flat(batches: Any) -> list[int]:
    """The numbers in batches of numbers."""
    return [int(i) for batch in batches for i in batch]


def pids_of(loader: DataLoader) -> list[int]:
    return loader._workers.pids  # type: ignore[union-attr]


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    """83 records of 16 bytes, of which the first is the number."""
    rows = np.zeros((83, 16), np.uint8)
    rows[:, 0] = np.arange(83)
    rows[:, 1:] = np.random.default_rng(1).integers(0, 256, (83, 15))
    rows.tofile(tmp_path / "rows.bin")
    return penstock.open(tmp_path / "rows.bin", record_bytes=16)


@pytest.fixture
def folder(tmp_path: Path) -> penstock.Dataset:
    """Two classes of small files of different lengths."""
    for i in range(12):
        path = tmp_path / "tree" / "ab"[i % 2] / f"{i:02}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([i]) * (i + 1))
    return penstock.open(tmp_path / "tree")


# -- the same as torch -----------------------------------------------------------------------------

SAME: list[tuple[Any, dict[str, Any]]] = [
    (Numbers(10), {}),
    (Numbers(10, structure), {"batch_size": 4}),
    (Numbers(10, structure), {"batch_size": 4, "drop_last": True}),
    (Numbers(10, structure), {"batch_size": 4, "num_workers": 2}),
    (Numbers(9, structure), {"batch_size": 3, "num_workers": 2, "prefetch_factor": 1}),
    (Numbers(10, structure), {"batch_size": None}),
    (Numbers(10, structure), {"batch_size": None, "num_workers": 1}),
    (Numbers(10, structure), {"batch_size": 3, "collate_fn": list}),
    (Numbers(10, structure), {"batch_size": 3, "collate_fn": list, "num_workers": 2}),
    (Numbers(10), {"batch_size": None, "collate_fn": str}),
    (Numbers(10), {"batch_size": 20, "shuffle": False}),
    (Listed(10), {"batch_size": 4}),
    (Listed(10), {"batch_size": 4, "num_workers": 2, "persistent_workers": True}),
    (Listed(10), {"batch_size": None}),
    (Unlisted(10), {"batch_size": 4}),
    (Numbers(10), {"batch_size": 4, "sampler": [3, 1, 4, 1, 5]}),
    (Numbers(10), {"batch_size": 2, "sampler": [3, 1, 4, 1, 5], "drop_last": True}),
    (Numbers(10), {"batch_size": 2, "sampler": [3, 1, 4, 1, 5], "num_workers": 2}),
    (Numbers(10), {"batch_size": None, "sampler": range(9, 0, -1), "num_workers": 2}),
    (Numbers(10), {"batch_sampler": [[1], [2, 3], [9, 9, 9]]}),
    (Numbers(10), {"batch_sampler": [[1], [2, 3], [9, 9, 9]], "num_workers": 2}),
    (Numbers(3), {"batch_size": 4, "drop_last": True, "sampler": range(3)}),
    ({"a": 1, "b": 2}, {"sampler": ["b", "a"], "num_workers": 1}),
    (list(range(5)), {"batch_size": 2, "num_workers": 1}),
    (torch_data.TensorDataset(torch.arange(7), torch.rand(7, 2)), {"batch_size": 3}),
    (torch_data.Subset(Numbers(10), [5, 2, 7]), {"batch_size": 2}),
]


@pytest.mark.parametrize(("dataset", "arguments"), first(8, SAME))
def test_batches_as_torch(dataset: Any, arguments: dict[str, Any]) -> None:
    """Without shuffling, batches and their number are those of torch, epoch after epoch."""
    ours, theirs = DataLoader(dataset, **arguments), torch_data.DataLoader(dataset, **arguments)
    assert len(ours) == len(theirs)
    expected = list(theirs)
    for _ in range(2):
        got = list(ours)
        assert len(got) == len(expected)
        assert all(same(a, b) for a, b in zip(got, expected, strict=True))
    if arguments.get("num_workers") and arguments.get("batch_sampler") is None:
        threads = DataLoader(dataset, **arguments, workers="threads")
        assert all(same(a, b) for a, b in zip(threads, expected, strict=True))


class Stream(torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


WRONG: list[tuple[Any, dict[str, Any]]] = [
    (Numbers(4), {"num_workers": -1}),
    (Numbers(4), {"timeout": -1}),
    (Numbers(4), {"prefetch_factor": 2}),
    (Numbers(4), {"prefetch_factor": -2, "num_workers": 1}),
    (Numbers(4), {"persistent_workers": True}),
    (Numbers(4), {"sampler": [1], "shuffle": True}),
    (Numbers(4), {"batch_sampler": [[1]], "batch_size": 2}),
    (Numbers(4), {"batch_sampler": [[1]], "shuffle": True}),
    (Numbers(4), {"batch_sampler": [[1]], "sampler": [1]}),
    (Numbers(4), {"batch_sampler": [[1]], "drop_last": True}),
    (Numbers(4), {"batch_size": None, "drop_last": True}),
    (Numbers(4), {"batch_size": 0}),
    (Numbers(4), {"batch_size": -3}),
    (Numbers(4), {"batch_size": 1.5}),
    (Numbers(4), {"multiprocessing_context": "fork"}),
    (Numbers(4), {"multiprocessing_context": "none", "num_workers": 1}),
    (Numbers(4), {"multiprocessing_context": 5, "num_workers": 1}),
    (Stream(), {"shuffle": True}),
    (Stream(), {"sampler": [1]}),
    (Stream(), {"batch_sampler": [[1]]}),
]


@pytest.mark.parametrize(("dataset", "arguments"), WRONG)
def test_errors_as_torch(dataset: Any, arguments: dict[str, Any]) -> None:
    """Arguments that torch refuses are refused with the same type of exception."""
    with pytest.raises(Exception) as theirs:
        torch_data.DataLoader(dataset, **arguments)
    with pytest.raises(theirs.type):
        DataLoader(dataset, **arguments)


@pytest.mark.parametrize("workers", [1.5, "two", None])
def test_number_of_workers(workers: Any) -> None:
    """A number of workers that is no integer is refused by name."""
    with pytest.raises(TypeError, match="num_workers is .*: use an integer"):
        DataLoader(Numbers(4), num_workers=workers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decode": len}, "decode is for penstock datasets"),
        ({"workers": "fibers"}, "threads"),
        ({"global_batch_size": 4, "batch_size": 2}, "choose one"),
        ({"global_batch_size": 4, "sampler": [1]}, "choose one"),
        ({"rank": 1}, "world_size"),
        ({"rank": 0, "world_size": 5}, "5 ranks share 4 samples"),
        ({"batch_size": 8, "drop_last": True}, "leaves no batch"),
    ],
)
def test_our_errors(arguments: dict[str, Any], message: str) -> None:
    """Arguments of our own are checked when the loader is made."""
    with pytest.raises(UsageError, match=message):
        DataLoader(Numbers(4), **arguments)


def test_refused_datasets() -> None:
    """Iterable and empty datasets, and what is none, are refused, naming what to do."""
    with pytest.raises(UsageError, match=r"torch\.utils\.data\.DataLoader"):
        DataLoader(Stream())
    with pytest.raises(UsageError, match="empty"):
        DataLoader(Numbers(0))
    with pytest.raises(UsageError, match="dataset is a list_iterator: give .* __getitem__"):
        DataLoader(iter([1, 2]))


def test_timeout_needs_workers() -> None:
    """A timeout without workers fails when the epoch begins, as in torch."""
    for loader in (torch_data.DataLoader, DataLoader):
        with pytest.raises(AssertionError):
            iter(loader(Numbers(4), timeout=1))


@pytest.mark.parametrize(
    "options",
    [{}, {"collate_fn": list}, {"batch_size": None}, {"sampler": [3, 1, 2]}, {"decode": len}],
    ids=str,
)
@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_loader_made_of_our_attributes_is_refused(
    foreign: bool, kind: str, options: dict[str, Any], records: penstock.Dataset
) -> None:
    """Trainers that put another sampler in our place would train on raw samples, or on those of
    torch datasets in another order, in silence."""
    if foreign and "decode" in options:
        options = {"shuffle": True}
    dataset = Numbers(20) if foreign else records
    ours = DataLoader(dataset, **options)
    part = DistributedSampler(dataset, num_replicas=2, rank=0)  # type: ignore[arg-type]
    chosen: dict[str, Any] = {"sampler": part, "batch_size": ours.batch_size}
    if kind == "batch_sampler":
        chosen = {"batch_sampler": torch_data.BatchSampler(part, 4, False)}
    rebuilt = torch_data.DataLoader(ours.dataset, collate_fn=ours.collate_fn, **chosen)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"penstock.torch.StepLoader.*prepare_data_loader"):
        next(iter(rebuilt))
    assert next(iter(ours)) is not None


SOON_S = 60.0
"""A wait that is short on an idle machine ends by then on any; one for ever does not."""

# fmt: off
PUBLIC = [
    "dataset", "batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "in_order",
    "pin_memory_device",
]
# fmt: on


def test_attributes_as_torch() -> None:
    """Trainers find torch's attributes, of which the same are frozen."""
    for arguments in ({}, {"num_workers": 2, "batch_size": 3}, {"batch_sampler": [[1]]}):
        ours = DataLoader(Numbers(8), **arguments)
        theirs = torch_data.DataLoader(ours.dataset, **arguments)
        for name in PUBLIC:
            assert getattr(ours, name) == getattr(theirs, name), name
        assert list(ours.batch_sampler) == list(theirs.batch_sampler)
        assert list(ours.sampler) == list(theirs.sampler)
        assert len(ours.sampler) == len(theirs.sampler)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset"):
        with pytest.raises(ValueError, match="is fixed"):
            setattr(ours, name, None)
    ours.timeout = 3


# -- order, epochs, ranks --------------------------------------------------------------------------


def test_shuffle() -> None:
    """Each epoch is another permutation, the same for the same seed, whatever the workers."""
    loader = DataLoader(Numbers(50), 8, shuffle=True, seed=3)
    epochs = [flat(loader) for _ in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    for arguments in ({"num_workers": 2}, {"num_workers": 2, "workers": "threads"}):
        again = DataLoader(Numbers(50), 5, shuffle=True, seed=3, **arguments)
        assert [flat(again) for _ in range(3)] == epochs
    again.set_epoch(1)
    assert flat(again) == epochs[1]
    again.sampler.set_epoch(0)
    assert list(again.sampler) == epochs[0]
    assert flat(again) == epochs[0]


def random_states(generator: torch.Generator) -> list[Any]:
    """The states of all generators that a loader might draw from."""
    legacy = np.random.get_state()  # noqa: NPY002 (what users draw from)
    tensors = [generator.get_state().tolist(), torch.get_rng_state().tolist()]
    return [*tensors, random.getstate(), legacy[1].tolist(), legacy[2]]


def test_seeds() -> None:
    """The seed is that of the generator or 0, and no random state is used up."""
    generator = torch.Generator().manual_seed(5)
    before = random_states(generator)
    data = Numbers(40)
    assert flat(DataLoader(data, shuffle=True)) == flat(DataLoader(data, shuffle=True, seed=0))
    five = flat(DataLoader(data, shuffle=True, seed=5))
    assert flat(DataLoader(data, shuffle=True, generator=generator, num_workers=1)) == five
    assert flat(DataLoader(data, shuffle=True)) != five
    assert random_states(generator) == before
    ranked = DataLoader(data, shuffle=True, generator=generator, rank=0, world_size=2)
    with pytest.raises(UsageError, match="seed="):
        len(ranked)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("n", "world", "batch"), [(10, 4, 1), (11, 2, 2), (23, 3, 4), (16, 4, 2)])
def test_ranks_as_distributed_sampler(n: int, world: int, batch: int, drop_last: bool) -> None:
    """Unshuffled, each rank has the batches that DistributedSampler would give it."""
    data = Numbers(n)
    for rank in range(world):
        sampler = DistributedSampler(data, world, rank, shuffle=False, drop_last=drop_last)
        theirs = torch_data.DataLoader(data, batch, sampler=sampler, drop_last=drop_last)
        ours = DataLoader(data, batch, rank=rank, world_size=world, drop_last=drop_last)
        assert len(ours) == len(theirs)
        assert [b.tolist() for b in ours] == [b.tolist() for b in theirs]
        if not drop_last:
            assert len(ours.sampler) == len(sampler)
            assert list(ours.sampler) == list(sampler)
        given = DataLoader(data, batch, sampler=sampler, drop_last=drop_last)
        assert [b.tolist() for b in given] == [b.tolist() for b in theirs]


@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_at_every_step(shuffle: bool) -> None:
    """Any number of workers continues from a state of any step with exactly the batches left."""
    data = Numbers(23)
    whole = DataLoader(data, 4, shuffle=shuffle, seed=1)
    expected = [[b.tolist() for b in whole] for _ in range(2)]
    running = DataLoader(data, 4, shuffle=shuffle, seed=1, num_workers=2)
    others = [
        DataLoader(data, 4, shuffle=shuffle, seed=1),
        DataLoader(data, 4, shuffle=shuffle, seed=1, num_workers=1, prefetch_factor=5),
        DataLoader(data, 4, shuffle=shuffle, seed=1, num_workers=2, workers="threads"),
    ]
    states = [running.state_dict()]
    states += [running.state_dict() for _ in running]
    assert len(states) == 7
    for step, state in enumerate(states):
        for other in others:
            other.load_state_dict(json.loads(json.dumps(state)))
            assert other.state_dict() == state
            left = [b.tolist() for b in other]
            assert left == (expected[0][step:] if step < 6 else expected[1])


def test_resume_on_other_ranks() -> None:
    """1 -> 2 -> 4 -> 3 ranks within one epoch see every sample once, apart from the padding."""
    data, seen, state = Numbers(62), collections.Counter[int](), None
    for world, steps in ((1, 1), (2, 2), (4, 1), (3, None)):
        loaders = [
            DataLoader(
                data, shuffle=True, global_batch_size=12, rank=rank, world_size=world, seed=2
            )
            for rank in range(world)
        ]
        states, counts = set(), set()
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            taken = list(batches) if steps is None else [next(batches) for _ in range(steps)]
            seen.update(flat(taken))
            states.add(json.dumps(loader.state_dict()))
            counts.add(len(taken))
        assert len(states) == len(counts) == 1
        state = json.loads(states.pop())
    assert set(seen) == set(range(62))
    assert sum(seen.values()) == 63  # 62 samples, padded to shares of 3 ranks


def test_states_that_do_not_fit() -> None:
    """A state of other data, seed, order or batch is refused; an empty one says nothing."""
    state = DataLoader(Numbers(20), 4, shuffle=True, seed=1).state_dict()
    for other in (
        DataLoader(Numbers(21), 4, shuffle=True, seed=1),
        DataLoader(Listed(20), 4, shuffle=True, seed=1),
        DataLoader(Numbers(20), 5, shuffle=True, seed=1),
        DataLoader(Numbers(20), 4, shuffle=True, seed=2),
        DataLoader(Numbers(20), 4, seed=1),
        DataLoader(Numbers(20), 4, sampler=range(20), seed=1),
        DataLoader(Numbers(20), 4, shuffle=True, seed=1, rank=0, world_size=2),
    ):
        before = other.state_dict()
        assert before.keys() == state.keys()
        with pytest.raises(StateError):
            other.load_state_dict(state)
        with pytest.raises(StateError):
            other.load_state_dict({})
        assert other.state_dict() == before


def test_resume_with_a_sampler() -> None:
    """Under a sampler that knows its epoch, a state continues the same sequence."""
    data = Numbers(21)

    def made() -> DataLoader:
        sampler = DistributedSampler(data, 2, 1, shuffle=True, seed=4)
        return DataLoader(data, 3, sampler=sampler, num_workers=1)

    whole = made()
    whole.set_epoch(2)
    expected = [b.tolist() for b in whole]
    assert whole.state_dict()["epoch"] == 3
    for step in range(len(expected)):
        running, other = made(), made()
        running.set_epoch(2)
        batches = iter(running)
        for _ in range(step):
            next(batches)
        other.load_state_dict(running.state_dict())
        assert [b.tolist() for b in other] == expected[step:]


def test_a_sampler_is_told_its_epoch() -> None:
    """Under a sampler epochs count up by themselves too, and a resumed one equals the original; an
    epoch that the user sets on the sampler is followed."""
    data = Numbers(21)

    def made(workers: int) -> DataLoader:
        sampler = DistributedSampler(data, 2, 1, shuffle=True, seed=4)
        return DataLoader(data, 3, sampler=sampler, num_workers=workers, workers="threads")

    for workers in (0, 1):
        running, other = made(workers), made(workers)
        epochs = [flat(running) for _ in range(3)]
        assert len({str(epoch) for epoch in epochs}) == 3
        first, second = iter(other), iter(other)
        pairs = list(zip(first, second, strict=True))
        assert [flat(a for a, _ in pairs), flat(b for _, b in pairs)] == epochs[:2]
        next(batches := iter(running))
        state = running.state_dict()
        other.load_state_dict(state)
        assert (state["epoch"], state["step"]) == (3, 1)
        assert flat(other) == flat(batches)
        running.sampler.set_epoch(1)
        assert flat(running) == epochs[1]
        assert flat(running) == epochs[2]


def test_break_and_two_iterators() -> None:
    """A broken-off epoch is over; two iterators at once are independent."""
    for arguments in ({}, {"num_workers": 2}, {"num_workers": 1, "workers": "threads"}):
        loader = DataLoader(Numbers(30), 4, shuffle=True, seed=1, **arguments)
        fresh = DataLoader(Numbers(30), 4, shuffle=True, seed=1)
        epochs = [flat(fresh) for _ in range(4)]
        next(iter(loader))
        assert flat(loader) == epochs[1]
        first, second = iter(loader), iter(loader)
        assert len(first) == 8  # type: ignore[arg-type]
        pairs = list(zip(first, second, strict=True))
        assert flat(a for a, _ in pairs) == epochs[2]
        assert flat(b for _, b in pairs) == epochs[3]


# -- workers ---------------------------------------------------------------------------------------


def about_worker(i: int) -> Any:
    info = torch_data.get_worker_info()
    assert info is not None
    assert len(info.dataset) == 40  # type: ignore[arg-type]
    return info.id, info.num_workers, info.seed, torch.get_num_threads(), marks.get("mark", -1)


marks: dict[str, int] = {}


def mark(worker: int) -> None:
    marks["mark"] = 100 + worker


def test_worker_info() -> None:
    """Samples are made where torch says: get_worker_info answers, init ran, one thread computes."""
    loader = DataLoader(
        Numbers(40, about_worker), 2, num_workers=2, worker_init_fn=mark, collate_fn=list
    )
    found = {sample for batch in loader for sample in batch}
    assert {f[0] for f in found} == {0, 1}
    assert {f[1] for f in found} == {2}
    assert len({f[2] - f[0] for f in found}) == 1
    assert {f[3] for f in found} == {1}
    assert {f[4] - f[0] for f in found} == {100}
    assert torch_data.get_worker_info() is None
    assert not marks


def drawn(i: int) -> Any:
    return i, random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def draw_rarely(i: int) -> Any:
    return i, torch.rand(()).item() if i % 2 else 0.0


def collate_randomly(samples: list[Any]) -> Any:
    return samples, random.random(), torch.rand(()).item()


def draw_and_see(i: int) -> int:
    torch.rand(())
    return torch.initial_seed()


@pytest.mark.parametrize(
    "reading", [{}, {"sampler": range(24)}, {"workers": "processes", "num_workers": 1}]
)
def test_tuples_of_fields(reading: dict[str, Any], tmp_path: Path) -> None:
    """With `as_tuple` a loop over torch's tuples stays as it is, whatever makes the batches."""
    np.save(tmp_path / "x.npy", np.arange(24))
    records = penstock.open(tmp_path / "x.npy", index="memory")
    fields = lambda sample: {"image": sample["data"], "label": sample["__id__"]}  # noqa: E731
    loader = DataLoader(records, 4, decode=fields, as_tuple=("image", "label"), **reading)
    for image, label in loader:
        assert torch.equal(image, label)
    with pytest.raises(UsageError, match=r"take batch\['image'\], batch\['label'\]"):
        for _image, _label in DataLoader(records, 4, decode=fields, **reading):
            pass
    loader.close()


def test_seeds_of_items() -> None:
    """Each item that draws has its own seed, with any workers, which fits a tensor as torch's."""
    seeds = []
    for workers in (0, 2):
        loader = DataLoader(Numbers(24, draw_and_see), 4, num_workers=workers)
        seeds.append(torch.cat(list(loader)).tolist())
        loader.close()
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 24


@pytest.mark.parametrize("change", first(1, [drawn, draw_rarely]))
def test_random_numbers_of_items(change: Callable[[int], Any]) -> None:
    """Random augmentation depends on seed, epoch and sample: not on workers, batches or ranks, nor
    on resuming; and the state of this process stays as it was."""
    data = Numbers(96, change)
    expected: list[dict[int, Any]] = []
    for workers, size, world in ((0, 4, 1), (1, 4, 1), (2, 5, 1), (0, 3, 2)):
        random.seed(workers)
        before = random_states(torch.Generator())
        made = [
            DataLoader(
                data,
                size,
                shuffle=True,
                seed=1,
                num_workers=workers,
                collate_fn=list,
                rank=rank,
                world_size=world,
            )
            for rank in range(world)
        ]
        found = [
            {sample[0]: sample for loader in made for batch in loader for sample in batch}
            for _ in range(2)
        ]
        assert random_states(torch.Generator()) == before
        expected = expected or found
        assert found == expected
        resumed = DataLoader(data, size, shuffle=True, seed=1, num_workers=workers, collate_fn=list)
        if world == 1:
            resumed.load_state_dict(made[0].state_dict() | {"epoch": 1, "step": 2})
            rest = {sample[0]: sample for batch in resumed for sample in batch}
            assert rest == {i: expected[1][i] for i in rest}
    numbers = [sample[1:] for epoch in expected for sample in epoch.values() if sample[1]]
    for column in zip(*numbers, strict=True):
        assert len(set(column)) == len(numbers)


@pytest.mark.parametrize(
    "arguments", [{"collate_fn": collate_randomly}, {"sampler": [3, 3, 5] * 6}]
)
def test_random_numbers_of_batches(arguments: dict[str, Any]) -> None:
    """A collate_fn that draws is the same with any workers; a sample that a sampler repeats is
    another each time."""
    made = [
        DataLoader(
            Numbers(24, drawn), 4, seed=1, num_workers=n, **({"collate_fn": list} | arguments)
        )
        for n in (0, 1, 2)
    ]
    batches = [list(loader) for loader in made]
    assert batches[0] == batches[1] == batches[2]
    parts = [batch[1:] if type(batch) is tuple else batch for batch in batches[0]]
    values = [part for batch in parts for part in batch]
    assert len(set(values)) == len(values)


def decode_globally(sample: dict[str, Any]) -> Any:
    return drawn(sample["__id__"])[1:]


def test_random_numbers_of_decode_in_processes(records: penstock.Dataset) -> None:
    """A decode that draws from global generators is exact in worker processes."""
    found = []
    for workers, size in ((1, 4), (2, 7)):
        loader = DataLoader(
            records,
            size,
            seed=1,
            num_workers=workers,
            workers="processes",
            decode=decode_globally,
            collate_fn=list,
        )
        found.append([sample for batch in loader for sample in batch])
    assert found[0] == found[1]
    assert len(set(found[0])) == len(found[0])


def test_workers_live_on() -> None:
    """Epochs and iterators share the processes, which end with the loader."""
    loader = DataLoader(Numbers(10), num_workers=2)
    assert loader._workers is None  # nothing is started before it is needed
    list(loader)
    pids = pids_of(loader)
    next(iter(loader))
    list(loader)
    assert pids_of(loader) == pids
    loader.close()
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids)
    assert len(list(loader)) == 10
    pids = pids_of(loader)
    del loader
    gc.collect()
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids)


def failing(i: int) -> int:
    if i == 7:
        raise {"kind": ValueError}["kind"]("seven is bad")
    if i == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return i


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_exceptions(workers: Any) -> None:
    """An exception in a worker arrives with its type and traceback; the next epoch works."""
    loader = DataLoader(Numbers(10, failing), 2, num_workers=2, workers=workers)
    for _ in range(2):
        batches = iter(loader)
        assert flat(next(batches) for _ in range(3)) == list(range(6))
        with pytest.raises(ValueError, match="seven is bad") as caught:
            next(batches)
        if workers == "processes":
            assert "Caught ValueError in DataLoader worker process" in str(caught.value)
            assert "in failing" in str(caught.value)
    assert loader.state_dict()["step"] == 3  # where the failed batch would be tried again
    assert flat(batches) == [8, 9]
    assert loader.state_dict()["epoch"] == 2


def test_killed_worker() -> None:
    """A killed worker is a RuntimeError soon, from whose state a new epoch goes on."""
    data = torch_data.Subset(Numbers(20, failing), range(10, 20))
    loader = DataLoader(data, 1, num_workers=2)
    batches, started_s = iter(loader), time.monotonic()
    with pytest.raises(RuntimeError, match=r"worker \(pid\(s\) \d+\) exited unexpectedly"):
        list(batches)
    assert time.monotonic() - started_s < SOON_S
    loader.load_state_dict({**loader.state_dict(), "step": 4})
    assert flat(loader) == list(range(14, 20))


def stuck(i: int) -> int:
    if i == 2:
        signal.pause()
    return i


def test_timeout() -> None:
    """A batch that does not come within `timeout` is a RuntimeError, as in torch."""
    loader = DataLoader(Numbers(4, stuck), num_workers=1, timeout=0.3)
    batches = iter(loader)
    assert flat([next(batches), next(batches)]) == [0, 1]
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.3 seconds"):
        next(batches)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.long)])
def test_start_methods(method: str) -> None:
    """Workers may be started in any way that multiprocessing knows."""
    script = f"""
import torch
from penstock.torch.loader import DataLoader
if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.arange(5))
    loader = DataLoader(data, 2, num_workers=1, multiprocessing_context={method!r})
    print([batch[0].tolist() for batch in loader])
"""
    assert run(script) == (0, "[[0, 1], [2, 3], [4]]\n", "")


def run(script: str) -> tuple[int, str, str]:
    """Run a program of its own; code, output and errors."""
    done = warm.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        whole_end=True,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
def test_exit_with_live_iterators(records: penstock.Dataset) -> None:
    """A program ends at once with iterators alive, of every kind of worker."""
    script = f"""
import time, torch, penstock, penstock.loader.decode
from penstock.torch.loader import DataLoader
penstock.loader.decode._exit_s = 100.0  # a thread that does not end holds the program so long
records = penstock.open({records.path!r}, record_bytes=16)
items = torch.utils.data.TensorDataset(torch.arange(1000))
loaders = [DataLoader(data, 2, num_workers=2, workers=workers)
           for data in (records, items) for workers in ("threads", "processes")]
iterators = [iter(loader) for loader in loaders]
for iterator in iterators: next(iterator)
print(time.monotonic())
"""
    code, ended_s, errors = run(script)
    assert (code, errors) == (0, "")
    assert time.monotonic() - float(ended_s) < SOON_S  # 0.2 on an idle machine


def children() -> set[str]:
    """The processes that this one has started and that have not ended."""
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for path in lists for pid in path.read_text().split()}


def test_nothing_is_left(records: penstock.Dataset) -> None:
    """Loaders of every kind give back processes, descriptors and memory, which has no name."""

    before = children()

    def use() -> int:
        for data in (records, Numbers(20, structure)):
            for workers in ("threads", "processes"):
                loader = DataLoader(data, 4, num_workers=2, workers=workers)  # type: ignore[arg-type]
                next(iter(loader))
                kept = list(loader)
                for pid in ["self", *getattr(loader._workers, "pids", [])]:
                    assert not named_memory(pid)
                loader.close()
                del loader, kept
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    assert len({use() for _ in range(3)}) == 1
    assert children() <= before  # those of an earlier test may end meanwhile


# -- penstock datasets -----------------------------------------------------------------------------

READING: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "workers": "processes"},
]


@pytest.mark.parametrize("arguments", READING)
def test_raw_tensors(records: penstock.Dataset, arguments: dict[str, Any]) -> None:
    """Without decode a batch has tensors that hold the records."""
    loader = DataLoader(records, 10, shuffle=True, seed=1, **arguments)
    batches = list(loader)
    assert len(batches) == len(loader) == 9
    assert [list(b) for b in batches] == [["data"]] * 9
    ids = torch.cat([b.ids for b in batches])
    rows = torch.cat([b["data"] for b in batches])
    assert ids.dtype == torch.int64
    assert rows.dtype == torch.uint8
    assert sorted(ids.tolist()) == list(range(83))
    assert rows[:, 0].tolist() == ids.tolist()
    assert all(b.valid.all() for b in batches)
    expected = np.fromfile(Path(records.path), np.uint8).reshape(83, 16)
    assert torch.equal(rows, torch.from_numpy(expected)[ids])


@pytest.mark.parametrize("arguments", READING)
def test_ragged_tensors(folder: penstock.Dataset, arguments: dict[str, Any]) -> None:
    """Fields of different lengths are values and offsets; labels are int64."""
    (batch,) = DataLoader(folder, 12, **arguments)
    assert type(batch["data"]) is penstock.Ragged
    values, offsets = batch["data"].values, batch["data"].offsets
    rows = [values[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert sorted(rows) == [[i] * (i + 1) for i in range(12)]
    assert batch["label"].tolist() == [row[0] % 2 for row in rows]
    assert [row.tolist() for row in batch["data"]] == rows
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert [len(part) for part in nested.unbind()] == [len(row) for row in rows]
    moved = batch["data"].to(torch.int32)
    assert (moved.values.dtype, moved.offsets.dtype) == (torch.int32, torch.int64)
    assert [row.tolist() for row in moved] == rows


def decoded(sample: dict[str, Any]) -> Any:
    data = np.frombuffer(sample["data"], np.uint8).copy()
    half = torch.from_numpy(data.astype(np.float32)).to(torch.bfloat16)
    return {"half": half, "array": data[:3], "n": int(data[0]), "key": sample["__key__"], "f": 0.5}


@pytest.mark.parametrize("arguments", READING)
@pytest.mark.parametrize("collate", first(1, [None, list, torch_data.default_collate]))
def test_decode(records: penstock.Dataset, arguments: dict[str, Any], collate: Any) -> None:
    """Decoded samples are collated as default_collate would, or by collate_fn."""
    ids = flat(DataLoader(Numbers(83), 10, shuffle=True, seed=1))
    loader = DataLoader(
        records, 10, shuffle=True, seed=1, decode=decoded, collate_fn=collate, **arguments
    )
    for step, batch in enumerate(loader):
        samples = [decoded(records[i]) for i in ids[10 * step : 10 * step + 10]]
        fields = dict(batch) if isinstance(batch, penstock.Batch) else batch
        assert same(fields, (collate or torch_data.default_collate)(samples))


@pytest.mark.parametrize("arguments", READING)
def test_unbatched(records: penstock.Dataset, arguments: dict[str, Any]) -> None:
    """With batch_size=None each step is one sample, its fields as tensors."""
    samples = list(DataLoader(records, batch_size=None, **arguments))
    assert len(samples) == 83
    assert [int(s["data"][0]) for s in samples] == list(range(83))
    assert samples[5]["data"].shape == (16,)
    assert samples[5]["__key__"] == records[5]["__key__"]
    named = DataLoader(
        records, batch_size=None, decode=decoded, collate_fn=lambda s: s["n"], **arguments
    )
    assert list(named) == list(range(83))


@pytest.mark.parametrize("arguments", READING)
def test_records_by_sampler(records: penstock.Dataset, arguments: dict[str, Any]) -> None:
    """A sampler may choose the samples of a penstock dataset too."""
    batches = list(DataLoader(records, 3, sampler=[5, -1, 7, 5, 80], **arguments))
    assert [b.ids.tolist() for b in batches] == [[5, 82, 7], [5, 80]]
    assert [b["data"][:, 0].tolist() for b in batches] == [[5, 82, 7], [5, 80]]
    with pytest.raises(IndexError, match="sample 83"):
        list(DataLoader(records, sampler=[83], **arguments))


@pytest.mark.parametrize("arguments", READING)
def test_records_resume_and_ranks(records: penstock.Dataset, arguments: dict[str, Any]) -> None:
    """Penstock datasets resume at every step, and tell which samples pad the last one."""
    made = [
        DataLoader(records, 5, shuffle=True, seed=9, rank=r, world_size=2, **arguments)
        for r in range(2)
    ]
    epoch = [[b.ids.tolist() for b in loader] for loader in made]
    assert len(epoch[0]) == len(epoch[1]) == 9
    made[0].set_epoch(0)
    made[1].set_epoch(0)
    valid = [torch.cat([b.valid for b in loader]) for loader in made]
    assert valid[0].all()
    assert valid[1].tolist() == [True] * 41 + [False]
    ids = flat(epoch[0]) + flat(epoch[1])
    assert sorted(ids[:-1]) == list(range(83))
    assert ids[-1] == epoch[0][0][0]
    for step in range(9):
        state = {**made[0].state_dict(), "epoch": 0, "step": step}
        made[1].load_state_dict(state)
        assert [b.ids.tolist() for b in made[1]] == epoch[1][step:]


def unlike(sample: dict[str, Any]) -> Any:
    first = np.frombuffer(sample["data"], np.uint8)[0]
    if first == 3:
        raise LookupError("three is bad")
    return torch.zeros(2 if first == 60 else 1)


@pytest.mark.parametrize("arguments", READING)
def test_decode_fails(records: penstock.Dataset, arguments: dict[str, Any]) -> None:
    """An exception of decode arrives with its type, and names the sample; so do unequal shapes."""
    with pytest.raises(LookupError, match="three is bad") as caught:
        list(DataLoader(records, 10, decode=unlike, **arguments))
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert records[3]["__key__"] in told
    with pytest.raises(CollateError):
        list(DataLoader(records, 10, decode=unlike, sampler=range(55, 65), **arguments))


def stopped(_: Any) -> Any:
    return next(iter(()))


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("count", [0, 1])
def test_stop_iteration(records: penstock.Dataset, workers: Any, count: int) -> None:
    """A StopIteration of the user's code is a RuntimeError, and not the end of the epoch."""
    for data, arguments in (
        (records, {"decode": stopped}),
        (records, {"decode": len, "collate_fn": stopped}),
        (records, {"decode": stopped, "sampler": range(4)}),
        (Numbers(4, stopped), {}),
        (Numbers(4), {"collate_fn": stopped}),
    ):
        loader = DataLoader(data, 2, num_workers=count, workers=workers, **arguments)
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(loader)
        loader.close()


class Failing(torch_data.Sampler[int]):
    """Gives the samples before `bad`, then raises; its second epoch is whole."""

    def __init__(self, bad: int, epoch: int = 0) -> None:
        self.bad, self.epoch = bad, epoch

    def __iter__(self) -> Iterator[int]:
        if self.bad < 0 and self.epoch == 0:
            raise LookupError("no such epoch")
        for i in range(12):
            if i == self.bad and self.epoch == 0:
                raise LookupError("no such sample")
            yield i

    def __len__(self) -> int:
        return 12

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("bad", [-1, 0, 1, 7])
@pytest.mark.parametrize("size", [1, 3])
def test_failing_sampler(records: penstock.Dataset, bad: int, size: int) -> None:
    """Its error comes once, after the batches before it, as in torch, with any workers; the state
    is that of the step which has no samples, and the loader goes on with the next epoch."""
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (Numbers(12), {}),
        (Numbers(12), {"num_workers": 2}),
        (Numbers(12), {"num_workers": 1, "prefetch_factor": 5}),
        (records, {"num_workers": 2, "decode": lambda sample: sample["data"][0]}),
    ]
    theirs = iter(torch_data.DataLoader(Numbers(12), size, sampler=Failing(bad)))
    expected: list[int] = []
    with pytest.raises(LookupError) as error:
        expected.extend(i for batch in theirs for i in batch.tolist())
    for data, arguments in kinds:
        loader = DataLoader(data, size, sampler=Failing(bad), **arguments)
        batches, given = iter(loader), []
        with pytest.raises(LookupError, match=str(error.value)):
            given.extend(i for batch in batches for i in batch.tolist())
        assert given == expected
        state = loader.state_dict()
        assert list(batches) == list(theirs) == []
        assert loader.state_dict() == state
        assert (state["epoch"], state["step"]) == (0, len(expected) // size)
        assert flat(loader) == list(range(12))
        loader.close()


def test_ignored_arguments(records: penstock.Dataset, recwarn: pytest.WarningsRecorder) -> None:
    """If threads decode, arguments for worker processes are named in a warning."""
    arguments: dict[str, Any] = {
        "worker_init_fn": mark,
        "multiprocessing_context": "fork",
        "prefetch_factor": 4,
    }
    for name, value in arguments.items():
        with pytest.warns(UserWarning, match=f"{name}: there are no worker processes") as caught:
            DataLoader(records, num_workers=1, **{name: value})
        assert [each.filename for each in caught] == [__file__]
    recwarn.clear()
    DataLoader(records, num_workers=1, workers="processes", **arguments)
    DataLoader(records, num_workers=1)
    assert not recwarn.list


def test_changed_file(records: penstock.Dataset) -> None:
    """A file that changed after indexing is an error in every kind of worker."""
    os.truncate(records.path, 160)
    for arguments in READING:
        with pytest.raises(penstock.errors.ChangedError, match=r"rows\.bin"):
            list(DataLoader(records, 10, **arguments))


def test_fork_after_use(records: penstock.Dataset) -> None:
    """In a forked child a used engine is refused; worker processes are started anew."""
    engine, processes = DataLoader(records, 10), DataLoader(Numbers(6), num_workers=1)
    live = iter(engine).begin(), iter(processes).begin()
    pids = pids_of(processes)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told = []
        for use in (lambda: next(iter(engine)), lambda: next(live[0]), lambda: next(live[1])):
            try:
                use()
            except ForkError:
                told.append("refused")
        told.append(str(flat(processes) == list(range(6)) and pids_of(processes) != pids))
        os.write(writer, " ".join(told).encode())
        processes.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"refused refused refused True"
    os.close(reader)
    os.close(writer)
    assert len(list(live[0])) == 9
    assert len(list(live[1])) == 6


def test_decode_hangs(records: penstock.Dataset) -> None:
    """A decode that does not return in time is a RuntimeError too."""
    release = threading.Event()
    loader = DataLoader(
        records, 4, decode=lambda sample: release.wait(20), num_workers=1, timeout=0.3
    )
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.3 seconds"):
        next(iter(loader))
    release.set()
    loader.close()


# -- pinned memory ---------------------------------------------------------------------------------


class Pinnable:
    """A batch of the user's own, that knows how to pin itself."""

    pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_pin_memory_without_accelerator() -> None:
    """Without an accelerator there is a warning, and ordinary memory, as in torch."""
    with pytest.warns(UserWarning, match="pin_memory"):
        batches = list(DataLoader(Numbers(4), 2, pin_memory=True))
    assert not batches[0].is_pinned()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
@pytest.mark.parametrize("workers", [0, 2])
def test_pin_memory(records: penstock.Dataset, workers: int) -> None:
    """With an accelerator all tensors are pinned, in every structure; custom objects are asked."""
    loader = DataLoader(Numbers(4, structure), 2, pin_memory=True, num_workers=workers)
    for batch, plain in zip(loader, DataLoader(loader.dataset, 2), strict=True):
        assert batch["tensor"].is_pinned()
        assert batch["point"].x.is_pinned()
        assert batch["nested"]["list"][0].is_pinned()
        assert same(batch, plain)
    raw = next(iter(DataLoader(records, 4, pin_memory=True, num_workers=workers)))
    assert raw["data"].is_pinned()
    loader = DataLoader(Numbers(4), 2, pin_memory=True, collate_fn=lambda _: Pinnable())
    assert all(batch.pinned for batch in loader)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.bfloat16, torch.bool])
def test_pin_large_tensors(dtype: torch.dtype) -> None:
    """Large tensors keep their values: of odd sizes, transposed, pinned before, with a gradient."""
    whole = torch.arange(3 * (1 << 20) + 41).remainder(251).to(dtype).repeat(3)
    for tensor in (whole, whole[5:], whole.view(3, -1), whole.view(3, -1).T, whole[::2]):
        pinned = pin({"x": tensor})["x"]
        assert pinned.is_pinned()
        assert pinned.shape == tensor.shape
        assert torch.equal(pinned, tensor)
        assert pinned.data_ptr() != tensor.data_ptr()
        assert pin(pinned).data_ptr() == pinned.data_ptr()
    if dtype.is_floating_point:
        assert torch.equal(pin(whole.requires_grad_()), whole)


def test_worker_error_is_public() -> None:
    """Exceptions that end an epoch can be told from those that the dataset raised."""
    assert issubclass(WorkerError, RuntimeError)
    assert issubclass(WorkerError, penstock.PenstockError)


def test_a_cache_is_shared_and_read_once(tmp_path):
    """Two epochs of one rank with `cache` read the data once."""
    np.save(tmp_path / "x.npy", np.arange(6000, dtype=np.uint8).reshape(100, 60))
    dataset = penstock.open(tmp_path / "x.npy")
    cache = penstock.Cache(ram_bytes=1 << 20)
    loader = DataLoader(
        dataset, 10, shuffle=True, cache=cache, assignment="local", rank=0, world_size=1
    )
    assert len(loader) == 10
    for _ in range(2):
        rows = torch.cat([batch["data"] for batch in loader])
        assert sorted(rows[:, 0].tolist()) == sorted((np.arange(100) * 60 % 256).tolist())
    assert loader.stats()["bytes"] == 6000
    assert [epoch["storage_bytes"] for epoch in loader.run_record()["epochs"]] == [6000, 0]
    with pytest.raises(UsageError, match="cache, assignment"):
        DataLoader(dataset, 10, cache=cache, workers="processes", num_workers=1)


def as_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    number = sample["__id__"]
    return {"x": torch.arange(number % 5), "y": [1.5] * (number % 3), "n": number}


class Tokens(Numbers):
    def __getitem__(self, i: int) -> Any:
        return as_tokens({"__id__": i})


@pytest.mark.parametrize("arguments", READING)
@pytest.mark.parametrize("foreign", [False, True])
def test_padding(records: penstock.Dataset, arguments: dict[str, Any], foreign: bool) -> None:
    """Padded fields are tensors, of penstock datasets and torch datasets alike."""
    pad = penstock.pad({"x": -100, "y": 0}, multiple=2, mask="mask")
    if foreign:
        loader = DataLoader(Tokens(83), 10, collate_fn=pad, num_workers=len(arguments))
    else:
        loader = DataLoader(records, 10, decode=as_tokens, collate_fn=pad, **arguments)
    for step, batch in enumerate(loader):
        numbers = range(10 * step, min(83, 10 * step + 10))
        assert batch["n"].tolist() == list(numbers)
        for row, number in enumerate(numbers):
            expected = [*range(number % 5)]
            filled = batch["x"].shape[1] - len(expected)
            assert batch["x"][row].tolist() == expected + [-100] * filled
            assert batch["mask"][row].tolist() == [1] * len(expected) + [0] * filled
        assert (batch["x"].dtype, batch["mask"].dtype) == (torch.int64, torch.int64)
        assert batch["y"].dtype == torch.float64
