"""A workload as values: what DLIO's YAML files say, by its own names. Pure.

Sizes are bytes, times seconds, counts of one rank unless said. A rank is an emulated accelerator.
`strict` reads files and overrides into these; nothing else makes them from text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .distribution import Distribution

NOTHING = Distribution.constant(0.0)
Switch = Literal["off", "seed", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a model is cut: tensor x pipeline x data ranks. data: -1 is what the ranks leave."""

    tensor: int = 1
    pipeline: int = 1
    data: int = -1
    zero_stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Dimensions of a transformer, of which checkpoint sizes follow."""

    vocab_size: int = 32000
    hidden_size: int = 2048
    ffn_hidden_size: int = 8192
    num_attention_heads: int = 32
    num_kv_heads: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained; all but the name only matters to checkpoints."""

    name: str = "default"
    type: str | None = None
    model_size_bytes: int = 10240
    model_datatype: str = "fp16"
    optimizer_datatype: str = "fp32"
    num_layers: int = -1
    optimization_groups: tuple[int, ...] = ()
    layer_parameters: tuple[int, ...] = ()
    parallelism: Parallelism = field(default_factory=Parallelism)
    transformer: Transformer = field(default_factory=Transformer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """What is done, in this order."""

    generate_data: bool = False
    train: bool = True
    evaluation: bool = False
    checkpoint: bool = False
    profiling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where data_folder and checkpoint_folder lie below. storage_library: by which DLIO reads
    objects."""

    storage_type: str = "local_fs"
    storage_root: str = "./"
    storage_library: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5:
    """Layout of HDF5 files."""

    num_dset_per_record: int = 1
    chunk_dims: tuple[int, ...] = ()
    max_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a Parquet file. size: values of a row. read: whether training wants it."""

    name: str
    dtype: str = "float32"
    size: int = 1
    read: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Parquet:
    """Layout of Parquet files. No columns: one of bytes. row_group_size: rows."""

    row_group_size: int = 1_000_000
    read_mode: Literal["default", "row_group"] = "default"
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The section `dataset`. record_length_bytes: mean of a sample's payload, may be a fraction.
    skip_listing: the names of files are believed, not looked up."""

    record_length_bytes: float = 65536
    record_length_bytes_stdev: float = 0.0
    record_length_bytes_resize: float = 0.0
    record_dims: tuple[int, ...] = ()
    record_element_type: str = "uint8"
    num_files_train: int = 8
    num_files_eval: int = 0
    num_samples_per_file: int = 1
    data_folder: str = "./data"
    num_subfolders_train: int = 0
    num_subfolders_eval: int = 0
    file_prefix: str = "img"
    format: str = "tfrecord"
    compression: str = "none"
    compression_level: int = 4
    hdf5: Hdf5 = field(default_factory=Hdf5)
    parquet: Parquet = field(default_factory=Parquet)
    skip_listing: bool = False
    generation_buffer_size: int = 2 << 30
    keep_files: bool = True

    def files(self, part: str) -> int:
        """Files of "train" or "valid"."""
        return self.num_files_train if part == "train" else self.num_files_eval

    def subfolders(self, part: str) -> int:
        """Folders that the files of "train" or "valid" are dealt to; 0 and 1 are none."""
        asked = self.num_subfolders_train if part == "train" else self.num_subfolders_eval
        return asked if asked > 1 else 0

    def samples(self, part: str) -> int:
        """Samples of "train" or "valid"."""
        return self.files(part) * self.num_samples_per_file

    def sample_bytes(self) -> float:
        """Mean payload of a sample: of record_dims, or of the columns, where these are given."""
        if self.record_dims:
            return math.prod(self.record_dims) * np.dtype(self.record_element_type).itemsize
        if self.format == "parquet" and self.parquet.columns:
            return sum(each.size * np.dtype(each.dtype).itemsize for each in self.parquet.columns)
        return self.record_length_bytes

    def nominal_bytes(self, part: str) -> float:
        """Payload of "train" or "valid"."""
        return self.samples(part) * self.sample_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The section `reader`."""

    data_loader: str = "tensorflow"
    batch_size: int = 1
    batch_size_eval: int = 1
    read_threads: int = 1
    prefetch_size: int = 2
    computation_threads: int = 1
    transfer_size: int | None = None
    file_shuffle: Switch = "off"
    sample_shuffle: Switch = "off"
    shuffle_size: int = 1024
    read_type: Literal["on_demand", "memory"] = "on_demand"
    preprocess_time: Distribution = NOTHING
    dont_use_mmap: bool = False
    pin_memory: bool = True
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] = "fork"
    odirect: bool = False
    transformed_record_dims: tuple[int, ...] = ()
    transformed_record_element_type: str = "uint8"
    data_loader_classname: str | None = None
    reader_classname: str | None = None
    data_loader_sampler: Literal["iterative", "index", "none"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """computation_time: of a step. total_training_steps: of the whole run; None is no limit."""

    epochs: int = 1
    total_training_steps: int | None = None
    computation_time: Distribution = NOTHING
    seed: int = 123
    seed_change_epoch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """eval_time: of a step of evaluation."""

    eval_time: Distribution = NOTHING
    eval_after_epoch: int = 1
    epochs_between_evals: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When checkpoints are taken, and how. None and 0 steps are "by epochs"."""

    checkpoint_folder: str = "./checkpoints"
    checkpoint_after_epoch: int = 1
    epochs_between_checkpoints: int = 1
    steps_between_checkpoints: int | None = None
    mode: Literal["default", "subset"] = "default"
    fsync: bool = False
    recovery_rank_shift: bool = False
    rank_sync: bool = False
    num_checkpoints_write: int = 0
    num_checkpoints_read: int = 0
    time_between_checkpoints: float = 0.0
    randomize_tensor: bool = True
    checkpoint_mechanism_classname: str | None = None
    ksm: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where results go; steps at the ends of an epoch that are not measured."""

    folder: str | None = None
    log_file: str = "dlio.log"
    exclude_start_steps: int = 1
    exclude_end_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """The section `profiling`."""

    profiler: str = "none"
    iostat_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All of it. au: the utilisation that is asked for, a fraction."""

    framework: str = "tensorflow"
    model: Model = field(default_factory=Model)
    workflow: Workflow = field(default_factory=Workflow)
    storage: Storage = field(default_factory=Storage)
    dataset: Data = field(default_factory=Data)
    reader: Reading = field(default_factory=Reading)
    train: Train = field(default_factory=Train)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    output: Output = field(default_factory=Output)
    profiling: Profiling = field(default_factory=Profiling)
    au: float = 0.90

    def steps(self, ranks: int) -> int:
        """Steps of a training epoch: whole batches of all ranks."""
        return self.dataset.samples("train") // (self.reader.batch_size * ranks)

    def eval_steps(self, ranks: int) -> int:
        """Steps of an evaluation."""
        return self.dataset.samples("valid") // (self.reader.batch_size_eval * ranks)
