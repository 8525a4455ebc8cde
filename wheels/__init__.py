"""Wheels for people without a compiler: built (`make wheels`) and tried (`make check-wheels`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SYMBOLS = DIST / "symbols"
WORK = ROOT / "build" / "wheels"

SIZE_BYTES_MAX = 3_000_000
"""Bytes that a wheel may have."""

GLIBC = (2, 28)
"""Oldest C library that a wheel runs on: Debian 10, Ubuntu 20.04, RHEL 8, Amazon Linux 2023."""

ARCHITECTURES = ("x86_64", "aarch64")

STABLE_FROM = (3, 12)
"""First CPython whose stable ABI the modules can use; older ones get a wheel each."""

QUIET_S = 15.0
"""Longest time in which nothing is printed."""


@contextmanager
def announce(what: str) -> Iterator[None]:
    """Print what is going on until it ends, so that nobody takes it for hung."""
    ended, started = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(QUIET_S):
            print(f"  {what}: {time.monotonic() - started:.0f} s so far", flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


__all__ = [
    "ARCHITECTURES",
    "DIST",
    "GLIBC",
    "QUIET_S",
    "ROOT",
    "SIZE_BYTES_MAX",
    "STABLE_FROM",
    "SYMBOLS",
    "WORK",
    "announce",
]
