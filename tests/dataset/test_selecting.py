"""Selections and splits: against plain numpy, through loaders, mixtures, caches and pickles."""

from __future__ import annotations

import itertools
import json
import operator
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.dataset.predicate import Predicate
from penstock.errors import StateError, UsageError
from penstock.order import Order
from tests.slices import fraction

COUNT = 900
CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: Any) -> penstock.Dataset:
    """Records that hold their own number."""
    return write_numbers(tmp_path_factory.mktemp("numbers") / "rows.bin", COUNT)


def write_numbers(path: Path, count: int) -> penstock.Dataset:
    rows = np.zeros((count, 2), np.int64)
    rows[:, 0] = np.arange(count)
    rows.tofile(path)
    return penstock.open(path, dtype="i8", shape=(2,))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: Any) -> penstock.Dataset:
    """Files of many lengths in folders of classes."""
    root = tmp_path_factory.mktemp("tree")
    for number in range(60):
        folder = root / CLASSES[number % 3]
        folder.mkdir(exist_ok=True)
        (folder / f"{number:03}.bin").write_bytes(b"x" * (number * 7 % 50 + 1))
    return penstock.open(root)


@st.composite
def selections(draw: Any, count: int) -> Any:
    """The arguments of a select, and the samples that numpy says it keeps."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = random.random(count) < draw(st.sampled_from([0.05, 0.5, 0.95]))
    mask[random.integers(count)] = True
    ids = np.flatnonzero(mask)
    kind = draw(st.sampled_from(["ids", "mask", "range", "where", "function", "fraction"]))
    step = draw(st.sampled_from([1, 2, 7, -3]))
    values = random.integers(0, 9, count)
    some = values >= values[random.integers(count)]
    share = draw(st.sampled_from([0.1, 0.5, 1.0]))
    return {
        "ids": ({"ids": random.permutation(ids)}, ids),
        "mask": ({"mask": mask}, ids),
        "range": ({"ids": range(count)[::step]}, np.sort(np.arange(count)[::step])),
        "where": (
            {"where": f"score >= {values[some].min()}", "columns": {"score": values}},
            np.flatnonzero(some),
        ),
        "function": ({"where": lambda columns: columns["bytes"] > 0}, np.arange(count)),
        "fraction": (
            {"fraction": share, "seed": 5},
            np.sort(Order(count, 5, purpose="selection").run(0, round(share * count))),
        ),
    }[kind]


def read_global(
    dataset: Any, world: int, state: Any, steps: int, **arguments: Any
) -> tuple[list[list[int]], Any]:
    """Global batches from a state on, interleaved from all ranks, and the state after them."""
    loaders = [
        penstock.Loader(dataset, rank=rank, world_size=world, **arguments) for rank in range(world)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    ranks: list[list[list[int]]] = []
    for loader in loaders:
        own: list[list[int]] = []
        while len(own) < steps:
            for batch in loader:
                ids = batch.ids.astype(np.int64)
                assert np.array_equal(batch["data"][:, 0], ids)
                own.append(ids.tolist())
                if len(own) == steps:
                    break
        ranks.append(own)
    states = [loader.state_dict() for loader in loaders]
    assert all(each == states[0] for each in states)
    for loader in loaders:
        loader.close()
    found = []
    for batches in zip(*ranks, strict=True):
        rows = max(map(len, batches))
        found.append([ids[row] for row in range(rows) for ids in batches if row < len(ids)])
    return found, states[0]


@fraction(2)
@given(
    chosen=selections(COUNT),
    again=st.none() | st.integers(1, 60),
    shuffle=st.sampled_from(["exact", "blocked", "none"]),
    worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    batch=st.integers(5, 90),
    data=st.data(),
)
def test_once_an_epoch_from_any_state_on_any_world(
    numbers: Any, chosen: Any, again: Any, shuffle: Any, worlds: Any, batch: int, data: Any
) -> None:
    """Every selection holds numpy's samples, once an epoch, in one sequence of global batches,
    whatever the shuffle, the world, and the step at which it is resumed on another."""
    arguments, expected = chosen
    dataset = numbers.select(**arguments)
    if again is not None and again <= len(expected):
        dataset, expected = dataset.select(range(0, len(expected), again)), expected[::again]
    assert dataset.ids(np.arange(len(dataset))).tolist() == expected.tolist()
    assert int(dataset[-1]["data"][0]) == dataset[-1]["__id__"] == expected[-1]
    if len(expected) < max(worlds):
        return
    options = {"global_batch_size": batch, "shuffle": shuffle, "seed": 3, "block": 4, "group": 8}
    steps = -(-len(expected) // batch)
    whole, _ = read_global(dataset, 1, None, 2 * steps, **options)
    assert sorted(i for step in whole[:steps] for i in step) == expected.tolist()
    assert sorted(i for step in whole[steps:] for i in step) == expected.tolist()
    if shuffle == "none":
        assert [i for step in whole[:steps] for i in step] == expected.tolist()
    stop = data.draw(st.integers(0, 2 * steps))
    head, state = read_global(dataset, worlds[0], None, stop, **options)
    copy = pickle.loads(pickle.dumps(dataset))
    tail, _ = read_global(copy, worlds[1], state, 2 * steps - stop, **options)
    assert head + tail == whole


def read_drawn(loaders: Any, steps: int) -> list[list[tuple[int, int, int]]]:
    """(source, sample, pass) of the rows of global batches, as bytes and columns say."""
    found: list[list[Any]] = [[] for _ in range(steps)]
    for loader in loaders:
        at = 0
        while at < steps:
            for batch in loader:
                rows = zip(batch["source"], batch["data"][:, 0], batch["pass"], strict=True)
                found[at] += [tuple(map(int, row)) for row in rows]
                at += 1
                if at == steps:
                    break
        loader.close()
    return [sorted(step) for step in found]


@fraction(2)
@given(
    chosen=st.tuples(selections(120), st.none() | selections(50)),
    of_mixture=st.none() | selections(1000),
    weights=st.tuples(st.sampled_from([1, 3]), st.sampled_from([1, 2.5])),
    scheduled=st.booleans(),
    shuffle=st.sampled_from(["exact", "blocked", "none"]),
    worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stop=st.integers(0, 12),
)
def test_selections_and_mixtures_of_each_other(
    tmp_path_factory: Any,
    chosen: Any,
    of_mixture: Any,
    weights: Any,
    scheduled: bool,
    shuffle: Any,
    worlds: Any,
    stop: int,
) -> None:
    """A mixture of selections, and a selection of that mixture, draw from each dataset all its
    selected samples once before one comes again, and a state continues on any other world."""
    folder = tmp_path_factory.mktemp("mixed")
    parts, kept = [], []
    for name, count, choice in zip("ab", (120, 50), chosen, strict=True):
        part, expected = write_numbers(folder / f"{name}.bin", count), np.arange(count)
        if choice is not None:
            part, expected = part.select(**choice[0]), choice[1]
        parts.append(part)
        kept.append(expected)
    schedule = [(0, weights), (7, weights[::-1])] if scheduled else None
    mixed = penstock.mix(list(zip(parts, weights, strict=True)), schedule=schedule)
    if of_mixture is not None:
        mask = np.zeros(1000, bool)
        mask[of_mixture[1]] = True
        mask = mask[: len(mixed)]
        mask[[0, -1]] = True
        mixed = mixed.select(mask=mask)
        kept = [kept[0][mask[: len(kept[0])]], kept[1][mask[len(kept[0]) :]]]
    numbers = np.concatenate([kept[0], kept[1] + 120])
    assert mixed.ids(np.arange(len(mixed))).tolist() == numbers.tolist()
    assert mixed[-1]["data"][0] == kept[1][-1]
    assert (mixed[0]["source"], mixed[-1]["source"]) == (0, 1)
    if len(mixed) < 5:
        return
    arguments: dict[str, Any] = {"global_batch_size": 16, "shuffle": shuffle, "seed": 2, "block": 4}

    def make(world: int, dataset: Any, state: Any = None) -> list[Any]:
        loaders = []
        for rank in range(world):
            loader = penstock.Loader(dataset, rank=rank, world_size=world, **arguments)
            if state is not None:
                loader.load_state_dict(state)
            loaders.append(loader)
        return loaders

    whole = read_drawn(make(1, mixed), 14)
    seen: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for step in whole:
        for source, sample, turn in step:
            seen[source].append((turn, sample))
    for source, drawn in seen.items():
        for turn in range(max(turn for turn, _ in drawn) if drawn else 0):
            own = [sample for at, sample in drawn if at == turn]
            assert sorted(own) == kept[source].tolist()
    loaders = make(worlds[0], mixed)
    head = read_drawn(loaders, stop)
    tail = read_drawn(
        make(worlds[1], pickle.loads(pickle.dumps(mixed)), loaders[0].state_dict()), 14 - stop
    )
    assert head + tail == whole


def test_a_state_of_another_selection_is_refused(numbers: Any) -> None:
    """A state continues under an equal selection, however it was made, and under no other."""
    mask = np.arange(COUNT) % 3 == 0
    with penstock.Loader(numbers.select(mask=mask), 8) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with penstock.Loader(numbers.select(range(0, COUNT, 3)), 8) as loader:
        loader.load_state_dict(state)
    mask[1] = True
    for other in (numbers, numbers.select(mask=mask)):
        with (
            penstock.Loader(other, 8) as loader,
            pytest.raises(StateError, match="select from it what was selected"),
        ):
            loader.load_state_dict(state)


def test_labels_keys_and_bytes(tree: penstock.Dataset) -> None:
    """Conditions name classes, keys and bytes; what numpy says about the columns is selected."""
    index = tree.index
    every = np.arange(len(tree))
    labels, sizes, keys = index.labels(every), index.lengths(every), index.keys(every)
    assert labels is not None
    cases = {
        "label == 'cat' and bytes > 20": (labels == 0) & (sizes > 20),
        "label in ('cat', 'owl') or bytes == 1": (labels != 1) | (sizes == 1),
        "label not in [0] and not bytes < 30": (labels != 0) & (sizes >= 30),
        "3 < bytes <= 40 != label": (sizes > 3) & (sizes <= 40) & (labels != 40),
        "(bytes - 1) % 7 == 0": (sizes - 1) % 7 == 0,
        "bytes / 2 + label * 3 >= -label + 9.5": sizes / 2 + labels * 3 >= 9.5 - labels,
        "key.startswith('dog/') and '1' in key": np.array(
            [key.startswith("dog/") and "1" in key for key in keys]
        ),
        "key == 'cat/000.bin'": np.array([key == "cat/000.bin" for key in keys]),
        "bytes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)": sizes <= 10,
        "sure": every % 2 == 0,
        "score > 0.5 and name != 'b'": (every % 3 > 0) & (every % 2 == 0),
    }
    columns = {
        "sure": every % 2 == 0,
        "score": (every % 3).astype(np.float32),
        "name": np.where(every % 2 == 0, "a", "b"),
    }
    for text, expected in cases.items():
        found = tree.select(where=text, columns=columns)
        assert found.ids(np.arange(len(found))).tolist() == np.flatnonzero(expected).tolist(), text
        assert found[0]["label"] == labels[expected][0]
        assert found[0]["__key__"] == keys[int(np.flatnonzero(expected)[0])]
    half = tree.select(where="label == 'dog'")
    assert len(half.select(where="bytes > 20")) == ((labels == 1) & (sizes > 20)).sum()
    assert half.select(where=lambda columns: columns["key"] == "dog/001.bin")[0]["label"] == 1


def test_numbers_in_the_data_are_columns(tmp_path: Path) -> None:
    """A field that is one number a sample is read, and can be named, by itself or by a function."""
    kind = np.dtype([("score", "<f4"), ("text", "S6"), ("age", "<i2", (1,))])
    rows = np.zeros(5000, kind)
    rows["score"] = np.random.default_rng(0).random(5000)
    rows["age"][:, 0] = np.arange(5000) % 90
    pa = pytest.importorskip("pyarrow")
    import pyarrow.feather  # noqa: F401

    table = pa.table({"score": rows["score"], "age": rows["age"][:, 0]})
    with (
        pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as out,
        pa.ipc.new_file(out, table.schema) as writer,
    ):
        writer.write_table(table)
    dataset = penstock.open(tmp_path / "rows.arrow", index="memory")
    expected = np.flatnonzero((rows["score"] > 0.5) & (rows["age"][:, 0] < 30))
    found = dataset.select(where="score > 0.5 and age < 30")
    assert found.ids(np.arange(len(found))).tolist() == expected.tolist()
    again = dataset.select(where=lambda c: (c["score"] > 0.5) & (c["age"] < 30))
    assert again.fingerprint == found.fingerprint != dataset.fingerprint
    inner = dataset.select(range(0, 5000, 2)).select(where="age == 4")
    assert inner.ids(np.arange(len(inner))).tolist() == list(range(4, 5000, 90))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "select was given nothing: give one of"),
        ({"ids": [1], "fraction": 0.1}, "given ids and fraction: give one of"),
        ({"ids": [0, 60]}, r"ids\[1\] is 60: use 0..59"),
        ({"ids": [-1]}, r"ids\[0\] is -1: use 0..59"),
        ({"ids": np.array([2**63], np.uint64)}, r"ids\[0\] is 9223372036854775808: use 0..59"),
        ({"ids": [7, 3, 7]}, r"ids\[2\] is 7, as ids\[0\] is: name a sample once"),
        ({"ids": range(50, 70)}, r"ids is range\(50, 70\): use 0..59"),
        ({"ids": []}, "that ids selects none of the 60 samples"),
        ({"ids": [1.5]}, "ids is float64 of shape"),
        ({"ids": 5}, "ids is 5: give sample numbers"),
        ({"ids": [[1], [2, 3]]}, "ids makes no array"),
        ({"ids": [10**30]}, "ids is object of shape"),
        ({"mask": [[True], [True, True]]}, "mask makes no array"),
        ({"ids": [True, False]}, r"ids is bool of shape \(2,\): give integers"),
        ({"ids": "3"}, "give sample numbers, or a range"),
        ({"mask": np.ones(59, bool)}, r"shape \(59,\): give truth values of shape \(60,\)"),
        ({"mask": np.ones(60)}, "mask is float64"),
        ({"mask": np.zeros(60, bool)}, "that mask selects none of the 60 samples"),
        (
            {"where": "lable == 1"},
            r"no column 'lable' \(did you mean 'label'\?\): use one of 'label', ",
        ),
        ({"where": "bytes > 1000"}, "'bytes > 1000' selects none of the 60 samples"),
        ({"where": "label == 'cow'"}, "no class 'cow': use one of 'cat'"),
        ({"where": "label"}, "this is a number, no condition: compare it"),
        ({"where": "bytes > 'a'"}, "a number is compared with a text"),
        ({"where": "key > 3"}, "a text is compared with a number"),
        ({"where": "1 < 2"}, "this names no column: name one of"),
        ({"where": "bytes >"}, "invalid syntax: write a condition such as"),
        ({"where": "(" * 300 + "bytes" + ")" * 300}, "write a condition such as"),
        ({"where": "not " * 60000 + "sure"}, "240,004 characters, of 100,000 at most"),
        ({"where": "__import__('os').system('true')"}, "Call is not part of conditions"),
        ({"where": "bytes.__class__ == 3"}, "there is no column 'bytes.__class__'"),
        ({"where": "[x for x in 'a'] == 3"}, "ListComp is not part of conditions"),
        ({"where": "(lambda: 1)() < bytes"}, "Call is not part of conditions"),
        ({"where": "bytes ** 9 > 3"}, "Pow is none of"),
        ({"where": "bytes % 0 == 1"}, "take a number other than 0"),
        ({"where": "bytes > 1 / 0"}, "division by zero"),
        ({"where": "bytes in ()"}, "the list after in is empty"),
        ({"where": "bytes in (key,)"}, "holds constants"),
        ({"where": "bytes is 3"}, "use == or !="),
        ({"where": "bytes + 10**30 > 3"}, "Pow is none of"),
        ({"where": f"bytes + {10**30} > 3"}, "a number is beyond 64 bits"),
        ({"where": 3}, "where is 3: give a condition as text, or a function"),
        ({"where": lambda columns: columns["label"]}, "what where returned is int64"),
        ({"where": lambda columns: columns["len"] > 1}, "there is no column 'len'"),
        ({"where": "a > 1", "columns": {"a": [1, 2]}}, r"columns\['a'\] is int64 of shape \(2,\)"),
        ({"where": "a > 1", "columns": {"bytes": range(60)}}, "which the dataset has too"),
        ({"fraction": 0.5, "columns": {}}, "columns are for where="),
        ({"fraction": 0}, "fraction is 0: use a number above 0"),
        ({"fraction": 1.01}, "fraction is 1.01"),
        ({"fraction": 0.001}, "that fraction selects none of the 60 samples"),
        ({"fraction": 0.5, "seed": -1}, "seed is -1"),
        ({"saved": "x", "ids": [1]}, "and ids is given too"),
        ({"saved": "/nowhere/x"}, "/nowhere/x does not exist"),
    ],
)
def test_what_cannot_be_selected(
    tree: penstock.Dataset, arguments: dict[str, Any], message: str
) -> None:
    """The error names the value, and what to give instead."""
    with pytest.raises(penstock.PenstockError, match=message):
        tree.select(**arguments)


@given(
    count=st.integers(20, 400),
    by=st.sampled_from([None, "key", "group", "function"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_parts_of_a_split_do_not_overlap(
    tmp_path_factory: Any, count: int, by: Any, seed: int
) -> None:
    """Each sample is in exactly one part; by a value, equal values are in one part, and more
    samples change no sample's part; by nothing, sizes are exact."""
    path = tmp_path_factory.mktemp("split") / "rows.bin"
    fractions = {"train": 0.6, "val": 0.25, "test": 0.15}

    def divide(rows: int) -> dict[str, list[int]]:
        group = np.arange(rows) * 7 % 13
        columns = {"group": group} if by == "group" else None
        rule = (lambda columns: group.astype(float)) if by == "function" else by
        dataset = write_numbers(path, rows)
        found = dataset.split(fractions, by=rule, seed=seed, columns=columns)
        return {name: part.ids(np.arange(len(part))).tolist() for name, part in found.items()}

    try:
        parts = divide(count)
    except UsageError as error:
        if by is not None and "has none of the" in str(error):
            return
        raise
    assert sorted(itertools.chain(*parts.values())) == list(range(count))
    if by is None:
        assert all(abs(len(parts[name]) - part * count) <= 1 for name, part in fractions.items())
        return
    more = divide(count + 50)
    for name in fractions:
        assert [i for i in more[name] if i < count] == parts[name]
        if by != "key":
            groups = [{i * 7 % 13 for i in part} for part in parts.values()]
            assert sum(map(len, groups)) == len(set.union(*groups))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parts": {}}, "give a dict of fractions by name"),
        ({"parts": {"a": 0.9}}, "add up to 0.9: they must add up to 1; add a part of 0.1"),
        ({"parts": {"a": 0.9, "b": 0.2}}, "add up to 1.1: they must add up to 1"),
        ({"parts": {"a": 1, "b": 0}}, "the part 'b' is 0"),
        ({"parts": {"a": 0.999, "b": 0.001}}, "the part 'b' of 0.001 has none of the 60 samples"),
        ({"parts": {"a": 1.0}, "by": "speaker"}, "there is no column 'speaker'"),
        ({"parts": {"a": 1.0}, "by": 3}, "by is 3: give the name of a column"),
        ({"parts": {"a": 1.0}, "by": lambda columns: [1]}, "what by returned is int64"),
        ({"parts": {"a": 1.0}, "columns": {}}, "columns are for by="),
        ({"parts": {"a": 1.0}, "seed": "x"}, "seed is 'x'"),
    ],
)
def test_what_cannot_be_split(
    tree: penstock.Dataset, arguments: dict[str, Any], message: str
) -> None:
    """The error names the value, and what to give instead."""
    with pytest.raises(UsageError, match=message):
        tree.split(**arguments)


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_parts_by_key_stay_when_files_are_added(ending: str, tmp_path: Path) -> None:
    """A file that sorts before the others moves no sample; where it would, keys are refused."""

    def write(name: str, values: range) -> None:
        path = tmp_path / f"{name}.{ending}"
        if ending == "jsonl":
            path.write_text("".join(f'{{"n": {value}}}\n' for value in values))
        else:
            pa = pytest.importorskip("pyarrow")
            import pyarrow.parquet as pq

            pq.write_table(pa.table({"n": list(values)}), path)

    def find_val() -> set[int]:
        options: dict[str, Any] = {"fields": "n"} if ending == "jsonl" else {}
        dataset = penstock.open(tmp_path, index="memory", **options)
        found = dataset.split({"train": 0.5, "val": 0.5}, by="key")
        with penstock.Loader(found["val"], 100, rank=0, world_size=1) as loader:
            return {value for batch in loader for value in batch["n"].tolist()}

    write("b", range(100))
    before = find_val()
    assert 20 < len(before) < 80
    write("a", range(1000, 1050))
    if ending == "jsonl":
        assert {value for value in find_val() if value < 1000} == before
        return
    for read in (
        lambda: find_val(),
        lambda: penstock.mix([(penstock.open(tmp_path, index="memory"), 1)] * 2).split(
            {"a": 0.5, "b": 0.5}, by="key"
        ),
    ):
        with pytest.raises(UsageError, match="parquet#0.*count samples over all files"):
            read()


