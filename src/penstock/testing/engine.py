"""The conformance suite of engines: `EngineSuite`."""

from __future__ import annotations

import gc
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .. import limits
from ..engine.protocol import Buffer, Completion, Engine
from ..engine.request_queue import Aging, Purpose, Request, choose_next
from ..errors import UsageError
from ..extent import Requests
from .suite import Contents, EngineRead, Extent, Suite, deadline_s, finish, random_bytes, second_ns


def _join_extents(extents: Iterable[Extent], random: np.random.Generator) -> list[list[Extent]]:
    """Group the extents into runs: neighbours are merged where that is allowed, at random."""
    runs: list[list[Extent]] = []
    for extent in sorted(extents):
        if runs:
            file, offset, length = runs[-1][-1]
            fits = extent[0] == file and extent[1] >= offset + length
            if fits and random.random() < 0.7:
                runs[-1].append(extent)
                continue
        runs.append([extent])
    random.shuffle(runs)
    return runs


_sizes = st.sampled_from([0, 1, 511, 512, 4095, 4096, 4097, 65_536]) | st.integers(0, 50_000)


@st.composite
def readings(draw: st.DrawFn) -> EngineRead:
    """Strategy: any requests to a few files, some of which are short or missing."""
    seed = draw(st.integers(0, 1 << 32))
    sizes = draw(st.lists(st.none() | _sizes, min_size=1, max_size=4))
    contents = [None if size is None else random_bytes(size, seed) for size in sizes]
    extent = st.tuples(st.integers(0, len(sizes) - 1), _sizes, _sizes)
    runs = _join_extents(draw(st.lists(extent, max_size=30)), np.random.default_rng(seed))
    return EngineRead(contents, runs, draw(st.integers(1, 5)), seed)


