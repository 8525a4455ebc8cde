"""Leases of a job on a host that it shares, grants of its transfers, and its reports in turn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
from typing import Any, Self

from .. import limits
from ..arguments import check_fields, fraction, optional, real, whole
from ..budget import Budget
from ..errors import UsageError

_steps_ahead = 4
"""Steps that are read ahead at least.

One of these is being used and one read, and a late read in between does not show.
"""


_amount = real(0, limits.allocation_number_max)
_positive = real(0, limits.allocation_number_max, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms between a broker and its jobs.

    lease_s:        how long a lease lasts that is not renewed, and how long a member may be silent;
                    leases are renewed at half of it.
    patience_s:     the same, at most, for members whose steps take long: twice as long as they last
                    took to report.
    report_s:       how often a member reports.
    settle_s:       time after a change of its share in which a job is not judged by its use:
                    samples that it has read ahead are used up first.
    drain_s:        time after a change of its share in which a job is not judged for bringing more
                    than predicted, because those samples may do that.
    hold_s:         least time between two divisions of which the second is because a job has
                    drifted.
    horizon_s, switch_s:  for how long new shares are expected to be right, and how many seconds of
                    all jobs' work changing them costs: see `ledger.is_worthwhile`.
    doubt_s:        how long a job that lied is at its floor.
    transfer_part:  part of the bandwidth that transfers get together at least while there are any.
    lie:            factor above or below the prediction from which a rate is a lie.
    excess:         factor above the lease from which use is a lie.
    lies:           windows in a row with a lie after which a job is doubted.
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
    lie: float = field(default=2.0, metadata=real(1, limits.allocation_number_max))
    excess: float = field(default=1.5, metadata=real(1, limits.allocation_number_max))
    lies: int = field(default=3, metadata=whole())

    def __post_init__(self) -> None:
        check_fields(self)


class _Numbers:
    """Numbers that a message carries, by their names."""

    __slots__: tuple[str, ...] = ()

    def message(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """Read the numbers from JSON; raise UsageError, which names the one that is missing or
        absurd."""
        for name, item in cls.__dataclass_fields__.items():  # type: ignore[attr-defined]
            if item.default is MISSING and name not in message:
                raise UsageError(f"{cls.__name__}.{name} is missing: give a number")
        return cls(**{name: message[name] for name in cls.__slots__ if name in message})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(_Numbers):
    """Resources that one loader may use.

    cores:        processor time a second; fractions are time-shared.
    bytes_per_s:  from storage; None without a limit.
    floor_cores, floor_bytes_per_s:  the same once the lease has ended: the part of an even split.
    lasts_s:      from when it was received, unless it is renewed.
    """

    cores: float = field(metadata=_positive)
    bytes_per_s: float | None = field(metadata=optional(_positive))
    floor_cores: float = field(metadata=_positive)
    floor_bytes_per_s: float | None = field(metadata=optional(_positive))
    lasts_s: float = field(metadata=_positive)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def ended(self) -> Lease:
        """The lease after its end: its floor."""
        return replace(self, cores=self.floor_cores, bytes_per_s=self.floor_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(_Numbers):
    """Rate that a transfer may have.

    bytes_per_s:        0 if it is another's turn; None without a limit.
    floor_bytes_per_s:  the same once the grant has ended.
    lasts_s:            from when it was received, unless it is renewed.
    """

    bytes_per_s: float | None = field(metadata=optional(_amount))
    floor_bytes_per_s: float | None = field(metadata=optional(_positive))
    lasts_s: float = field(metadata=_positive)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMeasurement(_Numbers):
    """Measurement of a loader by itself.

    samples_per_s:  samples that it handed over.
    cores:          processor time a second that it took.
    bytes_per_s:    bytes that it took from storage.
    stall:          the part of the time in which the model waited for it, 0..1.
    samples:        samples that it handed over since it joined.
    step_s:         from one batch to the next, as it can report nothing in between.
    """

    samples_per_s: float = field(metadata=_amount)
    cores: float = field(default=0.0, metadata=_amount)
    bytes_per_s: float = field(default=0.0, metadata=_amount)
    stall: float = field(default=0.0, metadata=fraction())
    samples: float = field(default=0.0, metadata=_amount)
    step_s: float = field(default=0.0, metadata=_amount)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of a loader.

    profile:   fields of `throughput_model.JobProfile`, of this loader alone; None if nothing has
               been measured since the last report. Its ceiling is the rate of the model, or the
               rate that the loader's own budget allows if that is less: a lease of more is no use
               to it.
    measured:  in the same time as the profile.
    """

    profile: Mapping[str, Any] | None
    measured: JobMeasurement

    def message(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"profile": self.profile, "measured": self.measured.message()}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Report:
        """Read a report from JSON; raise UsageError, which names the error; the ledger reads the
        profile."""
        profile, measured = message.get("profile"), message.get("measured")
        if profile is not None and not isinstance(profile, dict):
            raise UsageError(f"Report.profile is {profile!r:.100}: use an object or null")
        if not isinstance(measured, dict):
            raise UsageError(f"Report.measured is {measured!r:.100}: use an object")
        return cls(profile=profile, measured=JobMeasurement.of(measured))


def limit_budget(budget: Budget, lease: Lease, step_bytes: float = 0.0) -> Budget:
    """Limit a loader's own budget to its lease.

    If the rate is limited, so is the read-ahead: `limits.lease_readahead_s` of it, and some steps
    of so many bytes.
    """
    cores = lease.cores if budget.cores is None else min(budget.cores, lease.cores)
    cores = min(cores, float(limits.threads_max))
    rate = lease.bytes_per_s
    if rate is None:
        return replace(budget, cores=cores)
    least = max(limits.lease_readahead_bytes_min, math.ceil(_steps_ahead * step_bytes))
    ahead = max(least, int(rate * limits.lease_readahead_s))
    return replace(
        budget,
        cores=cores,
        bytes_per_s=rate if budget.bytes_per_s is None else min(budget.bytes_per_s, rate),
        readahead_bytes=min(budget.readahead_bytes, ahead),
    )
