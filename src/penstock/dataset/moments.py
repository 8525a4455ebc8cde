"""Moments of numbers: counts, extrema, mean and squares of blocks, joined in a fixed tree.

Each block is summed pairwise about its own mean, as the corrected two-pass algorithm has it, and
blocks are joined by the formula of Chan, Golub and LeVeque ("Algorithms for computing the sample
variance", The American Statistician 37, 1983). A mean is two numbers, `mean + rest`, so that far
from zero the joins lose nothing. Which numbers are a block depends on the data alone, and never on
who sums it: the result has the same bits whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..engine import native
from ..extent import Int

Array = npt.NDArray[Any]

NUMBERS = 8
"""Numbers of 8 bytes that the moments of a row have."""

_SUMS = ("finite", "missing", "low", "high", "mean", "rest", "squares")


def choose_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of moments: counts of finite, missing (NaN) and infinite numbers, the least
    and largest finite one, the mean in two parts, and the squares of the distances to it."""
    end = {"i": "i8", "f": "f8"}.get(dtype.kind, "u8")
    counts = [(name, "i8") for name in ("finite", "missing", "infinite")]
    rest = [(name, "f8") for name in ("mean", "rest", "squares")]
    return np.dtype([*counts, ("low", end), ("high", end), *rest])


def cut_blocks(values: Array) -> Iterator[tuple[int, Array]]:
    """Cut numbers (n, rows, m) into blocks of a size that caches hold: (rows of the block, k).

    Yields the first row of each, and the block.
    """
    most = limits.stats_block_numbers
    outer, rows, inner = values.shape
    width = max(1, min(inner, most))
    high = max(1, min(rows, most // width))
    deep = max(1, most // (width * high))
    for row in range(0, rows, high):
        for i in range(0, outer, deep):
            for k in range(0, inner, width):
                block = values[i : i + deep, row : row + high, k : k + width]
                yield row, block.transpose(1, 0, 2).reshape(block.shape[1], -1)


def sum_up(values: Array) -> Array:
    """Return the moments of each row of numbers (n, rows, m)."""
    blocks: dict[int, list[Array]] = {}
    for row, block in cut_blocks(values):
        blocks.setdefault(row, []).append(_sum_block(block))
    joined = [join_all(np.stack(moments)) for moments in blocks.values()]
    dtype = choose_dtype(values.dtype)
    return np.concatenate(joined) if joined else np.zeros(values.shape[1], dtype)


@np.errstate(all="ignore")
def _sum_block(values: Array) -> Array:
    """Return the moments of each row of a block, all of whose rows have numbers."""
    values = values.view(np.uint8) if values.dtype.kind == "b" else values
    moments = np.zeros(len(values), choose_dtype(values.dtype))
    if values.dtype.kind == "f" or values.itemsize < 8:
        sums = np.empty((len(values), len(_SUMS)))
        if native.sum_moments(_widen(values), sums):
            for name, column in zip(_SUMS, sums.T, strict=True):
                moments[name] = column
            moments["infinite"] = values.shape[1] - moments["finite"] - moments["missing"]
            return moments
    wide = values.astype(np.float64)
    ends = wide if values.dtype.kind == "f" else values
    total = np.add.reduce(wide, axis=1)
    lost: Any = None
    if values.dtype.kind == "f" and not np.isfinite(total).all():
        lost = ~np.isfinite(wide)
        moments["missing"] = np.isnan(wide).sum(axis=1)
        moments["infinite"] = lost.sum(axis=1) - moments["missing"]
        some = ~lost.all(axis=1)
        moments["low"] = np.where(some, ends.min(axis=1, where=~lost, initial=np.inf), 0)
        moments["high"] = np.where(some, ends.max(axis=1, where=~lost, initial=-np.inf), 0)
        wide[lost] = 0
        total = np.add.reduce(wide, axis=1)
    else:
        moments["low"], moments["high"] = ends.min(axis=1), ends.max(axis=1)
    moments["finite"] = values.shape[1] - moments["missing"] - moments["infinite"]
    count = np.maximum(moments["finite"], 1)
    mean = total / count
    if not np.isfinite(mean).all():  # the sum is beyond float64, and the mean is not
        mean = np.add.reduce(wide / count[:, None], axis=1)
    if values.dtype.kind in "iu" and values.itemsize == 8 and _is_narrow(moments):
        # Integers that float64 rounds: their distances to an integer are exact modulo 2^64.
        mean = np.rint(mean)
        centre = np.array([int(number) % 2**64 for number in mean], np.uint64)
        whole = np.ascontiguousarray(values, values.dtype.newbyteorder("=")).view(np.uint64)
        wide[...] = (whole - centre[:, None]).view(np.int64)
    else:
        wide -= mean[:, None]
    if lost is not None:
        wide[lost] = 0
    rest = np.add.reduce(wide, axis=1) / count
    wide *= wide
    squares = np.add.reduce(wide, axis=1) - count * rest * rest
    moments["mean"], moments["rest"] = mean, np.where(np.isfinite(rest), rest, 0)
    moments["squares"] = np.where(np.isnan(squares), np.inf, np.maximum(squares, 0))
    return moments


def _is_narrow(moments: Array) -> bool:
    ends = zip(moments["low"].tolist(), moments["high"].tolist(), strict=True)
    return all(high - low < 2**62 for low, high in ends)


def join_all(moments: Array) -> Array:
    """Join moments (n, rows) over n: neighbours in pairs, then pairs of pairs."""
    if not len(moments):
        return np.zeros(moments.shape[1:], moments.dtype)
    while len(moments) > 1:
        even = len(moments) // 2 * 2
        moments = np.concatenate([_join(moments[:even:2], moments[1:even:2]), moments[even:]])
    joined: Array = moments[0]
    return joined


@np.errstate(all="ignore")
def _join(a: Array, b: Array) -> Array:
    joined = np.empty_like(a)
    for name in ("finite", "missing", "infinite"):
        joined[name] = a[name] + b[name]
    share = b["finite"] / np.maximum(joined["finite"], 1)
    delta = (b["mean"] - a["mean"]) + (b["rest"] - a["rest"])
    step = a["rest"] + delta * share
    mean = a["mean"] + step
    back = mean - a["mean"]  # Knuth's exact sum: what rounding took from the mean is the rest
    rest = (a["mean"] - (mean - back)) + (step - back)
    far = ~np.isfinite(delta)
    joined["mean"] = np.where(far, a["mean"] * (1 - share) + b["mean"] * share, mean)
    joined["rest"] = np.where(far, 0, rest)
    joined["squares"] = a["squares"] + b["squares"] + delta * delta * (a["finite"] * share)
    joined["low"] = np.minimum(a["low"], b["low"])
    joined["high"] = np.maximum(a["high"], b["high"])
    empty_a, empty_b = a["finite"] == 0, b["finite"] == 0
    for name in ("low", "high", "mean", "rest", "squares"):
        joined[name] = np.where(empty_b, a[name], np.where(empty_a, b[name], joined[name]))
    return joined


def make_edges(low: float, high: float, bins: int) -> npt.NDArray[np.float64]:
    """Return the edges of equal bins from `low` to `high`, also where their distance overflows."""
    edges = np.linspace(low / 2, high / 2, bins + 1) * 2
    edges[0], edges[-1] = low, high
    return np.clip(edges, low, high)


def count_bins(values: Array, edges: npt.NDArray[np.float64]) -> Int:
    """Count the numbers in bins: edges[k] <= number < edges[k + 1], in float64; the last bin has
    its upper edge, too."""
    counts = np.zeros(len(edges) - 1, np.int64)
    low, high = edges[0], edges[-1]
    with np.errstate(all="ignore"):
        scale = len(counts) / (high - low)
        is_near = 1e-300 < scale < 1e300 and np.spacing(max(-low, high)) * scale < 1e-3
    for _, block in cut_blocks(values.reshape(1, 1, -1)):
        numbers = _widen(block[0])
        if is_near:  # an estimate of a bin is at most one off, and is corrected by the edges
            native.count_bins(numbers, edges, scale, counts)
        else:
            numbers = numbers[np.isfinite(numbers)]
            at = np.minimum(np.searchsorted(edges, numbers, "right") - 1, len(counts) - 1)
            counts += np.bincount(at, minlength=len(counts))
    return counts


def _widen(values: Array) -> Array:
    """Return numbers in a row of memory, in a type that the core adds up."""
    return np.ascontiguousarray(values, "f4" if values.dtype == np.float32 else "f8")
