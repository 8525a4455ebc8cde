"""The keys of a workload: DLIO's, those of its version 3, and ours, as one table. Pure.

What a key means is said in docs/bench.md. Defaults are those of `workload.Workload`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from .workload import Workload

Kind = Literal[
    "text",
    "path",
    "texts",
    "boolean",
    "integer",
    "integers",
    "number",
    "choice",
    "distribution",
    "deviation",
    "columns",
]
"""What a value is; `values` reads and writes each. path: text, without slashes at its end.
deviation: of the distribution beside it."""


class Key(NamedTuple):
    """A key of a workload, and what its value may be.

    name:     in files, with its sections.
    field:    in `Workload`, where it is another.
    allowed:  of a choice.
    least, most: of numbers, and of each of several.
    default:  what holds if it is not given.
    unset:    what files write for the default where that is no number of its kind.
    dead:     DLIO reads it and does nothing with it; what to use instead, or "".
    secret:   never written anywhere.
    """

    name: str
    kind: Kind
    allowed: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    default: Any = None
    unset: int | None = None
    field: str = ""
    dead: str | None = None
    secret: bool = False


ELEMENTS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""Types of elements, by NumPy's names."""

COMPRESSIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "npz": ("none", "zip"),
        "hdf5": ("none", "gzip", "lzf"),
        "csv": ("none", "gzip", "bz2", "xz"),
        "parquet": ("none", "snappy", "gzip", "lz4", "zstd"),
    }
)
"""What each format can be compressed by; others not at all."""

FORMATS = (
    *("tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png"),
    *("indexed_binary", "mmap_indexed_binary", "synthetic"),
    *("parquet", "tar", "lmdb"),
)

DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "normal": ("mean", "stdev"),
        "uniform": ("min", "max"),
        "gamma": ("shape", "scale"),
        "exponential": ("scale",),
        "poisson": ("lam",),
    }
)
"""Parameters of each, by the names and in the order of files; in that of `Distribution`, too."""

COLUMN = ("name", "dtype", "size", "read", "count")
"""Keys of a column of Parquet. count: so many alike, `name` numbered from 0. That one is ours."""

ALIASES: Mapping[str, str] = MappingProxyType({"data_reader": "reader"})
"""Sections by another name. DLIO heeds the other name where both are given."""

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "dataset.record_length": "dataset.record_length_bytes",
        "dataset.record_length_stdev": "dataset.record_length_bytes_stdev",
        "dataset.record_length_resize": "dataset.record_length_bytes_resize",
    }
)
"""Keys by their old names."""

_SHUFFLES = ("off", "seed", "random")
_TENSORS = ("int8", "uint8", "fp16", "bf16", "fp32", "fp64")


def _section(section: str, *keys: Key) -> list[Key]:
    return [key._replace(name=f"{section}.{key.name}") for key in keys]


