"""planning: what the planner costs per sample (order, extents, sort, merge)."""

from __future__ import annotations

from .record import Row

PLAN_US = 0.15


def rows() -> list[Row]:
    """One row; it says "absent" as long as the library offers nothing to time."""
    try:
        import penstock
    except ImportError as error:
        return [absent(str(error))]
    if not hasattr(penstock, "plan"):
        return [absent("penstock.plan does not exist")]
    return [absent("penstock.plan exists, but this benchmark does not time it yet")]


def absent(reason: str) -> Row:
    """A row without a value is a target not met."""
    return Row("planning", None, "us/sample", target=PLAN_US, met=False, note=f"absent: {reason}")
