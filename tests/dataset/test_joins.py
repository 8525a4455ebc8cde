"""Joins against a dictionary: every format of the values, names and sequences, what follows from a
join (selections, weights, mixtures, states, worker processes), and what is refused."""

from __future__ import annotations

import csv
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.errors import ChangedError, FormatError, LimitError, StateError, UsageError

COUNT = 23
Columns = dict[str, Any]


def write_csv(path: Path, columns: Columns) -> Path:
    """Write columns of one value a row; a row of numbers has none in a CSV."""
    path = path.with_suffix(".csv")
    flat = {name: list(values) for name, values in columns.items() if name != "box"}
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(flat)
        writer.writerows(zip(*flat.values(), strict=True))
    return path


def write_tsv(path: Path, columns: Columns) -> Path:
    written = write_csv(path, columns)
    path = path.with_suffix(".tsv")
    path.write_text(written.read_text().replace(",", "\t"))
    return path


def write_parquet(path: Path, columns: Columns) -> Any:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = path.with_suffix(".parquet")
    table = {name: list(values) for name, values in columns.items()}
    parquet.write_table(pa.table(table), path, row_group_size=5)
    return path


def write_hdf5(path: Path, columns: Columns) -> Any:
    h5py = pytest.importorskip("h5py")
    path = path.with_suffix(".h5")
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            is_text = np.asarray(values).dtype.kind == "U"
            data = np.array([v.encode() for v in values]) if is_text else np.asarray(values)
            big = data.dtype.newbyteorder(">")
            file.create_dataset(name, data=data.astype(big), chunks=(5, *data.shape[1:]))
    return path


def write_npz(path: Path, columns: Columns) -> Any:
    path = path.with_suffix(".npz")
    np.savez(path, **{name: np.asarray(values) for name, values in columns.items()})
    return path


def write_zarr(path: Path, columns: Columns) -> Any:
    zarr = pytest.importorskip("zarr")
    path = path.with_suffix(".zarr")
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    for name, values in columns.items():
        data = np.asarray(values)
        if data.dtype.kind == "U":
            data = np.char.encode(data, "utf-8")
        array = group.create_array(
            name, shape=data.shape, dtype=data.dtype, chunks=(5,) + data.shape[1:]
        )
        array[...] = data
    return penstock.open(path, fill=True, index="memory")


def write_jsonl(path: Path, columns: Columns) -> Any:
    path = path.with_suffix(".jsonl")
    lists = {name: np.asarray(values).tolist() for name, values in columns.items()}
    rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return penstock.open(path, fields=list(columns), index="memory")


