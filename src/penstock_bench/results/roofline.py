"""Roofline of a run of any loader, by its counters: which resource bound it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock import doctor
from penstock.cli.quantities import number
from penstock.errors import UsageError

_waiting_min = 0.05
"""Part of the time below which a run is not considered to be waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """Counters of a run within an interval.

    seconds:        of the interval.
    samples:        that were handed over.
    waited_s:       of the seconds, how long the user waited for the next batch.
    """

    seconds: float
    samples: int
    waited_s: float

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.samples > 0):
            raise UsageError(
                f"{self.samples} samples in {self.seconds:g} s: there is nothing to judge yet"
            )
        if not 0 <= self.waited_s <= self.seconds:
            raise UsageError(f"waited {self.waited_s:g} s of {self.seconds:g}: give a part of them")


def staging_supply(samples: int, staged_s: float, epochs: int) -> doctor.Supply:
    """Compute the supply of copying all data to a nearer place first, spread over the epochs that
    read it."""
    if not staged_s > 0:
        raise UsageError(f"staging takes {staged_s!r} s: give more than 0, or leave it out")
    how = f"{staged_s:g} s of staging, spread over {epochs} epoch{'s' * (epochs != 1)}"
    return doctor.Supply(epochs * samples / staged_s, how)


def judge_run(
    counted: RunCounts,
    demand: doctor.Demand,
    supplies: Mapping[doctor.Resource, doctor.Supply],
    *,
    data: doctor.DataProfile | None = None,
) -> doctor.Roofline:
    """Find the resource that binds a run in progress, from its counters and earlier measurements.

    The run itself measures compute (the time without waiting). That takes precedence over the
    supplies: no ceiling is below the rate that the run reached; compute does not bind if the run
    waits for more than a twentieth of the time, and nothing else binds if it waits for less.

    UsageError if it waits, and no supply is known that it could be waiting for.
    """
    measured = counted.samples / counted.seconds
    known = dict(supplies)
    known.pop("compute", None)
    waited = counted.waited_s / counted.seconds
    others = doctor.compute_ceilings(known, demand)
    if waited <= _waiting_min:
        compute = doctor.Ceiling("compute", measured, f"it waits for {waited:.1%} of the time")
        raised = (_raise_to_measured(other, measured) for other in others)
        return doctor.build_roofline([compute, *raised], measured, data)
    if not others:
        raise UsageError(
            f"it waits for {waited:.0%} of the time, and no supply is known that it could be "
            f"waiting for: measure what storage delivers (penstock.doctor.ceilings)"
        )
    lowest = min(others, key=lambda other: other.samples_per_s)
    how = lowest.how
    if measured < 0.5 * lowest.samples_per_s:
        allowed = number(lowest.samples_per_s)
        how += f"; on its own that allows {allowed}, so something that was not measured limits it"
    ceilings = [doctor.Ceiling(lowest.resource, measured, how)]
    ceilings += [_raise_to_measured(other, measured) for other in others if other is not lowest]
    if counted.seconds > counted.waited_s:
        busy_s = counted.seconds - counted.waited_s
        how = f"it computes for {1 - waited:.0%} of the time"
        ceilings.append(doctor.Ceiling("compute", counted.samples / busy_s, how))
    return doctor.build_roofline(ceilings, measured, data)


def _raise_to_measured(ceiling: doctor.Ceiling, measured: float) -> doctor.Ceiling:
    if ceiling.samples_per_s >= measured:
        return ceiling
    allowed = number(ceiling.samples_per_s)
    how = f"{ceiling.how}; that allows {allowed}, but the run reached more"
    return doctor.Ceiling(ceiling.resource, measured, how)
