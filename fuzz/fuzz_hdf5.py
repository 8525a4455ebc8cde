"""HDF5 files, by rows and in windows. The C library reads them first: a crash or a hang in it is a
finding for its makers.

What it may allocate is limited, as in the process that it runs in otherwise.
"""

from __future__ import annotations

import io
import zlib
from typing import Any

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
    for cells in (None, (2, 1)):
        out = io.BytesIO()
        with h5py.File(out, "w") as file:
            made = file.create_dataset(
                "x", data=np.arange(6, dtype="u1").reshape(3, 2), chunks=cells
            )
            time = file.create_dataset("t", data=np.arange(3.0))
            time.attrs["units"] = "hours since 2000-1-1 0:00"
            time.make_scale("t")
            made.dims[0].attach_scale(time)
        found.append(out.getvalue())
    return found


_WINDOWS: tuple[dict[str, Any], ...] = (
    {"window": {"t": 2}, "stride": {"t": 1}},
    {"window": {"t": 2}, "target": {"t": (-1, 2)}, "drop": "pad"},
    {"window": {"0": 2, "1": 1}, "halo": {"0": 1}},
)


def one(data: bytes) -> None:
    """Index the data as one file, in this process: another would be started for each input."""
    options = (*_WINDOWS, {})[zlib.crc32(data) % 4]
    examine("hdf5", {"x.h5": data}, {**options, "isolate": False}, name="x.h5")
