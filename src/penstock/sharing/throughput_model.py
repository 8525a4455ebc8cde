"""Throughput of a job with a share of a host. Pure.

A job takes batches no faster than its model does, and no faster than its loader brings them. The
loader needs processor time and bytes from storage for each sample. Its rate is the least that any
of its resources allows. This is the idea of A-Dloader (Jia et al., IEEE CLOUD 2022), whose model is
not public; this one is a reconstruction.

Everything is in the steady state: seconds, bytes, samples, and rates of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from .. import limits
from ..errors import UsageError

Binding = Literal["model", "workers", "streams", "bandwidth"]
"""Resource that a job waits for: its model, the processor, answers to its reads, or its byte
rate."""

_halvings = 50
_numbers = (int, float, np.integer, np.floating)
_rounding = 1e-9
"""Relative difference below which sums of shares are equal."""


def check_number(
    owner: object,
    name: str,
    *,
    least: float = limits.allocation_number_min,
    zero: bool = False,
    infinite: bool = False,
) -> None:
    """Raise UsageError if a number is absurd: NaN, negative, or zero or infinite if that means
    nothing.

    Bounds keep products and quotients of such numbers within floats.
    """
    value = getattr(owner, name)
    most = limits.allocation_number_max
    plain = isinstance(value, _numbers) and type(value) is not bool
    if plain and (least <= value <= most or (zero and value == 0)):
        return
    if plain and infinite and value == math.inf:
        return
    allowed = f"{'0, or ' if zero else ''}{least:g} to {most:g}{', or inf' if infinite else ''}"
    raise UsageError(f"{type(owner).__name__}.{name} is {value!r}: use a number, {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """Abilities of a job and costs of its samples; a loader can measure all of it.

    samples_per_s:      the ceiling: rate of the model if batches are there at once (some 20 steps
                        on a resident one); of all ranks, that is the number of ranks times the
                        slowest.
    cpu_s:              processor time a sample: reading, decoding, collating, by the threads'
                        clocks, not by the wall.
    storage_bytes:      bytes of shared storage a sample, after caches.
    stream_bytes_per_s:  rate that one blocking read stream gets alone; inf if nothing waits for its
                        reads (asynchronous ones).
    separate:           True if reads have threads of their own, which hold no core while they wait;
                        else a worker reads and decodes, and holds its core meanwhile.
    samples:            samples of an epoch, each of which the shared cache can keep; None if it can
                        keep none.
    cached_bytes:       part of the shared cache that the job held while `storage_bytes` was
                        measured. Each byte of it saves one byte an epoch.
    checkpoint_bytes_per_s:  steady checkpoint traffic: a checkpoint's bytes by the time between
                        two.
    remaining_samples:  until the job ends; for the objective "makespan".
    efficiency:         samples/s that the loader was seen to bring, over the prediction, at most 1:
                        it holds the losses of finite buffers.

    Raises UsageError, which names the value, for a number that is zero, infinite, negative or NaN
    and may not be.
    """

    samples_per_s: float
    cpu_s: float
    storage_bytes: float
    stream_bytes_per_s: float = math.inf
    separate: bool = False
    samples: float | None = None
    cached_bytes: float = 0.0
    checkpoint_bytes_per_s: float = 0.0
    remaining_samples: float | None = None
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "samples_per_s")
        check_number(self, "stream_bytes_per_s", infinite=True)
        for name in ("cpu_s", "storage_bytes", "cached_bytes", "checkpoint_bytes_per_s"):
            check_number(self, name, zero=True)
        for name in ("samples", "remaining_samples"):
            if getattr(self, name) is not None:
                check_number(self, name)
        check_number(self, "efficiency")
        if self.efficiency > 1:
            raise UsageError(f"JobProfile.efficiency is {self.efficiency}: use at most 1")
        if self.cached_bytes and self.samples is None:
            raise UsageError(
                f"JobProfile.cached_bytes is {self.cached_bytes!r}, but samples is None: say of "
                "how many samples"
            )

    def bytes_with(self, cache_bytes: float) -> float:
        """Return the bytes of storage a sample if the job has so much of the shared cache."""
        if self.samples is None:
            return self.storage_bytes
        return max(0.0, self.storage_bytes + (self.cached_bytes - cache_bytes) / self.samples)

    @property
    def cacheable_bytes(self) -> float:
        """Bytes of the shared cache that the job can use."""
        return 0.0 if self.samples is None else self.bytes_with(0.0) * self.samples

    def core_s_with(self, cache_bytes: float) -> float:
        """Return the time that a sample holds a core, reads included unless they are `separate`."""
        if self.separate:
            return self.cpu_s
        return self.cpu_s + self.bytes_with(cache_bytes) / self.stream_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Rates that storage gives to several streams together, measured at a few numbers of them.

    streams:      ascending, from 1 on.
    bytes_per_s:  of all together; linear in between, in proportion below, constant beyond.
    """

    streams: tuple[float, ...]
    bytes_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.streams or len(self.streams) != len(self.bytes_per_s):
            raise UsageError(
                f"Contention has {len(self.streams)} streams and {len(self.bytes_per_s)} "
                "bytes_per_s: give one rate for each number of streams"
            )
        known = np.asarray(self.streams, np.float64), np.asarray(self.bytes_per_s, np.float64)
        if not (np.diff(known[0], prepend=0) > 0).all() or not 1 <= known[0][0] < math.inf:
            raise UsageError(f"Contention.streams is {self.streams}: use ascending ones from 1 on")
        low, high = limits.allocation_number_min, limits.allocation_number_max
        if not ((low <= known[1]) & (known[1] <= high)).all():
            raise UsageError(
                f"Contention.bytes_per_s is {self.bytes_per_s}: use rates of {low:g} to {high:g}"
            )

    def total(self, streams: float) -> float:
        """Return the bytes/s that so many streams get together."""
        return float(np.interp(streams, (0.0, *self.streams), (0.0, *self.bytes_per_s)))

    def each(self, streams: float) -> float:
        """Return the bytes/s that one of so many streams gets; with fewer than one, the rate of
        one."""
        return self.total(max(1.0, streams)) / max(1.0, streams)

    @property
    def best(self) -> float:
        """Number of streams that gets most, the least such."""
        return self.streams[int(np.argmax(self.bytes_per_s))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Resources that one job may use.

    workers:      cores that its workers hold at a time, on average; fractions are time-shared.
    bytes_per_s:  from storage.
    streams:      read threads, if the job's reads are `separate`; None for as many as help.
    cache_bytes:  of the shared cache.
    """

    workers: float
    bytes_per_s: float = math.inf
    streams: float | None = None
    cache_bytes: float = 0.0

    def __post_init__(self) -> None:
        check_number(self, "workers", least=0.0)
        check_number(self, "bytes_per_s", least=0.0, infinite=True)
        check_number(self, "cache_bytes", least=0.0)
        if self.streams is not None:
            check_number(self, "streams", least=0.0)


class Prediction(NamedTuple):
    """Predicted throughput of a job.

    samples_per_s:  rate that the job reaches.
    idle:           the part of the time in which its accelerators wait, 0..1.
    binding:        resource that it waits for; if several bind, the first as listed.
    """

    samples_per_s: float
    idle: float
    binding: Binding


def predict(
    profile: JobProfile,
    share: Share,
    contention: Contention | None = None,
    other_streams: float = 0.0,
) -> Prediction:
    """Predict the throughput of a job with a share.

    It is the least that the job's model, workers, read streams and byte rate allow.

    contention, other_streams:  rates of storage with several streams, and how many of others read
        at a time. The job's own streams add to them: as many as it keeps busy at the rate that each
        then gets, which is found by bisection.
    """
    size = profile.bytes_with(share.cache_bytes)
    alone = profile.stream_bytes_per_s
    if contention is None or alone == math.inf or size == 0:
        return _predict_limited(profile, share, size, alone)

    streams = contention.best if share.streams is None else share.streams
    share = replace(share, streams=streams)

    def at(own: float) -> tuple[Prediction, float]:
        rate = min(alone, contention.each(other_streams + own))
        prediction = _predict_limited(profile, share, size, rate)
        return prediction, prediction.samples_per_s * size / (rate * profile.efficiency)

    low, high = 0.0, streams if profile.separate else share.workers
    for _ in range(_halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle)[1] > middle else (low, middle)
    return at(high)[0]


def _predict_limited(
    profile: JobProfile, share: Share, size: float, stream_rate: float
) -> Prediction:
    """Predict the throughput if each stream gets so many bytes/s."""
    held = profile.cpu_s if profile.separate else profile.cpu_s + size / stream_rate
    rates: dict[Binding, float] = {
        "model": profile.samples_per_s,
        "workers": profile.efficiency * _divide_cost(share.workers, held),
        "bandwidth": profile.efficiency * _divide_cost(share.bytes_per_s, size),
    }
    if profile.separate and share.streams is not None:
        rates["streams"] = profile.efficiency * _divide_cost(share.streams, size / stream_rate)
    least = min(rates.values())
    order: tuple[Binding, ...] = get_args(Binding)
    binding = next(
        name for name in order if name in rates and rates[name] <= least * (1 + _rounding)
    )
    return Prediction(least, 1 - least / profile.samples_per_s, binding)


def _divide_cost(amount: float, cost: float) -> float:
    """Return how often a cost can be paid; inf if there is no cost."""
    return amount / cost if cost > 0 else math.inf
