"""The task of a contender: which files, to which rank, in which order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.order import Order

from ..workload.sections import DlioWorkload

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
