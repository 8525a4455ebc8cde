"""Roofline of a training job: the resource that limits it, and what would help. Pure.

    samples/s  <=  min over resources of  supply per second / demand of a sample

Supplies are measured one at a time (`ceilings`), so the result is a bound, not a forecast:
resources that are busy at the same time may slow each other down. The lowest ceiling binds. Its
distance to the next one is the most that can be gained before that one binds.

For runs of penstock's own loader `penstock.loader.explain_run` knows more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from ..errors import UsageError

Resource = Literal["compute", "decode", "bandwidth", "iops", "metadata", "copy", "staging"]
RESOURCES: tuple[Resource, ...] = get_args(Resource)

NAMES: Mapping[Resource, str] = {
    "compute": "compute",
    "decode": "decoding",
    "bandwidth": "storage bandwidth",
    "iops": "the rate of reads",
    "metadata": "the rate of opening files",
    "copy": "copying memory",
    "staging": "staging",
}
"""Name of each resource in a sentence."""

_USES: Mapping[Resource, str] = {
    "bandwidth": "bytes",
    "iops": "reads",
    "metadata": "opens",
    "copy": "copied_bytes",
}
"""Resources of which each sample uses an amount of its own, and the amount's name in `Demand`."""

_large_read_bytes = 1 << 20
"""Size from which reads are limited by bandwidth, so that their rate adds no information."""
_gain_min = 1.05
"""Smallest factor for which advice is given."""


