"""Arrays in numpy's own file."""

from __future__ import annotations

import io

import numpy as np

from fuzz.memory import examine


def seeds() -> list[bytes]:
    """A few arrays."""
    found = []
    for array in (np.arange(6.0).reshape(3, 2), np.zeros((2, 1, 1), "u1"), np.zeros(4, "S3")):
        for version in ((1, 0), (2, 0), (3, 0)):
            out = io.BytesIO()
            np.lib.format.write_array(out, array, version=version)
            found.append(out.getvalue())
    return found


def one(data: bytes) -> None:
    """Index the data as a single file."""
    examine("npy", {"x.npy": data}, name="x.npy")
