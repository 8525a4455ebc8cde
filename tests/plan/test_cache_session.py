"""The session of a cache: which actions an event brings, and what replaces an action that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock import limits
from penstock.extent import Int, Requests
from penstock.plan import CacheSession, Keys, Placement, cache_actions
from penstock.plan.cache_actions import (
    BUSY,
    LEFT_OUT,
    MINE,
    READY,
    AbandonSlots,
    Action,
    AllocateRoom,
    AnswerPeer,
    ClaimSlots,
    CopyKeys,
    FetchKeys,
    GiveUpReplicas,
    LoadBlocks,
    NodeTier,
    OfferReplicas,
    ProbeRank,
    PublishSlots,
    ReadDisk,
    ReadKeys,
    ReleaseSource,
    ReportStep,
    RowFailure,
    Stop,
    TakeReplicas,
    WriteDisk,
)
from penstock.plan.cache_keys import SampleKeys

ROW = 10


@dataclass(frozen=True)
class Rows:
    """Samples of one field and one length."""

    keys: SampleKeys = field(default_factory=lambda: SampleKeys(12))
    item_bytes: float = ROW
    row_bytes: tuple[int | None, ...] = (ROW,)

    def key_lengths(self, keys: Keys) -> Int:
        return np.full(len(keys), ROW)


def session_of(
    ram: tuple[int, ...], disk: tuple[int, ...] | None = None, replicas: bool = False
) -> CacheSession:
    """The session of rank 0, one rank a node; 12 samples in cache blocks of two."""
    placement = Placement(12, ram, disk, seed=1, cache_block=2)
    return CacheSession(Rows(), placement, range(len(ram)), 0, replicas=replicas)


def step(samples: list[int]) -> Requests:
    count = len(samples)
    keys = np.array(samples, np.int64)
    zeros = np.zeros(count, np.uint32)
    return Requests(
        zeros, keys, np.full(count, ROW), zeros, np.arange(count) * ROW, np.arange(count + 1)
    )


def taken(session: CacheSession) -> list[Action]:
    """All actions that the session wants done now."""
    actions = list(session.actions)
    session.actions.clear()
    return actions


def names(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def codes(*states: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.array(states, np.uint8)


def test_a_kept_sample_is_read_once_and_copied() -> None:
    """The first step reads the cache block into the slab; the second copies, and nothing else."""
    session = session_of((6,))
    session.request(0, step([4]), 1, False)
    (claim,) = taken(session)
    assert isinstance(claim, ClaimSlots)
    session.take_claims(claim.want, codes(MINE))
    (room,) = taken(session)
    assert isinstance(room, AllocateRoom)
    assert room.size.tolist() == [2 * ROW]
    session.take_room(room.load, np.array([64]))
    (load,) = taken(session)
    assert isinstance(load, LoadBlocks)
    assert (load.cache_blocks.tolist(), load.at.tolist()) == ([2], [64])
    session.take_load(load.load, np.zeros(1, bool))
    published, copy = taken(session)
    assert isinstance(published, PublishSlots)
    assert isinstance(copy, CopyKeys)
    session.take_copy(copy.want, np.ones(1, bool))
    assert taken(session) == [ReportStep(0, ())]
    session.request(1, step([5]), 1, False)
    (claim,) = taken(session)
    assert isinstance(claim, ClaimSlots)
    session.take_claims(claim.want, codes(READY))
    (copy,) = taken(session)
    assert isinstance(copy, CopyKeys)
    session.take_copy(copy.want, np.ones(1, bool))
    assert taken(session) == [ReportStep(1, ())]
    assert session.is_idle
    assert (session.counts["ram_bytes"], session.counts["loaded_bytes"]) == (2 * ROW, 2 * ROW)


def test_storage_failures_are_reported_by_row() -> None:
    """Keys that storage does not give end in the report, sorted; others of the step do not."""
    session = session_of((0,))
    session.request(7, step([3, 1, 2]), 1, False)
    (read,) = taken(session)
    assert isinstance(read, ReadKeys)
    session.take_read(read.read, [RowFailure(2, 5, 0), RowFailure(0, 5, 3)])
    assert taken(session) == [ReportStep(7, (RowFailure(0, 5, 3), RowFailure(2, 5, 0)))]


def test_a_claim_of_another_rank_is_looked_at_until_its_deadline() -> None:
    """While another rank reads, the session names the next time to look; in the end storage is
    read."""
    session = session_of((6,))
    session.advance(0)
    session.request(0, step([4]), 1, False)
    looks, now_ns = 0, 0
    while True:
        actions = taken(session)
        if not isinstance(actions[0], ClaimSlots):
            break
        session.take_claims(actions[0].want, codes(BUSY))
        looks += 1
        if session.wake_ns is not None:
            now_ns = max(session.wake_ns, now_ns + 10**9)
            session.advance(now_ns)
    (copy,) = actions
    assert isinstance(copy, CopyKeys)
    assert limits.busy_cache_block_s <= looks <= limits.busy_cache_block_s + 2
    session.take_copy(copy.want, np.zeros(1, bool))
    assert names(taken(session)) == ["ReadKeys"]
    assert session.counts["busy_too_long"] == 1


def test_memory_is_given_in_the_order_of_deadlines() -> None:
    """A request of a peer, whose deadline is near, takes memory before a step; one that comes when
    the step has waited for long takes it afterwards, and waits for no other rank beyond its own
    deadline."""
    session = session_of((0,), (6,))
    session.disk_buffer_bytes = 1
    session.advance(0)
    session.request(0, step([0]), 1, False)
    (claim,) = taken(session)
    assert isinstance(claim, ClaimSlots)
    session.take_claims(claim.want, codes(MINE))  # takes all memory
    (load,) = taken(session)
    assert isinstance(load, LoadBlocks)
    session.request(1, step([2]), 1, False)
    session.ask(0, np.array([4], np.uint64), np.array([ROW]))
    late_ns = int((limits.busy_cache_block_s - 1) * 1e9)
    session.advance(late_ns)
    session.ask(1, np.array([6], np.uint64), np.array([ROW]))
    assert taken(session) == []
    session.take_load(load.load, np.ones(1, bool))
    copy = taken(session)[-1]
    assert isinstance(copy, CopyKeys)
    session.take_copy(copy.want, np.zeros(1, bool))  # its memory is free
    order = []
    for _ in range(3):
        claim = next(each for each in taken(session) if isinstance(each, ClaimSlots))
        order.append(int(session._wants[claim.want].want.keys[0]))
        session.take_claims(claim.want, codes(BUSY))
    assert order == [4, 2, 6]
    assert session.counts["busy_too_long"] == 1  # of the first request
    session.advance(late_ns + 2 * 10**9)
    claim = next(each for each in taken(session) if isinstance(each, ClaimSlots))
    session.take_claims(claim.want, codes(BUSY))
    assert session.counts["busy_too_long"] == 2  # of the step; the second request may wait


def test_memory_of_the_disk_bounds_what_begins() -> None:
    """A step waits while cache blocks on their way to the disk take all memory that they may."""
    session = session_of((0,), (6,))
    session.disk_buffer_bytes = 1
    for ticket, sample in enumerate((0, 4)):
        session.request(ticket, step([sample]), 1, False)
    (claim,) = taken(session)
    assert isinstance(claim, ClaimSlots)
    session.take_claims(claim.want, codes(MINE))
    (load,) = taken(session)
    assert isinstance(load, LoadBlocks)
    assert session.passing_bytes > 0
    session.take_load(load.load, np.zeros(1, bool))
    write, copy = taken(session)
    assert isinstance(write, WriteDisk)
    assert isinstance(copy, CopyKeys)
    session.take_copy(copy.want, np.ones(1, bool))
    assert names(taken(session)) == ["ReportStep"]
    session.take_write(write.source)
    assert names(taken(session)) == ["ReleaseSource", "ClaimSlots"]


def begun(session: CacheSession) -> ClaimSlots:
    """The claim of a step that wants all samples."""
    session.request(0, step(list(range(12))), 1, True)
    actions = taken(session)
    (claim,) = (action for action in actions if isinstance(action, ClaimSlots))
    session.actions.extend(action for action in actions if action is not claim)
    return claim


def to_load(session: CacheSession) -> Action:
    claim = begun(session)
    session.take_claims(claim.want, codes(*[MINE] * len(claim.slots)))
    for action in taken(session):
        if isinstance(action, AllocateRoom):
            session.take_room(action.load, np.arange(len(action.size)) * 64)
            return taken(session)[0]
        if isinstance(action, LoadBlocks):
            return action
    raise AssertionError


def to_write(session: CacheSession) -> Action:
    load = to_load(session)
    assert isinstance(load, LoadBlocks)
    session.take_load(load.load, np.zeros(len(load.slots), bool))
    return next(action for action in taken(session) if isinstance(action, WriteDisk))


def to_read_disk(session: CacheSession) -> Action:
    claim = begun(session)
    session.take_claims(claim.want, codes(*[READY] * len(claim.slots)))
    return next(action for action in taken(session) if isinstance(action, ReadDisk))


def to_first(kind: type) -> Callable[[CacheSession], Action]:
    def reach(session: CacheSession) -> Action:
        begun(session)
        return next(action for action in taken(session) if isinstance(action, kind))

    return reach


def to_answer(session: CacheSession) -> Action:
    session.ask(3, np.arange(12, dtype=np.uint64), np.full(12, ROW))
    (claim,) = taken(session)
    assert isinstance(claim, ClaimSlots)
    session.take_claims(claim.want, codes(*[READY] * len(claim.slots)))
    return taken(session)[0]


@pytest.mark.parametrize(
    ("make", "reach", "then"),
    [
        (lambda: session_of((6,)), to_load, [AbandonSlots, CopyKeys]),
        (lambda: session_of((0,), (6,)), to_load, [AbandonSlots, CopyKeys]),
        (lambda: session_of((0,), (6,)), to_write, [AbandonSlots]),
        (lambda: session_of((0,), (6,)), to_read_disk, [CopyKeys]),
        (lambda: session_of((3, 3)), to_first(FetchKeys), [ReadKeys]),
        (lambda: session_of((3, 3), replicas=True), to_first(TakeReplicas), [GiveUpReplicas]),
        (lambda: session_of((3, 3)), to_answer, [AnswerPeer]),
        (lambda: session_of((3, 3)), lambda session: begun(session), [Stop]),
    ],
    ids=["load", "load for the disk", "write", "disk read", "fetch", "replicas", "answer", "claim"],
)
def test_an_action_that_fails_is_replaced(
    make: Callable[[], CacheSession], reach: Callable[[CacheSession], Action], then: list[type]
) -> None:
    """An action that fails is replaced by another way, or the driver ends; no step waits on."""
    session = make()
    action = reach(session)
    session.actions.clear()
    session.fail(action)
    actions = taken(session)
    assert [type(each) for each in actions][: len(then)] == then
    if isinstance(action, AnswerPeer):
        assert actions == [AnswerPeer(action.request, action.lengths, ())]


def test_a_failed_load_of_a_step_is_read_from_storage() -> None:
    """After a load that could not begin, each key of the step comes from storage."""
    session = session_of((0,), (6,))
    load = to_load(session)
    session.fail(load)
    actions = taken(session)
    copy = next(action for action in actions if isinstance(action, CopyKeys))
    session.take_copy(copy.want, np.zeros(12, bool))
    kinds = taken(session)
    assert names(kinds) == ["ReleaseSource", "ReadKeys"]
    read = kinds[1]
    assert isinstance(read, ReadKeys)
    session.take_read(read.read, ())
    assert names(taken(session)) == ["ReportStep"]
    assert session.is_idle


def test_a_silent_rank_is_tried_with_one_key() -> None:
    """After a fetch that failed, steps read storage at once; once a pause is over one key is asked
    of the rank, and after its answer everything again."""
    session = session_of((3, 3))
    session.advance(0)
    all_samples = list(range(12))

    def others(ticket: int) -> list[Action]:
        session.request(ticket, step(all_samples), 1, False)
        return [action for action in taken(session) if not isinstance(action, ClaimSlots)]

    (fetch,) = others(0)
    assert isinstance(fetch, FetchKeys)
    session.take_fetch(fetch.fetch, np.arange(len(fetch.parts[0][1])), "timeout")
    assert names(taken(session)) == ["ReadKeys"]
    assert names(others(1)) == ["ReadKeys"]
    session.advance(int(limits.peer_pause_s * 1e9))
    probe, read = others(2)
    assert isinstance(probe, ProbeRank)
    assert isinstance(read, ReadKeys)
    assert names(others(3)) == ["ReadKeys"]
    session.take_fetch(probe.fetch, np.empty(0, np.int64), None)
    assert names(others(4)) == ["FetchKeys"]


def fetches_of(actions: list[Action]) -> list[FetchKeys]:
    return [action for action in actions if isinstance(action, FetchKeys)]


def test_what_several_steps_want_of_a_node_goes_in_one_fetch() -> None:
    """While two fetches to a node are under way, further wants gather; failures are those of the
    step that wanted the key."""
    session = session_of((3, 3))
    for ticket in range(5):
        session.request(ticket, step(list(range(12))), 1, False)
    first, second = fetches_of(taken(session))
    assert [ticket for ticket, _ in (*first.parts, *second.parts)] == [0, 1]
    none = np.empty(0, np.int64)
    session.take_fetch(first.fetch, none, None)
    (gathered,) = fetches_of(taken(session))
    assert [ticket for ticket, _ in gathered.parts] == [2, 3, 4]
    wanted = len(gathered.parts[0][1])
    session.take_fetch(gathered.fetch, np.array([wanted, 3 * wanted - 1]), None)
    reads = [action for action in taken(session) if isinstance(action, ReadKeys)]
    rows = gathered.parts[0][1]
    assert [(read.ticket, read.rows.tolist()) for read in reads] == [
        (3, [rows[0]]),
        (4, [rows[-1]]),
    ]


def test_what_has_gathered_for_a_silent_node_is_read_from_storage() -> None:
    """When a fetch fails, nothing waits for the other one that is under way."""
    session = session_of((3, 3))
    for ticket in range(4):
        session.request(ticket, step(list(range(12))), 1, False)
    first, _ = fetches_of(taken(session))
    session.take_fetch(first.fetch, np.arange(len(first.parts[0][1])), "timeout")
    reads = [action for action in taken(session) if isinstance(action, ReadKeys)]
    assert [read.ticket for read in reads] == [0, 2, 3]


def test_a_full_fetch_does_not_wait_for_others() -> None:
    """Wants that fill a fetch are asked for at once; those of a node with a disk always."""
    session = session_of((3, 3))
    session.answer_bytes = 8  # a fetch is full with the first want
    for ticket in range(4):
        session.request(ticket, step(list(range(12))), 1, False)
    assert len(fetches_of(taken(session))) == 4
    session = session_of((3, 3), (0, 3))
    for ticket in range(4):
        session.request(ticket, step(list(range(12))), 1, False)
    assert len(fetches_of(taken(session))) == 4


def test_slots_that_are_left_out_are_read_from_storage() -> None:
    """A disk that keeps nothing more leaves slots out; nobody waits for them."""
    session = session_of((0,), (6,))
    claim = begun(session)
    session.take_claims(claim.want, codes(*[LEFT_OUT] * len(claim.slots)))
    (copy,) = taken(session)
    assert isinstance(copy, CopyKeys)
    assert copy.want.tier is NodeTier.DISK


def test_each_action_is_performed_or_answered_somewhere() -> None:
    """The list of actions is that of the module: a new one is not forgotten."""
    listed = set(Action.__args__)
    found = {
        value
        for value in vars(cache_actions).values()
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
    }
    assert found - listed == {RowFailure, cache_actions.Want}
    assert {OfferReplicas, ReleaseSource} <= listed
