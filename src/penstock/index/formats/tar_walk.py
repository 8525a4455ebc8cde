"""The members of a tar archive; those of a large one piece by piece, which several may walk.

A piece begins at what looks like a header, and ends at what looks like one behind. A walk that
comes out just there has come by headers alone. So if the first piece begins the file, and each ends
where the next begins, all of them are what one walk finds. Else the archive is walked whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...engine.store import StoreFile
from ...errors import FormatError
from ...extent import Int, Names
from . import detection, shards

_BLOCK = 512
_MAGIC = np.frombuffer(b"ustar", np.uint8)
_METADATA = (b"x", b"X", b"g", b"L", b"K")  # kinds of members that are about the next one
_SEARCHED_BYTES = 1 << 18
"""Bytes of one read that looks for a header."""
Headers = dict[tuple[str, int], int | None]
"""What was found behind places of files: two pieces look at each, and more behind large members."""


class TarShard(NamedTuple):
    """The members of one file; `sample` and `extension` are numbers within it."""

    keys: Names
    at: Int
    sample: Int
    extension: Int
    offset: Int
    length: Int
    extensions: list[str]
    dropped: int
    labels: tuple[Int, Int, Names]  # of each label member: value, is it an integer, text
    start: int = 0  # what was walked of the file, and where that ends; None: with the file
    stop: int | None = None
    alone: bool = True  # what follows is read without it

    def find(self, names: Sequence[str]) -> tuple[Int, Int]:
        """Find each sample's first member with one of these extensions: offset -1 for none."""
        offset = np.full(len(self.at), -1, np.int64)
        length = np.zeros(len(self.at), np.int64)
        for name in reversed(names):
            if name in self.extensions:
                rows = np.flatnonzero(self.extension == self.extensions.index(name))
                if len(rows) == len(self.at):  # each sample has it once: they are in order
                    offset, length = self.offset.take(rows), self.length.take(rows)
                else:
                    offset[self.sample[rows]] = self.offset[rows]
                    length[self.sample[rows]] = self.length[rows]
        return offset, length


def walk_archive(source: StoreFile, settings: Mapping[str, Any]) -> TarShard:
    """Walk an archive; FormatError at a flaw."""
    detection.refuse_compressed(source, "tar archive")
    columns = source.walk("tar", **settings)
    extensions = Names(columns["extension_text"], columns["extension_ends"])
    return TarShard(
        Names(columns["key_text"], columns["key_ends"]),
        columns["at"],
        columns["sample"],
        columns["extension"],
        columns["offset"],
        columns["length"],
        [extensions[i] for i in range(len(extensions))],
        columns["dropped"],
        (
            columns["label_value"],
            columns["label_is_integer"],
            Names(columns["label_text"], columns["label_ends"]),
        ),
        alone=not columns["inherited"] and (settings["ignore_zeros"] or not columns["ended"]),
    )


def walk_piece(
    source: StoreFile, start: int, stop: int, settings: Mapping[str, Any], seen: Headers
) -> TarShard | None:
    """Walk what begins within [start, stop) of an archive; None if nothing does, or if it has a
    flaw: what is around it is no chain then."""
    first, end = _find_header(source, start, seen), _find_header(source, stop, seen)
    if first >= stop:  # within a member that began before
        return None
    behind = end if end < source.size else None
    ending = {"end_required": False} if behind else {}
    try:
        shard = walk_archive(source.cut(first, end), {**settings, **ending})
    except FormatError:  # no piece, perhaps: walked whole, the archive has the right error
        return None
    at, offset = shard.at + first, shard.offset + first
    alone = shard.alone or behind is None
    return shard._replace(at=at, offset=offset, start=first, stop=behind, alone=alone)


