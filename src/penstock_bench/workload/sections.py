"""A workload as values: the sections of DLIO's YAML files, by DLIO's names, and what each may hold.
Pure.

Sizes are bytes, times are seconds, counts are one rank's unless said. A rank is an emulated
accelerator. Only `workload_file` reads files and overrides into these values; docs/bench.md
explains keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np

from penstock.errors import missing_library

try:
    from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, Strict
    from typing_extensions import TypedDict
except ModuleNotFoundError:
    raise missing_library("pydantic", "bench", "a workload") from None

from .distribution import Distribution, Seconds

COMPRESSIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "npz": ("none", "zip"),
        "hdf5": ("none", "gzip", "lzf"),
        "csv": ("none", "gzip", "bz2", "xz"),
        "parquet": ("none", "snappy", "gzip", "lz4", "zstd"),
    }
)
"""Compressions of each format; a format that is not here has none."""

# -- kinds of values -------------------------------------------------------------------------------


def _refuse_interpolation(text: str) -> str:
    if "${" in text:
        raise ValueError(f"interpolations ({text}) are not read: write the value out")
    return text


def _write_number(value: float) -> float:
    """Write a whole number as an integer, as DLIO's files do."""
    return int(value) if value == int(value) and abs(value) < 2**53 else value


NO_TIME = Distribution.constant(0.0)
_KNOWN_KEYS_ONLY = ConfigDict(extra="forbid")


