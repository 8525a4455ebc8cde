"""MixFeistel in Triton: the order computed where the data is, bit-equal to the compiled core.

Everything is 32-bit unsigned arithmetic that wraps on purpose (cpp/order/order_kernel.hpp), so
that launches switch Triton's overflow checks off. Words of a cipher are plain arguments, exempt
from specialisation: another seed or size compiles nothing again. Under TRITON_INTERPRET=1, set
before this module is imported, the kernels run on CPU tensors through numpy.

A kernel's `last` is the count less one; `WIDE` is True if the cipher's domain exceeds 2^32.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import triton
import triton.language as tl

import torch

from ..order.keys import TABLE_COUNT_MAX, derive_cipher_key
from ..order.order import Order

_FIRST = tl.constexpr(0x85EBCA6B)  # multipliers of MurmurHash3's finaliser, and of the core
_SECOND = tl.constexpr(0xC2B2AE35)

# Arguments that differ from call to call.
_cipher = ["last", "a", "bits", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"]
_varied = [*_cipher, "start", "step", "size"]

_block = 512
"""Elements of a program; four warps of 32 threads have 4 each. A program computes all of its
elements once more if one of them lands outside the order."""
_tile_bytes = 16 << 10
"""Bytes of rows in flight in a program."""


@triton.jit
def _mix(x, key):
    x = (x ^ key) * _FIRST
    return (x ^ (x >> 15)) * _SECOND


@triton.jit
def _hash(x, key):
    x = _mix(x, key)
    return x ^ (x >> 16)


@triton.jit
def _forward(left, right, a, drop, even, odd):
    """Do two rounds. A minimum undoes a wrap: the wrapped of the two candidates is the larger."""
    left += tl.umulhi(_hash(right, even), a)
    left = tl.minimum(left, left - a)
    return left, right ^ (_hash(left, odd) >> drop)


@triton.jit
def _backward(left, right, a, drop, even, odd):
    right ^= _hash(left, odd) >> drop
    left -= tl.umulhi(_hash(right, even), a)
    return tl.minimum(left, left + a), right


@triton.jit
def _encrypt_once(v, a, bits, k0, k1, k2, k3, k4, k5, k6, k7, INVERSE: tl.constexpr):
    """Encrypt values, uint32 or uint64, by one pass of the cipher."""
    left = (v >> bits.to(v.dtype)).to(tl.uint32)
    right = v.to(tl.uint32) & ((tl.full((), 1, tl.uint32) << bits) - 1)
    drop = 32 - bits
    if INVERSE:
        left, right = _backward(left, right, a, drop, k6, k7)
        left, right = _backward(left, right, a, drop, k4, k5)
        left, right = _backward(left, right, a, drop, k2, k3)
        left, right = _backward(left, right, a, drop, k0, k1)
    else:
        left, right = _forward(left, right, a, drop, k0, k1)
        left, right = _forward(left, right, a, drop, k2, k3)
        left, right = _forward(left, right, a, drop, k4, k5)
        left, right = _forward(left, right, a, drop, k6, k7)
    return (left.to(v.dtype) << bits.to(v.dtype)) | right.to(v.dtype)


@triton.jit
def _permute(
    values, last, a, bits, k0, k1, k2, k3, k4, k5, k6, k7,
    INVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Permute int64 values up to `last`."""
    word: tl.constexpr = tl.uint64 if WIDE else tl.uint32
    v = values.to(word)
    end = last.to(word)
    a = a.to(tl.uint32)
    bits = bits.to(tl.uint32)
    k0 = k0.to(tl.uint32)
    k1 = k1.to(tl.uint32)
    k2 = k2.to(tl.uint32)
    k3 = k3.to(tl.uint32)
    k4 = k4.to(tl.uint32)
    k5 = k5.to(tl.uint32)
    k6 = k6.to(tl.uint32)
    k7 = k7.to(tl.uint32)
    v = _encrypt_once(v, a, bits, k0, k1, k2, k3, k4, k5, k6, k7, INVERSE)
    stray = v > end
    # Few values land outside, so that few blocks go round here at all.
    while tl.max(stray.to(tl.int32), 0) != 0:
        again = _encrypt_once(v, a, bits, k0, k1, k2, k3, k4, k5, k6, k7, INVERSE)
        v = tl.where(stray, again, v)
        stray = v > end
    return v.to(tl.int64)


@triton.jit
def _locate_rows(first, size, SPAN: tl.constexpr):
    """Return the numbers of this program's rows, and a mask of those that exist."""
    i = first.to(tl.int64) * SPAN + tl.arange(0, SPAN)
    return i, i < size


