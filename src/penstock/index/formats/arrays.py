"""Arrays back to back: numpy's own files (.npy), archives of them (.npz), and binary records.

The first axis of an array counts the samples; with sample="file" each file is one. Of several files
(a pattern, a list, a folder), of one dtype and row shape, which of both has to be said; without it,
a folder is a tree, where each file is a sample of bytes. Headers are parsed by `numpy.lib.format`;
its documentation describes the format.

Each array of an archive, as numpy.savez writes it, is a field. By default all arrays are fields,
and have to have the same number of rows; `fields` and `label` see `penstock.index.formats.options`.
Arrays of numpy.savez_compressed are unpacked as a whole: they need sample="file", or windows (see
`penstock.index.formats.windowing`), of which an array is one chunk.

Binary records have one size, after an optional header. Such a file does not describe itself, so the
caller gives the geometry: `record_bytes`, or `dtype` and `shape` of one record. One check is
possible: the records have to fill each file exactly.
"""

from __future__ import annotations

import io
import itertools
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...arguments import check_whole
from ...engine.store import StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int, Names
from ..codecs.chunked_arrays import (
    NPY_HEADER_MAX,
    ZIP_ENTRY,
    ZIP_LATE,
    read_npy_header,
    unpack_entry,
)
from ..fields import Codec, Field
from ..layout import Chunked, Fixed, Layout, RowTable
from ..table import Index
from . import options
from .chunk_grid import ChunkGrid, check_reading, lay_out_whole
from .sandbox import BlockFile
from .shards import Columns, Scan, number_first
from .windowing import ArrayPart, WindowRequest, build_index, name_array, name_axes

MAGIC = b"\x93NUMPY"


class NpyHeader(NamedTuple):
    """Header of an array. `data_offset` is the byte at which the first sample starts."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data_offset: int


def build_npy(scan: Scan, sample: str | None = None, **windows: Any) -> Index:
    """The index of the rows of one array, or of several of one row shape, file after file; or of
    the windows of all these rows."""
    files, sources = scan.list_files((".npy",) if scan.place.kind == "folder" else ())
    headers = scan.parse(files, lambda _, source: read_header(source, source.path))
    if windows:
        parts = []
        for file, header in enumerate(headers):
            path, rows = files.path(file), make_field(files.path(file), header).nbytes or 0
            check_room(path, header, rows, int(files.size[file]))
            parts.append(name_array(path, header.shape, header.dtype, header.data_offset))
        request = WindowRequest(**windows, sample=sample)
        return build_index("npy", files, sources, {"data": parts}, {}, request)
    if sample == "file":
        for file, header in enumerate(headers):
            whole = header._replace(shape=(1, *header.shape))
            size = make_field(files.path(file), whole).nbytes
            check_room(files.path(file), whole, size or 0, int(files.size[file]))
            if header.dtype != headers[0].dtype:
                raise FormatError(f"{files.path(file)} is of {header.dtype}, unlike others")
        shapes, offsets = [one.shape for one in headers], [one.data_offset for one in headers]
        field, layout = lay_out_whole(files, "data", headers[0].dtype, shapes, offsets)
        names = Names(files.names, files.ends)
        return Index("npy", files, (field,), (layout,), sources, names=names)
    field = make_field(files.path(0), headers[0])
    assert field.nbytes is not None
    for file, header in enumerate(headers):
        other = make_field(files.path(file), header)
        if other != field:
            raise FormatError(f"{files.path(file)} is not of {field.dtype} {field.shape} as others")
        check_room(files.path(file), header, field.nbytes, int(files.size[file]))
    first = number_first([header.shape[0] for header in headers])
    if not first[-1]:
        raise FormatError(f"{files.path(0)} holds no samples: its shape is {headers[0].shape}")
    base = np.array([header.data_offset for header in headers], np.int64)
    check_reading(files, sample, {"data": [header.shape for header in headers]})
    return Index("npy", files, (field,), (Fixed(first, base, field.nbytes),), sources)


def check_room(what: str, header: NpyHeader, row_bytes: int, held_bytes: int) -> None:
    """Check that all rows that the header announces exist (FormatError)."""
    announced, present = header.shape[0] * row_bytes, held_bytes - header.data_offset
    if announced > present:
        raise FormatError(f"{what}: {present:,} bytes are not {announced:,}: it is truncated")


def read_header(source: StoreFile, what: str, offset: int = 0) -> NpyHeader:
    """Read the header of an array that starts at `offset`; FormatError that names `what`."""
    return _parse_header(source.read(offset, NPY_HEADER_MAX), what)


def _parse_header(head: bytes, what: str) -> NpyHeader:
    file = io.BytesIO(head)
    try:
        shape, is_fortran, dtype = read_npy_header(file)
        if min(shape, default=0) < 0 or math.prod(shape) >= limits.order_count_max:
            raise ValueError(f"the shape {shape}")
    except Exception as error:  # whatever a damaged literal makes numpy, ast or tokenize raise
        reason = str(error).partition("\n")[0]
        raise FormatError(f"{what}: the .npy header is damaged ({reason:.80})") from None
    if is_fortran and len(shape) > 1:
        raise FormatError(f"{what}: Fortran order scatters samples: save np.ascontiguousarray")
    return NpyHeader(dtype, shape, file.tell())


def make_field(path: str, header: NpyHeader, name: str = "data") -> Field:
    """Make the field of an array's rows, or FormatError; the array may have no rows."""
    dtype, shape = header.dtype, header.shape
    if dtype.hasobject:
        raise FormatError(f"{path} holds pickled Python objects, which can run code: save numbers")
    if dtype.names is not None or dtype.subdtype is not None:
        how = f"record_bytes={dtype.itemsize}, header_bytes={header.data_offset}"
        raise FormatError(f"{path} holds a structured type: open it with format='records', {how}")
    if not shape:
        raise FormatError(f"{path} holds a single value: give sample='file' if a file is a sample")
    field = Field(name, dtype, shape[1:])
    if not field.nbytes:
        raise FormatError(f"{path} holds no samples: its shape is {shape} of {dtype}")
    return field


