"""Writing of tokenized documents as Megatron reads them: tokens in .bin, their places in .idx.

While tokens are appended, the lengths of documents are kept in a file beside; the .idx is made of
them at the end. Both files are durable up to the last commit, whose numbers the manifest holds:
everything behind is cut off when a run goes on.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from ..engine.atomic_file import AtomicFile, QueuedFile, storage_errors
from ..errors import UsageError
from ..extent import Int
from ..own_files import open_own

BIN, IDX, LENGTHS, PLACED = "tokens.bin", "tokens.idx", ".lengths", ".placed-"
"""Names of the files while they are written, and the beginning of those that many write to."""
_MAGIC = b"MMIDIDX\0\0"
_CODES = {"uint16": 8, "int32": 4}
_NARROW_BELOW = 65_500
"""Size of a vocabulary from which on tokens have four bytes. Some values of two bytes stay free,
by the convention of the format."""
SEQUENCE_TOKENS_MAX = (1 << 31) - 1
"""Most tokens of a sequence, whose length has four bytes. A longer document has several."""
_DOCUMENTS_AT_ONCE = 1 << 18
_PIECE_BYTES = 4 << 20


def choose_dtype(vocabulary: int) -> np.dtype[Any]:
    """Choose the type of tokens by the size of the vocabulary."""
    return np.dtype("<u2" if vocabulary < _NARROW_BELOW else "<i4")


class TokenWriter:
    """Writer of tokens and lengths in a folder, from a state on that an earlier one committed.

    state:  documents and tokens so far (`end`, `tokens`), bytes and their crc32, and how many
            documents are `empty` or `broken`.
    """

    def __init__(self, folder: str, dtype: np.dtype[Any], state: Mapping[str, Any] | None) -> None:
        self.folder, self.dtype = folder, dtype
        began: dict[str, Any] = {"name": BIN, "first": 0, "end": 0, "bytes": 0, "crc32": 0}
        self.state = {**began, "tokens": 0, "empty": 0, "broken": 0, **(state or {})}
        self._tokens = self._open(BIN, self.state["bytes"])
        self._lengths = self._open(LENGTHS, 8 * self.state["end"])

    def _open(self, name: str, size: int) -> BinaryIO:
        """Open a file to append to it, cut to its committed size."""
        path = os.path.join(self.folder, name)
        with storage_errors(path):
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
            file = io.BufferedRandom(QueuedFile(descriptor, "r+", "convert"), _PIECE_BYTES)
            present = os.fstat(file.fileno()).st_size
            if present < size:
                file.close()
                sizes = f"{present:,} bytes, not {size:,}"
                raise UsageError(f"{path} has {sizes}: put it back, or remove its folder")
            file.truncate(size)
            file.seek(size)
        return file

    def append(self, tokens: bytes, counts: Int, before: int, broken: int) -> None:
        """Append documents: their tokens, and the number in each. `before`: tokens that an empty
        one has."""
        with storage_errors(os.path.join(self.folder, BIN)):
            self._tokens.write(tokens)
        crc32 = zlib.crc32(tokens, self.state["crc32"])
        self.append_placed(len(tokens), crc32, counts, before, broken)

    def append_placed(self, size: int, crc32: int, counts: Int, before: int, broken: int) -> None:
        """Append documents whose tokens, so many bytes, others write; crc32: of all so far."""
        with storage_errors(os.path.join(self.folder, LENGTHS)):
            self._lengths.write(counts.tobytes())
        more = {
            "end": len(counts),
            "bytes": size,
            "tokens": size // self.dtype.itemsize,
            "empty": int((counts <= before).sum()),
            "broken": broken,
        }
        state = {name: self.state[name] + number for name, number in more.items()}
        state["crc32"] = crc32
        self.state = {**self.state, **state}  # at once: Ctrl-C commits what is there

    def sync(self) -> dict[str, Any]:
        """Put all that was appended on the device; the state to be committed."""
        with storage_errors(os.path.join(self.folder, BIN)):
            for file in (self._tokens, self._lengths):
                file.flush()
                os.fsync(file.fileno())
        return dict(self.state)

    def close(self) -> None:
        """Close the files."""
        for file in (self._tokens, self._lengths):
            try:
                file.close()
            except OSError:
                file.raw.close()  # type: ignore[attr-defined]

    def write_idx(self) -> dict[str, Any]:
        """Write the .idx of all documents; its name, size and checksum."""
        sequences = sum(int(_count_sequences(length).sum()) for length in self._read_lengths())
        documents = self.state["end"]
        with AtomicFile(os.path.join(self.folder, IDX)) as file:
            file.write(_MAGIC + struct.pack("<QB", 1, _CODES[self.dtype.name]))
            file.write(struct.pack("<QQ", sequences, documents + 1))
            for lengths in self._read_lengths():
                file.write(_cut(lengths).astype("<i4").tobytes())
            at = 0
            for lengths in self._read_lengths():
                ends = at + np.cumsum(_cut(lengths)) * self.dtype.itemsize
                file.write(np.concatenate([[at], ends[:-1]]).astype("<i8").tobytes())
                at = int(ends[-1])
            first = 0
            file.write(bytes(8))
            for lengths in self._read_lengths():
                ends = first + np.cumsum(_count_sequences(lengths))
                file.write(ends.astype("<i8").tobytes())
                first = int(ends[-1])
            file.sync()
            file.commit()
        return {"name": IDX, "first": 0, "end": documents, "bytes": file.size, "crc32": file.crc32}

    def _read_lengths(self) -> Iterator[Int]:
        path = os.path.join(self.folder, LENGTHS)
        for first in range(0, self.state["end"], _DOCUMENTS_AT_ONCE):
            count = min(_DOCUMENTS_AT_ONCE, self.state["end"] - first)
            yield np.fromfile(path, np.int64, count, offset=8 * first)


def _count_sequences(lengths: Int) -> Int:
    """Count the sequences of each document: one, if it is empty, too."""
    return np.maximum(1, -(-lengths // SEQUENCE_TOKENS_MAX))


def _cut(lengths: Int) -> Int:
    """Cut the lengths of documents into the lengths of their sequences."""
    count = _count_sequences(lengths)
    if (count == 1).all():
        return lengths
    cut = np.full(int(count.sum()), SEQUENCE_TOKENS_MAX, np.int64)
    cut[np.cumsum(count) - 1] = lengths - (count - 1) * SEQUENCE_TOKENS_MAX
    return cut


def sum_file(path: str, at: int = 0, most: int = 1 << 62) -> tuple[int, int]:
    """Return the bytes of a file from one on, at most so many, and their crc32, read from storage
    piece by piece."""
    size = crc = 0
    with storage_errors(path), open(path, "rb") as file:
        file.seek(at)
        while piece := file.read(min(_PIECE_BYTES, most - size)):
            size += len(piece)
            crc = zlib.crc32(piece, crc)
    return size, crc


def join_sums(first: int, second: int, size: int) -> int:
    """Return the crc32 of two pieces of bytes together, of those of each and the second's size: the
    first is multiplied by x to the second's bits, modulo the polynomial of crc32."""
    power = 1 << 23  # x to the 8
    while size:
        if size & 1:
            first = _multiply(first, power)
        power, size = _multiply(power, power), size >> 1
    return first ^ second


def _multiply(one: int, other: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        product ^= other * (one >> bit & 1)
        other = other >> 1 ^ 0xEDB88320 * (other & 1)
    return product
