"""The cursor: epochs and steps as users count them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import StateError, UsageError
from penstock.plan.cursor import Cursor, Identity


def cursor(steps: int = 10) -> Cursor:
    return Cursor(Identity("f00d", "mixfeistel8-1", 1, 32), steps)


def test_epochs_follow_each_other() -> None:
    """Each begin is the next epoch, whether the one before was finished, abandoned or not used."""
    c = cursor()
    assert c.begin() == (0, 0)
    c.move(0, 10)
    assert c.begin() == (1, 0)
    c.move(1, 3)
    assert c.begin() == (2, 0)
    assert c.begin() == (3, 0)


def test_end_of_an_epoch_is_the_start_of_the_next() -> None:
    """A state taken after the last step says epoch + 1, step 0."""
    c = cursor()
    c.begin()
    c.move(0, 10)
    assert (c.state()["epoch"], c.state()["step"]) == (1, 0)
    again = cursor()
    again.restore(c.state(), 1)
    assert again.begin() == (1, 0)


def test_restored_place_is_begun_once() -> None:
    """Only the first begin after a restore continues in the middle."""
    c = cursor()
    c.restore(cursor().state() | {"epoch": 4, "step": 7}, 1)
    assert c.begin() == (4, 7)
    assert c.begin() == (5, 0)


def test_set_epoch_again_starts_over() -> None:
    """Naming the running epoch once more means its start, as it does in torch."""
    c = cursor()
    c.set_epoch(3)
    assert c.begin() == (3, 0)
    c.move(3, 5)
    c.set_epoch(3)
    assert c.begin() == (3, 0)


def test_an_empty_state_is_refused() -> None:
    """A job that lost its state must not begin anew without a word."""
    c = cursor()
    c.move(0, 3)
    with pytest.raises(StateError, match=r"no state of a penstock loader: it has \[\]"):
        c.restore({}, 1)
    assert (c.epoch, c.step) == (0, 3)


@pytest.mark.parametrize("epoch", [-1, 1.0, True, None, "3"])
def test_epochs_that_cannot_be(epoch: Any) -> None:
    """An epoch is a whole number from 0 on."""
    with pytest.raises(UsageError, match="epoch"):
        cursor().set_epoch(epoch)
