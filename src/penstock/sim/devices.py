"""Devices: what rate a table of measured rates gives for any number of clients or threads. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Rates = Mapping[int, float]
"""Measured rates in MB/s by how many clients, or threads, read at once: all together, not each."""


def interpolate_rates(rates: Rates, readers: npt.ArrayLike) -> Floats:
    """The rate of so many readers together, MB/s: linear between measured points, and that of the
    nearest point outside them."""
    points = sorted(rates)
    given = np.asarray(readers, np.float64)
    return np.interp(given, points, [rates[point] for point in points])


def divide_rates(rates: Rates, link: float, clients: int) -> Floats:
    """What each of 1, 2, ... clients reads, MB/s, through a link of its own: float64 (clients,)."""
    readers = np.arange(1, clients + 1)
    return np.minimum(link, interpolate_rates(rates, readers) / readers)
