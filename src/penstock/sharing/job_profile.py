"""Profile of a running loader, from its counters. Pure.

    samples_per_s   rate of the user's steps if batches were there at once
    cpu_s           processor time that decoding took, by the threads' own clocks
    storage_bytes   bytes that were read

The last two are of a sample, and all are over a window of some batches. None of it depends on the
share that the loader has: a starved loader is measured as well as one that has plenty.
"""

from __future__ import annotations

from typing import NamedTuple

from ..meter import Counters

_window_ns = 1_000_000_000
_batches = 4


class ProfileWindow(NamedTuple):
    """Measurement of a loader over some time.

    samples, seconds:  samples that were handed over; length of the window.
    samples_per_s:     the ceiling of the user's steps; 0 if none was seen.
    cpu_s, storage_bytes:  of a sample.
    stall:             part of the time in which the user waited for batches.
    """

    samples: int
    seconds: float
    samples_per_s: float
    cpu_s: float
    storage_bytes: float
    stall: float

    @property
    def rate(self) -> float:
        """Samples a second that were handed over."""
        return self.samples / self.seconds


def measure_window(window: Counters, ever: Counters | None = None) -> ProfileWindow | None:
    """Measure a window from a difference of counters; None if it holds too little.

    Too little is no whole step, or none that was read, in the window or before it (`ever`): a
    loader that has read far ahead may read nothing for long.

    Reading runs ahead of the user, so bytes are counted by the steps that were read. Bytes that are
    kept for several steps (by a cache) are counted by samples: they are ahead of nobody for long.
    """
    engine = window.engine
    read, tickets = engine.get("bytes", 0), engine.get("tickets", 0)
    by_steps = "tickets" in engine and "loaded_bytes" not in engine
    if by_steps and tickets == 0 and ever is not None:
        read, tickets = ever.engine.get("bytes", 0), ever.engine.get("tickets", 0)
    seconds, steps_s = window.time_ns * 1e-9, (window.compute_ns + window.own_ns) * 1e-9
    if window.samples == 0 or steps_s == 0 or (by_steps and tickets == 0):
        return None
    rows = window.samples / window.batches
    return ProfileWindow(
        samples=window.samples,
        seconds=seconds,
        samples_per_s=window.samples / steps_s,
        cpu_s=window.decode_cpu_ns * 1e-9 / window.samples,
        storage_bytes=read / tickets / rows if by_steps else read / window.samples,
        stall=min(1.0, window.stall_ns / max(1, window.time_ns)),
    )


class Profiler:
    """Repeated measurement of one loader, each time over at least a second and some batches.

    A shorter window says little.
    """

    def __init__(self) -> None:
        self._since: Counters | None = None

    def measure(self, counters: Counters) -> ProfileWindow | None:
        """Return the window that has ended now; None while it goes on."""
        if self._since is None:
            self._since = counters
        ended = (
            counters.time_ns - self._since.time_ns >= _window_ns
            and counters.batches - self._since.batches >= _batches
        )
        window = measure_window(counters.since(self._since), counters) if ended else None
        if window is not None:
            self._since = counters
        return window