def test_a_larger_fraction_holds_a_smaller(numbers: Any) -> None:
    """Fractions of one seed are nested, and those of another seed are others."""
    tenth, half = (numbers.select(fraction=part, seed=4) for part in (0.1, 0.5))
    held = [set(part.ids(np.arange(len(part))).tolist()) for part in (tenth, half)]
    assert (len(tenth), len(half)) == (90, 450)
    assert held[0] < held[1]
    assert numbers.select(fraction=0.1, seed=5).fingerprint != tenth.fingerprint


def test_saved_selections(
    numbers: Any, tree: penstock.Dataset, tmp_path: Path, monkeypatch: Any
) -> None:
    """A saved selection opens as the same one; damage, other data and other files are refused; one
    that is large is pickled as the path of a file, which is made if there is none."""
    chosen = numbers.select(fraction=0.3)
    path = tmp_path / "chosen"
    chosen.save_selection(path)
    again = numbers.select(saved=path)
    assert again.fingerprint == chosen.fingerprint
    assert np.array_equal(again.ids(np.arange(270)), chosen.ids(np.arange(270)))
    assert len(again.select(where="bytes == 16")) == 270
    with pytest.raises(penstock.errors.SidecarError, match="a selection that was saved for data"):
        tree.select(saved=path)
    with pytest.raises(UsageError, match="is not a selection: save"):
        numbers.select(saved=numbers.sidecar)
    with pytest.raises(UsageError, match="this is a selection itself"):
        chosen.select(saved=path)
    with pytest.raises(UsageError, match="is no selection: save a selection"):
        numbers.save_selection(path)
    with pytest.raises(penstock.errors.StorageError, match="cannot be written"):
        chosen.save_selection(tmp_path / "none" / "chosen")
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole[:-1] + b"x", b"", whole[:40] + b"?" + whole[41:]):
        path.write_bytes(damaged)
        with pytest.raises(penstock.errors.SidecarError, match="save the selection again"):
            numbers.select(saved=path)
    path.write_bytes(whole)
    monkeypatch.setattr(penstock.limits, "selection_bytes_inline_max", 100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for one in (chosen, numbers.select(saved=path)):
        pickled = pickle.dumps(one)
        assert chosen.subset.digest.encode() in pickled
        assert len(pickled) < 2000
        copy = pickle.loads(pickle.loads(pickle.dumps(pickled)))
        assert copy.fingerprint == chosen.fingerprint
        assert copy[7]["__id__"] == chosen[7]["__id__"]
    saved = list((tmp_path / "cache" / "penstock").iterdir())
    assert [file.suffix for file in saved] == [".selection"]
    saved[0].unlink()
    pickled = pickle.dumps(chosen)
    saved[0].unlink()
    with pytest.raises(penstock.errors.MissingError, match="does not exist"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("where", "columns", "expected"),
    [
        ("w * h > 1000000000", {"w": np.uint16(60000), "h": np.uint16(50000)}, True),
        ("a - b < 0", {"a": np.uint8(1), "b": np.uint8(2)}, True),
        ("-a < 0", {"a": np.uint8(1)}, True),
        ("x * 2 > 100", {"x": np.int8(100)}, True),
        (f"x in ({2**53}, 1, 2, 3, 4, 5, 6, 7, 8, 0.5)", {"x": np.int64(2**53 + 1)}, False),
        (f"x in (1, 2, 3, 4, 5, 6, 7, 8, {2**63 + 1})", {"x": np.uint64(2**63)}, False),
        ("x in (0.1, 1, 2, 3, 4, 5, 6, 7, 8)", {"x": np.float32(0.1)}, True),
        ("0 < 1 < x", {"x": np.int8(2)}, True),
    ],
)
def test_conditions_on_narrow_columns(
    numbers: penstock.Dataset, where: str, columns: dict[str, Any], expected: bool
) -> None:
    """Arithmetic and lists are exact, whatever the dtype of a column."""
    arrays = {name: np.full(COUNT, value) for name, value in columns.items()}
    has_none = "z or " + where  # so that a selection of nothing is no error
    first = np.arange(COUNT) == 0
    found = numbers.select(where=has_none, columns={**arrays, "z": first})
    assert len(found) == (COUNT if expected else 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([2**53 + 1, *[0.5] * 899], "has 9007199254740993, which would be rounded"),
        ([2**63 + 1, *[-1] * 899], "has 9223372036854775809, which would be rounded"),
        ([1, *["1"] * 899], "has 1, among texts"),
        (np.ma.array(np.ones(900), mask=np.arange(900) < 2), "some of it is masked"),
        (np.ma.array(np.ones(900, bool), mask=np.arange(900) < 2), "some of it is masked"),
    ],
)
def test_values_that_an_array_would_change(
    numbers: penstock.Dataset, values: Any, message: str
) -> None:
    """Lists whose numbers numpy would round, and masked values, are not taken for others."""
    for use in (
        lambda: numbers.select(where="x > 0", columns={"x": values}),
        lambda: numbers.select(mask=values),
        lambda: numbers.weigh(values),
        lambda: numbers.split({"a": 0.5, "b": 0.5}, by=lambda _: values),
    ):
        with pytest.raises(UsageError, match=message):
            use()