def _find_header(source: StoreFile, place: int, seen: Headers) -> int:
    """Find where a member seems to begin, behind a place where a piece may: the end of the file if
    nothing looks so. Headers without a magic number (V7) are not seen."""
    for start in range(-(-place // _BLOCK) * _BLOCK, source.size, limits.parsed_piece_bytes):
        if (key := (source.path, start)) not in seen:
            seen[key] = _look_for_header(source, start) if start else 0
        if (header := seen[key]) is not None:
            return header
    return source.size


def _look_for_header(source: StoreFile, start: int) -> int | None:
    for at in range(start, start + limits.tar_search_bytes, _SEARCHED_BYTES):
        data = source.read(at, min(_SEARCHED_BYTES, max(0, source.size - at)))
        blocks = np.frombuffer(data, np.uint8, len(data) // _BLOCK * _BLOCK).reshape(-1, _BLOCK)
        for row in np.flatnonzero((blocks[:, 257:262] == _MAGIC).all(axis=1)).tolist():
            behind = _skip_member(blocks[row].tobytes())
            if behind is not None and at + _BLOCK * row + behind <= source.size:
                return int(at + _BLOCK * row + behind)
    return None


def _skip_member(header: bytes) -> int | None:
    """Bytes from a header to where a member surely begins: from one that may belong to metadata
    before it to its end; None if it is no header."""
    from tarfile import HeaderError, TarInfo  # here: few archives are so large

    try:
        member = TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except HeaderError:
        return None
    if member.type in _METADATA:
        return 0
    return _BLOCK + (-(-member.size // _BLOCK) * _BLOCK if member.isreg() else 0)


def _are_different(names: Names) -> bool:
    """Return whether no name comes twice. Names of one length that ascend are the fast case."""
    ends, width = names.ends, int(names.ends[0]) if len(names.ends) else 0
    if width and (np.diff(ends) == width).all():
        rows = names.text.view(f"S{width}")
        if (rows[1:] > rows[:-1]).all():
            return True
    text, places = names.text.tobytes(), ends.tolist()
    different = {text[start:end] for start, end in zip([0, *places], places, strict=False)}
    return len(different) == len(ends)


def join_pieces(pieces: Sequence[TarShard], duplicates: bool) -> TarShard | None:
    """Join the members of an archive's pieces; None if it has to be walked whole.

    duplicates:  a key may come again.
    """
    starts, stops = [piece.start for piece in pieces], [piece.stop for piece in pieces]
    if [0, *stops] != [*starts, None] or not all(piece.alone for piece in pieces):
        return None
    extensions = list(dict.fromkeys(name for piece in pieces for name in piece.extensions))
    number = {name: n for n, name in enumerate(extensions)}
    keys, at, sample, extension, parted = [], [], [], [], list[int]()
    count, last = 0, None
    for piece in pieces:
        goes_on = len(piece.at) > 0 and piece.keys[0] == last  # the sample of the piece before
        parted += [count - 1] * goes_on
        names = np.array([number[name] for name in piece.extensions], np.int32)
        extension.append(names[piece.extension])
        sample.append(piece.sample + (count - goes_on))
        at.append(piece.at[int(goes_on) :])
        skipped = int(piece.keys.ends[0]) if goes_on else 0
        keys.append(Names(piece.keys.text[skipped:], piece.keys.ends[int(goes_on) :] - skipped))
        count += len(piece.at) - goes_on
        last = piece.keys[len(piece.at) - 1] if len(piece.at) else last
    joined = shards.join_names(keys)
    samples = np.concatenate(sample)
    numbers: Any = np.concatenate(extension)
    members = np.sort((samples * len(extensions) + numbers)[np.isin(samples, parted)])
    if (members[1:] == members[:-1]).any() or not (duplicates or _are_different(joined)):
        return None
    values, integers, texts = zip(*(piece.labels for piece in pieces), strict=True)
    return TarShard(
        joined,
        np.concatenate(at),
        samples,
        numbers,
        np.concatenate([piece.offset for piece in pieces]),
        np.concatenate([piece.length for piece in pieces]),
        extensions,
        sum(piece.dropped for piece in pieces),
        (np.concatenate(values), np.concatenate(integers), shards.join_names(texts)),
    )
