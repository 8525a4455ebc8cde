"""The RAM tier: against a model, within its bounds, and what it says when it refuses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.shared_memory import BUSY, MINE, READY, RamTier, SlabAddress, SlotTable, gather
from penstock.errors import ForkError, LimitError, StateError, StorageError, UsageError

IDENTITY = b"of these tests.."
SLOTS = 12


def ints(*values: int) -> Any:
    """A column."""
    return np.array(values, np.int64)


def content(slot: int, length: int) -> Any:
    """The bytes that belong into a slot."""
    return np.random.default_rng(slot).integers(0, 256, length, np.uint8)


def filled(tier: RamTier, slot: int, length: int) -> int:
    """Publishes a slot; where it lies."""
    assert tier.claim(ints(slot)).tolist() == [MINE]
    at = int(tier.allocate(ints(length))[0])
    tier.data[at : at + length] = content(slot, length)
    assert tier.publish(ints(slot), ints(at), ints(length)).tolist() == [True]
    return at


class Model:
    """The view that two claimers of one tier should have; `claims` says whose, `ready` where."""

    def __init__(self) -> None:
        self.claims: dict[int, int] = {}
        self.ready: dict[int, tuple[int, int]] = {}

    def claim(self, who: int, slots: list[int]) -> list[int]:
        codes = []
        for slot in slots:
            if slot in self.ready:
                codes.append(READY)
            elif slot in self.claims:
                codes.append(BUSY)
            else:
                self.claims[slot] = who
                codes.append(MINE)
        return codes

    def publish(self, who: int, slot: int, at: int, length: int) -> bool:
        held = self.claims.get(slot) == who
        if held:
            del self.claims[slot]
            self.ready[slot] = (at, length)
        return held

    def abandon(self, who: int, slots: list[int]) -> None:
        for slot in slots:
            if self.claims.get(slot) == who:
                del self.claims[slot]


slots_lists = st.lists(st.integers(0, SLOTS - 1), max_size=6)
steps = st.tuples(
    st.sampled_from(["claim", "publish", "abandon", "gather"]), st.integers(0, 1), slots_lists
)


@given(st.lists(steps, max_size=40), st.sampled_from([1, 64, 4096]), st.integers(0, 5000))
def test_two_claimers_agree_with_a_model(
    told: list[tuple[str, int, list[int]]], alignment: int, length: int
) -> None:
    """Codes, offsets, contents and counters are those of dictionaries, whatever is called."""
    room = 4 * (length + alignment)
    model, given_out = Model(), 0
    with (
        RamTier.create(SLOTS, room, IDENTITY, alignment=alignment) as one,
        RamTier.attach(one.address, IDENTITY) as other,
    ):
        for what, who, slots in told:
            tier, column = (one, other)[who], ints(*slots)
            if what == "claim":
                assert tier.claim(column).tolist() == model.claim(who, slots)
            elif what == "abandon":
                tier.abandon(column)
                model.abandon(who, slots)
            elif what == "publish":
                for slot in slots:
                    at = int(tier.allocate(ints(length))[0])
                    expected = given_out if given_out + length <= room else -1
                    assert at == expected
                    if at < 0:
                        continue
                    given_out += -(-length // alignment) * alignment
                    tier.data[at : at + length] = content(slot, length)
                    done = tier.publish(ints(slot), ints(at), ints(length)).tolist()
                    assert done == [model.publish(who, slot, at, length)]
            else:
                found = tier.offsets(column).tolist()
                assert found == [model.ready.get(slot, (-1, 0))[0] for slot in slots]
        check_contents(other, model, length)
        counters = one.counters()
        assert counters == other.counters()
        assert counters.ready == len(model.ready)
        assert counters.allocated_bytes == min(given_out, room)
        assert counters.taken_over == counters.dropped == 0


def check_contents(tier: RamTier, model: Model, length: int) -> None:
    """All ready slots by one gather, at places in the reverse order."""
    slots = sorted(model.ready)
    at, lengths = tier.offsets(ints(*slots)), np.full(len(slots), length, np.int64)
    out = np.zeros(len(slots) * length, np.uint8)
    targets = np.arange(len(slots), dtype=np.int64)[::-1] * length
    tier.gather(at, lengths, out, np.ascontiguousarray(targets))
    expected = [content(slot, length) for slot in reversed(slots)]
    assert np.array_equal(out, np.concatenate([*expected, content(0, 0)]))


@given(st.data())
def test_gather_is_slicing_or_an_error(data: st.DataObject) -> None:
    """Any extents: those of numpy's slices, or UsageError and nothing copied."""
    size, out_size = 300, 200
    number = st.one_of(st.integers(-5, 310), st.integers(-(2**63), 2**63 - 1))
    extents = data.draw(st.lists(st.tuples(number, number, number), max_size=5))
    with RamTier.create(1, size, IDENTITY) as tier:
        tier.data[:] = content(1, size)
        out = np.zeros(out_size, np.uint8)
        at, lengths, targets = (ints(*(extent[i] for extent in extents)) for i in range(3))
        good = all(
            a >= 0 and n >= 0 and t >= 0 and a + n <= size and t + n <= out_size
            for a, n, t in extents
        )
        if not good:
            with pytest.raises(UsageError, match="extent"):
                tier.gather(at, lengths, out, targets)
            assert not out.any()
            return
        tier.gather(at, lengths, out, targets)
        expected = np.zeros(out_size, np.uint8)
        for a, n, t in extents:
            expected[t : t + n] = content(1, size)[a : a + n]
        assert np.array_equal(out, expected)


