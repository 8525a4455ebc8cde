"""The wrappers' additions, the messages of the checks, and proof that the suite sees defects."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.engine.protocol import Completion, Engine, Failure, check_requests
from penstock.engine.request_queue import AGING, Aging, Purpose
from penstock.errors import UsageError
from penstock.testing import EngineRead, EngineSuite, finish, write_files
from tests.engine.memory import MemoryEngine
from tests.engine.wrappers import (
    Fault,
    Faulty,
    Limited,
    Throttled,
    Traced,
    TraceEvent,
    seeded_faults,
    seeded_holds,
)
from tests.jumping_clock import JumpingClock

CONTENT = bytes(range(256)) * 64
SECOND_NS = 1_000_000_000


def submit(engine: Engine, length: int, offset: int = 0, purpose: Purpose = "prefetch") -> int:
    """Submit one extent of CONTENT."""
    reading = EngineRead([CONTENT], [[(0, offset, length)]])
    return engine.submit(reading.requests, reading.buffers, purpose)


# -- check -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "column", "value", "message"),
    [
        ([[(0, 1, 2)], [(0, -5, 2)]], None, None, "extent 1 has offset -5"),
        ([[(0, 1, 2)], [(3, 1, 2)]], None, None, "extent 1 is of file 3: the engine has 2 files"),
        ([[(0, 1, 9), (0, 5, 2)]], None, None, "extent 1 starts at 5, before .* ends at 10"),
        ([[(0, 1, 9), (1, 10, 2)]], None, None, "extents 0 and 1 of one run are of files 0 and 1"),
        ([[(0, 1, 2)], []], None, None, "run 1 goes from extent 1 to 1"),
        ([[(0, 1, 2)]], "target", [70], "goes to 70..72 of buffer 0, which has"),
        ([[(0, 1, 2)]], "buffer", [4], "goes to buffer 4: 1 buffers were given"),
        ([[(0, 1, 2)]], "offset", [1, 2], "requests.offset has 2 values where requests.file has 1"),
        ([[(0, 1, 2)]], "runs", [0, 2], "start at 0 and end at 1"),
    ],
)
def test_check_says_what_is_wrong(
    runs: list[list[tuple[int, int, int]]],
    column: str | None,
    value: list[int] | None,
    message: str,
) -> None:
    """The message of a refusal names the first culprit and its value."""
    reading = EngineRead([CONTENT, CONTENT], runs)
    requests = reading.requests
    if column is not None:
        dtype = getattr(requests, column).dtype
        requests = requests._replace(**{column: np.array(value, dtype)})
    with pytest.raises(UsageError, match=message):
        check_requests(requests, reading.buffers, 2)


def test_check_bounds_merged_reads() -> None:
    """A run is bounded in extents and in bytes; a single extent may be of any length."""
    many = limits.run_extents_max + 1
    with pytest.raises(UsageError, match="run_extents_max"):
        check_requests(*_submission([[(0, i, 1) for i in range(many)]]), 1)
    with pytest.raises(UsageError, match="run_bytes_max"):
        check_requests(*_submission([[(0, 0, 1), (0, limits.run_bytes_max, 1)]]), 1)
    check_requests(*_submission([[(0, 0, limits.run_bytes_max + 1)]]), 1)


def test_check_without_file_count() -> None:
    """A wrapper can check all but the file numbers."""
    check_requests(*_submission([[(9, 0, 1)]]))


def _submission(runs: list[list[tuple[int, int, int]]]):  # type: ignore[no-untyped-def]
    reading = EngineRead([CONTENT], runs)
    return reading.requests, reading.buffers


# -- MemoryEngine ----------------------------------------------------------------------------


def test_memory_engine_takes_any_bytes() -> None:
    """Contents may be bytes, bytearray, memoryview or an array."""
    contents = [CONTENT, bytearray(CONTENT), memoryview(CONTENT), np.frombuffer(CONTENT, np.uint8)]
    engine = MemoryEngine(contents)
    reading = EngineRead([CONTENT] * 4, [[(file, 3, 1000)] for file in range(4)])
    ticket = engine.submit(reading.requests, reading.buffers)
    reading.assert_done(finish(engine, [ticket])[ticket])


def test_patience_is_time() -> None:
    """A demand overtakes what waits, but not what has waited for longer than its aging."""
    clock = JumpingClock()
    engine = MemoryEngine([CONTENT], clock=clock)
    old = submit(engine, 1, purpose="sweep")
    clock.wait_until_ns(AGING.sweep - AGING.prefetch)
    ahead = submit(engine, 1, purpose="prefetch")
    clock.wait_until_ns(AGING.sweep)
    sweep = submit(engine, 1, purpose="sweep")
    demand = submit(engine, 1, purpose="demand")
    assert [completion.ticket for completion in engine.poll(0)] == [old, ahead, demand, sweep]


# -- Limited ---------------------------------------------------------------------------------


def _peaks(trace: list[TraceEvent]) -> tuple[int, int]:
    """The most bytes in flight, and the most tickets in flight while there was more than one."""
    inflight: dict[int, int] = {}
    bytes_peak = tickets_peak = 0
    for line in trace:
        if line.event == "submit":
            inflight[line.ticket] = line.bytes
            if len(inflight) > 1:  # a ticket above the limit goes alone
                bytes_peak = max(bytes_peak, sum(inflight.values()))
            tickets_peak = max(tickets_peak, len(inflight))
        elif line.event == "report":
            del inflight[line.ticket]
    return bytes_peak, tickets_peak


@given(
    lengths=st.lists(st.integers(0, 5000), max_size=40),
    bytes_max=st.integers(1, 8000),
    runs_max=st.none() | st.integers(1, 5),
)
def test_limited_never_exceeds(lengths: list[int], bytes_max: int, runs_max: int | None) -> None:
    """Neither limit is exceeded, whatever is submitted, and the order of submission stays."""
    trace: list[TraceEvent] = []
    limited = Limited(Traced(MemoryEngine([CONTENT]), trace), bytes_max, runs_max)
    tickets = [submit(limited, length) for length in lengths]
    assert sorted(finish(limited, tickets)) == tickets
    bytes_peak, tickets_peak = _peaks(trace)
    assert bytes_peak <= bytes_max
    assert runs_max is None or tickets_peak <= runs_max
    assert [line.bytes for line in trace if line.event == "submit"] == lengths


def test_limited_sends_a_large_ticket_alone() -> None:
    """A ticket above the limit waits until nothing is in flight, and what follows waits for it."""
    trace: list[TraceEvent] = []
    limited = Limited(Traced(MemoryEngine([CONTENT]), trace), 100)
    for length in (60, 5000, 30):
        submit(limited, length)
    polls = [[completion.ticket for completion in limited.poll(0)] for _ in range(4)]
    assert polls == [[0], [1], [2], []]


def test_limited_follows_its_limit() -> None:
    """Raising the limit while tickets wait lets them go at the next poll."""
    limited = Limited(MemoryEngine([CONTENT]), 10)
    for _ in range(5):
        submit(limited, 10)
    assert len(limited.poll(0)) == 1
    limited.inflight_bytes_max = 100
    assert len(limited.poll(0)) == 4


def test_limited_reports_what_the_engine_refuses_later() -> None:
    """A wrong file number that is seen only after waiting fails the extents of its ticket."""
    limited = Limited(MemoryEngine([CONTENT]), 10)
    good = submit(limited, 10)
    wrong = EngineRead([CONTENT], [[(7, 0, 5)], [(7, 9, 5)]])
    bad = limited.submit(wrong.requests, wrong.buffers)
    done = finish(limited, [good, bad])
    assert done[good].failures == ()
    assert done[bad].failures == (Failure(0, errno.EINVAL, 0), Failure(1, errno.EINVAL, 0))


# -- Throttled -------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(0, 10_000), min_size=1, max_size=30))
def test_throttled_keeps_the_rate(lengths: list[int]) -> None:
    """A backlog takes its bytes over the rate, plus the latency once."""
    clock = JumpingClock()
    throttled = Throttled(MemoryEngine([CONTENT]), 1000, 7, clock)
    tickets = [submit(throttled, length) for length in lengths]
    while tickets:
        for completion in throttled.poll(3600 * SECOND_NS):
            assert completion.ticket == tickets.pop(0)
    assert clock.now_ns() == sum(lengths) * SECOND_NS // 1000 + 7


def test_throttled_reports_when_due() -> None:
    """A report comes at its time: not before, even if polled, and idle time earns nothing."""
    clock = JumpingClock()
    throttled = Throttled(MemoryEngine([CONTENT]), 1000, 50, clock)
    clock.wait_until_ns(5 * SECOND_NS)
    first, second = submit(throttled, 1000), submit(throttled, 500)
    assert throttled.poll(SECOND_NS) == []
    assert clock.now_ns() == 6 * SECOND_NS
    assert throttled.poll(SECOND_NS) == [Completion(first, ())]
    assert clock.now_ns() == 6 * SECOND_NS + 50
    assert throttled.poll(0) == []
    assert throttled.poll(SECOND_NS) == [Completion(second, ())]
    assert clock.now_ns() == 6.5 * SECOND_NS + 50
    assert throttled.poll(SECOND_NS) == []
    assert clock.now_ns() == 6.5 * SECOND_NS + 50


def test_throttled_twice_takes_the_slower_rate() -> None:
    """The slower of two throttles on one clock decides."""
    clock = JumpingClock()
    inner = Throttled(MemoryEngine([CONTENT]), 1000, 0, clock)
    throttled = Throttled(inner, 4000, 0, clock)
    tickets = [submit(throttled, 1000) for _ in range(5)]
    finish(throttled, tickets)
    assert clock.now_ns() == 5 * SECOND_NS


def test_throttled_lets_the_urgent_pass_first() -> None:
    """A demand waits for what passes, and for what has waited for longer than its aging."""
    clock = JumpingClock()
    throttled = Throttled(MemoryEngine([CONTENT]), 1000, 0, clock)
    sweeps = [submit(throttled, 1000, purpose="sweep") for _ in range(4)]
    clock.wait_until_ns(SECOND_NS // 2)
    demand = submit(throttled, 100, purpose="demand")
    reports = [throttled.poll(SECOND_NS)[0].ticket for _ in range(2)]
    assert reports == [sweeps[0], demand]
    assert clock.now_ns() == 1.1 * SECOND_NS
    late = submit(throttled, 100, purpose="demand")  # after these have waited for a second
    assert sorted(finish(throttled, [*sweeps[1:], late])) == [*sweeps[1:], late]
    assert clock.now_ns() == 4.2 * SECOND_NS


def test_throttled_needs_a_rate() -> None:
    """A rate of 0 would hold everything back for ever: it is refused."""
    with pytest.raises(UsageError, match="bytes_per_s is 0"):
        Throttled(MemoryEngine([]), 0)


# -- Traced ----------------------------------------------------------------------------------


def test_traced_log() -> None:
    """The trace is the list of submissions, reports and the close, with times and amounts."""
    clock = JumpingClock()
    trace: list[TraceEvent] = []
    traced = Traced(Throttled(MemoryEngine([CONTENT]), 1000, 0, clock), trace, clock)
    submit(traced, 1000)
    submit(traced, 500, offset=len(CONTENT) - 100)
    with pytest.raises(UsageError):
        submit(traced, -1)
    traced.poll(SECOND_NS)
    traced.poll(SECOND_NS)
    submit(traced, 300)
    traced.close()
    traced.close()
    assert trace == [
        TraceEvent("submit", 0, 0, 1000, 1, 0),
        TraceEvent("submit", 1, 0, 500, 1, 0),
        TraceEvent("report", 0, SECOND_NS, 1000, 1, 0),
        TraceEvent("report", 1, 3 * SECOND_NS // 2, 500, 1, 1),
        TraceEvent("submit", 2, 3 * SECOND_NS // 2, 300, 1, 0),
        TraceEvent("close", -1, 3 * SECOND_NS // 2, 300, 1, 0),
    ]


def test_traced_calls_a_function() -> None:
    """A function receives the lines that a list would."""
    events = []
    traced = Traced(MemoryEngine([CONTENT]), lambda line: events.append(line.event))
    finish(traced, [submit(traced, 5)])
    assert events == ["submit", "report"]


# -- Faulty ----------------------------------------------------------------------------------


def test_faulty_afflicts_extents_as_told() -> None:
    """Error, cut and flip strike their extents; the others arrive, and the tails stay."""
    faults = {1: Fault(errno=errno.EIO), 2: Fault(cut=3), 3: Fault(flip=0xFF), 4: Fault(cut=99)}
    engine = Faulty(MemoryEngine([CONTENT]), lambda ticket, extent: faults.get(extent))
    reading = EngineRead([CONTENT], [[(0, 10 * i, 10) for i in range(5)]])
    before = reading.buffers[0].copy()
    engine.submit(reading.requests, reading.buffers)
    (completion,) = engine.poll(0)
    assert completion.failures == (
        Failure(1, errno.EIO, 0),
        Failure(2, 0, 7),
        Failure(4, 0, 0),
    )
    content = np.frombuffer(CONTENT, np.uint8)
    for extent, (got, mask) in enumerate([(10, 0), (0, 0), (7, 0), (10, 0xFF), (0, 0)]):
        start = int(reading.requests.target[extent])
        source = content[10 * extent : 10 * extent + got] ^ np.uint8(mask)
        before[start : start + got] = source
    np.testing.assert_array_equal(reading.buffers[0], before)


def test_faulty_keeps_real_failures() -> None:
    """A fault does not hide what really failed."""
    engine = Faulty(MemoryEngine([b"12345", None]), lambda ticket, extent: Fault(cut=2, flip=1))
    reading = EngineRead([b"12345", None], [[(0, 0, 5)], [(0, 0, 10)], [(1, 0, 5)]])
    engine.submit(reading.requests, reading.buffers)
    (completion,) = engine.poll(0)
    assert completion.failures == (Failure(0, 0, 3), Failure(1, 0, 5), Failure(2, errno.ENOENT, 0))


def _history(seed: int, wrap: Callable[[Engine], Engine]) -> list[Completion]:
    """The reports of a faulty engine with a seed on a fixed load."""
    fault = seeded_faults(seed, errno_share=0.1, cut_share=0.1, flip_share=0.1)
    engine = Faulty(wrap(MemoryEngine([CONTENT])), fault, seeded_holds(seed, 3))
    for ticket in range(30):
        reading = EngineRead([CONTENT], [[(0, 10 * i, 10)] for i in range(20)], 2, ticket)
        engine.submit(reading.requests, reading.buffers)
    history = []
    while done := engine.poll(0):
        history += done
    return history


def test_faulty_repeats_from_its_seed() -> None:
    """The same seed gives the same reports in the same order, another seed others."""
    first = _history(1, lambda engine: engine)
    assert first == _history(1, lambda engine: engine)
    assert first != _history(2, lambda engine: engine)
    assert [completion.ticket for completion in first] != list(range(30))


def test_faulty_strikes_whatever_is_wrapped() -> None:
    """The faults do not depend on the tickets and the pace of the wrapped engine."""

    def later(engine: Engine) -> Engine:
        limited = Limited(engine, 500)
        finish(limited, [submit(limited, 5)])  # its tickets no longer start at 0
        return limited

    assert sorted(_history(3, lambda engine: engine)) == sorted(_history(3, later))


def test_seeded_faults_have_their_shares() -> None:
    """About the given shares of many extents fail, and by each kind of fault."""
    fault = seeded_faults(5, errno_share=0.1, cut_share=0.2, flip_share=0.3)
    faults = [fault(ticket, extent) for ticket in range(100) for extent in range(100)]
    struck = [fault for fault in faults if fault is not None]
    shares = [sum(bool(fault[kind]) for fault in struck) / len(faults) for kind in range(3)]
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3], atol=0.02)


# -- the suite itself ------------------------------------------------------------------------


def test_suite_refuses_overridden_tests() -> None:
    """A subclass that overrides a test of the suite, or blanks it, cannot be defined."""
    for replacement in (lambda self: None, None):
        with pytest.raises(TypeError, match="test_whole_files overrides"):
            type("Blind", (EngineSuite,), {"test_whole_files": replacement})


class _Hoarder(MemoryEngine):
    """Keeps every buffer."""

    def submit(self, requests, buffers, purpose="prefetch"):  # type: ignore[no-untyped-def]
        """Remember the buffers."""
        self.hoard = [*getattr(self, "hoard", []), *buffers]
        return super().submit(requests, buffers, purpose)


class _Borrower(MemoryEngine):
    """Keeps the caller's list instead of what is in it."""

    def submit(self, requests, buffers, purpose="prefetch"):  # type: ignore[no-untyped-def]
        """Forget the copy."""
        ticket = super().submit(requests, buffers, purpose)
        turn_ns = self._pending[-1][0]
        self._pending[-1] = (turn_ns, ticket, requests, buffers)
        return ticket


