"""Any ordinary dataset and arguments: penstock.torch.DataLoader gives what torch's gives.

torch's loader is the oracle: the same batches in the same order, the same lengths, exceptions of
the same types at the same steps, and the same batches after them. What differs on purpose is left
out here and listed in docs/torch.md.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import torch.utils.data as torch_data  # noqa: E402

from penstock.torch import DataLoader  # noqa: E402
from tests.slices import first  # noqa: E402
from tests.torch.test_loader import Numbers, Point, same, structure  # noqa: E402


class OddError(Exception):
    """Cannot be built from a text alone."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


def describe_worker(i: int) -> Any:
    """Describe where an item is made, as far as loaders have to agree on it."""
    info = torch_data.get_worker_info()
    return i, -1 if info is None else info.num_workers, torch.is_inference_mode_enabled()


def make_ragged(i: int) -> Any:
    """A sample that default_collate refuses to stack with another one."""
    return torch.zeros(i + 1)


KINDS: dict[str, Callable[[int], Any]] = {
    "number": lambda i: i,
    "float": lambda i: i / 3,
    "bool": lambda i: i % 2 == 0,
    "text": lambda i: "ab" * i,
    "bytes": lambda i: bytes([i]) * i,
    "row": lambda i: np.full((3, 2), i, np.int16),
    "scalar": lambda i: np.float16(i),
    "array of no dimension": lambda i: np.array(i),
    "tensor": lambda i: torch.full((2,), i, dtype=torch.bfloat16),
    "view": lambda i: torch.arange(40).reshape(5, 8)[:, i % 8],
    "tuple": lambda i: (i, (str(i), torch.tensor([i]))),
    "point": lambda i: Point(torch.tensor(i), i / 2),
    "all": structure,
    "nothing": lambda i: None,
    "ragged": make_ragged,
    "strings": lambda i: np.array(["a", "b"]),
    "worker": describe_worker,
}
ERRORS: dict[str, Callable[[int], Exception]] = {
    "value": lambda i: ValueError(f"item {i} is bad"),
    "key": KeyError,
    "index": lambda i: IndexError(f"no item {i}"),
    "memory": lambda i: MemoryError(i),
    "odd": lambda i: OddError(i, "is odd"),
}


class Items(Numbers):
    """Items of one kind, some of which raise."""

    def __init__(self, n: int, kind: str, bad: frozenset[int], error: str) -> None:
        super().__init__(n)
        self.kind, self.bad, self.error = kind, bad, error

    def __getitem__(self, i: int) -> Any:
        if i in self.bad:
            raise ERRORS[self.error](i)
        return KINDS[self.kind](i)


class ListedItems(Items):
    """The same, fetched a batch at a time."""

    def __getitems__(self, ids: list[int]) -> list[Any]:
        return [self[i] for i in ids]


def collate_lists(limit: int, samples: list[Any]) -> Any:
    """Collate into a plain object, unless there are too many samples."""
    if len(samples) > limit:
        raise ValueError(f"{len(samples)} samples")
    return {"samples": samples, "count": len(samples)}


def convert_one(sample: Any) -> Any:
    return [sample]


def name_worker(number: int) -> None:
    torch_data.get_worker_info().dataset.kind = "worker"  # of the copy in this worker


def walk(loader: Any) -> Iterator[tuple[str, Any]]:
    """Generate the batches of an epoch and the types of the exceptions between them."""
    batches = iter(loader)
    while True:
        try:
            yield "batch", next(batches)
        except StopIteration:
            return
        except Exception as error:
            yield "error", type(error)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """Draw a dataset and arguments that both loaders take."""
    n = draw(st.integers(1, 9))
    bad = draw(st.just(frozenset()) | st.frozensets(st.integers(0, n - 1), max_size=2))
    kind, error = draw(st.sampled_from(sorted(KINDS))), draw(st.sampled_from(sorted(ERRORS)))
    dataset = draw(st.sampled_from([Items, ListedItems]))(n, kind, bad, error)
    ids = st.lists(st.integers(0, n - 1), min_size=1, max_size=8)
    arguments: dict[str, Any] = {}
    dealing = draw(st.sampled_from(["order", "sampler", "random", "batches"]))
    if dealing == "batches":
        arguments["batch_sampler"] = draw(st.lists(ids, min_size=1, max_size=4))
    else:
        arguments["batch_size"] = draw(st.sampled_from([None, 1, 2, 4]))
        size = arguments["batch_size"] or 10
        # Without a sampler an epoch without a batch is refused.
        if arguments["batch_size"] is not None and (dealing != "order" or n >= size):
            arguments["drop_last"] = draw(st.booleans())
    if dealing == "sampler":
        arguments["sampler"] = draw(ids)
    elif dealing == "random":
        arguments["sampler"] = "random"
    batched = "batch_sampler" in arguments or arguments["batch_size"] is not None
    if draw(st.booleans()):
        own = functools.partial(collate_lists, draw(st.integers(1, 4)))
        arguments["collate_fn"] = own if batched else convert_one
    workers = draw(st.sampled_from([0, 0, 2]))
    if workers:
        arguments["num_workers"] = workers
        arguments["persistent_workers"] = draw(st.booleans())
        arguments["prefetch_factor"] = draw(st.sampled_from([None, 1, 3]))
        arguments["timeout"] = draw(st.sampled_from([0, 300]))
        arguments["multiprocessing_context"] = draw(st.sampled_from([None, "fork"]))
        arguments["worker_init_fn"] = draw(st.sampled_from([None, name_worker]))
    arguments["pin_memory"] = draw(st.booleans()) and not torch.cuda.is_available()
    return dataset, arguments