class Section:
    """A mapping of a workload, in which each key is known."""

    __slots__ = ()
    __pydantic_config__ = _KNOWN_KEYS_ONLY


Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), AfterValidator(_refuse_interpolation)]
Folder = Annotated[Text, AfterValidator(lambda path: path.rstrip("/") or "/")]
Texts = Annotated[
    tuple[Text, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
Positive = Annotated[int, Strict(), Field(ge=1)]
NonNegative = Annotated[int, Strict(), Field(ge=0)]
Dimensions = tuple[Positive, ...]
AtLeastMinusOne = Annotated[int, Strict(), Field(ge=-1)]
Number = Annotated[
    float, Strict(), Field(allow_inf_nan=False), PlainSerializer(_write_number, when_used="json")
]
Percentage = Annotated[Number, Field(ge=0, le=100)]
Limit = Annotated[
    Positive | None,
    BeforeValidator(lambda value: None if value == -1 else value),
    PlainSerializer(lambda value: -1 if value is None else value, when_used="json"),
]
"""A limit, or None for no limit (-1 in files)."""

CheckpointCount = Annotated[NonNegative, BeforeValidator(lambda value: 0 if value == -1 else value)]
Shuffle = Annotated[
    Literal["off", "seed", "random"],
    # YAML reads a bare `off` as false.
    BeforeValidator(lambda value: "off" if value is False else value),
]
Tensor = Literal["int8", "uint8", "fp16", "bf16", "fp32", "fp64"]
# fmt: off
Element = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]
Format = Literal[
    "tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png", "indexed_binary",
    "mmap_indexed_binary", "synthetic", "parquet", "tar", "lmdb",
]
Compression = Literal["none", "gzip", "lzf", "bz2", "zip", "xz", "snappy", "lz4", "zstd"]
DataLoaderName = Literal[
    "tensorflow", "pytorch", "dali", "native_dali", "custom", "none", "synthetic",
]
# fmt: on

# -- sections --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism(Section):
    """Division of a model among tensor x pipeline x data ranks. data: -1 takes the ranks that the
    other two leave."""

    tensor: Positive = 1
    pipeline: Positive = 1
    data: AtLeastMinusOne = -1
    zero_stage: Annotated[int, Strict(), Field(ge=0, le=3)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer(Section):
    """Dimensions of a transformer, from which the sizes of its checkpoints follow."""

    vocab_size: Positive = 32000
    hidden_size: Positive = 2048
    ffn_hidden_size: Positive = 8192
    num_attention_heads: Positive = 32
    num_kv_heads: Positive = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Section):
    """The model in training. All but its name matters to checkpoints alone."""

    name: Text = "default"
    type: Text | None = None
    model_size_bytes: NonNegative = 10240
    model_datatype: Tensor = "fp16"
    optimizer_datatype: Tensor = "fp32"
    num_layers: AtLeastMinusOne = -1
    optimization_groups: Dimensions = ()
    layer_parameters: Dimensions = ()
    parallelism: Parallelism = field(default_factory=Parallelism)
    transformer: Transformer = field(default_factory=Transformer)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSpec(Section):
    """Phases of a run, in this order."""

    generate_data: Flag = False
    train: Flag = True
    evaluation: Flag = False
    checkpoint: Flag = False
    profiling: Flag = False


class StorageOptions(TypedDict, total=False):
    """Options of an object store; a workload holds those that were given."""

    __pydantic_config__ = _KNOWN_KEYS_ONLY  # type: ignore[misc]

    access_key_id: Text | None
    secret_access_key: Text | None
    endpoint_url: Text | None
    region: Text
    s3_force_path_style: Flag
    s3_max_attempts: Positive
    prefetch_window: NonNegative | None
    simulate_io: Flag


SECRETS = frozenset({"access_key_id", "secret_access_key"})
"""Keys of `StorageOptions` whose values are written nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec(Section):
    """The storage above data_folder and checkpoint_folder. storage_library: the library
    by which DLIO reads objects."""

    storage_type: Literal["local_fs", "s3", "aistore", "parallel_fs"] = "local_fs"
    storage_root: Text = "./"
    storage_library: Literal["s3torchconnector", "s3dlio", "minio"] | None = None
    storage_options: StorageOptions = field(default_factory=StorageOptions)

    @property
    def data_root(self) -> str:
        """The storage_root; of objects the URL of the bucket that it names."""
        if self.storage_type != "s3" or "://" in self.storage_root:
            return self.storage_root
        return f"s3://{self.storage_root.strip('/')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Layout(Section):
    """Layout of HDF5 files."""

    num_dset_per_record: Positive = 1
    chunk_dims: Dimensions = ()
    max_shape: Dimensions = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetColumnSpec(Section):
    """A column of a Parquet file.

    size:  values of a row.
    read:  True if training reads it.
    count: in files, the columns that are alike; their names get numbers from 0 on. A workload that
           was read has them one by one, and None here. DLIO has no such key.
    """

    name: Text
    dtype: Element = "float32"
    size: Positive = 1
    read: Flag = True
    count: Annotated[int | None, Strict(), Field(ge=1, le=100_000, exclude=True)] = None


def _name_column(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _number_columns(columns: tuple[ParquetColumnSpec, ...]) -> tuple[ParquetColumnSpec, ...]:
    """Write out the columns that are alike; refuse a name that is given twice."""
    numbered: list[ParquetColumnSpec] = []
    for column in columns:
        if column.count is None:
            numbered.append(column)
        else:
            numbered += [
                replace(column, name=f"{column.name}_{number}", count=None)
                for number in range(column.count)
            ]
    names: set[str] = set()
    for column in numbered:
        if column.name in names:
            raise ValueError(f"the column {column.name!r} is given twice")
        names.add(column.name)
    return tuple(numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetLayout(Section):
    """Layout of Parquet files. Without columns there is one, of bytes. row_group_size: rows."""

    row_group_size: Positive = 1_000_000
    read_mode: Literal["default", "row_group"] = "default"
    columns: Annotated[
        tuple[Annotated[ParquetColumnSpec, BeforeValidator(_name_column)], ...],
        AfterValidator(_number_columns),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec(Section):
    """The section `dataset`.

    record_length_bytes: mean payload of a sample; may be a fraction.
    skip_listing:        the names of files are computed, and not looked up.
    """

    record_length_bytes: Annotated[Number, Field(ge=1)] = 65536
    record_length_bytes_stdev: Annotated[Number, Field(ge=0)] = 0.0
    record_length_bytes_resize: Annotated[Number, Field(ge=0)] = 0.0
    record_dims: Dimensions = ()
    record_element_type: Element = "uint8"
    num_files_train: Positive = 8
    num_files_eval: NonNegative = 0
    num_samples_per_file: Positive = 1
    data_folder: Folder = "./data"
    num_subfolders_train: NonNegative = 0
    num_subfolders_eval: NonNegative = 0
    file_prefix: Text = "img"
    format: Format = "tfrecord"
    compression: Compression = "none"
    compression_level: Annotated[int, Strict(), Field(ge=0, le=9)] = 4
    hdf5: Hdf5Layout = field(default_factory=Hdf5Layout)
    parquet: ParquetLayout = field(default_factory=ParquetLayout)
    generation_buffer_size: Positive = 2 << 30
    keep_files: Flag = True
    skip_listing: Flag = False

    def files(self, part: str) -> int:
        """Files of "train" or "valid"."""
        return self.num_files_train if part == "train" else self.num_files_eval

    def subfolders(self, part: str) -> int:
        """Folders among which the files of "train" or "valid" are divided; 0 if they are flat."""
        count = self.num_subfolders_train if part == "train" else self.num_subfolders_eval
        return count if count > 1 else 0

    def samples(self, part: str) -> int:
        """Samples of "train" or "valid"."""
        return self.files(part) * self.num_samples_per_file

    def sample_bytes(self) -> float:
        """Mean payload of a sample: of record_dims, or of the columns, where these are given."""
        if self.record_dims:
            return math.prod(self.record_dims) * np.dtype(self.record_element_type).itemsize
        if self.format == "parquet" and self.parquet.columns:
            columns = self.parquet.columns
            return sum(column.size * np.dtype(column.dtype).itemsize for column in columns)
        return self.record_length_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSpec(Section):
    """The section `reader`."""

    data_loader: DataLoaderName = "tensorflow"
    batch_size: Positive = 1
    batch_size_eval: Positive = 1
    read_threads: NonNegative = 1
    prefetch_size: NonNegative = 2
    computation_threads: NonNegative = 1
    transfer_size: Positive | None = None
    file_shuffle: Shuffle = "off"
    sample_shuffle: Shuffle = "off"
    shuffle_size: NonNegative = 1024
    read_type: Literal["on_demand", "memory"] = "on_demand"
    preprocess_time: Seconds = NO_TIME
    dont_use_mmap: Flag = False
    pin_memory: Flag = True
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] = "fork"
    odirect: Flag = False
    transformed_record_dims: Dimensions = ()
    transformed_record_element_type: Element = "uint8"
    data_loader_classname: Text | None = None
    reader_classname: Text | None = None
    data_loader_sampler: Literal["iterative", "index", "none"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec(Section):
    """The section `train`. computation_time: of a step. total_training_steps: of the whole run;
    None is no limit."""

    epochs: Positive = 1
    total_training_steps: Limit = None
    computation_time: Seconds = NO_TIME
    seed: Annotated[int, Strict(), Field(ge=0, le=2**32 - 1)] = 123
    seed_change_epoch: Flag = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSpec(Section):
    """The section `evaluation`. eval_time: of a step of evaluation."""

    eval_time: Seconds = NO_TIME
    eval_after_epoch: Positive = 1
    epochs_between_evals: Positive = 1


class SharedPages(TypedDict, total=False):
    """The section `checkpoint.ksm`: merging of equal memory pages; a workload holds the keys that
    were given."""

    __pydantic_config__ = _KNOWN_KEYS_ONLY  # type: ignore[misc]

    madv_mergeable_id: NonNegative
    high_ram_trigger: Percentage
    low_ram_exit: Percentage
    await_time: Annotated[Number, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec(Section):
    """Times at which checkpoints are saved, and how. steps_between_checkpoints: None saves by
    epochs."""

    checkpoint_folder: Folder = "./checkpoints"
    checkpoint_after_epoch: Positive = 1
    epochs_between_checkpoints: Positive = 1
    steps_between_checkpoints: Limit = None
    mode: Literal["default", "subset"] = "default"
    fsync: Flag = False
    recovery_rank_shift: Flag = False
    rank_sync: Flag = False
    num_checkpoints_write: CheckpointCount = 0
    num_checkpoints_read: CheckpointCount = 0
    # Below 0 is no pause; DLIO would sleep as long.
    time_between_checkpoints: Annotated[Number, AfterValidator(lambda value: max(value, 0))] = 0.0
    randomize_tensor: Flag = True
    checkpoint_mechanism_classname: Text | None = None
    ksm: SharedPages | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSteps(Section):
    """The section `output.metric`: steps at the ends of an epoch that are not measured."""

    exclude_start_steps: NonNegative = 1
    exclude_end_steps: NonNegative = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec(Section):
    """Folder of the results, and the steps that are left out of them."""

    folder: Text | None = None
    log_file: Text = "dlio.log"
    metric: SkippedSteps = field(default_factory=SkippedSteps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingSpec(Section):
    """The section `profiling`."""

    profiler: Literal["none", "iostat", "darshan", "tensorboard"] = "none"
    iostat_devices: Texts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal(Section):
    """The section `metric`. au: the utilisation that the workload asks for, a fraction."""

    au: Annotated[Number, Field(ge=0, le=1)] = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class DlioWorkload(Section):
    """A whole workload."""

    framework: Literal["tensorflow", "pytorch"] = "tensorflow"
    model: ModelSpec = field(default_factory=ModelSpec)
    workflow: WorkflowSpec = field(default_factory=WorkflowSpec)
    storage: StorageSpec = field(default_factory=StorageSpec)
    dataset: DatasetSpec = field(default_factory=DatasetSpec)
    reader: ReaderSpec = field(default_factory=ReaderSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    evaluation: EvaluationSpec = field(default_factory=EvaluationSpec)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    output: OutputSpec = field(default_factory=OutputSpec)
    profiling: ProfilingSpec = field(default_factory=ProfilingSpec)
    metric: Goal = field(default_factory=Goal)

    def steps(self, ranks: int) -> int:
        """Steps of a training epoch: whole batches of all ranks."""
        return self.dataset.samples("train") // (self.reader.batch_size * ranks)

    def eval_steps(self, ranks: int) -> int:
        """Steps of an evaluation."""
        return self.dataset.samples("valid") // (self.reader.batch_size_eval * ranks)