_EDGES = [0, 127, 2**24, 2**31, 2**53, -(2**53), 2**63, -(2**63), 2**64, 10**30]
_NUMBERS = [
    *(near for edge in _EDGES for near in (edge - 1, edge, edge + 1, float(edge))),
    *(0.5, -0.0, 5e-324, 1.7e308, float("inf"), float("-inf")),
]
_SIGNS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _fit_numbers(dtype: str) -> Any:
    """A column of all the numbers, or of the nearest that the dtype has."""
    if dtype == "f8":
        return np.array([*map(float, _NUMBERS), np.nan])
    fit = np.iinfo(dtype)
    whole = [int(number) if abs(number) < 2**99 else 1 for number in [*_NUMBERS, 7]]
    return np.array([min(max(number, fit.min), fit.max) for number in whole], dtype)


@pytest.mark.parametrize("dtype", ["i8", "u8", "f8"])
def test_comparisons_are_exact(dtype: str) -> None:
    """Numbers of any types are compared as Python does, without a rounding to float64."""
    kinds: Any = {"x": "number", "y": "number"}
    column = _fit_numbers(dtype)
    values = column.tolist()
    for sign, compare in _SIGNS.items():
        for number in _NUMBERS:
            constant = str(number).replace("inf", "1e999")
            found = Predicate(f"x {sign} {constant}", kinds)({"x": column}).tolist()
            assert found == [compare(value, number) for value in values], (sign, number)
        for other in map(_fit_numbers, ("i8", "u8", "f8")):
            for turn in range(2):  # beside others that are near, too
                turned = np.roll(other, turn)
                found = Predicate(f"x {sign} y", kinds)({"x": column, "y": turned}).tolist()
                assert found == list(map(compare, values, turned.tolist())), (sign, turn)
    for number in _NUMBERS:
        for listed in ([number], [number, *range(3, 13)]):
            text = ", ".join(str(value).replace("inf", "1e999") for value in listed)
            found = Predicate(f"x in [{text}]", kinds)({"x": column}).tolist()
            assert found == [value in listed for value in values], text


