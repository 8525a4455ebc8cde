"""Shards of rows that an engine hands out: parts that many write, committed once.

    table of columns -> samples -> part in a hidden folder beside the destination -> read back
        -> commit: final names in the order of the writers, manifest -> one rename of the folder

Each attempt to write a part gives it a name of its own, so that attempts that are repeated, or run
twice at once, never meet: the commit takes the parts that it is told of and no others, and there is
no destination before. The module knows no engine: it is given columns of numpy values.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_choice, check_whole
from ..engine.atomic_file import AtomicFile, storage_errors, sync_folder
from ..errors import LimitError, UsageError
from ..index.fields import RESERVED, Field
from . import containers
from .conversion import choose_name, fill_shard
from .encoding import (
    EncodingRecipe,
    Sample,
    StoredSample,
    clean_extension,
    make_records_recipe,
    make_tar_recipe,
    make_tfrecord_recipe,
)
from .manifest import ConversionManifest, Converted, check_destination

Columns = Mapping[str, npt.NDArray[Any]]
"""Rows of a table: an array for each column, of objects where rows are bytes, text or differ in
shape."""
RowContainer = Literal["tar", "tfrecord", "records"]

_BYTES = np.dtype(np.uint8)
_CAST = "cast, fill or drop it before (map_batches, drop_columns)"


class Column(NamedTuple):
    """Type of a column's rows: "bytes", "text" or a dtype of numbers, and their shape: () for a
    number, None where it is not part of the type."""

    name: str
    kind: str
    shape: tuple[int, ...] | None

    @property
    def is_array(self) -> bool:
        return self.kind not in ("bytes", "text")

    def __str__(self) -> str:
        if not self.is_array:
            return f"{self.name} ({self.kind})"
        shape = "arrays of " if self.shape is None else f"{self.shape} " if self.shape else ""
        return f"{self.name} ({shape}{np.dtype(self.kind).name})"


class RowParts(NamedTuple):
    """Parts of one writer: the columns of its rows, and an entry of the manifest for each part."""

    number: int
    columns: tuple[Column, ...]
    entries: list[dict[str, Any]]


class RowShards:
    """Shards that many write below `path`, in `folder` until they are committed.

    Arguments are as those of `convert`. Writers get copies of this. Each calls `write` once,
    however often it is repeated; one process calls `begin` before, and `commit` or `discard` after.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        to: RowContainer,
        shard_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        self.path, self.to = check_destination("path", path), to
        check_choice("to", to, ("tar", "tfrecord", "records"))
        size = limits.shard_bytes_default if shard_bytes is None else shard_bytes
        _check_free(self.path)
        parent, last = os.path.split(self.path)
        self.folder = os.path.join(parent, f".{last}.{secrets.token_hex(8)}.part")
        self.shard_bytes = check_whole("shard_bytes", size)
        self.name = choose_name(name, self.path)

    def begin(self) -> None:
        """Make the hidden folder of the parts."""
        with storage_errors(self.folder):
            os.makedirs(self.folder, exist_ok=True)

    def write(self, number: int, tables: Iterable[Columns]) -> RowParts | None:
        """Write the rows of the writer with this number as parts; None if there are no rows."""
        if not os.path.isdir(self.folder):
            where = f"{os.path.dirname(self.folder)} on {socket.gethostname()} is not the driver's"
            raise UsageError(f"{where}, or the write has ended: write below a shared folder")
        filled = (table for table in tables if len(next(iter(table.values()), ())))
        first = next(filled, None)
        if first is None:
            return None
        columns = describe_columns(first, self.to)
        recipe = choose_row_recipe(columns, self.to)
        samples = self._store_rows(recipe, columns, itertools.chain([first], filled), number)
        sample, attempt = next(samples, None), secrets.token_hex(8)
        entries: list[dict[str, Any]] = []
        while sample is not None:
            part = f"{number}-{attempt}-{len(entries)}"
            with AtomicFile(os.path.join(self.folder, part)) as file:
                size = self.shard_bytes
                sample, count = fill_shard(recipe, file, sample, samples, bytes_max=size)
                file.commit(durable=False)
            entries.append({"name": part, "end": count, "bytes": file.size, "crc32": file.crc32})
        return RowParts(number, columns, entries)

    def _store_rows(
        self,
        recipe: EncodingRecipe,
        columns: tuple[Column, ...],
        tables: Iterable[Columns],
        number: int,
    ) -> Iterator[StoredSample]:
        label, written = divide_columns(columns)
        position, key = 0, None
        for table in tables:
            _check_same(columns, describe_columns(table, self.to), f"blocks of task {number}")
            names = table.get("__key__", table.get("__id__"))
            labels = itertools.repeat(None) if label is None else table[label.name].tolist()
            rows = zip(*(table[column.name] for column in written), strict=True)
            for row, (values, label_value) in enumerate(zip(rows, labels, strict=False)):
                name = f"{number:06d}_{position:08d}" if names is None else _read_name(names[row])
                made = tuple(_read_value(value) for value in values)
                sample = recipe.store_sample(Sample(position, position, name, made, label_value))
                if recipe.has_keys and sample.key in ("", key):
                    what = f"__key__ {name!r} of row {position:,} of task {number}"
                    raise UsageError(f"{what} is empty, or of the row before: make it unique")
                key = sample.key
                yield sample
                position += 1

    def commit(self, written: Iterable[RowParts | None]) -> Converted:
        """Give the parts their names, in the order of the writers' numbers; all at once."""
        writers = sorted((parts for parts in written if parts is not None), key=lambda w: w.number)
        if not writers:
            raise UsageError(f"there are no rows to write to {self.path}: {self.path} is not made")
        columns = writers[0].columns
        for parts in writers:
            where = f"blocks of tasks {writers[0].number} and {parts.number}"
            _check_same(columns, parts.columns, where)
        recipe = choose_row_recipe(columns, self.to)
        made = os.path.join(self.folder, "shards")
        entries: list[dict[str, Any]] = []
        end = 0
        with storage_errors(self.path):
            os.mkdir(made)
            for entry in itertools.chain.from_iterable(parts.entries for parts in writers):
                if len(entries) >= limits.shards_max:
                    what = f"limits.shards_max, {limits.shards_max:,}, is reached"
                    raise LimitError(f"{what}: write larger blocks, or a larger shard_bytes")
                name = f"{self.name}-{len(entries):06d}{recipe.suffix}"
                os.rename(os.path.join(self.folder, entry["name"]), os.path.join(made, name))
                first, end = end, end + entry["end"]
                entries.append({**entry, "name": name, "first": first, "end": end})
        source = {"path": "rows", "format": "rows", "fingerprint": "", "stamp": "", "samples": end}
        options = {"to": self.to, "shard_bytes": self.shard_bytes, "name": self.name}
        ConversionManifest(source, options, entries, complete=True).save(made)
        with storage_errors(self.path):
            _check_free(self.path)
            os.rename(made, self.path)
        sync_folder(os.path.dirname(self.path))
        self.discard()
        files = tuple(os.path.join(self.path, entry["name"]) for entry in entries)
        sizes = sum(entry["bytes"] for entry in entries)
        return Converted(self.path, files, end, sizes, dict(recipe.user_options), None, end)

    def discard(self) -> None:
        """Remove the hidden folder with what is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _check_free(path: str) -> None:
    """Check that a folder may get this name: nothing has it, or an empty folder."""
    is_folder = os.path.isdir(path) and not os.path.islink(path)
    if os.path.lexists(path) and not (is_folder and not os.listdir(path)):
        raise UsageError(f"path is {path!r}, and something is there: remove it, or name another")


# -- columns ---------------------------------------------------------------------------------------


def describe_columns(columns: Columns, to: RowContainer) -> tuple[Column, ...]:
    """Describe the columns of a table; UsageError for what the container cannot hold."""
    described = tuple(
        _describe_column(name, values, to)
        for name, values in columns.items()
        if name not in RESERVED
    )
    names = ", ".join(column.name for column in described) or "none"
    if to == "records" and len(described) != 1:
        raise UsageError(f"records hold one column, and there are {names}: select_columns one")
    if not divide_columns(described)[1]:
        raise UsageError(f"columns are {names}: a sample is more than its name and label")
    return described


def _describe_column(name: str, values: npt.NDArray[Any], to: RowContainer) -> Column:
    is_of_objects = values.dtype == object
    rows = values if is_of_objects else values[:1]
    kinds = {getattr(row, "dtype", type(row)) for row in rows}
    kind = next(iter(kinds))
    texts: dict[Any, str] = {bytes: "bytes", str: "text"}
    if len(kinds) > 1 or (kind not in texts and getattr(kind, "kind", "") not in tuple("biufc")):
        shown = ", ".join(sorted(getattr(one, "__name__", str(one)) for one in kinds))
        what = f"column {name!r} holds {shown}, and {to} bytes, text and numbers"
        raise UsageError(f"{what}: {_CAST}")
    if to != "records":
        shape = () if not is_of_objects and values.ndim == 1 else None
        return Column(name, texts.get(kind) or kind.str, shape)
    shapes = {_read_value(row).shape for row in rows}
    if len(shapes) > 1:
        what = f"column {name!r} has rows of different sizes, and records have one"
        raise UsageError(f"{what}: write tar or tfrecord")
    return Column(name, "|u1" if kind in texts else kind.str, shapes.pop())


def _read_name(value: Any) -> str:
    """Return the name of a row: a text, bytes or a number."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return f"{value:08d}" if isinstance(value, int | np.integer) else str(value)


