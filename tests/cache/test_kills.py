"""Tiers between processes: slots filled once, ranks killed at any point, memory's end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.cache.disk import DiskTier
from penstock.cache.shared_memory import MINE, READY, RamTier, SlabAddress
from tests import warm

IDENTITY = b"of these tests.."
LENGTH = 3000

RANK = """
import json, os, sys
import numpy as np
from penstock.cache.disk import DiskTier
from penstock.cache.shared_memory import BUSY, MINE, RamTier, SlabAddress

pid, fd, seed, slots, length = map(int, sys.argv[1:6])
folder, identity = sys.argv[6], b"of these tests.."
if folder:
    tier = DiskTier.attach(folder, SlabAddress(pid, fd), identity)
else:
    tier = RamTier.attach(SlabAddress(pid, fd), identity)
print(json.dumps(tier.address), flush=True)
sys.stdin.readline()

def at_a_point():  # a byte to whoever counts them
    os.write(1, b".")

def content(slot):
    return np.random.default_rng(slot).integers(0, 256, length, np.uint8)

def fill(mine):
    lengths = np.full(len(mine), length)
    at = tier.allocate(lengths)
    assert (at >= 0).all(), "the tier is full"
    at_a_point()
    for slot, place in zip(mine.tolist(), at.tolist()):
        tier.data[place : place + length] = content(slot)
    at_a_point()
    return tier.publish(mine, at, lengths)

def write(mine):
    cache_blocks = [content(slot) for slot in mine.tolist()]
    at_a_point()
    return tier.write(mine, cache_blocks)

wanted, filled = np.random.default_rng(seed).permutation(slots), []
while len(wanted):
    later = []
    for first in range(0, len(wanted), 8):
        batch = wanted[first : first + 8]
        codes = tier.claim(batch)
        at_a_point()
        later += batch[codes == BUSY].tolist()
        mine = batch[codes == MINE]
        assert (write if folder else fill)(mine).all()
        at_a_point()
        filled += mine.tolist()
    wanted = np.array(later, np.int64)
