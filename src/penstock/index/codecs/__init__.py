"""Codecs: samples out of the compressed chunks of a container, one module a container."""

from __future__ import annotations

from . import arrow, parquet, zarr
from .registry import Band, missing, rows
from .thrift import BOOL, BYTES, INT, Reader

__all__ = ["BOOL", "BYTES", "INT", "Band", "Reader", "arrow", "missing", "parquet", "rows", "zarr"]
