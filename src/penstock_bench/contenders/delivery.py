"""Delivery of samples by a contender: which files, to which rank, in which order; and how many
samples and bytes a batch has, and their checksums, whichever loader made it.

A batch is arrays, tensors or byte strings, in mappings, tuples and lists. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.dataset import Ragged
from penstock.loader import Batch
from penstock.order import Order

from ..workload.sections import DlioWorkload

# -- what is asked for -----------------------------------------------------------------------------


WHOLE = frozenset({"npz", "npy", "jpeg", "png", "csv", "tfrecord", "tar", "lmdb", "parquet"})
"""Formats of which a file is read from its start: all samples that it holds are taken at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryTask:
    """The samples of one part of a workload, as one rank gets them.

    part:    "train" or "valid".
    paths:   the files, in DLIO's order.
    folder:  of the files, with their sub-folders.
    steps:   batches of an epoch of this rank.
    seed:    of the shuffle; drawn if the workload asks for "random".
    compat:  the order is DLIO's: a rank has the same stretch in each epoch, in ascending order.
    place:   the folder of the converted data, for a contender that reads another format.
    """

    workload: DlioWorkload
    part: str
    paths: Sequence[str]
    folder: str
    rank: int = 0
    ranks: int = 1
    steps: int = 0
    seed: int = 0
    epochs: int = 1
    compat: bool = False
    place: str | None = None

    @property
    def batch_size(self) -> int:
        """Samples of a step of one rank."""
        reader = self.workload.reader
        return reader.batch_size if self.part == "train" else reader.batch_size_eval

    @property
    def per_file(self) -> int:
        """Samples of a file."""
        return self.workload.dataset.num_samples_per_file

    @property
    def count(self) -> int:
        """Samples of all ranks."""
        return len(self.paths) * self.per_file

    @property
    def shuffle(self) -> str:
        """The unit that an epoch shuffles if files are read as a whole: see `mixing`."""
        return self.mixing(self.by_file)

    def mixing(self, whole: bool) -> str:
        """The unit that an epoch shuffles: "samples", "files" (whose samples stay together) or
        "none". Evaluation goes in order.

        whole:  files are read as a whole, so that their samples are to stay together.
        """
        reader = self.workload.reader
        if self.compat or self.part != "train":
            return "none"
        if reader.sample_shuffle != "off":
            return "files" if whole else "samples"
        return "files" if reader.file_shuffle != "off" else "none"

    @property
    def by_file(self) -> bool:
        """True if samples of a file are best delivered together, because it is read as a whole."""
        return self.per_file > 1 and self.workload.dataset.format in WHOLE

    def order_epoch(self, epoch: int) -> int:
        """The epoch that an order is drawn for: always the first one if the workload keeps the
        seed."""
        return epoch if self.workload.train.seed_change_epoch else 0

    def ids(self, epoch: int) -> npt.NDArray[np.int64]:
        """The samples of this rank in an epoch, `steps * batch_size` of them, in their sequence.
        Sample i is the (i mod samples per file)th of file i // samples per file."""
        length = self.steps * self.batch_size
        if self.compat:
            return np.arange(self.rank * length, (self.rank + 1) * length)
        epoch = self.order_epoch(epoch)
        if self.by_file:
            # Each rank has a stretch of the sequence, so that few files have two readers.
            return self._by_files(epoch)[self.rank * length : (self.rank + 1) * length]
        positions = np.arange(length * self.ranks, dtype=np.uint64)
        mine = positions.reshape(self.steps, self.batch_size, self.ranks)[:, :, self.rank].ravel()
        if self.shuffle == "none":
            return mine.astype(np.int64)
        if self.shuffle == "files" and self.per_file > 1:
            return self._by_files(epoch)[mine]
        return Order(self.count, self.seed, epoch).samples(mine).astype(np.int64)

    def _by_files(self, epoch: int) -> npt.NDArray[np.int64]:
        """All samples, files in the epoch's order, each file's samples in another order."""
        files = np.arange(len(self.paths))
        if self.shuffle != "none":
            order = Order(len(self.paths), self.seed, epoch, purpose="shard")
            files = order.samples(files.astype(np.uint64)).astype(np.int64)
        return (files[:, None] * self.per_file + self.within(epoch)).ravel()

    def within(self, epoch: int) -> npt.NDArray[np.int64]:
        """The sequence of a file's samples, if they stay together."""
        numbers = np.arange(self.per_file)
        if self.shuffle == "none" or self.workload.reader.sample_shuffle == "off":
            return numbers
        order = Order(self.per_file, self.seed, epoch, stream=1)
        return order.samples(numbers.astype(np.uint64)).astype(np.int64)

    def stretch(self) -> DeliveryTask:
        """In compat mode, the files of this rank's stretch, as a task of one rank."""
        length = self.steps * self.batch_size
        first = self.rank * length // self.per_file
        last = -(-(self.rank + 1) * length // self.per_file)
        return replace(self, paths=self.paths[first:last], rank=0, ranks=1)


class Contender:
    """A loader under measurement; made of a `DeliveryTask`.

    settings:  its threads, read-ahead and order, for the record.
    """

    settings: dict[str, Any]
    _loader: Any

    def batches(self, epoch: int) -> Iterable[Any]:
        """The batches of this rank in an epoch, from 0; of more than `task.steps` the first are
        taken."""
        batches: Iterable[Any] = self._loader
        return batches

    def close(self) -> None:
        """End all threads and processes."""

    @classmethod
    def convert(cls, task: DeliveryTask) -> None:
        """Convert the data of a part into `task.place`, if the library has its own format."""


# -- what is delivered -----------------------------------------------------------------------------


LABELS = frozenset({"label", "labels", "y", "__key__", "__url__", "__id__", "__epoch__"})
"""Fields that are no part of a sample's bytes on disk."""


def count_batch(batch: Any, expected: int) -> tuple[int, int]:
    """Count the samples and bytes of a batch.

    expected:  the batch size that was asked for. A list holds samples or fields; if it could be
               either, this decides.
    """
    return _count_samples(batch, expected), _count_bytes(batch)


def _count_bytes(data: Any) -> int:
    if isinstance(data, (bytes, bytearray, str)):
        return len(data.encode() if isinstance(data, str) else data)
    if isinstance(data, Mapping):
        return sum(map(_count_bytes, data.values()))
    if isinstance(data, (list, tuple)):
        return sum(map(_count_bytes, data))
    size = getattr(data, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _count_samples(batch: Any, expected: int) -> int:
    counts = _guess_counts(batch)
    if expected in counts:
        return expected
    return counts[0] if counts else 1


def _guess_counts(data: Any) -> list[int]:
    """The numbers of samples that it may have, most likely first."""
    if isinstance(data, Batch):
        return [len(data.ids)]
    if isinstance(data, Ragged):
        return [len(data)]
    if isinstance(data, Mapping):
        return [count for value in data.values() for count in _guess_counts(value)]
    shape = getattr(data, "shape", None)
    if shape is not None:
        return [int(shape[0])] if len(shape) else []
    if isinstance(data, (list, tuple)) and data:
        inside = _guess_counts(data[0])
        fields = isinstance(data, tuple) or len({*map(_guess_count, data)}) == 1 < len(data)
        return [*inside, len(data)] if fields else [len(data), *inside]
    return []


def _guess_count(data: Any) -> int | None:
    return next(iter(_guess_counts(data)), None)


def compute_checksums(batch: Any, expected: int) -> list[int]:
    """Compute the CRC-32 of each sample of a batch, over its fields in sequence, without labels."""
    count = _count_samples(batch, expected)
    sums = [0] * count
    for column in _iterate_columns(batch, count):
        for row in range(count):
            sums[row] = zlib.crc32(_as_bytes(column[row]), sums[row])
    return sums


def compute_checksum(sample: Any) -> int:
    """Compute the CRC-32 of one sample, of one or several fields."""
    return zlib.crc32(_as_bytes(sample))


def _iterate_columns(batch: Any, count: int) -> Iterator[Any]:
    """The fields of a batch, each of `count` rows."""
    if isinstance(batch, Mapping):
        for name, value in batch.items():
            if name not in LABELS:
                yield from _iterate_columns(value, count)
    elif isinstance(batch, (list, tuple)) and not _holds_samples(batch, count):
        for field in batch:
            yield from _iterate_columns(field, count)
    else:
        yield batch


def _holds_samples(batch: Any, count: int) -> bool:
    """True if a list holds samples, and not fields of as many samples."""
    return len(batch) == count and not (count > 1 and {*map(_guess_count, batch)} == {count})


def _as_bytes(data: Any) -> Any:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, Mapping):
        return b"".join(bytes(_as_bytes(value)) for key, value in data.items() if key not in LABELS)
    if isinstance(data, tuple):
        return b"".join(bytes(_as_bytes(value)) for value in data)
    array = np.ascontiguousarray(np.asarray(data))
    return array.reshape(-1).view(np.uint8)