class _Spiller(MemoryEngine):
    """Writes a byte before each destination that is not at the start of its buffer."""

    def submit(self, requests, buffers, purpose="prefetch"):  # type: ignore[no-untyped-def]
        """Spill."""
        ticket = super().submit(requests, buffers, purpose)
        for buffer, target in zip(requests.buffer, requests.target, strict=True):
            if target:
                buffers[buffer][target - 1] ^= 0xFF
        return ticket


class _Stutterer(MemoryEngine):
    """Reports twice."""

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report everything twice."""
        return super().poll(timeout_ns) * 2


class _Blind(MemoryEngine):
    """Takes no account of purposes."""

    def submit(self, requests, buffers, purpose="prefetch"):  # type: ignore[no-untyped-def]
        """Whatever it is for."""
        return super().submit(requests, buffers)


class _Impatient(MemoryEngine):
    """Does the urgent first, whatever waits for how long."""

    def __init__(self, contents, aging=AGING):  # type: ignore[no-untyped-def]
        super().__init__(contents, aging=Aging(0, 10**9, 2 * 10**9, 3 * 10**9))


@pytest.mark.parametrize(
    ("make", "test"),
    [
        (lambda contents: Faulty(MemoryEngine(contents), lambda *_: Fault(flip=1)), "whole_files"),
        (lambda contents: Faulty(MemoryEngine(contents), lambda *_: Fault(cut=1)), "run_with_gaps"),
        (lambda contents: MemoryEngine([content or b"" for content in contents]), "missing_file"),
        (_Hoarder, "buffers_are_released"),
        (_Borrower, "buffers_are_released"),
        (_Spiller, "adjacent_runs"),
        (_Stutterer, "many_tickets"),
        # In these two hypothesis shrinks what it finds.
        pytest.param(_Blind, "turns", marks=pytest.mark.long),
        pytest.param(_Impatient, "turns", marks=pytest.mark.long),
        (_Blind, "unknown_purpose"),
    ],
)
def test_suite_sees_defects(make: Callable[..., Engine], test: str) -> None:
    """An engine with a defect fails the test that is there to see it."""

    class Suite(EngineSuite):
        def make(self, contents: list[bytes | None], folder: Path) -> Engine:
            return make(contents)

        @contextmanager
        def held(
            self, contents: list[bytes | None], folder: Path, aging: Aging
        ) -> Iterator[tuple[Engine, Callable[[], None]]]:
            yield make(contents, aging=aging), lambda: None

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Suite(), f"test_{test}")()


def test_write_files(tmp_path: Path) -> None:
    """The table describes the files that were written; the vanished one has a size, but is not."""
    contents = [b"first", None, b"", b"fourth"]
    files = write_files(tmp_path, contents)
    read_back = [
        Path(files.path(number)).read_bytes() if Path(files.path(number)).exists() else None
        for number in range(len(files))
    ]
    assert read_back == contents
    assert files.size.tolist() == [5, 65_536, 0, 6]
    assert files.mtime_ns[0] == Path(files.path(0)).stat().st_mtime_ns
    assert len(write_files(tmp_path, [])) == 0
