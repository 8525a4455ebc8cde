"""HDF5 files. The C library reads them first: a crash in it is a finding for its makers.

What it may allocate is limited, as in the process that it runs in otherwise.
"""

from __future__ import annotations

import io

import h5py
import numpy as np

from fuzz.memory import examine
from penstock.index.formats.sandbox import limit_memory

limit_memory(1 / 16)


def seeds() -> list[bytes]:
    """Small files: contiguous, chunked, deflated."""
    found = []
    for options in ({}, {"chunks": (2, 2)}, {"chunks": (2, 2), "compression": "gzip"}):
        out = io.BytesIO()
        with h5py.File(out, "w") as file:
            file.create_dataset("x", data=np.arange(6, dtype="u1").reshape(3, 2), **options)
        found.append(out.getvalue())
    return found


def one(data: bytes) -> None:
    """Index the data as one file, in this process: another would be started for each input."""
    examine("hdf5", {"x.h5": data}, {"isolate": False}, name="x.h5")
