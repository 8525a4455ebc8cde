"""Codecs decode the samples of containers that compress, one module a container.

The noun is the compressed chunk: bytes that are read and decoded as one, of one or several pieces
of a file. A codec gets its bytes and the options that the index holds, and returns its samples. It
opens no file and knows neither formats nor layouts.
"""

from __future__ import annotations

from . import arrow, lines, parquet, zarr
from .decompression import load_zstandard
from .registry import (
    RECENT,
    CompressedChunk,
    Decoded,
    NullRow,
    decode_samples,
    missing_library,
)
from .thrift import BOOL, BYTES, INT, ThriftReader

__all__ = [
    "BOOL",
    "BYTES",
    "INT",
    "RECENT",
    "CompressedChunk",
    "Decoded",
    "NullRow",
    "ThriftReader",
    "arrow",
    "decode_samples",
    "lines",
    "load_zstandard",
    "missing_library",
    "parquet",
    "zarr",
]
