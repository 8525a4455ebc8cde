"""Modelled parts of the virtual cluster: they do what the real ones do."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from penstock.cache.disk import DiskTier
from penstock.cache.shared_memory import RamTier
from penstock.plan.cache_actions import MINE
from tests.virtual import Fault, FaultKind, ScenarioError, draw_scenario
from tests.virtual.cluster import VirtualCluster
from tests.virtual.node import Buffer, VirtualDisk, VirtualSlab

IDENTITY = bytes(16)
SLOTS, ROOM_BYTES = 8, 900


def draw_slots(draw: random.Random) -> np.ndarray:
    return np.array(sorted(draw.sample(range(SLOTS), draw.randrange(1, SLOTS))), np.int64)


@pytest.mark.parametrize("seed", range(10))
def test_a_modelled_slab_does_what_a_slab_does(seed: int) -> None:
    """Claims, room, publishing and looking up by two ranks give the same of both, whatever is
    done."""
    draw = random.Random(seed)
    model = VirtualSlab(SLOTS, ROOM_BYTES)
    lives = [object(), object()]
    with (
        RamTier.create(SLOTS, ROOM_BYTES, IDENTITY) as first,
        RamTier.attach(first.address, IDENTITY) as second,
    ):
        held: list[list[int]] = [[], []]
        for _ in range(40):
            rank = draw.randrange(2)
            real, life = (first, second)[rank], lives[rank]
            slots = draw_slots(draw)
            codes = real.claim(slots)
            assert (codes == model.claim(slots, life, set(lives))).all()
            held[rank] += slots[codes == MINE].tolist()
            own = np.array(held[rank][: draw.randrange(3)], np.int64)
            size = np.array([draw.choice((0, 1, 64, 65, 200)) for _ in own], np.int64)
            at = real.allocate(size)
            assert (at == model.allocate(size)).all()
            there = at >= 0
            real.publish(own[there], at[there], size[there])
            model.publish(own[there], at[there], life)
            real.abandon(own[~there])
            model.claims.give_back(own[~there].tolist(), life)
            held[rank] = held[rank][len(own) :]
            assert (real.offsets(slots) == model.offsets(slots)).all()


def damage_file(folder: Path, slot: int, kept_bytes: int) -> None:
    """Set what lies behind the first bytes of a slot's cache block on the disk to zero."""
    with open(folder / "tier.table", "rb") as table, open(folder / "tier.data", "r+b") as data:
        at, length = np.frombuffer(os.pread(table.fileno(), 16, 4096 + 24 * slot), np.int64)
        os.pwrite(data.fileno(), bytes(length - kept_bytes), at + kept_bytes)


@pytest.mark.parametrize("seed", range(3))
def test_a_modelled_disk_does_what_a_disk_tier_does(seed: int, tmp_path: Path) -> None:
    """Claims, writes and reads by two ranks give the same of both, also where cache blocks were
    torn and where room ends."""
    draw = random.Random(seed)
    room_bytes = 5 * 4096
    model = VirtualDisk(SLOTS, room_bytes)
    lives = [object(), object()]
    folder = tmp_path / "tier"
    with (
        DiskTier.open(str(folder), SLOTS, room_bytes, IDENTITY) as first,
        DiskTier.attach(str(folder), first._slots.address, IDENTITY) as second,
    ):
        lengths = np.array([100 + 700 * slot for slot in range(SLOTS)])
        for turn in range(20):
            rank = draw.randrange(2)
            real, life = (first, second)[rank], lives[rank]
            slots = draw_slots(draw)
            codes = real.claim(slots)
            assert (codes == model.claim(slots, life, set(lives), True)).all()
            own = slots[codes == MINE]
            blocks: list[Buffer] = [
                np.full(lengths[slot], turn * SLOTS + slot + 1, np.uint8) for slot in own.tolist()
            ]
            real.write(own, blocks)
            assert model.write(own.tolist(), blocks, life)
            if model._blocks and not draw.randrange(3):
                slot = draw.choice(sorted(model._blocks))
                at = draw.randrange(lengths[slot])
                damage_file(folder, slot, at)
                model.cut(slot, at)
            read = real.read(slots, lengths[slots])
            modelled = model.read(slots.tolist())
            for slot, block in zip(slots.tolist(), read, strict=True):
                assert (block is None) == (slot not in modelled)
                assert block is None or (block == modelled[slot]).all()


def test_what_a_disk_has_torn_is_not_read() -> None:
    """After writes were undone, cut and misplaced a modelled disk gives the bytes that were
    written, or none; some of each."""
    whole = missed = 0
    for seed in range(50):
        disk, life = VirtualDisk(SLOTS, 1 << 20), object()
        slots = np.arange(SLOTS)
        disk.claim(slots, life, {life}, True)
        written = [np.full(100, slot + 1, np.uint8) for slot in range(SLOTS)]
        disk.write(slots.tolist(), written, life)
        disk.tear(random.Random(seed))
        found = disk.read(slots.tolist())
        for slot, block in found.items():
            assert (block == written[slot]).all()
        whole += len(found)
        missed += SLOTS - len(found)
    assert whole
    assert missed


def test_lies_of_storage_are_known() -> None:
    """Bytes that storage made up are those of the key that it was asked for, and fail the
    container's checksum; any other wrong bytes are the cache's fault."""
    scenario = draw_scenario(1)
    cluster = VirtualCluster(scenario)
    key = next(key for key in range(scenario.samples) if len(cluster.data.bytes_of(key)) > 1)
    right = cluster.data.bytes_of(key).tobytes()
    lie = cluster.data.damaged_bytes_of(key).tobytes()
    cluster.check_bytes(key, right)
    with pytest.raises(ScenarioError, match=f"the bytes of key {key} are wrong"):
        cluster.check_bytes(key, lie)
    lies = [Fault(FaultKind.LIE, 0, 0, 1 << 40, extra) for extra in range(3)]
    cluster._faults[FaultKind.LIE, 0] = lies
    assert cluster.read_key(0, key).tobytes() == lie
    cluster.check_bytes(key, lie)
    assert not cluster.data.is_whole(key, np.frombuffer(lie, np.uint8))
    with pytest.raises(ScenarioError, match=f"the bytes of key {key} are wrong"):
        cluster.check_bytes(key, right[:1] + lie[1:])