def test_arrays_keep_the_memory_and_nothing_else() -> None:
    """A view is whole after close; calls are refused."""
    tier = RamTier.create(2, 1000, IDENTITY)
    at = filled(tier, 1, 500)
    view = tier.data[at : at + 500]
    address = tier.address
    tier.close()
    tier.close()
    assert np.array_equal(view, content(1, 500))
    for call in (
        lambda: tier.claim(ints(0)),
        lambda: tier.counters(),
        lambda: tier.data,
        lambda: tier.address,
        lambda: tier.slots,
    ):
        with pytest.raises(UsageError, match="closed"):
            call()
    del view
    with pytest.raises((StateError, StorageError), match=f"process {os.getpid()}"):
        RamTier.attach(address, IDENTITY)


@pytest.mark.parametrize("_", range(20))
def test_close_while_others_call(_: int) -> None:
    """Closing under the hands of other threads ends their calls by an error, not by a crash."""
    tier = RamTier.create(1000, 1 << 20, IDENTITY)
    filled(tier, 0, 1 << 19)
    begun = threading.Barrier(3)
    refused: list[str] = []

    def use() -> None:
        out = np.zeros(1 << 19, np.uint8)
        begun.wait()
        try:
            while True:
                tier.claim(np.arange(1000))
                tier.gather(ints(0), ints(1 << 19), out, ints(0))
        except UsageError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    tier.close()
    for thread in threads:
        thread.join()
    assert len(refused) == 2
    assert all("closed" in message for message in refused)


REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: RamTier.create(0, 1, IDENTITY), UsageError, "0 slots"),
    (lambda: RamTier.create(1, -1, IDENTITY), UsageError, "-1 bytes"),
    (lambda: RamTier.create(1, 1, b"short"), UsageError, "5 bytes"),
    (lambda: RamTier.create(1, 1, IDENTITY, alignment=48), UsageError, "48"),
    (lambda: RamTier.create(1, 1 << 50, IDENTITY), LimitError, "this machine"),
    (lambda: SlotTable.create(1 << 45, 1, IDENTITY), LimitError, "this machine"),
    (lambda: RamTier.attach(SlabAddress(1 << 22, 3), IDENTITY), StorageError, "process 4194304"),
    (lambda: RamTier.attach((os.getpid(), 0), IDENTITY), StateError, "no slab"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refusals_say_what_is_wrong(
    call: Callable[[], object], error: type[Exception], words: str
) -> None:
    """Each of the right kind, with the value in it."""
    with pytest.raises(error, match=words):
        call()


def test_calls_that_do_not_fit_change_nothing() -> None:
    """Wrong slots, columns and places are refused before anything happens."""
    with RamTier.create(4, 1000, IDENTITY) as tier:
        for call in (
            lambda: tier.claim(ints(0, 4)),
            lambda: tier.claim(np.array([0], np.int32)),
            lambda: tier.offsets(ints(-1)),
            lambda: tier.publish(ints(0, 1), ints(0), ints(1)),
            lambda: tier.publish(ints(0), ints(0), ints(1)),  # not allocated
            lambda: tier.allocate(ints(-1)),
            lambda: tier.gather(ints(0), ints(1), np.zeros(4, np.int32), ints(0)),
        ):
            with pytest.raises(UsageError, match="the tier cannot do this"):
                call()
        assert tier.claim(np.arange(4)).tolist() == [MINE] * 4
        with pytest.raises(StateError, match="another kind"):
            SlotTable.attach(tier.address, IDENTITY)
        other = b"other data of 16"
        with pytest.raises(StateError, match="other data"):
            RamTier.attach(tier.address, other)


def test_a_forked_child_has_no_claims() -> None:
    """The child may read, is told why it may not claim; its end does not give the parent's back."""
    with RamTier.create(2, 1000, IDENTITY) as tier:
        at = filled(tier, 0, 100)
        assert tier.claim(ints(1)).tolist() == [MINE]
        child = os.fork()
        if child == 0:
            out, code = np.zeros(100, np.uint8), 1
            try:
                tier.gather(ints(at), ints(100), out, ints(0))
                tier.claim(ints(1))
            except ForkError:
                code = 0 if np.array_equal(out, content(0, 100)) else 2
            tier.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with RamTier.attach(tier.address, IDENTITY) as other:
            assert other.claim(ints(1)).tolist() == [BUSY]


def test_populate_takes_the_memory_now() -> None:
    """The memory is there before it is touched, and lazily otherwise."""
    taken = {}
    for populate in (False, True):
        with RamTier.create(1, 32 << 20, IDENTITY) as tier:
            if populate:
                tier.populate()
            taken[populate] = os.stat(f"/proc/self/fd/{tier.address.fd}").st_blocks * 512
    assert taken[False] < 1 << 20 < 32 << 20 <= taken[True]


def test_pieces_that_are_not_inside_are_not_copied():
    source, out = np.arange(10, dtype=np.uint8), np.zeros(4, np.uint8)
    two = np.array([2, 2])
    gather(source, np.array([8, 0]), two, out, np.array([0, 2]))
    assert out.tolist() == [8, 9, 0, 1]
    for at, to in ([9, 0], [0, 2]), ([0, 0], [0, 3]), ([-1, 0], [0, 0]):
        with pytest.raises(IndexError, match="leaves the"):
            gather(source, np.array(at), two, out, np.array(to))
    assert out.tolist() == [8, 9, 0, 1]
