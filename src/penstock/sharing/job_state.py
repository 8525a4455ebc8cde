"""Jobs of a broker: their throughput with a share of the host, their reports, and whether these are
true. Pure.

A job takes batches no faster than its model does, and no faster than its loader brings them. The
loader needs processor time and bytes from storage for each sample. Its rate is the least that any
of its resources allows. The idea is A-Dloader's (Jia et al., IEEE CLOUD 2022); its model is
not public, and this one is a reconstruction.

Everything is in the steady state: seconds, bytes, samples, and rates of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import limits
from ..arguments import Spec, check_fields
from ..errors import UsageError
from .lease import JobMeasurement, Lease, Terms, steps_ahead

# -- throughput ------------------------------------------------------------------------------------

Binding = Literal["model", "workers", "bandwidth"]
"""Resource that a job waits for: its model, the processor, or its byte rate."""

_numbers = (int, float, np.integer, np.floating)
_ROUNDING = 1e-9
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

    samples_per_s:        rate that the job reaches if its resources never wait for each other.
    least_samples_per_s:  rate that it reaches if reading, decoding and steps take varying times:
                          the lower balanced job bound of `steps_ahead` batches (Zahorjan, Sevcik,
                          Eager and Galler, CACM 25(2), 1982).
    idle:                 the part of the time in which its accelerators wait, 0..1.
    binding:              resource that it waits for; if several bind, the first as listed.
    """

    samples_per_s: float
    least_samples_per_s: float
    idle: float
    binding: Binding


def predict(profile: JobProfile, share: Share) -> Prediction:
    """Predict the throughput of a job with a share: the least that its model, workers and byte rate
    allow."""
    rates: dict[Binding, float] = {
        "model": profile.samples_per_s,
        "workers": profile.efficiency * _divide_cost(share.workers, profile.cpu_s),
        "bandwidth": profile.efficiency * _divide_cost(share.bytes_per_s, profile.storage_bytes),
    }
    least = min(rates.values())
    binding = next(name for name, rate in rates.items() if rate <= least * (1 + _ROUNDING))
    total_s = sum(_divide_cost(1, rate) for rate in rates.values())
    varying = steps_ahead / (total_s + (steps_ahead - 1) * _divide_cost(1, least))
    return Prediction(least, min(least, varying), 1 - least / profile.samples_per_s, binding)


def _divide_cost(amount: float, cost: float) -> float:
    """Return how often a cost can be paid; inf if there is no cost."""
    return amount / cost if cost > 0 else math.inf


# -- reports ---------------------------------------------------------------------------------------

Standing = Literal["measured", "unmeasured", "silent", "doubted"]
"""Standing of a job.

measured: its share is the best for it as measured. The others have an even share: unmeasured,
nothing is known of it yet; silent, none of its members report; doubted, its reports are not true.
"""

_weight = 0.2
"""Weight of a new window in a job's efficiency."""
_efficiency_least = 0.5
_stalled = 0.05
"""Part of the time above which a model that waits is waiting for its loader."""
_trifle = 0.1
"""Part of an even share below which a job may take more than its lease.

The limit is `excess` times this part.
"""


_followed = ("samples_per_s", "cpu_s", "storage_bytes", "efficiency")
_known = frozenset(field.name for field in fields(JobProfile))


class Drift:
    """Comparison of a job's measured profile with the profile that its share was made for.

    The job has changed when a value, both as measured and as smoothed over earlier windows, has
    been off to the same side by more than `tolerance` in `windows` consecutive windows. So one odd
    window changes nothing, and a job changes at most once in `windows` windows.

    profile:    of the share.
    tolerance:  relative, above 0.
    windows:    at least 1.
    weight:     of the newest window in the smoothed values, above 0 to 1.
    """

    def __init__(
        self, profile: JobProfile, *, tolerance: float = 0.2, windows: int = 3, weight: float = 0.5
    ) -> None:
        self._tolerance, self._windows, self._weight = tolerance, windows, weight
        self.profile = profile
        """Profile that measured windows are compared with."""
        self._smooth = {name: float(getattr(profile, name)) for name in _followed}
        self._off = dict.fromkeys(_followed, 0)

    def observe(self, measured: JobProfile) -> JobProfile | None:
        """Take one window; return the smoothed profile if shares should be divided again, else
        None. Later windows are compared with the returned profile."""
        for name in _followed:
            value = float(getattr(measured, name))
            before = self._smooth[name]
            smooth = before + self._weight * (value - before)
            if smooth < limits.allocation_number_min:
                smooth = value  # has faded to nothing, and profiles hold no number that small
            self._smooth[name] = smooth
            base = float(getattr(self.profile, name))
            side = self._side(value, base)
            streak = self._off[name]
            if side == 0 or side != self._side(smooth, base):
                self._off[name] = 0
            else:
                self._off[name] = streak + side if streak * side >= 0 else side
        if max(map(abs, self._off.values())) < self._windows:
            return None
        smoothed: dict[str, Any] = dict(self._smooth)
        self.profile = replace(measured, **smoothed)
        self._off = dict.fromkeys(_followed, 0)
        return self.profile

    def _side(self, value: float, base: float) -> int:
        """Return 1 above the tolerance, -1 below, 0 within."""
        if value == base:
            return 0
        return (value > base * (1 + self._tolerance)) - (value < base * (1 - self._tolerance))


