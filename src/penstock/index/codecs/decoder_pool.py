"""The pool of FFmpeg's decoders, those that PyAV brings."""

from __future__ import annotations

import os
from functools import cache

from ... import limits
from ..._core import DecoderPool
from ...errors import UsageError, missing_library


def find_pool() -> DecoderPool:
    """Return this process's pool: its threads and locks are of no use after a fork."""
    return _open_pool(os.getpid())


@cache
def _open_pool(_: int) -> DecoderPool:
    try:
        import av._core
    except ImportError:
        raise missing_library("av", "clips", "decoding films and sound") from None
    try:
        return DecoderPool(str(av._core.__file__), limits.idle_decoders_max)
    except RuntimeError as error:
        raise UsageError(str(error)) from None
