"""Fields of a sample: what its bytes are, and the checksums that a container keeps beside them.

Checksums are a field of the index as any other: read in the same run as the sample before them,
kept and sent by caches with it, and compared when a batch is made. Batches do not show it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.native import crc32c
from .json_fields import JsonFields


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """Codec of a field: decodes compressed chunks to samples, see `penstock.index.codecs`.

    options:  parameters of the codec, of JSON types.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """Means and deviations by which batches have numbers normalised: (x - mean) / sd.

    mean, sd:  float64, one for all numbers, or one for each place along `axis` of a sample.
    """

    mean: npt.NDArray[np.float64]
    sd: npt.NDArray[np.float64]
    axis: int | None


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a sample. `shape` is of one sample, in `dtype`; None if the length varies.

    codec:  for a field of layout `Chunked`, and only there.
    element: shape of an element of a list, where the length varies; () for numbers and bytes.
    levels:  bytes of an offset of each level of nested lists, from the outside (see `nested`); ()
             where a row is its values alone.
    as_dtype:  dtype in which batches have it, if that is not `dtype`. It is not saved.
    scaling:   by which batches have it normalised, as `as_dtype`. It is not saved.
    parser:    for lines of JSON: the fields that batches have in its place. It is not saved.
    vocabulary:  tokens that it may have, from 0 on; 0 if any. It is not saved.
    text:      "text" or "json" if the bytes are such, and batches have texts or parsed values.
    made_shape:  shape in batches of windows and clips that are padded, or lose an axis; else None.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    codec: Codec | None = None
    as_dtype: np.dtype[Any] | None = None
    parser: JsonFields | None = None
    text: str = ""
    element: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()
    vocabulary: int = 0
    made_shape: tuple[int, ...] | None = None
    scaling: Scaling | None = None

    @property
    def nbytes(self) -> int | None:
        """Bytes of one sample, or None if they vary."""
        return None if self.shape is None else self.dtype.itemsize * math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of a list."""
        return self.dtype.itemsize * math.prod(self.element)

    @property
    def nesting(self) -> dict[str, tuple[int, ...]]:
        """`element` and `levels`, where they are not empty: for headers and comparisons."""
        both = {"element": self.element, "levels": self.levels}
        return {name: value for name, value in both.items() if value}

    @property
    def made(self) -> tuple[Field, ...]:
        """The fields that batches have of it: itself, or those that are parsed of its lines."""
        if self.text:
            return (Field(self.name, np.dtype("O" if self.text == "json" else "U"), ()),)
        if self.made_shape is not None:
            return (replace(self, shape=self.made_shape, made_shape=None),)
        if self.parser is None:
            return (self,)
        shape = {True: None, False: ()}
        return tuple(
            Field(name, self.parser.get_dtype(name), shape[self.parser.is_list(name)])
            for name in self.parser.names
        )


RESERVED = ("__key__", "__id__", "__url__", "__epoch__", "__rng__")
"""Names of what every sample has, or of what other loaders give it: no field may be called so."""

SUMS_FIELD = "__masked_crc32c__"
"""Name of the field: little-endian uint32, the masked CRC-32C of the sample's first field."""


def mask_crc(data: Any) -> int:
    """Compute the masked CRC-32C of contiguous bytes, as TFRecord stores it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def find_damaged(rows: Iterable[Any], sums: Iterable[int]) -> int | None:
    """Find the first row whose bytes do not have their checksum: 0.3 us and 0.1 ns a byte each."""
    is_damaged = map(operator.ne, map(mask_crc, rows), sums)
    return next((row for row, damaged in enumerate(is_damaged) if damaged), None)
