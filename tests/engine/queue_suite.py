"""The tests of a storage queue, as a suite: the queue of the library passes them, and queues with a
defect do not."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.clock import Clock
from penstock.engine.request_queue import FLOORS, Kind, Purpose
from penstock.engine.storage_queue import StorageQueue, Turn
from penstock.errors import UsageError
from penstock.testing.suite import Suite, second_ns
from tests.jumping_clock import JumpingClock

_checked = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors],
    report_multiple_bugs=False,
)
_purposes = st.sampled_from(get_args(Purpose))
_kinds = st.sampled_from(get_args(Kind))
_FILE_BYTES = 6
_bytes = st.integers(0, _FILE_BYTES)
_requests = st.lists(st.tuples(_kinds, _purposes, st.integers(0, 1), _bytes, _bytes), max_size=25)
"""Kind, purpose, file, first byte, end."""
_lengths = st.lists(st.tuples(_kinds, _purposes, st.integers(0, 5000)), min_size=1, max_size=25)


def _take_due(turns: dict[int, Turn]) -> list[int]:
    """Return the keys of the turns that have come."""
    return [key for key, turn in turns.items() if turn.is_due()]


class StorageQueueSuite(Suite):
    """The tests that every storage queue passes. A subclass, named Test..., defines `make` and no
    more."""

    subject = "storage queue"

    def make(self, inflight_bytes_max: int | None, clock: Clock) -> StorageQueue:
        """Create a queue in which nothing waits."""
        raise NotImplementedError("a StorageQueueSuite says how to make its queue")

    # -- order -------------------------------------------------------------------------------

    @given(_requests, st.none() | st.integers(1, 20), st.integers(0, 1 << 32))
    @_checked
    def test_common_bytes_keep_their_order(
        self,
        requests: list[tuple[Kind, Purpose, int, int, int]],
        bound: int | None,
        seed: int,
    ) -> None:
        """Whatever order turns end in, each read gets what the writes before it wrote, and the last
        write remains: as if all were done one after the other."""
        queue, random = self.make(bound, JumpingClock()), np.random.default_rng(seed)
        expected = [bytearray(_FILE_BYTES) for _ in range(2)]
        files = [bytearray(_FILE_BYTES) for _ in range(2)]
        turns, wanted = {}, {}
        for number, (kind, purpose, file, at, end) in enumerate(requests):
            length = max(0, end - at)
            turns[number] = queue.put(kind, purpose, length, file=file, offset=at)
            if kind == "write":
                expected[file][at : at + length] = bytes([number + 1]) * length
            wanted[number] = bytes(expected[file][at : at + length])
        while turns:
            due = _take_due(turns)
            assert due, "nothing may go on"
            number = due[int(random.integers(len(due)))]
            kind, _, file, at, end = requests[number]
            length = max(0, end - at)
            if kind == "write":
                files[file][at : at + length] = bytes([number + 1]) * length
            else:
                assert bytes(files[file][at : at + length]) == wanted[number]
            turns.pop(number).end()
        assert files == expected

    @given(_lengths, st.integers(1, 6000))
    @_checked
    def test_bytes_in_flight(self, requests: list[tuple[Kind, Purpose, int]], bound: int) -> None:
        """Reads and writes whose turn it is have no more bytes together than the bound; a larger
        request goes alone. Each has one turn, and the totals count it."""
        queue = self.make(bound, JumpingClock())
        turns = {n: queue.put(*request) for n, request in enumerate(requests)}
        while turns:
            due = _take_due(turns)
            sizes = [requests[number][2] for number in due]
            assert due, "nothing may go on"
            assert sum(sizes) <= bound or len([size for size in sizes if size]) == 1
            turns.pop(due[0]).end()
        totals = queue.totals()
        for purpose in get_args(Purpose):
            of_purpose = [request for request in requests if request[1] == purpose]
            if not of_purpose:
                assert purpose not in totals
                continue
            got = totals[purpose]
            for kind, count in (("read", got.read_bytes), ("write", got.written_bytes)):
                assert count == sum(size for of_kind, _, size in of_purpose if of_kind == kind)

    def test_urgent_first(self) -> None:
        """What a rank waits for goes before everything that waits, unless that is out of
        patience."""
        clock = JumpingClock()
        queue = self.make(1, clock)
        running = queue.put("write", "checkpoint", 100)
        late = queue.put("read", "sweep", 100)
        clock.wait_until_ns(3 * second_ns)
        write, read = queue.put("write", "convert", 100), queue.put("read", "demand", 100)
        order = []
        for turn in (running, late, read, write):
            assert [each.is_due() for each in (running, late, read, write)].count(True) == 1
            assert turn.is_due()
            assert turn.number is not None
            order.append(turn.number)
            turn.end()
        assert order == sorted(set(order))

    # -- rate --------------------------------------------------------------------------------

    @given(_lengths, st.integers(1, 10_000))
    @_checked
    def test_one_rate_for_reads_and_writes(
        self, requests: list[tuple[Kind, Purpose, int]], rate: int
    ) -> None:
        """No more bytes begin than the rate allows since the start, a tenth of a second and one
        request; and all begin by the time at which it allows them."""
        clock, holder = JumpingClock(), _Holder()
        queue = self.make(None, clock)
        queue.limit(holder, rate)
        turns = {n: queue.put(*request) for n, request in enumerate(requests)}
        sizes = {n: size for n, (_, _, size) in enumerate(requests)}
        whole = sum(sizes.values())
        begun = 0
        while True:
            for number in _take_due(turns):
                begun += sizes[number]
                turns.pop(number).end()
            allowed = rate * (clock.now_ns() * 1e-9 + 0.1) + max(sizes.values()) + 1
            assert begun <= allowed
            if not turns:
                break
            assert clock.now_ns() * 1e-9 <= whole / rate + 0.2, "the rate is not used"
            clock.wait_until_ns(clock.now_ns() + 10_000_000)

    def test_a_loop_leaves_floors(self) -> None:
        """A loop that wants everything leaves a save and a conversion their floors, and gets the
        rest."""
        clock, holder, moved = JumpingClock(), _Holder(), dict.fromkeys(get_args(Purpose), 0)
        queue = self.make(None, clock)
        queue.limit(holder, 1000.0)
        turns = [queue.put("read", "demand", 20) for _ in range(50)]
        purposes: list[Purpose] = ["demand"] * 50 + ["checkpoint", "convert"]
        turns += [queue.put("write", purpose, 20) for purpose in purposes[50:]]
        while clock.now_ns() < 20 * second_ns:
            for number in range(len(turns)):
                if turns[number].is_due():
                    turns[number].end()
                    moved[purposes[number]] += 20
                    turns[number] = queue.put("read", purposes[number], 20)
            clock.wait_until_ns(clock.now_ns() + second_ns // 100)
        for purpose in ("checkpoint", "convert"):
            assert abs(moved[purpose] / 20_000 - FLOORS[purpose]) < 0.02
        assert sum(moved.values()) > 19_500

    @given(st.data())
    @settings(_checked, phases=[Phase.explicit, Phase.generate])
    def test_every_purpose_gets_its_floor(self, data: st.DataObject) -> None:
        """While requests of a purpose wait, each goes by the time at which the purpose's floor has
        paid for those before it, late by two requests of each purpose at most. So no stream
        starves, whatever others want, and no purpose takes the floors of others."""
        draw, rate = data.draw, 1_000_000
        lengths = {}  # of the requests of each stream: a purpose, and how many wait at a time
        for number in range(draw(st.integers(1, 6))):
            stream = number, draw(_purposes), draw(st.integers(1, 4))
            lengths[stream] = draw(st.lists(st.integers(1, 300_000), min_size=1, max_size=4))
        clock, holder = JumpingClock(), _Holder()
        queue = self.make(None, clock)
        queue.limit(holder, rate)
        longest: dict[Purpose, int] = {}
        for (_, purpose, _), sizes in lengths.items():
            longest[purpose] = max(longest.get(purpose, 0), *sizes)
        late_s = 2 * sum(longest.values()) / rate
        sizes_of = {stream: itertools.cycle(sizes) for stream, sizes in lengths.items()}
        waiting: list[tuple[Turn, tuple[int, Purpose, int], int, float]] = []

        def put(stream: tuple[int, Purpose, int]) -> None:
            _, purpose, _ = stream
            ahead = sum(size for _, other, size, _ in waiting if other[1] == purpose)
            paid_s = (ahead + longest[purpose]) / (FLOORS[purpose] * rate)
            size = next(sizes_of[stream])
            latest_s = clock.now_ns() * 1e-9 + paid_s + late_s
            waiting.append((queue.put("read", purpose, size), stream, size, latest_s))

        for stream in lengths:
            for _ in range(stream[2]):
                put(stream)
        for _ in range(60):
            while not (due := [request for request in waiting if request[0].is_due()]):
                clock.wait_until_ns(clock.now_ns() + 20_000_000)
            for request in due:
                turn, stream, _, latest_s = request
                assert clock.now_ns() * 1e-9 <= latest_s + 0.02, stream
                waiting.remove(request)
                turn.end()
                put(stream)
            assert all(clock.now_ns() * 1e-9 <= latest_s + 0.02 for *_, latest_s in waiting)

    def test_the_lowest_rate_holds_while_its_holder_lives(self) -> None:
        """Of several rates the lowest holds; it ends with the object that asked for it."""
        queue = self.make(None, JumpingClock())
        slow, fast = _Holder(), _Holder()
        queue.limit(fast, 100.0)
        queue.limit(slow, 10.0)
        assert queue.bytes_per_s == 10.0
        queue.put("write", "checkpoint", 1000).end()
        waiting = queue.put("read", "demand", 1)
        assert not waiting.is_due()
        del slow
        assert queue.bytes_per_s == 100.0
        assert not waiting.is_due()  # what is owed is owed at the other rate, too
        queue.limit(fast, None)
        assert queue.bytes_per_s is None
        assert waiting.is_due()

    # -- the end -----------------------------------------------------------------------------

    def test_given_up(self) -> None:
        """A request that is given up holds nothing up any more, and its bytes do not count."""
        queue = self.make(None, JumpingClock())
        first, second, third = (
            queue.put(kind, "checkpoint", 10, file=0) for kind in ("write", "write", "read")
        )
        assert [turn.is_due() for turn in (first, second, third)] == [True, False, False]
        assert not second.wait(0)
        second.end(0)
        second.end()
        assert not second.wait()
        first.end()
        assert third.is_due()
        third.end()
        assert queue.totals()["checkpoint"][:2] == (10, 10)

    @pytest.mark.parametrize("has_begun", [False, True])
    def test_dropped(self, has_begun: bool) -> None:
        """A turn that nobody refers to any more ends."""
        queue = self.make(1, JumpingClock())
        dropped, held = queue.put("read", "sweep", 10), None
        if not has_begun:
            held, dropped = dropped, queue.put("write", "demand", 10)
        waiting = queue.put("read", "convert", 10)
        del dropped
        if held is not None:
            held.end()
        assert waiting.is_due()

    def test_failure_inside_a_turn(self) -> None:
        """An exception ends the turn it happens in."""
        queue = self.make(1, JumpingClock())
        with pytest.raises(KeyboardInterrupt), queue.put("write", "checkpoint", 10):
            raise KeyboardInterrupt
        assert queue.put("write", "checkpoint", 10).is_due()

    def test_unknown_purpose(self) -> None:
        """An unknown purpose is refused, and the queue goes on."""
        queue = self.make(1, JumpingClock())
        with pytest.raises(UsageError, match="sometime"):
            queue.put("read", "sometime", 10)  # type: ignore[arg-type]
        assert queue.put("read", "demand", 10).is_due()


class _Holder:
    """An object that asks for a rate."""
