"""Merging of extents in numpy: the oracle of the core's `merge_extents`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import limits
from penstock.extent import Int, Placed


def rotation_start(reader: int, readers: int, targets: int) -> int:
    """Return the target at which a reader starts, so that none queue.

    A reader goes on in order, and from the last target to the first. If all readers go through all
    targets in that way, one target at a time, it takes max(readers, targets) turns, the fewest. If
    all started at the first target, it would take readers + targets - 1.
    """
    return reader * targets // readers


def merge(placed: Placed, parts: int, gap_bytes: int, turn: tuple[int, int]) -> tuple[Any, ...]:
    """Return the columns in their new order, the edges of the runs, and the runs of each part."""
    count = len(placed.file)
    order = np.lexsort((placed.offset, placed.file))
    columns = placed.file[order], placed.offset[order], placed.length[order]
    starts = find_run_starts(*columns, gap_bytes) if count else np.zeros(0, np.int64)
    part = placed.part[order]
    wanted = np.minimum.reduceat(part, starts) if count else part
    first = rotation_start(*turn, len(starts))
    turned = np.argsort(np.roll(wanted, -first), kind="stable")
    by_part = (turned + first) % max(1, len(starts))
    sizes = np.diff(starts, append=count)[by_part]
    edges = np.concatenate([[0], np.cumsum(sizes)])
    order = order[np.arange(count) + np.repeat(starts[by_part] - edges[:-1], sizes)]
    runs = np.concatenate([[0], np.cumsum(np.bincount(wanted, minlength=parts))])
    return *(column[order] for column in placed), edges, runs


def find_run_starts(
    file: npt.NDArray[np.uint32], offset: Int, length: Int, gap_bytes: int
) -> npt.NDArray[np.intp]:
    """Find the starts of runs among sorted extents."""
    end = offset + length
    # As unsigned numbers overlaps, which cannot share a read, are the largest gaps.
    split = (offset[1:] - end[:-1]).view(np.uint64) > gap_bytes
    split |= file[1:] != file[:-1]
    starts = np.concatenate([[0], np.flatnonzero(split) + 1])
    # Cut runs that are too long, at multiples of the limits from where each began.
    sizes = np.diff(starts, append=len(file))
    nth = np.arange(len(file)) - np.repeat(starts, sizes)
    origin = np.repeat(offset[starts], sizes)
    last = (end - origin - 1) // limits.run_bytes_max
    piece = np.maximum(nth // limits.run_extents_max, last)
    split |= piece[1:] != piece[:-1]
    split |= (last > (offset - origin) // limits.run_bytes_max)[:-1]
    return np.concatenate([[0], np.flatnonzero(split) + 1])
