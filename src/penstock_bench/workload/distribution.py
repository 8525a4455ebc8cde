"""Distributions of times, as DLIO's files describe them. Pure.

Parameters by kind: constant (value), normal (mean, stdev), uniform (low, high), gamma (shape,
scale), exponential (scale), poisson (mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from penstock.arguments import suggest

PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "normal": ("mean", "stdev"),
        "uniform": ("min", "max"),
        "gamma": ("shape", "scale"),
        "exponential": ("scale",),
        "poisson": ("lam",),
    }
)
"""Parameters of each kind but constant, by the names and in the order of files."""


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
        return self._moments()[0]

    @property
    def stdev(self) -> float:
        """The deviation before draws below 0 are cut."""
        return self._moments()[1]

    def _moments(self) -> tuple[float, float]:
        match self.kind, self.parameters:
            case "normal", (mean, stdev):
                return mean, stdev
            case "uniform", (low, high):
                return (low + high) / 2, (high - low) / math.sqrt(12)
            case "gamma", (shape, scale):
                return shape * scale, math.sqrt(shape) * scale
            case "exponential", (scale,):
                return scale, scale
            case "poisson", (mean,):
                return mean, math.sqrt(mean)
        return self.parameters[0], 0.0

    def draw(
        self, generator: np.random.Generator, count: int, *, folded: bool = False
    ) -> npt.NDArray[np.float64]:
        """So many values. folded: negative ones lose their sign, as in DLIO."""
        if self.kind == "constant":
            drawn = np.full(count, self.parameters[0], np.float64)  # YAML's 5 is an int
        else:  # a method of the generator has the name of each kind, and its parameters
            drawn = getattr(generator, self.kind)(*self.parameters, count).astype(np.float64)
        np.abs(drawn, out=drawn) if folded else np.maximum(drawn, 0.0, out=drawn)
        return drawn


def _read_distribution(value: Any) -> Distribution:
    """Read a number of seconds, or the parameters of a distribution; raise ValueError."""
    if isinstance(value, Distribution):
        return value
    if not isinstance(value, dict):
        return Distribution.constant(_read_seconds("", value))
    kind = value.get("type", "normal")
    parameters = {name: number for name, number in value.items() if name != "type"}
    if "type" not in value and parameters.keys() <= {"mean"}:
        return Distribution.constant(_read_seconds("mean ", parameters.get("mean", 0.0)))
    if not isinstance(kind, str) or kind not in PARAMETERS:
        raise ValueError(
            f"{kind!r} is not one of {', '.join(PARAMETERS)}{suggest(str(kind), PARAMETERS)}"
        )
    names = PARAMETERS[kind]
    needs = f"{kind} needs {' and '.join(names)}"
    if unknown := [name for name in parameters if name not in names]:
        raise ValueError(f"{needs}, and not {', '.join(unknown)}")
    if len(parameters) < len(names):
        raise ValueError(needs)
    numbers = tuple(_read_seconds(f"{name} ", parameters[name]) for name in names)
    if kind == "uniform" and numbers[0] > numbers[1]:
        raise ValueError(f"min is {numbers[0]:g}, above max, which is {numbers[1]:g}")
    return Distribution(kind, numbers)


def _read_seconds(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name}expected seconds or a distribution, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name}must be >= 0, got {value!r}")
    return value


def _write_distribution(time: Distribution) -> Any:
    if time.kind == "constant":
        return time.parameters[0]
    return {"type": time.kind, **dict(zip(PARAMETERS[time.kind], time.parameters, strict=True))}


Seconds = Annotated[
    Distribution,
    BeforeValidator(_read_distribution),
    PlainSerializer(_write_distribution),
    WithJsonSchema({"type": "distribution"}),
]
"""A distribution in a file: a number of seconds, {mean, stdev}, or {type, parameters}."""
