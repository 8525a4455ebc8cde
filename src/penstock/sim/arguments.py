"""What functions of the simulator are given, and the library that some of them need."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError

Float = npt.NDArray[np.float64]
Bandwidth = float | npt.ArrayLike
"""Bytes/s: of all alike, or of each."""


def check_whole(name: str, value: object) -> None:
    """UsageError where a count is no whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UsageError(f"{name} is {value!r}: use a whole number above 0")


def check_capacities(name: str, value: Bandwidth, count: int) -> Float:
    """One value for each of `count`; UsageError where one is not finite and above 0."""
    given = np.asarray(value, np.float64)
    if given.shape not in ((), (count,)):
        raise UsageError(f"{name} has the shape {given.shape}: give one value, or {count}")
    if not (np.isfinite(given) & (given > 0)).all():
        raise UsageError(f"{name} is {value!r}: use finite values above 0")
    return np.array(np.broadcast_to(given, (count,)))


def import_scipy(module: str) -> Any:
    """A module of SciPy; UsageError where it is not installed."""
    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError:
        raise UsageError("this needs SciPy: pip install 'penstock[sim]'") from None
