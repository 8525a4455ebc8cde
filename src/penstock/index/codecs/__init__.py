"""Codecs: samples out of the compressed chunks of a container, one module a container."""

from __future__ import annotations

from . import arrow, parquet, zarr
from .registry import CompressedChunk, missing_library, rows
from .thrift import BOOL, BYTES, INT, Reader

__all__ = [
    "BOOL",
    "BYTES",
    "INT",
    "CompressedChunk",
    "Reader",
    "arrow",
    "missing_library",
    "parquet",
    "rows",
    "zarr",
]