WRITERS: dict[str, Callable[[Path, Columns], Any]] = {
    "csv": write_csv,
    "tsv": write_tsv,
    "parquet": write_parquet,
    "hdf5": write_hdf5,
    "npz": write_npz,
    "zarr": write_zarr,
    "jsonl": write_jsonl,
    "columns": lambda _, columns: columns,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files, whose names are their keys; the bytes of each are its number."""
    folder = tmp_path_factory.mktemp("data") / "files"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"s{number:02}.bin").write_bytes(np.int64(number).tobytes())
    return folder


def draw_columns(random: np.random.Generator, ids: list[str]) -> Columns:
    """Draw values of each kind for these names, in a sequence of their own."""
    mixed = [ids[at] for at in random.permutation(len(ids))]
    return {
        "name": mixed,
        "label": random.integers(-5, 5, len(ids)),
        "score": random.normal(size=len(ids)),
        "box": random.normal(size=(len(ids), 4)).astype(np.float32),
        "title": ["é" * int(n) + f"{n}x" for n in random.integers(0, 9, len(ids))],
    }


def decode_number(sample: dict[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in sample.items() if not name.startswith("__")}
    return values | {"data": int(np.frombuffer(sample["data"], np.int64)[0])}


def keep(rows: list[Any]) -> list[Any]:
    return rows


def check(data: penstock.Dataset, columns: Columns, of: dict[str, int]) -> None:
    """Compare samples and batches with the values of their names."""
    names = [
        name
        for name in columns
        if name != "name" and name in {f.name for f in data.fields} | {"label"}
    ]
    assert set(names) > {"label", "score"}
    with penstock.Loader(data, batch_size=5, seed=3) as loader:
        seen = []
        for batch in loader:
            keys = data.index.keys(batch.ids)
            for place, key in enumerate(keys):
                for name in names:
                    same(batch[name][place], columns[name][of[key]])
            seen += keys
    assert sorted(seen) == sorted(data.index.keys(data.ids(np.arange(len(data)))))
    sample = data[len(data) // 2]
    for name in names:
        same(sample[name], columns[name][of[sample["__key__"]]])


def same(value: Any, wanted: Any) -> None:
    assert np.asarray(value).dtype.kind == np.asarray(wanted).dtype.kind
    np.testing.assert_array_equal(value, wanted)


@pytest.mark.long
@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=6)
@given(seed=st.integers(0, 1 << 30), extra=st.integers(0, 9), part=st.booleans())
def test_names_find_the_rows_of_a_dictionary(
    kind: str,
    files: Path,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    extra: int,
    part: bool,
) -> None:
    """Rows in any sequence, and more of them than samples; of all samples and of a selection."""
    random = np.random.default_rng(seed)
    data = penstock.open(files, index="memory")
    chosen = np.sort(random.choice(COUNT, 11, replace=False)) if part else np.arange(COUNT)
    if part:
        data = data.select(chosen)
    keys = [f"s{number:02}.bin" for number in chosen] + [f"other{n}" for n in range(extra)]
    columns = draw_columns(random, keys)
    other = WRITERS[kind](tmp_path_factory.mktemp("other") / "values", columns)
    joined = penstock.join(data, other, on="name")
    of = {name: row for row, name in enumerate(columns["name"])}
    check(joined, columns, of)
    again = pickle.loads(pickle.dumps(joined))
    assert again.fingerprint == joined.fingerprint
    check(again, columns, of)
    high = np.flatnonzero([columns["score"][of[key]] > 0 for key in keys[: len(data)]])
    if len(high):
        some = joined.select(where="score > 0")
        assert some.ids(np.arange(len(some))).tolist() == chosen[high].tolist()
        check(some, columns, of)


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_in_sequence(kind: str, files: Path, tmp_path: Path) -> None:
    keys = [f"s{number:02}.bin" for number in range(COUNT)]
    columns = draw_columns(np.random.default_rng(1), keys)
    data = penstock.open(files, index="memory")
    joined = penstock.join(data, WRITERS[kind](tmp_path / "values", columns), rename={"name": None})
    check(joined, columns, {key: row for row, key in enumerate(keys)})
    with pytest.raises(UsageError, match=r"has 22 samples, .* 23 rows"):
        penstock.join(data.select(range(22)), WRITERS[kind](tmp_path / "more", columns))


@pytest.mark.parametrize("ids", [np.arange(60) // 3 + (1 << 62), [f"p{n // 3}" for n in range(60)]])
def test_a_field_of_the_data_names_rows(ids: Any, tmp_path: Path) -> None:
    """Many samples have one row. Integers beyond float64 are not confused with their neighbours."""
    np.savez(tmp_path / "scans.npz", x=np.arange(60.0), patient=np.asarray(ids))
    known = np.random.default_rng(0).permutation(np.unique(np.asarray(ids)))
    age = np.arange(len(known)) + 30
    data = penstock.open(tmp_path / "scans.npz", index="memory")
    for names in (known, [str(name) for name in known]):  # as integers, and as their texts
        joined = penstock.join(data, {"patient": names, "age": age}, on="patient")
        of = dict(zip(known.tolist(), age.tolist(), strict=True))
        wanted = [of[name] for name in np.asarray(ids).tolist()]
        assert [joined[at]["age"] for at in range(60)] == wanted
        assert len(joined.select(where=f"age == {wanted[7]}")) == 3


def test_keys_name_the_samples_of_both(files: Path, tmp_path: Path) -> None:
    """Captions in files of the same names; on="key" is a column where there is one."""
    for number in range(COUNT):
        (tmp_path / f"s{number:02}.bin").write_text(f"caption {number}")
    data = penstock.open(files, index="memory")
    joined = penstock.join(
        data, penstock.open(tmp_path, index="memory"), on="key", rename={"data": "text"}
    )
    assert [sample["text"] for sample in joined] == [f"caption {n}" for n in range(COUNT)]


def test_labels_and_classes(files: Path, tmp_path: Path) -> None:
    """Labels with classes of another dataset weigh and select; other classes are refused."""
    for number in range(COUNT):
        folder = tmp_path / "tree" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.txt").write_text("x")
    tree = penstock.open(tmp_path / "tree", index="memory")
    assert tree.classes == ("a", "b")
    data = penstock.open(files, index="memory")
    joined = penstock.join(data, tree, rename={"data": None})
    assert joined.classes == ("a", "b")
    assert len(joined.select(where="label == 'a'")) == 12
    only = joined.weigh({"a": 1, "b": 0})
    with penstock.Loader(only, batch_size=COUNT) as loader:
        assert set(next(iter(loader))["label"].tolist()) == {0}
    assert pickle.loads(pickle.dumps(only)).classes == ("a", "b")
    for name in ("label", "labels"):  # "labels == 'a'" would ask for the classes of `tree`
        with pytest.raises(UsageError, match=f"'{name}' of other is taken"):
            penstock.join(joined, {name: np.arange(COUNT)})
    numbers = penstock.join(data, tree, rename={"data": None, "label": "kind"})
    assert numbers.classes is None
    assert [sample["kind"] for sample in numbers] == [0] * 12 + [1] * 11


def test_the_identity_is_of_both(files: Path, tmp_path: Path) -> None:
    """A state belongs to one join, a saved selection to the data; curricula and mixtures differ."""
    data = penstock.open(files, index="memory")
    one, two = (penstock.join(data, {"y": np.arange(COUNT) + add}) for add in (0, 1))
    named = penstock.join(data, {"z": np.arange(COUNT)})
    short = penstock.join(data, {"y": np.arange(COUNT).astype(np.int32)})
    prints = [
        each.fingerprint
        for each in (data, one, two, named, short, penstock.join(one, {"w": np.ones(COUNT)}))
    ]
    assert len(set(prints)) == len(prints)
    assert penstock.join(data, {"y": list(range(COUNT))}).fingerprint == one.fingerprint
    loader = penstock.Loader(one, batch_size=4)
    next(iter(loader))
    for other in (data, two, named):
        with pytest.raises(StateError, match="other data"):
            penstock.Loader(other, batch_size=4).load_state_dict(loader.state_dict())
    penstock.Loader(penstock.join(data, {"y": np.arange(COUNT)}), batch_size=4).load_state_dict(
        loader.state_dict()
    )
    one.select(where="y > 3").save_selection(tmp_path / "some")
    assert len(two.select(saved=tmp_path / "some")) == COUNT - 4
    with pytest.raises(UsageError, match="stage 1"):
        penstock.curriculum([(0, one), (1, two)])
    staged = penstock.curriculum([(0, one.select(where="y < 4")), (1, one)])
    with penstock.Loader(staged, batch_size=4) as loader:
        assert set(next(iter(loader))["y"].tolist()) == {0, 1, 2, 3}
    some = penstock.join(data.select(range(3)), {"y": [1, 2, 3], "label": [4, 5, 6]})
    staged = penstock.curriculum([(0, some)])
    with penstock.Loader(staged, batch_size=3) as loader:
        batch = next(iter(loader))
    assert sorted(zip(batch.ids, batch["y"], batch["label"], strict=True)) == [
        (0, 1, 4),
        (1, 2, 5),
        (2, 3, 6),
    ]
    with pytest.raises(UsageError, match="'y' is joined to a selection, and these are not of it"):
        staged[3]
    assert (
        penstock.mix([(one, 1), (one, 1)]).fingerprint
        != penstock.mix([(one, 1), (two, 1)]).fingerprint
    )


def test_mixtures_of_joined_data(files: Path) -> None:
    data = penstock.open(files, index="memory")
    one = penstock.join(data, {"y": np.arange(COUNT), "t": [f"a{n}" for n in range(COUNT)]})
    two = penstock.join(data, {"y": np.arange(COUNT) + 100, "t": [f"b{n}" for n in range(COUNT)]})
    mixed = penstock.mix([(one, 0.5), (two.select(where="y >= 110"), 0.5)])
    mixed = pickle.loads(pickle.dumps(mixed))
    with penstock.Loader(mixed, batch_size=8, seed=1) as loader:
        for batch in loader:
            number = [int(bytes(row).hex()[:2], 16) for row in batch["data"]]
            wanted = np.array(number) + 100 * batch["source"]
            assert batch["y"].tolist() == wanted.tolist()
            assert batch["t"] == [
                "ab"[s] + str(n) for s, n in zip(batch["source"], number, strict=True)
            ]
    with pytest.raises(UsageError, match="mixture: give what open"):
        penstock.join(mixed, {"z": np.arange(2)})
    with pytest.raises(UsageError, match="fields of dataset 1"):
        penstock.mix([(one, 1), (data, 1)])
    with pytest.raises(UsageError, match="decode= does not mix"):
        penstock.mix([(one, 1), (data, 1)], decode=[None, None])
    renamed = penstock.mix([(one, 1), (data, 1)], rename=[{"y": None, "t": None}, None])
    assert [made.name for made in renamed.fields] == ["data"]


def test_joined_lines_of_json_are_mixed_under_other_names(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in range(6)))
    data = penstock.open(tmp_path / "a.jsonl", fields=["x"], index="memory")
    one = penstock.join(data, {"y": np.arange(6) * 2})
    mixed = penstock.mix([(one, 1), (one, 1)], rename=[{"y": "z"}, {"y": "z"}])
    assert {sample["z"] - 2 * sample["x"] for sample in mixed} == {0}


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
@pytest.mark.parametrize("index", ["auto", "memory"])
def test_worker_processes_have_the_values(method: str, index: str, files: Path) -> None:
    torch_face = pytest.importorskip("penstock.torch")
    columns = draw_columns(np.random.default_rng(5), [f"s{n:02}.bin" for n in range(COUNT)])
    of = {int(name[1:3]): row for row, name in enumerate(columns["name"])}
    joined = penstock.join(penstock.open(files, index=index), columns, on="name").select(
        range(1, COUNT)
    )
    loader = torch_face.DataLoader(
        joined,
        batch_size=4,
        shuffle=True,
        num_workers=2,
        workers="processes",
        collate_fn=keep,
        decode=decode_number,
        multiprocessing_context=method,
    )
    samples = [sample for batch in loader for sample in batch]
    assert sorted(sample["data"] for sample in samples) == [*range(1, COUNT)]
    for sample in samples:
        for name in ("label", "score", "box", "title"):
            same(sample[name], columns[name][of[sample["data"]]])


def test_other_data_on_disk_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10.0))
    joined = penstock.join(penstock.open(tmp_path / "x.npy"), {"y": np.arange(10)})
    sent = pickle.dumps(joined)
    np.save(tmp_path / "x.npy", np.arange(12.0))
    for changed in (joined, pickle.loads(sent)):
        with pytest.raises(ChangedError):
            changed[0]


def test_a_file_that_changes_is_another_join(files: Path, tmp_path: Path) -> None:
    """A state is refused with other labels; data that change between open and join are an error."""
    data, table = penstock.open(files, index="memory"), tmp_path / "labels.csv"

    def load(add: int) -> penstock.Loader:
        lines = [f"s{number:02}.bin,{number + add}\n" for number in reversed(range(COUNT))]
        table.write_text("name,label\n" + "".join(lines))
        return penstock.Loader(penstock.join(data, table, on="name"), batch_size=4)

    loader = load(0)
    next(iter(loader))
    load(0).load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="other data"):
        load(1).load_state_dict(loader.state_dict())
    np.save(tmp_path / "y.npy", np.arange(COUNT))
    opened = penstock.open(tmp_path / "y.npy", index="memory")
    os.utime(tmp_path / "y.npy", ns=(0, 0))
    with pytest.raises(ChangedError, match="y.npy"):
        penstock.join(data, opened, rename={"data": "y"})


def test_a_table_of_pandas(files: Path) -> None:
    """Its texts and categories are texts; numbers that may be missing are NaN where they are."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"name": [f"s{n:02}.bin" for n in range(COUNT)]})[::-1]
    frame["y"] = pandas.array([None, *range(1, COUNT)][::-1], dtype="Int64")
    frame["kind"] = pandas.Categorical(["a", "b"] * 11 + ["a"])
    joined = penstock.join(penstock.open(files, index="memory"), frame, on="name")
    np.testing.assert_array_equal([sample["y"] for sample in joined], [np.nan, *range(1, COUNT)])
    assert [sample["kind"] for sample in joined] == (["a", "b"] * 12)[:COUNT]
    for missing in (["a", None] * 11 + ["a"], [1.5, "b"] * 11 + ["a"]):
        with pytest.raises(UsageError, match="'kind' of other, row 1?[01], is .*neither"):
            penstock.join(penstock.open(files, index="memory"), frame.assign(kind=missing))


FILES: dict[str, Callable[[Path, Any], None]] = {
    "npy": lambda path, volume: np.save(path, volume),
    "npz": lambda path, volume: np.savez(path, volume=volume),
    "packed.npz": lambda path, volume: np.savez_compressed(path, volume=volume),
    "h5": lambda path, volume: write_volume(path, volume),
    "packed.h5": lambda path, volume: write_volume(path, volume, compression="gzip"),
    "zarr": lambda path, volume: write_group(path, volume),
}


def write_volume(path: Path, volume: Any, **options: Any) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("volume", data=volume, **options)


def write_group(path: Path, volume: Any) -> None:
    group = pytest.importorskip("zarr").open_group(str(path), mode="w")
    group.create_array("volume", data=volume)


@pytest.mark.parametrize("kind", FILES)
def test_labels_of_files_that_are_a_sample_each(kind: str, tmp_path: Path) -> None:
    """The key of a sample that is a file, or a group of Zarr, is its name in the folder."""
    names = [f"{name}.{kind}" for name in ("b", "a", "d", "c")]
    (tmp_path / "runs").mkdir()
    for number, name in enumerate(names):
        FILES[kind](tmp_path / "runs" / name, np.full((2, 3), number + 1.0))
    data = penstock.open(tmp_path / "runs", sample="file")
    assert data.index.keys(np.arange(4)) == sorted(names)
    table = write_csv(tmp_path / "labels", {"name": names, "label": [1, 2, 3, 4]})
    joined = penstock.join(data, table, on="name")
    for again in (joined, pickle.loads(pickle.dumps(joined)), joined.select(where="label > 2")):
        with penstock.Loader(again, batch_size=2, seed=1) as loader:
            for batch in loader:
                (volumes,) = (batch[field.name] for field in data.fields)
                assert volumes[:, 1, 2].tolist() == batch["label"].tolist()
    assert len(again) == 2


@pytest.mark.parametrize("names", [[7, 8, 9], ["07", "08", "09"], ["7 ", "8", "9"], ["7", "8", ""]])
def test_names_of_two_types_are_equal_as_texts(names: list[Any], tmp_path: Path) -> None:
    """7 is "7", and neither "07" nor "7 ": what is not equal is missing, and never another row."""
    np.savez(tmp_path / "x.npz", id=np.array(["7", "8", "9"], "S"), x=np.arange(3))
    data = penstock.open(tmp_path / "x.npz", index="memory")
    other = {"id": names, "y": [70, 80, 90]}
    if names[0] == 7:
        assert [sample["y"] for sample in penstock.join(data, other, on="id")] == [70, 80, 90]
    else:
        with pytest.raises(UsageError, match="'id' of other .* lacks"):
            penstock.join(data, other, on="id")


def test_windows_are_joined_by_their_number(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100))
    data = penstock.open(tmp_path / "x.npy", window={0: 10}, stride={0: 5}, index="memory")
    first, last = 5 * np.arange(len(data)), 5 * np.arange(len(data)) + 9
    joined = penstock.join(data, {"first": first, "ends": np.stack([first, last], 1)})
    with penstock.Loader(joined.select(where="first >= 20"), batch_size=4, seed=1) as loader:
        for batch in loader:
            assert (batch["data"][:, 0] == batch["first"]).all()
            assert (batch["first"] >= 20).all()
            assert (batch["data"][:, [0, 9]] == batch["ends"]).all()
    with pytest.raises(UsageError, match="19 samples, other 100 rows"):
        penstock.join(data, {"y": np.arange(100)})