# -- archives --------------------------------------------------------------------------------------

_SUFFIX = ".npy"
_TAIL_BYTES = 22 + 0xFFFF  # the end record, with the longest comment
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1 << 0  # a flag of an entry
_DAMAGED = (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error)


class _NpzArrays(NamedTuple):
    """Arrays of one file: the fields, the bytes where their rows start, the number of rows."""

    fields: list[Field]
    base: list[int]
    shapes: list[tuple[int, ...]]
    labels: Int | None
    members: list[ZipMember]


class ZipMember(NamedTuple):
    """One entry: its name, its method of compression, and the place of its data as stored.

    start:     offset of the entry.
    unpacked:  bytes of the data when they are unpacked.
    """

    name: str
    method: int
    flags: int
    start: int
    offset: int
    size: int
    unpacked: int


def sniff_npz(head: bytes, name: str) -> bool:
    """True if a file is an archive whose first member is an array, or whose name ends in .npz."""
    if not head.startswith((b"PK\3\4", b"PK\5\6")):
        return False
    length = int.from_bytes(head[26:28], "little")
    return head[30 : 30 + length].endswith(_SUFFIX.encode()) or name.lower().endswith(".npz")


def build_npz(
    scan: Scan,
    fields: Columns = None,
    label: str | None = None,
    sample: str | None = None,
    **windows: Any,
) -> Index:
    """The index of the rows of all arrays, file after file; of the files; or of windows."""
    files, sources = scan.list_files((".npz",) if scan.place.kind == "folder" else ())
    cut = WindowRequest(**windows, sample=sample) if windows else None
    whole = sample == "file" and cut is None
    contents = scan.parse(files, lambda _, source: _parse_arrays(source, fields, label, whole, cut))
    labels = [arrays.labels for arrays in contents if arrays.labels is not None]
    alike = 1 if cut else 2 if whole else 3
    kinds = [[(one.name, one.dtype, one.shape)[:alike] for one in of.fields] for of in contents]
    for file, kind in enumerate(kinds):
        if kind != kinds[0] or len(labels) not in (0, len(contents)):
            raise FormatError(f"{files.path(file)} holds other arrays: choose some by fields=")
    shapes = {
        field.name: [one.shapes[number] for one in contents]
        for number, field in enumerate(contents[0].fields)
    }
    columns = np.concatenate(labels) if labels else None
    if cut is not None:
        return _cut_arrays(files, sources, contents, cut)
    if whole:
        laid_out = []
        for number, field in enumerate(contents[0].fields):
            members = [one.members[number] for one in contents]
            name, offsets = field.name, [one.base[number] for one in contents]
            if all(member.method == zipfile.ZIP_STORED for member in members):
                laid_out.append(lay_out_whole(files, name, field.dtype, shapes[name], offsets))
            else:
                laid_out.append(_lay_out_packed(files, field, shapes[name], members))
        whole_fields, places = zip(*laid_out, strict=True)
        names = Names(files.names, files.ends)
        return Index("npz", files, whole_fields, places, sources, None, columns, names)
    check_reading(files, sample or ("row" if labels else None), shapes)
    first = number_first([arrays.shapes[0][0] for arrays in contents])
    if not first[-1]:
        raise FormatError(f"{files.path(0)} holds no samples: its arrays have no rows")
    layouts = []
    for number, field in enumerate(contents[0].fields):
        assert field.nbytes is not None
        base = np.array([arrays.base[number] for arrays in contents], np.int64)
        layouts.append(Fixed(first, base, field.nbytes))
    npz_fields = tuple(contents[0].fields)
    return Index("npz", files, npz_fields, tuple(layouts), sources, label_column=columns)


