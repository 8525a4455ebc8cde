"""Table of the codecs, and the decoding of samples from compressed chunks.

A compressed chunk is read and decoded as one, and may consist of several pieces of the file. The
engine reads it like everything else, and a codec decodes its bytes to samples. Each codec is a
module of its own, imported when it is first used. It imports the container's library then, and
fails with the name of the package to install.

The chunks decoded last are kept, because the next batch may need other samples of them, in half of
the memory of the loaders' budgets and in `limits.decoded_chunks_bytes_max` at most, or in
`Budget.decoded_bytes`.
Their bytes are read again all the same: the plan of a step does not know what is decoded, except of
windows (`plan.chunk_plan`). `shuffle="blocked"` keeps samples of one compressed chunk near each
other.
"""

from __future__ import annotations

import importlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.threads import make_turn
from ...errors import UsageError
from ...extent import Int


class Strings(Protocol):
    """Byte strings of varying length, by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Any: ...


Decoded = npt.NDArray[Any] | Strings
"""Decoded samples of a compressed chunk: rows of an array, or byte strings if lengths vary."""


class CompressedChunk(NamedTuple):
    """Bytes that are read and decoded as one, of one or several pieces of the file.

    number:   its number among the compressed chunks of the field.
    data:     its bytes, piece after piece.
    lengths:  bytes of each piece.
    samples:  number of samples that it must decode to.
    inside:   what its layout knows of it and its codec has to.
    """

    number: int
    data: memoryview
    lengths: Sequence[int]
    samples: int
    inside: Mapping[str, Any] = {}

    def pieces(self) -> list[memoryview]:
        """Cut the data into the bytes of each piece."""
        pieces, start = [], 0
        for length in self.lengths:
            pieces.append(self.data[start : start + length])
            start += length
        return pieces


class PacketColumns(NamedTuple):
    """Packets of some groups, group by group.

    bounds:  int64 (groups + 1,), the first packet of each, and the end.
    sizes, rows:  int64 (packets,), bytes of each, and the row that its frame has in the group.
    config:  int64 (groups,), number of what the decoder is given, among the codec's.
    """

    bounds: Int
    sizes: Int
    rows: Int
    config: Int


Decoder = Callable[[Mapping[str, Any], CompressedChunk], Decoded]
"""Function that decodes a compressed chunk; ValueError that says what is wrong with its bytes.

The samples outlive the chunk: nothing in them may be a view of its bytes.
"""


def _decode_by(path: str, options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode by "module.function", whose module is imported at the first call."""
    module, _, name = path.partition(".")
    function: Decoder = getattr(importlib.import_module(f".{module}", __package__), name)
    return function(options, compressed)


CODECS: dict[str, Decoder] = {
    "arrow": partial(_decode_by, "arrow.decode"),
    "hdf5": partial(_decode_by, "chunked_arrays.decode_hdf5"),
    "lines": partial(_decode_by, "decompression.decode_lines"),
    "film": partial(_decode_by, "film.decode"),
    "npz": partial(_decode_by, "chunked_arrays.decode_npz"),
    "litdata": partial(_decode_by, "decompression.decode_leaves"),
    "parquet": partial(_decode_by, "parquet.decode"),
    "sound": partial(_decode_by, "sound.decode"),
    "zarr": partial(_decode_by, "chunked_arrays.decode_zarr"),
}


class Packed:
    """Byte strings in one buffer: string i is values[start[i]:end[i]]."""

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


class BrokenChunk(ValueError):
    """A chunk, by its number among those of the field, that does not hold what its index says."""

    def __init__(self, chunk: int, text: str) -> None:
        super().__init__(text)
        self.chunk = chunk


class NullRow(ValueError):
    """A null that cannot be a sample: the chunk is as it was written, and nothing is damaged.

    row:    its row of the chunk.
    chunk:  the number of the chunk among those of the field; -1 while it is not known.
    """

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row, self.chunk = row, -1


