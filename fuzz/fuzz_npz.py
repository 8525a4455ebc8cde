"""Archives of arrays."""

from __future__ import annotations

import io

import numpy as np

from fuzz.memory import examine


def seeds() -> list[bytes]:
    """As numpy.savez writes them."""
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
    """As a single file."""
    examine("npz", {"x.npz": data}, name="x.npz")