def test_statistics_and_lengths_are_not_confused(tmp_path: Path) -> None:
    """Statistics of a join have files of their own, or none; the data's are as they were."""
    np.save(tmp_path / "x.npy", np.arange(10.0))
    data = penstock.open(tmp_path / "x.npy")
    joins = [penstock.join(data, {"y": np.arange(10) * factor}) for factor in (1, 2)]
    data.stats()
    for joined in joins:
        joined.stats()
    assert data.load_stats().keys() == {"data"}
    assert [joined.load_stats()["y"].mean for joined in joins] == [4.5, 9.0]
    with pytest.raises(UsageError, match="mixed or joined: measure the data itself"):
        penstock.dataset.measure_lengths(joins[0], by="bytes")
    penstock.dataset.measure_lengths(data, by="bytes")
    assert joins[1].lengths.tolist() == [8] * 10


def test_tables_of_json(files: Path, tmp_path: Path) -> None:
    """Columns that are left out may be of any kind."""
    rows = [{"name": f"s{n:02}.bin", "y": n, "boxes": [n, [n]]} for n in range(COUNT)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    data = penstock.open(files, index="memory")
    for name in ("a.jsonl", "a.json"):
        joined = penstock.join(data, tmp_path / name, on="name", rename={"boxes": None})
        assert [sample["y"] for sample in joined] == [*range(COUNT)]
        with pytest.raises(FormatError, match="column 'boxes' has"):
            penstock.join(data, tmp_path / name, on="name")


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (
        {"name": ["a"], "y": [1]},
        {"on": "name"},
        r"'name' of other \('a'\) lacks 's00.bin', 's01.bin', 's02.bin' and 20 more of ",
    ),
    ({"name": [], "y": []}, {"on": "name"}, "float64"),
    ({"name": ["a", "a", "b", "b"], "y": [1] * 4}, {"on": "name"}, "has 'a', 'b' more than once"),
    ({"y": [1]}, {}, "23 samples, other 1 rows"),
    ({"y": [1]}, {"on": "name"}, "on is 'name', but other has y"),
    ({"y": [1]}, {"on": "key"}, "on is 'key', but other has y"),
    ({"y": [1.5] * 23, "z": [1] * 23}, {"on": "y"}, "float64.*integers or texts"),
    ({"y": [True] * 23, "z": [1] * 23}, {"on": "y"}, "bool.*integers or texts"),
    ({"data": [1] * 23}, {}, "'data' of other is taken"),
    ({"data": [1] * 23}, {"rename": {"data": "__key__"}}, "'__key__' of other is taken"),
    ({"data": [1] * 23}, {"rename": {"data": "source"}}, "'source' of other is taken"),
    ({"data": [1] * 23}, {"rename": {"data": 3}}, "3 of other is taken, or no name"),
    ({"a": [1] * 23, "b": [1] * 23}, {"rename": {"a": "b"}}, "'b' of other is taken"),
    ({"a": [1] * 23}, {"rename": {"x": "b"}}, "rename is {'x': 'b'}, but other has a"),
    ({"a": [1] * 23}, {"rename": "b"}, "rename is 'b'"),
    ({"a": [1] * 23, "b": [1] * 22}, {}, r"'a' \(23\), 'b' \(22\): give columns of one length"),
    ({"a": np.zeros(23, "M8[s]")}, {}, "neither numbers nor a text"),
    ({"a": np.zeros(23, complex)}, {}, "neither numbers nor a text"),
    ({"a": np.zeros(23, "V4")}, {}, "neither numbers nor a text"),
    ({"a": np.zeros((23, 2), "U4")}, {}, "neither numbers nor a text"),
    ({"a": np.array([None] * 23)}, {}, "row 0, is None, neither"),
    ({"a": np.array(["x", 1] * 11 + ["x"], object)}, {}, "row 1, is 1, neither"),
    ({"a": np.array(["x", np.int64(65)] * 11 + ["x"], object)}, {}, "neither numbers nor a text"),
    ({"a": np.array(["x", np.zeros(2)] * 11 + ["x"], object)}, {}, "neither numbers nor a text"),
    ({1: [1] * 23}, {}, r"1 \(23\): give columns .*named by texts"),
    ({"a": ["\ud800"] * 23}, {}, "neither numbers nor a text"),
    ({"a": [b"\xff"] * 23}, {}, "numbers, texts or truth values of shape"),
    ({"a": [[1, 2]] * 23}, {}, r"shape \(23, 2\)"),
    ({"a": np.array([b"\xff"] * 23)}, {}, "neither numbers nor a text"),
    ({"a": [1, "x"] * 11 + [1]}, {}, "1, among texts"),
    ({"a": [1 << 53 | 1, 0.5] * 11 + [1]}, {}, "rounded"),
    ({"a": np.ma.masked_equal(np.arange(23), 3)}, {}, "masked"),
    ({"a": 3}, {}, "of shape"),
    ({}, {}, "0 rows"),
    (3, {}, "other is 3"),
]


