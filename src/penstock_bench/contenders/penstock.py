"""penstock's own loader.

If files of many samples are read as a whole, it reads files, and batches are cut from them.
Arrays that a format stores as they are (npz, npy) are used in the batch's memory, without a copy.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.budget import Budget
from penstock.dataset import Dataset, Ragged
from penstock.dataset import open as open_dataset
from penstock.engine import open_store
from penstock.errors import FormatError, UsageError
from penstock.index import Field, Index, RowTable
from penstock.loader import Batch, Loader
from penstock.order import Shuffle

from .delivery import LABELS, Contender, DeliveryTask
from .samples import decode_image, emulate_cost, read_places, stack_samples, unpack

Bytes = npt.NDArray[np.uint8]
Take = Callable[[dict[str, Any]], Any]


class Penstock(Contender):
    """penstock.Loader; reading threads as it chooses, reader.read_threads threads that decode."""

    def __init__(self, task: DeliveryTask) -> None:
        reader = task.workload.reader
        self._task = task
        mine = task.stretch() if task.compat else task
        dataset = open_task(mine)
        self._whole = whole = mine.per_file > 1 and len(dataset) == len(mine.paths)
        mixing = mine.mixing(whole)
        shuffle: Shuffle = "none" if mixing == "none" else "exact"
        self.settings: dict[str, Any] = {"shuffle": mixing}
        more: dict[str, Any] = {}
        if mixing == "files" and mine.per_file > 1 and not whole:
            shuffle = "blocked"
            more = {"block": mine.per_file, "group": 1}
        decode = self._choose_decode(task)
        if decode is not None:
            more |= {"decode": decode, "collate": list}
            more["decode_threads"] = self.settings["decode_threads"] = max(1, reader.read_threads)
        budget = Budget(direct="required" if reader.odirect else "auto")
        self._loader = Loader(
            dataset,
            max(1, mine.batch_size // mine.per_file) if whole else mine.batch_size,
            shuffle=shuffle,
            seed=mine.seed,
            drop_last=not whole,
            pad=whole,
            rank=mine.rank,
            world_size=mine.ranks,
            budget=budget,
            **more,
        )

    @staticmethod
    def _choose_decode(task: DeliveryTask) -> Take | None:
        return choose_decode(task)

    def batches(self, epoch: int) -> Iterable[Any]:
        self._loader.set_epoch(self._task.order_epoch(epoch))
        if self._whole:
            return self._cut(self._task.within(self._task.order_epoch(epoch)).tolist())
        as_stored = self._task.workload.dataset.format in ("npz", "npy")
        if as_stored and self._loader._decode is None:
            return map(Payloads(whole=False), self._loader)
        return super().batches(epoch)

    def _cut(self, sequence: list[int]) -> Iterator[Any]:
        """Batches of the samples of files, each file's in this sequence."""
        size = self._task.batch_size
        pending: list[Any] = []
        payloads = Payloads(whole=True)
        for batch in self._loader:
            for samples in payloads(batch) if isinstance(batch, Batch) else batch:
                rows = samples if isinstance(samples, list) else np.moveaxis(samples, -1, 0)
                pending += (rows[k] for k in sequence)
                while len(pending) >= size:
                    yield stack_samples(pending[:size])
                    del pending[:size]

    def close(self) -> None:
        stats = self._loader.stats()
        self.settings |= {key: stats[key] for key in ("backend", "threads") if key in stats}
        self._loader.close()


class PenstockBytes(Penstock):
    """The same loader without decoding: bytes of whole files, as they are stored."""

    def __init__(self, task: DeliveryTask) -> None:
        if task.per_file > 1:
            what = f"files of {task.per_file} samples, and --loader penstock-bytes takes them whole"
            raise UsageError(f"dataset.num_samples_per_file: {what}: take --loader penstock")
        super().__init__(task)

    @staticmethod
    def _choose_decode(task: DeliveryTask) -> Take | None:
        return None

    def batches(self, epoch: int) -> Iterable[Any]:
        self._loader.set_epoch(self._task.order_epoch(epoch))
        batches: Iterable[Any] = self._loader
        return batches


