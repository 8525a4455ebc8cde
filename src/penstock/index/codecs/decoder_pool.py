"""FFmpeg's decoders, and those that wait for work: opening one takes longer than decoding a short
chunk. Thread-safe."""

from __future__ import annotations

import threading
from typing import NamedTuple

from ... import limits
from ..._core import PacketDecoder
from ...errors import UsageError, missing_library


class DecoderKind(NamedTuple):
    """FFmpeg's name of a decoder, what it is given, in hexadecimal, and its options."""

    name: str
    config: str
    options: tuple[tuple[str, str], ...] = ()


class DecoderPool:
    """Decoders by kind. The one that waited least is taken first."""

    def __init__(self) -> None:
        self._idle: list[tuple[DecoderKind, PacketDecoder]] = []
        self._lock = threading.Lock()

    def take(self, kind: DecoderKind) -> PacketDecoder:
        """Take a decoder of this kind, or open one, of the FFmpeg that PyAV brings."""
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if self._idle[place][0] == kind:
                    return self._idle.pop(place)[1]
        try:
            import av._core
        except ImportError:
            raise missing_library("av", "clips", "decoding films and sound") from None
        try:
            module = str(av._core.__file__)
            return PacketDecoder(module, kind.name, bytes.fromhex(kind.config), kind.options)
        except RuntimeError as error:
            raise UsageError(str(error)) from None

    def give_back(self, kind: DecoderKind, decoder: PacketDecoder) -> None:
        """Let a decoder wait for work; of too many, the one that waited longest is dropped."""
        with self._lock:
            self._idle.append((kind, decoder))
            del self._idle[: -limits.idle_decoders_max]