@pytest.mark.parametrize("dtype", ["i8", "u8", "i4", "u1"])
@pytest.mark.parametrize("sign", ["+", "-", "*", "//", "%"])
def test_sums_are_exact_or_refused(dtype: str, sign: str) -> None:
    """Whole numbers are computed as Python does; what is beyond 64 bits is refused, where numpy
    wraps around."""
    kinds: Any = {"x": "number", "y": "number"}
    compute: Any = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    compute |= {"//": operator.floordiv, "%": operator.mod}
    whole = [int(value) for value in _fit_numbers(dtype).tolist()]
    columns = [[value] for value in whole] + [whole, [0, 1, 2], [whole[0], 5]]

    def check(text: str, left: list[int], right: list[int], made: list[int]) -> None:
        arrays = {"x": np.array(left, dtype), "y": np.array(right, dtype)}
        fits = min(made) >= -(2**63) and max(made) < (2**64 if min(made) >= 0 else 2**63)
        if fits:
            assert Predicate(f"{text} == {made[0]}", kinds)(arrays)[0], (text, left, right)
            least = Predicate(f"{text} < {made[0]}", kinds)(arrays).tolist()
            assert least == [value < made[0] for value in made], (text, left, right)
        else:
            with pytest.raises(UsageError, match="beyond 64 bits"):
                Predicate(f"{text} < 5", kinds)(arrays)

    for left in columns:
        for number in (1, -1, 3, 2**31, 2**62 + 1, -(2**63), 2**63):
            made = [compute[sign](value, number) for value in left]
            check(f"x {sign} {number}", left, left, made)
        if sign not in ("//", "%"):
            right = left[::-1]
            made = list(map(compute[sign], left, right))
            check(f"x {sign} y", left, right, made)
        if sign == "-":
            check("-x", left, left, [-value for value in left])


