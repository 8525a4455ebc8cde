"""Devices: rates for any number of clients or threads, from a table of measured rates. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Rates = Mapping[int, float]
"""Measured rates in MB/s by the number of clients or threads that read at once: their total."""


def interpolate_rates(rates: Rates, readers: npt.ArrayLike) -> Floats:
    """Interpolate the total rate of `readers` readers, MB/s.

    Linear between measured points, constant outside them.
    """
    points = sorted(rates)
    counts = np.asarray(readers, np.float64)
    return np.interp(counts, points, [rates[point] for point in points])


def divide_rates(rates: Rates, link: float, clients: int) -> Floats:
    """Rate of each of 1, 2, ... clients, MB/s, through a link of its own: float64 (clients,)."""
    readers = np.arange(1, clients + 1)
    return np.minimum(link, interpolate_rates(rates, readers) / readers)
