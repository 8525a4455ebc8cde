"""The published GPU shuffle, as a yardstick: VariablePhilox and compaction in one pass, in Triton.

Mitchell, Stokes, Frank, Holmes, "Bandwidth-Optimal Random Shuffling for GPUs" (ACM TOPC 9, 2022): a
bijection of [0, 2^t), 2^t >= n, of which the values below n are kept in sequence. Generation, a
scan of what is kept, by decoupled look-back, and the gather are one kernel. Its order is not
penstock's: where an element goes depends on how many were kept before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

import torch

ROUNDS = 24
MULTIPLIER = 0xD2B74407B1CE6E93
BLOCK = 2048
_M0 = tl.constexpr(MULTIPLIER)
_ROUNDS = tl.constexpr(ROUNDS)
_VALUE = tl.constexpr((1 << 62) - 1)  # below the two bits that say what a block has told
_AGGREGATE = tl.constexpr(1 << 62)
_INCLUSIVE = tl.constexpr(-(1 << 63))
_NEIGHBOURS = tl.constexpr(32)


@triton.jit
def _philox(i, keys, left_bits, right_bits):
    """VariablePhilox of int64 counters: a left half of left_bits, a right one of as many or one
    more."""
    one = tl.full((), 1, tl.uint64)
    lb = left_bits.to(tl.uint64)
    rb = right_bits.to(tl.uint64)
    left_mask = (one << lb) - 1
    right_mask = (one << rb) - 1
    v = i.to(tl.uint64)
    left = v >> rb
    right = v & right_mask
    for r in range(_ROUNDS):
        key = tl.load(keys + r).to(tl.uint32, bitcast=True).to(tl.uint64)
        product = left * _M0
        low = product & 0xFFFFFFFF
        left = ((product >> 32) ^ key ^ right) & left_mask
        right = ((low << (rb - lb)) | (right >> lb)) & right_mask
    return ((left << rb) | right).to(tl.int64)


@triton.jit(do_not_specialize=["left_bits", "right_bits", "n"])
def _shuffle(x, out, keys, ticket, told, left_bits, right_bits, n, BLOCK: tl.constexpr):
    block = tl.atomic_add(ticket, 1).to(tl.int64)  # blocks in the sequence in which they run
    sample = _philox(block * BLOCK + tl.arange(0, BLOCK), keys, left_bits, right_bits)
    kept = sample < n
    value = tl.load(x + sample, mask=kept)
    flags = kept.to(tl.int64)
    count = tl.sum(flags, 0)
    tl.atomic_xchg(told + block, count | _AGGREGATE)
    # Look back over the blocks before, 32 at a time, as far as the first that knows its sum.
    before = tl.zeros((), tl.int64)
    last = block - 1
    while last >= 0:
        lane = tl.arange(0, _NEIGHBOURS)
        at = last - lane
        word = tl.load(told + at, mask=at >= 0, other=_INCLUSIVE, volatile=True)
        if tl.max((word == 0).to(tl.int32), 0) == 0:
            first = tl.min(tl.where(word < 0, lane, _NEIGHBOURS), 0)
            before += tl.sum(tl.where(lane <= first, word & _VALUE, 0), 0)
            last = tl.where(first < _NEIGHBOURS, -1, last - _NEIGHBOURS)
    tl.atomic_xchg(told + block, (before + count) | _INCLUSIVE)
    at = before + tl.cumsum(flags, 0) - flags
    tl.store(out + at, value, mask=kept)


def keys_of(seed: int) -> list[int]:
    """24 words of 32 bits: the upper halves of SplitMix64's outputs."""
    from penstock.order.keys import random_words

    return [word >> 32 for word in random_words(seed, ROUNDS).tolist()]


def bits_of(n: int, least: int = 8) -> tuple[int, int]:
    """Bits of the halves."""
    bits = max(least, (n - 1).bit_length())
    return bits // 2, bits - bits // 2


def shuffle(x: torch.Tensor, seed: int, out: torch.Tensor, least: int = 8) -> None:
    """The elements of x, one-dimensional, shuffled into out."""
    left_bits, right_bits = bits_of(len(x), least)
    words = np.array(keys_of(seed), np.uint32).view(np.int32)
    keys = torch.from_numpy(words).to(x.device)
    blocks = triton.cdiv(1 << (left_bits + right_bits), BLOCK)
    told = torch.zeros(blocks + 1, dtype=torch.int64, device=x.device)
    ticket = told[blocks:].view(torch.int32)
    fixed: dict[str, Any] = {"BLOCK": BLOCK, "sanitize_overflow": False}
    _shuffle[(blocks,)](x, out, keys, ticket, told, left_bits, right_bits, len(x), **fixed)


def oracle(n: int, seed: int, least: int = 8) -> list[int]:
    """The published order in plain Python."""
    left_bits, right_bits = bits_of(n, least)
    found = []
    for i in range(1 << (left_bits + right_bits)):
        left, right = i >> right_bits, i & ((1 << right_bits) - 1)
        for key in keys_of(seed):
            product = MULTIPLIER * left & (2**64 - 1)
            low = product & 0xFFFFFFFF
            left, right = (
                ((product >> 32) ^ key ^ right) & ((1 << left_bits) - 1),
                (low << (right_bits - left_bits) | right >> left_bits) & ((1 << right_bits) - 1),
            )
        sample = left << right_bits | right
        if sample < n:
            found.append(sample)
    return found