@pytest.mark.parametrize(("other", "options", "message"), BAD)
def test_what_does_not_join_is_refused(
    other: Any, options: dict[str, Any], message: str, files: Path
) -> None:
    data = penstock.open(files, index="memory")
    with pytest.raises(UsageError, match=message) as caught:
        penstock.join(data, other, **options)
    assert "\n" not in str(caught.value)


def test_large_values_and_large_labels_are_refused(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = penstock.open(files, index="memory")
    np.save(tmp_path / "x.npy", np.zeros((COUNT, 100)))
    monkeypatch.setattr(limits, "join_bytes_max", 100 * 8 * COUNT - 1)
    for other in (tmp_path / "x.npy", penstock.open(tmp_path / "x.npy", index="memory")):
        with pytest.raises(LimitError, match="x.npy take more than 18,399 bytes: leave large ones"):
            penstock.join(data, other, rename={"data": "x"})
    with monkeypatch.context() as patch:
        patch.setattr(limits, "join_samples_max", 22)
        for on in (None, "n"):
            with pytest.raises(LimitError, match="23 samples to join, above 22"):
                penstock.join(data, {"n": ["a"], "y": [1]}, on=on)
    with pytest.raises(FormatError, match="63 bits|2\\^63|9223372036854775808|fit"):
        penstock.join(data, {"label": np.full(COUNT, 1 << 63, np.uint64)})
    with pytest.raises(UsageError, match="save the index of the data"):
        penstock.join(data, {"y": np.arange(COUNT)}).index.save(tmp_path / "index")


def test_the_users_array_may_change_afterwards(files: Path) -> None:
    values = np.arange(COUNT)
    joined = penstock.join(penstock.open(files, index="memory"), {"y": values, "label": values})
    values[:] = -1
    assert [(sample["y"], sample["label"]) for sample in joined] == [(n, n) for n in range(COUNT)]
