"""Whether the values of a workload fit together, fit the ranks, and fit what is on disk. Pure.

`within` looks at a workload alone, `check_run` at it with so many ranks, `check_found` at it with
what lies in its folders. `problems.tell` warns of what they yield, or raises it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .problems import Finding
from .schema import COMPRESSIONS, FIELDS, value_of
from .workload import Workload

_FEWEST_STEPS = 500
"""Of an epoch; MLPerf Storage asks for as many."""

_LARGER = 5
"""Times the memory; MLPerf Storage asks for data as large."""


def within(workload: Workload) -> Iterator[Finding]:
    """What no number of ranks would mend."""
    yield from _within_dataset(workload)
    yield from _within_loading(workload)
    yield from _within_times(workload)
    yield from _within_model(workload)
    yield from _within_checkpoints(workload)


def _within_dataset(workload: Workload) -> Iterator[Finding]:
    data = workload.dataset
    for part in ("train", "eval"):
        if getattr(data, f"num_subfolders_{part}") == 1:
            yield (
                "error",
                f"dataset.num_subfolders_{part}",
                "one subfolder is none, and DLIO finds no file then: write 0",
            )
    if data.record_dims and data.record_length_bytes_stdev > 0:
        yield (
            "error",
            "dataset.record_length_bytes_stdev",
            "samples of dataset.record_dims are all alike: give one of the two",
        )
    if data.record_dims and data.record_dims[0] % data.hdf5.num_dset_per_record:
        yield (
            "error",
            "dataset.hdf5.num_dset_per_record",
            f"{data.hdf5.num_dset_per_record} does not divide dataset.record_dims[0], which is "
            f"{data.record_dims[0]}",
        )
    if data.format in {"jpeg", "png"}:
        if len(data.record_dims) > 2:
            yield (
                "error",
                "dataset.record_dims",
                f"dataset.format is {data.format}: images have 2 dimensions, not "
                f"{len(data.record_dims)}",
            )
        if data.record_element_type != "uint8":
            yield (
                "error",
                "dataset.record_element_type",
                f"dataset.format is {data.format}: its elements are uint8, not "
                f"{data.record_element_type}",
            )
    able = COMPRESSIONS.get(data.format, ("none",))
    if data.compression not in able:
        yield (
            "error",
            "dataset.compression",
            f"dataset.format {data.format} supports {' and '.join(able)}, not {data.compression}",
        )


def _within_loading(workload: Workload) -> Iterator[Finding]:
    data, reader = workload.dataset, workload.reader
    if reader.odirect and data.format not in {"npy", "npz"}:
        yield (
            "error",
            "reader.odirect",
            f"needs dataset.format npy or npz, which is {data.format}",
        )
    loaders = {"tensorflow": "pytorch", "pytorch": "tensorflow"}
    if not workload.workflow.train:
        pass  # nothing is loaded
    elif reader.data_loader == loaders[workload.framework]:
        yield (
            "compat",
            "reader.data_loader",
            f"{reader.data_loader} with framework {workload.framework}, which DLIO refuses, has no "
            "effect: the loader is native",
        )
    elif data.format == "tfrecord" and reader.data_loader == "pytorch":
        yield (
            "compat",
            "reader.data_loader",
            "pytorch with dataset.format tfrecord, which DLIO refuses, has no effect: the loader "
            "is native",
        )
    if workload.storage.storage_type == "parallel_fs":
        yield (
            "warning",
            "storage.storage_type",
            "parallel_fs, which DLIO refuses, is read as local_fs",
        )
    for name in ("access_key_id", "secret_access_key"):
        if name in workload.storage.storage_options:
            yield (
                "warning",
                f"storage.storage_options.{name}",
                "access keys in plain text: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
                "environment instead",
            )


def _within_times(workload: Workload) -> Iterator[Finding]:
    for key in FIELDS:
        if key.kind != "distribution":
            continue
        time = value_of(workload, key)
        if time.kind == "normal" and time.stdev > time.mean / 3:
            yield (
                "warning",
                key.name,
                f"stdev {time.stdev:g} is more than a third of the mean {time.mean:g}: negative "
                "draws would be folded by abs() in DLIO, and are 0 here",
            )


def _within_model(workload: Workload) -> Iterator[Finding]:
    model = workload.model
    cut, shape = model.parallelism, model.transformer
    if cut.zero_stage == 3 and cut.pipeline > 1:
        yield (
            "error",
            "model.parallelism.zero_stage",
            f"3 excludes model.parallelism.pipeline > 1, which is {cut.pipeline}",
        )
    if 0 < model.num_layers < cut.pipeline:
        yield (
            "error",
            "model.num_layers",
            f"{model.num_layers} layers for model.parallelism.pipeline {cut.pipeline}: a stage "
            "needs one",
        )
    heads = shape.num_attention_heads
    if model.type == "transformer" and shape.hidden_size % heads:
        yield (
            "warning",
            "model.transformer.num_attention_heads",
            f"{shape.hidden_size}/{heads} is not an integer, head size "
            f"{shape.hidden_size // heads} is used",
        )
    is_subset = workload.checkpoint.mode == "subset"
    if is_subset and cut.data < 1:
        yield (
            "error",
            "checkpoint.mode",
            "subset needs model.parallelism.data: of how many data ranks these are a part",
        )
    if not is_subset and cut.data > 0:
        yield (
            "error",
            "model.parallelism.data",
            "only for checkpoint.mode subset: leave it out, it follows from the ranks",
        )


def _within_checkpoints(workload: Workload) -> Iterator[Finding]:
    checkpoint = workload.checkpoint
    writes, reads = checkpoint.num_checkpoints_write, checkpoint.num_checkpoints_read
    if 0 < writes < reads:
        yield (
            "error",
            "checkpoint.num_checkpoints_read",
            f"{reads} to read, but checkpoint.num_checkpoints_write is {writes}",
        )
    if checkpoint.ksm is not None and checkpoint.randomize_tensor:
        yield (
            "error",
            "checkpoint.randomize_tensor",
            "random pages are never alike: write false, or leave checkpoint.ksm out",
        )


def check_run(
    workload: Workload,
    ranks: int,
    *,
    memory_bytes: float | None = None,
    au_ceiling: float | None = None,
) -> Iterator[Finding]:
    """What so many ranks make impossible, or doubtful.

    memory_bytes: of all hosts together. au_ceiling: the utilisation without any I/O, a fraction.
    """
    if workload.workflow.train:
        yield from _steps(workload, ranks)
        yield from _doubts(workload, ranks, memory_bytes, au_ceiling)
    if workload.workflow.train and workload.workflow.evaluation and not workload.eval_steps(ranks):
        yield "error", "dataset.num_files_eval", _no_step(workload, "valid", ranks)
    if workload.workflow.checkpoint:
        yield from _parallelism(workload, ranks)


def _no_step(workload: Workload, part: str, ranks: int) -> str:
    data, reader = workload.dataset, workload.reader
    batch = reader.batch_size if part == "train" else reader.batch_size_eval
    return (
        f"0 steps: {_counted(data.files(part), 'file')} x "
        f"{_counted(data.num_samples_per_file, 'sample')} < batch {batch} x "
        f"{_counted(ranks, 'rank')}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _steps(workload: Workload, ranks: int) -> Iterator[Finding]:
    train, output = workload.train, workload.output
    steps = workload.steps(ranks)
    if not steps:
        yield "error", "dataset.num_files_train", _no_step(workload, "train", ranks)
        return
    least = output.exclude_start_steps + output.exclude_end_steps + 1
    if steps < least:
        yield (
            "error",
            "output.metric.exclude_start_steps",
            f"an epoch has {_counted(steps, 'step')}: with {output.exclude_start_steps} left out "
            f"at its start and {output.exclude_end_steps} at its end, it needs {least}",
        )
    asked = train.total_training_steps
    if asked is not None and asked > steps * train.epochs:
        yield (
            "error",
            "train.total_training_steps",
            f"asked {asked} steps, dataset holds {steps} per epoch x "
            f"{_counted(train.epochs, 'epoch')}",
        )


def _doubts(
    workload: Workload, ranks: int, memory_bytes: float | None, au_ceiling: float | None
) -> Iterator[Finding]:
    steps = workload.steps(ranks)
    if 0 < steps < _FEWEST_STEPS:
        yield (
            "warning",
            "dataset.num_files_train",
            f"{_counted(steps, 'step')} an epoch: MLPerf Storage asks for {_FEWEST_STEPS}, "
            f"{_files_for(workload, _FEWEST_STEPS * workload.reader.batch_size * ranks)} files",
        )
    if memory_bytes is not None:
        nominal = workload.dataset.nominal_bytes("train")
        if nominal < memory_bytes and workload.train.epochs > 1:
            yield (
                "warning",
                "dataset.num_files_train",
                f"dataset {nominal / 1e9:.2f} GB < RAM {memory_bytes / 1e9:.1f} GB: epochs 2.. "
                f"measure the page cache; MLPerf Storage asks for {_LARGER} times the memory, "
                f"{math.ceil(_LARGER * memory_bytes / nominal * workload.dataset.files('train'))} "
                "files",
            )
    if au_ceiling is not None and au_ceiling < workload.au:
        yield (
            "warning",
            "metric.au",
            f"{workload.au:g} cannot be reached: without any I/O it is {au_ceiling:.3f}",
        )


def _files_for(workload: Workload, samples: int) -> int:
    return math.ceil(samples / workload.dataset.num_samples_per_file)


def _parallelism(workload: Workload, ranks: int) -> Iterator[Finding]:
    cut = workload.model.parallelism
    group = cut.tensor * cut.pipeline
    named = f"model.parallelism.tensor {cut.tensor} x model.parallelism.pipeline {cut.pipeline}"
    if workload.checkpoint.mode == "default" and ranks % group:
        yield (
            "error",
            "model.parallelism.tensor",
            f"{_counted(ranks, 'rank')} cannot be dealt to {named}: use a multiple of {group}",
        )
    if workload.checkpoint.mode == "subset" and cut.data > 0 and ranks > cut.data * group:
        yield (
            "error",
            "model.parallelism.data",
            f"{_counted(ranks, 'rank')} are more than {named} x model.parallelism.data {cut.data}",
        )


def check_found(
    workload: Workload, part: str, folder: str, *, files: int, subfolders: int
) -> Iterator[Finding]:
    """What does not agree with the files and subfolders that lie in the folder of "train" or
    "valid"."""
    data = workload.dataset
    name = "train" if part == "train" else "eval"
    if data.files(part) > files:
        yield (
            "error",
            f"dataset.num_files_{name}",
            f"{data.files(part)} files expected, {files} found in {folder} (format {data.format}); "
            f"generate or lower num_files_{name}",
        )
    # A single folder is as flat as none.
    if data.subfolders(part) != subfolders and max(data.subfolders(part), subfolders) > 1:
        key = f"dataset.num_subfolders_{name}"
        yield (
            "error",
            key,
            f"found {_counted(subfolders, 'subfolder')} in {folder}, config says "
            f"{data.subfolders(part)}; set {key}={subfolders}",
        )
