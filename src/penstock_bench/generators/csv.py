"""CSV: a row a sample, a number an element; compressed as a whole where asked for."""

from __future__ import annotations

import bz2
import gzip
import lzma
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from penstock.engine import AtomicFile, storage_errors

from ..file_draft import Draft

_WIDTH = 4
_BYTES = np.zeros((256, _WIDTH), np.uint8)
"""The text of each value of a byte, with the comma after it."""
for _value in range(256):
    _BYTES[_value, : len(f"{_value},")] = list(f"{_value},".encode())


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file."""
    with storage_errors(part.path):
        file = _open_compressed(part, draft.data.compression, draft.data.compression_level)
        for group in draft.groups():
            for sample in group.reshape(len(group), -1):
                _write_row(file, sample)
        if file is not part.file:
            file.close()


def _open_compressed(part: AtomicFile, compression: str, level: int) -> IO[bytes] | Any:
    match compression:
        case "gzip":  # of no name and no time: the same bytes each time
            return gzip.GzipFile("", "wb", level, part.file, mtime=0)
        case "bz2":
            return bz2.BZ2File(part.file, "wb", compresslevel=max(level, 1))
        case "xz":
            return lzma.LZMAFile(part.file, "wb", preset=level)
    return part.file


def _write_row(file: IO[bytes], sample: npt.NDArray[Any]) -> None:
    for start in range(0, len(sample), 1 << 18):
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
