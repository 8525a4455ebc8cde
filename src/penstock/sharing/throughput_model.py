"""Throughput of a job with a share of a host. Pure.

A job takes batches no faster than its model does, and no faster than its loader brings them. The
loader needs processor time and bytes from storage for each sample. Its rate is the least that any
of its resources allows. The idea is A-Dloader's (Jia et al., IEEE CLOUD 2022); its model is
not public, and this one is a reconstruction.

Everything is in the steady state: seconds, bytes, samples, and rates of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import limits
from ..arguments import Spec, check_fields
from ..errors import UsageError

Binding = Literal["model", "workers", "bandwidth"]
"""Resource that a job waits for: its model, the processor, or its byte rate."""

_numbers = (int, float, np.integer, np.floating)
_rounding = 1e-9
"""Relative difference below which sums of shares are equal."""


def quantity(
    least: float = limits.allocation_number_min, *, zero: bool = False, infinite: bool = False
) -> Spec:
    """Field of a finite number that is not absurd, as float; zero or infinite if that is allowed.

    Bounds keep products and quotients of such numbers within floats.
    """
    return {"check": partial(read_number, least=least, zero=zero, infinite=infinite)}


def read_number(
    name: str,
    value: Any,
    least: float = limits.allocation_number_min,
    zero: bool = False,
    infinite: bool = False,
) -> float:
    """Return a number as float; see `quantity`."""
    most = limits.allocation_number_max
    plain = isinstance(value, _numbers) and type(value) is not bool
    is_infinite = infinite and value == math.inf
    if plain and (least <= value <= most or (zero and value == 0) or is_infinite):
        return float(value)
    allowed = f"{'0, or ' if zero else ''}{least:g} to {most:g}{', or inf' if infinite else ''}"
    raise UsageError(f"{name} is {value!r:.100}: use a number, {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """Abilities of a job and costs of its samples; a loader can measure all of it.

    samples_per_s:      the ceiling: rate of the model if batches are there at once (some 20 steps
                        on a resident one); of all ranks, that is the number of ranks times the
                        slowest.
    cpu_s:              processor time a sample: reading, decoding, collating, by the threads'
                        clocks, not by the wall.
    storage_bytes:      bytes of shared storage a sample, after caches.
    remaining_samples:  until the job ends; for the objective "makespan".
    efficiency:         samples/s that the loader was seen to bring, over the prediction, at most 1:
                        it holds the losses of finite buffers.

    Raises UsageError for a number that is zero, infinite, negative or NaN
    and may not be.
    """

    samples_per_s: float = field(metadata=quantity())
    cpu_s: float = field(metadata=quantity(zero=True))
    storage_bytes: float = field(metadata=quantity(zero=True))
    remaining_samples: float | None = field(default=None, metadata=quantity())
    efficiency: float = field(default=1.0, metadata=quantity())

    def __post_init__(self) -> None:
        check_fields(self)
        if self.efficiency > 1:
            raise UsageError(f"JobProfile.efficiency is {self.efficiency}: use at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Resources that one job may use.

    workers:      cores that its workers hold at a time, on average; fractions are time-shared.
    bytes_per_s:  from storage.
    """

    workers: float = field(metadata=quantity(0.0))
    bytes_per_s: float = field(default=math.inf, metadata=quantity(0.0, infinite=True))

    def __post_init__(self) -> None:
        check_fields(self)


class Prediction(NamedTuple):
    """Predicted throughput of a job.

    samples_per_s:  rate that the job reaches.
    idle:           the part of the time in which its accelerators wait, 0..1.
    binding:        resource that it waits for; if several bind, the first as listed.
    """

    samples_per_s: float
    idle: float
    binding: Binding


def predict(profile: JobProfile, share: Share) -> Prediction:
    """Predict the throughput of a job with a share.

    It is the least that the job's model, workers and byte rate allow.
    """
    rates: dict[Binding, float] = {
        "model": profile.samples_per_s,
        "workers": profile.efficiency * _divide_cost(share.workers, profile.cpu_s),
        "bandwidth": profile.efficiency * _divide_cost(share.bytes_per_s, profile.storage_bytes),
    }
    least = min(rates.values())
    binding = next(name for name, rate in rates.items() if rate <= least * (1 + _rounding))
    return Prediction(least, 1 - least / profile.samples_per_s, binding)


def _divide_cost(amount: float, cost: float) -> float:
    """Return how often a cost can be paid; inf if there is no cost."""
    return amount / cost if cost > 0 else math.inf
