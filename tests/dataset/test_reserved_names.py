"""Fields called as what every sample has: an error in each format, and `rename=`."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import PenstockError, UsageError
from penstock.index.fields import RESERVED

VALUES = np.arange(6, dtype=np.int64)


def write_parquet(path: Path, names: list[str]) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(dict.fromkeys(names, VALUES)), path / "x.parquet")
    return path / "x.parquet"


def write_arrow(path: Path, names: list[str]) -> Any:
    pa = pytest.importorskip("pyarrow")
    table = pa.table(dict.fromkeys(names, VALUES))
    with pa.ipc.new_file(path / "x.arrow", table.schema) as file:
        file.write_table(table)
    return path / "x.arrow"


def write_hdf5(path: Path, names: list[str]) -> Any:
    with pytest.importorskip("h5py").File(path / "x.h5", "w") as file:
        for name in names:
            file[name] = VALUES
    return path / "x.h5"


def write_npz(path: Path, names: list[str]) -> Any:
    np.savez(path / "x.npz", **dict.fromkeys(names, VALUES))
    return path / "x.npz"


def write_zarr(path: Path, names: list[str]) -> Any:
    group = pytest.importorskip("zarr").open_group(path / "x.zarr", mode="w")
    for name in names:
        group.create_array(name, data=VALUES)
    return path / "x.zarr"


def write_tar(path: Path, names: list[str]) -> Any:
    with tarfile.open(path / "x.tar", "w") as tar:
        for i in range(6):
            for name in names:
                member = tarfile.TarInfo(f"{i}.{name}")
                member.size = 8
                tar.addfile(member, io.BytesIO(VALUES[i : i + 1].tobytes()))
    return path / "x.tar"


def write_json(path: Path, names: list[str]) -> Any:
    lines = [json.dumps({name: int(value) for name in names}) for value in VALUES]
    (path / "x.jsonl").write_text("\n".join(lines) + "\n")
    return path / "x.jsonl"


def write_table(path: Path, names: list[str]) -> Any:
    rows = [["file", *names], *([f"{i}.bin", *[str(i)] * len(names)] for i in range(6))]
    (path / "x.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    for i in range(6):
        (path / f"{i}.bin").write_bytes(b"x")
    return path / "x.csv"


WRITERS: list[tuple[Callable[[Path, list[str]], Any], dict[str, Any]]] = [
    (write_parquet, {}),
    (write_arrow, {}),
    (write_hdf5, {}),
    (write_npz, {}),
    (write_zarr, {}),
    (write_tar, {}),
    (write_json, {"fields": ["x", "wanted"]}),
    (write_table, {"files": "file"}),
]


@pytest.mark.parametrize(("write", "options"), WRITERS)
@pytest.mark.parametrize("name", RESERVED)
def test_reserved_names(
    write: Callable[[Path, list[str]], Any], options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """The name is refused with `rename=` in the error, which gives the field to samples, batches
    and pickled data sets; what every sample has stays."""
    place = write(tmp_path, ["x", name])
    if "fields" in options:
        options = {"fields": ["x", name]}
    with pytest.raises(PenstockError) as refusal:
        penstock.open(place, **options)
    if "fields" in options:
        return  # JSON lines map names by themselves
    assert f"rename={{{name!r}:" in str(refusal.value)
    dataset = penstock.open(place, rename={name: "mine"}, **options)
    for data in (dataset, pickle.loads(pickle.dumps(dataset))):
        sample = data[4]
        assert sample["__id__"] == 4
        assert sample["__key__"] != 4
        assert list(sample.keys()).count(name) <= 1
        mine = sample["mine"]
        value = int.from_bytes(mine, "little") if isinstance(mine, bytes) else int(mine)
        assert value == 4
        with penstock.Loader(data, 6, shuffle="none") as loader:
            batch = next(iter(loader))
            assert name not in batch
            assert "mine" in batch
            assert batch.ids.tolist() == list(range(6))


def test_other_names(tmp_path: Path) -> None:
    """Any field can be renamed; names of two fields, of none, and reserved ones are refused."""
    place = write_parquet(tmp_path, ["x", "y", "__index_level_0__"])
    swapped = penstock.open(place, rename={"x": "y", "y": "x"})
    assert list(swapped[0])[:3] == ["y", "x", "__index_level_0__"]
    assert len(swapped.select(where="x >= 4")) == 2
    for rename, wanted in (
        ({"z": "a"}, "there is no field 'z'"),
        ({"x": "y"}, "give each its own name"),
        ({"x": "__id__"}, "has a field '__id__'"),
        ({"x": None}, "give a dict"),
        ("x", "give a dict"),
    ):
        with pytest.raises(UsageError, match=wanted):
            penstock.open(place, rename=rename)


def test_label_beside_labels(tmp_path: Path) -> None:
    """A field "label" beside labels of another column is one of two values of one name."""
    place = write_parquet(tmp_path, ["label", "cls"])
    with pytest.raises(UsageError, match="rename={'label':"):
        penstock.open(place, label="cls")
    sample = penstock.open(place, label="cls", rename={"label": "other"})[3]
    assert (sample["label"], int(sample["other"])) == (3, 3)
