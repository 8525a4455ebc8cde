"""Codecs decode the samples of containers that compress, one module a container.

The noun is the compressed chunk: bytes that are read and decoded as one, of one or several pieces
of a file. A codec gets its bytes and the options that the index holds, and returns its samples. It
opens no file and knows neither formats nor layouts. Its module is imported when it is first used.
"""

from __future__ import annotations

from .registry import (
    RECENT,
    BrokenChunk,
    CompressedChunk,
    NullRow,
    decode_chunk,
    decode_samples,
)

__all__ = ["RECENT", "BrokenChunk", "CompressedChunk", "NullRow", "decode_chunk", "decode_samples"]
