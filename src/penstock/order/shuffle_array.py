"""Rows of an array in the order of an `Order`, moved by all cores at once."""

from __future__ import annotations

import operator
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core, limits
from ..errors import UsageError
from .order import Order


def shuffle(
    array: npt.ArrayLike,
    seed: int,
    epoch: int = 0,
    *,
    out: npt.NDArray[Any] | None = None,
    threads: int | None = None,
) -> npt.NDArray[Any]:
    """The array with its rows shuffled: equal to array[Order(len(array), seed, epoch).run(0, n)].

    The same values everywhere: on any number of threads, and from `penstock.torch.gpu`. Rows run
    along the first axis, of any shape and dtype. `penstock.Order.positions` finds a row again.

    out:      where the result goes: an array of the same shape and dtype, C-contiguous. `array`
              itself is shuffled in place, by way of a copy; other overlaps are right too. By
              default a new array is made.
    threads:  by default one a core that this process may use.

    Large arrays of rows up to 16 bytes take two passes and two bytes of scratch a row (four from
    2^28 rows on), others one pass. An array that is not C-contiguous is copied first. Raises
    UsageError.
    """
    given = np.asarray(array)
    if given.ndim == 0:
        raise UsageError("array has no axis to shuffle along: give one of at least one dimension")
    if out is None:
        out = np.empty(given.shape, given.dtype)
    _check_out(out, given)
    count = len(given)
    order = Order(max(1, count), seed, epoch)  # its checks hold for empty arrays too
    used = _threads(threads)
    if given.size == 0 or given.dtype.itemsize == 0:
        return out
    if given.dtype.hasobject:
        out[...] = given[order.run(0, count)]  # references are counted, not copied as bytes
        return out
    rows = np.ascontiguousarray(given)
    same = rows.ctypes.data == out.ctypes.data
    if not same and np.may_share_memory(rows, out):
        rows = rows.copy()
    assert isinstance(order._map, _core.Permutation)
    _core.shuffle_rows(order._map, _bytes(rows), _bytes(out), rows.nbytes // count, used)
    return out


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A contiguous array's memory."""
    return array.reshape(-1).view(np.uint8)


def _check_out(out: Any, array: npt.NDArray[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise UsageError(f"out is a {type(out).__name__}: give a numpy array")
    if out.shape != array.shape or out.dtype != array.dtype:
        raise UsageError(
            f"out is {out.dtype} {out.shape} and the array {array.dtype} {array.shape}: "
            "give an array of the same shape and dtype"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError("out is not contiguous, or read-only: give a writable C-contiguous array")


def _threads(given: int | None) -> int:
    if given is None:
        return min(limits.threads_max, len(os.sched_getaffinity(0)))
    try:
        number = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = -1
    if not 1 <= number <= limits.threads_max:
        raise UsageError(f"threads is {given!r}: use 1..{limits.threads_max}")
    return number
