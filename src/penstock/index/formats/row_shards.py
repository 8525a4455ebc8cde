"""Folders of shards that an index.json lists, as MDS and LitData write them.

A shard begins with a table of where its samples begin. A sample has the sizes of its variable
columns first, then all values. Only unknown values are read: nothing at all if one column varies,
the sizes if several do, and the label if there is one.

Of MDS, columns are fields: numbers and arrays of fixed shape with their dtype, all others (text,
JPEG, JSON, pickles, arrays of varying shape) as the bytes as stored, not decoded.

fields, label:  see `penstock.index.formats.options`.

A split is a sub-folder with an index of its own: open it. Compressed shards can be read after they
are unpacked beside the compressed files. Hashes are not checked.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.store import Store, StoreFile
from ...errors import FormatError, MissingError
from ...extent import Files, Int, joined, unseen
from ..fields import Field
from ..layout import Fixed, RowTable
from ..table import Index
from . import options
from .shards import Columns, Scan, check_below, check_inside, lay_out_extents, number_first
from .splits import build_error

NAME = "index.json"
_HEAD_BYTES = 4096
_BYTES_MAX = 1 << 30
_LOOKED_AT = 8
_SLAB_BYTES = 8 << 20
"""Maximum number of bytes of one read."""
_SMALL_BYTES = 64 << 10
"""Samples smaller than this on average are read whole: cheaper than many small reads."""
_SIZE_BYTES = 4

Bytes = npt.NDArray[np.uint8]


# -- the list --------------------------------------------------------------------------------------


def is_manifest(store: Store, *words: bytes) -> bool:
    """True if the root has an index.json that holds these words near its beginning."""
    if store.probe(unseen(store.root, [NAME]))[1].any():
        return False
    head = store.read(NAME, 0, _HEAD_BYTES)
    return all(word in head for word in words)


def has_shards(store: Store, shard: re.Pattern[str]) -> bool:
    """True if some files below the root have names of shards."""
    return any(shard.fullmatch(os.path.basename(name)) for name in store.some(_LOOKED_AT))


@dataclass(frozen=True)
class Manifest:
    """Content of an index.json."""

    store: Store
    path: str
    files: Files
    value: Mapping[str, Any]

    @classmethod
    def read(cls, store: Store, what: str, shard: re.Pattern[str]) -> Manifest:
        """Read the index.json of the store's root; FormatError if there is none."""
        files, errors = store.probe(unseen(store.root, [NAME]))
        path = files.path(0)
        if errors[0]:
            lists = store.match(f"*/{NAME}") if has_shards(store, shard) else []
            if lists:
                raise build_error(store.root, map(os.path.dirname, lists))
            lacks = f"{store.root} has no {NAME}, which {what} come with"
            raise FormatError(f"{lacks}: open the folder that has it")
        if int(files.size[0]) > _BYTES_MAX:
            raise FormatError(f"{path} has {files.size[0]:,} bytes, more than any list of files")
        try:
            value = json.loads(store.read(NAME, 0, int(files.size[0])))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path} is no JSON ({error}): fetch it again") from None
        return cls(store, path, files, value)

    def flaw(self, message: str) -> FormatError:
        """Make the error for a flaw in the file."""
        return FormatError(f"{self.path}: {message}")

    @contextlib.contextmanager
    def parsing(self) -> Iterator[None]:
        """Turn the errors of entries that are missing, or of other types, into FormatError."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FormatError):
                raise
            raise self.flaw(f"an entry is malformed ({error!r}): fetch it again") from None

    def check_count(self, count: Any) -> int:
        """Return a number that is not negative."""
        if type(count) is not int or not 0 <= count < limits.order_count_max:
            raise self.flaw(f"{count!r} is not a number from 0 on")
        return count

    def check_names(self, names: Sequence[str]) -> list[str]:
        """Return names of files below the root; no file twice, and no link out of the root."""
        checked = [check_below(f"{self.path}: ", name) for name in names]
        if len(set(checked)) < len(checked):
            twice = next(name for name in checked if checked.count(name) > 1)
            raise self.flaw(f"it names {twice!r} twice")
        check_inside(self.store, f"{self.path}: ", checked)
        return checked

    def sources(self, files: Files) -> Files:
        """Sources that must stay unchanged: the list itself, and the files."""
        return joined(self.files, files)


# -- the rows of a shard ---------------------------------------------------------------------------


class ShardRows(NamedTuple):
    """Places of the values of the samples of one file.

    offset, length:  int64 (columns, samples).
    values:          uint8 (samples, width) of the column that was asked for, or None.
    """

    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    values: Bytes | None


def read_table(source: StoreFile, samples: int) -> Int:
    """Read the table that a shard begins with: a count, and samples + 1 offsets as u32."""
    head_bytes = 4 * (samples + 2)
    if head_bytes > source.size:
        raise source.flaw(0, f"the table of {samples:,} samples is larger than the file")
    head = np.frombuffer(source.read(0, head_bytes), "<u4")
    if len(head) != samples + 2 or head[0] != samples:
        announced = int(head[0]) if len(head) else 0
        raise source.flaw(0, f"{announced:,} samples, and index.json says {samples:,}: fetch again")
    return head[1:].astype(np.int64)


def check_table(source: StoreFile, edges: Int) -> None:
    """Check that offsets ascend from behind the table to the end of the file (FormatError)."""
    head_bytes = 4 * (len(edges) + 1)
    for sample in np.flatnonzero(np.diff(edges) < 0)[:1].tolist():
        large = " (shards above 4 GiB cannot be written right)" * (source.size >= 1 << 32)
        raise source.flaw(4 * (sample + 2), f"sample {sample:,} ends before it begins{large}")
    if edges[0] < head_bytes:
        raise source.flaw(4, f"samples begin at {edges[0]:,}, within the table before them")
    if edges[-1] != source.size:
        raise source.flaw(head_bytes - 4, f"samples end at {edges[-1]:,}, not where the file ends")


def parse_rows(
    source: StoreFile,
    edges: Int,
    sizes: Sequence[int | None],
    wanted: int | None = None,
    width: int = 0,
) -> ShardRows:
    """Find the values' places in one file; FormatError if sizes do not add up to a sample.

    edges:   where each sample begins, ascending, and where the last ends; within the file.
    sizes:   bytes of each column, None if they vary.
    wanted:  a column of `width` bytes that is read.
    """
    count = len(edges) - 1
    length = np.repeat(np.array([[size or 0] for size in sizes], np.int64), count, axis=1)
    varies = [column for column, size in enumerate(sizes) if size is None]
    head_bytes = _SIZE_BYTES * len(varies)
    rest = np.diff(edges) - head_bytes - length.sum(axis=0)  # bytes of the columns that vary
    wrong = rest < 0 if varies else rest != 0
    _refuse(source, edges, wrong, "it is not as long as its columns")
    if len(varies) == 1:
        length[varies] = rest
        for sample in {0, count - 1} if count else ():
            head = _read_exactly(source, int(edges[sample]), _SIZE_BYTES).view("<u4")
            wrong = np.arange(count) == (sample if head[0] != rest[sample] else -1)
            _refuse(source, edges, wrong, "the size of its column does not add up to its own")
    offset = np.empty_like(length)
    values = None if wanted is None else np.empty((count, width), np.uint8)
    for first, last in _divide_slabs(edges) if len(varies) > 1 or wanted is not None else ():
        slab, start = slice(first, last), edges[first:last]
        fetch = _make_fetch(source, edges[first : last + 1])
        if len(varies) > 1:
            heads = fetch(start, head_bytes).view("<u4").astype(np.int64)
            wrong = heads.sum(axis=1) != rest[slab]
            _refuse(source, start, wrong, "the sizes of its columns do not add up to its own")
            length[varies, slab] = heads.T
        if wanted is not None and values is not None:
            wrong = length[wanted, slab] != width
            _refuse(source, start, wrong, f"its label does not have {width} bytes")
            values[slab] = fetch(start + head_bytes + length[:wanted, slab].sum(axis=0), width)
    offset[:] = edges[:-1] + head_bytes
    offset[1:] += np.cumsum(length[:-1], axis=0)
    return ShardRows(offset, length, values)


def make_layouts(
    shard_rows: Sequence[ShardRows], sizes: Sequence[int | None], chosen: Sequence[int]
) -> list[Fixed | RowTable]:
    """Make the layouts of the chosen columns: arithmetic if all columns are of fixed size."""
    first = number_first([rows.offset.shape[1] for rows in shard_rows])
    stride = sum(size or 0 for size in sizes)
    layouts: list[Fixed | RowTable] = []
    for column in chosen:
        offsets = [rows.offset[column] for rows in shard_rows]
        size = sizes[column]
        if None not in sizes and size and all((np.diff(o) == stride).all() for o in offsets):
            base = np.array([int(o[0]) if len(o) else 0 for o in offsets], np.int64)
            layouts.append(Fixed(first, base, size, stride))
        else:
            layouts.append(lay_out_extents(offsets, [rows.length[column] for rows in shard_rows]))
    return layouts


def join_values(shard_rows: Sequence[ShardRows], dtype: Any) -> npt.NDArray[Any]:
    """Join the values that were read of all files, as numbers."""
    values = [np.ascontiguousarray(rows.values).view(dtype).reshape(-1) for rows in shard_rows]
    return np.concatenate(values)


def _refuse(source: StoreFile, begins: Int, wrong: npt.NDArray[np.bool_], why: str) -> None:
    for sample in np.flatnonzero(wrong)[:1]:
        raise source.flaw(int(begins[sample]), f"the sample here is damaged: {why}")


def _divide_slabs(edges: Int) -> Iterator[tuple[int, int]]:
    """Divide samples into groups of at most _SLAB_BYTES, or of one."""
    first, count = 0, len(edges) - 1
    while first < count:
        last = int(np.searchsorted(edges, edges[first] + _SLAB_BYTES, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def _make_fetch(source: StoreFile, edges: Int) -> Callable[[Int, int], Bytes]:
    """Make a function that reads a few bytes at many offsets within a slab of samples."""
    start, end = int(edges[0]), int(edges[-1])
    if end - start > _SMALL_BYTES * (len(edges) - 1):
        return lambda offset, width: np.stack(
            [_read_exactly(source, at, width) for at in offset.tolist()]
        )
    slab = _read_exactly(source, start, end - start)
    return lambda offset, width: slab[(offset - start)[:, None] + np.arange(width)]


def _read_exactly(source: StoreFile, offset: int, length: int) -> Bytes:
    data = source.read(offset, length)
    if len(data) != length:
        raise source.flaw(offset, f"{length:,} bytes are announced, {len(data):,} are here")
    return np.frombuffer(data, np.uint8)


# -- MosaicML Streaming ----------------------------------------------------------------------------

_NUMBERS = {
    "int": "<i8",
    **{f"int{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
_SHARD = re.compile(r".*\.mds(\..*)?")
_VARIES = {"bytes", "str", "json", "pkl", "pil", "jpeg", "png", "str_int", "str_float"}
_UNPACK = {"zstd": "zstd -d", "gz": "gunzip -k", "br": "brotli -d", "bz2": "bunzip2 -k"}


def is_mds(store: Store) -> bool:
    """True if the root has the index of such shards, or is above some."""
    named = is_manifest(store, b'"shards"', b'"column_encodings"')
    return named or has_shards(store, _SHARD)


def build_mds(scan: Scan, fields: Columns = None, label: str | None = None) -> Index:
    """The index of all samples, shard after shard in the order of index.json."""
    manifest = Manifest.read(scan.store, "MDS shards", _SHARD)
    with manifest.parsing():
        entries = manifest.value["shards"]
        if not entries:
            raise manifest.flaw("it lists no shards: the writer did not finish")
        table = _parse_columns(manifest, entries[0])
        for number, entry in enumerate(entries):
            if _parse_columns(manifest, entry) != table:
                raise manifest.flaw(f"shard {number} has other columns than shard 0")
        counts = [manifest.check_count(entry["samples"]) for entry in entries]
        files = _list_files(scan.store, manifest, entries, scan.progress)
    names = [field.name for field, _ in table]
    integers = {field.name for field, _ in table if field.shape == () and field.dtype.kind in "iu"}
    chosen, label = options.choose_columns(manifest.path, names, integers, fields, label)
    sizes = [size for _, size in table]
    wanted = None if label is None else names.index(label)
    dtype = np.dtype(np.uint8) if wanted is None else table[wanted][0].dtype

    def parse(number: int, source: StoreFile) -> ShardRows:
        edges = read_table(source, counts[number])
        check_table(source, edges)
        return parse_rows(source, edges, sizes, wanted, dtype.itemsize)

    shard_rows = scan.parse(files, parse)
    if not sum(counts):
        raise manifest.flaw("it lists no samples")
    numbers = [names.index(name) for name in chosen]
    labels = None
    if label is not None:
        values = join_values(shard_rows, dtype)
        labels = options.convert_labels(manifest.path, label, values)
    chosen_fields = tuple(table[number][0] for number in numbers)
    layouts = tuple(make_layouts(shard_rows, sizes, numbers))
    return Index("mds", files, chosen_fields, layouts, manifest.sources(files), label_column=labels)


def _parse_columns(manifest: Manifest, entry: Mapping[str, Any]) -> list[tuple[Field, int | None]]:
    """Parse the columns of a shard, each with the bytes of its values, or None if they vary."""
    if (entry["format"], entry["version"]) != ("mds", 2):
        kind = f"{entry['format']!r} {entry['version']!r}"
        raise manifest.flaw(f"a shard is of {kind}: write it with MDSWriter")
    names = entry["column_names"]
    if set(map(type, names)) != {str} or len(set(names)) < len(names):
        raise manifest.flaw("a shard has no columns, or two columns of one name")
    columns: list[tuple[Field, int | None]] = []
    described = zip(names, entry["column_encodings"], entry["column_sizes"], strict=True)
    for name, encoding, size in described:
        field = _make_field(name, encoding)
        varies = encoding in _VARIES or encoding.startswith("ndarray")
        is_number = size is None or (type(size) is int and 0 <= size <= limits.MIB << 20)
        is_known = field.nbytes is not None or varies
        if not is_number or (is_known and (size or None) != (field.nbytes or None)):
            raise manifest.flaw(f"column {name!r} of {encoding} has a size of {size!r}")
        if field.nbytes is None and size:
            field = Field(name, np.dtype(np.uint8), (size,))
        columns.append((field, size or None))
    return columns


def _make_field(name: str, encoding: str) -> Field:
    """Make the field of a column: typed if every value has one dtype and shape."""
    kind, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if encoding in _NUMBERS:
        return Field(name, np.dtype(_NUMBERS[encoding]), ())
    if kind == "ndarray" and dtype in _NUMBERS and re.fullmatch(r"[0-9]+(,[0-9]+)*", shape):
        sizes = tuple(map(int, shape.split(",")))
        if 0 < math.prod(sizes) < 1 << 40:
            return Field(name, np.dtype(_NUMBERS[dtype]), sizes)
    return Field(name, np.dtype(np.uint8), None)


def _list_files(
    store: Store, manifest: Manifest, entries: Sequence[Mapping[str, Any]], progress: Any
) -> Files:
    """List the shards' files; all must be unpacked."""
    names = manifest.check_names([entry["raw_data"]["basename"] for entry in entries])
    files, errors = store.probe(unseen(store.root, names), progress)
    for number in np.flatnonzero(errors)[:1].tolist():
        packed = entries[number].get("zip_data")
        if not packed:
            store.stat([names[number]], lambda _: f"{manifest.path}: ")
            packed = {"basename": names[number]}
        (name,) = manifest.check_names([packed["basename"]])
        method = str(entries[number].get("compression")).partition(":")[0]
        command = f"{_UNPACK.get(method, 'unpack')} {unseen(store.root, [name]).path(0)}"
        raise MissingError(f"{files.path(number)} does not exist: `{command}`?")
    for number, entry in enumerate(entries):
        size = manifest.check_count(entry["raw_data"]["bytes"])
        if int(files.size[number]) != size:
            raise FormatError(f"{files.path(number)} is not of {size:,} bytes: fetch it")
    return files