print("\\n" + json.dumps(filled))
"""


class Rank:
    """A process that has attached and waits for `go`."""

    def __init__(self, through: SlabAddress, seed: int, slots: int, folder: str = "") -> None:
        self.process = warm.Popen(
            [sys.executable, "-c", RANK, *map(str, (*through, seed, slots, LENGTH)), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.out = self.process.stdout
        self.address = SlabAddress(*json.loads(self.out.readline()))

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.out.close()
        assert self.process.wait() == -signal.SIGKILL

    def filled(self) -> list[int]:
        """The slots that it filled, when it is through."""
        out, _ = self.process.communicate(timeout=240)
        assert self.process.returncode == 0
        slots: list[int] = json.loads(out.splitlines()[-1])
        return slots


def check_contents(tier: RamTier) -> None:
    """Every slot is ready and holds what belongs in it."""
    for slot, at in enumerate(tier.offsets(np.arange(tier.slots)).tolist()):
        assert at >= 0
        expected = np.random.default_rng(slot).integers(0, 256, LENGTH, np.uint8)
        assert np.array_equal(tier.data[at : at + LENGTH], expected), slot


def test_each_slot_is_filled_by_one() -> None:
    """Four processes that want all slots at once share them without loss or repetition."""
    slots = 3000
    with RamTier.create(slots, slots * 3008, IDENTITY) as tier:
        ranks = [Rank(tier.address, seed, slots) for seed in range(4)]
        for rank in ranks:
            rank.go()
        filled = list(itertools.chain(*(rank.filled() for rank in ranks)))
        assert sorted(filled) == list(range(slots))
        check_contents(tier)
        assert tier.counters() == (slots, slots * 3008, slots * 3008, 0, 0)


def kill_three(
    through: SlabAddress, slots: int, random: np.random.Generator, folder: str = ""
) -> None:
    """Three ranks at work at once, each of them killed some moments after it began."""
    ranks = [Rank(through, int(random.integers(1 << 30)), slots, folder) for _ in range(3)]
    for rank in ranks:
        rank.go()
    for rank in ranks:
        rank.out.read(int(random.integers(1, 60)))
        rank.kill()


@pytest.mark.long
def test_ranks_killed_at_any_point_lose_nothing() -> None:
    """24 ranks are killed, each at a moment of its own; the last one fills what they left."""
    slots, kills, batch = 40_000, 24, 8
    random = np.random.default_rng(1)
    room = (slots + kills * batch) * 3008  # what a killed rank had allocated stays allocated
    with RamTier.create(slots, room, IDENTITY) as tier:
        for _ in range(kills // 3):
            kill_three(tier.address, slots, random)
        before = tier.counters()
        assert 0 < before.ready <= slots  # all of them, where a machine is fast
        last = Rank(tier.address, 0, slots)
        last.go()
        assert len(last.filled()) == slots - before.ready
        check_contents(tier)
        after = tier.counters()
        assert after.ready == slots
        assert after.published_bytes == slots * 3008
        assert 0 < after.taken_over <= kills * batch
        assert after.allocated_bytes - after.published_bytes <= kills * batch * 3008


@pytest.mark.long
def test_ranks_killed_while_they_write_to_disk(tmp_path: Path) -> None:
    """All that 24 killed ranks of four runs kept is right, and the last run keeps the rest."""
    slots, kills, batch, folder = 12_000, 24, 8, str(tmp_path)
    random = np.random.default_rng(1)
    room = (slots + kills * batch) * 4096
    column, lengths = np.arange(slots), np.full(slots, LENGTH)
    before = 0
    for _ in range(4):
        with DiskTier.open(folder, slots, room, IDENTITY) as tier:
            assert tier.counters().ready == before
            for _ in range(kills // 12):
                kill_three(tier.address, slots, random, folder)
            assert tier.counters().ready > before
            # A rank that was killed may have written entries that it could not publish any more: of
            # the cache blocks that it wrote together.
            before = np.count_nonzero(np.fromfile(tmp_path / "tier.table", "<i8", offset=4096)[::3])
            assert before - tier.counters().ready <= 6 * batch  # of each killed in this run
    with DiskTier.open(folder, slots, room, IDENTITY) as tier:
        left = tier.counters().ready
        assert 0 < left < slots
        last = Rank(tier.address, 0, slots, folder)
        last.go()
        assert len(last.filled()) == slots - left
        cache_blocks = tier.read(column, lengths)
        for slot, cache_block in enumerate(cache_blocks):
            assert cache_block is not None, slot
            expected = np.random.default_rng(slot).integers(0, 256, LENGTH, np.uint8)
            assert np.array_equal(cache_block, expected), slot
        assert tier.own_counters().damaged == 0


def having(inode: int) -> list[str]:
    """Processes that have a piece of shared memory open or mapped."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        fds = []
        with contextlib.suppress(OSError):  # has ended meanwhile, or is not ours
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(OSError):  # is closed
                    fds.append(fd.stat().st_ino)
            if inode in fds or f" {inode} " in (process / "maps").read_text():
                found.append(process.name)
    return found


def test_memory_goes_with_the_last_process() -> None:
    """Killed one after another, each attached through the one before: then nobody has it."""
    creator = warm.Popen(
        [
            sys.executable,
            "-c",
            "import json; from penstock.cache.shared_memory import RamTier\n"
            f"tier = RamTier.create(10, 100_000, {IDENTITY!r}); tier.populate()\n"
            "print(json.dumps(tier.address), flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert creator.stdout is not None
    address = SlabAddress(*json.loads(creator.stdout.readline()))
    inode = os.stat(f"/proc/{address.pid}/fd/{address.fd}").st_ino
    first = Rank(address, 0, 10)
    creator.kill()
    creator.communicate()
    second = Rank(first.address, 1, 10)  # a rank that begins again finds it through any other
    first.kill()
    assert having(inode) == [str(second.process.pid)]
    with RamTier.attach(second.address, IDENTITY) as tier:
        assert set(tier.claim(np.arange(10)).tolist()) <= {MINE, READY}
        assert str(os.getpid()) in having(inode)
    second.kill()
    assert having(inode) == []
    with pytest.raises(OSError, match=f"process {second.process.pid}"):
        RamTier.attach(second.address, IDENTITY)