_purposes: tuple[Purpose, ...] = get_args(Purpose)
_waits_ns = st.sampled_from(range(0, limits.patience_ns_max + 1, limits.patience_ns_max // 3))
"""Times of aging so far apart that the duration of a test does not matter."""


def _order_turns(purposes: Sequence[Purpose], aging: Aging) -> list[int]:
    """Return the order in which successive requests are served, one at a time, by
    `penstock.engine.request_queue`."""
    requests = [Request("read", purpose, 1, number) for number, purpose in enumerate(purposes)]
    order = []
    while (row := choose_next(requests, aging)) is not None:
        order.append(requests.pop(row).arrived_ns)
    return order


def _put(value: object) -> Callable[[Any], Any]:
    """Return a function of a column that sets one value of it."""

    def change(column: Any) -> Any:
        changed = column.copy()
        changed[1] = value
        return changed

    return change


def _make_read_only(buffer: Buffer) -> Buffer:
    view = buffer.view()
    view.flags.writeable = False
    return view


# Each bends four good extents (two of file 0 in one run, one of file 0, one of file 1).
_bends: dict[str, dict[str, Callable[[Any], Any]]] = {
    "negative offset": {"offset": _put(-1)},
    "negative length": {"length": _put(-1)},
    "end beyond 2^63": {"offset": _put((1 << 63) - 1)},
    "file out of range": {"file": _put(2)},
    "buffer out of range": {"buffer": _put(1)},
    "target negative": {"target": _put(-1)},
    "target beyond the buffer": {"target": _put(1 << 40)},
    "target wraps round": {"target": _put((1 << 63) - 1)},
    "length beyond the buffer": {"length": _put(1 << 40)},
    "short column": {"offset": lambda column: column[:-1]},
    "long column": {"target": lambda column: np.append(column, 0)},
    "float column": {"offset": lambda column: column.astype(np.float64)},
    "signed files": {"file": lambda column: column.astype(np.int64)},
    "narrow lengths": {"length": lambda column: column.astype(np.int32)},
    "two-dimensional column": {"length": lambda column: column.reshape(2, 2)},
    "no runs": {"runs": lambda runs: runs[:0]},
    "runs start above 0": {"runs": lambda runs: runs[1:]},
    "runs end early": {"runs": lambda runs: runs[:-1]},
    "runs end late": {"runs": lambda runs: runs + np.array([0, 0, 0, 1])},
    "empty run": {"runs": lambda runs: np.insert(runs, 1, runs[1])},
    "runs descend": {"runs": lambda runs: runs[[0, 2, 1, 3]]},
    "run over two files": {"runs": lambda runs: runs[[0, 1, 3]]},
    "run descends": {"offset": lambda offset: offset[[1, 0, 2, 3]]},
    "run overlaps itself": {"offset": lambda offset: offset[[0, 0, 2, 3]] + [0, 1, 0, 0]},
    "no buffers": {"buffers": lambda _: []},
    "buffer of other type": {"buffers": lambda buffers: [buffers[0].view(np.int8)]},
    "buffer with stride": {"buffers": lambda buffers: [np.repeat(buffers[0], 2)[::2]]},
    "buffer with two dimensions": {"buffers": lambda buffers: [buffers[0][None]]},
    "read-only buffer": {"buffers": lambda buffers: [_make_read_only(buffers[0])]},
}


class EngineSuite(Suite):
    """The tests that every engine and every wrapper of one passes.

    A subclass, named Test..., defines `make` and `held`, and no more. To override a test is a
    defect: the protocol means the same for all, or means nothing.
    """

    subject = "engine"

    many_runs: ClassVar[int] = 3000
    """Far more than an engine has in flight; fewer where each takes long."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """Create an engine over files with these contents; `folder` is empty, and removed
        afterwards."""
        raise NotImplementedError("an EngineSuite says how to make its engine")

    def held(
        self, contents: list[bytes | None], folder: Path, aging: Aging
    ) -> AbstractContextManager[tuple[Engine, Callable[[], None]]]:
        """Create a busy engine of this aging.

        It begins nothing that is submitted before the function is called, and then reads one ticket
        after the other. It may report tickets that were submitted earlier.
        """
        raise NotImplementedError("an EngineSuite says how to make an engine that is busy")

    @contextmanager
    def opened(self, contents: Contents) -> Iterator[Engine]:
        """Open an engine over the contents in a folder of its own; it is closed at the end."""
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            engine = self.make(list(contents), Path(folder))
            try:
                yield engine
            finally:
                engine.close()

    def assert_reads(
        self, contents: Contents, runs: Sequence[Sequence[Extent]], buffer_count: int = 1
    ) -> None:
        """Submit the runs once, and compare the result with the oracle."""
        reading = EngineRead(contents, runs, buffer_count)
        with self.opened(contents) as engine:
            ticket = engine.submit(reading.requests, reading.buffers)
            reading.assert_done(finish(engine, [ticket])[ticket])

    # -- bytes -------------------------------------------------------------------------------

    @given(readings())
    @settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    def test_any_requests(self, reading: EngineRead) -> None:
        """Any requests give exactly the bytes and failures that the contents imply."""
        with self.opened(reading.contents) as engine:
            ticket = engine.submit(reading.requests, reading.buffers)
            reading.assert_done(finish(engine, [ticket])[ticket])

    def test_whole_files(self) -> None:
        """Files of any size arrive whole."""
        contents = [random_bytes(size, size) for size in (0, 1, 4096, 100_001, 1 << 20)]
        runs = [[(file, 0, len(content))] for file, content in enumerate(contents)]
        self.assert_reads(contents, runs)

    def test_long_extents_at_odd_offsets(self) -> None:
        """Extents longer than a merged read may be, from odd offsets to odd targets."""
        length = 5 * limits.MIB + 7
        contents = [random_bytes(2 * length, 1)]
        self.assert_reads(contents, [[(0, 13, length)], [(0, length, length - 1)]])

    def test_long_extent_past_the_end(self) -> None:
        """An extent longer than a merged read that the file ends in reports what it got."""
        contents = [random_bytes(5 * limits.MIB + 7, 1)]
        self.assert_reads(contents, [[(0, 1, 6 * limits.MIB)]])

    def test_adjacent_extents_in_one_run(self) -> None:
        """A run of the most extents, without gaps, is scattered to as many destinations."""
        count = limits.run_extents_max
        contents = [random_bytes(1000 * count, 1)]
        self.assert_reads(contents, [[(0, 1000 * i, 1000) for i in range(count)]], 3)

    def test_adjacent_runs(self) -> None:
        """Runs that touch each other do not mix."""
        contents = [random_bytes(100_000, 1)]
        self.assert_reads(contents, [[(0, 777 * i, 777)] for i in range(128)], 3)

    def test_run_with_gaps(self) -> None:
        """The gaps of a run of the most extents land nowhere."""
        count = limits.run_extents_max
        contents = [random_bytes(limits.run_bytes_max, 1)]
        random = np.random.default_rng(2)
        cuts = np.sort(random.choice(limits.run_bytes_max, 2 * count, replace=False)).tolist()
        run = [(0, start, end - start) for start, end in zip(cuts[::2], cuts[1::2], strict=True)]
        self.assert_reads(contents, [run], 3)

    def test_run_of_the_most_bytes(self) -> None:
        """A run may cover `run_bytes_max`, at an odd offset."""
        size = limits.run_bytes_max
        contents = [random_bytes(size + 2, 1)]
        self.assert_reads(contents, [[(0, 1, 5), (0, 100, size - 200), (0, size - 1, 2)]])

    def test_many_runs(self) -> None:
        """A submission of far more runs than an engine has operations in flight."""
        contents = [random_bytes(100_000, file) for file in range(3)]
        starts = np.random.default_rng(1).integers(0, 99_000, self.many_runs).tolist()
        self.assert_reads(contents, [[(i % 3, start, i % 999)] for i, start in enumerate(starts)])

    def test_many_files(self) -> None:
        """A submission that touches many files."""
        contents = [random_bytes(100 + file, file) for file in range(300)]
        self.assert_reads(contents, [[(file, 3, 90 + file)] for file in range(300)], 7)

    def test_many_buffers(self) -> None:
        """Extents of one run may go to any buffers."""
        contents = [random_bytes(100_000, 1)]
        runs = [[(0, 1000 * i + 10 * j, 10) for j in range(0, 100, 3)] for i in range(100)]
        self.assert_reads(contents, runs, 64)

    def test_same_bytes_twice(self) -> None:
        """Two runs may read the same bytes to two destinations."""
        contents = [random_bytes(10_000, 1)]
        self.assert_reads(contents, [[(0, 5, 9000)], [(0, 5, 9000)], [(0, 1000, 500)]])

    def test_zero_length_extents(self) -> None:
        """Extents of no bytes arrive wherever they are, alone and among others."""
        contents = [random_bytes(100, 1), b""]
        runs = [
            [(0, 0, 0)],
            [(0, 100, 0)],
            [(0, 1 << 40, 0)],
            [(1, 0, 0)],
            [(0, 7, 0), (0, 7, 3), (0, 10, 0), (0, 10, 0), (0, 20, 5), (0, 25, 0)],
        ]
        self.assert_reads(contents, runs)

    # -- failures ----------------------------------------------------------------------------

    def test_file_ends_early(self) -> None:
        """An extent that the file ends in reports what it got; the others arrive."""
        contents = [random_bytes(10_000, 1), random_bytes(500, 2)]
        self.assert_reads(contents, [[(0, 9_000, 2000)], [(0, 0, 10_000)], [(1, 0, 500)]])

    def test_file_ends_within_a_run(self) -> None:
        """Each extent of a run gets what there is of it, wherever the file ends."""
        contents = [random_bytes(size, 1) for size in (100, 150, 155, 250, 300)]
        runs = [[(i, 0, 100), (i, 150, 10), (i, 200, 100)] for i in range(len(contents))]
        self.assert_reads(contents, runs)

    def test_extent_beyond_the_end(self) -> None:
        """An extent at or beyond the end of its file got nothing, for no system error."""
        contents = [random_bytes(4096, 1), b""]
        self.assert_reads(contents, [[(0, 4096, 1)], [(0, 1 << 40, 9)], [(1, 0, 9)], [(0, 0, 9)]])

    def test_missing_file(self) -> None:
        """A vanished file is ENOENT for each of its extents; other files arrive."""
        contents = [random_bytes(3000, 1), None, random_bytes(3000, 2)]
        runs = [[(0, 1, 99)], [(1, 0, 10), (1, 20, 10)], [(1, 500, 1)], [(2, 0, 3000)]]
        self.assert_reads(contents, runs)

    @pytest.mark.parametrize("name", _bends)
    def test_bad_requests(self, name: str) -> None:
        """Requests that cannot be executed are refused whole, and the engine goes on."""
        contents = [random_bytes(1000, 1), random_bytes(1000, 2)]
        runs = [[(0, 10, 20), (0, 40, 20)], [(0, 70, 20)], [(1, 100, 20)]]
        refused, reading = EngineRead(contents, runs), EngineRead(contents, runs)
        with self.opened(contents) as engine:
            bent: dict[str, Any] = {**refused.requests._asdict(), "buffers": refused.buffers}
            bent |= {column: bend(bent[column]) for column, bend in _bends[name].items()}
            buffers = bent.pop("buffers")
            with pytest.raises(UsageError):
                engine.submit(Requests(**bent), buffers)
            assert engine.poll(0) == []
            ticket = engine.submit(reading.requests, reading.buffers)
            reading.assert_done(finish(engine, [ticket])[ticket])
        refused.assert_untouched()

    def test_no_files(self) -> None:
        """An engine without files accepts nothing but empty submissions."""
        with self.opened([]) as engine:
            empty = EngineRead([], [])
            finish(engine, [engine.submit(empty.requests, empty.buffers)])
            refused = EngineRead([], [[(0, 0, 1)]])
            with pytest.raises(UsageError):
                engine.submit(refused.requests, refused.buffers)

    # -- tickets -----------------------------------------------------------------------------

    def test_empty_submission(self) -> None:
        """A submission of no extents, with or without buffers, is reported like any other."""
        with self.opened([b"bytes"]) as engine:
            empty = EngineRead([b"bytes"], [])
            tickets = [engine.submit(empty.requests, buffers) for buffers in ([], empty.buffers)]
            done = finish(engine, tickets)
            assert [done[ticket].failures for ticket in tickets] == [(), ()]

    def test_many_tickets(self) -> None:
        """Tickets grow, and each of many in flight is reported once with its own bytes."""
        contents = [random_bytes(50_000, file) for file in range(4)]
        readings = [
            EngineRead(contents, [[(i % 4, 100 * i, 3000), (i % 4, 40_000, 10)], [(3, i, i)]], 2, i)
            for i in range(200)
        ]
        with self.opened(contents) as engine:
            tickets = [
                engine.submit(reading.requests, reading.buffers, _purposes[i % len(_purposes)])
                for i, reading in enumerate(readings)
            ]
            assert all(np.diff(tickets) > 0)
            done = finish(engine, tickets)
        for ticket, reading in zip(tickets, readings, strict=True):
            reading.assert_done(done[ticket])

    def test_tickets_between_reports(self) -> None:
        """Submitting between polls, as a session does, loses and doubles nothing."""
        contents = [random_bytes(50_000, 1)]
        open_readings: dict[int, EngineRead] = {}
        last_ticket = -1
        with self.opened(contents) as engine:
            for i in range(100):
                reading = EngineRead(contents, [[(0, 400 * i, 500)]], 1, i)
                ticket = engine.submit(reading.requests, reading.buffers)
                assert ticket > last_ticket
                last_ticket = ticket
                open_readings[ticket] = reading
                for completion in engine.poll(0):
                    open_readings.pop(completion.ticket).assert_done(completion)
            for ticket, completion in finish(engine, open_readings).items():
                open_readings[ticket].assert_done(completion)

    def test_buffer_of_many_tickets(self) -> None:
        """Tickets may share a buffer, each writing its own part."""
        content = random_bytes(64 * 1000, 1)
        buffer = np.zeros(len(content), np.uint8)
        with self.opened([content]) as engine:
            tickets = []
            for start in range(0, len(content), 1000):
                reading = EngineRead([content], [[(0, start, 1000)]])
                requests = reading.requests._replace(target=np.array([start], np.int64))
                tickets.append(engine.submit(requests, [buffer]))
            done = finish(engine, tickets)
        assert not any(completion.failures for completion in done.values())
        assert buffer.tobytes() == content

    # -- purposes ----------------------------------------------------------------------------

    @given(
        st.lists(st.sampled_from(_purposes), max_size=12),
        st.builds(Aging, *(_waits_ns for _ in _purposes)),
    )
    @settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    def test_turns(self, purposes: list[Purpose], aging: Aging) -> None:
        """Waiting requests go in the order of the queue of `penstock.engine`: urgent ones first,
        unless others have waited for longer than their aging allows; of equals, in the order of
        submission.
        """
        contents = [random_bytes(1000, 1)]
        readings = [EngineRead(contents, [[(0, 3 * i, 2)]]) for i in range(len(purposes))]
        with (
            tempfile.TemporaryDirectory(prefix="penstock-") as folder,
            self.held(list(contents), Path(folder), aging) as (engine, release),
        ):
            try:
                tickets = [
                    engine.submit(reading.requests, reading.buffers, purpose)
                    for reading, purpose in zip(readings, purposes, strict=True)
                ]
                release()
                done: list[Completion] = []
                deadline = time.monotonic() + deadline_s
                while len(done) < len(tickets):
                    assert time.monotonic() < deadline
                    reports = engine.poll(second_ns)
                    done += [report for report in reports if report.ticket in tickets]
            finally:
                engine.close()
        assert [tickets.index(report.ticket) for report in done] == _order_turns(purposes, aging)
        for completion in done:
            readings[tickets.index(completion.ticket)].assert_done(completion)

    def test_unknown_purpose(self) -> None:
        """An unknown purpose is refused, and the engine goes on."""
        contents = [random_bytes(1000, 1)]
        refused, reading = EngineRead(contents, [[(0, 0, 9)]]), EngineRead(contents, [[(0, 0, 9)]])
        with self.opened(contents) as engine:
            with pytest.raises(UsageError, match="sometime"):
                engine.submit(refused.requests, refused.buffers, "sometime")  # type: ignore[arg-type]
            assert engine.poll(0) == []
            ticket = engine.submit(reading.requests, reading.buffers)
            reading.assert_done(finish(engine, [ticket])[ticket])
        refused.assert_untouched()

    # -- waiting -----------------------------------------------------------------------------

    def test_poll_without_tickets(self) -> None:
        """Poll returns at once when nothing is outstanding, before and after work."""
        contents = [random_bytes(1000, 1)]
        reading = EngineRead(contents, [[(0, 0, 1000)]])
        with self.opened(contents) as engine:
            start = time.monotonic()
            assert engine.poll(20 * second_ns) == []
            finish(engine, [engine.submit(reading.requests, reading.buffers)])
            assert engine.poll(20 * second_ns) == []
            assert time.monotonic() - start < 10

    def test_poll_returns_in_time(self) -> None:
        """Poll waits no longer than it is told to, and waiting in small steps gets there too."""
        contents = [random_bytes(3 * limits.MIB, 1)]
        reading = EngineRead(contents, [[(0, 1, 3 * limits.MIB - 1)]])
        with self.opened(contents) as engine:
            ticket = engine.submit(reading.requests, reading.buffers)
            done: list[Completion] = []
            deadline = time.monotonic() + deadline_s
            while not done:
                start = time.monotonic()
                done = engine.poll(1_000_000)
                assert time.monotonic() - start < 5  # a loaded machine is slow, a hang is not
                assert start < deadline
            assert [report.ticket for report in done] == [ticket]
            reading.assert_done(done[0])

    # -- the end -----------------------------------------------------------------------------

    def test_buffers_are_released(self) -> None:
        """The caller may forget its buffers, and empty the list: the engine keeps them until it
        reports the ticket, and not longer."""
        contents = [random_bytes(10_000, 1)]
        reading = EngineRead(contents, [[(0, 5, 9000)]], 3)
        with self.opened(contents) as engine:
            tickets = [engine.submit(reading.requests, reading.buffers)]
            watched = [weakref.ref(buffer) for buffer in reading.buffers]
            reading.buffers.clear()
            gc.collect()
            assert all(reference() is not None for reference in watched), (
                "buffers die while in flight"
            )
            finish(engine, tickets)
            gc.collect()
            assert not any(reference() is not None for reference in watched)

    def test_close_with_work_in_flight(self) -> None:
        """Close neither hangs nor keeps buffers, nor writes to them afterwards."""
        contents = [random_bytes(limits.MIB, 1)]
        readings = [EngineRead(contents, [[(0, i, limits.MIB - i)]]) for i in range(20)]
        with self.opened(contents) as engine:
            for reading in readings:
                engine.submit(reading.requests, reading.buffers)
            engine.close()
            copies = [reading.buffers[0].copy() for reading in readings]
            for reading, buffer in zip(readings, copies, strict=True):
                np.testing.assert_array_equal(reading.buffers[0], buffer)
            watched = [weakref.ref(reading.buffers.pop()) for reading in readings]
            gc.collect()
            assert not any(reference() is not None for reference in watched)

    def test_close_twice(self) -> None:
        """Closing again does nothing."""
        with self.opened([b"bytes"]) as engine:
            engine.close()
            engine.close()

    def test_use_after_close(self) -> None:
        """A closed engine refuses to submit and to poll."""
        contents = [random_bytes(100, 1)]
        reading = EngineRead(contents, [[(0, 0, 100)]])
        with self.opened(contents) as engine:
            engine.close()
            with pytest.raises(UsageError):
                engine.submit(reading.requests, reading.buffers)
            with pytest.raises(UsageError):
                engine.poll(0)
        reading.assert_untouched()
