"""The formats of a workload's data files, each written by one function from a `Draft`.

A writer writes the draft's samples into the file, and what belongs beside the file into files that
it gets of `draft.beside`; it neither makes them durable nor gives them their names. Libraries of
formats are imported when they are used.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import math
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from penstock.convert import (
    encode_example,
    encode_npy,
    encode_npy_header,
    encode_record_head,
    encode_tar_end,
    encode_tar_member,
    mask_crc,
)
from penstock.engine import AtomicFile, crc32c, storage_errors
from penstock.errors import UsageError

from ..workload.sections import DatasetSpec
from . import PARTS, import_library, index_path
from .samples import Bytes, SampleContents

_PIECES_BYTES = 4 << 20
_COLUMN_BITS = 40
"""The bit at which the number of a column begins in the number by which contents know a file."""

_buffers = threading.local()

IMAGES = ("jpeg", "png")
"""Formats with one image a file, whatever num_samples_per_file says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A file to write.

    number:  among the files of its part.
    shape:   of a sample, in elements of dtype.
    column:  0, or, of a column of a table, its number from 1 on.
    columns: of a table, instead of its samples.
    made:    receives the numbers of bytes made; may raise to stop.
    beside:  opens a file that belongs to this one, and is finished with it.
    """

    data: DatasetSpec
    part: str
    number: int
    path: str
    root: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contents: SampleContents
    made: Callable[[int], None]
    beside: Callable[[str], AtomicFile]
    column: int = 0
    columns: tuple[Draft, ...] = ()

    @property
    def count(self) -> int:
        """Samples of the file."""
        return 1 if self.data.format in IMAGES else self.data.num_samples_per_file

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[Bytes]:
        """The bytes of all samples, one after the other; a piece is valid until the next."""
        part, number = PARTS.index(self.part), self.number + (self.column << _COLUMN_BITS)
        for piece in self.contents.pieces(part, number, self.shape, self.count):
            self.made(len(piece))
            yield piece

    def groups(self, samples: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """The samples as arrays (samples, *shape), `samples` or some at once; valid until the next
        of
        any column."""
        at_once = samples or max(1, _PIECES_BYTES // self.sample_bytes)
        room = min(self.count, at_once) * self.sample_bytes
        buffer, filled = _reuse_buffer(room, self.column), 0
        for piece in self.pieces():
            while len(piece):
                taken = min(len(piece), room - filled)
                buffer[filled : filled + taken] = piece[:taken]
                piece, filled = piece[taken:], filled + taken
                if filled == room:
                    yield self._samples(buffer)
                    filled = 0
        if filled:
            yield self._samples(buffer[:filled])

    def _samples(self, buffer: Bytes) -> npt.NDArray[Any]:
        return buffer.view(self.dtype).reshape(-1, *self.shape)

    def records(self) -> Iterator[memoryview]:
        """The bytes of each sample; valid until the next."""
        for group in self.groups():
            whole, size = memoryview(group.reshape(-1).view(np.uint8).data), self.sample_bytes
            yield from (whole[at : at + size] for at in range(0, len(whole), size))


def _reuse_buffer(size: int, column: int) -> Bytes:
    """A buffer that this thread keeps, so that the system does not find pages for each file."""
    by_column: dict[int, Bytes] = _buffers.__dict__.setdefault("by_column", {})
    if column not in by_column or len(by_column[column]) < size:
        by_column[column] = np.empty(size, np.uint8)
    return by_column[column][:size]


# -- formats ---------------------------------------------------------------------------------------

Writer = Callable[[AtomicFile, Draft], None]


def _write_npy(target: AtomicFile, draft: Draft) -> None:
    """Write an array of shape (*sample, samples), as numpy saves it and DLIO reads it."""
    for piece in _encode_array(draft):
        target.write(piece)


def _encode_array(draft: Draft) -> Iterator[bytes | memoryview]:
    """The header and the elements; more than one sample takes the memory of the file."""
    yield encode_npy_header(draft.dtype.str, (*draft.shape, draft.count))
    if draft.count == 1:
        yield from (piece.data for piece in draft.pieces())
        return
    whole, done = np.empty((*draft.shape, draft.count), draft.dtype), 0
    for group in draft.groups():
        whole[..., done : done + len(group)] = np.moveaxis(group, 0, -1)
        done += len(group)
    yield whole.reshape(-1).view(np.uint8).data


def _write_npz(target: AtomicFile, draft: Draft) -> None:
    """Write a zip archive of `x`, all samples, and `y`, zeros, with the bytes that numpy writes."""
    deflated = draft.data.compression == "zip"
    method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    level = draft.data.compression_level if deflated else None
    with (
        storage_errors(target.path),
        zipfile.ZipFile(target.file, "w", method, compresslevel=level) as whole,
    ):
        with whole.open("x.npy", "w", force_zip64=True) as member:
            for piece in _encode_array(draft):
                member.write(piece)
        with whole.open("y.npy", "w", force_zip64=True) as member:
            member.write(encode_npy(np.zeros(draft.count, np.int64)))


def _write_hdf5(target: AtomicFile, draft: Draft) -> None:
    """Write the datasets `records_N` and `labels`, zeros.

    Each holds all samples, or equal parts of their first dimension. HDF5 itself writes, except data
    in one piece of the file.
    """
    h5py = import_library("h5py", "hdf5", "writing HDF5")
    at = None
    with storage_errors(target.path), h5py.File(target.temporary, "w", libver="latest") as file:
        dsets = [
            _create_dataset(file, f"records_{number}", draft)
            for number in range(draft.data.hdf5.num_dset_per_record)
        ]
        file.create_dataset("labels", data=np.zeros(draft.count, np.int64))
        if len(dsets) == 1 and dsets[0].chunks is None:
            at = dsets[0].id.get_offset()
        else:
            done = 0
            for group in draft.groups():
                for dset, piece in zip(dsets, np.split(group, len(dsets), axis=1), strict=True):
                    dset[done : done + len(group)] = piece
                done += len(group)
    if at is not None:
        with storage_errors(target.path):
            target.file.seek(at)
        for piece in draft.pieces():
            target.write(piece.data)


def _create_dataset(file: Any, name: str, draft: Draft) -> Any:
    import h5py

    data = draft.data
    shape = (draft.count, draft.shape[0] // draft.data.hdf5.num_dset_per_record, *draft.shape[1:])
    options: dict[str, Any] = {}
    if data.hdf5.chunk_dims:
        options["chunks"] = _complete_sizes(data.hdf5.chunk_dims, 1, shape, "chunk_dims")
    if data.hdf5.max_shape:
        options["maxshape"] = _complete_sizes(data.hdf5.max_shape, draft.count, shape, "max_shape")
    if data.compression != "none":
        options["compression"] = data.compression
        if data.compression == "gzip":
            options["compression_opts"] = data.compression_level
    if not options:  # contiguous: its place is known before it is written
        whole = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        whole.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        whole.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        options["dcpl"] = whole
    return file.create_dataset(name, shape, draft.dtype, **options)


def _complete_sizes(
    given: tuple[int, ...], first: int, shape: tuple[int, ...], key: str
) -> tuple[int, ...]:
    """Sizes of all dimensions, where a sample's may be given alone."""
    sizes = (first, *given) if len(given) == len(shape) - 1 else given
    if len(sizes) != len(shape) or (key == "max_shape" and any(map(int.__lt__, sizes, shape))):
        raise UsageError(
            f"dataset.hdf5.{key} is {list(given)}, and datasets are of shape {list(shape)}: give "
            f"a size for each dimension"
        )
    return tuple(map(min, sizes, shape)) if key == "chunk_dims" else sizes


