"""Times that differ from step to step, as DLIO's files describe them. Pure.

Parameters by kind: constant (value), normal (mean, stdev), uniform (low, high), gamma (shape,
scale), exponential (scale), poisson (mean).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds, by a distribution. Draws are never negative: what falls below 0 is 0."""

    kind: str
    parameters: tuple[float, ...]

    @classmethod
    def constant(cls, seconds: float) -> Distribution:
        """Always the same."""
        return cls("constant", (seconds,))

    @property
    def mean(self) -> float:
        """The mean before draws below 0 are cut."""
        first, *rest = self.parameters
        if self.kind == "uniform":
            return (first + rest[0]) / 2
        return first * rest[0] if self.kind == "gamma" else first

    @property
    def stdev(self) -> float:
        """The deviation before draws below 0 are cut."""
        first, *rest = self.parameters
        match self.kind:
            case "normal":
                return rest[0]
            case "uniform":
                return (rest[0] - first) / math.sqrt(12)
            case "gamma":
                return math.sqrt(first) * rest[0]
            case "exponential":
                return first
            case "poisson":
                return math.sqrt(first)
        return 0.0

    def draw(
        self, generator: np.random.Generator, count: int, *, folded: bool = False
    ) -> npt.NDArray[np.float64]:
        """So many values. folded: negative ones lose their sign, as in DLIO."""
        p = self.parameters
        drawn: npt.NDArray[np.float64]
        match self.kind:
            case "constant":
                drawn = np.full(count, p[0], np.float64)  # YAML's 5 is an int
            case "normal":
                drawn = generator.normal(p[0], p[1], count)
            case "uniform":
                drawn = generator.uniform(p[0], p[1], count)
            case "gamma":
                drawn = generator.gamma(p[0], p[1], count)
            case "exponential":
                drawn = generator.exponential(p[0], count)
            case "poisson":
                drawn = generator.poisson(p[0], count).astype(np.float64)
            case _:
                raise ValueError(f"unknown kind of distribution {self.kind!r}")
        np.abs(drawn, out=drawn) if folded else np.maximum(drawn, 0.0, out=drawn)
        return drawn
