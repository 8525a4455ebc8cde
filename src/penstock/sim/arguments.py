"""Checks of the simulator's arguments, and the import of SciPy, which some functions need."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError

Float = npt.NDArray[np.float64]
Bandwidth = float | npt.ArrayLike
"""Bandwidth in bytes/s: one value for all, or one for each."""


def check_whole(name: str, value: object) -> None:
    """Raise UsageError if a count is no whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UsageError(f"{name} is {value!r}: use a whole number above 0")


def check_capacities(name: str, value: Bandwidth, count: int) -> Float:
    """Return one value for each of `count`. Raises UsageError if one is not finite and above 0."""
    values = np.asarray(value, np.float64)
    if values.shape not in ((), (count,)):
        raise UsageError(f"{name} has the shape {values.shape}: give one value, or {count}")
    if not (np.isfinite(values) & (values > 0)).all():
        raise UsageError(f"{name} is {value!r}: use finite values above 0")
    return np.array(np.broadcast_to(values, (count,)))


def import_scipy(module: str) -> Any:
    """Import a module of SciPy. Raises UsageError if SciPy is not installed."""
    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError:
        raise UsageError("this needs SciPy: pip install 'penstock[sim]'") from None
