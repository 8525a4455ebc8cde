"""Loading and verification of a committed checkpoint."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

from ..errors import FormatError, MissingError
from . import pytree, shards
from .array_leaves import Memory
from .manifest import CheckpointIndex, Piece, check_coverage
from .repositories import open_repository
from .repository import CheckpointEntry, Repository

STATE = "state"
"""The kind of an index whose content is a tree."""


class Checkpoint(NamedTuple):
    """A loaded checkpoint.

    state:   its tensors are on the CPU, in memory of their own.
    loader:  the loader's `state_dict`, or None if none was saved.
    """

    step: int
    state: Any
    loader: Any


def encode_content(parts: pytree.SplitState) -> Any:
    """Describe a state for the index."""
    return {"blocks": {block.name: block.bytes for block in parts.blocks}, "tree": parts.skeleton}


def load(
    folder: str | os.PathLike[str], step: int | None = None, *, fall_back: bool = False
) -> Checkpoint:
    """Load a checkpoint as `Checkpoints.load` does, in a process that does not write: takes no
    lock, and changes nothing."""
    place = open_repository(folder)
    entry: CheckpointEntry | None = place.entry(step)
    while True:
        assert entry is not None
        try:
            return _load_entry(place, entry)
        except (FormatError, MissingError) as error:
            earlier = place.find_previous(entry)
            if earlier is None or not fall_back:
                raise place.name_previous(error, entry) from None
            warnings.warn(f"{error}; loading step {earlier.step}", RuntimeWarning, stacklevel=2)
            entry = earlier


def _load_entry(repository: Repository, entry: CheckpointEntry) -> Checkpoint:
    """Load a checkpoint that was saved as one state. FormatError if any byte of it was altered or
    cut."""
    index = repository.index(entry)
    where = repository.index_path(entry)
    if index.kind != STATE:
        raise FormatError(
            f"{where} is of kind {index.kind!r}, not {STATE!r}: load it with the library that"
            " saved it, perhaps torch.distributed.checkpoint"
        )
    pieces = _list_pieces(repository, entry, index)
    sizes: dict[str, int] = index.content["blocks"]
    memory = {name: shards.allocate_block(size) for name, size in sizes.items()}

    def target(piece: Piece) -> Memory:
        start = piece.offsets[0]
        return memory[piece.name][start : start + piece.padded_bytes]

    shards.read_pieces(repository, entry.path, pieces, target)
    state = pytree.rebuild_state(
        index.content["tree"], lambda name: memory[name][: sizes[name]], where
    )
    return Checkpoint(index.step, state["state"], state["loader"])


def verify_checkpoint(repository: Repository, entry: CheckpointEntry) -> int:
    """Read all of a checkpoint and compare it with its checksums. Returns the bytes of its files.
    Raises as `load` does."""
    index = repository.index(entry)
    shards.read_pieces(
        repository, entry.path, _list_pieces(repository, entry, index), lambda _: None
    )
    return sum(shard.bytes for shard in index.shards)


def _list_pieces(
    repository: Repository, entry: CheckpointEntry, index: CheckpointIndex
) -> list[Piece]:
    pieces = [
        piece
        for shard in index.shards
        for piece in shards.list_shard_pieces(repository, entry.path, shard)
    ]
    if index.kind == STATE:
        check_coverage(index.content["blocks"], pieces, entry.path)
    return pieces
