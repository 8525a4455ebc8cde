"""Whose turn it is, and at which target: the protocol, and four policies."""

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
    """What serves requests: an engine, a mount, a disk, an endpoint; as a policy sees it.

    queued_bytes_max:  most bytes that are under way to it at a time; a request of more goes alone.
    queued_bytes:      that are.
    speed:             of 0..1, relative to the fastest.
    free:              part of its room that is left, of 0..1; nothing is written to a full one.
    available:         it takes requests.

    Raises UsageError where one is something else.
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

    def takes(self, request: Request) -> bool:
        """Whether there is room for a request now."""
        if not self.available or (request.kind == "write" and self.free == 0):
            return False
        return self.queued_bytes == 0 or (
            self.queued_bytes + request.length <= self.queued_bytes_max
        )


class Policy(Protocol):
    """Whose turn it is, and where; passes `penstock.testing.PolicySuite` unchanged."""

    def rank(self, request: Request) -> int:
        """When it is the request's turn, in ns: the smallest goes first.

        Depends on the request alone, so that it is asked for once, and lies in
        [arrived_ns, arrived_ns + limits.patience_ns_max]: who waits so long is overtaken by nobody
        who comes.
        """
        ...

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """The number of one of these targets, each of which has room for the request; there is
        one or more. Called once for what then goes."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long requests may be overtaken by more urgent ones that come later, by purpose, in ns.

    A request's turn comes this long after it arrived, or at its deadline where that is earlier. So
    a demand goes before all else that waits, but for what has waited for longer than its patience;
    and no clock is needed to see how requests age, as all age alike.
    """

    demand: int = 0
    prefetch: int = 100_000_000
    sweep: int = 1_000_000_000
    checkpoint: int = 2_000_000_000

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) is not int or not 0 <= value <= limits.patience_ns_max:
                raise UsageError(
                    f"Patience.{each.name} is {value!r}: use ns of 0..{limits.patience_ns_max}"
                )

    def of(self, purpose: Purpose) -> int:
        """In ns; UsageError where there is no such purpose."""
        check_purpose(purpose)
        patience: int = getattr(self, purpose)
        return patience

    def turn(self, request: Request) -> int:
        """When it is the request's turn."""
        turn = request.arrived_ns + self.of(request.purpose)
        if request.deadline_ns is not None:
            turn = min(turn, max(request.arrived_ns, request.deadline_ns))
        return turn


PATIENCE = Patience()
"""Where nothing else is said."""


@dataclass(slots=True)
class Fifo:
    """Who came first, to the first target that has room; purposes do not count."""

    def rank(self, request: Request) -> int:
        """When it arrived."""
        return request.arrived_ns

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """The lowest number."""
        return min(targets)


@dataclass(slots=True)
class _Patient:
    """By purpose, with aging."""

    patience: Patience = PATIENCE

    def rank(self, request: Request) -> int:
        """As `Patience.turn`."""
        return self.patience.turn(request)


@dataclass(slots=True)
class RoundRobin(_Patient):
    """By purpose, with aging; to one target after the other."""

    _last: int = field(default=-1, init=False)

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """The next number after the last one chosen."""
        self._last = min(targets, key=lambda number: (number <= self._last, number))
        return self._last


@dataclass(slots=True)
class LeastLoaded(_Patient):
    """By purpose, with aging; to the target whose queue is emptiest."""

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """The least load, of these the lowest number."""
        return min(targets, key=lambda number: (targets[number].load, number))


@dataclass(frozen=True, slots=True)
class Weights:
    """What counts how much in the score of a target; each of 0..1, together 1."""

    available: float = 0.0
    free: float = 0.0
    idle: float = 0.0
    speed: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_fraction(f"Weights.{each.name}", getattr(self, each.name))
        if abs(sum(astuple(self)) - 1) > 1e-6:
            raise UsageError(f"the sum of {self} is {sum(astuple(self)):g}: let it be 1")

    def score(self, target: Target) -> float:
        """0..1."""
        return (
            self.available * target.available
            + self.free * target.free
            + self.idle * (1 - target.load)
            + self.speed * target.speed
        )


LOW_LATENCY = Weights(available=0.5, idle=0.35, speed=0.15)
HIGH_BANDWIDTH = Weights(free=0.15, idle=0.15, speed=0.7)
"""LABIOS's profiles."""


@dataclass(slots=True)
class WeightedScore(_Patient):
    """By purpose, with aging; to the target of the highest score."""

    weights: Weights = LOW_LATENCY

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        """The highest score, of these the lowest number."""
        return min(targets, key=lambda number: (-self.weights.score(targets[number]), number))
