"""Workloads of an object store: generated, gone on with, and read, from moto's S3."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import LimitError, UsageError
from penstock_bench.contenders import OF_OBJECTS, check
from penstock_bench.data import find_paths
from penstock_bench.data.generate import MANIFEST, generate_data
from penstock_bench.workload.reading import read_workload
from tests import warm
from tests.services import S3, environment, moto

WORKLOAD = """
model: {name: small}
framework: pytorch
workflow: {generate_data: true, train: true}
dataset: {data_folder: data/small, format: FORMAT, num_files_train: 12, record_length_bytes: 256,
          num_subfolders_train: FOLDERS}
storage: {storage_type: s3, storage_root: BUCKET}
reader: {data_loader: pytorch, batch_size: 4, read_threads: 0, sample_shuffle: seed}
train: {epochs: 2, computation_time: 0.001}
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with moto() as port:
        yield port


@pytest.fixture
def bucket(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3:
    """An empty bucket, which the environment names."""
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    name = f"bench-{abs(hash(tmp_path)) % 10**9}"
    return S3(port, name)


def write_workload(folder: Path, bucket: str, format: str = "npz", folders: int = 0) -> Path:
    path = folder / "small.yaml"
    text = WORKLOAD.replace("FORMAT", format).replace("BUCKET", bucket)
    path.write_text(text.replace("FOLDERS", str(folders)))
    return path


def bench(*arguments: object, code: int = 0) -> str:
    """The output of a command, in a process that has used no object store: its ranks are forks."""
    done = warm.run(
        [sys.executable, "-m", "penstock", "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return str(done.stdout + done.stderr)


@pytest.mark.parametrize(("format", "folders"), [("npz", 0), ("npy", 3), ("png", 0)])
def test_a_workload_of_objects(bucket: S3, tmp_path: Path, format: str, folders: int) -> None:
    """A workload is generated and read, decoded and as bytes; its samples are those of files."""
    path = write_workload(tmp_path, bucket.name, format, folders)
    out = tmp_path / "out"
    done = bench("run", path, "--ranks", 1, "--no-verdict", "--output", out)
    assert "penstock-bytes" in done
    values = json.loads((out / "record.json").read_text())
    assert [run["loader"] for run in values["runs"]] == ["penstock", "penstock-bytes"]
    for run in values["runs"]:
        assert [epoch["samples"] for epoch in run["epochs"]] == [12, 12]
    assert values["machine"]["filesystem"] == "s3"
    workload = read_workload(path)
    data, root = workload.dataset, workload.storage.data_root
    paths = find_paths(data, "train", root)
    assert len(paths) == 12
    assert all(each.startswith(f"s3://{bucket.name}/data/small/train/") for each in paths)
    generate_data(data, ["train"], root=str(tmp_path))
    for local, remote in zip(find_paths(data, "train", str(tmp_path)), paths, strict=True):
        assert local.removeprefix(str(tmp_path)) == remote.removeprefix(f"s3://{bucket.name}")
        if format == "npy":
            (held,) = penstock.open(remote, format="npy", sample="file", index="memory")
            assert np.array_equal(held["data"], np.load(local))


def test_generation_goes_on_and_refuses_other_data(bucket: S3, tmp_path: Path) -> None:
    """Objects that are missing are written again; others' are not replaced without --force."""
    path = write_workload(tmp_path, bucket.name)
    workload = read_workload(path)
    data, root = workload.dataset, workload.storage.data_root
    first = generate_data(data, ["train"], root=root)
    assert (first.files, first.written) == (12, 12)
    lost = find_paths(data, "train", root)[3]
    bucket.delete(lost.removeprefix(f"s3://{bucket.name}/"))
    assert generate_data(data, ["train"], root=root).written == 1
    assert generate_data(data, ["train"], root=root).written == 0
    other = read_workload(path, ["++workload.dataset.record_length_bytes=1024"]).dataset
    with pytest.raises(UsageError, match="holds data of 'train' that is other: dataset.record_len"):
        generate_data(other, ["train"], root=root)
    assert generate_data(other, ["train"], root=root, force=True).written == 12
    bucket.delete(f"data/small/{MANIFEST}")
    with pytest.raises(UsageError, match=f"not written by this command .such as {root}/data/small"):
        generate_data(other, ["train"], root=root)
    with pytest.raises(
        LimitError, match=f"{root}/data/small would get .* GB of samples, and up to"
    ):
        generate_data(data, ["train"], root=root, bytes_max=10, force=True)


def test_what_objects_cannot_be(bucket: S3, tmp_path: Path) -> None:
    """Options and loaders of files are refused before anything is written; missing data named."""
    path = write_workload(tmp_path, bucket.name)
    for option in (["--stage", tmp_path], ["--verify"], ["--cache", "cold"]):
        done = bench("run", path, *option, code=1)
        assert f"{option[0]} is for files, and the data are objects" in done
    done = bench("run", path, "--loader", "torch", code=1)
    assert "--loader torch reads files, and the data are objects: take penstock" in done
    for name in OF_OBJECTS:
        check(name, "npz", objects=True)
    done = bench("run", path, "++workload.workflow.generate_data=false", code=1)
    assert f"s3://{bucket.name}/data/small/train" in done
    assert "penstock bench generate" in done
    for text, words in (
        ("storage_type: aistore", "endpoint_url=http://HOST:51080/s3"),
        ("storage_type: s3, storage_root: ./", "storage.storage_root: names no bucket"),
    ):
        with pytest.raises(UsageError, match=words):
            read_workload({"storage": dict(each.split(": ") for each in text.split(", "))})
    with pytest.raises(UsageError, match="s3 is for dataset.format npz, npy, jpeg, png, and it is"):
        read_workload({"storage": {"storage_type": "s3", "storage_root": "b"},
                       "dataset": {"format": "tfrecord"}})  # fmt: skip


def test_options_of_the_storage_are_used(
    bucket: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint, keys and region of a workload come before those of the environment."""
    given = environment(bucket.port)
    for name in given:
        monkeypatch.setenv(name, "http://127.0.0.1:9/" if "URL" in name else "wrong")
    options = ["endpoint_url", "access_key_id", "secret_access_key", "region"]
    overrides = [
        f"++workload.storage.storage_options.{option}={value}"
        for option, value in zip(options, given.values(), strict=True)
    ]
    path = write_workload(tmp_path, bucket.name)
    done = bench("generate", path, *overrides, "--part", "train")
    assert f"s3://{bucket.name}/data/small: 12 files" in done
    out = tmp_path / "out"
    bench("run", path, *overrides, "--ranks", 1, "--no-verdict", "--output", out)
    (first, _) = json.loads((out / "record.json").read_text())["runs"]
    assert [epoch["samples"] for epoch in first["epochs"]] == [12, 12]
    assert (
        environment(bucket.port)["AWS_SECRET_ACCESS_KEY"] not in (out / "record.json").read_text()
    )
