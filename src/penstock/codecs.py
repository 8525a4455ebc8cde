"""Codecs: what the bytes of a band become, for containers that compress.

A band is one or several chunks of a file, read by the engine like everything else; a codec turns
it into the samples that came out of it. Each codec asks for the container's own library when it is
first used, and fails with the name of what to install.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import UsageError

Decoded = npt.NDArray[Any] | Sequence[bytes]
"""The samples of a band: rows of an array, or byte strings where lengths vary."""


class Band(NamedTuple):
    """What was read.

    number:   which band of the field it is.
    data:     its bytes, piece after piece.
    lengths:  bytes of each piece.
    """

    number: int
    data: memoryview
    lengths: Sequence[int]


Decoder = Callable[[Mapping[str, Any], Band], Decoded]
"""The samples of a band, or ValueError that says what is wrong with its bytes."""

CODECS: dict[str, Decoder] = {}


def missing(package: str, extra: str, what: str) -> UsageError:
    """The error for a library that is not installed."""
    return UsageError(f"{what} needs {package}: pip install 'penstock[{extra}]'")


def rows(
    codec: str,
    options: Mapping[str, Any],
    bands: Sequence[Band],
    band: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
) -> list[Any]:
    """Sample i is row `row[i]` of band `band[i]`; each band is decoded once.

    ValueError where a band does not hold what its index says.
    """
    decoded = [CODECS[codec](options, each) for each in bands]
    for number, held in enumerate(decoded):
        asked = row[band == number]
        if len(asked) and int(asked.max()) >= len(held):
            raise ValueError(f"{len(held)} samples were decoded, {int(asked.max()) + 1} expected")
    return [decoded[b][r] for b, r in zip(band.tolist(), row.tolist(), strict=True)]
