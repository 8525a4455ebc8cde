"""Weights and curricula: how often samples come, alone, of each other, of selections and mixtures,
and from any state on any world."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import math
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.errors import StateError, UsageError
from tests import warm
from tests.slices import fraction

Drawn = tuple[int, int, int, int]
"""(stage, source, pass, sample) of a row of a batch."""


class View(NamedTuple):
    """A dataset, and of each of its sources the weights of all samples and the draws of a pass."""

    dataset: Any
    sources: list[tuple[np.ndarray, int]]


def write_numbers(path: Path, count: int, first: int = 0) -> penstock.Dataset:
    if not path.exists():
        rows = np.zeros((count, 2), np.int64)
        rows[:, 0] = np.arange(count) + first
        rows.tofile(path)
    return penstock.open(path, dtype="i8", shape=(2,), index="memory")


def weigh(view: View, random: Any) -> View:
    """Weigh the samples of a view; some get 0."""
    values = np.ceil(random.pareto(1.5, len(view.dataset)) * 8) * (
        random.random(len(view.dataset)) < 0.9
    )
    sources, first = [], 0
    for weights, _ in view.sources:
        kept = np.flatnonzero(weights > -1)
        own = values[first : first + len(kept)]
        own[0] = 3
        new = np.full(len(weights), -1.0)
        new[kept] = own
        sources.append((new, len(kept)))
        first += len(kept)
    return View(view.dataset.weigh(values), sources)


def select(view: View, random: Any) -> View:
    """Select about half of the samples of a view, of each source one of a weight above 0."""
    mask = random.random(len(view.dataset)) < 0.5
    sources, first = [], 0
    for weights, draws in view.sources:
        kept = np.flatnonzero(weights > -1)
        own = mask[first : first + len(kept)]
        own[int(np.argmax(weights[kept]))] = True
        new = weights.copy()
        new[kept[~own]] = -1
        sources.append((new, int(own.sum()) if draws == len(kept) else draws))
        first += len(kept)
    return View(view.dataset.select(mask=mask), sources)


OPERATIONS = {"select": select, "weigh": weigh}


def make_view(folder: Path, random: Any, on_parts: Any, mixed: bool, on_top: Any) -> View:
    """A dataset made by these operations."""
    views = []
    for name, count, first in (("a", 70, 0), ("b", 33, 70)):
        view = View(write_numbers(folder / f"{name}.bin", count, first), [(np.ones(count), count)])
        for operation in on_parts:
            view = OPERATIONS[operation](view, random)
        views.append(view)
    view = views[0]
    if mixed:
        dataset = penstock.mix([(views[0].dataset, 3), (views[1].dataset, 1)])
        view = View(dataset, [*views[0].sources, *views[1].sources])
    for operation in on_top:
        view = OPERATIONS[operation](view, random)
    return view


def read_steps(
    dataset: Any, world: int, state: Any, steps: int, options: Any
) -> tuple[list[list[Drawn]], Any]:
    """Rows of global batches from a state on, and the state after them."""
    found: list[list[Drawn]] = [[] for _ in range(steps)]
    states = []
    for rank in range(world):
        loader = penstock.Loader(dataset, rank=rank, world_size=world, **options)
        if state is not None:
            loader.load_state_dict(state)
        at = 0
        while at < steps:
            epoch, first = loader.epoch, loader.cursor.step
            for batch in loader:
                nothing = np.zeros(len(batch.ids), np.int64)
                marks = [batch.get(name, nothing) for name in ("stage", "source")]
                turns = batch.get("pass", nothing + batch.epoch)
                assert np.array_equal(batch["data"][:, 0], batch.ids.astype(np.int64))
                rows = zip(*marks, turns, batch.ids.astype(np.int64), strict=True)
                found[at] += [tuple(map(int, row)) for row in rows]
                at += 1
                if at == steps:
                    break
            assert (loader.epoch, loader.cursor.step) > (epoch, first)
        states.append(loader.state_dict())
        loader.close()
    assert all(each == states[0] for each in states)
    return [sorted(step) for step in found], states[0]


def check_counts(views: list[View], drawn: list[Drawn]) -> None:
    """Each pass that is over holds each sample as often as its weight says, rounded; none that has
    weight 0 or is not selected comes."""
    passes: dict[Any, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for stage, source, turn, sample in drawn:
        passes[stage, source, turn][sample] += 1
    whole = 0
    for (stage, source, turn), counts in passes.items():
        weights, draws = views[stage].sources[source]
        first = 70 * source
        share = np.maximum(weights, 0)
        expected = draws * share / share.sum()
        is_over = sum(counts.values()) == draws
        assert is_over or (stage, source, turn + 1) not in passes
        whole += is_over
        for sample, value in enumerate(expected.tolist()):
            least = math.floor(value + 1e-6) if is_over else 0
            assert least <= counts.pop(first + sample, 0) <= math.ceil(value - 1e-6)
        assert not counts
    assert whole


@fraction(2)
@given(
    on_parts=st.lists(st.sampled_from(["select", "weigh"]), max_size=2),
    mixed=st.booleans(),
    on_top=st.lists(st.sampled_from(["select", "weigh"]), max_size=2),
    later=st.none() | st.lists(st.sampled_from(["select", "weigh"]), max_size=2),
    starts=st.tuples(st.sampled_from(["epochs", "steps", "samples"]), st.integers(1, 30)),
    shuffle=st.sampled_from(["exact", "blocked", "none"]),
    batch=st.integers(5, 40),
    drop_last=st.booleans(),
    worlds=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    data=st.data(),
)
def test_every_pair_counts_and_resumes(
    tmp_path_factory: Any,
    on_parts: Any,
    mixed: bool,
    on_top: Any,
    later: Any,
    starts: Any,
    shuffle: Any,
    batch: int,
    drop_last: bool,
    worlds: Any,
    data: Any,
) -> None:
    """Selections, weights, mixtures and curricula of each other draw what their weights say, in
    one sequence of global batches, through restarts at any steps on other worlds."""
    folder = tmp_path_factory.mktemp("views")
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    views = [make_view(folder, random, on_parts, mixed, on_top)]
    dataset = views[0].dataset
    if later is not None:
        views.append(make_view(folder, random, [], mixed, later))
        unit, start = starts
        dataset = penstock.curriculum(
            [(0, dataset), (start * (10 if unit == "samples" else 1), views[1].dataset)],
            unit=unit,
            samples_per_epoch=data.draw(st.sampled_from([None, 64])),
        )
    options = {
        "global_batch_size": batch,
        "shuffle": shuffle,
        "seed": 2,
        "block": 4,
        "drop_last": drop_last,
    }
    if dataset.samples_per_epoch < max(*worlds, batch):
        return
    steps = min(50, 250 // batch)
    expected, _ = read_steps(dataset, 1, None, steps, options)
    if mixed or later is not None or not drop_last:  # else samples are dropped at an epoch's end
        check_counts(views, [row for step in expected for row in step])
    found: list[list[Drawn]] = []
    state = None
    for number, world in enumerate(worlds):
        left = steps - len(found)
        part = left if number == len(worlds) - 1 else data.draw(st.integers(0, left))
        more, state = read_steps(dataset, world, state, part, options)
        found += more
        dataset = pickle.loads(pickle.dumps(dataset))
    assert found == expected


def mix_views(views: list[View], _: Any) -> View:
    mixed = penstock.mix([(views[0].dataset, 3), (views[1].dataset, 1)])
    return View(mixed, [*views[0].sources, *views[1].sources])


NESTED: dict[str, Any] = {
    "select": lambda views, random: select(views[0], random),
    "weigh": lambda views, random: weigh(views[0], random),
    "mix": mix_views,
    "curriculum": lambda views, _: View(
        penstock.curriculum([(0, views[0].dataset), (4, views[1].dataset)], unit="steps"), []
    ),
}
REFUSED = {
    ("curriculum", "select"): "select from its stages",
    ("curriculum", "weigh"): "weigh its stages",
    ("curriculum", "mix"): "dataset 0 is a curriculum: give opened data",
    ("curriculum", "curriculum"): "stage 0 is a curriculum: give what",
    ("mix", "mix"): "dataset 0 is a mixture: give opened data",
}


@pytest.mark.long
@pytest.mark.parametrize("inner", NESTED)
@pytest.mark.parametrize("outer", NESTED)
def test_each_pair_in_each_nesting(tmp_path: Path, inner: str, outer: str) -> None:
    """Each of selection, weights, mixture and curriculum of each other counts what its weights say,
    and resumes at every step on another world; what is not composed is refused by name."""
    random = np.random.default_rng(5)

    def make_base(name: str, count: int, first: int) -> View:
        made = write_numbers(tmp_path / f"{name}.bin", count, first)
        return View(made, [(np.ones(count), count)])

    # Views that the outer one can take: of one data for stages, of two data sets for a mixture.
    turns = [("a", 70, 0), ("b", 33, 70)] if outer == "mix" else [("a", 70, 0)] * 2
    views = []
    for turn in turns:
        others = ("b", 33, 70) if inner == "mix" and turn[0] == "a" else ("a", 70, 0)
        bases = [make_base(*turn), make_base(*(others if turn[0] == "a" else turn))]
        views.append(NESTED[inner](bases, random))
    if (inner, outer) in REFUSED:
        with pytest.raises(UsageError, match=REFUSED[inner, outer]):
            NESTED[outer](views, random)
        return
    view = NESTED[outer](views, random)
    dataset, options = view.dataset, {"global_batch_size": 16, "shuffle": "exact", "seed": 2}
    options["drop_last"] = False
    steps = 12
    expected, _ = read_steps(dataset, 1, None, steps, options)
    drawn = [row for step in expected for row in step]
    check_counts(views if outer == "curriculum" else [view], drawn)
    for stop in range(steps + 1):
        head, state = read_steps(dataset, stop % 3 + 1, None, stop, options)
        again = pickle.loads(pickle.dumps(dataset)) if stop % 2 else dataset
        tail, _ = read_steps(again, (stop + 1) % 3 + 1, state, steps - stop, options)
        assert head + tail == expected


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: Any) -> penstock.Dataset:
    """Records that hold their own number."""
    return write_numbers(tmp_path_factory.mktemp("numbers") / "rows.bin", 60)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: Any) -> penstock.Dataset:
    """Files in folders of classes."""
    root = tmp_path_factory.mktemp("tree")
    for number in range(30):
        folder = root / ("cat", "dog", "owl")[number % 3]
        folder.mkdir(exist_ok=True)
        (folder / f"{number:03}.bin").write_bytes(b"x" * (number + 1))
    return penstock.open(root)


def count_epoch(dataset: penstock.Dataset, epoch: int = 0) -> np.ndarray:
    order = dataset.order(0).at_epoch(epoch)
    samples = order.samples(np.arange(len(order))).astype(np.int64)
    return np.bincount(samples, minlength=dataset.index.count)


def test_weights_of_classes_and_columns(tree: penstock.Dataset) -> None:
    """A class's weight is that of each of its samples; a column, and a function of the columns,
    give a weight a sample."""
    labels = np.asarray(tree.index.label_column)
    counts = count_epoch(tree.weigh({"cat": 4, "dog": 1, "owl": 0}, samples_per_epoch=100))
    assert [sorted(set(counts[labels == k].tolist())) for k in range(3)] == [[8], [2], [0]]
    lengths = np.array([len(sample["data"]) for sample in tree])
    for weights in ("bytes", lambda columns: columns["bytes"], lengths, lengths.astype("f4")):
        counts = count_epoch(tree.weigh(weights, samples_per_epoch=2 * int(lengths.sum())))
        assert counts.tolist() == (2 * lengths).tolist()
    own = {"columns": {"score": lengths % 2}, "samples_per_epoch": 15}
    assert count_epoch(tree.weigh("score", **own)).tolist() == (lengths % 2).tolist()
    cats = tree.select(where="label == 'cat'").weigh({"cat": 1})  # the others have no samples
    assert count_epoch(cats).tolist() == (labels == 0).astype(int).tolist()


@pytest.mark.parametrize(
    ("weights", "more", "message"),
    [
        ([1.0] * 29, {}, r"weights is float64 of shape \(29,\): give numbers of shape \(30,\)"),
        ([True] * 30, {}, r"weights is bool of shape"),
        ([-1] * 30, {}, "the weight of sample 0 is -1.0: use a finite number from 0 on"),
        ([0] * 30, {}, "the weights of all 30 samples are 0"),
        ([1] * 30, {"samples_per_epoch": 0}, "samples_per_epoch is 0"),
        ([1] * 30, {"columns": {}}, "columns are for a column's name or a function"),
        ("byte", {}, r"no column 'byte' \(did you mean 'bytes'\?\)"),
        ("key", {}, "the column 'key' holds no numbers"),
        (lambda columns: np.ones(3), {}, "what weights returned is float64 of shape"),
        (
            {"cat": 1, "dogs": 1},
            {},
            r"no class 'dogs' \(did you mean 'dog'\?\): use one of 'cat', 'dog', 'owl'",
        ),
        ({"cat": 1, "dog": 1}, {}, "weights has none for 'owl': give each class one"),
        ({"cat": -2, "dog": 1, "owl": 1}, {}, "the weight of 'cat' is -2: use a number from 0 on"),
    ],
)
def test_weights_that_are_refused(
    tree: penstock.Dataset, weights: Any, more: Any, message: str
) -> None:
    """Each names the value and the remedy."""
    with pytest.raises(UsageError, match=message):
        tree.weigh(weights, **more)


def test_parts_without_weight_are_refused(numbers: Any, tree: Any) -> None:
    """A selection, or a part of a mixture, whose samples all have weight 0 is refused by name."""
    weights = np.arange(60) >= 30
    with pytest.raises(UsageError, match="the weights of all 10 samples are 0"):
        numbers.weigh(weights * 1.0).select(range(10))
    mixed = penstock.mix([(numbers, 1), (numbers.select(range(20)), 1)])
    with pytest.raises(
        UsageError, match=r"dataset 1 \(.*rows.bin\): the weights of all 20 samples"
    ):
        mixed.weigh((np.arange(80) < 60) * 1.0)
    with pytest.raises(UsageError, match="has no labels to weigh by"):
        numbers.weigh({"cat": 1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: [], r"stages is \[\]: give a list"),
        (
            lambda data: [(0, data), (3, data), (2, data)],
            r"the curriculum starts at \[0, 3, 2\]: starts",
        ),
        (lambda data: [(1, data)], "must ascend from 0"),
        (lambda data: [(0, data), (1, 5)], "stage 1 is a int: give what open"),
        (lambda data: [(0, data), (-1, data)], "a start of the curriculum is -1"),
        (
            lambda data: [(0, data), (1, penstock.mix([(data, 1)]))],
            "stage 1 is of .*: select and weigh one dataset, or mix",
        ),
    ],
)
def test_curricula_that_are_refused(numbers: Any, make: Any, message: str) -> None:
    """Each names the stage and the remedy."""
    with pytest.raises(UsageError, match=message):
        penstock.curriculum(make(numbers))


def test_a_curriculum_is_neither_selected_from_nor_mixed(numbers: Any) -> None:
    """The error says in which sequence to compose."""
    staged = penstock.curriculum([(0, numbers.select(range(10))), (2, numbers)])
    for act, remedy in (
        (lambda: staged.select(range(3)), "select from its stages"),
        (lambda: staged.weigh(np.ones(60)), "weigh its stages"),
        (lambda: staged.split({"a": 1.0}), "make a curriculum of a part"),
        (lambda: penstock.mix([(staged, 1)]), "dataset 0 is a curriculum: give opened data"),
        (lambda: penstock.Loader(staged, 6).set_weights(np.ones(60)), "weigh its stages"),
    ):
        with pytest.raises(UsageError, match=remedy):
            act()


def test_states_of_other_weights_and_curricula_are_refused(numbers: Any) -> None:
    """The error names both; equal ones continue, however they were made."""
    weights = np.arange(60) + 1
    first = penstock.Loader(numbers.weigh(weights), 6, seed=0)
    state = first.state_dict()
    same = numbers.weigh(lambda columns: weights / 256)
    penstock.Loader(same, 6, seed=0).load_state_dict(state)
    assert len(str(state)) < 1024
    for other in (
        numbers,
        numbers.weigh(weights[::-1]),
        numbers.weigh(weights, samples_per_epoch=6),
    ):
        with pytest.raises(StateError, match="weights-1:.*this loader .*"):
            penstock.Loader(other, 6, seed=0).load_state_dict(state)
    easy, hard = numbers.select(range(10)), numbers.select(range(30, 60))
    staged = penstock.curriculum([(0, easy), (3, hard), (5, numbers)])
    state = penstock.Loader(staged, 6, seed=0).state_dict()
    assert "curriculum-1:epochs:0=" in state["order"]
    other = penstock.curriculum([(0, easy), (4, hard), (5, numbers)])
    names = r"curriculum-1:epochs:0=\w+,3=.* loader .curriculum-1:epochs:0=\w+,4=.*weights, curr"
    with pytest.raises(StateError, match=names):
        penstock.Loader(other, 6, seed=0).load_state_dict(state)
    many = penstock.curriculum([(k, numbers.select([k])) for k in range(50)])
    assert len(str(penstock.Loader(many, 1, seed=0).state_dict())) < 1024


def test_a_curriculum_starts_where_it_says(numbers: Any) -> None:
    """Stages begin at their epochs, steps or samples, and batches say which they are of."""
    easy, hard = numbers.select(range(20)), numbers.select(range(20, 60))
    for unit, start, stage_of in (
        ("epochs", 2, lambda epoch, step: epoch >= 2),
        ("steps", 7, lambda epoch, step: 5 * epoch + step >= 7),
        ("samples", 56, lambda epoch, step: 5 * epoch + step >= 7),
    ):
        staged = penstock.curriculum([(0, easy), (start, hard)], unit=unit)
        assert staged.samples_per_epoch == 40
        with penstock.Loader(staged, 8, seed=0) as loader:
            for epoch in range(4):
                for batch in loader:
                    stage = int(stage_of(epoch, batch.step))
                    assert set(batch["stage"].tolist()) == {stage}
                    assert ((batch.ids >= 20) == bool(stage)).all()
            assert loader.count_draws() == ([80, 80] if unit == "epochs" else [56, 104])
        assert staged[3]["stage"] == staged[3]["pass"] == 0


def read_epoch(loader: Any) -> list[int]:
    return [int(sample) for batch in loader for sample in batch.ids]


@pytest.mark.parametrize("how", ["inside", "path", "again"])
def test_scores_of_a_training_loop_resume(
    numbers: Any, tmp_path: Path, monkeypatch: Any, how: str
) -> None:
    """New weights hold from the next epoch on; states go on with them, and back to those before."""
    if how == "again":
        monkeypatch.setattr(limits, "weights_state_samples_max", 0)
    path = tmp_path / "scores.weights" if how == "path" else None
    scores = np.random.default_rng(0).random((3, 60))
    loader = penstock.Loader(numbers, 7, seed=1)
    states, epochs = [loader.state_dict()], [read_epoch(loader)]
    assert sorted(epochs[0]) == list(range(60))
    for number in (1, 2):
        loader.set_weights(scores[number], path=path and path.with_suffix(f".{number}"))
        states.append(loader.state_dict())
        assert states[-1]["weights"]["number"] == number
        epochs.append(read_epoch(loader))
        expected = 60 * scores[number] / scores[number].sum()
        assert (np.abs(np.bincount(epochs[-1], minlength=60) - expected) < 1 + 1e-6).all()
    fresh = penstock.Loader(numbers, 7, seed=1)
    for number in (2, 0, 1, 2):
        if how == "again" and number:
            with pytest.raises(StateError, match=f"weights number {number} of .* does not hold"):
                fresh.load_state_dict(states[number])
            fresh.load_state_dict(states[0])
            fresh.set_weights(scores[number])
        fresh.load_state_dict(states[number])
        assert fresh.state_dict() == states[number]
        assert read_epoch(fresh) == epochs[number]
    middle = iter(fresh)
    next(middle)
    with pytest.raises(UsageError, match=r"in the middle of epoch 3 \(step 1 of 9\): .*epoch\(4\)"):
        fresh.set_weights(scores[0])
    middle.close()
    fresh.set_epoch(4)
    fresh.set_weights(scores[0])
    assert fresh.state_dict()["weights"]["number"] == 3
    if path is not None:
        broken = path.with_suffix(".2")
        broken.write_bytes(broken.read_bytes()[:-8])
        with pytest.raises(StateError, match="weights number 2 .*cannot be had: .*truncated"):
            fresh.load_state_dict(states[2])
        assert fresh.state_dict()["weights"]["number"] == 3


@pytest.mark.parametrize("mixed", [False, True])
def test_ranks_that_hand_in_other_scores_are_found(
    numbers: Any, tmp_path: Path, mixed: bool
) -> None:
    """All ranks hear of it, and go on as before; equal scores hold on all of them, on any world."""
    data = penstock.mix([(numbers, 1), (numbers, 2)]) if mixed else numbers
    world = 3
    scores = np.random.default_rng(1).random(len(data))

    def set_all(loaders: Any, weights: Any, **more: Any) -> list[Any]:
        barrier, texts, found = threading.Barrier(world), [""] * world, [None] * world

        def run(rank: int) -> None:
            def gather(text: str) -> list[str]:
                texts[rank] = text
                barrier.wait(30)
                return list(texts)

            try:
                loaders[rank].set_weights(weights[rank], gather=gather, **more)
            except UsageError as error:
                found[rank] = str(error)  # type: ignore[call-overload]

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def make() -> list[Any]:
        return [penstock.Loader(data, 4, seed=1, rank=rank, world_size=world) for rank in range(3)]

    loaders = make()
    before = loaders[0].state_dict()
    errors = set_all(loaders, [scores, scores, scores[::-1]])
    assert all(error.startswith("ranks 0 and 2 hand in other weights: digest") for error in errors)
    errors = set_all(loaders, [scores, scores[:5], scores])
    assert "weights is float64 of shape (5,)" in errors[1]
    assert errors[0] == errors[2] == f"rank 1 cannot take part: {errors[1]}"
    assert all(loader.state_dict() == before for loader in loaders)
    path = tmp_path / "scores"
    assert set_all(loaders, [scores] * 3, path=path) == [None] * 3
    with pytest.raises(UsageError, match="set_weights compares the weights of 3 ranks"):
        loaders[0].set_weights(scores)
    state = loaders[0].state_dict()
    assert all(loader.state_dict() == state for loader in loaders)
    together = sorted(sample for loader in loaders for sample in read_epoch(loader))
    alone = penstock.Loader(data, 12, seed=1, rank=0, world_size=1)
    alone.load_state_dict(state)
    assert sorted(read_epoch(alone)) == together


def test_many_weights_are_a_mapped_file(numbers: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Weights of many samples are a file, which pickles as its path, and give the same samples."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    weights = np.random.default_rng(0).random(60)
    inside = numbers.weigh(weights)
    monkeypatch.setattr(limits, "weights_samples_inline_max", 10)
    mapped = numbers.weigh(weights)
    assert not mapped.weighting.table.weights.flags.owndata
    assert not list((tmp_path / "penstock").iterdir())
    assert mapped.order(0).algorithm == inside.order(0).algorithm
    assert len(mapped.select(range(30)).weighting.table) == 30
    mixed = penstock.mix([(mapped, 1), (numbers, 1)])
    monkeypatch.setattr(penstock.order.WeightTable, "__reduce__", refuse_to_pickle)
    copies = pickle.loads(pickle.dumps([mapped, mixed]))
    (file,) = (tmp_path / "penstock").iterdir()
    assert file.suffix == ".weights"
    assert count_epoch(copies[0]).tolist() == count_epoch(inside).tolist()
    assert copies[1].order(1).algorithm == mixed.order(1).algorithm
    file.write_bytes(b"damaged")
    copy = pickle.loads(pickle.dumps(mapped))  # written again
    assert count_epoch(copy).tolist() == count_epoch(inside).tolist()


def refuse_to_pickle(table: object) -> Any:
    raise AssertionError("large weights are pickled as a path")


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2, "processes"])
def test_the_face_of_torch(numbers: Any, workers: Any) -> None:
    """Its DataLoader draws by weights and stages, takes new weights, and continues with them."""
    torch = pytest.importorskip("penstock.torch")
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 0}
    if workers:
        options |= {"num_workers": 2, "workers": workers if workers == "processes" else "threads"}
    weights = np.arange(60) % 5 + 1

    def read(loader: Any) -> list[int]:
        return [int(row) for batch in loader for row in batch["data"][:, 0]]

    def is_weighed(drawn: list[int], by: Any) -> bool:
        rows = drawn[:60]  # the last step is filled up
        return bool((np.abs(np.bincount(rows, minlength=60) - 60 * by / by.sum()) < 1).all())

    with contextlib.closing(torch.DataLoader(numbers.weigh(weights), **options)) as loader:
        assert is_weighed(read(loader), weights)
        loader.set_weights(weights[::-1])
        state = loader.state_dict()
        drawn = read(loader)
        assert is_weighed(drawn, weights[::-1])
    with contextlib.closing(torch.DataLoader(numbers.weigh(weights), **options)) as loader:
        loader.load_state_dict(state)
        assert read(loader) == drawn
    staged = penstock.curriculum([(0, numbers.select(range(60))), (1, numbers.weigh(weights))])
    with contextlib.closing(torch.DataLoader(staged, **options)) as loader:
        assert [{int(s) for batch in loader for s in batch["stage"]} for _ in "ab"] == [{0}, {1}]
    sampler = list(range(60))
    loader = torch.DataLoader(numbers, 7, sampler=sampler)
    with pytest.raises(UsageError, match="the sampler decides what is drawn: tell it"):
        loader.set_weights(weights)
    loader.close()
    with pytest.raises(UsageError, match="no .auto., mixtures, weights, curricula on a device"):
        torch.DeviceLoader(staged, 7)


def test_a_chosen_shuffle_keeps_weights(numbers: Any) -> None:
    """shuffle="auto" chooses an order of the weighed samples, and a state continues it; weights
    are not handed in to it."""
    weights = np.arange(60) % 5
    with penstock.Loader(numbers.weigh(weights), 7, seed=0, shuffle="auto") as loader:
        drawn = read_epoch(loader)
        assert (np.abs(np.bincount(drawn, minlength=60) - 60 * weights / weights.sum()) < 1).all()
        state = loader.state_dict()
        with pytest.raises(UsageError, match="and a shuffle that is named"):
            loader.set_weights(weights)
        following = read_epoch(loader)
    with penstock.Loader(numbers.weigh(weights), 7, seed=0, shuffle="auto") as loader:
        loader.load_state_dict(state)
        assert read_epoch(loader) == following
    staged = penstock.curriculum([(0, numbers)])
    with pytest.raises(UsageError, match="does not choose for a curriculum"):
        penstock.Loader(staged, 7, shuffle="auto")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": 5}, "cannot be had: "),
        ({"values": "!"}, "cannot be had: "),
        ({"values": "eJwDAAAAAAE="}, r"cannot be had: weights is uint32 of shape \(0,\)"),
        ({"values": None, "path": "/none"}, "cannot be had: /none"),
        ({"digest": "0" * 32}, "and holds others: it was changed"),
        ({"number": "1"}, "the state has weights that were handed in"),
    ],
)
def test_damaged_weights_of_a_state(numbers: Any, change: Any, message: str) -> None:
    """A state whose weights are not what they were is refused, and nothing has changed."""
    with penstock.Loader(numbers, 7, seed=0) as loader:
        loader.set_weights(np.arange(60))
        state = loader.state_dict()
    weights = {**state["weights"], **change}
    weights = {name: value for name, value in weights.items() if value is not None}
    with penstock.Loader(numbers, 7, seed=0) as loader:
        before = loader.state_dict()
        with pytest.raises(StateError, match=message):
            loader.load_state_dict({**state, "weights": weights})
        assert loader.state_dict() == before
        for junk in (5, [], "text"):
            with pytest.raises(StateError, match="the state has weights that were handed in"):
                loader.load_state_dict({**state, "weights": junk})
        with pytest.raises(StateError, match="this is no state"):
            loader.load_state_dict(5)  # type: ignore[arg-type]
        loader.load_state_dict(state)
        assert loader.state_dict() == state


@pytest.mark.long
def test_weights_of_a_process_group(tmp_path: Path) -> None:
    """Two processes of torch.distributed compare what they hand in: other weights change nothing,
    the same ones hold on both, and the epoch of both is that of one process."""
    pytest.importorskip("torch")
    data = write_numbers(tmp_path / "rows.bin", 60)
    scores = (np.arange(60) % 7 + 1.0).tolist()
    weights = [[scores, scores[::-1]], [scores, scores[:9]], [scores, scores]]
    command = [sys.executable, "-m", "tests.dataset.weighed_ranks"]
    told = {"folder": str(tmp_path), "world": 2, "weights": weights}
    processes = [
        warm.Popen([*command, json.dumps(told | {"rank": rank})], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert [error.split(":")[0] for error in one["errors"]] == [
        "ranks 0 and 1 hand in other weights",
        "rank 1 cannot take part",
        "",
    ]
    assert one["errors"][0] == other["errors"][0]
    assert one["errors"][1].endswith(other["errors"][1])
    assert one["state"] == other["state"]
    alone = penstock.Loader(data, 8, seed=1, rank=0, world_size=1)
    for epoch, (mine, theirs) in enumerate(zip(one["epochs"], other["epochs"], strict=True)):
        if epoch == 2:
            alone.set_weights(scores)
        assert sorted(mine + theirs) == sorted(read_epoch(alone))
    alone.close()


@pytest.mark.parametrize("shuffle", ["exact", "blocked", "none"])
def test_draws_without_weights(tmp_path: Path, shuffle: str) -> None:
    """An epoch draws one sample of each stretch, of a selection too, on any world, resumed."""
    dataset = write_numbers(tmp_path / "a.bin", 300).select(range(50, 260))
    drawn = dataset.weigh(samples_per_epoch=20)
    assert (len(drawn), drawn.samples_per_epoch) == (210, 20)
    options = {"global_batch_size": 6, "seed": 5, "shuffle": shuffle}
    steps, _ = read_steps(drawn, 1, None, 12, options)
    first, state = read_steps(pickle.loads(pickle.dumps(drawn)), 2, None, 3, options)
    rest, _ = read_steps(drawn, 3, state, 9, options)
    assert first + rest == steps
    epochs = collections.defaultdict(list)
    for _, _, epoch, sample in itertools.chain(*steps):
        epochs[epoch].append(sample)
    assert len({tuple(sorted(samples)) for samples in epochs.values()}) == 3
    for samples in epochs.values():
        for stretch, sample in enumerate(sorted(samples)):
            assert stretch * 210 // 20 <= sample - 50 < (stretch + 1) * 210 // 20
    with pytest.raises(UsageError, match="give samples_per_epoch= to mix"):
        penstock.mix([(drawn, 1), (dataset, 1)])
    assert drawn.select(range(15)).samples_per_epoch == 15


def test_draws_that_cannot_be(tmp_path: Path) -> None:
    dataset = write_numbers(tmp_path / "a.bin", 30)
    for options in ({}, {"samples_per_epoch": 31}, {"samples_per_epoch": 3, "columns": {}}):
        with pytest.raises(UsageError, match="samples_per_epoch"):
            dataset.weigh(**options)
    with pytest.raises(UsageError, match="has no weights"):
        dataset.weigh(samples_per_epoch=3).join_weights()