_BYTES = np.array([f"{value},".encode() for value in range(256)]).view(np.uint8).reshape(256, 4)
"""The text of each value of a byte, with the comma after it, filled up with zeros."""


def _write_csv(target: AtomicFile, draft: Draft) -> None:
    """Write a row a sample and a number an element; the file is compressed as a whole."""
    with storage_errors(target.path):
        file = _open_compressed(target, draft.data.compression, draft.data.compression_level)
        for group in draft.groups():
            for sample in group.reshape(len(group), -1):
                _write_row(file, sample)
        if file is not target.file:
            file.close()


def _open_compressed(target: AtomicFile, compression: str, level: int) -> IO[bytes] | Any:
    match compression:
        case "gzip":  # of no name and no time: the same bytes each time
            return gzip.GzipFile("", "wb", level, target.file, mtime=0)
        case "bz2":
            return bz2.BZ2File(target.file, "wb", compresslevel=max(level, 1))
        case "xz":
            return lzma.LZMAFile(target.file, "wb", preset=level)
    return target.file


def _write_row(file: IO[bytes], sample: npt.NDArray[Any]) -> None:
    for start in range(0, len(sample), 1 << 18):  # bounds the memory of the text
        text = _format_values(sample[start : start + (1 << 18)])
        last = start + (1 << 18) >= len(sample)
        file.write(text[:-1] + b"\n" if last else text)


