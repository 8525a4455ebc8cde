"""A slice of what make test-long runs, for make test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings

CASES = 200
"""Examples of a property at which nothing is thinned: those of make test-long."""


def first(count: int, values: Iterable[Any], extra: int | None = None) -> list[Any]:
    """Mark all values of a parameter but the first ones long, and those from the number `extra` on
    `extra` too. A tuple is several parameters'."""
    values = [*values]
    values[count:] = map(mark_long, values[count:])
    if extra is not None:
        values[extra:] = (mark(value, pytest.mark.extra) for value in values[extra:])
    return values


def mark_long(value: Any) -> Any:
    """Mark a value of a parameter long, whatever it carries already."""
    return mark(value, pytest.mark.long)


def mark(value: Any, how: pytest.MarkDecorator) -> Any:
    """Mark a value of a parameter, whatever it carries already."""
    if hasattr(value, "marks"):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, how])
    values = value if type(value) is tuple else (value,)  # a named one is a value
    return pytest.param(*values, marks=how)


def thinned(cases: Iterable[Any], often: int = 1) -> Iterable[Any]:
    """Every nth of many cases, in their order, so that there are fewer where a property has fewer
    examples; `often` as many. A test that uses it is marked `wide`."""
    return islice(cases, 0, None, max(1, CASES // often // settings().max_examples))


def stride(coarse: int) -> Any:
    """Mark a parameter `stride` of a test that tries places of a run: `coarse` for `make test`, and
    a long one that tries each place, or every fifth where properties have fewer examples."""
    fine = 1 if settings().max_examples >= CASES else min(5, coarse - 1)
    return pytest.mark.parametrize("stride", [coarse, pytest.param(fine, marks=pytest.mark.long)])


def scaled(count: int) -> int:
    """Repetitions of what is tried at random; a quarter where properties have fewer examples."""
    return count if settings().max_examples >= CASES else -(-count // 4)


def fraction(divisor: int) -> settings:
    """Settings of a property that takes long: so many times fewer examples than others have."""
    return settings(max_examples=max(1, settings().max_examples // divisor))


def long_methods(*names: str) -> Callable[[type], type]:
    """Mark methods that a class inherits from a suite long, of this class alone."""

    def mark(tests: type) -> type:
        for name in names:
            method = getattr(tests, name)

            @wraps(method)
            def run(*arguments: Any, method: Any = method, **fixtures: Any) -> None:
                method(*arguments, **fixtures)

            setattr(tests, name, pytest.mark.long(run))
        return tests

    return mark
