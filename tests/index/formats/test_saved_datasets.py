"""Folders that Hugging Face `datasets` writes; that library is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import FormatError, MissingError, PenstockError, UsageError

from .nested import spread

pa = pytest.importorskip("pyarrow")

FILES = ("data-00000-of-00002.arrow", "data-00001-of-00002.arrow")


def save(folder: Path, rows: int = 4, state: Any = None) -> Path:
    """A folder as `save_to_disk` writes it: two streams, the list of them, and the features."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(FILES):
        first = number * rows
        table = pa.table({"ids": [[n] * (n % 3) for n in range(first, first + rows)]})
        table = table.append_column("label", pa.array([0, 1] * (rows // 2)))
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    listed = {"_data_files": [{"filename": name} for name in FILES]} if state is None else state
    (folder / "state.json").write_text(json.dumps(listed))
    return folder


def test_the_list_of_files_decides(tmp_path):
    """Their order is that of the list; what lies beside is not read; the features name classes."""
    folder = save(tmp_path / "x", state={"_data_files": [{"filename": f} for f in FILES[::-1]]})
    (folder / "cache-1.arrow").write_bytes((folder / FILES[0]).read_bytes())
    dataset = penstock.open(folder, index="memory")
    assert [len(each["ids"]) for each in dataset] == [n % 3 for n in (4, 5, 6, 7, 0, 1, 2, 3)]
    assert dataset.classes == ("cat", "dog")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": FILES[0]}]}))
    assert len(penstock.open(folder, index="memory")) == 4


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"_data_files": [{"filename": "../x"}]}, FormatError, "save it again"),
        ({"_data_files": [{"filename": 3}]}, FormatError, "save it again"),
        ({"_data_files": []}, FormatError, "lists no files"),
        ([], FormatError, "holds no object"),
        (
            {"_data_files": [{"filename": "gone.arrow"}]},
            MissingError,
            r"state\.json, file 0: .*gone",
        ),
        (
            {"_data_files": [{"filename": FILES[0]}], "_indices_data_files": [{"filename": "i"}]},
            FormatError,
            "call flatten",
        ),
    ],
)
def test_lists_that_are_refused(state, error, message, tmp_path):
    """Files outside the folder, none, a missing one, and rows in another order."""
    folder = save(tmp_path, state=state)
    with pytest.raises(error, match=message):
        penstock.open(folder, index="memory")


def test_several_splits_are_asked_for(tmp_path):
    """A dictionary of datasets, and a cache of several splits, name what can be opened."""
    save(tmp_path / "d" / "train")
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UsageError, match="has the splits test, train"):
        penstock.open(tmp_path / "d", index="memory")
    assert len(penstock.open(tmp_path / "d", index="memory", split="train")) == 8
    cache = save(tmp_path / "cache")
    (cache / "state.json").unlink()
    (cache / FILES[0]).rename(cache / "web-train-00000-of-00001.arrow")
    (cache / "cache-1.arrow").write_bytes(b"what map left")
    (cache / FILES[1]).rename(cache / "web-test.arrow")
    with pytest.raises(UsageError, match="has the splits test, train"):
        penstock.open(cache, index="memory")
    assert len(penstock.open(f"{cache}/web-train*.arrow", index="memory")) == 4
    assert len(penstock.open(cache, index="memory", split="train")) == 4
    (cache / "web-test.arrow").unlink()
    assert len(penstock.open(cache, index="memory")) == 4
    info = {"splits": {"train": {"num_examples": 5}}}
    (cache / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(FormatError, match="dataset_info.json says 5"):
        penstock.open(cache, index="memory")
    (cache / "web-train-00000-of-00001.arrow").rename(cache / "web-train-00000-of-00002.arrow")
    with pytest.raises(FormatError, match="make the cache again"):
        penstock.open(cache, index="memory")


def test_images_without_bytes(tmp_path):
    """A column of nothing but paths is an error, not a field that is missing."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {"image": pa.array([{"bytes": None, "path": "/a.jpg"}] * 2, kind), "n": [1, 2]}
    )
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(FormatError, match="image' holds only paths"):
        penstock.open(tmp_path / "x.arrow", index="memory")
    assert len(penstock.open(tmp_path / "x.arrow", index="memory", fields="n")) == 2


@pytest.mark.long
def test_rows_are_those_of_datasets(tmp_path):
    """Nested features, classes, images, several shards, and a selection that is saved."""
    datasets = pytest.importorskip("datasets")
    messages = [[{"role": "user", "content": "é" * n}] * (n % 4) for n in range(40)]
    columns = {
        "ids": [list(range(n % 7)) for n in range(40)],
        "label": [n % 3 for n in range(40)],
        "messages": messages,
        "image": [{"bytes": bytes([n]), "path": f"{n}.png" if n % 2 else None} for n in range(40)],
        "grid": [[[n, n + 1]] * (n % 3) for n in range(40)],
    }
    features = datasets.Features(
        {
            "ids": datasets.List(datasets.Value("int32")),
            "label": datasets.ClassLabel(names=["a", "b", "c"]),
            "messages": datasets.List(
                {"role": datasets.Value("string"), "content": datasets.Value("string")}
            ),
            "image": datasets.Image(decode=False),
            "grid": datasets.List(datasets.List(datasets.Value("int64"))),
        }
    )
    made = datasets.Dataset.from_dict(columns, features=features).shuffle(seed=1).select(range(31))
    made.save_to_disk(tmp_path / "saved", num_shards=3)
    again = datasets.load_from_disk(str(tmp_path / "saved"))
    dataset = penstock.open(tmp_path / "saved", index="memory")
    assert dataset.classes == ("a", "b", "c")
    assert [each["label"] for each in dataset] == list(again["label"])
    expected = {"ids": list(again["ids"]), "grid": list(again["grid"])}
    own = {"ids": [each["ids"].tolist() for each in dataset]}
    own["grid"] = [[row.tolist() for row in each["grid"]] for each in dataset]
    assert own == expected
    images = [dict(image) for image in again["image"]]
    assert [each["image"] for each in dataset] == [image["bytes"] for image in images]
    paths = [(image["path"] or "").encode() for image in images]
    assert [each["image.path"] for each in dataset] == paths
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    for name, values in spread("messages", kind, list(again["messages"])).items():
        assert [each[name] for each in dataset] == values
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "both")
    with pytest.raises(PenstockError, match="has the splits"):
        penstock.open(tmp_path / "both", index="memory")
    assert len(penstock.open(tmp_path / "both" / "test", index="memory")) == 31