def _format_values(values: npt.NDArray[Any]) -> bytes:
    """Numbers, each with a comma after it."""
    if values.dtype == np.uint8:
        text = _BYTES[values]
        packed: bytes = text[text != 0].tobytes()
        return packed
    shown = "%d," if values.dtype.kind != "f" else "%.9g," if values.itemsize <= 4 else "%.17g,"
    return (shown * len(values) % tuple(values.tolist())).encode()


_PNG = {"compress_level": 1, "compress_type": zlib.Z_RLE}
"""Noise has no matches to look for; so it is ten times faster, and no larger."""


def _write_image(target: AtomicFile, draft: Draft) -> None:
    """Write a grey image of the size of a sample, one a file."""
    images = import_library("PIL.Image", "images", "writing images")
    sample = next(draft.groups())[0]
    image = images.fromarray(np.atleast_2d(sample))
    options = _PNG if draft.data.format == "png" else {}
    with storage_errors(target.path):
        image.save(target.file, draft.data.format, **options)


_AT_ONCE = 1 << 20


def _write_indexed(target: AtomicFile, draft: Draft) -> None:
    """Write samples back to back, and offsets and sizes, 64 bits each, beside the file."""
    for piece in draft.pieces():
        target.write(piece.data)
    size = draft.sample_bytes
    offsets, sizes = (draft.beside(draft.path + suffix) for suffix in (".off.idx", ".sz.idx"))
    for first in range(0, draft.count, _AT_ONCE):
        samples = np.arange(first, min(first + _AT_ONCE, draft.count), dtype="<u8")
        offsets.write((samples * np.uint64(size)).view(np.uint8).data)
        sizes.write(np.full(len(samples), size, "<u8").view(np.uint8).data)


def _write_tar(target: AtomicFile, draft: Draft) -> None:
    """Write a tar archive for WebDataset: members NUMBER.bin, counted over all files."""
    first = draft.number * draft.count
    for number, record in enumerate(draft.records(), first):
        target.write(*encode_tar_member(f"{number:09d}", [("bin", record)]))
    target.write(encode_tar_end(target.size))


def _write_tfrecord(target: AtomicFile, draft: Draft) -> None:
    """Write each sample as a tf.Example with its bytes (`image`) and their number (`size`).

    DLIO's folder of indexes gets a list of their places, as DALI reads it.
    """
    before, after = _frame_sample(draft.sample_bytes)
    head = encode_record_head(len(before) + draft.sample_bytes + len(after)) + before
    checked = crc32c(before)
    for record in draft.records():
        target.write(head, record, after + mask_crc(crc32c(after, crc32c(record, checked))))
    size = target.size // draft.count
    lines = "".join(f"{number * size} {size}\n" for number in range(draft.count))
    draft.beside(index_path(draft.data, draft.part, draft.path, draft.root)).write(lines.encode())


