"""Every policy of dispatch passes the suite."""

from __future__ import annotations

import pytest

from penstock.engine.queue import (
    HIGH_BANDWIDTH,
    Fifo,
    LeastLoaded,
    Patience,
    Policy,
    RoundRobin,
    WeightedScore,
)
from penstock.testing import PolicySuite


class TestFifo(PolicySuite):
    """The suite for requests in the order of arrival."""

    def make(self) -> Policy:
        """Purposes do not count."""
        return Fifo()


@pytest.mark.long
class TestRoundRobin(PolicySuite):
    """One target after the other."""

    def make(self) -> Policy:
        """With the patience it comes with."""
        return RoundRobin()


@pytest.mark.long
class TestLeastLoaded(PolicySuite):
    """The emptiest queue."""

    def make(self) -> Policy:
        """A prefetch is as urgent as a demand."""
        return LeastLoaded(Patience(prefetch=0))


@pytest.mark.long
class TestWeightedScore(PolicySuite):
    """The highest score, for low latency."""

    def make(self) -> Policy:
        """With the weights it comes with."""
        return WeightedScore()


@pytest.mark.long
class TestWeightedScoreForBandwidth(PolicySuite):
    """The highest score, for high bandwidth."""

    def make(self) -> Policy:
        """With the longest patience there is."""
        return WeightedScore(Patience(checkpoint=60_000_000_000), HIGH_BANDWIDTH)
