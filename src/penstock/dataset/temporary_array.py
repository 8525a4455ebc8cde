"""Large arrays of numbers in mapped files without a name, which are gone with the array."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine import storage_errors


def allot_array(count: int, dtype: Any, folder: str, inline_max: int) -> npt.NDArray[Any]:
    """Return an array of so many numbers, in memory up to `inline_max`, else mapped in `folder`.

    StorageError if there is no room.
    """
    if count <= inline_max:
        return np.empty(count, dtype)
    with storage_errors(folder, "try again"):
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # A full disk is an error here: while the array is written, it would end the process.
            os.posix_fallocate(file.fileno(), 0, np.dtype(dtype).itemsize * count)
            return np.memmap(file, dtype, "r+", shape=(count,))
