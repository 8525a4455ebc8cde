"""Trainers without a launcher of their own, on two ranks: all of them by the same two processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.long  # two processes import every trainer


def test_two_ranks(run_on_two_ranks: Callable[..., None]) -> None:
    """Their tests, on each rank of a process group."""
    names = ("composer", "deepspeed", "grain", "keras", "megatron", "torchdata")
    run_on_two_ranks(*(f"tests/trainers/test_{name}.py" for name in names))