@dataclass(slots=True, kw_only=True)
class JobMember:
    """A loader.

    heard_s:  time when it last joined or reported.
    gap_s:    time between its reports, of late.
    silent:   True if it has been silent for longer than its patience.
    lease:    that it is to have; since `leased_s`, -inf while that has not been sent.
    """

    name: str
    rank: int
    pid: int
    heard_s: float
    gap_s: float = 0.0
    profile: JobProfile | None = None
    measured: JobMeasurement | None = None
    silent: bool = False
    lease: Lease | None = None
    leased_s: float = -math.inf

    def patience_s(self, terms: Terms) -> float:
        """Return how long it may be silent: longer if its steps take long."""
        return min(terms.patience_s, max(terms.lease_s, 2 * self.gap_s))

    def hear(self, now_s: float, profile: JobProfile | None, measured: JobMeasurement) -> None:
        """Take a report."""
        self.gap_s = max(now_s - self.heard_s, self.gap_s / 2)
        self.heard_s, self.profile, self.silent = now_s, profile, False
        if profile is not None or self.measured is None:  # else its window goes on
            self.measured = measured

    def state(self, now_s: float) -> dict[str, Any]:
        """Return its state for JSON."""
        return {
            "name": self.name,
            "rank": self.rank,
            "pid": self.pid,
            "silent": self.silent,
            "heard_s": now_s - self.heard_s,
            "cores": self.lease and self.lease.cores,
            "bytes_per_s": self.lease and self.lease.bytes_per_s,
            "measured": self.measured and self.measured.samples_per_s,
            "stall": self.measured and self.measured.stall,
        }


