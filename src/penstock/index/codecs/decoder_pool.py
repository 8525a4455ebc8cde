"""Decoders that wait for work: making one takes longer than decoding a short chunk. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ... import limits


class DecoderPool:
    """Decoders by kind: what they were made for. The one that waited least is taken first."""

    def __init__(self) -> None:
        self._idle: list[tuple[tuple[Any, ...], Any]] = []
        self._lock = threading.Lock()

    def take(self, kind: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Take a decoder of this kind, or make one."""
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if self._idle[place][0] == kind:
                    return self._idle.pop(place)[1]
        return make()

    def give_back(self, kind: tuple[Any, ...], decoder: Any) -> None:
        """Let a decoder wait for work; of too many, the one that waited longest is dropped."""
        with self._lock:
            self._idle.append((kind, decoder))
            del self._idle[: -limits.idle_decoders_max]
