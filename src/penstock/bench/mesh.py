"""Potentials on a resistive mesh: the discrete Poisson equation, solved at once. Pure.

Nodes of a rectangular grid are joined to their neighbours by resistors of one ohm; currents that
flow in and out of nodes make a potential. Nothing flows over the edge, so the cosines of the DCT-II
diagonalise the mesh: the solution is one transform, a division and the transform back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..index import missing_library

Grid = npt.NDArray[np.float64]


def solve_potential(currents: Grid) -> Grid:
    """The potential of mean 0 that these currents make; those of a mesh sum up to 0, and what is
    left over is taken from all nodes alike."""
    try:
        from scipy import fft
    except ModuleNotFoundError:
        raise missing_library("scipy", "bench", "a field of data") from None
    axes = [2 - 2 * np.cos(np.pi * np.arange(size) / size) for size in currents.shape]
    conductance = axes[0][:, None] + axes[1][None, :]
    conductance[0, 0] = 1.0
    waves: Any = fft.dctn(currents, type=2, norm="ortho")
    waves[0, 0] = 0.0
    solution: Grid = fft.idctn(waves / conductance, type=2, norm="ortho")
    return solution


def mirror(grid: Grid) -> Grid:
    """A grid and its mirror images, which fit together on all sides: the equation holds over the
    seams as well, since nothing flows there."""
    wide = np.concatenate([grid, grid[:, ::-1]], axis=1)
    return np.concatenate([wide, wide[::-1]], axis=0)
