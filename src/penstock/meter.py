"""The meter of a loader: times and counts, added up once a batch, and read as a value. Pure.

Time in steps is one of

    compute   between a batch and the next `next`: the user's step, as far as a loader can tell
    waiting   in `next`, until the batch was ready: for its bytes, for decoding, or for the rest
    own       in `next` after that: planning and requesting later batches

The first batch of a walk through an epoch is counted separately, because nothing was read ahead for
it. All times are nanoseconds of one clock, which the caller reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

STALL_BUCKETS = 64
"""Buckets of the histogram of stalls. Bucket k holds stalls from 2^(k-1) ns to below 2^k ns, up to
centuries."""


def divide_wait(
    since_ns: int, until_ns: int, opening_ns: int, arrived_ns: int, spans: Sequence[Span]
) -> tuple[int, int]:
    """Divide the wait from `since_ns` to `until_ns` into waiting for bytes and for decoding.

    Waiting for a step's bytes lasts from the time at which a thread wanted them (`opening_ns`)
    until they had arrived. Waiting for decoding is the time before that, when all threads decoded
    older steps, and the time after it, until the last row was decoded. The rest was collating.
    """
    if not spans:
        return 0, 0
    decoded_ns = max(span.ended_ns for span in spans)
    opening, arrived, decoded = (
        min(max(time_ns, since_ns), until_ns) for time_ns in (opening_ns, arrived_ns, decoded_ns)
    )
    return arrived - opening, opening - since_ns + decoded - arrived


class Span(NamedTuple):
    """A thread's part in decoding a step: its begin, its end, and its time on a processor."""

    thread: int
    began_ns: int
    ended_ns: int
    cpu_ns: int


class Requested(NamedTuple):
    """Reads that were requested from an engine for a step."""

    ticket: int
    bytes: int
    runs: int