@pytest.mark.parametrize("sign", ["==", "!=", "<", ">="])
def test_lists_are_not_compared(sign: str) -> None:
    """A list of each sample compared with a list is refused: it is no array of truth values."""
    with pytest.raises(
        penstock.PenstockError, match="a list is compared with a list: .*ask for a number in a list"
    ):
        Predicate(f"boxes {sign} boxes", {"boxes": "list"})


_NUL_TEXTS = ["a", "a\0", "", "\0", "b\0b"]


@pytest.mark.parametrize("act", ["==", "in", "startswith", "columns", "split", "class"])
def test_texts_that_end_in_nul_are_refused(tmp_path: Path, act: str) -> None:
    """numpy's arrays of texts drop such an end: "a" would be selected for one that ends in NUL, and
    the other way. NUL within a text is kept."""
    rows = [{"f": f"{n}.bin", "t": text} for n, text in enumerate(_NUL_TEXTS)]
    for row in rows:
        (tmp_path / row["f"]).write_bytes(b"x")
    table = tmp_path / "table.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    dataset = penstock.open(table, files="f", index="memory")
    assert [sample["t"] for sample in dataset] == _NUL_TEXTS
    whole = dataset.select([0, 2, 4])
    assert whole.select(where=r"t == 'b\0b'").ids([0]).tolist() == [4]
    uses: dict[str, Any] = {
        "==": lambda: dataset.select(where="t == 'a'"),
        "in": lambda: whole.select(where=r"t in ['b', 'a\0']"),
        "startswith": lambda: whole.select(where=r"t.startswith('b\0')"),
        "columns": lambda: whole.select(where="u == 'a'", columns={"u": ["a\0", "b", "c"]}),
        "split": lambda: dataset.split({"x": 0.5, "y": 0.5}, by="t"),
        "class": lambda: dataset.select(where=lambda columns: columns["t"] == "a"),
    }
    with pytest.raises(UsageError, match="ends in NUL"):
        uses[act]()