_TABLE: tuple[Key, ...] = (
    Key("framework", "choice", ("tensorflow", "pytorch")),
    *_section(
        "model",
        Key("name", "text"),
        Key("type", "text"),
        Key("model_size_bytes", "integer", least=0),
        Key("model_size", "integer", dead="model.model_size_bytes"),
        Key("model_datatype", "choice", _TENSORS),
        Key("optimizer_datatype", "choice", _TENSORS),
        Key("num_layers", "integer", least=-1),
        Key("optimization_groups", "integers", least=1),
        Key("layer_parameters", "integers", least=1),
        Key("parallelism.tensor", "integer", least=1),
        Key("parallelism.pipeline", "integer", least=1),
        Key("parallelism.data", "integer", least=-1),
        Key("parallelism.zero_stage", "integer", least=0, most=3),
        Key("transformer.vocab_size", "integer", least=1),
        Key("transformer.hidden_size", "integer", least=1),
        Key("transformer.ffn_hidden_size", "integer", least=1),
        Key("transformer.num_attention_heads", "integer", least=1),
        Key("transformer.num_kv_heads", "integer", least=1),
    ),
    *_section(
        "workflow",
        Key("generate_data", "boolean"),
        Key("train", "boolean"),
        Key("evaluation", "boolean"),
        Key("checkpoint", "boolean"),
        Key("profiling", "boolean"),
        Key("debug", "boolean", dead=""),
        Key("query", "text", dead=""),
    ),
    *_section(
        "storage",
        Key("storage_type", "choice", ("local_fs", "s3", "aistore", "parallel_fs")),
        Key("storage_root", "text"),
        Key("storage_library", "choice", ("s3torchconnector", "s3dlio", "minio")),
        Key("storage_options.access_key_id", "text", secret=True),
        Key("storage_options.secret_access_key", "text", secret=True),
        Key("storage_options.endpoint_url", "text"),
        Key("storage_options.region", "text", default="us-east-1"),
        Key("storage_options.s3_force_path_style", "boolean", default=False),
        Key("storage_options.s3_max_attempts", "integer", least=1, default=5),
        Key("storage_options.prefetch_window", "integer", least=0),
        Key("storage_options.simulate_io", "boolean", default=False),
    ),
    *_section(
        "dataset",
        Key("record_length_bytes", "number", least=1),
        Key("record_length_bytes_stdev", "number", least=0),
        Key("record_length_bytes_resize", "number", least=0),
        Key("record_dims", "integers", least=1),
        Key("record_element_type", "choice", ELEMENTS),
        Key("record_element_bytes", "integer", dead="dataset.record_element_type"),
        Key("num_files_train", "integer", least=1),
        Key("num_files_eval", "integer", least=0),
        Key("num_samples_per_file", "integer", least=1),
        Key("data_folder", "path"),
        Key("num_subfolders_train", "integer", least=0),
        Key("num_subfolders_eval", "integer", least=0),
        Key("file_prefix", "text"),
        Key("format", "choice", FORMATS),
        Key(
            "compression",
            "choice",
            ("none", "gzip", "lzf", "bz2", "zip", "xz", "snappy", "lz4", "zstd"),
        ),
        Key("compression_level", "integer", least=0, most=9),
        Key("enable_chunking", "boolean", dead="dataset.hdf5.chunk_dims"),
        Key("chunk_size", "integer", dead="dataset.hdf5.chunk_dims"),
        Key("hdf5.num_dset_per_record", "integer", least=1),
        Key("hdf5.chunk_dims", "integers", least=1),
        Key("hdf5.max_shape", "integers", least=1),
        Key("parquet.row_group_size", "integer", least=1),
        Key("parquet.read_mode", "choice", ("default", "row_group")),
        Key("parquet.columns", "columns"),
        Key("generation_buffer_size", "integer", least=1),
        Key("keep_files", "boolean"),
        Key("skip_listing", "boolean"),
    ),
    *_section(
        "reader",
        Key(
            "data_loader",
            "choice",
            ("tensorflow", "pytorch", "dali", "native_dali", "custom", "none", "synthetic"),
        ),
        Key("batch_size", "integer", least=1),
        Key("batch_size_eval", "integer", least=1),
        Key("read_threads", "integer", least=0),
        Key("prefetch_size", "integer", least=0),
        Key("computation_threads", "integer", least=0),
        Key("transfer_size", "integer", least=1),
        Key("file_shuffle", "choice", _SHUFFLES),
        Key("sample_shuffle", "choice", _SHUFFLES),
        Key("shuffle_size", "integer", least=0),
        Key("read_type", "choice", ("on_demand", "memory")),
        Key("file_access", "choice", dead=""),
        Key("preprocess_time", "distribution"),
        Key("preprocess_time_stdev", "deviation", least=0),
        Key("dont_use_mmap", "boolean"),
        Key("pin_memory", "boolean"),
        Key("multiprocessing_context", "choice", ("fork", "spawn", "forkserver")),
        Key("odirect", "boolean"),
        Key("transformed_record_dims", "integers", least=1),
        Key("transformed_record_element_type", "choice", ELEMENTS),
        Key("data_loader_classname", "text"),
        Key("reader_classname", "text"),
        Key("data_loader_sampler", "choice", ("iterative", "index", "none")),
    ),
    *_section(
        "train",
        Key("epochs", "integer", least=1),
        Key("total_training_steps", "integer", least=1, unset=-1),
        Key("computation_time", "distribution"),
        Key("computation_time_stdev", "deviation", least=0),
        Key("seed", "integer", least=0, most=2**32 - 1),
        Key("seed_change_epoch", "boolean"),
    ),
    *_section(
        "evaluation",
        Key("eval_time", "distribution"),
        Key("eval_time_stdev", "deviation", least=0),
        Key("eval_after_epoch", "integer", least=1),
        Key("epochs_between_evals", "integer", least=1),
    ),
    *_section(
        "checkpoint",
        Key("checkpoint_folder", "path"),
        Key("checkpoint_after_epoch", "integer", least=1),
        Key("epochs_between_checkpoints", "integer", least=1),
        Key("steps_between_checkpoints", "integer", least=1, unset=-1),
        Key("type", "choice", dead=""),
        Key("mode", "choice", ("default", "subset")),
        Key("fsync", "boolean"),
        Key("recovery_rank_shift", "boolean"),
        Key("rank_sync", "boolean"),
        Key("num_checkpoints_write", "integer", least=0, unset=-1),
        Key("num_checkpoints_read", "integer", least=0, unset=-1),
        # Below 0 is nothing; DLIO would sleep as long forward.
        Key("time_between_checkpoints", "number"),
        Key("randomize_tensor", "boolean"),
        Key("checkpoint_mechanism_classname", "text"),
        Key("ksm.madv_mergeable_id", "integer", least=0, default=12),
        Key("ksm.high_ram_trigger", "number", least=0, most=100, default=30.0),
        Key("ksm.low_ram_exit", "number", least=0, most=100, default=15.0),
        Key("ksm.await_time", "number", least=0, default=200),
    ),
    *_section(
        "output",
        Key("folder", "text"),
        Key("log_file", "text"),
        Key(
            "metric.exclude_start_steps",
            "integer",
            least=0,
            field="output.exclude_start_steps",
        ),
        Key("metric.exclude_end_steps", "integer", least=0, field="output.exclude_end_steps"),
    ),
    *_section(
        "profiling",
        Key("profiler", "choice", ("none", "iostat", "darshan", "tensorboard")),
        Key("iostat_devices", "texts"),
    ),
    Key("metric.au", "number", least=0, most=1, field="au"),
)