class Timeline(Protocol):
    """A recorder of the events of each step, when they happen; see `penstock.loader.metrics`."""

    def record_request(self, epoch: int, step: int, what: Requested) -> None: ...
    def record_arrival(self, epoch: int, step: int) -> None: ...
    def record_decoding(self, epoch: int, step: int, spans: Iterable[Span]) -> None: ...
    def record_batch(
        self, epoch: int, step: int, asked_ns: int, ready_ns: int, bytes_ns: int, decode_ns: int
    ) -> None: ...
    def record_compute(self, since_ns: int, until_ns: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of a loader at `time_ns`, since it was made; or the difference of two such values.

    epochs, batches, samples, failed:  walks begun; batches and samples that were handed over;
                  batches that raised.
    compute_ns:   time of the user's steps.
    stall_ns:     waiting in `next`, including that for first batches.
    bytes_ns, decode_ns:  waiting for bytes and for decoding, without first batches.
    own_ns:       time in `next` besides waiting, without first batches.
    first_stall_ns, first_batch_ns:  waiting for first batches; time from `iter()` until they came.
    decode_busy_ns, decode_cpu_ns:   time that threads spent decoding; part of it on a processor.
                  For workers that load whole batches: all the time that they spent on them.
    stalls:       histogram; see STALL_BUCKETS.
    engine:       counters of the engine, by name.
    """

    time_ns: int = 0
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    failed: int = 0
    compute_ns: int = 0
    stall_ns: int = 0
    bytes_ns: int = 0
    decode_ns: int = 0
    own_ns: int = 0
    first_stall_ns: int = 0
    first_batch_ns: int = 0
    decode_busy_ns: int = 0
    decode_cpu_ns: int = 0
    stalls: tuple[int, ...] = (0,) * STALL_BUCKETS
    engine: Mapping[str, int] = field(default_factory=dict)

    @property
    def rest_ns(self) -> int:
        """Time of waiting for neither bytes nor decoding, without first batches."""
        return self.stall_ns - self.first_stall_ns - self.bytes_ns - self.decode_ns

    @property
    def steps_ns(self) -> int:
        """All time in steps, except waiting for first batches."""
        return self.compute_ns + self.stall_ns - self.first_stall_ns + self.own_ns

    def stall_quantile_ns(self, fraction: float) -> int:
        """Estimate the quantile of stalls, to within a factor of two; 0 without batches.

        The result is the upper end of the quantile's bucket of the histogram.
        """
        wanted, seen = fraction * sum(self.stalls), 0
        for bucket, count in enumerate(self.stalls):
            seen += count
            if count and seen >= wanted:
                return 1 << bucket
        return 0

    def since(self, earlier: Counters) -> Counters:
        """Return the difference to earlier counters. All counters of a new engine count."""
        changes: dict[str, Any] = {
            name: getattr(self, name) - getattr(earlier, name) for name in _numbers
        }
        stalls = zip(self.stalls, earlier.stalls, strict=True)
        before = earlier.engine
        is_new = any(count < before.get(name, 0) for name, count in self.engine.items())
        return Counters(
            **changes,
            stalls=tuple(now - then for now, then in stalls),
            engine={
                name: count - (0 if is_new else before.get(name, 0))
                for name, count in self.engine.items()
            },
        )


_numbers = [item.name for item in fields(Counters) if item.name not in ("stalls", "engine")]


class Meter:
    """Running counts of one loader: a few additions a batch, whatever its size.

    timeline:  recorder that gets the events of steps too, or None.
    """

    def __init__(self) -> None:
        self.timeline: Timeline | None = None
        self.epochs = self.batches = self.samples = self.failed = 0
        self.compute_ns = self.stall_ns = self.bytes_ns = self.decode_ns = self.own_ns = 0
        self.first_stall_ns = self.first_batch_ns = 0
        self.decode_busy_ns = self.decode_cpu_ns = 0
        # A list: counting in an array takes three times as long.
        self._stalls = [0] * STALL_BUCKETS
        self._begun_ns = 0  # of the walk whose first batch has not come; 0: it has
        self._given_ns = 0  # when the user got the batch that is being worked on; 0: none is

    def count_epoch(self, now_ns: int) -> None:
        """Count the begin of a walk through an epoch. The user's time before it is no step."""
        self.epochs += 1
        self._begun_ns, self._given_ns = now_ns, 0

    def count_request(self, now_ns: int) -> None:
        """Count the user's time before a request that ends in no batch; before others,
        `count_batch` does."""
        if self._given_ns:
            self.compute_ns += now_ns - self._given_ns
            if self.timeline is not None:
                self.timeline.record_compute(self._given_ns, now_ns)
            self._given_ns = 0

    def count_batch(
        self,
        asked_ns: int,
        ready_ns: int,
        now_ns: int,
        samples: int,
        bytes_ns: int,
        decode_ns: int,
    ) -> None:
        """Count a batch that goes to the user now.

        asked_ns, ready_ns:    times at which it was requested and ready.
        bytes_ns, decode_ns:   parts of the time in between: waiting for bytes, and for decoding.
        """
        if self._given_ns:
            self.compute_ns += asked_ns - self._given_ns
            if self.timeline is not None:
                self.timeline.record_compute(self._given_ns, asked_ns)
        stall_ns = ready_ns - asked_ns
        self.batches += 1
        self.samples += samples
        self.stall_ns += stall_ns
        self._stalls[stall_ns.bit_length()] += 1
        if self._begun_ns:
            self.first_stall_ns += stall_ns
            self.first_batch_ns += now_ns - self._begun_ns
            self._begun_ns = 0
        else:
            self.bytes_ns += bytes_ns
            self.decode_ns += decode_ns
            self.own_ns += now_ns - ready_ns
        self._given_ns = now_ns

    def count_decoding(self, spans: Iterable[Span]) -> None:
        """Count the decoding of a step by threads."""
        for _, began_ns, ended_ns, cpu_ns in spans:
            self.count_work(ended_ns - began_ns, cpu_ns)

    def count_work(self, busy_ns: int, cpu_ns: int) -> None:
        """Count time spent decoding, and the part of it on a processor."""
        self.decode_busy_ns += busy_ns
        self.decode_cpu_ns += cpu_ns

    def count_failure(self, now_ns: int) -> None:
        """Count a batch that raised; the user's time after it is a step."""
        self.failed += 1
        self._given_ns = now_ns

    def counters(self, now_ns: int, engine: Mapping[str, int]) -> Counters:
        """Return all counters so far, with an engine's."""
        return Counters(
            time_ns=now_ns,
            stalls=tuple(self._stalls),
            engine=dict(engine),
            **{name: getattr(self, name) for name in _numbers if name != "time_ns"},
        )