@dataclass(frozen=True, slots=True)
class Supply:
    """The most that a resource delivers a second, and how that was measured.

    per_s:  bytes of bandwidth and copy; reads of iops; opens of metadata; samples of compute,
            decode and staging.
    """

    per_s: float
    how: str

    def __post_init__(self) -> None:
        if not self.per_s > 0:
            raise UsageError(f"a supply of {self.per_s!r} a second ({self.how}): give more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Average use of each resource by one sample.

    bytes, reads:   from storage; a read that brings several samples counts as a part for each.
    opens:          of files, if they are not kept open.
    copied_bytes:   from memory to memory.
    """

    bytes: float = 0.0
    reads: float = 0.0
    opens: float = 0.0
    copied_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name in _USES.values():
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UsageError(f"Demand.{name} is {value!r}: give a number from 0 on")

    def of(self, resource: Resource) -> float:
        """Return the use of a resource, in the unit of its supply."""
        used = _USES.get(resource)
        return 1.0 if used is None else getattr(self, used)

    def scaled(self, factor: float) -> Demand:
        """Return the demand of `factor` samples."""
        return Demand(**{name: factor * getattr(self, name) for name in _USES.values()})

    def cached(self, hit: float) -> Demand:
        """Return the demand if this part of the samples comes from a cache in memory instead of
        storage."""
        rest = 1.0 - hit
        return replace(
            self, bytes=self.bytes * rest, reads=self.reads * rest, opens=self.opens * rest
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProfile:
    """Properties of the data and the host that advice depends on.

    total_bytes:   of the data set.
    memory_bytes:  of this host, that a cache may take.
    own_files:     whether each sample is a file of its own.
    """

    total_bytes: int
    memory_bytes: int
    own_files: bool = False


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Samples a second that one resource allows."""

    resource: Resource
    samples_per_s: float
    how: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Ceilings in ascending order: the first one binds.

    measured:  samples/s that a run reached; None without one.
    advice:    sentences: what binds, and what would help by which factor.
    """

    ceilings: tuple[Ceiling, ...]
    measured: float | None = None
    advice: tuple[str, ...] = ()

    @property
    def bound(self) -> Resource:
        """The resource that binds."""
        return self.ceilings[0].resource

    @property
    def samples_per_s(self) -> float:
        """Samples a second that the binding resource allows."""
        return self.ceilings[0].samples_per_s

    @property
    def headroom(self) -> float:
        """The second-lowest ceiling divided by the lowest; infinite if there is only one."""
        if len(self.ceilings) < 2:
            return math.inf
        return self.ceilings[1].samples_per_s / self.samples_per_s

    @property
    def utilisation(self) -> float | None:
        """The largest possible part of its time that the accelerator computes; None if the step
        time is not known."""
        rates = {ceiling.resource: ceiling.samples_per_s for ceiling in self.ceilings}
        return self.samples_per_s / rates["compute"] if "compute" in rates else None

    def as_json(self) -> dict[str, Any]:
        """Return the form that records hold, with None for an infinite headroom."""
        return {
            "measured": self.measured,
            "ceilings": [asdict(ceiling) for ceiling in self.ceilings],
            "bound": self.bound,
            "headroom": None if math.isinf(self.headroom) else self.headroom,
            "advice": list(self.advice),
        }


# -- supplies by arithmetic ------------------------------------------------------------------------


def computing_supply(step_s: float, batch_size: int, ranks: int = 1) -> Supply:
    """Compute the supply of accelerators that take `step_s` for a step of `batch_size` samples
    each."""
    if not step_s > 0:
        raise UsageError(f"a step takes {step_s!r} s: give more than 0")
    step = f"{batch_size} samples in {step_s:g} s"
    return Supply(ranks * batch_size / step_s, step if ranks == 1 else f"{ranks} ranks, {step}")


# -- which one binds -------------------------------------------------------------------------------


def estimate_roofline(
    supplies: Mapping[Resource, Supply],
    demand: Demand,
    *,
    data: DataProfile | None = None,
) -> Roofline:
    """Compute the ceilings of these supplies, and advice. A resource that a sample does not use
    does not bind.

    If two are equal, the one that is first in `RESOURCES` is reported as binding. UsageError if
    there is no ceiling at all.
    """
    for resource in supplies:
        if resource not in RESOURCES:
            raise UsageError(f"there is no resource {resource!r}: use {', '.join(RESOURCES)}")
    return build_roofline(compute_ceilings(supplies, demand), None, data)


def compute_ceilings(supplies: Mapping[Resource, Supply], demand: Demand) -> list[Ceiling]:
    """Compute the samples a second that each supply allows; a resource without use has none."""
    ceilings = [
        Ceiling(resource, supplies[resource].per_s / demand.of(resource), supplies[resource].how)
        for resource in RESOURCES
        if resource in supplies and demand.of(resource) > 0
    ]
    if "bandwidth" in supplies and demand.bytes >= _large_read_bytes * demand.reads:
        return [ceiling for ceiling in ceilings if ceiling.resource != "iops"]
    return ceilings


def build_roofline(
    ceilings: list[Ceiling], measured: float | None, data: DataProfile | None
) -> Roofline:
    """Sort the ceilings, of equals the first one first, and add advice."""
    if not ceilings:
        raise UsageError("no supply is given for a resource that a sample uses: measure one")
    ascending = sorted(ceilings, key=lambda ceiling: ceiling.samples_per_s)
    plain = Roofline(tuple(ascending), measured)
    return replace(plain, advice=tuple(_write_advice(plain, data)))


# -- advice ----------------------------------------------------------------------------------------


def _write_advice(roofline: Roofline, data: DataProfile | None) -> Iterator[str]:
    bound, rate, headroom = roofline.bound, roofline.samples_per_s, roofline.headroom
    first = f"{NAMES[bound]} binds at {_format_rate(rate)} samples/s"
    if len(roofline.ceilings) < 2:
        yield f"{first}; no other ceiling is known"
    else:
        other = roofline.ceilings[1]
        allowed = f"{NAMES[other.resource]} allows {_format_rate(other.samples_per_s)}"
        yield f"{first}; {allowed}: {_format_factor(headroom)}"
    factor = f"{_format_factor(headroom)} " if _gain_min <= headroom < math.inf else ""
    if bound == "compute":
        if factor:
            yield (
                f"data could come {factor}as fast as the accelerator consumes it: a faster loader "
                f"or storage gains nothing"
            )
        elif headroom < _gain_min:
            yield "data arrives hardly faster than the accelerator consumes it: there is no slack"
        return
    if headroom < _gain_min:
        near = [c.resource for c in roofline.ceilings if c.samples_per_s < rate * _gain_min]
        names = " and ".join(NAMES[resource] for resource in near)
        yield f"{names} have nearly the same ceiling: improving one of them gains little"
    if bound in ("bandwidth", "iops", "metadata") and data is not None:
        cache = f"{_describe_cache(data)} would take storage out from the second epoch on"
        yield from _estimate_gain(roofline, {"bandwidth", "iops", "metadata"}, cache)
    if bound in ("iops", "metadata") and data is not None and data.own_files:
        shards = (
            "shards instead of a file for each sample (`penstock convert`), read in blocks "
            "(shuffle='blocked')"
        )
        yield from _estimate_gain(roofline, {"iops", "metadata"}, shards)
    elif bound == "iops":
        larger = "larger reads (shuffle='blocked', or a cache that reads cache blocks)"
        yield from _estimate_gain(roofline, {"iops"}, larger)
    if bound == "bandwidth" and factor:
        then = NAMES[roofline.ceilings[1].resource]
        yield f"storage of {factor}the bandwidth would help until {then} binds"
    if bound == "decode":
        cores = f"{factor}as many cores" if factor else "more cores"
        yield (
            f"{cores}, a cheaper decode (a JPEG at half its size, fewer conversions), or samples "
            f"that are stored decoded would help"
        )
    if bound == "copy":
        yield "smaller types (uint8 until the accelerator has it) make copies smaller"
    if bound == "staging":
        yield from _estimate_gain(roofline, {"staging"}, "reading in place instead of staging")
        yield "every further epoch that reads the staged data makes staging matter less"


def _estimate_gain(roofline: Roofline, resources: set[Resource], what: str) -> list[str]:
    """Describe the gain if these ceilings were gone; [] if it is too small."""
    rest = [ceiling for ceiling in roofline.ceilings if ceiling.resource not in resources]
    if not rest:
        return [f"{what}; no other ceiling is known"]
    gain, rate = rest[0].samples_per_s / roofline.samples_per_s, rest[0].samples_per_s
    if gain < _gain_min:
        return []
    then = f"{_format_factor(gain)}, where {NAMES[rest[0].resource]} binds"
    return [f"{what}: up to {_format_rate(rate)} samples/s, {then}"]


def _describe_cache(data: DataProfile) -> str:
    size = _format_size(data.total_bytes)
    if data.total_bytes <= data.memory_bytes:
        return f"a cache of {size}, which this host's memory holds,"
    hosts = math.ceil(data.total_bytes / max(1, data.memory_bytes))
    return (
        f"a cache of {size} (this host's memory has room for {_format_size(data.memory_bytes)}:"
        f" {hosts:,} such hosts, or a local disk)"
    )


def _format_factor(factor: float) -> str:
    return f"{factor:.1f}x" if factor < 100 else f"{factor:,.0f}x"


def _format_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _format_size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
