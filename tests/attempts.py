"""Tests of what can be seen only while the machine is not taken by others."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

ATTEMPTS = 10


def retried(test: Callable[..., None]) -> Callable[..., None]:
    """The test passes if one of a few attempts does, and is long. Others that take the machine can
    spoil an attempt; a property that does not hold is found in none."""

    @pytest.mark.long
    @functools.wraps(test)
    def attempt(*arguments: object, **fixtures: object) -> None:
        for left in reversed(range(ATTEMPTS)):
            try:
                test(*arguments, **fixtures)
                break
            except AssertionError:
                if not left:
                    raise

    return attempt
