"""A committed checkpoint, loaded or verified."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import FormatError
from . import pytree, shards
from .array_leaves import Memory
from .manifest import CheckpointIndex, Piece, check_covered
from .repository import CheckpointEntry, Repository

STATE = "state"
"""The kind of index whose content is a tree."""


class Checkpoint(NamedTuple):
    """What was saved. state: its tensors are on the CPU, in memory of their own; loader: the
    loader's `state_dict`, or None where none was saved."""

    step: int
    state: Any
    loader: Any


def content_of(parts: pytree.Taken) -> Any:
    """What an index says of a state."""
    return {"blocks": {block.name: block.bytes for block in parts.blocks}, "tree": parts.skeleton}


def loaded(home: Repository, entry: CheckpointEntry) -> Checkpoint:
    """A checkpoint that was saved as one state. FormatError where any byte of it was altered or
    cut."""
    index = home.index(entry)
    where = home.index_path(entry)
    if index.kind != STATE:
        raise FormatError(
            f"{where} is of kind {index.kind!r}, not {STATE!r}: load it as it was saved, by"
            " torch.distributed.checkpoint perhaps"
        )
    pieces = _pieces(home, entry, index)
    sizes: dict[str, int] = index.content["blocks"]
    memory = {name: shards.block_memory(size) for name, size in sizes.items()}

    def target(piece: Piece) -> Memory:
        start = piece.offsets[0]
        return memory[piece.name][start : start + piece.padded]

    shards.read(home, entry.path, pieces, target)
    state = pytree.rebuilt(index.content["tree"], lambda name: memory[name][: sizes[name]], where)
    return Checkpoint(index.step, state["state"], state["loader"])


def verify_checkpoint(home: Repository, entry: CheckpointEntry) -> int:
    """Read all of a checkpoint, compare it with its checksums; returns the bytes of its files.
    Raises as `loaded` does."""
    index = home.index(entry)
    shards.read(home, entry.path, _pieces(home, entry, index), lambda _: None)
    return sum(shard.bytes for shard in index.shards)


def _pieces(home: Repository, entry: CheckpointEntry, index: CheckpointIndex) -> list[Piece]:
    found = [piece for shard in index.shards for piece in shards.pieces(home, entry.path, shard)]
    if index.kind == STATE:
        check_covered(index.content["blocks"], found, entry.path)
    return found
