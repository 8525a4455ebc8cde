"""A budget is checked when it is made and when it is changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from penstock import limits
from penstock.budget import Budget
from penstock.errors import UsageError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 0),
        ("requests", 0),
        ("requests", 2.0),
        ("requests", limits.object_requests_max + 1),
        ("threads", -1),
        ("threads", 1.5),
        ("threads", limits.threads_max + 1),
        ("cores", 0),
        ("cores", -0.5),
        ("cores", float("nan")),
        ("cores", "2"),
        ("bytes_per_s", 0),
        ("bytes_per_s", -1.0),
        ("bytes_per_s", float("nan")),
        ("process_bytes_per_s", 0),
        ("process_bytes_per_s", "fast"),
        ("readahead_bytes", 0),
        ("readahead_bytes", 1e6),
        ("io_uring", "on"),
        ("mmap", None),
        ("direct", True),
    ],
)
def test_wrong_values_are_named(field: str, value: Any) -> None:
    """A value out of range is refused with the name of the field and the value."""
    with pytest.raises(UsageError, match=f"Budget.{field} is {value!r}"):
        Budget(**{field: value})
    with pytest.raises(UsageError, match=f"Budget.{field}"):
        Budget().replace(**{field: value})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"threads": 1},
        {"requests": 1},
        {"requests": limits.object_requests_max},
        {"threads": limits.threads_max},
        {"cores": 0.25},
        {"bytes_per_s": 1e9, "readahead_bytes": 1},
        {"bytes_per_s": float("inf")},
        {"process_bytes_per_s": 5e8},
        {"io_uring": "required", "direct": "required", "mmap": "off"},
        {"mmap": "required"},
    ],
)
def test_right_values_are_kept(values: dict[str, Any]) -> None:
    """Values at the edges of their ranges are taken as they are."""
    budget = Budget(**values)
    assert {name: getattr(budget, name) for name in values} == values


def test_something_must_read() -> None:
    """With every backend off nothing could be read."""
    with pytest.raises(UsageError, match="all 'off'"):
        Budget(io_uring="off", mmap="off", pread="off")


@pytest.mark.parametrize(
    "pair", [("io_uring", "mmap"), ("io_uring", "pread"), ("mmap", "pread"), ("mmap", "direct")]
)
def test_fast_paths_that_exclude_each_other(pair: tuple[str, str]) -> None:
    """Two fast paths that cannot be active together cannot both be required."""
    with pytest.raises(UsageError, match=f"Budget.{pair[0]} and Budget.{pair[1]} are both"):
        Budget(**dict.fromkeys(pair, "required"))


def test_a_budget_is_a_value() -> None:
    """Budgets compare by their fields, cannot be changed, and replace makes another."""
    budget = Budget(threads=2)
    assert budget == Budget(threads=2)
    assert budget.replace(threads=3) == Budget(threads=3)
    with pytest.raises(FrozenInstanceError):
        budget.threads = 3  # type: ignore[misc]
