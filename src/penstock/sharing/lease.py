"""Leases of a job on a host that it shares, grants of its transfers, and its reports in turn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Self

from .. import limits
from ..arguments import check_fields, fraction, optional, real, whole
from ..budget import Budget
from ..errors import UsageError

steps_ahead = 4
"""Least steps of read-ahead: one is in use, one is read, and a late read in between is hidden."""
_most = limits.allocation_number_max
_amount = real(0, _most)
_positive = real(0, _most, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms between a broker and its jobs.

    lease_s:        lifetime of a lease that is not renewed, and longest silence of a member; leases
                    are renewed at half of it.
    patience_s:     longest lifetime for members whose steps take long: twice the time between their
                    last two reports.
    report_s:       interval of a member's reports.
    settle_s:       time after a change of its share in which a job's use is not judged: it uses up
                    samples that it has read ahead.
    drain_s:        time after a change of its share in which a job may exceed its prediction, by
                    those samples.
    hold_s:         least time between two divisions if the second is because of drift.
    horizon_s, switch_s:  expected lifetime of new shares, and the cost of changing them in seconds
                    of all jobs' work: see `ledger.is_worthwhile`.
    doubt_s:        time that a job which lied is at its floor.
    transfer_part:  least part of the bandwidth for all transfers together.
    lie:            factor above or below the prediction from which a rate is a lie.
    excess:         factor above the lease from which use is a lie.
    lie_windows:    consecutive windows with a lie after which a job is doubted.
    """

    lease_s: float = field(default=5.0, metadata=_positive)
    patience_s: float = field(default=60.0, metadata=_positive)
    report_s: float = field(default=0.5, metadata=_positive)
    settle_s: float = field(default=3.0, metadata=_amount)
    drain_s: float = field(default=30.0, metadata=_amount)
    hold_s: float = field(default=2.0, metadata=_amount)
    horizon_s: float = field(default=60.0, metadata=_positive)
    switch_s: float = field(default=1.0, metadata=_amount)
    doubt_s: float = field(default=30.0, metadata=_positive)
    transfer_part: float = field(default=0.2, metadata=real(0, 0.499, above=True))
    lie: float = field(default=2.0, metadata=real(1, _most))
    excess: float = field(default=1.5, metadata=real(1, _most))
    lie_windows: int = field(default=3, metadata=whole())

    def __post_init__(self) -> None:
        check_fields(self)


class _Numbers:
    """Numbers of a message, by name."""

    __slots__: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def message(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """Read the numbers from JSON; UsageError names the first missing or absurd number."""
        for item in fields(cls):  # type: ignore[arg-type]
            if item.default is MISSING and item.name not in message:
                raise UsageError(f"{cls.__name__}.{item.name} is missing: give a number")
        return cls(**{name: message[name] for name in cls.__slots__ if name in message})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(_Numbers):
    """Resources that one loader may use.

    cores:        processor time a second; fractions are time-shared.
    bytes_per_s:  from storage; None without a limit.
    floor_cores, floor_bytes_per_s:  the same after the lease: the part of an even split.
    lasts_s:      lifetime from when it was received, unless it is renewed.
    """

    cores: float = field(metadata=_positive)
    bytes_per_s: float | None = field(metadata=optional(_positive))
    floor_cores: float = field(metadata=_positive)
    floor_bytes_per_s: float | None = field(metadata=optional(_positive))
    lasts_s: float = field(metadata=_positive)

    @property
    def ended(self) -> Lease:
        """The lease after its end: its floor."""
        return replace(self, cores=self.floor_cores, bytes_per_s=self.floor_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(_Numbers):
    """Rate that a transfer may have.

    bytes_per_s:        0 if another transfer has its turn; None without a limit.
    floor_bytes_per_s:  the same after the grant.
    lasts_s:            lifetime from when it was received, unless it is renewed.
    """

    bytes_per_s: float | None = field(metadata=optional(_amount))
    floor_bytes_per_s: float | None = field(metadata=optional(_positive))
    lasts_s: float = field(metadata=_positive)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMeasurement(_Numbers):
    """Measurement of a loader by itself.

    samples_per_s:  samples handed over.
    cores:          processor time a second.
    bytes_per_s:    bytes from storage.
    stall:          part of the time in which the model waited for it, 0..1.
    samples:        samples handed over since it joined.
    step_s:         time from one batch to the next, in which it cannot report.
    """

    samples_per_s: float = field(metadata=_amount)
    cores: float = field(default=0.0, metadata=_amount)
    bytes_per_s: float = field(default=0.0, metadata=_amount)
    stall: float = field(default=0.0, metadata=fraction())
    samples: float = field(default=0.0, metadata=_amount)
    step_s: float = field(default=0.0, metadata=_amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of a loader.

    profile:   fields of `job_state.JobProfile`, of this loader alone, if measured since the
               last report. Its ceiling is the rate of the model, or the rate that the loader's own
               budget allows if that is less: a larger lease would be no use.
    measured:  in the same time as the profile.
    """

    profile: Mapping[str, Any] | None
    measured: JobMeasurement

    def message(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"profile": self.profile, "measured": self.measured.message()}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Report:
        """Read a report from JSON; raise UsageError that names the error; the ledger reads the
        profile."""
        profile, measured = message.get("profile"), message.get("measured")
        if profile is not None and not isinstance(profile, dict):
            raise UsageError(f"Report.profile is {profile!r:.100}: use an object or null")
        if not isinstance(measured, dict):
            raise UsageError(f"Report.measured is {measured!r:.100}: use an object")
        return cls(profile=profile, measured=JobMeasurement.of(measured))


def limit_budget(budget: Budget, lease: Lease, step_bytes: float = 0.0) -> Budget:
    """Limit a loader's own budget to its lease.

    If the rate is limited, so is the read-ahead: to `limits.lease_readahead_s` of it, and some
    steps of `step_bytes`.
    """
    cores = lease.cores if budget.cores is None else min(budget.cores, lease.cores)
    cores = min(cores, float(limits.threads_max))
    rate = lease.bytes_per_s
    if rate is None:
        return replace(budget, cores=cores)
    least = max(limits.lease_readahead_bytes_min, math.ceil(steps_ahead * step_bytes))
    ahead = max(least, int(rate * limits.lease_readahead_s))
    return replace(
        budget,
        cores=cores,
        bytes_per_s=rate if budget.bytes_per_s is None else min(budget.bytes_per_s, rate),
        readahead_bytes=min(budget.readahead_bytes, ahead),
    )
