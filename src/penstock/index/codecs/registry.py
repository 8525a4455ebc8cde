"""Codecs: what the bytes of a band become, for containers that compress.

A band is one or several chunks of a file, read by the engine like everything else; a codec turns
it into the samples that came out of it. Each codec is a module of its own, imported when it is
first used; it asks for the container's library then, and fails with the name of what to install.

Bands decoded lately are kept (`limits.decoded_bands_bytes_max`), since the next batch may want
other samples of them. Their bytes are read again all the same: the plan of a step knows nothing
of what is decoded. `shuffle="blocked"` keeps samples of one band near each other.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import UsageError


class Strings(Protocol):
    """Byte strings by number, where lengths vary."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Any: ...


Decoded = npt.NDArray[Any] | Strings
"""The samples of a band: rows of an array, or byte strings where lengths vary."""


class CompressedChunk(NamedTuple):
    """What was read.

    number:   which band of the field it is.
    data:     its bytes, piece after piece.
    lengths:  bytes of each piece.
    samples:  how many must come out of it.
    """

    number: int
    data: memoryview
    lengths: Sequence[int]
    samples: int

    def pieces(self) -> list[memoryview]:
        """The bytes of each piece."""
        found, start = [], 0
        for length in self.lengths:
            found.append(self.data[start : start + length])
            start += length
        return found


Decoder = Callable[[Mapping[str, Any], CompressedChunk], Decoded]
"""The samples of a band, or ValueError that says what is wrong with its bytes.

They outlive the band: nothing in them may be a view of its bytes.
"""


def _module(name: str) -> Decoder:
    """The `decode` of the module of this name, which is imported when it is first called."""

    def decode(options: Mapping[str, Any], band: CompressedChunk) -> Decoded:
        found: Decoded = importlib.import_module(f".{name}", __package__).decode(options, band)
        return found

    return decode


CODECS: dict[str, Decoder] = {
    name: _module(name) for name in ("arrow", "hdf5", "litdata", "parquet", "zarr")
}


class Packed:
    """Byte strings that lie in one buffer: string i is values[start[i]:end[i]]."""

    __slots__ = ("end", "nbytes", "start", "values")

    def __init__(
        self, values: memoryview, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
    ) -> None:
        self.values, self.start, self.end = values, start, end
        self.nbytes = len(values) + start.nbytes + end.nbytes

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, row: int, /) -> memoryview:
        return self.values[self.start[row] : self.end[row]]


def missing_library(package: str, extra: str, what: str) -> UsageError:
    """The error for a library that is not installed."""
    return UsageError(f"{what} needs {package}: pip install 'penstock[{extra}]'")


class Lately:
    """The bands that were decoded last, up to a number of bytes; for several threads.

    A key begins with the index that the band is of, by identity: an index of changed data is
    another one.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._held: OrderedDict[tuple[object, ...], tuple[Decoded, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...]) -> Decoded | None:
        """The band of this key, which is then the newest."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: tuple[object, ...], decoded: Decoded) -> None:
        """Keep a band, and forget the oldest ones that leave no room for it."""
        size = _bytes_of(decoded)
        if size > self.bytes_max // 2:
            return
        with self._lock:
            before = self._held.pop(key, None)
            self.bytes += size - (before[1] if before else 0)
            self._held[key] = decoded, size
            while self.bytes > self.bytes_max:
                self.bytes -= self._held.popitem(last=False)[1][1]


def _bytes_of(decoded: Decoded) -> int:
    known = getattr(decoded, "nbytes", None)
    if known is not None:
        return int(known)
    return sum(len(decoded[row]) + 64 for row in range(len(decoded)))


_lately = Lately(limits.decoded_bands_bytes_max)


def rows(
    codec: str,
    options: Mapping[str, Any],
    bands: Sequence[CompressedChunk],
    band: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
    owner: tuple[object, ...] | None = None,
) -> npt.NDArray[Any] | list[Any]:
    """Sample i is row `row[i]` of band `band[i]`; each band is decoded once.

    owner:  what the bands' numbers are of, an index and a field of it; None: bands are not kept.

    ValueError where a band does not hold what its index says.
    """
    decoded = [_decoded(codec, options, each, owner) for each in bands]
    arrays = [each for each in decoded if isinstance(each, np.ndarray)]
    if decoded and len(arrays) == len(decoded):
        shape, dtype = arrays[0].shape[1:], arrays[0].dtype
        if all(each.shape[1:] == shape and each.dtype == dtype for each in arrays):
            found = np.empty((len(row), *shape), dtype)
            for number, held in enumerate(arrays):
                at = np.flatnonzero(band == number)
                found[at] = held[row[at]]
            return found
    return [decoded[b][r] for b, r in zip(band.tolist(), row.tolist(), strict=True)]


def _decoded(
    codec: str, options: Mapping[str, Any], band: CompressedChunk, owner: tuple[object, ...] | None
) -> Decoded:
    key = None if owner is None else (*owner, band.number)
    held = None if key is None else _lately.get(key)
    if held is None:
        held = CODECS[codec](options, band)
        if len(held) != band.samples:
            raise ValueError(f"{len(held)} samples were decoded, {band.samples} expected")
        if key is not None:
            _lately.put(key, held)
    return held
