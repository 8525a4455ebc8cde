"""Rows of an array in the order of an `Order`, moved by all cores at once."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core, limits
from ..arguments import check_whole
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
    """Shuffle the rows of an array: return array[Order(len(array), seed, epoch).run(0, n)].

    The values are the same on any number of threads, and from `penstock.torch.gpu`. Rows run along
    the first axis, of any shape and dtype. `penstock.Order.positions` finds a row again.

    out:      array that receives the result, of the same shape and dtype, C-contiguous. `array`
              itself is shuffled in place, by way of a copy. Other overlaps give the right result
              too. By default a new array is made.
    threads:  by default one for each core that this process may use.

    Large arrays of rows up to 16 bytes take two passes and two bytes of scratch a row (four from
    2^28 rows on), others one pass. An array that is not C-contiguous is copied first. Raises
    UsageError.
    """
    source = np.asarray(array)
    if source.ndim == 0:
        raise UsageError("array has no axis to shuffle along: give one of at least one dimension")
    if out is None:
        out = np.empty(source.shape, source.dtype)
    _check_out(out, source)
    count = len(source)
    order = Order(max(1, count), seed, epoch)  # its checks hold for empty arrays too
    thread_count = _check_threads(threads)
    if source.size == 0 or source.dtype.itemsize == 0:
        return out
    if source.dtype.hasobject:
        out[...] = source[order.run(0, count)]  # references are counted, not copied as bytes
        return out
    rows = np.ascontiguousarray(source)
    in_place = rows.ctypes.data == out.ctypes.data
    if not in_place and np.may_share_memory(rows, out):
        rows = rows.copy()
    assert isinstance(order._map, _core.Permutation)
    row_bytes = rows.nbytes // count
    _core.shuffle_rows(order._map, _view_bytes(rows), _view_bytes(out), row_bytes, thread_count)
    return out


def _view_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """View a contiguous array's memory as bytes."""
    return array.reshape(-1).view(np.uint8)


def _check_out(out: Any, array: npt.NDArray[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise UsageError(f"out is a {type(out).__name__}: give a numpy array")
    if out.shape != array.shape or out.dtype != array.dtype:
        what = f"out is {out.dtype} {out.shape} and the array {array.dtype} {array.shape}"
        raise UsageError(f"{what}: give the same shape and dtype")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError("out is not contiguous, or read-only: give a writable C-contiguous array")


def _check_threads(threads: int | None) -> int:
    if threads is None:
        return min(limits.threads_max, len(os.sched_getaffinity(0)))
    return check_whole("threads", threads, 1, limits.threads_max)
