"""Balanced assignment as loaders use it: any dataset with lengths, and ranks that must agree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Balanced, Cache
from penstock.dataset import measure_lengths
from penstock.errors import UsageError
from penstock.loader import LengthCost
from tests.dataset.test_packing import write_megatron

Gather = Callable[[str], list[str]]


def count_two(sample: Mapping[str, Any]) -> int:
    """A length by another rule than bytes."""
    return 1 + sample["data"].nbytes % 7 if hasattr(sample["data"], "nbytes") else 2


def write_files(folder: Path, count: int = 90, seed: int = 0) -> penstock.Dataset:
    """Files of widely differing sizes; names, sizes and so the identity depend on the seed."""
    folder.mkdir()
    sizes = np.random.default_rng(seed).lognormal(5, 1.1, count).astype(int) + 1
    for number, size in enumerate(sizes.tolist()):
        (folder / f"{number:03}.bin").write_bytes(bytes(size))
    return penstock.open(folder)


def agree(text: str) -> list[str]:
    """The texts of two ranks that say the same."""
    return [text, text]


def run_ranks(world: int, job: Callable[[int, Gather], Any]) -> list[Any]:
    """Run each rank in a thread, with a gather between them; return results or exceptions."""
    barrier = threading.Barrier(world, timeout=20)
    texts = [""] * world
    results: list[Any] = [None] * world

    def work(rank: int) -> None:
        def gather(text: str) -> list[str]:
            texts[rank] = text
            barrier.wait()
            told = list(texts)
            barrier.wait()
            return told

        try:
            results[rank] = job(rank, gather)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def list_ids(loader: penstock.Loader) -> list[list[int]]:
    return [batch.ids.tolist() for batch in loader]


@pytest.mark.parametrize("kind", ["whole", "selected", "mixed", "measured", "weighed"])
def test_any_dataset_with_lengths(tmp_path: Path, kind: str) -> None:
    """The global batches are those of one rank, sums are near, and lengths are of the very samples,
    whatever numbers them."""
    data = write_files(tmp_path / "a")
    sizes = data.index.lengths(np.arange(90))
    if kind == "selected":
        data = data.select(ids=range(0, 90, 2))
    if kind == "mixed":
        other = write_files(tmp_path / "b", 40, 1)
        sizes = np.concatenate([sizes, other.index.lengths(np.arange(40))])
        data = penstock.mix([(data, 2), (other, 1)])
    if kind == "measured":
        measure_lengths(data, count_two)
        sizes = data.lengths
    if kind == "weighed":
        data = data.weigh(np.arange(1, 91))
    options: dict[str, Any] = {"global_batch_size": 24, "seed": 3, "drop_last": True}
    whole = list_ids(penstock.Loader(data, rank=0, world_size=1, **options))
    balanced = Balanced(cost=lambda lengths: lengths.astype(float), gather=agree)
    dealt = [
        list_ids(penstock.Loader(data, rank=r, world_size=2, assignment=balanced, **options))
        for r in range(2)
    ]
    for step, ids in enumerate(whole):
        assert sorted(ids) == sorted(dealt[0][step] + dealt[1][step])
        costs = sizes[ids]
        sums = [int(sizes[own[step]].sum()) for own in dealt]
        assert abs(sums[0] - sums[1]) <= costs.max() - costs.min() + 24 * costs.max() / 65535


@pytest.mark.parametrize("lockstep", [False, True])
def test_packed_rows_by_their_documents(tmp_path: Path, lockstep: bool) -> None:
    """Rows of one length are dealt by the documents in them; steps hold the rows that they hold
    without it, also the last one, which is short."""
    rng = np.random.default_rng(4)
    lengths = np.where(rng.random(600) < 0.05, 60, rng.integers(1, 12, 600))
    documents = [np.full(length, number) for number, length in enumerate(lengths.tolist())]
    rows = penstock.pack(write_megatron(tmp_path / "corpus", documents), 64, window=100)
    options: dict[str, Any] = {"global_batch_size": 12, "seed": 5}
    whole = list(penstock.Loader(rows, rank=0, world_size=1, **options))
    assert len(whole[-1].ids) % 12

    def walk(rank: int, gather: Gather) -> list[penstock.Batch]:
        assignment = Balanced(width=1, lockstep=lockstep, gather=gather)
        loader = penstock.Loader(rows, rank=rank, world_size=3, assignment=assignment, **options)
        return list(loader)

    dealt = run_ranks(3, walk)
    spreads = []
    for step, batch in enumerate(whole):
        own = [batches[step] for batches in dealt]
        assert sorted(batch.ids.tolist()) == sorted(i for each in own for i in each.ids.tolist())
        found = [row.tolist() for each in own for row in each["input_ids"]]
        assert sorted(found) == sorted(batch["input_ids"].tolist())
        sums = [
            sum((n * n for n in np.diff(each["cu_seqlens"])[each["documents"] >= 0].tolist()), 0)
            for each in own
        ]
        spreads.append(max(sums) / (sum(sums) / 3))
    assert np.mean(spreads[:-1]) < 1.25


def test_resume_on_another_world(tmp_path: Path) -> None:
    """A run goes on with other ranks, other costs and another assignment in the same batches."""
    data = write_files(tmp_path / "a")
    options: dict[str, Any] = {"global_batch_size": 12, "seed": 1}
    whole = list_ids(penstock.Loader(data, rank=0, world_size=1, **options))
    state: dict[str, Any] | None = None
    found: list[list[int]] = []
    for world, assignment in (
        (3, Balanced(gather=lambda text: [text] * 3)),
        (2, Balanced(width=64, lockstep=True, gather=agree)),
        (4, "strided"),
        (1, "balanced"),
    ):
        ranks = [
            penstock.Loader(data, rank=r, world_size=world, assignment=assignment, **options)
            for r in range(world)
        ]
        for each in ranks if state else []:
            each.load_state_dict(state)
        iterators = [iter(each) for each in ranks]
        for _ in range(2):
            batches = [next(iterator) for iterator in iterators]
            found.append(sorted(i for batch in batches for i in batch.ids.tolist()))
        states = [each.state_dict() for each in ranks]
        assert all(own == states[0] for own in states)
        state = states[0]
    assert found == [sorted(ids) for ids in whole]


def test_equal_costs_are_compared_each_epoch(tmp_path: Path) -> None:
    """Ranks that agree pass, with one message an epoch."""
    data = write_files(tmp_path / "a")
    asked: list[str] = []

    def walk(rank: int, gather: Gather) -> list[list[int]]:
        def count(text: str) -> list[str]:
            asked.append(text)
            return gather(text)

        assignment = Balanced(width=512, gather=count)
        loader = penstock.Loader(data, 10, rank=rank, world_size=2, assignment=assignment)
        return list_ids(loader) + list_ids(loader)

    first, second = run_ranks(2, walk)
    assert sorted(i for ids in first + second for i in ids) == sorted([*range(90)] * 2)
    assert len(asked) == 4


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"width": 1024}, "cost"),
        ({"cost": LengthCost(1, 1e-5)}, "cost"),
        ({"lockstep": True}, "lockstep"),
        ({"cost": lambda lengths: lengths * (1 + 1e-15)}, "costs of the next steps"),
    ],
)
def test_unequal_costs_are_refused(tmp_path: Path, other: Any, difference: str) -> None:
    """All ranks raise before the first batch, and say what differs."""
    data = write_files(tmp_path / "a")
    own = {"cost": lambda lengths: lengths * 1.0} if callable(other.get("cost")) else {}

    def walk(rank: int, gather: Gather) -> Any:
        options = other if rank else own
        assignment = Balanced(**options, gather=gather)
        return list_ids(penstock.Loader(data, 5, rank=rank, world_size=2, assignment=assignment))

    for error in run_ranks(2, walk):
        assert isinstance(error, UsageError)
        assert f"{difference} " in str(error)
        assert "ranks 0 and 1 would deal by unequal costs" in str(error)


def test_lengths_by_another_rule_are_refused(tmp_path: Path) -> None:
    """Hosts whose lengths were measured by different rules are told apart, and so are ranks that
    stand at different steps."""
    data = [write_files(tmp_path / name) for name in "ab"]
    assert data[0].fingerprint == data[1].fingerprint
    measure_lengths(data[1], count_two)

    def walk(rank: int, gather: Gather) -> Any:
        assignment = Balanced(gather=gather)
        return list_ids(
            penstock.Loader(data[rank], 5, rank=rank, world_size=2, assignment=assignment)
        )

    for error in run_ranks(2, walk):
        assert isinstance(error, UsageError)
        assert "lengths '" in str(error)

    def walk_apart(rank: int, gather: Gather) -> Any:
        assignment = Balanced(gather=gather)
        loader = penstock.Loader(data[0], 5, rank=rank, world_size=2, assignment=assignment)
        loader.set_epoch(rank)
        return next(iter(loader))

    for error in run_ranks(2, walk_apart):
        assert isinstance(error, UsageError)
        assert "epoch 0 and 1" in str(error)


def test_ranks_that_cannot_compare_are_warned(tmp_path: Path) -> None:
    """Without a process group there is no way to tell: a warning says so, once."""
    data = write_files(tmp_path / "a")
    loader = penstock.Loader(data, 5, rank=0, world_size=2, assignment="balanced")
    with pytest.warns(RuntimeWarning, match=r"cannot compare them.*penstock\.Balanced\(gather"):
        next(iter(loader))
    loader.close()


def test_caches_have_a_say(tmp_path: Path) -> None:
    """With a cache and a share of locality an epoch is whole; a host of its own keeps all."""
    data = write_files(tmp_path / "a")
    cache = Cache(ram_bytes=1 << 20)
    assignment = Balanced(locality=0.25)
    with penstock.Loader(data, 8, seed=2, cache=cache, assignment=assignment) as loader:
        assert sorted(i for ids in list_ids(loader) for i in ids) == list(range(90))


def test_what_does_not_fit(tmp_path: Path) -> None:
    """Each refusal names the value and the remedy."""
    data = write_files(tmp_path / "a")
    loader = penstock.Loader
    with pytest.raises(UsageError, match=r"strided, contiguous, .*balanced, or penstock\.Balanced"):
        loader(data, 5, assignment="even")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a global batch has 10"):
        loader(data, global_batch_size=10, rank=0, world_size=4, assignment="balanced")
    with pytest.raises(UsageError, match="give cache="):
        loader(data, 5, assignment=Balanced(locality=0.5))
    with pytest.raises(UsageError, match="lengths of samples|next use of a sample"):
        next(
            iter(
                loader(
                    data, 5, cache=Cache(ram_bytes=1 << 20, replicas=True), assignment="balanced"
                )
            )
        )
    for options, message in (
        ({"width": 0}, "width"),
        ({"width": 8, "cost": abs}, "choose one"),
        ({"cost": 3}, "cost is 3"),
        ({"lockstep": 1}, "lockstep"),
        ({"locality": 1.5}, "locality"),
        ({"locality": True}, "locality"),
        ({"gather": "x"}, "gather"),
    ):
        with pytest.raises(UsageError, match=message):
            Balanced(**options)  # type: ignore[arg-type]


def test_unknown_lengths_name_the_command(tmp_path: Path) -> None:
    """Lines of JSON do not say how many tokens they have."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    data = penstock.open(tmp_path / "a.jsonl", fields={"text": "text"})
    with pytest.raises(UsageError, match=r"`penstock lengths .*a\.jsonl --by tokens"):
        penstock.Loader(data, 1, assignment="balanced")


def test_ranks_that_know_more_packed_rows_agree(tmp_path: Path) -> None:
    """How far a rank has read ahead does not enter into the comparison."""
    documents = [np.full(1 + number % 9, number) for number in range(400)]
    rows = penstock.pack(write_megatron(tmp_path / "corpus", documents), 16, window=8)

    def walk(rank: int, gather: Gather) -> list[list[int]]:
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "seed": 1}
        loader = penstock.Loader(rows, 2, assignment=Balanced(gather=gather), **options)
        found = loader.step_sampler.find_rows(0)
        assert found is not None
        found.counts.reach(1 + rank * 60)
        return list_ids(loader)

    first, second = run_ranks(2, walk)
    ids = sorted(i for own in first + second for i in own)
    assert ids == list(range(len(rows.order(1))))
