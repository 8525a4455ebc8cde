"""The samples of a data file, read as their format's own library does: what users write.

For contenders without reading (torch's DataLoader, Grain, SPDL), and as the
truth that delivered samples are compared with.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import FormatError, UsageError, missing_library

from ..workload.sections import DatasetSpec, ReaderSpec
from .delivery import WHOLE, DeliveryTask

_OPEN_FILES = 64
"""Files that stay open, of formats whose samples are read one by one."""


class Opened(Protocol):
    """The samples of one file, by number: arrays, byte strings, or tuples of arrays."""

    def __len__(self) -> int: ...
    def __getitem__(self, sample: Any, /) -> Any: ...


def unpack(text: bytes) -> bytes:
    """Decompress a text by the first byte of gzip, bz2 or xz; others stay as they are."""
    unpackers = {b"\x1f": gzip.decompress, b"B": bz2.decompress, b"\xfd": lzma.decompress}
    return unpackers.get(text[:1], bytes)(text)


def open_samples(data: DatasetSpec, path: str) -> Opened:
    """The samples of a file. What has to be read as a whole is read and decoded here, once."""
    match data.format:
        case "npz" | "npy":
            return np.moveaxis(_load_array(path), -1, 0)  # samples along the last, as DLIO has them
        case "jpeg" | "png":
            return [decode_image(Path(path).read_bytes())] * data.num_samples_per_file
        case "hdf5":
            return _Hdf5(path)
        case "csv":
            text = unpack(Path(path).read_bytes()).decode()
            return np.loadtxt(io.StringIO(text), data.record_element_type, delimiter=",", ndmin=2)
        case "tfrecord":
            return _read_tfrecords(path)
        case "indexed_binary" | "mmap_indexed_binary":
            return _Indexed(path)
        case "tar":
            return _read_members(path)
        case "lmdb":
            return _read_values(path)
        case "parquet":
            return _read_rows(path)
        case "synthetic":
            return [Path(path).read_bytes()] * data.num_samples_per_file
    raise UsageError(f"dataset.format is {data.format!r}: no reader is known for it")


def flatten_sample(sample: Any) -> npt.NDArray[np.uint8]:
    """A sample as one row of bytes, for containers of other people."""
    fields = sample if isinstance(sample, tuple) else (sample,)
    raw = (field if isinstance(field, bytes) else np.asarray(field).tobytes() for field in fields)
    return np.frombuffer(b"".join(raw), np.uint8)


class ByNumber:
    """Samples of all files by number, for loaders that ask for them one by one.

    Files stay open for the next sample: of files read as a whole the last `whole_kept`.
    May be sent to another process; files are opened again there.
    """

    def __init__(self, task: DeliveryTask, whole_kept: int = 1) -> None:
        self._task = task
        self._kept = whole_kept if task.workload.dataset.format in WHOLE else _OPEN_FILES
        self._open: Callable[[str], Opened] | None = None
        self._busy: Callable[[], object] | None = None

    def __len__(self) -> int:
        return self._task.count

    def __getitem__(self, sample: Any) -> Any:
        if self._open is None:
            data, reader = self._task.workload.dataset, self._task.workload.reader
            self._busy = emulate_cost(reader, int(sample))
            self._open = functools.lru_cache(self._kept)(lambda path: open_samples(data, path))
        file, number = divmod(int(sample), self._task.per_file)
        samples = self._open(self._task.paths[file])
        if self._busy is not None:
            self._busy()
        return samples[number]

    def __getstate__(self) -> dict[str, Any]:
        return {"_task": self._task, "_kept": self._kept, "_open": None, "_busy": None}


def stack_samples(rows: list[Any]) -> Any:
    """Make a batch: an array if the samples are arrays of one shape, a tuple of arrays if they have
    several fields, else the list."""
    first = rows[0]
    if isinstance(first, tuple):
        return tuple(stack_samples(list(column)) for column in zip(*rows, strict=True))
    if isinstance(first, np.ndarray) and all(row.shape == first.shape for row in rows):
        return np.stack(rows)
    return [np.ascontiguousarray(row) if isinstance(row, np.ndarray) else row for row in rows]


def emulate_cost(reader: ReaderSpec, seed: int) -> Callable[[], object] | None:
    """The function that spends the time of a sample's preparation; None if that takes none.

    Each call waits for a draw of reader.preprocess_time, without the interpreter's lock.
    """
    cost = reader.preprocess_time
    if cost.mean == 0 and cost.stdev == 0:
        return None
    generator = np.random.default_rng(seed)
    return lambda: time.sleep(float(cost.draw(generator, 1)[0]))


def decode_image(image: Any) -> npt.NDArray[np.uint8]:
    """A decoded JPEG or PNG: (height, width), or (height, width, 3) in colour."""
    if bytes(image[:2]) == b"\xff\xd8":
        try:
            import simplejpeg
        except ModuleNotFoundError:
            pass
        else:
            _, _, space, _ = simplejpeg.decode_jpeg_header(image)
            plain = "GRAY" if space.lower().startswith("gray") else "RGB"
            image_array: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(image, plain)
            return image_array[..., 0] if plain == "GRAY" else image_array
    try:
        import PIL.Image
    except ModuleNotFoundError:
        raise missing_library("pillow", "images", "decoding images") from None
    return np.asarray(PIL.Image.open(io.BytesIO(image)))


def _load_array(path: str) -> npt.NDArray[Any]:
    loaded = np.load(path)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        array: npt.NDArray[Any] = loaded["x"]
        return array


class _Hdf5:
    """Datasets records_0, records_1, ...; a sample is a row of each."""

    def __init__(self, path: str) -> None:
        import h5py

        self._file = h5py.File(path, "r")
        names = sorted(
            (name for name in self._file if name.startswith("records")),
            key=lambda name: (len(name), name),
        )
        if not names:
            raise FormatError(f"{path} has no dataset records_0: is it of DLIO's layout?")
        self._parts = [self._file[name] for name in names]

    def __len__(self) -> int:
        rows: int = self._parts[0].shape[0]
        return rows

    def __getitem__(self, sample: Any) -> Any:
        if len(self._parts) == 1:
            return self._parts[0][sample]
        return tuple(dataset[sample] for dataset in self._parts)


def _read_tfrecords(path: str) -> list[bytes]:
    text = Path(path).read_bytes()
    records, at = [], 0
    while at < len(text):
        (length,) = struct.unpack_from("<Q", text, at)
        if at + 16 + length > len(text):
            raise FormatError(f"{path}: at byte {at:,}: a record of {length:,} bytes is cut short")
        records.append(text[at + 12 : at + 12 + length])
        at += 16 + length
    return records


class _Indexed:
    """Samples back to back, their places in two files beside."""

    def __init__(self, path: str) -> None:
        self._offset, self._size = read_places(path)
        self._path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (open as long as this is)

    def __len__(self) -> int:
        return len(self._size)

    def __getitem__(self, sample: Any) -> Any:
        offset, size = int(self._offset[sample]), int(self._size[sample])
        row = np.empty(size, np.uint8)
        view, at = row.data, 0
        while at < size:
            got = os.preadv(self._file.fileno(), [view[at:]], offset + at)
            if not got:
                raise FormatError(f"{self._path} ends before byte {offset + size:,}")
            at += got
        return row


def read_places(path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Offsets and sizes of the samples of an indexed file. DLIO's offsets may start again at 0
    within a file: its samples are back to back all the same."""
    size = np.fromfile(f"{path}.sz.idx", "<u8").astype(np.int64)
    offset = np.fromfile(f"{path}.off.idx", "<u8").astype(np.int64)
    if len(offset) != len(size):
        raise FormatError(f"{path}.off.idx has {len(offset)} places, {path}.sz.idx {len(size)}")
    packed = np.concatenate([[0], np.cumsum(size)])[:-1]
    return (packed if (offset != packed).any() else offset), size


def _read_rows(path: str) -> Opened:
    """Rows of Parquet; tuples if there are several columns."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    columns = [column.to_pylist() for column in table.columns]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _read_members(path: str) -> list[bytes]:
    import tarfile

    with tarfile.open(path) as archive:
        files = (archive.extractfile(member) for member in archive if member.isfile())
        return [file.read() for file in files if file is not None]


def _read_values(path: str) -> list[bytes]:
    import lmdb

    with (
        lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return [bytes(value) for _, value in transaction.cursor()]