def _cut_arrays(
    files: Files, sources: Files, contents: Sequence[_NpzArrays], request: WindowRequest
) -> Index:
    """Cut arrays into windows: of a compressed one, an array is one chunk."""
    parts: dict[str, list[ArrayPart]] = {}
    codecs: dict[str, Codec] = {}
    for number, field in enumerate(contents[0].fields):
        members = [one.members[number] for one in contents]
        is_stored = all(member.method == zipfile.ZIP_STORED for member in members)
        entries = np.stack(_find_entries(members), 1)
        chain = parts.setdefault(field.name, [])
        for file, one in enumerate(contents):
            values: int | ChunkGrid = one.base[number]
            shape, dtype = one.shapes[number], one.fields[number].dtype
            if not is_stored:
                values = ChunkGrid.absent(shape, (max(1, shape[0]), *shape[1:]), dtype.itemsize)
                values.file[:] = file
                values.offset[:], values.length[:] = entries[file]
            where = f"{files.path(file)}, array {field.name!r}"
            chain.append(name_array(where, shape, dtype, values))
        shapes = [list(part.shape) for part in chain]
        how = {"shapes": shapes} if request.is_by_file else {"row": shapes[0][1:]}
        codecs[field.name] = Codec("npz", {"dtype": field.dtype.str, **how})
    return build_index("npz", files, sources, parts, codecs, request)


def _find_entries(members: Sequence[ZipMember]) -> tuple[Int, Int]:
    """Return the start and the length of entries of archives, with their headers."""
    start = np.array([member.start for member in members], np.int64)
    stop = np.array([member.offset + member.size for member in members], np.int64)
    return start, stop - start


def _lay_out_packed(
    files: Files, field: Field, shapes: list[tuple[int, ...]], members: list[ZipMember]
) -> tuple[Field, Layout]:
    """Lay out arrays that are a sample each, compressed in some of the files, or in all."""
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            what = f"{files.path(number)}: {field.name!r} has the shape {shape}"
            raise FormatError(f"{what}, and {shapes[0]} in the first: save with numpy.savez")
    start, length = _find_entries(members)
    codec = Codec("npz", {"dtype": field.dtype.str, "shape": list(shapes[0])})
    first = np.arange(len(files) + 1, dtype=np.int64)
    whole = Field(field.name, field.dtype, shapes[0], codec)
    return whole, Chunked(first, RowTable(None, start, length))


