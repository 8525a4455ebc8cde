"""Threads that share an iterator: each batch comes once, whatever loader gives it."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import UsageError
from tests.slices import scaled

torch_loaders = pytest.importorskip("penstock.torch")
megatron = pytest.importorskip("penstock.trainers.megatron")

COUNT, BATCH = 40, 2
STEPS = COUNT // BATCH
_patience_s = 60.0  # a guard against hanging, not a measure


class Numbers:
    """Map-style dataset of the numbers themselves; some of them may fail."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> int:
        if i == self.bad:
            raise ValueError(f"item {i} fails")
        return i


class FailingSampler:
    """Sampler that fails after some samples."""

    def __iter__(self) -> Iterator[int]:
        yield from range(8 * BATCH)
        raise ValueError("the sampler fails")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.arange(COUNT, dtype=np.int64)[:, None])
    return penstock.open(path, index="memory")


def decode(sample: Any) -> Any:
    return sample["data"]


def load(dataset: Any, **options: Any) -> Any:
    return torch_loaders.DataLoader(dataset, BATCH, shuffle=True, seed=3, **options)


def cache() -> penstock.Cache:
    return penstock.Cache(ram_bytes=1 << 20)


KINDS: dict[str, Callable[[penstock.Dataset], Any]] = {
    "arrays": lambda ds: penstock.Loader(ds, BATCH, seed=3),
    "decoded": lambda ds: penstock.Loader(ds, BATCH, seed=3, decode=decode, decode_threads=2),
    "cached": lambda ds: penstock.Loader(ds, BATCH, seed=3, cache=cache(), rank=0, world_size=1),
    "tensors": lambda ds: load(ds),
    "records, a sampler": lambda ds: torch_loaders.DataLoader(ds, BATCH, sampler=range(COUNT)),
    "records, threads": lambda ds: load(ds, num_workers=2, workers="threads"),
    "records, processes": lambda ds: load(ds, num_workers=2, workers="processes"),
    "items": lambda ds: load(Numbers()),
    "items, threads": lambda ds: load(Numbers(), num_workers=2, workers="threads"),
    "items, processes": lambda ds: load(Numbers(), num_workers=2),
    "steps": lambda ds: torch_loaders.StepLoader(ds, BATCH, shuffle=True, seed=3),
    "steps of items": lambda ds: torch_loaders.StepLoader(Numbers(), BATCH, num_workers=2),
    "device": lambda ds: torch_loaders.DeviceLoader(ds, BATCH, shuffle=True, seed=3, device="cpu"),
}


@pytest.fixture(params=KINDS)
def loader(request: pytest.FixtureRequest, records: penstock.Dataset) -> Iterator[Any]:
    made = KINDS[request.param](records)
    yield made
    made.close()


def list_samples(batch: Any) -> list[int]:
    """List the samples of a batch, which are their own numbers."""
    field = batch["data"] if hasattr(batch, "keys") else batch
    samples: list[int] = np.asarray(field).ravel().tolist()
    return samples


class Switches:
    """Thread switches at random lines of penstock, and as often as the interpreter can."""

    current: Switches | None = None
    _installing = threading.Lock()  # CPython refuses two threads that install at once

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._interval_s = sys.getswitchinterval()

    def __enter__(self) -> None:
        sys.setswitchinterval(1e-6)
        Switches.current = self

    def __exit__(self, *exception: object) -> None:
        Switches.current = None
        sys.setswitchinterval(self._interval_s)

    @classmethod
    def begin_thread(cls) -> None:
        """Let this thread switch, if any is to."""
        if cls.current is not None:
            with cls._installing:
                sys.settrace(cls.current._trace_call)

    def _trace_call(self, frame: Any, event: str, argument: Any) -> Any:
        return self._trace_line if "/penstock/" in frame.f_code.co_filename else None

    def _trace_line(self, frame: Any, event: str, argument: Any) -> Any:
        if self._random.random() < 0.03:
            time.sleep(0)  # gives the GIL to another thread
        return self._trace_line


class Walk:
    """Walk of several threads through one iterator.

    batches:  those of each thread.
    errors:   those that threads got; they go on after an error, as they may.
    """

    def __init__(self, batches: Any, threads: int, most: int | None = None) -> None:
        self.batches: list[list[list[int]]] = [[] for _ in range(threads)]
        self.errors: list[list[Exception]] = [[] for _ in range(threads)]
        self._shared, self._most = batches, most
        self.taken = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._take, args=(number,), daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _take(self, number: int) -> None:
        Switches.begin_thread()
        while self._most is None or len(self.batches[number]) < self._most:
            try:
                batch = next(self._shared)
            except StopIteration:
                return
            except Exception as error:
                self.errors[number].append(error)
                assert len(self.errors[number]) < STEPS, "errors without end"
                continue
            self.batches[number].append(list_samples(batch))
            self.taken.release()

    def join(self) -> list[list[int]]:
        """Wait for the end; return the batches of all threads."""
        for thread in self._threads:
            thread.join(_patience_s)
            assert not thread.is_alive(), "a thread waits for ever"
        return [batch for batches in self.batches for batch in batches]


def find_position(loader: Any) -> int:
    state = loader.state_dict()
    position: int = state["epoch"] * STEPS + state["step"]
    return position