def check_as_torch(dataset: Any, arguments: dict[str, Any], epochs: int = 2) -> None:
    """Check that both loaders do the same."""
    outcomes = []
    for make in (torch_data.DataLoader, DataLoader):
        chosen = dict(arguments, generator=torch.Generator().manual_seed(5))
        if chosen.get("sampler") == "random":
            drawn = torch.Generator().manual_seed(7)
            chosen["sampler"] = torch_data.RandomSampler(dataset, generator=drawn)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pinning without an accelerator
            loader: Any = make(dataset, **chosen)
            outcomes.append((len(loader), [list(walk(loader)) for _ in range(epochs)]))
        with contextlib.suppress(AttributeError):
            loader.close()
    assert same(outcomes[1], outcomes[0]), outcomes


@given(case=cases())
def test_any_case_is_as_in_torch(case: tuple[Any, dict[str, Any]]) -> None:
    """Batches, lengths, exceptions and what comes after them, for two epochs."""
    check_as_torch(*case)


@pytest.mark.long
@pytest.mark.parametrize(
    ("context", "kind"),
    first(
        4,
        [(None, "all"), ("spawn", "strings"), ("forkserver", "worker"), (None, "nothing")]
        + [("spawn", kind) for kind in ("all", "nothing", "worker")]
        + [("forkserver", kind) for kind in ("all", "nothing", "strings")]
        + [(None, kind) for kind in ("worker", "strings")],
        extra=4,
    ),
)
def test_four_workers_are_as_in_torch(kind: str, context: str | None) -> None:
    """Any start of the workers; nothing is sent to them that cannot be pickled."""
    dataset = ListedItems(11, kind, frozenset({4}), "value")
    arguments = {"num_workers": 4, "multiprocessing_context": context, "prefetch_factor": 1}
    check_as_torch(dataset, {"batch_size": 2, **arguments}, epochs=1)


class Streamed(torch_data.IterableDataset[int]):
    """Divides itself among workers."""

    def __iter__(self) -> Iterator[int]:
        info = torch_data.get_worker_info()
        return iter(
            range(0 if info is None else info.id, 9, 1 if info is None else info.num_workers)
        )


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_datasets_are_left_to_torch(workers: int) -> None:
    """An IterableDataset decides its order itself: the error names torch's loader, which serves."""
    with pytest.raises(ValueError, match=r"use torch\.utils\.data\.DataLoader for it"):
        DataLoader(Streamed(), 3, num_workers=workers)
    assert sorted(int(i) for i in torch_data.DataLoader(Streamed(), None, num_workers=workers)) == [
        *range(9)
    ]


class Nested(Numbers):
    """Items whose tensors are more than numbers in memory."""

    def __getitem__(self, i: int) -> Any:
        if i == 0:
            return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        if i == 1:
            return torch.eye(3).to_sparse()
        return torch.nn.Parameter(torch.ones(2))


@pytest.mark.filterwarnings("ignore")  # of prototypes
@pytest.mark.parametrize("i", range(3))
def test_unusual_tensors_come_out_of_workers(i: int) -> None:
    """Our workers send all kinds of values that those of torch send."""
    dataset = torch_data.Subset(Nested(3), [i])
    theirs, ours = (
        next(iter(make(dataset, num_workers=1, collate_fn=list)))
        for make in (torch_data.DataLoader, DataLoader)
    )
    assert type(ours[0]) is type(theirs[0])
    assert repr(ours) == repr(theirs)


def test_annotations_as_in_torch() -> None:
    """`DataLoader[int]` stands in the annotations of programs that are moved over."""
    assert DataLoader[int].__origin__ is DataLoader  # type: ignore[misc]