def open_task(task: DeliveryTask) -> Dataset:
    data = task.workload.dataset
    match data.format:
        case "npz" | "npy" | "jpeg" | "png" | "synthetic":
            return _index_files(task)
        case "csv":
            return _index_files(task) if data.compression != "none" else _index_lines(task)
        case "indexed_binary" | "mmap_indexed_binary":
            return _index_places(task, [read_places(path) for path in task.paths])
        case "hdf5":
            count = data.hdf5.num_dset_per_record
            is_plain = count == 1 and data.compression == "none" and not data.hdf5.chunk_dims
            if task.per_file == 1 and data.record_length_bytes_stdev and is_plain:
                return _index_places(task, [_find_array(path) for path in task.paths])
            fields = {f"records_{n}": f"records_{n}" for n in range(count)}
            sample = "file" if task.per_file == 1 else "row"
            return _open_format(task, fields=fields, label="", isolate=False, sample=sample)
    return _open_format(task)


def _open_format(task: DeliveryTask, **options: Any) -> Dataset:
    """The files as penstock opens them; a saved index of their folder is used where all of it is
    wanted. None is saved: a benchmark leaves nothing in the data."""
    format = task.workload.dataset.format
    inside = sum(len(names) for _, _, names in os.walk(task.folder))
    whole = inside == len(task.paths) and format != "lmdb"  # a folder is one environment there
    given: str | list[str] = task.folder if whole else list(task.paths)
    return open_dataset(given, format=format, index="read", **options)


def _index(task: DeliveryTask, table: Callable[[Any], RowTable]) -> Dataset:
    """A dataset of bytes in these files, wherever in them the samples are."""
    if "://" in task.folder:
        root, names = task.folder, [path.removeprefix(f"{task.folder}/") for path in task.paths]
    else:
        root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in task.paths])
        names = [os.path.relpath(path, root) for path in task.paths]
    files = open_store(root).stat(names)
    index = Index(
        format=task.workload.dataset.format,
        files=files,
        fields=(Field("data", np.dtype(np.uint8), None),),
        layouts=(table(files),),
        sources=files,
    )
    return Dataset(task.folder, index)


def _index_files(task: DeliveryTask) -> Dataset:
    return _index(task, lambda files: RowTable(None, None, files.size))


def _index_places(
    task: DeliveryTask, file_places: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
) -> Dataset:
    """Samples at these offsets, of these sizes, in each file."""
    file = np.repeat(
        np.arange(len(file_places), dtype=np.uint32), [len(size) for _, size in file_places]
    )
    offset = np.concatenate([place for place, _ in file_places])
    size = np.concatenate([place for _, place in file_places])
    return _index(task, lambda _: RowTable(file, offset, size))