@triton.jit
def _find_sources(
    i, live, positions, table, start, step,
    last, a, bits, k0, k1, k2, k3, k4, k5, k6, k7,
    LISTED: tl.constexpr, TABLE: tl.constexpr, INVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Return the sample at the i-th position: positions are listed, or start, start + step, ..."""
    if LISTED:
        p = tl.load(positions + i, mask=live, other=0)
    else:
        p = tl.where(live, start + i * step, 0)
    if TABLE:
        return tl.load(table + p)
    return _permute(p, last, a, bits, k0, k1, k2, k3, k4, k5, k6, k7, INVERSE, WIDE)


@triton.jit(do_not_specialize=_varied)
def _write_indices(
    out, table, start, step, size,
    last, a, bits, k0, k1, k2, k3, k4, k5, k6, k7,
    TABLE: tl.constexpr, INVERSE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i, live = _locate_rows(tl.program_id(0), size, BLOCK)
    index = _find_sources(
        i, live, table, table, start, step, last, a, bits, k0, k1, k2, k3, k4, k5, k6, k7,
        False, TABLE, INVERSE, WIDE,
    )  # fmt: skip
    tl.store(out + i, index.to(out.dtype.element_ty), mask=live, cache_modifier=".cs")


@triton.jit(do_not_specialize=_varied)
def _gather_rows(
    x, out, positions, table, start, step, size,
    last, a, bits, k0, k1, k2, k3, k4, k5, k6, k7,
    LISTED: tl.constexpr, TABLE: tl.constexpr, WIDE: tl.constexpr,
    WORDS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gather rows: row i of out is the row of x at the i-th position. A row's place is computed
    once; its words are moved by neighbouring threads, 16 bytes each where they are aligned."""
    i, live = _locate_rows(tl.program_id(0), size, ROWS)
    source = _find_sources(
        i, live, positions, table, start, step, last, a, bits, k0, k1, k2, k3, k4, k5, k6, k7,
        LISTED, TABLE, False, WIDE,
    )  # fmt: skip
    if WORDS == 1:
        moved = tl.load(x + source, mask=live, cache_modifier=".cg")
        tl.store(out + i, moved, mask=live)
    else:
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        whole = live[:, None] & (column < WORDS)[None, :]
        moved = tl.load(
            x + source[:, None] * WORDS + column[None, :], mask=whole, cache_modifier=".cg"
        )
        tl.store(out + i[:, None] * WORDS + column[None, :], moved, mask=whole)


class Cipher(NamedTuple):
    """Exact order in the form that kernels take.

    words:  `last`, `a`, `bits` and the keys, as signed integers.
    table:  of small orders, on the device, int64; forward or inverse as was asked. Otherwise any
            tensor; it is not read.
    """

    words: tuple[int, ...]
    wide: bool
    table: torch.Tensor
    tabled: bool


def make_cipher(order: Order, device: torch.device, inverse: bool = False) -> Cipher:
    """Make the cipher of an order for kernels on a device."""
    drawn = derive_cipher_key(order.count, order.key())
    keys = drawn.keys.view(np.int32).tolist()
    tabled = order.count <= TABLE_COUNT_MAX
    every = np.arange(order.count if tabled else 0)
    listed = order.positions(every) if inverse else order.samples(every)
    return Cipher(
        (order.count - 1, drawn.left_count, drawn.right_bits, *keys),
        drawn.left_count << drawn.right_bits > 1 << 32,
        torch.from_numpy(listed.astype(np.int64)).to(device),
        tabled,
    )


def compute_indices(cipher: Cipher, where: range, out: torch.Tensor, inverse: bool = False) -> None:
    """Compute out[i], the sample at (or position of) where[i]. `cipher` has the same `inverse`."""
    _launch(
        _write_indices,
        (triton.cdiv(len(where), _block),),
        out.device,
        *(out, cipher.table, where.start, where.step, len(where), *cipher.words),
        TABLE=cipher.tabled,
        INVERSE=inverse,
        WIDE=cipher.wide,
        BLOCK=_block,
    )


def gather_rows(
    cipher: Cipher, x: torch.Tensor, where: range | torch.Tensor, out: torch.Tensor
) -> None:
    """Gather out[i], the row of x at position where[i]; both are (rows, words) of integers."""
    words = x.shape[1]
    columns = min(triton.next_power_of_2(words), _tile_bytes // x.element_size())
    tile = max(1, _tile_bytes // (columns * x.element_size())) if words > 1 else _block
    listed = isinstance(where, torch.Tensor)
    start, step = (where.start, where.step) if isinstance(where, range) else (0, 1)
    _launch(
        _gather_rows,
        (triton.cdiv(len(where), tile), triton.cdiv(words, columns)),
        out.device,
        *(
            x,
            out,
            where if listed else cipher.table,
            cipher.table,
            start,
            step,
            len(where),
            *cipher.words,
        ),
        LISTED=listed,
        TABLE=cipher.tabled,
        WIDE=cipher.wide,
        WORDS=words,
        ROWS=tile,
        COLUMNS=columns,
    )


def _launch(
    kernel: Any, grid: tuple[int, ...], device: torch.device, *arguments: Any, **fixed: Any
) -> None:
    on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with on_device:
        kernel[grid](*arguments, **fixed, sanitize_overflow=False)
