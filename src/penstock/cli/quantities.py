"""Numbers as people read them. Pure."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """A number in three digits or more, with commas between thousands."""
    if abs(value) < 1e-9:
        return "0"
    decimals = min(9, max(0, 2 - math.floor(math.log10(abs(value)))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(megabytes: float) -> str:
    """MB as people read them, in decimal units."""
    for name, unit in (("kB", 1e-3), ("MB", 1.0), ("GB", 1e3), ("TB", 1e6)):
        if megabytes < unit * 999.5:
            return f"{megabytes / unit:.3g} {name}"
    return f"{number(megabytes / 1e9)} PB"


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    if seconds < 5e-7:
        return "0 s"
    if seconds < 0.9995:
        return f"{number(seconds * 1000)} ms"
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 72:
        return f"{hours} h {minutes} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,} d {hours} h"


def brief(seconds: float) -> str:
    """Seconds in eight characters at most, up to a thousand years."""
    if seconds < 5e-7:
        return "0"
    unit, name = time_unit(seconds)
    return f"{number(seconds / unit)} {'ms' if unit < 1 else {'m': 'min'}.get(name[0], name[0])}"


def time_unit(high: float) -> tuple[float, str]:
    """Seconds in the unit of an axis that ends at `high` seconds, and its name."""
    for least, unit, name in ((259_200, 86400.0, "days"), (7200, 3600.0, "hours")):
        if high >= least:
            return unit, name
    if high >= 300:
        return 60.0, "minutes"
    return (1.0, "seconds") if high >= 1 else (1e-3, "milliseconds")


def size_unit(high: float) -> tuple[float, str]:
    """MB in the unit of an axis that ends at `high` MB, and its name."""
    for unit, name in ((1e6, "TB"), (1e3, "GB")):
        if high >= 2 * unit:
            return unit, name
    return 1.0, "MB"


def latency(seconds: float) -> str:
    """Short times as people read them, in three digits."""
    for name, unit in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * unit:
            return f"{seconds / unit:.3g} {name}" if seconds else "0"
    return duration(seconds)


def percent(share: float) -> str:
    """A share of one, to a tenth of a percent; the sign stays on the line."""
    return f"{100 * share:.1f}\u00a0%"
