"""MixFeistel in numpy, bit-equal to the compiled core: its oracle.

A `Permutation` maps one-dimensional uint64 arrays into others, which may be the same arrays. It
returns the index of the first value outside [0, count), or the size, as the core's does.
"""

from __future__ import annotations

import numpy as np

from penstock.order.keys import (
    GOLDEN,
    TABLE_COUNT_MAX,
    WORD,
    Halves,
    Words,
    derive_cipher_key,
    find_outside,
    mix64,
    random_words,
)

PIECE = 8192  # values mapped at a time: their temporaries stay in the cache


class Permutation:
    """A permutation of [0, count), drawn from a state: a table for small counts, else a cipher.

    cipher:  use the cipher at any count.
    level:   ignored here; the core's choice of instructions.
    """

    def __init__(self, count: int, state: int, cipher: bool = False, level: str = "") -> None:
        self.count = count
        self.left_count, self.right_bits, self.keys = derive_cipher_key(count, state)
        self._table: Words | None = None
        self._inverse_table: Words | None = None
        if count <= TABLE_COUNT_MAX and not cipher:
            self._table = _fisher_yates(count, state)
            self._inverse_table = np.argsort(self._table).astype(np.uint64)

    def forward(self, positions: Words, samples: Words) -> int:
        return self._map_values(positions, samples, inverse=False)

    def inverse(self, samples: Words, positions: Words) -> int:
        return self._map_values(samples, positions, inverse=True)

    def run(self, start: int, samples: Words) -> int:
        samples[:] = np.uint64(start) + np.arange(samples.size, dtype=np.uint64)
        return self.forward(samples, samples)

    def _map_values(self, values: Words, out: Words, inverse: bool) -> int:
        outside = find_outside(values, self.count)
        if outside != values.size:
            return outside
        table = self._inverse_table if inverse else self._table
        if table is not None:
            out[:] = table[values]
            return values.size
        for base in range(0, values.size, PIECE):
            piece = slice(base, base + PIECE)
            out[piece] = self._walk_cycles(values[piece], inverse)
        return values.size

    def _walk_cycles(self, values: Words, inverse: bool) -> Words:
        """Pass values through the cipher until they are below count."""
        apply = self._decrypt if inverse else self._encrypt
        values = apply(values)
        outside = np.flatnonzero(values >= self.count)
        while outside.size:
            next_values = apply(values[outside])
            values[outside] = next_values
            outside = outside[next_values >= self.count]
        return values

    def _encrypt(self, values: Words) -> Words:
        left, right = self._split(values)
        a = np.uint32(self.left_count)
        for r in (0, 2, 4, 6):
            left += self._hash_turn(right, r)
            np.minimum(left, left - a, out=left)  # undoes a wrap: the wrapped one is the larger
            right ^= _hash32(left, self.keys[r + 1]) >> np.uint32(32 - self.right_bits)
        return self._join(left, right)

    def _decrypt(self, values: Words) -> Words:
        left, right = self._split(values)
        a = np.uint32(self.left_count)
        for r in (6, 4, 2, 0):
            right ^= _hash32(left, self.keys[r + 1]) >> np.uint32(32 - self.right_bits)
            left -= self._hash_turn(right, r)
            np.minimum(left, left + a, out=left)
        return self._join(left, right)

    def _hash_turn(self, right: Halves, r: int) -> Halves:
        """Rotation of the left half: the right half's hash, scaled to [0, a)."""
        product = _hash32(right, self.keys[r]).astype(np.uint64)
        product *= np.uint64(self.left_count)
        product >>= np.uint64(32)
        return product.astype(np.uint32)

    def _split(self, values: Words) -> tuple[Halves, Halves]:
        left = (values >> np.uint64(self.right_bits)).astype(np.uint32)
        right = values.astype(np.uint32)
        right &= np.uint32((1 << self.right_bits) - 1)
        return left, right

    def _join(self, left: Halves, right: Halves) -> Words:
        values = left.astype(np.uint64)
        values <<= np.uint64(self.right_bits)
        values |= right
        return values


class Groups:
    """A permutation of [0, count) within groups of `span`, each by a cipher with its own key."""

    def __init__(self, count: int, span: int, state: int, level: str = "") -> None:
        self.count = count
        self.span = span
        self._state = state

    def forward(self, positions: Words, samples: Words) -> int:
        return self._map_values(positions, samples, inverse=False)

    def inverse(self, samples: Words, positions: Words) -> int:
        return self._map_values(samples, positions, inverse=True)

    def _map_values(self, values: Words, out: Words, inverse: bool) -> int:
        outside = find_outside(values, self.count)
        if outside != values.size:
            return outside
        group = values // np.uint64(self.span)
        by_group = np.argsort(group, kind="stable")
        ends = np.flatnonzero(np.diff(group[by_group])) + 1
        for members in np.split(by_group, ends) if values.size else ():
            q = int(group[members[0]])
            base = q * self.span
            state = mix64(((self._state ^ q) + GOLDEN) & WORD)
            permutation = Permutation(min(self.span, self.count - base), state, cipher=True)
            local = values[members] - np.uint64(base)
            (permutation.inverse if inverse else permutation.forward)(local, local)
            out[members] = local + np.uint64(base)
        return values.size


def _hash32(x: Halves, key: np.uint32) -> Halves:
    x = x ^ key
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def _fisher_yates(count: int, state: int) -> Words:
    table = list(range(count))
    draws = random_words(state, count - 1).tolist()
    for j, draw in zip(range(count - 1, 0, -1), draws, strict=True):
        r = draw * (j + 1) >> 64
        table[j], table[r] = table[r], table[j]
    return np.array(table, np.uint64)