def test_one_long_text_takes_no_memory(tmp_path: Path, monkeypatch: Any) -> None:
    """Texts are compared in parts where an array of all would be as wide as the longest."""
    monkeypatch.setattr(penstock.limits, "selection_text_bytes_max", 4000)
    (tmp_path / "a").write_bytes(b"a")
    texts = ["x" * (900 if row == 5 else row % 7) for row in range(300)]
    rows = [f"a,{text}\n" for text in texts]
    (tmp_path / "t.csv").write_text("".join(["f,t\n", *rows]))
    dataset = penstock.open(tmp_path / "t.csv", files="f", index="memory")
    for where, wanted in (("t == 'xx'", "xx"), ("t.startswith('xxxxxxx')", "x" * 900)):
        found = dataset.select(where=where)
        expected = [row for row, text in enumerate(texts) if text == wanted]
        assert found.ids(np.arange(len(found))).tolist() == expected
    parts = dataset.split({"a": 0.5, "b": 0.5}, by="t")
    assert sum(map(len, parts.values())) == 300
    with pytest.raises(penstock.errors.LimitError, match="a text has 900 characters"):
        dataset.select(where=lambda columns: columns["t"] == "xx")


def chosen(dataset: penstock.Dataset) -> list[int]:
    """The numbers of the selected samples in the whole data."""
    return dataset.ids(np.arange(len(dataset))).tolist()


