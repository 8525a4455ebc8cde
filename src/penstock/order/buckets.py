"""Buckets: samples of near lengths of a window of an ordering, as batches of a number of tokens.

A model that does not pack pads each batch to its longest sample. The samples of a window are sorted
by size, the largest first, equals in the order of the window, and cut into batches:
each has as many as fit when all take the room of the first. The batches of a window are permuted,
as packed rows are: `PackedOrder` is of either.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_fields, check_number, whole
from ..errors import DataError, UsageError
from .keys import Words

_probes = 2 ** np.arange(25)  # lengths by whose sizes a function of the user is known again

Integers = npt.NDArray[np.int64]
PackedWindow = tuple[Integers, npt.NDArray[np.integer], Integers, Integers]
"""Offsets of a window's rows; of each piece its document, its first token and its tokens."""

SizeRule = Callable[[Integers], npt.ArrayLike]
"""Function of lengths, int64 (n,), to the room that each takes."""


def apply_rule(name: str, rule: SizeRule, lengths: Integers) -> npt.NDArray[np.float64]:
    """Return what a user's function gives for each length. UsageError if it gives anything but
    finite numbers from 0 on."""
    given: Any = rule(lengths)
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        what = f"{name} gives {type(given).__name__} ({given!r:.80}) for {len(lengths):,} lengths"
        raise UsageError(f"{what}: return one number for each") from None
    if values.shape != lengths.shape:
        what = f"{name} gives values of shape {values.shape} for {len(lengths):,} lengths"
        raise UsageError(f"{what}: return one number for each")
    wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
    if len(wrong):
        at = int(wrong[0])
        what = f"{name} gives {values[at]} for the length {int(lengths[at]):,}"
        raise UsageError(f"{what}: return finite numbers from 0 on")
    return values


@dataclass(frozen=True, slots=True)
class BucketRule:
    """All that decides how the samples of a window are divided into batches.

    tokens:    room of a batch: number of samples times the largest size.
    window:    samples of a window.
    multiple:  tokens that a length is rounded up to a multiple of.
    size_of:   sizes of lengths, so rounded; None: the lengths themselves.
    measured:  identity of lengths that were measured, as others would make other batches.
    """

    tokens: float
    window: int = field(metadata=whole(1, limits.packing_window_max))
    multiple: int = field(default=1, metadata=whole(1, limits.packing_length_max))
    size_of: SizeRule | None = None
    measured: str = ""
    _sizes_digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("batch_tokens", self.tokens, above=True)
        check_fields(self, "")
        digest = ""
        if self.size_of is not None:
            sizes = self.measure(_probes * self.multiple)
            digest = f":{hashlib.blake2b(sizes.astype('<f8').tobytes(), digest_size=8).hexdigest()}"
        object.__setattr__(self, "_sizes_digest", digest)

    @property
    def name(self) -> str:
        """Identifier in saved states."""
        aligned = f"m{self.multiple}" if self.multiple > 1 else ""
        room = struct.pack("<d", self.tokens).hex() if self.tokens % 1 else int(self.tokens)
        return f"buckets-1:{room}x{self.window}{aligned}{self._sizes_digest}{self.measured}"

    def measure(self, lengths: Integers) -> npt.NDArray[Any]:
        """Return the size of each length. UsageError if the user's function gives none."""
        rounded = -(-lengths // self.multiple) * self.multiple
        if self.size_of is None:
            return rounded
        return apply_rule("the cost of batches", self.size_of, rounded)

    def check(self, samples: Words, lengths: Integers) -> None:
        """Raise DataError if a sample is larger than a batch may be."""
        sizes = self.measure(lengths)
        if sizes.max() > self.tokens:
            at = int(np.argmax(sizes > self.tokens))
            what = f"sample {samples[at]} of length {lengths[at]:,} takes {sizes[at]:,} alone"
            remedy = f'raise it, or select(where="length < {lengths[at]}")'
            raise DataError(f"{what}, more than batch_tokens={self.tokens:,}: {remedy}")

    def count_rows(self, lengths: Integers) -> int:
        """Count the batches of a window with samples of these lengths."""
        return len(self._cut(np.sort(self.measure(lengths))[::-1])) - 1

    def pack(self, lengths: Integers) -> PackedWindow:
        """Divide the samples of a window into batches.

        Returns the offsets of batches, the samples of each by their place in the window, and the
        first token (0) and the tokens of each sample.
        """
        sizes = self.measure(lengths)
        keys = -sizes  # exact, as a difference from the largest is not
        if sizes.dtype.kind == "i" and int(sizes.max()) < 1 << 16:
            keys = (sizes.max() - sizes).astype(np.uint16)  # numpy sorts these by radix
        which = np.argsort(keys, kind="stable")
        return self._cut(sizes[which]), which, np.zeros(len(which), np.int64), lengths[which]

    def _cut(self, sizes: npt.NDArray[Any]) -> Integers:
        """Return the offsets of the batches of sizes that descend."""
        offsets, at, falling = [0], 0, sizes.tolist()
        while at < len(falling):
            rest = len(falling) - at
            at += int(max(1, min(rest, self.tokens // falling[at]))) if falling[at] else rest
            offsets.append(min(at, len(falling)))
        return np.array(offsets, np.int64)