def _parse_arrays(
    source: StoreFile,
    fields: Sequence[str] | None,
    label: str | None,
    whole: bool,
    cut: WindowRequest | None,
) -> _NpzArrays:
    """Parse the chosen arrays of one archive; of windows, those that have one of their axes."""
    members = {
        member.name.removesuffix(_SUFFIX): member
        for member in _list_members(source)
        if fields is None or member.name.endswith(_SUFFIX)
    }
    if not members:
        raise FormatError(f"{source.path} holds no arrays: save some with numpy.savez")
    wanted = {*(fields or members), *((label,) if label else options.DEFAULTS)}
    headers = {}
    for name in [name for name in members if name in wanted]:
        member, what = members[name], f"{source.path}, member {members[name].name!r}"
        if not member.name.endswith(_SUFFIX):
            raise FormatError(f"{what} is not an array: choose arrays with fields=")
        is_stored = member.method == zipfile.ZIP_STORED
        is_streamed = member.flags & ZIP_LATE and not is_stored
        if member.flags & _ENCRYPTED or is_streamed or member.method not in _METHODS:
            raise FormatError(f"{what} is encrypted, streamed or oddly compressed: use numpy.savez")
        if is_stored:
            headers[name] = read_header(source, what, member.offset)
        elif whole or cut:
            headers[name] = _read_packed_header(source, what, member)
        else:
            hint = "give sample='file', where a file is a sample, window=, or use numpy.savez"
            raise FormatError(f"{what} is compressed, and rows of it cannot be read alone: {hint}")
    integers = {
        name
        for name, header in headers.items()
        if header.dtype.kind in "ui"
        if (math.prod(header.shape) == 1 if whole else len(header.shape) == 1)
    }
    label = "" if cut else label
    names, label = options.choose_columns(source.path, list(members), integers, fields, label)
    if cut and fields is None:
        named = {name: {*name_axes(None, len(headers[name].shape))} for name in names}
        names = [name for name in names if named[name] & {*cut.window}] or names
    array_fields, base = [], []
    rows: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in (*names, *((label,) if label else ())):
        what, header = f"{source.path}, array {name!r}", headers[name]
        shapes[name] = header.shape
        if whole:
            header = header._replace(shape=(1, *header.shape))
        field = make_field(what, header, name)
        assert field.nbytes is not None
        check_room(what, header, field.nbytes, members[name].unpacked)
        rows[name] = header.shape[0]
        if name != label:
            array_fields.append(field)
            base.append(members[name].offset + header.data_offset)
    if len(set(rows.values())) > 1 and not cut:
        counts = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        what = f"{source.path}: numbers of rows differ ({counts})"
        raise UsageError(f"{what}: give sample='file', where a file is a sample, or fields=")
    labels = None
    if label:
        dtype, shape, start = headers[label]
        member, size = members[label], math.prod(shape) * dtype.itemsize
        data = source.read(member.offset + start, size)
        if member.method != zipfile.ZIP_STORED:
            data = _unpack_member(source, member)[start : start + size]
        labels = options.convert_labels(source.path, label, np.frombuffer(data, dtype))
    return _NpzArrays(
        array_fields,
        base,
        [shapes[field.name] for field in array_fields],
        labels,
        [members[field.name] for field in array_fields],
    )


def _read_packed_header(source: StoreFile, what: str, member: ZipMember) -> NpyHeader:
    packed = source.read(member.offset, min(member.size, 2 * NPY_HEADER_MAX))
    try:
        head = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, NPY_HEADER_MAX)
    except zlib.error as error:
        raise source.flaw(member.offset, f"damaged data of {member.name!r}: {error}") from None
    return _parse_header(head, what)


def _unpack_member(source: StoreFile, member: ZipMember) -> bytes:
    """Unpack a compressed label, and check it by its checksum."""
    size = member.offset + member.size - member.start
    entry = source.read(member.start, min(size, 4 * NPY_HEADER_MAX))
    try:
        return unpack_entry(memoryview(entry), 2 * NPY_HEADER_MAX)
    except ValueError as error:
        raise source.flaw(member.offset, f"damaged data of {member.name!r}: {error}") from None


# -- the archive -----------------------------------------------------------------------------------


def _list_members(source: StoreFile) -> list[ZipMember]:
    """List all entries but folders, with the place of their data; FormatError at a contradiction.

    Reads the end, the directory, and the local header of every entry.
    """
    file = BlockFile(source)
    try:
        with zipfile.ZipFile(file) as archive:
            entries, end = archive.infolist(), archive.start_dir
            file.seek(max(end, source.size - _TAIL_BYTES))
            tail = file.read() or b""
            count = int.from_bytes(tail[tail.rfind(b"PK\5\6") + 10 :][:2], "little")
            if count not in (len(entries), 0xFFFF):  # which is of more, counted elsewhere
                raise zipfile.BadZipFile(f"{len(entries)} members, of {count}")
            members = [_locate_data(file, entry) for entry in entries]
    except _DAMAGED as error:
        if file.error is not None:
            raise file.error from None
        raise FormatError(f"{source.path}: damaged or truncated archive: {error}") from None
    if len({member.name for member in members}) < len(members):
        raise FormatError(f"{source.path}: two members have one name: save the archive again")
    places = sorted((member.offset, member.offset + member.size) for member in members)
    for (_, stop), (start, _) in itertools.pairwise([*places, (end, end)]):
        if stop > start:
            raise source.flaw(start, "members of the archive overlap: damaged")
    return [member for member in members if not member.name.endswith("/")]


