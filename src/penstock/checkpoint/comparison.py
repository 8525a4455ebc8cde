"""Comparison of a state that all ranks of a job hold, before it is committed from parts of several
ranks.

A difference in names, dtypes or shapes is always found. Large blocks are compared by samples: lines
of 64 bytes, one at a random place in each of k equal stretches of the block, at other places in
each save. k is `limits.checkpoint_sample_lines` at least, and one line for each
`limits.checkpoint_sample_bytes` of the rank's own part of a large state; a block of k lines or
fewer is compared whole. So

    a block in which a fraction f of the lines differs passes for equal with a probability of
    (1 - f)^k at most; in s saves, (1 - f)^(k s). A stretch of two k-ths of the block that differs
    throughout is always found.

With k = 64: 5e-20 where half of the lines differ, 0.12 % where a tenth does, 53 % where a hundredth
does. Sums of all bytes would find everything, and cost each rank a read of the whole state while
training waits, where it copies its part alone.

Small blocks (`limits.checkpoint_first_rank_bytes`) and values that are no arrays are the first
rank's, and are not compared.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import limits
from ..engine.native import crc32c
from ..errors import UsageError
from .manifest import Attempt, Memory
from .pytree import ArrayBlock, Leaf, import_tensors

_LINE = 64
_RANKS_NAMED = 8


class BlockSum(NamedTuple):
    """A block, as ranks compare it. layout: sum of the dtypes and shapes of its arrays; sample: of
    the sampled lines, 0 if the block is small."""

    name: str
    bytes: int
    layout: int
    sample: int


def sum_samples(blocks: Sequence[ArrayBlock], ranks: int, attempt: Attempt) -> list[int]:
    """Sum the sampled lines of each block that several ranks hold; 0 for a small block. The attempt
    decides which lines."""
    samples = [0] * len(blocks)
    large = [
        number
        for number, block in enumerate(blocks)
        if ranks > 1 and block.bytes >= max(limits.checkpoint_first_rank_bytes, 1)
    ]
    if large:
        sizes = np.array([blocks[number].bytes for number in large])
        starts = np.split(*_draw_lines(sizes, ranks, attempt))
        begun = [
            _begin_copy(blocks[number], block_starts)
            for number, block_starts in zip(large, starts, strict=True)
        ]
        for number, lines in zip(large, begun, strict=True):
            if not isinstance(lines, np.ndarray):
                lines = import_tensors().end_gather(lines)
            samples[number] = crc32c(np.ascontiguousarray(lines).view(np.uint8).data)
    return samples


def describe_blocks(blocks: Sequence[ArrayBlock], samples: Sequence[int]) -> list[BlockSum]:
    """Describe the blocks as ranks compare them."""
    return [
        BlockSum(block.name, block.bytes, crc32c(json.dumps(block.nodes).encode()), sample)
        for block, sample in zip(blocks, samples, strict=True)
    ]


def _draw_lines(
    sizes: npt.NDArray[np.int64], ranks: int, attempt: Attempt
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw the lines of blocks: the byte of its block at which each line starts, and the place in
    this list at which the lines of the next block start."""
    lines = -(-sizes // _LINE)
    counts = sizes // (limits.checkpoint_sample_bytes * ranks)
    counts = np.minimum(lines, np.maximum(limits.checkpoint_sample_lines, counts))
    ends = np.cumsum(counts)
    place = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    lines, counts, sizes = (np.repeat(column, counts) for column in (lines, counts, sizes))
    first, behind = place * lines // counts, (place + 1) * lines // counts
    random = np.random.default_rng([int(attempt.session, 16), attempt.number])
    drawn = first + (random.random(len(place)) * (behind - first)).astype(np.int64)
    return np.maximum(0, np.minimum(drawn * _LINE, sizes - _LINE)), ends[:-1]


def _begin_copy(block: ArrayBlock, starts: npt.NDArray[np.int64]) -> Any:
    """Copy the lines of a block that start at these bytes; on a device they are gathered there."""
    length, leaf = min(block.bytes, _LINE), block.leaves[0]
    if not block.dense:
        return _copy_elements(leaf, starts, length)
    if block.device != "cpu":
        return import_tensors().begin_gather(leaf.value, starts + block.lowest, length)
    memory = memoryview((ctypes.c_uint8 * block.bytes).from_address(block.lowest))
    return np.ndarray((block.bytes - length + 1,), f"V{length}", memory, 0, (1,))[starts]


def _copy_elements(leaf: Leaf, starts: npt.NDArray[np.int64], length: int) -> Memory:
    """Copy `length` bytes from each start on, in the order of the packed array."""
    size = leaf.itemsize
    first = starts // size
    elements = first[:, None] + np.arange((length + size - 2) // size + 1)
    elements = np.minimum(elements, leaf.bytes // size - 1)
    index = np.unravel_index(elements, leaf.shape)
    if leaf.kind == "torch":
        data: Memory = import_tensors().copy_elements(leaf.value, index)
    else:
        data = np.ascontiguousarray(leaf.value[index])
    packed = data.reshape(-1).view(np.uint8).reshape(len(starts), -1)
    columns = (starts - first * size)[:, None] + np.arange(length)
    return np.take_along_axis(packed, columns, 1)


def build_difference_error(step: int, rank_rows: Sequence[Sequence[Sequence[Any]]]) -> UsageError:
    """Build the error for ranks whose states differ. rank_rows: `BlockSum` rows of all ranks, not
    all equal."""
    rank_sums = [[BlockSum(*row) for row in rows] for rows in rank_rows]
    shapes = [[(row.name, row.bytes, row.layout) for row in sums] for sums in rank_sums]
    others = [rank for rank, shape in enumerate(shapes) if shape != shapes[0]]
    if others:
        mine, theirs = shapes[0], shapes[others[0]]
        pairs = enumerate(zip(mine, theirs, strict=False))
        differing = (place for place, pair in pairs if pair[0] != pair[1])
        first = next(differing, min(len(mine), len(theirs)))
        names = [rows[first][0] for rows in (mine, theirs) if first < len(rows)]
        first_names = " and ".join(map(repr, dict.fromkeys(names)))
        where = f"{_name_ranks(others)} from rank 0, first at {first_names}"
        remedy = "save equal shapes on all ranks, and other values by per_rank="
        what = f"the ranks save states of different shape at step {step}: {where}"
        return UsageError(f"{what}; nothing was committed: {remedy}")
    others = [rank for rank, sums in enumerate(rank_sums) if sums != rank_sums[0]]
    names = [
        row.name
        for place, row in enumerate(rank_sums[0])
        if any(sums[place] != row for sums in rank_sums)
    ]
    more = f" (and {len(names) - 1:,} others)" if len(names) > 1 else ""
    return build_values_error(step, f"{names[0]!r}{more}", 0, others)


def build_values_error(step: int, name: str, first: int, others: Sequence[int]) -> UsageError:
    """Build the error for an array whose values differ between ranks."""
    where = f"{name} of {_name_ranks(others)} from rank {first}"
    remedy = "make them equal, or save them by per_rank= (DCP: by other names)"
    what = f"the ranks save different values at step {step}: {where}"
    return UsageError(f"{what}; nothing was committed: {remedy}")


def _name_ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_RANKS_NAMED]))
    more = f" and {len(ranks) - _RANKS_NAMED:,} more" if len(ranks) > _RANKS_NAMED else ""
    return (
        f"rank{'s' if len(ranks) > 1 else ''} {named}{more} differ{'' if len(ranks) > 1 else 's'}"
    )
