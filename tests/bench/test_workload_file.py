"""Reading workloads: what DLIO lets pass is refused, with file, line, key and remedy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock_bench.workload.distribution import PARAMETERS, Distribution
from penstock_bench.workload.reading import (
    as_dict,
    list_keys,
    preset_names,
    read_workload,
    read_yaml,
    suggest_key,
)
from penstock_bench.workload.sections import SECRETS, DlioWorkload


def told(tmp_path: Path, text: str, *texts: str, compat: bool = False) -> tuple[str, list[str]]:
    """The error's text that reading a file raises, or "", and its warnings."""
    path = tmp_path / "w.yaml"
    path.write_text(text)
    warned: list[str] = []
    try:
        read_workload(path, texts, compat=compat, warn=warned.append)
    except UsageError as error:
        return str(error).replace(f"{tmp_path}/", ""), warned
    return "", [each.replace(f"{tmp_path}/", "") for each in warned]


class Row(NamedTuple):
    """A text, whether it is refused strictly and in compat mode, and what is said."""

    levels: str
    message: str
    text: str = ""
    override: str = ""


ERROR = "error error"
STRICT = "error warning"
WARNING = "warning warning"
COMPAT = "nothing warning"

ROWS = {
    "unknown key": Row(
        STRICT,
        "w.yaml:1: reader.batchsize: unknown key 'reader.batchsize'; did you mean "
        "'reader.batch_size'?",
        "reader: {batchsize: 4}",
    ),
    "unknown key without underscores": Row(
        STRICT,
        "did you mean 'dataset.num_samples_per_file'?",
        "dataset: {numsamplesperfile: 4}",
    ),
    "unknown key by override": Row(
        STRICT,
        "CLI: train.computation_tme: unknown key 'train.computation_tme'; did you mean "
        "'train.computation_time'?",
        override="++workload.train.computation_tme=1",
    ),
    "unknown section": Row(
        STRICT, "w.yaml:1: traing: unknown key 'traing'; did you mean 'train'?", "traing: {}"
    ),
    "wrong section": Row(
        ERROR,
        "w.yaml:2: train.batch_size: unknown key 'train.batch_size': 'batch_size' belongs to",
        "train:\n  batch_size: 4",
    ),
    "no section": Row(ERROR, "'batch_size' belongs to reader", "batch_size: 4"),
    "section of a value": Row(
        ERROR,
        "reader: input should be a dictionary or an instance of",
        "reader: 3",
    ),
    **{
        f"dead {key}": Row(
            WARNING, f"{key}: has no effect in DLIO{use}", override=f"++workload.{key}=1"
        )
        for key, use in {
            "model.model_size": "; use model.model_size_bytes",
            "workflow.debug": "",
            "dataset.enable_chunking": "; use dataset.hdf5.chunk_dims",
            "dataset.chunk_size": "; use dataset.hdf5.chunk_dims",
            "reader.file_access": "",
            "dataset.record_element_bytes": "; use dataset.record_element_type",
            "checkpoint.type": "",
        }.items()
    },
    **{
        f"old name {suffix}": Row(
            STRICT,
            f"dataset.record_length{suffix}: old name; use record_length_bytes{suffix}",
            f"dataset: {{record_length{suffix}: 100}}",
        )
        for suffix in ("", "_stdev", "_resize")
    },
    "old name in a file of version 3": Row(
        WARNING,
        "old name; use record_length_bytes",
        "dataset: {format: parquet, record_length: 761, parquet: {row_group_size: 10}}",
    ),
    "hdf5 key under dataset": Row(
        ERROR, "'chunk_dims' belongs to dataset.hdf5", "dataset: {chunk_dims: [1]}"
    ),
    "true for a choice": Row(
        ERROR,
        "reader.file_shuffle: input should be 'off', 'seed' or 'random', got True",
        "reader: {file_shuffle: on}",
    ),
    "false for a choice without off": Row(
        ERROR,
        "dataset.compression: input should be 'none', 'gzip'",
        "dataset: {compression: no}",
    ),
    "unknown choice": Row(
        ERROR, "dataset.format: input should be 'tfrecord', 'hdf5'", "dataset: {format: npzz}"
    ),
    "unknown choice is guessed": Row(ERROR, "did you mean 'npz'?", "dataset: {format: npzz}"),
    "None for none": Row(ERROR, "did you mean 'none'?", "dataset: {compression: None}"),
    "seconds with a unit": Row(
        ERROR,
        "train.computation_time: expected seconds or a distribution, got '0.5s'",
        "train: {computation_time: 0.5s}",
    ),
    "seconds as text": Row(
        ERROR,
        "train.computation_time: expected seconds or a distribution, got '0.5'",
        "train: {computation_time: '0.5'}",
    ),
    "size with a unit": Row(
        ERROR, "input should be a valid number, got '10GB'", "dataset: {record_length_bytes: 10GB}"
    ),
    "octal": Row(
        ERROR,
        "w.yaml:1: train.epochs: '010' is another number in YAML",
        "train: {epochs: 010}",
    ),
    "sexagesimal": Row(
        ERROR, "'12:30' is another number in YAML", "train: {computation_time: 12:30}"
    ),
    "hexadecimal": Row(ERROR, "'0x10' is another number in YAML", "train: {epochs: 0x10}"),
    "fraction for a count": Row(
        ERROR,
        "should be a valid integer, got 2.5",
        "reader: {batch_size: 2.5}",
    ),
    "batch of 0": Row(ERROR, "greater than or equal to 1, got 0", "reader: {batch_size: 0}"),
    "no files": Row(ERROR, "greater than or equal to 1, got 0", "dataset: {num_files_train: 0}"),
    "negative count": Row(
        ERROR, "greater than or equal to 0, got -1", "dataset: {num_files_eval: -1}"
    ),
    "negative threads": Row(
        ERROR, "greater than or equal to 0, got -2", "reader: {read_threads: -2}"
    ),
    "zero stage": Row(
        ERROR,
        "should be less than or equal to 3, got 4",
        "model: {parallelism: {zero_stage: 4}}",
    ),
    "percentage": Row(ERROR, "should be less than or equal to 1, got 90", "metric: {au: 90}"),
    "yes as text": Row(
        ERROR,
        "should be a valid boolean, got 'yes'",
        override="++workload.workflow.train=yes",
    ),
    "number as text": Row(ERROR, "input should be a valid string, got 3", "model: {name: 3}"),
    "interpolation": Row(
        ERROR, "interpolations (${oc.env:X}) are not read", "dataset: {data_folder: '${oc.env:X}'}"
    ),
    "distribution with a field missing": Row(
        ERROR, "gamma needs shape and scale", "train: {computation_time: {type: gamma, shape: 2}}"
    ),
    "distribution with a field too many": Row(
        ERROR,
        "exponential needs scale, and not mean",
        "train: {computation_time: {type: exponential, scale: 2, mean: 1}}",
    ),
    "distribution of no kind": Row(
        ERROR, "did you mean 'normal'?", "train: {computation_time: {type: nornal, mean: 1}}"
    ),
    "negative stdev": Row(
        ERROR, "stdev must be >= 0, got -1", "train: {computation_time: {mean: 1, stdev: -1}}"
    ),
    "folded normal": Row(
        WARNING,
        "negative draws would be folded by abs()",
        "train: {computation_time: {mean: 1, stdev: 0.4}}",
    ),
    "stdev without mean": Row(
        ERROR,
        "train.computation_time_stdev: stdev needs a mean",
        "train: {computation_time_stdev: 1}",
    ),
    "stdev of what has no mean": Row(
        ERROR,
        "stdev needs a mean, and uniform has none",
        "train: {computation_time: {type: uniform, min: 0, max: 1}, computation_time_stdev: 1}",
    ),
    "stdev twice": Row(
        ERROR,
        "stdev is given twice",
        "train: {computation_time: {mean: 9, stdev: 1}, computation_time_stdev: 1}",
    ),
    "one subfolder": Row(
        ERROR, "num_subfolders_train: one subfolder is none", "dataset: {num_subfolders_train: 1}"
    ),
    "dims and stdev": Row(
        ERROR,
        "dataset.record_length_bytes_stdev: samples of dataset.record_dims are all alike",
        "dataset: {record_dims: [4], record_length_bytes_stdev: 1}",
    ),
    "odirect": Row(
        ERROR,
        "reader.odirect: needs dataset.format npy or npz, which is hdf5",
        "dataset: {format: hdf5}\nreader: {odirect: true}",
    ),
    "image of three dimensions": Row(
        ERROR,
        "dataset.record_dims: dataset.format is jpeg: images have 2 dimensions, not 3",
        "dataset: {format: jpeg, record_dims: [4, 4, 3]}",
    ),
    "image of floats": Row(
        ERROR,
        "dataset.record_element_type: dataset.format is png: its elements are uint8, not float32",
        "dataset: {format: png, record_element_type: float32}",
    ),
    "framework and loader": Row(
        COMPAT, "no effect: the loader is native", "framework: pytorch\ndataset: {format: npz}"
    ),
    "tfrecord with torch": Row(
        COMPAT,
        "no effect: the loader is native",
        "framework: pytorch\nreader: {data_loader: pytorch}",
    ),
    "compression of npz": Row(
        ERROR,
        "npz supports none and zip, not gzip",
        "dataset: {format: npz, compression: gzip}",
    ),
    "compression of jpeg": Row(
        ERROR, "jpeg supports none, not gzip", "dataset: {format: jpeg, compression: gzip}"
    ),
    "pause below 0": Row(
        COMPAT, "DLIO would sleep 1 s", "checkpoint: {time_between_checkpoints: -1}"
    ),
    "pause left out": Row(
        COMPAT, "DLIO would sleep 1 s", "workflow: {train: false, checkpoint: true}"
    ),
    "parallel_fs": Row(WARNING, "is read as local_fs", "storage: {storage_type: parallel_fs}"),
    "s3 of tfrecord": Row(
        ERROR,
        "storage.storage_type: s3 is for dataset.format npz, npy, jpeg, png, and it is tfrecord",
        "{storage: {storage_type: s3, storage_root: bucket}, dataset: {format: tfrecord}}",
    ),
    "aistore": Row(
        ERROR, "aistore answers as S3, too: set storage", "storage: {storage_type: aistore}"
    ),
    "a bucket as the root": Row(
        ERROR, "storage.storage_root: s3://b/x is a URL", "storage: {storage_root: 's3://b/x'}"
    ),
    "a bucket of data": Row(
        ERROR, "dataset.data_folder: gs://b is a URL", "dataset: {data_folder: 'gs://b'}"
    ),
    "a bucket of results": Row(
        ERROR, "output.folder: s3://b is a URL", "output: {folder: 's3://b'}"
    ),
    "a bucket of checkpoints": Row(
        ERROR, "give the folder", "checkpoint: {checkpoint_folder: 's3://b'}"
    ),
    "zero 3 with a pipeline": Row(
        ERROR,
        "model.parallelism.zero_stage: 3 excludes model.parallelism.pipeline > 1, which is 2",
        "model: {parallelism: {zero_stage: 3, pipeline: 2}}",
    ),
    "data parallelism without subset": Row(
        ERROR, "only for checkpoint.mode subset", "model: {parallelism: {data: 2}}"
    ),
    "subset without data parallelism": Row(
        ERROR, "subset needs model.parallelism.data", "checkpoint: {mode: subset}"
    ),
    "heads": Row(
        WARNING,
        "25872/192 is not an integer, head size 134 is used",
        "model: {type: transformer, transformer: {hidden_size: 25872, num_attention_heads: 192}}",
    ),
    "layers and stages": Row(
        ERROR, "a stage needs one", "model: {num_layers: 2, parallelism: {pipeline: 4}}"
    ),
    "more read than written": Row(
        ERROR,
        "3 to read, but checkpoint.num_checkpoints_write is 2",
        "checkpoint: {num_checkpoints_write: 2, num_checkpoints_read: 3}",
    ),
    "merged random pages": Row(ERROR, "random pages are never alike", "checkpoint: {ksm: {}}"),
    "dims and datasets": Row(
        ERROR,
        "2 does not divide dataset.record_dims[0], which is 3",
        "dataset: {format: hdf5, record_dims: [3], hdf5: {num_dset_per_record: 2}}",
    ),
    "key twice": Row(
        ERROR,
        "w.yaml:3: not YAML: found duplicate key batch_size",
        "reader:\n  batch_size: 4\n  batch_size: 5",
    ),
    "override twice": Row(
        STRICT, "CLI: workload.train.epochs: given twice: leave one", override="twice"
    ),
    "reader by two names": Row(
        STRICT,
        "w.yaml:2: data_reader: give one of reader, data_reader",
        "reader: {batch_size: 4}\ndata_reader: {batch_size: 5}",
    ),
    "second equals": Row(ERROR, "mismatched input '='", override="++workload.model.name=a=b"),
    "access keys": Row(
        WARNING,
        "storage.storage_options.access_key_id: access keys in plain text",
        "storage: {storage_options: {access_key_id: hunter2}}",
    ),
    "alias": Row(ERROR, "the alias *a is not read", "model: &a {name: x}\ntrain: *a"),
    "merge": Row(ERROR, "merges (<<) and mappings are not read", "train: {<<: {epochs: 1}}"),
    "tag": Row(ERROR, "the tag tag:yaml.org,2002:str is not read", "model: {name: !!str 3}"),
    "column": Row(
        ERROR,
        "did you mean 'dataset.parquet.columns[].dtype'?",
        "dataset: {parquet: {columns: [{name: x, dtpe: int8}]}}",
    ),
    "column twice": Row(
        ERROR,
        "the column 'x' is given twice",
        "dataset: {parquet: {columns: [x, {name: x}]}}",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_condition_has_its_level_and_message(tmp_path: Path, name: str) -> None:
    """Every condition, strictly and in compat mode; DLIO says nothing, or stops with a trace."""
    row = ROWS[name]
    texts = [row.override] if row.override else []
    if row.override == "twice":
        texts = ["++workload.train.epochs=2", "++workload.train.epochs=3"]
    for compat, level in zip((False, True), row.levels.split(), strict=True):
        raised, warned = told(tmp_path, row.text, *texts, compat=compat)
        assert (row.message in raised) == (level == "error"), raised
        assert any(row.message in each for each in warned) == (level == "warning"), warned


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """DLIO stops at the first, if at all."""
    raised, warned = told(
        tmp_path,
        "reader:\n  batchsize: 4\n  read_threads: -1\ndataset:\n  format: npzz\n"
        "  compression: gzip\nmodel:\n  model_size: 3\n",
        "++workload.train.epoch=3",
    )
    assert [line.split(": ")[:2] for line in raised.splitlines()] == [
        ["w.yaml:2", "reader.batchsize"],
        ["w.yaml:3", "reader.read_threads"],
        ["w.yaml:5", "dataset.format"],
        ["CLI", "train.epoch"],
    ]
    assert len(warned) == 1


def test_shuffles_that_are_off_are_off(tmp_path: Path) -> None:
    """DLIO shuffles with `file_shuffle: off`, and stops at `sample_shuffle: off`."""
    path = tmp_path / "w.yaml"
    path.write_text("reader: {file_shuffle: off, sample_shuffle: off, read_type: on_demand}")
    by_file = read_workload(path)
    by_override = read_workload(
        {}, ["++workload.reader.file_shuffle=off", "++workload.reader.sample_shuffle=off"]
    )
    assert by_file == by_override == DlioWorkload()
    assert by_file.reader.read_type == "on_demand"


def test_fsync_and_rank_shift_are_kept() -> None:
    """DLIO parses both and does neither."""
    found = read_workload({"checkpoint": {"fsync": True, "recovery_rank_shift": True}})
    assert found.checkpoint.fsync
    assert found.checkpoint.recovery_rank_shift


def test_last_one_wins_in_compat_mode(tmp_path: Path) -> None:
    """The last one counts for keys, overrides and names of a section that are given twice."""
    path = tmp_path / "w.yaml"
    path.write_text("reader: {batch_size: 4}\ndata_reader: {batch_size: 6}")
    warned: list[str] = []
    texts = ["++workload.train.epochs=2", "++workload.train.epochs=3"]
    found = read_workload(path, texts, compat=True, warn=warned.append)
    assert (found.reader.batch_size, found.train.epochs) == (6, 3)
    assert len(warned) == 2


def test_what_dlio_files_leave_open() -> None:
    """-1 is the default, a number is a distribution, one device a list, slashes go."""
    found = read_workload(
        {
            "train": {
                "total_training_steps": -1,
                "computation_time": 2,
                "computation_time_stdev": 0.5,
            },
            "evaluation": {"eval_time": {"mean": 3}},
            "checkpoint": {"steps_between_checkpoints": -1, "num_checkpoints_write": -1},
            "dataset": {"data_folder": "data/x//"},
            "profiling": {"iostat_devices": "sda"},
            "storage": None,
        }
    )
    assert found.train.total_training_steps is None
    assert found.train.computation_time == Distribution("normal", (2, 0.5))
    assert found.evaluation.eval_time == Distribution.constant(3)
    assert found.checkpoint.steps_between_checkpoints is None
    assert found.checkpoint.num_checkpoints_write == 0
    assert found.dataset.data_folder == "data/x"
    assert found.profiling.iostat_devices == ("sda",)


def test_names_files_and_folders(tmp_path: Path) -> None:
    """A workload is a preset, a file, or DLIO's own record."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("workload: {model: {name: mine}}")
    assert read_workload(mine).model.name == "mine"
    assert read_workload(overrides=["workload=dlrm"]).model.name == "dlrm"
    assert read_workload().model.name == "default"
    with pytest.raises(UsageError, match="did you mean 'unet3d_h100'"):
        read_workload("unet3d_h10")
    with pytest.raises(UsageError, match="name one workload"):
        read_workload("dlrm", ["workload=default"])
    with pytest.raises(UsageError, match="cannot read workload"):
        read_workload(tmp_path / "none.yaml")


def test_folder_of_results() -> None:
    """hydra.run.dir is where results go, unless the file says so itself, as in DLIO."""
    assert read_workload({}, ["hydra.run.dir=/out"]).output.folder == "/out"
    warned: list[str] = []
    given = {"output": {"folder": "/mine"}}
    assert read_workload(given, ["hydra.run.dir=/out"], warn=warned.append).output.folder == "/mine"
    assert warned == ["CLI: hydra.run.dir: has no effect: output.folder is '/mine'"]


@pytest.mark.parametrize("name", preset_names())
def test_presets(name: str) -> None:
    """Each is read without a warning, and comes back from its record."""
    warned: list[str] = []
    found = read_workload(name, warn=warned.append)
    # Of this one the heads do not divide the hidden size; so it is.
    heads = "model.transformer.num_attention_heads: 25872/192"
    assert [each for each in warned if heads not in each] == []
    assert bool(warned) == (name == "llama_1t")
    assert read_workload(json.loads(json.dumps(as_dict(found))), warn=warned.append) == found
    assert read_workload(name, compat=True, warn=warned.append) == found


@pytest.mark.parametrize(
    ("name", "bytes_per_s"),
    [
        ("default", 0.016e6),
        ("unet3d_v100", 431e6),
        ("unet3d_a100", 1614e6),
        ("unet3d_h100", 3177e6),
        ("unet3d_b200", 6335e6),
        ("resnet50_v100", 37.6e6),
        ("resnet50_a100", 105e6),
        ("resnet50_h100", 205e6),
        ("cosmoflow_v100", 302e6),
        ("cosmoflow_a100", 513e6),
        ("cosmoflow_h100", 808e6),
        ("bert_v100", 0.124e6),
        ("dlrm", 10437e6),
        ("megatron_deepspeed", 0.013e6),
        ("unet3d_v100_s3", 431e6),
        ("unet3d_a100_s3", 1614e6),
        ("unet3d_h100_s3", 3177e6),
        ("retinanet_b200", 163e6),
        ("retinanet_mi355", 163e6),
        ("flux_b200", 77e6),
        ("flux_mi355", 77e6),
        ("dlrm_b200", 33031e6),
    ],
)
def test_presets_ask_for_what_the_published_ones_do(name: str, bytes_per_s: float) -> None:
    """Bytes that an accelerator needs per second; the last from its columns, 756 bytes a row."""
    found = read_workload(name)
    demand = (
        found.reader.batch_size * found.dataset.sample_bytes() / found.train.computation_time.mean
    )
    assert demand == pytest.approx(bytes_per_s, rel=0.05)


def test_access_keys_are_in_no_record() -> None:
    """A workload has them, what is written of it has not."""
    options = {"access_key_id": "hunter2", "secret_access_key": "hunter3", "region": "eu"}
    found = read_workload({"storage": {"storage_options": options}}, warn=lambda _: None)
    assert found.storage.storage_options == options
    assert "hunter" not in json.dumps(as_dict(found))


def test_a_workload_of_defaults_comes_back() -> None:
    """Each default is allowed in a file."""
    assert read_workload(as_dict(DlioWorkload())) == DlioWorkload()


KEYS = {
    name: key
    for name, key in list_keys().items()
    if ("enum" in key or key.get("type", "object") != "object") and "[]" not in name
}
"""Keys that have an effect."""


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Values that a key may have in a file."""
    key = KEYS[name]
    if "enum" in key:
        return st.sampled_from(key["enum"])
    least, most = max(key.get("minimum", 0), 0), key.get("maximum", 1 << 40)
    seconds = st.floats(0, 1e3, allow_subnormal=False)
    match key["type"]:
        case "string":
            return st.text("abc/ :#'", min_size=1, max_size=8)
        case "boolean":
            return st.booleans()
        case "integer":
            unlimited = {"train.total_training_steps", "checkpoint.num_checkpoints_write"}
            integers = st.integers(least, most)
            return integers | st.just(-1) if name in unlimited else integers
        case "number":
            return st.floats(least, most, allow_subnormal=False)
        case "distribution":
            several = [
                st.fixed_dictionaries({"type": st.just(kind)} | dict.fromkeys(names, seconds))
                for kind, names in PARAMETERS.items()
            ]
            return st.one_of(seconds, *several).filter(
                lambda time: not isinstance(time, dict) or time.get("min", 0) <= time.get("max", 0)
            )
    items = list_keys()[f"{name}[]"]
    if items["type"] == "integer":
        return st.lists(st.integers(1, 1 << 40), max_size=3)
    if items["type"] == "string":
        return st.lists(st.text("abc", max_size=3), max_size=2)
    elements = list_keys()[f"{name}[].dtype"]["enum"]
    column = {"name": st.text("xyz", min_size=1), "dtype": st.sampled_from(elements)}
    more = {"size": st.integers(1, 99), "read": st.booleans(), "count": st.integers(1, 3)}
    return st.lists(st.fixed_dictionaries(column, optional=more), max_size=1)


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Files of a few keys, each of which is right on its own."""
    file: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(KEYS)), max_size=8, unique=True)):
        *sections, last = name.split(".")
        inner = file
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = draw(values_of(name))
    return file


@given(files())
def test_what_is_read_comes_back(file: dict[str, Any]) -> None:
    """read(as_dict(w)) == w, through JSON and through YAML; what does not fit is a UsageError."""
    try:
        workload = read_workload(file, warn=lambda _: None)
    except UsageError:
        return
    record = as_dict(workload)
    options = dict(workload.storage.storage_options)
    for secret in SECRETS & options.keys():
        del options[secret]
    bare = replace(workload, storage=replace(workload.storage, storage_options=options))
    assert read_workload(json.loads(json.dumps(record)), warn=lambda _: None) == bare
    # A file of the same: what a program holds and what YAML makes of it agree.
    assert read_yaml(yaml.safe_dump(record), "record.yaml")[0] == record


@given(st.sampled_from(sorted(KEYS)), st.data())
def test_a_slip_of_a_key_is_mended(key: str, data: st.DataObject) -> None:
    """A letter left out, added or exchanged: a key is named that is as near as the one meant."""
    section, _, last = key.rpartition(".")
    at = data.draw(st.integers(0, len(last) - 1))
    other = data.draw(st.sampled_from(["", "q", last[at] + "q"]))
    name = ".".join(filter(None, [section, last[:at] + other + last[at + 1 :]]))
    if name in list_keys() or len(last) < 4:
        return
    found = suggest_key(name)
    assert found is not None
    assert len(found) - len(name) in {-1, 0, 1}
    if found != key:
        slips = sum(a != b for a, b in zip(found[::-1], name[::-1], strict=False))
        assert slips <= 2 or found.replace("_", "") == name.replace("_", "")


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"% \n\t0x\u00e9,?<", max_size=40))
def test_any_text_is_a_mapping_or_refused(text: str) -> None:
    """Nothing but a UsageError comes of any text, and what is read is what YAML says."""
    try:
        sections, lines = read_yaml(text, "w.yaml")
    except UsageError as error:
        said = str(error)
    else:
        assert isinstance(sections, dict)
        said = "".join(lines.values()) or "w.yaml"
    assert said.startswith("w.yaml")


@pytest.mark.parametrize("depth", [33, 900, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    """Nested lists end neither in a recursion nor in a crash of a parser."""
    with pytest.raises(UsageError, match=r"^w\.yaml:1: lists and mappings are more than 32 deep"):
        read_yaml("a: " + "[" * depth, "w.yaml")