def _locate_data(file: BlockFile, entry: zipfile.ZipInfo) -> ZipMember:
    """Locate a member's data, whose place only its local header tells."""
    file.seek(entry.header_offset)
    head = file.read(ZIP_ENTRY.size) or b""
    magic, _, flags, method, *_, name_bytes, extra_bytes = ZIP_ENTRY.unpack(head)
    name = (file.read(name_bytes) or b"").decode("utf-8" if flags & 1 << 11 else "cp437", "replace")
    # The two headers are written together: where they differ, one of them is damaged.
    if magic != b"PK\3\4" or method != entry.compress_type or name != entry.orig_filename:
        raise zipfile.BadZipFile(f"member {entry.filename!r} has another header at its place")
    if method == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
        raise zipfile.BadZipFile(f"stored member {entry.filename!r} has two sizes")
    offset = entry.header_offset + ZIP_ENTRY.size + name_bytes + extra_bytes
    return ZipMember(
        entry.filename,
        method,
        entry.flag_bits,
        entry.header_offset,
        offset,
        entry.compress_size,
        entry.file_size,
    )


# -- records ---------------------------------------------------------------------------------------

_REACH = 100_000
"""Maximum distance from the given size at which a size that divides is searched."""


def normalize_records(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form: a dtype's name, a shape's list, and the record size."""
    field = _make_record_field(
        options.get("record_bytes"), options.get("dtype"), options.get("shape")
    )
    header_bytes = check_whole("header_bytes", options.get("header_bytes", 0), 0)
    normalized: dict[str, Any] = {"record_bytes": field.nbytes, "header_bytes": header_bytes}
    if "dtype" in options:
        normalized |= {"dtype": field.dtype.str, "shape": list(field.shape or ())}
    if "extensions" in options:
        normalized["extensions"] = list(options["extensions"])
    return normalized


def build_records(
    scan: Scan,
    record_bytes: int,
    header_bytes: int,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    extensions: Sequence[str] = (),
) -> Index:
    """The index of all records, file after file in ascending order of path bytes."""
    field = _make_record_field(record_bytes, dtype, shape)
    files, sources = scan.list_files(extensions)
    payload = files.size - header_bytes
    for file in np.flatnonzero((payload < 0) | (payload % record_bytes != 0))[:1].tolist():
        raise _misfit_error(files.path(file), int(files.size[file]), record_bytes, header_bytes)
    first = number_first(payload // record_bytes)
    if not first[-1]:
        raise FormatError(f"{files.path(0)} holds no records: it has no bytes after the header")
    base = np.full(len(files), header_bytes, np.int64)
    return Index("records", files, (field,), (Fixed(first, base, record_bytes),), sources)


def _make_record_field(record_bytes: int | None, dtype: Any, shape: Sequence[int] | None) -> Field:
    """Make the field that the options describe, or UsageError."""
    if dtype is None:
        if shape is not None:
            raise UsageError(f"shape is {shape!r} without a dtype: give dtype= as well")
        if record_bytes is None:
            raise UsageError("records need a size: give record_bytes=, or dtype= and shape=")
        return Field("data", np.dtype(np.uint8), (check_whole("record_bytes", record_bytes, 1),))
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError):
        raise UsageError(f"dtype is {dtype!r}: numpy knows no such type") from None
    if kind.hasobject or kind.names is not None or kind.subdtype is not None or not kind.itemsize:
        raise UsageError(f"dtype is {kind}: use a number type, or record_bytes= for bytes")
    sizes = () if shape is None else tuple(shape) if isinstance(shape, Iterable) else (shape,)
    field = Field("data", kind, tuple(check_whole("shape", size, 1) for size in sizes))
    if record_bytes is not None and check_whole("record_bytes", record_bytes, 1) != field.nbytes:
        raise UsageError(f"record_bytes is {record_bytes}, not {field.nbytes}: leave it out")
    return field


def _misfit_error(path: str, size: int, record_bytes: int, header_bytes: int) -> FormatError:
    """Make the error for a file that records do not fill, with near sizes that would."""
    if size < header_bytes:
        return FormatError(
            f"{path} has {size:,} bytes, below header_bytes={header_bytes:,}: check it"
        )
    payload = size - header_bytes
    rest = payload % record_bytes
    # The nearest divisors below and above, within a factor of two.
    smaller = range(record_bytes - 1, max(record_bytes // 2, record_bytes - _REACH, 1), -1)
    larger = range(record_bytes + 1, min(record_bytes * 2, record_bytes + _REACH, payload + 1))
    near = [next((n for n in sizes if payload % n == 0), 0) for sizes in (smaller, larger)]
    shown = " or ".join(f"{size:,}" for size in near if size)
    return FormatError(
        f"{path} has {payload:,} bytes of records, which {record_bytes:,} does not divide: "
        f"{rest:,} bytes are left over; "
        + (f"a record size that divides is {shown}; " if shown else "")
        + f"a header of {header_bytes + rest:,} bytes would fit (header_bytes=)"
    )
