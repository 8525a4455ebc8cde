"""Numbers, bytes and times as pages and tables of results show them. Pure."""

from __future__ import annotations

from penstock.cli.quantities import counted as counted
from penstock.cli.quantities import duration as duration
from penstock.cli.quantities import number as number


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def percent(share: float) -> str:
    """A share of one, to a tenth of a percent; the sign stays on the line."""
    return f"{100 * share:.1f}\u00a0%"


def size(megabytes: float) -> str:
    """MB in decimal units: 1.5 GB."""
    for name, unit in (("kB", 1e-3), ("MB", 1.0), ("GB", 1e3), ("TB", 1e6)):
        if megabytes < unit * 999.5:  # else it would be 1e+03
            return f"{megabytes / unit:.3g} {name}"
    return f"{number(megabytes / 1e9)} PB"


def size_unit(high: float) -> tuple[float, str]:
    """Unit of an axis that ends at `high` MB, and its name."""
    for unit, name in ((1e6, "TB"), (1e3, "GB")):
        if high >= 2 * unit:
            return unit, name
    return 1.0, "MB"


def latency(seconds: float) -> str:
    """Short times in three digits, from microseconds on."""
    for name, unit in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * unit:  # else it would be 1e+03
            return f"{seconds / unit:.3g} {name}" if seconds else "0"
    return duration(seconds)


def brief(seconds: float) -> str:
    """Seconds in eight characters at most, up to a thousand years."""
    if seconds < 5e-7:
        return "0"
    unit, name = time_unit(seconds)
    return f"{number(seconds / unit)} {'ms' if unit < 1 else {'m': 'min'}.get(name[0], name[0])}"


def time_unit(high: float) -> tuple[float, str]:
    """Unit of an axis that ends at `high` seconds, and its name."""
    for least, unit, name in (
        (259_200, 86400.0, "days"),
        (7200, 3600.0, "hours"),
        (300, 60.0, "minutes"),
        (1, 1.0, "seconds"),
    ):
        if high >= least:
            return unit, name
    return 1e-3, "milliseconds"
