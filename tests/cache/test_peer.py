"""The peers in memory; that the suite sees defects."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.cache.peer import Reason
from penstock.errors import UsageError
from penstock.testing import PeerSuite
from penstock.testing.peer import Fetching
from tests.cache.memory import MemoryPeer
from tests.jumping_clock import JumpingClock

SECOND_NS = 1_000_000_000


@pytest.mark.long
class TestMemoryPeer(PeerSuite):
    def make(self, count: int, timeout_s: float) -> list[MemoryPeer]:
        return MemoryPeer.group(count, timeout_s)


def test_memory_peer_times_out_by_its_clock() -> None:
    """A fetch fails when the clock says so, not before, and nobody waits for that."""
    clock = JumpingClock()
    asking, answering = MemoryPeer.group(2, 10.0, clock)
    fetching = Fetching([4, 5])
    ticket = fetching.submit(asking)
    clock.wait_until_ns(10 * SECOND_NS - 1)
    assert asking.step(0) == ([], [])
    clock.wait_until_ns(10 * SECOND_NS)
    (completion,) = asking.step(0).completions
    assert completion.ticket == ticket
    fetching.assert_failed(completion, Reason.TIMEOUT)
    (request,) = answering.step(0).requests
    fetching.answer(answering, request)
    assert asking.step(0) == ([], [])
    assert asking.counters() == {"late": 1}
    fetching.assert_untouched()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, np.inf, np.nan])
def test_timeout_is_finite(timeout_s: float) -> None:
    """Waiting is bounded."""
    with pytest.raises(UsageError, match="timeout_s"):
        MemoryPeer.group(2, timeout_s)


def test_suite_refuses_to_be_weakened() -> None:
    """A subclass cannot leave a test out by overriding it."""
    with pytest.raises(TypeError, match="overrides a test of PeerSuite"):

        class Weak(PeerSuite):
            def test_no_keys(self) -> None: ...