@pytest.mark.parametrize("threads", [3, pytest.param(2, marks=pytest.mark.long), 7])
@pytest.mark.parametrize("epochs", [4, pytest.param(scaled(260), marks=pytest.mark.long)])
def test_each_batch_comes_once(loader: Any, threads: int, epochs: int) -> None:
    """A thread gets its batches in their order. A state that is taken meanwhile is a place of the
    run, and never before an earlier one."""
    with Switches(threads):
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            expected = [list_samples(batch) for batch in loader] if epoch < 2 else None
            loader.set_epoch(epoch)
            walk, positions = Walk(iter(loader), threads), [epoch * STEPS]
            while positions[-1] < (epoch + 1) * STEPS:
                walk.taken.acquire(timeout=_patience_s)
                positions.append(find_position(loader))
            batches = walk.join()
            assert positions == sorted(positions)
            assert sorted(i for batch in batches for i in batch) == list(range(COUNT)), epoch
            assert not any(walk.errors)
            if expected is not None:
                assert sorted(batches) == sorted(expected)
                turns = [[expected.index(batch) for batch in own] for own in walk.batches]
                assert turns == [sorted(own) for own in turns]


@pytest.mark.parametrize("threads", [4])
def test_a_state_after_threads_continues_with_the_rest(
    loader: Any, records: penstock.Dataset, threads: int
) -> None:
    """Threads that stop in the middle leave a state with which the other batches come."""
    with Switches(1):
        walk = Walk(iter(loader), threads, most=2)
        first = walk.join()
    state = loader.state_dict()
    assert state["step"] == 2 * threads
    loader.load_state_dict(state)
    rest = [list_samples(batch) for batch in loader]
    assert sorted(i for batch in first + rest for i in batch) == list(range(COUNT))


@pytest.mark.parametrize("rounds", [2, pytest.param(scaled(100), marks=pytest.mark.long)])
def test_closed_by_another_thread(loader: Any, rounds: int) -> None:
    """`close` is the end for all threads, wherever they are; then the loader begins again."""
    with Switches(2):
        for turn in range(rounds):
            loader.set_epoch(0)
            walk = Walk(iter(loader), 3)
            for _ in range(turn % STEPS):
                walk.taken.acquire(timeout=_patience_s)
            loader.close()
            batches = walk.join()
            assert not any(walk.errors), walk.errors
            samples = [i for batch in batches for i in batch]
            assert len(samples) == len(set(samples))
    loader.set_epoch(0)
    assert sorted(i for batch in loader for i in list_samples(batch)) == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_to_one_thread(workers: int) -> None:
    """The batch that failed is one thread's error; the others come once."""
    loader = load(Numbers(bad=7), num_workers=workers)
    with Switches(3):
        walk = Walk(iter(loader), 3)
        samples = [i for batch in walk.join() for i in batch]
    loader.close()
    (error,) = [error for errors in walk.errors for error in errors]
    assert "item 7 fails" in str(error)
    assert len(samples) == len(set(samples)) == COUNT - BATCH


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_that_ends_the_epoch_comes_to_all_threads(workers: int) -> None:
    """No thread takes an epoch that was cut short for a whole one."""
    loader = torch_loaders.DataLoader(
        Numbers(), BATCH, sampler=FailingSampler(), num_workers=workers
    )
    walk = Walk(iter(loader), 3)
    assert len(walk.join()) == 8
    loader.close()
    errors = sorted(str(error) for (error,) in walk.errors)
    assert errors[0] == errors[1]
    assert errors[0].startswith("the rest of epoch 0 was dropped")
    assert errors[2] == "the sampler fails"


def test_a_failed_start_comes_to_each_thread_that_asks(tmp_path: Path) -> None:
    """A device loader whose data is gone: no thread finds an empty epoch."""
    np.save(tmp_path / "rows.npy", np.arange(COUNT)[:, None])
    data = penstock.open(tmp_path / "rows.npy", index="memory")
    (tmp_path / "rows.npy").unlink()
    walk = Walk(iter(torch_loaders.DeviceLoader(data, BATCH, device="cpu")), 3)
    assert walk.join() == []
    assert all(len(errors) == 1 for errors in walk.errors)


def test_iterators_of_one_loader_in_threads_of_their_own(loader: Any) -> None:
    """Each has an epoch, and all of its batches."""
    epochs: list[list[int]] = [[] for _ in range(4)]

    def walk(number: int) -> None:
        Switches.begin_thread()
        epochs[number] = sorted(i for batch in loader for i in list_samples(batch))

    with Switches(4):
        threads = [threading.Thread(target=walk, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_patience_s)
    assert epochs == [list(range(COUNT))] * 4


def test_an_endless_iterator(records: penstock.Dataset) -> None:
    """Threads that share Megatron's iterator begin each epoch once."""
    loader = load(records)
    batches = megatron.iterator(loader)
    with Switches(5):
        walk = Walk(batches, 4, most=STEPS)
        samples = [i for batch in walk.join() for i in batch]
    loader.close()
    assert sorted(samples) == sorted(list(range(COUNT)) * 4)


def test_a_loader_without_end_is_cut_short_once_for_each(records: penstock.Dataset) -> None:
    """After `close` of the iterator alone nothing is raised, in any thread."""
    batches = iter(load(records))
    next(batches)
    batches.close()
    walk = Walk(batches, 2)
    assert walk.join() == []
    assert not any(walk.errors)
    with pytest.raises(UsageError, match="give a Loader or a DataLoader"):
        megatron.iterator(batches)