def write_texts(folder: Path, kind: str, texts: list[str], numbers: list[int]) -> penstock.Dataset:
    """Write texts and numbers in a format that has fields of texts, and open them."""
    path = folder / f"x.{kind}"
    table = pa.table({"lang": texts, "n": numbers})
    if kind.startswith("jsonl"):
        lines = [
            json.dumps({"lang": text, "n": n}) + "\n"
            for text, n in zip(texts, numbers, strict=True)
        ]
        path.write_text("".join(lines))
        types = {"lang": "bytes", "n": "int"} if kind == "jsonl" else None
        return penstock.open(path, format="jsonl", fields=["lang", "n"], types=types)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=7, compression="zstd")
    else:
        compression = "zstd" if kind == "feather" else None
        with pa.ipc.new_file(
            path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
        ) as writer:
            writer.write_table(table, 11)
    return penstock.open(path, format="arrow" if kind != "parquet" else "parquet")


@pytest.mark.parametrize("kind", ["jsonl", "jsonlines", "parquet", "arrow", "feather"])
def test_texts_in_the_data_are_columns(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Strings of JSON lines, Arrow and Parquet select, split and mix, also from selections; they
    are read a few at a time, and too many different ones are refused."""
    monkeypatch.setattr(penstock.limits, "selection_read_bytes", 300)
    texts = [("en", "fr", "", "日本", "naïve")[n * 7 % 5] for n in range(50)]
    dataset = write_texts(tmp_path, kind, texts, list(range(50)))
    for where, wanted in (
        ("lang == 'en'", {"en"}),
        ("lang in ('fr', '日本')", {"fr", "日本"}),
        ("lang.startswith('n') or 'r' in lang", {"naïve", "fr"}),
        ("lang < 'a'", {""}),
    ):
        expected = [row for row, text in enumerate(texts) if text in wanted]
        assert chosen(dataset.select(where=where)) == expected
        found = dataset.select(where="n >= 20").select(where=where)
        assert chosen(found) == [row for row in expected if row >= 20]
    mixed = penstock.mix([(dataset, 1), (dataset.select(range(5)), 1)])
    assert len(mixed.select(where="lang == 'en' or source == 1")) == 10 + 5 - 1 + 1
    parts = dataset.split({"a": 0.5, "b": 0.5}, by="lang", seed=1)
    sides = [{texts[row] for row in chosen(part)} for part in parts.values()]
    assert not sides[0] & sides[1]
    with pytest.raises(UsageError, match=r"there is no column 'lnag' \(did you mean 'lang'\?\)"):
        dataset.select(where="lnag == 'en'")
    with pytest.raises(UsageError, match="the column 'lang' holds no numbers"):
        dataset.weigh("lang")
    monkeypatch.setattr(penstock.limits, "selection_texts_bytes_max", 10)
    with pytest.raises(penstock.errors.LimitError, match="texts of 'lang' have more than 10"):
        dataset.select(where="lang == 'en'")


def test_parts_of_structs_are_columns(tmp_path: Path) -> None:
    """`meta.score` names a part of a struct; another attribute is an unknown column."""
    rows = [{"score": n / 2, "lang": "en" if n % 2 else "fr"} for n in range(10)]
    pq.write_table(pa.table({"meta": rows}), tmp_path / "x.parquet")
    dataset = penstock.open(tmp_path / "x.parquet")
    found = dataset.select(where="meta.score >= 2 and meta.lang.startswith('e')")
    assert chosen(found) == [5, 7, 9]
    for name in ("meta.scor", "meta.score.__class__", "meta.__class__"):
        with pytest.raises(UsageError, match=f"there is no column '{name}'"):
            dataset.select(where=f"{name} == 1")
    with pytest.raises(UsageError, match="Attribute is not part of conditions"):
        dataset.select(where="(1).real == 1")


def test_bytes_that_are_no_texts_are_no_columns(tmp_path: Path) -> None:
    """Images of Parquet are an error that names field and sample; broken lines are empty."""
    pq.write_table(pa.table({"image": [b"ok", b"\xff\xd8"]}), tmp_path / "x.parquet")
    with pytest.raises(UsageError, match="field 'image' of sample 1 is no text"):
        penstock.open(tmp_path / "x.parquet").select(where="image == 'a'")
    (tmp_path / "x.jsonl").write_text('{"t": "a"}\n{\n{"t": "None"}\n')
    lines = penstock.open(tmp_path / "x.jsonl", fields=["t"], broken="mask")
    assert len(lines.select(where="t == 'None'")) == 1
    assert len(lines.select(where="t == ''")) == 1


def test_fields_of_lines_are_columns(tmp_path: Path) -> None:
    """Also one that is named as a column that other datasets have, and the mark of broken lines."""
    path = tmp_path / "lines.jsonl"
    lines = [f'{{"n": {n}, "label": {n % 3}, "source": 1, "text": "t"}}\n' for n in range(60)]
    path.write_text("".join([*lines, "{\n"]))
    dataset = penstock.open(path, fields=["text", "n", "label", "source"], broken="mask")
    for where, count in (
        ("n >= 50", 10),
        ("label == 1", 20),
        ("not broken", 60),
        ("source < 2", 61),
    ):
        assert len(dataset.select(where=where)) == count
    assert sum(map(len, dataset.split({"a": 0.5, "b": 0.5}, by="label").values())) == 61
