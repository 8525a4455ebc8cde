"""Batches by tokens: exactly once, equal steps, one sequence of batches on any world."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Buckets, Cache
from penstock.dataset import measure_lengths
from penstock.errors import DataError, StateError, UsageError
from penstock.loader.sampler import StepSampler
from penstock.order import Order, PackedOrder
from penstock.order.buckets import BucketRule
from penstock.ranks.place import Place


def write_files(folder: Path, count: int = 120) -> penstock.Dataset:
    folder.mkdir()
    sizes = np.random.default_rng(0).lognormal(4, 1, count).astype(int).clip(1, 400)
    for number, size in enumerate(sizes.tolist()):
        (folder / f"{number:03}.bin").write_bytes(bytes([number % 256]) * size)
    return penstock.open(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    return write_files(tmp_path_factory.mktemp("buckets") / "files")


def make_loaders(data: Any, world: int, **options: Any) -> list[penstock.Loader]:
    asked = {"batch_tokens": Buckets(800, window=40), "seed": 3, **options}
    return [penstock.Loader(data, rank=rank, world_size=world, **asked) for rank in range(world)]


@pytest.mark.parametrize("last", [{}, {"drop_last": True}, {"pad": True}])
@pytest.mark.parametrize("world", [1, 3])
def test_exactly_once_and_equal_steps(
    data: penstock.Dataset, world: int, last: dict[str, bool]
) -> None:
    """Every sample comes once in each epoch, in batches within the limit, of near lengths; ranks
    have as many steps, also where batches do not divide."""
    loaders = make_loaders(data, world, **last)
    for epoch in range(2):
        assert len(loaders[0]) == loaders[0].estimate_steps()  # all windows are counted
        expected = [len(loader) for loader in loaders]
        steps = [list(loader) for loader in loaders]
        assert [len(own) for own in steps] == expected == expected[:1] * world
        seen: list[int] = []
        for batch in (batch for own in steps for batch in own):
            assert batch.epoch == epoch
            lengths = data.lengths[batch.ids]
            assert len(lengths) * max(lengths, default=0) <= 800
            seen += batch.ids[batch.valid].tolist()
            for row, sample in enumerate(batch.ids.tolist()):
                assert bytes(batch["data"][row]) == bytes([sample % 256]) * lengths[row]
            assert len(batch.ids) or not (last or world == 1)
        assert len(seen) == len(set(seen))
        assert len(seen) == 120 or "drop_last" in last


def test_resume_on_another_world(data: penstock.Dataset) -> None:
    """Batches come in one sequence; a state counts them, and continues on ranks that divide it."""
    (whole,) = make_loaders(data, 1)
    sequence = [batch.ids.tolist() for batch in whole]
    found: list[list[int]] = []
    state: Any = None
    for world, steps in ((2, 3), (3, 2), (6, 1), (1, 1)):
        loaders = make_loaders(data, world)
        for loader in loaders if state else []:
            loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(steps):
            found += [next(iterator).ids.tolist() for iterator in iterators]
        states = [loader.state_dict() for loader in loaders]
        assert all(own == states[0] for own in states)
        state = states[0]
        assert state["step"] == len(found)
    assert found == sequence[: len(found)]
    (loader,) = make_loaders(data, 1)
    with pytest.raises(StateError, match="after 19 batches, no multiple of 3 ranks"):
        make_loaders(data, 3)[0].load_state_dict(state)
    loader.load_state_dict(state)
    for options, message in (
        ({"batch_tokens": Buckets(801, window=40)}, "under the order"),
        ({"batch_tokens": Buckets(800, window=41)}, "under the order"),
        ({"batch_tokens": Buckets(800, 8, window=40)}, "under the order"),
    ):
        with pytest.raises(StateError, match=message):
            make_loaders(data, 1, **options)[0].load_state_dict(state)
    with pytest.raises(StateError, match="window"):
        loader.load_state_dict({**state, "before": state["before"] + 100})


@given(
    lengths=st.lists(st.integers(0, 50), min_size=8, max_size=150),
    window=st.integers(1, 60),
    worlds=st.lists(st.integers(1, 8), min_size=2, max_size=5),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_one_sequence_on_any_worlds(
    lengths: list[int], window: int, worlds: list[int], seed: int, data: st.DataObject
) -> None:
    """A run that is killed at any step goes on with any number of ranks that divides what was
    handed over: the sequence of batches, each once, is that of one rank."""
    table = np.array(lengths)

    def make_sampler(rank: int, world: int) -> StepSampler:
        inner = Order(len(table), seed)
        order = PackedOrder(inner, BucketRule(50, window), lambda ids: table[ids.view(np.int64)])
        return StepSampler(
            "data",
            order,
            batch_size=1,
            global_batch_size=None,
            drop_last=False,
            pad=False,
            place=Place(rank, world),
        )

    one = make_sampler(0, 1)
    order = one.order.at_epoch(0)
    sequence = [order.samples([row]).tolist() for row in range(len(one))]
    assert sorted(i for ids in sequence for i in ids) == list(range(len(table)))
    done, state = 0, None
    for world in worlds:
        if done % world or world > len(sequence):
            continue
        samplers = [make_sampler(rank, world) for rank in range(world)]
        assert {len(each) for each in samplers} == {-(-len(sequence) // world)}
        for each in samplers if state else []:
            each.restore(state)
        begun = {each.begin() for each in samplers}
        assert begun == {(0, done // world)}
        steps = len(sequence) // world
        stop = data.draw(st.integers(done // world, steps))
        for step in range(done // world, stop):
            for each in samplers:
                geometry = each.find_steps(0).extend(step + 1)
                positions, _, _ = geometry.positions(step, step + 1, each.place.rank, order)
                assert order.samples(positions).tolist() == sequence[done]
                done += 1
            for each in samplers:
                each.record_step(0, step + 1)
        if done == len(sequence):
            break
        states = [each.cursor.state() for each in samplers]
        assert all(own == states[0] for own in states)
        state = states[0]
        assert state["step"] == done


def test_mixtures_selections_and_decode(data: penstock.Dataset) -> None:
    """Marks follow their samples; numbers are of the whole dataset; decode and pad see batches."""
    some = data.select(ids=range(0, 120, 3))
    mixed = penstock.mix([(data, 1), (some, 1)], samples_per_epoch=160)
    drawn = 0
    for batch in make_loaders(mixed, 1)[0]:
        assert np.array_equal(batch["source"], (batch.ids >= 120).astype(int))
        drawn += len(batch.ids)
    assert drawn == 160
    (loader,) = make_loaders(
        some,
        1,
        decode=lambda sample: {"tokens": np.frombuffer(sample["data"], np.uint8)},
        collate=penstock.pad({"tokens": 0}),
    )
    seen = 0
    for batch in loader:
        assert batch["tokens"].size <= 800
        seen += len(batch["tokens"])
    assert seen == 40


def test_what_does_not_fit(data: penstock.Dataset, tmp_path: Path) -> None:
    """Each refusal names the value and the remedy."""
    loader = penstock.Loader
    with pytest.raises(UsageError, match="choose one"):
        loader(data, 4, batch_tokens=800)
    with pytest.raises(UsageError, match="does not go with cache"):
        loader(data, batch_tokens=800, cache=Cache(ram_bytes=1 << 20))
    with pytest.raises(UsageError, match='does not go with shuffle="auto"'):
        loader(data, batch_tokens=800, shuffle="auto")
    with pytest.raises(UsageError, match="batch_tokens is 0"):
        loader(data, batch_tokens=0)
    with pytest.raises(DataError, match=r"sample \d+ of length \d+ takes"):
        next(iter(loader(data, batch_tokens=30)))
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    lines = penstock.open(tmp_path / "a.jsonl", fields={"text": "text"})
    with pytest.raises(UsageError, match=r"`penstock lengths .*a\.jsonl --by tokens"):
        loader(lines, batch_tokens=100)
    for options, message in (
        ({"tokens": 8, "cost": 3}, "cost is 3"),
        ({"tokens": 8, "window": 0}, "window"),
        ({"tokens": 8, "multiple": 0}, "multiple"),
    ):
        with pytest.raises(UsageError, match=message):
            Buckets(**options)  # type: ignore[arg-type]


def test_starts_that_count_steps_are_refused(data: penstock.Dataset) -> None:
    """A step has no fixed number of samples: schedules and curricula name theirs in samples."""
    half = data.select(fraction=0.5)
    pairs, schedule = [(data, 1), (half, 1)], [(0, [1, 1]), (3, [1, 0])]
    staged = penstock.curriculum([(0, half), (3, data)], unit="steps")
    mixed = penstock.mix(pairs, schedule=schedule)
    for dataset, remedy in (
        (staged, 'unit="samples"'),
        (mixed, 'schedule_unit="samples"'),
        (mixed.select(fraction=0.5), 'schedule_unit="samples"'),
    ):
        with pytest.raises(UsageError, match=f"batch_tokens has no fixed number.*use {remedy}"):
            penstock.Loader(dataset, batch_tokens=800)
    staged = penstock.curriculum([(0, half), (30, data)], unit="samples")
    mixed = penstock.mix(pairs, schedule=schedule, schedule_unit="samples")
    for dataset in (staged, mixed):
        with penstock.Loader(dataset, batch_tokens=800) as loader:
            assert sum(len(batch.ids) for batch in loader) == dataset.samples_per_epoch


def test_torch_gives_the_same_batches(data: penstock.Dataset) -> None:
    """`penstock.torch.DataLoader` has the batches of `Loader`, as tensors, and its states."""
    torch = pytest.importorskip("torch")
    from penstock.torch import DataLoader, StepLoader

    options: dict[str, Any] = {"rank": 1, "world_size": 3, "seed": 3}
    options |= {"batch_tokens": Buckets(800, window=40)}
    ours = penstock.Loader(data, pad=True, **options)
    expected = [(batch.ids.tolist(), batch.valid.tolist()) for batch in ours]
    for kind in (DataLoader, StepLoader):
        theirs = kind(data, shuffle=True, **options)
        own = getattr(theirs, "loader", theirs)
        assert own.batch_size is own.batch_sampler is None
        assert len(own) == len(expected)
        if kind is DataLoader:
            batches = iter(theirs)
            first = [next(batches) for _ in range(4)]
            state = theirs.state_dict()
            again = kind(data, shuffle=True, **options)
            again.load_state_dict(state)
            found = [*first, *again]
            assert all(isinstance(batch.ids, torch.Tensor) for batch in found)
            assert [(b.ids.tolist(), b.valid.tolist()) for b in found] == expected


def test_torch_refuses_what_does_not_fit(data: penstock.Dataset) -> None:
    """Arguments of torch that decide batches themselves do not go with batches by tokens."""
    pytest.importorskip("torch")
    from penstock.torch import DataLoader

    for options, message in (
        ({"batch_size": 4}, "choose one"),
        ({"batch_size": None}, "choose one"),
        ({"global_batch_size": 4}, "choose one"),
        ({"shuffle": "auto"}, "does not go with shuffle"),
        ({"cache": Cache(ram_bytes=1 << 20)}, "does not go with cache"),
        ({"sampler": range(5)}, "without sampler"),
        ({"num_workers": 2, "workers": "processes"}, "or processes"),
        ({"dataset": [1, 2]}, "batch_tokens are for penstock datasets"),
    ):
        with pytest.raises(UsageError, match=message):
            DataLoader(**{"dataset": data, "batch_tokens": 800, **options})
    with pytest.raises(UsageError, match="batch_tokens is for the loader"):
        next(iter(DataLoader(data, batch_tokens=800).sampler))


def measure_reversed(sample: Mapping[str, Any]) -> int:
    """Measure long samples as short ones."""
    return 500 - len(sample["data"])


def test_a_state_of_other_lengths_is_refused(tmp_path: Path) -> None:
    """Lengths that were measured by another rule make other batches."""
    data = write_files(tmp_path / "files")
    measure_lengths(data, "bytes", processes=1)

    def walk(state: Any = None) -> Any:
        with penstock.Loader(data, batch_tokens=Buckets(800, window=40)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            next(iter(loader))
            return loader.state_dict()

    state = walk()
    walk(state)
    measure_lengths(data, measure_reversed, processes=1, force=True)
    with pytest.raises(StateError, match="order"):
        walk(state)


def test_errors_of_a_users_cost_are_raised_at_their_step(data: penstock.Dataset) -> None:
    longest, armed = int(data.lengths[60:70].max()), list[int]()
    assert (data.lengths[:60] != longest).all()

    def cost(lengths: np.ndarray) -> np.ndarray:
        if armed and (lengths == longest).any():
            raise KeyError("mine")
        return lengths * 1.0

    options = Buckets(800, window=10, cost=cost)
    before = list(penstock.Loader(data.select(range(60)), batch_tokens=options, shuffle="none"))
    with penstock.Loader(data, batch_tokens=options, shuffle="none") as loader:
        armed.append(1)
        batches = iter(loader)
        for expected in before:
            assert next(batches).ids.tolist() == expected.ids.tolist()
        with pytest.raises(KeyError, match="mine"):
            next(batches)


def test_sizes_that_are_next_to_nothing_fill_one_batch() -> None:
    rule = BucketRule(1e300, 8, size_of=lambda lengths: lengths * 1e-300)
    assert rule.count_rows(np.arange(1, 9)) == 1


def test_sizes_a_last_place_apart_are_cut_as_they_are_counted() -> None:
    """Sizes that differ by less than the largest shows are sorted all the same."""
    sizes = np.array([0.125, np.nextafter(0.125, 1), 1.0])
    rule = BucketRule(1.0, 32, size_of=lambda lengths: sizes[lengths % 3])
    lengths = np.array([3] * 8 + [4] + [5])
    offsets, which, _, _ = rule.pack(lengths)
    assert which[:2].tolist() == [9, 8]
    assert len(offsets) - 1 == rule.count_rows(lengths)
