"""Which rank writes what of a state that all of them have: every byte once, all about equally much.

Pure. Large blocks are cut; the pieces go largest first to the rank that has least so far (LPT, at
most 4/3 of the best division), so that ranks agree without a message.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from .. import limits
from .manifest import padded


class Cut(NamedTuple):
    """Bytes [start, stop) of a block."""

    block: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.stop - self.start


def piece_bytes(sizes: Sequence[int], ranks: int) -> int:
    """Most bytes of a piece: so many that ranks get about equally much, but not small ones."""
    fair = sum(sizes) // (limits.checkpoint_pieces * ranks)
    most, least = limits.checkpoint_piece_bytes, limits.checkpoint_piece_bytes_min
    return most if ranks == 1 else padded(min(most, max(least, fair)))


def divided(sizes: Sequence[int], ranks: int, piece_bytes: int) -> list[list[Cut]]:
    """The cuts of each rank, in the order of the blocks. sizes: bytes of each block."""
    cuts = [
        Cut(block, start, min(start + piece_bytes, size))
        for block, size in enumerate(sizes)
        for start in range(0, size, piece_bytes)
    ]
    dealt: list[list[Cut]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for cut in sorted(cuts, key=lambda cut: (-cut.bytes, cut)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + cut.bytes, rank))
        dealt[rank].append(cut)
    return [sorted(each) for each in dealt]


def dealt(
    sizes: Sequence[int], holders: Sequence[Sequence[int]], ranks: int, piece_bytes: int
) -> list[list[Cut]]:
    """As `divided`, where not all ranks have all blocks. holders: the ranks that have each.

    What one rank alone has is not cut, and counts before the rest is dealt.
    """
    shares: list[list[Cut]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    cuts = []
    for block, (size, having) in enumerate(zip(sizes, holders, strict=True)):
        if len(having) == 1:
            loads[having[0]] += size
            shares[having[0]] += [Cut(block, 0, size)] if size else []
        else:
            cuts += [
                Cut(block, start, min(start + piece_bytes, size))
                for start in range(0, size, piece_bytes)
            ]
    for cut in sorted(cuts, key=lambda cut: (-cut.bytes, cut)):
        rank = min(holders[cut.block], key=lambda rank: (loads[rank], rank))
        loads[rank] += cut.bytes
        shares[rank].append(cut)
    return [sorted(each) for each in shares]
