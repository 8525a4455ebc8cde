"""Checks that the values of a workload fit together. Pure.

`run` checks that a workload fits the ranks, and `files` that it fits the files on disk.
"""

from __future__ import annotations

from collections.abc import Iterator

from .overrides import Level
from .sections import COMPRESSIONS, SECRETS, DlioWorkload

OBJECT_FORMATS = ("npz", "npy", "jpeg", "png")
"""Formats of data in an object store: a file is read as a whole. DLIO has the first two."""

Finding = tuple[Level, str, str]
"""Level, key and text of a problem."""


def check_values(workload: DlioWorkload) -> Iterator[Finding]:
    """Find problems that no number of ranks would mend."""
    yield from _check_data(workload)
    yield from _check_loading(workload)
    yield from _check_checkpoints(workload)


def _check_data(workload: DlioWorkload) -> Iterator[Finding]:
    # Else what is read and written as files would land on the local disk.
    remedy = "the benchmark reads and writes files: copy the data to a file system or mount it"
    kind, data = workload.storage.storage_type, workload.dataset
    if kind == "aistore":
        text = "aistore answers as S3, too: set storage.storage_type=s3 and "
        endpoint = "storage.storage_options.endpoint_url=http://HOST:51080/s3"
        yield "error", "storage.storage_type", text + endpoint
    if kind == "s3" and data.format not in OBJECT_FORMATS:
        text = f"s3 is for dataset.format {', '.join(OBJECT_FORMATS)}, and it is {data.format}: "
        yield "error", "storage.storage_type", f"{text}copy the data to a file system, or mount it"
    if kind == "s3" and workload.storage.data_root.strip("/.") in ("s3:", ""):
        text = "names no bucket: give that of the data"
        yield "error", "storage.storage_root", text
    for key, folder in {
        "storage.storage_root": "" if kind == "s3" else workload.storage.storage_root,
        "dataset.data_folder": data.data_folder,
        "checkpoint.checkpoint_folder": workload.checkpoint.checkpoint_folder,
        "output.folder": workload.output.folder,
    }.items():
        if "://" in (folder or ""):
            yield "error", key, f"{folder} is a URL: {remedy}, and give the folder"
    for part in ("train", "eval"):
        if getattr(data, f"num_subfolders_{part}") == 1:
            text = "one subfolder is none, and DLIO finds no file then: write 0"
            yield "error", f"dataset.num_subfolders_{part}", text
    dims, form, dsets = data.record_dims, data.format, data.hdf5.num_dset_per_record
    if dims and data.record_length_bytes_stdev > 0:
        text = "samples of dataset.record_dims are all alike: give one of the two"
        yield "error", "dataset.record_length_bytes_stdev", text
    if dims and dims[0] % dsets:
        text = f"{dsets} does not divide dataset.record_dims[0], which is {dims[0]}"
        yield "error", "dataset.hdf5.num_dset_per_record", text
    if form in {"jpeg", "png"} and len(dims) > 2:
        text = f"dataset.format is {form}: images have 2 dimensions, not {len(dims)}"
        yield "error", "dataset.record_dims", text
    if form in {"jpeg", "png"} and data.record_element_type != "uint8":
        text = f"dataset.format is {form}: its elements are uint8, not {data.record_element_type}"
        yield "error", "dataset.record_element_type", text
    supported = COMPRESSIONS.get(form, ("none",))
    if data.compression not in supported:
        text = f"dataset.format {form} supports {' and '.join(supported)}, not {data.compression}"
        yield "error", "dataset.compression", text


def _check_loading(workload: DlioWorkload) -> Iterator[Finding]:
    form, reader, storage = workload.dataset.format, workload.reader, workload.storage
    if reader.odirect and form not in {"npy", "npz"}:
        yield "error", "reader.odirect", f"needs dataset.format npy or npz, which is {form}"
    other = {"tensorflow": "pytorch", "pytorch": "tensorflow"}[workload.framework]
    refused = None
    if reader.data_loader == other:
        refused = f"{other} with framework {workload.framework}"
    elif form == "tfrecord" and reader.data_loader == "pytorch":
        refused = "pytorch with dataset.format tfrecord"
    if workload.workflow.train and refused:
        text = f"{refused}, which DLIO refuses, has no effect: the loader is native"
        yield "compat", "reader.data_loader", text
    if storage.storage_type == "parallel_fs":
        text = "parallel_fs, which DLIO refuses, is read as local_fs"
        yield "warning", "storage.storage_type", text
    for name in sorted(SECRETS & storage.storage_options.keys()):
        text = "access keys in plain text: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
        yield "warning", f"storage.storage_options.{name}", f"{text}environment instead"
    for name, time in {
        "reader.preprocess_time": reader.preprocess_time,
        "train.computation_time": workload.train.computation_time,
        "evaluation.eval_time": workload.evaluation.eval_time,
    }.items():
        if time.kind == "normal" and time.stdev > time.mean / 3:
            text = f"stdev {time.stdev:g} is more than a third of the mean {time.mean:g}: negative "
            yield "warning", name, f"{text}draws would be folded by abs() in DLIO, and are 0 here"


def _check_checkpoints(workload: DlioWorkload) -> Iterator[Finding]:
    model, checkpoint = workload.model, workload.checkpoint
    parallelism, is_subset = model.parallelism, checkpoint.mode == "subset"
    stages, heads = parallelism.pipeline, model.transformer.num_attention_heads
    hidden = model.transformer.hidden_size
    if parallelism.zero_stage == 3 and stages > 1:
        text = f"3 excludes model.parallelism.pipeline > 1, which is {stages}"
        yield "error", "model.parallelism.zero_stage", text
    if 0 < model.num_layers < stages:
        text = f"{model.num_layers} layers for model.parallelism.pipeline {stages}"
        yield "error", "model.num_layers", f"{text}: a stage needs one"
    if model.type == "transformer" and hidden % heads:
        text = f"{hidden}/{heads} is not an integer, head size {hidden // heads} is used"
        yield "warning", "model.transformer.num_attention_heads", text
    if is_subset and parallelism.data < 1:
        text = "subset needs model.parallelism.data=N: these ranks are the first of a whole job of "
        yield "error", "checkpoint.mode", f"{text}N x {parallelism.tensor * stages}"
    if not is_subset and parallelism.data > 0:
        text = "only for checkpoint.mode subset: leave it out, it follows from the ranks"
        yield "error", "model.parallelism.data", text
    writes, reads = checkpoint.num_checkpoints_write, checkpoint.num_checkpoints_read
    if 0 < writes < reads:
        text = f"{reads} to read, but checkpoint.num_checkpoints_write is {writes}"
        yield "error", "checkpoint.num_checkpoints_read", text
    if checkpoint.ksm is not None and checkpoint.randomize_tensor:
        text = "random pages are never alike: write false, or leave checkpoint.ksm out"
        yield "error", "checkpoint.randomize_tensor", text
