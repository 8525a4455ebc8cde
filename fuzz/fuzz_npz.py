"""Archives of arrays."""

from __future__ import annotations

import io

import numpy as np

from fuzz.memory import examine


def seeds() -> list[bytes]:
    """Write archives as numpy.savez does."""
    found = []
    for arrays in (
        {"a": np.arange(6, dtype="i4").reshape(3, 2)},
        {"a": np.zeros((2, 3), "u1"), "label": np.arange(2)},
    ):
        out = io.BytesIO()
        np.savez(out, **arrays)
        found += [out.getvalue(), b"before" + out.getvalue()]
    return found


def one(data: bytes) -> None:
    """Index the data as a single file."""
    examine("npz", {"x.npz": data}, name="x.npz")