MAPPINGS = frozenset({"storage.storage_options", "checkpoint.ksm"})
"""Sections that a workload holds as they were given: whether they were matters."""


def value_of(workload: Workload, key: Key) -> Any:
    """What the workload holds for a key that it has a field for."""
    value: Any = workload
    for name in (key.field or key.name).split("."):
        value = getattr(value, name)
    return value


def _defaults(keys: Iterable[Key]) -> Iterable[Key]:
    workload = Workload()
    for key in keys:
        section = key.name.rpartition(".")[0]
        is_field = key.dead is None and key.kind != "deviation" and section not in MAPPINGS
        yield key._replace(default=value_of(workload, key)) if is_field else key


KEYS: Mapping[str, Key] = MappingProxyType({key.name: key for key in _defaults(_TABLE)})
"""Every key, by its name, in the order in which workloads are written."""

FIELDS: tuple[Key, ...] = tuple(
    key
    for key in KEYS.values()
    if key.dead is None and key.kind != "deviation" and key.name.rpartition(".")[0] not in MAPPINGS
)
"""Those that a workload has a field of its own for."""

SECTIONS = frozenset(
    name[:end] for name in KEYS for end, letter in enumerate(name) if letter == "."
)
"""All sections, by their whole names."""


SECRETS = frozenset(name.rpartition(".")[2] for name, key in KEYS.items() if key.secret)
"""Last names of keys whose values are written nowhere."""


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word that was probably meant: the same letters but for `_`, or at most two edits away."""
    bare = word.replace("_", "").lower()
    found = min(
        (
            (0 if each.replace("_", "").lower() == bare else _edits(word.lower(), each), each)
            for each in words
        ),
        default=(math.inf, ""),
    )
    return found[1] if found[0] <= 2 and found[0] < max(len(word) - 1, 1) else None


def _edits(one: str, other: str) -> int:
    """Letters to insert, leave out or exchange (Levenshtein's distance); 3 stands for more."""
    if abs(len(one) - len(other)) > 2:
        return 3
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        above, row[0] = row[0], number
        for column, each in enumerate(other, 1):
            above, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, above + (letter != each)),
            )
    return min(row[-1], 3)


def meant(name: str) -> str | None:
    """The key that an unknown one probably is: sought in its own section first, then in all."""
    section, _, last = name.rpartition(".")
    beside = [each for each in KEYS if each.rpartition(".")[0] == section]
    found = nearest(last, [each.rpartition(".")[2] for each in beside])
    if found is not None:
        return f"{section}.{found}" if section else found
    return nearest(name, (*KEYS, *SECTIONS))


def sections_of(last: str) -> list[str]:
    """The sections that have a key or a section of this last name."""
    parts = [name.rpartition(".") for name in (*KEYS, *sorted(SECTIONS))]
    return [section for section, _, each in parts if section and each == last]
