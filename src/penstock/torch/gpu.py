"""Orders on a GPU: they shuffle rows of device memory there, as `Order` says, bit for bit.

    from penstock.torch import gpu

Imported only on request; needs torch, and Triton for tensors on a GPU (`pip install
'penstock[gpu]'`). Tensors on the CPU are served by the compiled core, and give the same values.
Nothing here is differentiable.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

import torch

from ..errors import UsageError, missing_library
from ..order import shuffling
from ..order.order import Order

__all__ = ["inverse", "is_available", "permutation", "shuffle", "take"]


def permutation(
    n: int,
    seed: int,
    epoch: int = 0,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.int64,
) -> torch.Tensor:
    """Return the samples at positions 0..n-1 of the order, made on the device, (n,).

    They equal `Order(n, seed, epoch).run(0, n)`.

    dtype:  torch.int64, or torch.int32 where n is at most 2^31.

    Raises UsageError for invalid arguments.
    """
    return _compute_indices(Order(n, seed, epoch), device, dtype, inverse=False)


def inverse(
    n: int,
    seed: int,
    epoch: int = 0,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.int64,
) -> torch.Tensor:
    """Return the positions of samples 0..n-1: the inverse of `permutation`, made without it."""
    return _compute_indices(Order(n, seed, epoch), device, dtype, inverse=True)


def shuffle(
    x: torch.Tensor, seed: int, epoch: int = 0, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Shuffle the rows of a tensor: x[permutation(len(x), seed, epoch)], without the indices.

    Rows run along the first dimension, of any shape and dtype. On a GPU one pass over the data,
    without scratch.

    out:  where the result goes: contiguous, with the shape, dtype and device of x. x itself, or
          what overlaps it, is right too, and costs a copy of x.

    A tensor that is not contiguous is copied first. Raises UsageError.
    """
    x = _check_tensor(x)
    order = Order(max(1, len(x)), seed, epoch)
    out = _check_out(x, x.shape, out)
    if x.numel() == 0:
        return out
    kernels = _find_kernels(x.device)
    if kernels is None:
        shuffling.shuffle(_view_bytes(x).numpy(), seed, epoch, out=_view_bytes(out).numpy())
        return out
    source, target = _view_words(x if _is_disjoint(x, out) else x.clone(), out)
    kernels.gather_rows(kernels.make_cipher(order, x.device), source, range(len(x)), target)
    return out