class DecodedChunks:
    """Samples of the compressed chunks that were decoded last, up to a number of bytes; thread-
    safe.

    bytes_max:  in all. If owners share their memory, no more than the sum of their shares; what
                they give for chunks alone comes on top.

    A key begins with the layout and the codec of the chunk, by identity: an index of changed data
    has others, and a mixture has its datasets' chunks.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._held: OrderedDict[tuple[object, ...], tuple[Decoded, int]] = OrderedDict()
        self._shares: weakref.WeakKeyDictionary[object, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = make_turn()

    def get(self, key: tuple[object, ...]) -> Decoded | None:
        """Return the chunk of this key, as the newest; None if it is not kept."""
        with self._lock:
            entry = self._held.get(key)
            if entry is None:
                return None
            self._held.move_to_end(key)
            return entry[0]

    def put(self, key: tuple[object, ...], decoded: Decoded) -> None:
        """Keep a decoded chunk, and drop the oldest ones that leave no room for it."""
        size = getattr(decoded, "nbytes", None)
        if size is None:
            size = sum(len(decoded[row]) + 64 for row in range(len(decoded)))
        with self._lock:
            if size > self._count_room() // 2:
                return
            before = self._held.pop(key, None)
            self.bytes += size - (before[1] if before else 0)
            self._held[key] = decoded, size
            self._drop_oldest()

    def share(self, owner: object, size_bytes: int, own_bytes: int = 0) -> None:
        """Set the memory that an owner has for chunks, as long as it lives.

        own_bytes:  for chunks alone, beyond `bytes_max`.
        """
        with self._lock:
            self._shares[owner] = size_bytes, own_bytes
            self._drop_oldest()

    def _count_room(self) -> int:
        shares = list(self._shares.values())
        if not shares:
            return self.bytes_max
        own = sum(own_bytes for _, own_bytes in shares)
        return min(self.bytes_max, sum(size for size, _ in shares)) + own

    def _drop_oldest(self) -> None:
        room = self._count_room()
        while self.bytes > room:
            self.bytes -= self._held.popitem(last=False)[1][1]


RECENT = DecodedChunks(limits.decoded_chunks_bytes_max)
"""Chunks that this process decoded last, for whichever loader."""


def decode_samples(
    codec: str,
    options: Mapping[str, Any],
    chunks: Sequence[CompressedChunk],
    chunk: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
    owner: tuple[object, ...] | None = None,
) -> npt.NDArray[Any] | list[Any]:
    """Decode samples: sample i is row `row[i]` of chunk `chunk[i]`; each chunk is decoded once.

    owner:  layout and codec that the chunks' numbers belong to; None: decoded chunks are not kept.

    ValueError if a chunk does not hold what its index says.
    """
    decoded = [decode_chunk(codec, options, compressed, owner) for compressed in chunks]
    arrays = [array for array in decoded if isinstance(array, np.ndarray)]
    if decoded and len(arrays) == len(decoded):
        shape, dtype = arrays[0].shape[1:], arrays[0].dtype
        if all(array.shape[1:] == shape and array.dtype == dtype for array in arrays):
            samples = np.empty((len(row), *shape), dtype)
            for number, array in enumerate(arrays):
                at = np.flatnonzero(chunk == number)
                samples[at] = array[row[at]]
            return samples
    return [decoded[c][r] for c, r in zip(chunk.tolist(), row.tolist(), strict=True)]


def decode_chunk(
    codec: str,
    options: Mapping[str, Any],
    compressed: CompressedChunk,
    owner: tuple[object, ...] | None,
) -> Decoded:
    """Decode a chunk, or find it among those that were decoded last.

    owner:  layout and codec that its number belongs to; None: it is not kept.

    ValueError if it does not hold what its index says.
    """
    key = None if owner is None else (*owner, compressed.number)
    decoded = None if key is None else RECENT.get(key)
    if decoded is None:
        try:
            decoded = CODECS[codec](options, compressed)
        except NullRow as error:
            error.chunk = compressed.number
            raise
        except UsageError:  # a library is not installed
            raise
        except ValueError as error:
            raise BrokenChunk(compressed.number, str(error)) from None
        if len(decoded) != compressed.samples:
            what = f"{len(decoded)} samples were decoded, not {compressed.samples}"
            raise BrokenChunk(compressed.number, what)
        if key is not None:
            RECENT.put(key, decoded)
    return decoded
