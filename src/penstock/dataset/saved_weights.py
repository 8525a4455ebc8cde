"""Weights in files: a table of weights, the data that it is of, and checksums.

The file has the form of a sidecar (docs/format.md), is written whole or not at all, and is mapped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine import storage_errors
from ..errors import SidecarError, UsageError
from ..index import write_sidecar
from ..order import WeightTable
from .saved_selection import SavedKind, read_saved

_kind = SavedKind(
    "weights-1",
    "table of weights",
    "set_weights(path=)",
    "save the weights again with set_weights(path=)",
)


@dataclass(frozen=True, eq=False)
class SavedWeightTable(WeightTable):
    """A table whose arrays are a mapped file.

    data:  fingerprint of the data that it is of.
    """

    path: str
    data: str

    def __reduce__(self) -> tuple[Any, ...]:
        return load_weights, (self.path, self.data, self.digest)


def save_weights(path: str, table: WeightTable, data: str) -> None:
    """Write a file of the weights; StorageError if that fails, and nothing has the name then."""
    header = {"format": _kind.format, "digest": table.digest, "data": data}
    sections: dict[str, Any] = {"weights": table.weights, "bases": table.bases.view(np.int64)}
    with storage_errors(path, "save it again"):
        write_sidecar(path, header, sections)


def load_weights(path: str, data: str, digest: str | None = None) -> SavedWeightTable:
    """Map the file of weights of the samples of `data`; errors as `load_selection`."""
    path = os.path.abspath(path)
    header, columns = read_saved(path, _kind, data)
    try:
        found = SavedWeightTable(
            weights=columns["weights"].view(np.uint32),
            bases=columns["bases"].view(np.uint64),
            digest=str(header["digest"]),
            path=path,
            data=data,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SidecarError(f"{path}: these are no weights ({error!r}): {_kind.again}") from None
    if digest not in (None, found.digest):
        raise SidecarError(f"{path} holds other weights than it did: {_kind.again}")
    return found


def keep_weights(table: WeightTable, data: str, folder: str) -> WeightTable:
    """Return the same weights in a file, for which they are saved in `folder` if they have none."""
    if isinstance(table, SavedWeightTable):
        return table
    path = os.path.join(folder, f"{table.digest}.weights")
    try:
        return load_weights(path, data, table.digest)
    except (SidecarError, UsageError, OSError):
        pass  # not there yet, or damaged since
    save_weights(path, table, data)
    return load_weights(path, data, table.digest)