def take(
    x: torch.Tensor,
    positions: range | torch.Tensor,
    seed: int,
    epoch: int = 0,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Take the rows of x at these positions of its order: shuffle(x, seed, epoch)[positions].

    A batch is gathered in one pass, and where positions are a range no index is in memory. A tensor
    of positions is int64, one-dimensional; that its values are inside is checked, for which the
    GPU is waited for.

    out:  as for `shuffle`, with as many rows as there are positions.
    """
    x = _check_tensor(x)
    order = Order(max(1, len(x)), seed, epoch)
    positions = _check_positions(positions, len(x), x.device)
    out = _check_out(x, (len(positions), *x.shape[1:]), out)
    if out.numel() == 0:
        return out
    kernels = _find_kernels(x.device)
    if kernels is None:
        listed = positions if isinstance(positions, range) else positions.numpy()
        samples = order.samples(np.asarray(listed)).view(np.int64)
        source = x if _is_disjoint(x, out) else x.clone()
        torch.index_select(source, 0, torch.from_numpy(samples), out=out)
        return out
    source, target = _view_words(x if _is_disjoint(x, out) else x.clone(), out)
    kernels.gather_rows(kernels.make_cipher(order, x.device), source, positions, target)
    return out


def _compute_indices(
    order: Order, device: torch.device | str | None, dtype: torch.dtype, inverse: bool
) -> torch.Tensor:
    if dtype not in (torch.int64, torch.int32) or (dtype == torch.int32 and order.count > 1 << 31):
        raise UsageError(f"dtype is {dtype}: use torch.int64, or int32 for at most 2^31 samples")
    out = torch.empty(order.count, dtype=dtype, device=device)
    kernels = _find_kernels(out.device)
    if kernels is not None:
        cipher = kernels.make_cipher(order, out.device, inverse)
        kernels.compute_indices(cipher, range(order.count), out, inverse)
        return out
    piece = 1 << 20
    for start in range(0, order.count, piece):
        numbers = np.arange(start, min(order.count, start + piece), dtype=np.uint64)
        values = order.positions(numbers) if inverse else order.samples(numbers)
        out[start : start + piece] = torch.from_numpy(values.view(np.int64))
    return out


def is_available(device: torch.device) -> bool:
    """True if kernels run on this device: it is a GPU and Triton is installed."""
    try:
        return _find_kernels(device) is not None
    except UsageError:
        return False


def _find_kernels(device: torch.device) -> ModuleType | None:
    """Return the kernels for the device; on the CPU the compiled core runs: None."""
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        return None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"tensors on {device} are not supported: use 'cuda' or 'cpu'")
    kernels = _import_kernels()
    if kernels is None and device.type != "cpu":
        raise missing_library("triton", "gpu", f"a tensor on {device}")
    return kernels


@cache
def _import_kernels() -> ModuleType | None:
    """Return the kernels if Triton is installed, else None."""
    if find_spec("triton") is None:  # asked first: an import that fails fails otherwise in threads
        return None
    from . import feistel_triton

    return feistel_triton


def _check_tensor(x: torch.Tensor) -> torch.Tensor:
    """Return x as a contiguous plain tensor. Raises UsageError if it is none."""
    kind = x.layout if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
    if kind != torch.strided or x.is_quantized or x.ndim == 0:
        raise UsageError(f"x is {kind}: give a dense tensor of at least one dimension")
    return x.detach().resolve_conj().resolve_neg().contiguous()


def _check_out(x: torch.Tensor, shape: tuple[int, ...], out: Any) -> torch.Tensor:
    """Return `out`, or a new tensor. Raises UsageError if `out` cannot hold the rows of x."""
    if out is None:
        return torch.empty(shape, dtype=x.dtype, device=x.device)
    if not isinstance(out, torch.Tensor):
        raise UsageError(f"out is a {type(out).__name__}: give a tensor")
    needed, actual = (tuple(shape), x.dtype, x.device), (tuple(out.shape), out.dtype, out.device)
    if needed != actual:
        raise UsageError(f"out is {actual}: give one of {needed} (shape, dtype, device)")
    if not out.is_contiguous() or out.requires_grad:
        raise UsageError("out is not contiguous, or requires grad: give a plain contiguous tensor")
    return out


def _check_positions(positions: Any, count: int, device: torch.device) -> range | torch.Tensor:
    """Return the positions on the device. Raises UsageError if one is outside 0..count-1."""
    if isinstance(positions, torch.Tensor):
        if positions.dtype != torch.int64 or positions.ndim != 1:
            raise UsageError(f"positions are {positions.ndim}-d {positions.dtype}: give 1-d int64")
        if len(positions):
            least, most = (int(bound) for bound in torch.aminmax(positions))
    elif isinstance(positions, range):
        if len(positions):
            least, most = sorted((positions[0], positions[-1]))
    else:
        raise UsageError(f"positions are a {type(positions).__name__}: give a range or a tensor")
    if len(positions) and not 0 <= least <= most < count:
        raise UsageError(f"positions {least}..{most} are outside this order: use 0..{count - 1}")
    if isinstance(positions, range):
        return positions
    moved: torch.Tensor = positions.to(device).contiguous()
    return moved


def _is_disjoint(x: torch.Tensor, out: torch.Tensor) -> bool:
    """True if two contiguous tensors share no memory."""
    begin, other = x.data_ptr(), out.data_ptr()
    return begin + x.nbytes <= other or other + out.nbytes <= begin


def _view_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return a view of a contiguous tensor's memory as (rows, bytes)."""
    width = x.numel() // len(x)
    # Not reshape: strides of dimensions of one element may be anything.
    return x.as_strided((len(x), width), (width, 1)).view(torch.uint8)


_integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def _view_words(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both as (rows, words) of the widest integers that divide rows and addresses."""
    source, target = _view_bytes(x), _view_bytes(out)
    fit = source.shape[1] | x.data_ptr() | out.data_ptr()
    word = _integers[min(8, fit & -fit)]
    return source.view(word), target.view(word)