@dataclass(slots=True)
class JobState:
    """The loaders of one job, and their reports together.

    owner:            user whose job it is; another owner's job of the same name is another job.
    fresh:            members that have reported in this window; it ends when all active members
                      have.
    drift:            profile that its share was made for, and its change since; None while
                      unmeasured.
    share:            that it has since `changed_s`.
    prediction:       of the throughput with that share.
    floor:            samples/s that it was promised.
    off:              windows in a row in which its reports were not true.
    doubts:           number of times that it was doubted.
    doubted_until_s:  -inf if it is not in doubt.
    """

    name: str
    owner: int
    members: dict[int, JobMember] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)
    drift: Drift | None = None
    share: Share | None = None
    prediction: Prediction | None = None
    floor: float = 0.0
    changed_s: float = -math.inf
    efficiency: float = 1.0
    off: int = 0
    doubts: int = 0
    doubted_until_s: float = -math.inf

    @property
    def active(self) -> list[JobMember]:
        return [member for member in self.members.values() if not member.silent]

    @property
    def standing(self) -> Standing:
        if self.doubted_until_s > -math.inf:
            return "doubted"
        if not self.active:
            return "silent"
        return "unmeasured" if self.drift is None else "measured"

    @property
    def believed(self) -> JobProfile | None:
        """Profile to make its share for, or None for an even share."""
        return self.drift.profile if self.standing == "measured" and self.drift else None

    def measured(self) -> JobMeasurement | None:
        """Return the measurement of its active members together."""
        known = [member.measured for member in self.active if member.measured is not None]
        if len(known) < 2:
            return known[0] if known else None
        stall = min(1.0, math.fsum(measurement.stall for measurement in known) / len(known))
        sums = {
            name: bound_number(math.fsum(getattr(measurement, name) for measurement in known))
            for name in ("samples_per_s", "cores", "bytes_per_s", "samples")
        }
        return JobMeasurement(stall=stall, **sums)

    def profile(self) -> JobProfile | None:
        """Return the profile of its active members together.

        It is as fast as all of them at the rate of the slowest; the cost of a sample is their mean.
        """
        active = self.active
        known = [
            (member.profile, member.measured) for member in active if member.profile is not None
        ]
        if not known:
            return None
        profiles = [profile for profile, _ in known]
        if len(active) == 1:
            return replace(profiles[0], efficiency=self.efficiency)
        rates = [measured.samples_per_s if measured else 0.0 for _, measured in known]
        if not any(rates):
            rates = [1.0] * len(rates)

        def mean(name: str) -> float:
            values = [getattr(profile, name) for profile in profiles]
            return bound_number(float(np.average(values, weights=rates)))

        slowest = min(profile.samples_per_s for profile in profiles)
        remaining = [profile.remaining_samples for profile in profiles]
        known_remaining = [samples for samples in remaining if samples is not None]
        is_known = len(known_remaining) == len(profiles)
        return JobProfile(
            samples_per_s=bound_number(len(active) * slowest),
            cpu_s=mean("cpu_s"),
            storage_bytes=mean("storage_bytes"),
            remaining_samples=bound_number(math.fsum(known_remaining)) if is_known else None,
            efficiency=self.efficiency,
        )

    def fall_silent(self, now_s: float, terms: Terms) -> bool:
        """Mark members that have been silent for too long; return whether any is new."""
        is_new = False
        for member in self.members.values():
            if not member.silent and now_s - member.heard_s > member.patience_s(terms):
                member.silent = is_new = True
        return is_new

    def judge(
        self, now_s: float, profile: JobProfile, measured: JobMeasurement, even: Share, terms: Terms
    ) -> bool:
        """Compare one window with its prediction; return whether the job has lied for too long."""
        assert self.share is not None
        since_s = now_s - self.changed_s
        if since_s < terms.settle_s:
            return False
        share, reached = self.share, measured.samples_per_s
        prediction = predict(profile, share)
        expected = prediction.samples_per_s
        off = reached * terms.lie < expected
        off = off or (reached > expected * terms.lie and since_s >= terms.drain_s)
        for taken, leased, mean in (
            (measured.cores, share.workers, even.workers),
            (measured.bytes_per_s, share.bytes_per_s, even.bytes_per_s),
        ):
            off = off or taken > terms.excess * max(leased, _trifle * mean)
        self.off = self.off + 1 if off else 0
        if measured.stall > _stalled and prediction.binding != "model":
            brought = reached / expected * profile.efficiency
            brought = min(1.0, max(_efficiency_least, brought))
            self.efficiency += _weight * (brought - self.efficiency)
        return self.off >= terms.lie_windows

    def doubt(self, until_s: float) -> None:
        """Doubt the job for a while; then it is measured again."""
        self.doubts += 1
        self.off = 0
        self.drift = None
        self.doubted_until_s = until_s

    def state(self, now_s: float) -> dict[str, Any]:
        """Return its state for JSON."""
        measured, share, expected = self.measured(), self.share, self.prediction
        return {
            "job": self.name,
            "owner": self.owner,
            "standing": self.standing,
            "lies": self.doubts,
            "efficiency": self.efficiency,
            "cores": share and share.workers,
            "bytes_per_s": share and encode_rate(share.bytes_per_s),
            "predicted": expected and expected.samples_per_s,
            "predicted_least": expected and expected.least_samples_per_s,
            "floor": self.floor,
            "idle": expected and expected.idle,
            "binding": expected and expected.binding,
            "measured": measured and measured.samples_per_s,
            "stall": measured and measured.stall,
            "members": [member.state(now_s) for member in self.members.values()],
        }


def encode_rate(rate: float) -> float | None:
    """Return a rate as leases and JSON have it: None without a limit."""
    return rate if rate < math.inf else None


def bound_number(number: float) -> float:
    """Bound a sum over members or jobs to a number that one of them may report."""
    if number < limits.allocation_number_min:
        return 0.0
    return min(number, limits.allocation_number_max)


def read_profile(message: Mapping[str, Any]) -> JobProfile:
    """Read a profile that a member reports.

    The broker finds the efficiency itself, so it is left out. Raises UsageError that names
    the value that is absurd, missing or unknown.
    """
    unknown = sorted(message.keys() - _known)
    if unknown:
        raise UsageError(f"JobProfile.{unknown[0]} is not known: use {', '.join(sorted(_known))}")
    for name in ("samples_per_s", "cpu_s", "storage_bytes"):
        if message.get(name) is None:
            raise UsageError(f"JobProfile.{name} is missing: give a number")
    profile = JobProfile(**{name: value for name, value in message.items() if value is not None})
    return profile if profile.efficiency == 1.0 else replace(profile, efficiency=1.0)
