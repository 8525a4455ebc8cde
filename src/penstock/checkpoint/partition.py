"""Division of a state among the ranks that all have it: every byte is written once, and ranks write
about equally much.

Pure. Small blocks, which may differ between ranks, are the first rank's. Large blocks, which the
ranks compare (`comparison`), are cut. The pieces go, largest first, to the rank that has least so
far (LPT, at most 4/3 of the best division), so that ranks agree without a message.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from .. import limits
from .manifest import Piece, pad_length


class Cut(NamedTuple):
    """Bytes [start, stop) of a block."""

    block: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.stop - self.start

    def make_piece(self, name: str, dtype: str, file: str, offsets: Sequence[int] = ()) -> Piece:
        """Make the piece of a shard that holds these bytes, still without its place in the shard
        and its checksum. offsets: of the block in its whole, if it is a chunk."""
        return Piece(name, dtype, (self.bytes,), (*offsets, self.start), file, 0, self.bytes, 0)


def choose_piece_bytes(sizes: Sequence[int], ranks: int) -> int:
    """Choose the largest size of a piece: small enough that ranks get about equally much, and no
    smaller than needed."""
    fair = sum(sizes) // (limits.checkpoint_pieces * ranks)
    most, least = limits.checkpoint_piece_bytes, limits.checkpoint_piece_bytes_min
    return most if ranks == 1 else pad_length(min(most, max(least, fair)))


def _cut_block(block: int, size: int, piece_bytes: int) -> list[Cut]:
    return [
        Cut(block, start, min(start + piece_bytes, size)) for start in range(0, size, piece_bytes)
    ]


def cut_blocks(sizes: Sequence[int], piece_bytes: int) -> list[Cut]:
    """Cut blocks into pieces of at most so many bytes."""
    return [cut for block, size in enumerate(sizes) for cut in _cut_block(block, size, piece_bytes)]


def divide_blocks(
    sizes: Sequence[int], ranks: int, piece_bytes: int, first_rank_bytes: int = 0
) -> list[list[Cut]]:
    """Divide blocks that all ranks have: the cuts of each rank, in the order of the blocks. sizes:
    bytes of each block. first_rank_bytes: blocks with fewer are the first rank's."""
    cuts = cut_blocks(sizes, piece_bytes)
    small = [cut for cut in cuts if sizes[cut.block] < first_rank_bytes]
    shares: list[list[Cut]] = [small, *([] for _ in range(ranks - 1))]
    loads = [(sum(cut.bytes for cut in small) if rank == 0 else 0, rank) for rank in range(ranks)]
    heapq.heapify(loads)
    large = [cut for cut in cuts if sizes[cut.block] >= first_rank_bytes]
    for cut in sorted(large, key=lambda cut: (-cut.bytes, cut)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + cut.bytes, rank))
        shares[rank].append(cut)
    return [sorted(share) for share in shares]


def divide_held_blocks(
    sizes: Sequence[int],
    holders: Sequence[Sequence[int]],
    ranks: int,
    piece_bytes: int,
    first_rank_bytes: int = 0,
) -> list[list[Cut]]:
    """Divide blocks as `divide_blocks` does, if not all ranks have all blocks. holders: the ranks
    that have each block.

    A block that only one rank has, or that is small, is the first holder's: it is not cut, and
    counts before the rest is divided.
    """
    shares: list[list[Cut]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    cuts = []
    for block, (size, block_holders) in enumerate(zip(sizes, holders, strict=True)):
        if len(block_holders) == 1 or size < first_rank_bytes:
            loads[block_holders[0]] += size
            shares[block_holders[0]] += [Cut(block, 0, size)] if size else []
        else:
            cuts += _cut_block(block, size, piece_bytes)
    for cut in sorted(cuts, key=lambda cut: (-cut.bytes, cut)):
        rank = min(holders[cut.block], key=lambda rank: (loads[rank], rank))
        loads[rank] += cut.bytes
        shares[rank].append(cut)
    return [sorted(share) for share in shares]
