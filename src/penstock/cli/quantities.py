"""Numbers, bytes and times as people read and write them. Pure."""

from __future__ import annotations

import math
import re

from ..errors import UsageError

_PREFIXES = "kMGTP"


def parse_bytes(text: str) -> float:
    """Parse bytes, or bytes a second, such as 1GB/s, 250 MiB, 4G or 1e9; a G is 10^9, a Gi 2^30.

    Raises ValueError for other texts.
    """
    match = re.fullmatch(
        rf"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*(?:([{_PREFIXES}])(i?))?B?(?:/s)?\s*", text, re.IGNORECASE
    )
    if match is None:
        raise ValueError("use a number of bytes or a text such as 200GB or 4GiB/s")
    power = 0 if match[2] is None else 1 + _PREFIXES.upper().index(match[2].upper())
    return float(match[1]) * float((1024 if match[3] else 1000) ** power)


def parse_amount(option: str, text: str, example: str) -> float:
    """Parse the size or the rate of an option; only one that speaks of bytes goes without unit."""
    try:
        if "bytes" in option or re.search(r"[kMGTPB]", text, re.IGNORECASE):
            return parse_bytes(text)
    except ValueError:
        pass
    raise UsageError(f"{option} is {text!r}: use a unit, as in {example}")


def format_bytes(count: float) -> str:
    """Bytes in the largest fitting unit: 1.5 MiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} PiB"


def number(value: float) -> str:
    """A number in three digits or more, with commas between thousands."""
    if abs(value) < 1e-9:
        return "0"
    decimals = min(9, max(0, 2 - math.floor(math.log10(abs(value)))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds as milliseconds to days: 2 h 5 min."""
    if seconds < 5e-7:
        return "0 s"
    if seconds < 0.9995:  # else it would be shown as 1,000 ms
        return f"{number(seconds * 1000)} ms"
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" + f" {rest} s" * (rest > 0)
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 72:
        return f"{hours} h" + f" {minutes} min" * (minutes > 0)
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,} d" + f" {hours} h" * (hours > 0)
