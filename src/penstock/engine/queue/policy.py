"""Scheduling policies of the queue: the protocol, and four policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Protocol

from ... import limits
from ...errors import UsageError
from .request import Purpose, Request, check_purpose


def _check_fraction(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UsageError(f"{name} is {value!r}: use a fraction of 0..1")


@dataclass(frozen=True, slots=True)
class Target:
    """A server of requests as a policy sees it: an engine, a mount, a disk, or an endpoint.

    queued_bytes_max:  most bytes that are in progress there at a time; a larger request goes alone.
    queued_bytes:      bytes in progress there now.
    speed:             0..1, relative to the fastest target.
    free:              part of its space that is left, 0..1; nothing is written to a full one.
    available:         whether it takes requests.

    Raises UsageError for any other value.
    """

    queued_bytes_max: int = limits.queued_bytes_default
    queued_bytes: int = 0
    speed: float = 1.0
    free: float = 1.0
    available: bool = True

    def __post_init__(self) -> None:
        for name, least in (("queued_bytes_max", 1), ("queued_bytes", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise UsageError(
                    f"Target.{name} is {value!r}: use a whole number of {least} or above"
                )
        for name in ("speed", "free"):
            _check_fraction(f"Target.{name}", getattr(self, name))

    @property
    def load(self) -> float:
        """Part of the queue that is taken, 0..1."""
        return min(1.0, self.queued_bytes / self.queued_bytes_max)

    def has_room_for(self, request: Request) -> bool:
        """True if there is room for a request now."""
        if not self.available or (request.kind == "write" and self.free == 0):
            return False
        return self.queued_bytes == 0 or (
            self.queued_bytes + request.length <= self.queued_bytes_max
        )


class Policy(Protocol):
    """Order of requests and choice of their target; passes `penstock.testing.PolicySuite`
    unchanged."""

    def rank(self, request: Request) -> int:
        """Return the time in ns at which it is the request's turn: the smallest goes first.

        Depends on the request alone, so it is computed once. Lies in [arrived_ns, arrived_ns +
        limits.patience_ns_max]: a request that waited for that long is not overtaken by later ones.
        """
        ...

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """Return the number of one of these targets, at least one, each of which has room for the
        request. Called once for each piece that is then sent."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """Time for which more urgent requests that come later may overtake a request, by purpose;
    in ns.

    A request's turn comes this long after it arrived, or at its deadline if that is earlier. A
    demand is therefore sent before everything else that waits, except requests that have waited
    longer than their patience. Aging needs no clock, because all requests age alike.
    """

    demand: int = 0
    prefetch: int = 100_000_000
    sweep: int = 1_000_000_000
    checkpoint: int = 2_000_000_000
    convert: int = 5_000_000_000

    def __post_init__(self) -> None:
        for purpose in fields(self):
            value = getattr(self, purpose.name)
            if type(value) is not int or not 0 <= value <= limits.patience_ns_max:
                raise UsageError(
                    f"Patience.{purpose.name} is {value!r}: use ns of 0..{limits.patience_ns_max}"
                )

    def of(self, purpose: Purpose) -> int:
        """Return the patience of a purpose in ns; UsageError if there is no such purpose."""
        check_purpose(purpose)
        patience: int = getattr(self, purpose)
        return patience

    def turn(self, request: Request) -> int:
        """Return the time at which it is the request's turn, in ns."""
        turn = request.arrived_ns + self.of(request.purpose)
        if request.deadline_ns is not None:
            turn = min(turn, max(request.arrived_ns, request.deadline_ns))
        return turn


PATIENCE = Patience()
"""The default patience."""


@dataclass(slots=True)
class Fifo:
    """Policy of first come, first served, at the first target that has room; purposes do not
    count."""

    def rank(self, request: Request) -> int:
        """Return the arrival time."""
        return request.arrived_ns

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """Return the lowest number."""
        return min(targets)


@dataclass(slots=True)
class _Patient:
    """Base of the policies that rank by purpose, with aging."""

    patience: Patience = PATIENCE

    def rank(self, request: Request) -> int:
        """Return `Patience.turn` of the request."""
        return self.patience.turn(request)


@dataclass(slots=True)
class RoundRobin(_Patient):
    """Policy that ranks by purpose, with aging, and serves the targets in turn."""

    _last: int = field(default=-1, init=False)

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """Return the next number after the last one chosen."""
        self._last = min(targets, key=lambda number: (number <= self._last, number))
        return self._last


@dataclass(slots=True)
class LeastLoaded(_Patient):
    """Policy that ranks by purpose, with aging, and chooses the target with the emptiest queue."""

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """Return the target with the least load; of equals the lowest number."""
        return min(targets, key=lambda number: (targets[number].load, number))


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of a target's properties in its score; each in 0..1, their sum is 1."""

    available: float = 0.0
    free: float = 0.0
    idle: float = 0.0
    speed: float = 0.0

    def __post_init__(self) -> None:
        for weight in fields(self):
            _check_fraction(f"Weights.{weight.name}", getattr(self, weight.name))
        if abs(sum(astuple(self)) - 1) > 1e-6:
            raise UsageError(f"the sum of {self} is {sum(astuple(self)):g}: make it 1")

    def score(self, target: Target) -> float:
        """Return the score of a target, 0..1."""
        return (
            self.available * target.available
            + self.free * target.free
            + self.idle * (1 - target.load)
            + self.speed * target.speed
        )


LOW_LATENCY = Weights(available=0.5, idle=0.35, speed=0.15)
HIGH_BANDWIDTH = Weights(free=0.15, idle=0.15, speed=0.7)
"""Profiles of LABIOS, as is LOW_LATENCY."""


@dataclass(slots=True)
class WeightedScore(_Patient):
    """Policy that ranks by purpose, with aging, and chooses the target with the highest score."""

    weights: Weights = LOW_LATENCY

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """Return the target with the highest score; of equals the lowest number."""
        return min(targets, key=lambda number: (-self.weights.score(targets[number]), number))
