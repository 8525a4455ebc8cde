"""Opening of a repository; loading and verification of a committed checkpoint."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..arguments import check_flag, check_path
from ..errors import FormatError, MissingError, StateError, UsageError
from ..ranks.place import Place, detect
from . import pytree, shards
from .manifest import (
    OWN_BLOCK,
    OWN_TREE,
    STATE,
    STATE_BLOCK,
    CheckpointIndex,
    Memory,
    Piece,
    check_coverage,
    get_block_sizes,
    parse_json,
)
from .object_repository import Prefix
from .repository import CheckpointEntry, Folder, Repository

_NEARLY_A_URL = re.compile(r"(s3|gs|az|https?):/?(?!/)")


def open_repository(path: str | os.PathLike[str], *, make: bool = False) -> Repository:
    """Open the repository at a path or URL. A folder is made if `make`; otherwise MissingError if
    it does not exist. UsageError if a slash of a URL is missing."""
    text = check_path("folder", path)
    if _NEARLY_A_URL.match(text):
        raise UsageError(f"{text}: write two slashes for a URL, or ./ before a folder's name")
    return Prefix.open(text) if "://" in text else Folder.open(text, make=make)


def resolve_path(path: str | os.PathLike[str]) -> str:
    """Return a path or URL that holds in whatever folder the process runs."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    state:   its tensors are on the CPU, in memory of their own.
    loader:  the loader's `state_dict`, or None if none was saved.
    ranks:   the number of ranks that saved it.
    """

    step: int
    state: Any
    loader: Any
    ranks: int
    _place: Place = field(repr=False)
    _per_rank: Any = field(repr=False)

    @property
    def per_rank(self) -> Any:
        """The value that this rank saved as its own; None if it saved none. StateError unless as
        many ranks load the checkpoint as saved it: such values belong to one division of the work,
        and two ranks that go on with one of them do the same work twice."""
        if self._per_rank is _OF_OTHER_RANKS:
            saved = f"step {self.step} has values of each of the {self.ranks} ranks that saved it"
            loads = f"rank {self._place.rank} of {self._place.world_size} ({self._place.source})"
            remedy = f"use {self.ranks} ranks, load(rank=, world_size={self.ranks}), or new values"
            raise StateError(f"{saved}, not for {loads}: {remedy}")
        return self._per_rank


_OF_OTHER_RANKS = object()
"""In place of a rank's own value: another number of ranks saved theirs."""


def load(
    folder: str | os.PathLike[str],
    step: int | None = None,
    *,
    fall_back: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
) -> Checkpoint:
    """Load a checkpoint as `Checkpoints.load` does, in a process that does not write: takes no
    lock, and changes nothing.

    rank, world_size:  the rank whose `per_rank` value is loaded, and the number of ranks; None
                       detects them.
    """
    check_flag("fall_back", fall_back)
    repository = open_repository(folder)
    place = detect(rank, world_size, os.environ, sys.modules)
    return load_latest(repository, step, fall_back, place)


def load_latest(
    repository: Repository, step: int | None, fall_back: bool, place: Place
) -> Checkpoint:
    """Load a checkpoint as `load` does."""
    entry: CheckpointEntry | None = repository.entry(step)
    while True:
        assert entry is not None
        try:
            return load_entry(repository, entry, place)
        except (FormatError, MissingError) as error:
            earlier = repository.find_previous(entry)
            if earlier is None or not fall_back:
                raise repository.name_previous(error, entry) from None
            repository.storage.warn(f"{error}; loading step {earlier.step}")
            entry = earlier


def load_entry(repository: Repository, entry: CheckpointEntry, place: Place) -> Checkpoint:
    """Load a checkpoint that was saved as one state. FormatError if any byte of it was altered or
    cut; of other ranks' own values too, so that all ranks load the same checkpoint."""
    index = repository.read_index(entry)
    where = repository.index_path(entry)
    if index.kind != STATE:
        what = f"{where} is of kind {index.kind!r}, not {STATE!r}"
        raise FormatError(f"{what}: load it with the library that saved it")
    pieces = _list_pieces(repository, entry, index)
    common = _Blocks(index.content, _choose_pieces(pieces, STATE_BLOCK), where)
    own_pieces = [piece for piece in pieces if piece.file == f"rank-{place.rank}.shard"]
    tree = _choose_pieces(own_pieces, OWN_TREE) if place.world_size == index.ranks else []
    own_blocks = None
    if tree:
        name, size = tree[0].name, sum(piece.length for piece in tree)
        own_where = f"{entry.path}/{tree[0].file}"
        described = _Blocks({"blocks": {name: size}}, tree, own_where)
        repository.storage.read_pieces(entry.path, tree, described.targets.get)
        content = parse_json(described.get_block(name).tobytes(), own_where)
        own_blocks = _Blocks(content, _choose_pieces(own_pieces, OWN_BLOCK), own_where)
    targets = common.targets | (own_blocks.targets if own_blocks else {})
    repository.storage.read_pieces(entry.path, pieces, targets.get)
    state, loader = common.rebuild("state", "loader")
    per_rank = own_blocks.rebuild("per_rank")[0] if own_blocks else None
    if index.ranks != place.world_size and _choose_pieces(pieces, OWN_TREE):
        per_rank = _OF_OTHER_RANKS
    return Checkpoint(index.step, state, loader, index.ranks, place, per_rank)


class _Blocks:
    """Memory for the blocks of a state. FormatError unless the pieces are all of them.

    content:  the description of the state.
    targets:  where the bytes of each piece go.
    """

    def __init__(self, content: Any, pieces: Sequence[Piece], where: str) -> None:
        self._sizes, self._where = get_block_sizes(content, where), where
        self._tree = content.get("tree")
        check_coverage(self._sizes, pieces, where)
        self._memory = {name: shards.allocate_block(size) for name, size in self._sizes.items()}
        self.targets = {
            piece: self._memory[piece.name][piece.offsets[0] :][: piece.padded_bytes]
            for piece in pieces
        }

    def get_block(self, name: str) -> Memory:
        """Return the bytes of a block."""
        return self._memory[name][: self._sizes[name]]

    def rebuild(self, *names: str) -> list[Any]:
        """Rebuild the parts of the state that have these names, and no others."""
        state = pytree.rebuild_state(self._tree, self.get_block, self._where)
        if type(state) is not dict or state.keys() != set(names):
            raise FormatError(f"{self._where} has no parts {' and '.join(names)}: load another")
        return [state[name] for name in names]


def _choose_pieces(pieces: Sequence[Piece], dtype: str) -> list[Piece]:
    return [piece for piece in pieces if piece.dtype == dtype]


def verify_checkpoint(repository: Repository, entry: CheckpointEntry) -> int:
    """Read all of a checkpoint and compare it with its checksums. Returns the bytes of its files.
    Raises as `load` does."""
    index = repository.read_index(entry)
    pieces = _list_pieces(repository, entry, index)
    repository.storage.read_pieces(entry.path, pieces, lambda _: None)
    return sum(shard.bytes for shard in index.shards)


def _list_pieces(
    repository: Repository, entry: CheckpointEntry, index: CheckpointIndex
) -> list[Piece]:
    pieces: list[Piece] = []
    for shard in index.shards:
        pieces += repository.storage.check_shard(entry.path, shard)
    if index.kind == STATE:
        sizes = get_block_sizes(index.content, repository.index_path(entry))
        check_coverage(sizes, _choose_pieces(pieces, STATE_BLOCK), entry.path)
    return pieces
