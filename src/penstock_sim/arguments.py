"""Checks of the simulator's arguments, and the import of SciPy, which some functions need."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError

Float = npt.NDArray[np.float64]


def check_whole(name: str, value: object) -> None:
    """Raise UsageError if a count is no whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UsageError(f"{name} is {value!r}: use a whole number above 0")


def import_scipy(module: str) -> Any:
    """Import a module of SciPy. Raises UsageError if SciPy is not installed."""
    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError:
        raise UsageError("this needs SciPy: pip install 'penstock[sim]'") from None