def _frame_sample(size: int) -> tuple[bytes, bytes]:
    """The bytes before and after any sample of this size."""
    image = memoryview(np.empty(size, np.uint8).data)
    pieces = encode_example({"image": image, "size": np.array([size])})
    at = next(number for number, piece in enumerate(pieces) if piece is image)
    return b"".join(pieces[:at]), b"".join(pieces[at + 1 :])


_PAGE = 4096


def _write_lmdb(target: AtomicFile, draft: Draft) -> None:
    """Write an environment: each sample a value, by keys that count over all files."""
    lmdb = import_library("lmdb", "lmdb", "writing LMDB")
    pages = draft.count * (-(-draft.sample_bytes // _PAGE) + 2) + 64
    with storage_errors(target.path):
        try:
            environment = lmdb.open(
                target.temporary, pages * _PAGE, subdir=False, lock=False, sync=False, max_dbs=0
            )
            with environment, environment.begin(write=True) as transaction:
                for number, record in enumerate(draft.records(), draft.number * draft.count):
                    transaction.put(f"{number:09d}".encode(), bytes(record), append=True)
        except lmdb.DiskError as error:
            raise OSError(errno.ENOSPC, str(error)) from None
        except lmdb.Error as error:
            raise OSError(errno.EIO, str(error)) from None


_GROUP_BYTES = 128 << 20


def _write_parquet(target: AtomicFile, draft: Draft) -> None:
    """Write the workload's columns of numbers or lists, or one column `image` of bytes.

    A row is a sample. Row groups have the size asked for, and at most 128 MiB, as they are written
    from memory.
    """
    parquet = import_library("pyarrow.parquet", "parquet", "writing Parquet")
    import pyarrow

    columns, known = draft.columns or (draft,), draft.data.parquet
    names = [column.name for column in known.columns] or ["image"]
    types = [_choose_type(column) for column in columns]
    fields = [pyarrow.field(*column, nullable=False) for column in zip(names, types, strict=True)]
    schema = pyarrow.schema(fields)
    row_bytes = sum(column.sample_bytes for column in columns)
    rows = min(known.row_group_size, max(1, _GROUP_BYTES // row_bytes))
    how = {"compression": draft.data.compression, "use_dictionary": False}
    with storage_errors(target.path), parquet.ParquetWriter(target.file, schema, **how) as file:
        for group in zip(*(column.groups(rows) for column in columns), strict=True):
            arrays = [_make_array(*column) for column in zip(types, group, strict=True)]
            file.write_table(pyarrow.table(arrays, schema), row_group_size=rows)


def _choose_type(column: Draft) -> Any:
    """The type of a column: bytes, where it is all there is."""
    import pyarrow

    if not column.column:
        return pyarrow.binary()
    element = pyarrow.from_numpy_dtype(column.dtype)
    return element if column.shape == (1,) else pyarrow.list_(element, column.shape[0])


def _make_array(kind: Any, values: npt.NDArray[Any]) -> Any:
    """Rows of values as in memory."""
    import pyarrow

    if pyarrow.types.is_binary(kind):
        size = values[:1].nbytes
        ends = np.arange(len(values) + 1, dtype=np.int32) * np.int32(size)
        buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(values)]
        return pyarrow.Array.from_buffers(kind, len(values), buffers)
    flat = pyarrow.array(values.reshape(-1))
    fixed = pyarrow.types.is_fixed_size_list(kind)
    return pyarrow.FixedSizeListArray.from_arrays(flat, type=kind) if fixed else flat


def _write_synthetic(target: AtomicFile, draft: Draft) -> None:
    """Write the file's number, for loaders that make samples up."""
    target.write(str(draft.number).encode())


WRITERS: Mapping[str, Writer] = {
    "npz": _write_npz,
    "npy": _write_npy,
    "hdf5": _write_hdf5,
    "tfrecord": _write_tfrecord,
    "csv": _write_csv,
    "jpeg": _write_image,
    "png": _write_image,
    "indexed_binary": _write_indexed,
    "mmap_indexed_binary": _write_indexed,
    "tar": _write_tar,
    "lmdb": _write_lmdb,
    "parquet": _write_parquet,
    "synthetic": _write_synthetic,
}
"""The writer of each format."""
