"""Keys of permutations: SplitMix64, and the parameters of a MixFeistel cipher. Pure.

The core's permutations derive the same from the same state (cpp/order/).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Halves = npt.NDArray[np.uint32]

TABLE_COUNT_MAX = 4096
"""Maximum count of a permutation that is a table; larger ones are ciphers."""

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio


def mix64(z: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every bit moves half of all."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def random_words(state: int, size: int) -> Words:
    """Return the first outputs of SplitMix64 from a state."""
    return mix_words(np.uint64(state) + np.uint64(GOLDEN) * np.arange(1, size + 1, dtype=np.uint64))


def mix_words(z: Words) -> Words:
    """Return `mix64` of each word."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_words(words: Words, key: int) -> Words:
    """Hash words to 64 bits under a key."""
    return mix_words(mix_words(words ^ np.uint64(key)) ^ np.uint64(mix64(key ^ GOLDEN)))


def find_outside(values: Words, count: int) -> int:
    """Return the index of the first value at or above count, or the size."""
    if values.size == 0 or int(values.max()) < count:
        return values.size
    return int(np.argmax(values >= np.uint64(count)))


class CipherKey(NamedTuple):
    """Parameters of the cipher over [0, left_count << right_bits), and its eight round keys."""

    left_count: int
    right_bits: int
    keys: Halves


def derive_cipher_key(count: int, state: int) -> CipherKey:
    """Derive the parameters of the cipher that permutes [0, count), drawn from a state."""
    right_bits = max(4, (count - 1).bit_length() // 2)
    left_count = max(16, -(-count >> right_bits))
    keys = (random_words(state, 8) >> np.uint64(32)).astype(np.uint32)
    return CipherKey(left_count, right_bits, keys)
