"""Count the samples and bytes of a batch, and their checksums, whichever loader made it.

A batch is arrays, tensors or byte strings, in mappings, tuples and lists.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from penstock.dataset import Ragged
from penstock.loader import Batch

LABELS = frozenset({"label", "labels", "y", "__key__", "__url__", "__id__", "__epoch__"})
"""Fields that are no part of a sample's bytes on disk."""


def count_batch(batch: Any, expected: int) -> tuple[int, int]:
    """Count the samples and bytes of a batch.

    expected:  the batch size that was asked for. A list holds samples or fields; if it could be
               either, this decides.
    """
    return _count_samples(batch, expected), _count_bytes(batch)


def _count_bytes(part: Any) -> int:
    size = getattr(part, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(part, (bytes, bytearray)):
        return len(part)
    if isinstance(part, Ragged):
        return part.nbytes
    if isinstance(part, str):
        return len(part.encode())
    if isinstance(part, Mapping):
        return sum(map(_count_bytes, part.values()))
    if isinstance(part, (list, tuple)):
        return sum(map(_count_bytes, part))
    return 0


def _count_samples(batch: Any, expected: int) -> int:
    counts = _guess_counts(batch)
    if expected in counts:
        return expected
    return counts[0] if counts else 1


def _guess_counts(part: Any) -> list[int]:
    """The numbers of samples that it may have, most likely first."""
    if isinstance(part, Batch):
        return [len(part.ids)]
    if isinstance(part, Ragged):
        return [len(part)]
    if isinstance(part, Mapping):
        return [count for value in part.values() for count in _guess_counts(value)]
    shape = getattr(part, "shape", None)
    if shape is not None:
        return [int(shape[0])] if len(shape) else []
    if isinstance(part, (list, tuple)) and part:
        inside = _guess_counts(part[0])
        fields = isinstance(part, tuple) or len({*map(_guess_count, part)}) == 1 < len(part)
        return [*inside, len(part)] if fields else [len(part), *inside]
    return []


def _guess_count(part: Any) -> int | None:
    return next(iter(_guess_counts(part)), None)


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
    total = 0
    for part in sample if isinstance(sample, tuple) else (sample,):
        total = zlib.crc32(_as_bytes(part), total)
    return total


def _iterate_columns(batch: Any, count: int) -> Iterator[Any]:
    """The fields of a batch, each of so many rows."""
    if isinstance(batch, Mapping):
        for name, value in batch.items():
            if name not in LABELS:
                yield from _iterate_columns(value, count)
    elif isinstance(batch, (list, tuple)) and not _holds_samples(batch, count):
        for part in batch:
            yield from _iterate_columns(part, count)
    else:
        yield batch


def _holds_samples(batch: Any, count: int) -> bool:
    """True if a list holds samples, and not fields of as many samples."""
    return len(batch) == count and not (count > 1 and {*map(_guess_count, batch)} == {count})


def _as_bytes(part: Any) -> Any:
    if isinstance(part, (bytes, bytearray, memoryview)):
        return part
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, Mapping):
        return b"".join(bytes(_as_bytes(value)) for key, value in part.items() if key not in LABELS)
    if isinstance(part, tuple):
        return b"".join(bytes(_as_bytes(value)) for value in part)
    found = np.ascontiguousarray(np.asarray(part))
    return found.reshape(-1).view(np.uint8)