def _read_value(value: Any) -> Any:
    """Return a value as a recipe takes it: bytes, or an array."""
    if isinstance(value, bytes | str):
        return memoryview(value if isinstance(value, bytes) else value.encode())
    return np.asarray(value)


def _check_same(columns: Iterable[Column], others: Iterable[Column], where: str) -> None:
    differing = sorted(map(str, set(columns) ^ set(others)))
    if differing:
        raise UsageError(f"{where} differ in columns: {', '.join(differing[:4])}: {_CAST}")


def divide_columns(columns: Sequence[Column]) -> tuple[Column | None, list[Column]]:
    """Find the column that is the label, "label" or "cls" of whole numbers, and those that are
    written as fields."""
    whole = {
        one.name: one for one in columns if one.shape == () and one.is_array and one.kind[1] in "iu"
    }
    label = whole.get("label", whole.get("cls"))
    return label, [column for column in columns if column is not label]


def choose_row_recipe(columns: Sequence[Column], to: RowContainer) -> EncodingRecipe:
    """Return the recipe for rows with these columns."""
    label, written = divide_columns(columns)
    if to == "records":
        (only,) = columns
        return make_records_recipe(Field(only.name, np.dtype(only.kind), only.shape), None, False)
    fields = tuple(
        Field(one.name, np.dtype(one.kind), ()) if one.is_array else Field(one.name, _BYTES, None)
        for one in written
    )
    if to == "tfrecord":
        return make_tfrecord_recipe(fields, lambda sample: sample.name, label is not None)
    names = [_choose_extension(column) for column in written]
    members = names if label is None else [*names, "cls"]
    if len(set(members)) < len(members):
        raise UsageError(f"columns would share the extensions {', '.join(members)}: rename_columns")
    return make_tar_recipe(
        fields, names, lambda sample: containers.make_safe_key(sample.name), label is not None
    )


def _choose_extension(column: Column) -> str:
    """Choose the extension of a column in tar: its name if that is one; or after it."""
    name = clean_extension(column.name)
    ending = {"bytes": "bin", "text": "txt"}.get(column.kind, "npy")
    last = name.rpartition(".")[2]
    is_one = last == "npy" if column.is_array else last in containers.EXTENSIONS
    return name if is_one else f"{name}.{ending}"
