"""Amounts of bytes as people write them on the command line and in files."""

from __future__ import annotations

import re

_PREFIXES = "kMGTP"


def parse_bytes(text: str) -> float:
    """Parse bytes, or bytes a second, such as 1GB/s, 250 MiB, 4G or 1e9; a G is 10^9, a Gi 2^30.

    Raises ValueError for anything else.
    """
    parts = re.fullmatch(
        rf"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*(?:([{_PREFIXES}])(i?))?B?(?:/s)?\s*", text, re.IGNORECASE
    )
    if parts is None:
        raise ValueError("use a number of bytes or a text such as 200GB or 4GiB/s")
    power = 0 if parts[2] is None else 1 + _PREFIXES.upper().index(parts[2].upper())
    return float(parts[1]) * float((1024 if parts[3] else 1000) ** power)