def _find_array(path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Offset and size of the one sample of an HDF5 file, which has a shape of its own."""
    import h5py

    with h5py.File(path) as file:
        array = file["records_0"].id
        return np.array([array.get_offset() or 0]), np.array([array.get_storage_size()])


def _index_lines(task: DeliveryTask) -> Dataset:
    """Each line of text a sample; the files are read once to find them."""
    lines = []
    for path in task.paths:
        text = np.fromfile(path, np.uint8)
        ends = np.flatnonzero(text == ord("\n")) + 1
        if len(text) and (not len(ends) or ends[-1] != len(text)):
            ends = np.append(ends, len(text))
        starts = np.concatenate([[0], ends])[:-1]
        lines.append((starts.astype(np.int64), np.diff(ends, prepend=0).astype(np.int64)))
    return _index_places(task, lines)


def choose_decode(task: DeliveryTask) -> Take | None:
    """The function that decodes a sample; None if its bytes are used as they are."""
    data = task.workload.dataset
    wait = emulate_cost(task.workload.reader, task.seed + task.rank)
    per_file, dtype = data.num_samples_per_file, data.record_element_type

    def parse_row(row: bytes) -> Any:
        return np.fromstring(row, dtype, sep=",")

    def decode(file: Bytes) -> Any:
        match data.format:
            case "jpeg" | "png":
                image = decode_image(file)
                return image if per_file == 1 else [image] * per_file
            case "csv" if data.compression == "none":
                return parse_row(bytes(file))
            case "csv":
                return [parse_row(row) for row in unpack(bytes(file)).splitlines()]
        array = _inflate(file)
        return array[..., 0] if per_file == 1 else array

    is_stored = data.compression == "none" and wait is None
    is_decoded = data.format in ("jpeg", "png", "csv", *(() if is_stored else ("npz", "npy")))
    if wait is None and not is_decoded:
        return None

    def take(sample: dict[str, Any]) -> Any:
        if wait is not None:
            wait()
        if is_decoded:
            return decode(sample["data"])
        fields = [field for name, field in sample.items() if name not in LABELS]
        return fields[0] if len(fields) == 1 else tuple(fields)

    return take


class PayloadLayout(NamedTuple):
    """Place, type and shape of the array in an uncompressed .npz or .npy file.

    checked:  the parts of the file, as slices, that are equal in all files of this layout (other
              parts of their head are times and checksums), and `head`, their content.
    """

    begin: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    checked: tuple[slice, ...]
    head: tuple[Bytes, ...]

    def fits(self, files: Bytes) -> bool:
        """True if all of these files (n, bytes) are of this layout."""
        pairs = zip(self.checked, self.head, strict=True)
        return all(bool((files[:, span] == content).all()) for span, content in pairs)

    def array(self, file: Bytes) -> npt.NDArray[Any]:
        """The array in a file's bytes, a view; FormatError if the file is too short."""
        size = math.prod(self.shape) * self.dtype.itemsize
        content = file[self.begin : self.begin + size]
        if len(content) != size:
            raise FormatError(f"a data file is cut short: {len(content):,} of {size:,} bytes")
        return content.view(self.dtype).reshape(self.shape, order="F" if self.fortran else "C")


class Payloads:
    """The arrays in batches of .npz or .npy files: views of their memory where they are
    uncompressed. Arrays of one sample lose the axis that counts samples."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._last: PayloadLayout | None = None

    def __call__(self, batch: Batch) -> Any:
        files: Bytes | Ragged = batch["data"]
        if isinstance(files, np.ndarray) and len(files):
            layout = self._last
            if layout is None or not layout.fits(files):
                layout = self._last = read_layout(files[0])
            if layout is not None and not layout.fortran and layout.fits(files):
                end = layout.begin + math.prod(layout.shape) * layout.dtype.itemsize
                array = files[:, layout.begin : end].view(layout.dtype)
                array = array.reshape(len(files), *layout.shape)
                return array if self._whole else array[..., 0]
        arrays = [read_stored(file) for file in files]
        return arrays if self._whole else [array[..., 0] for array in arrays]


def read_stored(file: Bytes) -> npt.NDArray[Any]:
    """The array in the bytes of an .npz (of the name x) or .npy file: a view, unless that is
    compressed, or not as DLIO and numpy write it."""
    layout = read_layout(file)
    return _inflate(file) if layout is None else layout.array(file)


def read_layout(file: Bytes) -> PayloadLayout | None:
    """The layout of a file; None where numpy itself has to read it. FormatError where it is of
    neither format."""
    head = bytes(file[:_HEAD_BYTES])
    at, method = 0, slice(0, 0)
    if head[:4] == b"PK\x03\x04":
        flags, packed = struct.unpack_from("<HH", head, 6)  # of the zip's local header
        name, extra = struct.unpack_from("<HH", head, 26)
        if packed or flags & 8 or head[30 : 30 + name] != b"x.npy":  # 8: sizes follow later
            return None
        at, method = 30 + name + extra, slice(6, 10)
    stream = io.BytesIO(head[at:])
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran, dtype = _READ_HEADER[version](stream)
    except (ValueError, KeyError):
        raise FormatError(f"a data file starts with {head[:8]!r}: it is no .npz or .npy") from None
    begin = at + stream.tell()
    checked = (method, slice(18 if at else 0, begin))  # not the time, date and CRC-32
    contents = tuple(file[piece].copy() for piece in checked)
    return PayloadLayout(begin, dtype, shape, fortran, checked, contents)


_HEAD_BYTES = 4096
_READ_HEADER: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, Any]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _inflate(file: Any) -> npt.NDArray[Any]:
    loaded = np.load(io.BytesIO(file))
    array: npt.NDArray[Any] = loaded if isinstance(loaded, np.ndarray) else loaded["x"]
    return array
