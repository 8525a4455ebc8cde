"""Contents of checkpoint tensors: random bytes that follow from seed, file and step, or ones.

No two tensors and no two steps are alike, so nothing compresses them or writes them once. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .shapes import DTYPE_BYTES, Bytes, File, State, Tensor

Words = npt.NDArray[np.uint64]

_BLOCK_WORDS = 1 << 20
"""Words drawn at a time, so that drawing does not double the memory of the tensor."""


class CheckpointContents:
    """The tensors of one rank's files, in memory, at one step after the other.

    If not `randomized`, all are ones at every step, and tensors of one type share memory.
    """

    def __init__(self, files: Sequence[File], seed: int, randomized: bool) -> None:
        self._seed, self._randomized = seed, randomized
        self._mark = np.uint64(0)
        self._ones: dict[str, Words] = {}
        self._random: dict[tuple[str, Tensor], Words] = {}
        if randomized:
            for file in files:
                for tensor in file.tensors:
                    self._random[file.name, tensor] = _draw_words(seed, file, tensor)
        else:
            self._ones = {tensor.dtype: _make_ones(tensor) for tensor in _find_longest(files)}

    @staticmethod
    def bytes(files: Sequence[File], randomized: bool) -> int:
        """Memory that these files need."""
        if randomized:
            return sum(file.bytes for file in files)
        return sum(tensor.bytes for tensor in _find_longest(files))

    def turn_to(self, epoch: int, step: int) -> None:
        """Change the tensors to this step's."""
        mark = _draw_mark(self._seed, epoch, step)
        with np.errstate(over="ignore"):
            change = mark - self._mark
        for words in self._random.values():
            words += change
        self._mark = mark

    def of(self, file: File) -> State:
        """The tensors of a file, without a copy."""
        words = {
            tensor: self._random[file.name, tensor]
            if self._randomized
            else self._ones[tensor.dtype]
            for tensor in file.tensors
        }
        return {tensor: content.view(np.uint8)[: tensor.bytes] for tensor, content in words.items()}


def make_content(
    file: File, tensor: Tensor, epoch: int, step: int, seed: int, randomized: bool
) -> Bytes:
    """Make one tensor anew, as `CheckpointContents` gives it."""
    words = _make_ones(tensor)
    if randomized:
        words = _draw_words(seed, file, tensor)
        words += _draw_mark(seed, epoch, step)
    return words.view(np.uint8)[: tensor.bytes]


def _find_longest(files: Sequence[File]) -> list[Tensor]:
    """The longest tensor of each type."""
    longest: dict[str, Tensor] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.dtype not in longest or longest[tensor.dtype].elements < tensor.elements:
                longest[tensor.dtype] = tensor
    return list(longest.values())


def _draw_words(seed: int, file: File, tensor: Tensor) -> Words:
    name = f"{seed}/{file.name}/{tensor.name}"
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest())
    bits = np.random.SFC64(key)
    words = np.empty(-(-tensor.bytes // 8), np.uint64)
    for first in range(0, len(words), _BLOCK_WORDS):
        block = words[first : first + _BLOCK_WORDS]
        block[:] = bits.random_raw(len(block))
    return words


def _draw_mark(seed: int, epoch: int, step: int) -> np.uint64:
    """The number that a step adds to every word."""
    name = f"{seed}/{epoch}/{step}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest))


def _make_ones(tensor: Tensor) -> Words:
    if tensor.dtype == "bf16":
        one = np.float32(1).tobytes()[2:]
    else:
        kind = "f" if tensor.dtype.startswith("fp") else "i"
        one = np.ones(1, f"<{kind}{DTYPE_BYTES[tensor.dtype]}").tobytes()
    words = np.empty(-(-tensor.bytes // 8), np.uint64)
    words[:] = np.frombuffer(one * (8 // len(one)), np.uint64)
    return words
