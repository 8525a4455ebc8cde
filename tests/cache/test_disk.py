"""The disk tier: kept between runs, never wrong bytes whatever is damaged, never an error for a
full disk, one job a folder."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.disk import DiskTier, read_note
from penstock.cache.shared_memory import LEFT_OUT, MINE, READY
from penstock.engine.storage_queue import PROCESS_QUEUE, PurposeTotals
from penstock.errors import StateError, StorageError, UsageError
from tests import warm

IDENTITY = b"of these tests.."
SLOTS = 8
ROOM = 1 << 20


def content(slot: int, length: int) -> Any:
    """The bytes that belong into a slot."""
    return np.random.default_rng(slot).integers(0, 256, length, np.uint8)


def length_of(slot: int) -> int:
    """Lengths around pages, and none."""
    return [0, 1, 4095, 4096, 4097, 100, 20_000, 8192][slot % 8]


def opened(folder: Path, **other: Any) -> DiskTier:
    """The tier of these tests."""
    arguments = {"slots": SLOTS, "room_bytes": ROOM, "identity": IDENTITY} | other
    return DiskTier.open(str(folder), **arguments)


def fill(tier: DiskTier, slots: list[int]) -> list[bool]:
    """Claims and writes; whether each was kept."""
    assert tier.claim(np.array(slots, np.int64)).tolist() == [MINE] * len(slots)
    done: list[bool] = tier.write(
        np.array(slots, np.int64), [content(slot, length_of(slot)) for slot in slots]
    ).tolist()
    return done


def found(tier: DiskTier, slots: int = SLOTS) -> list[int]:
    """The slots that are read, each with what belongs into it."""
    column = np.arange(slots)
    cache_blocks = tier.read(column, np.array([length_of(slot) for slot in range(slots)]))
    for slot, cache_block in enumerate(cache_blocks):
        assert cache_block is None or np.array_equal(cache_block, content(slot, length_of(slot))), (
            slot
        )
    return [slot for slot, cache_block in enumerate(cache_blocks) if cache_block is not None]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a disk: tmpfs would accept any direct write."""
    parent = os.environ.get("TMPDIR", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=parent) as name:
        yield Path(name) / "tier"


@contextmanager
def mounted(kind: str, at: Path, options: str) -> Iterator[Path]:
    """A file system of a kind, where this process may mount one."""
    at.mkdir()
    command = ["mount", "-t", kind, "-o", options, "none", str(at)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"no mount: {error}")
    if done.returncode != 0:
        pytest.skip(f"cannot mount {kind} (root can): {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


steps = st.one_of(
    st.tuples(st.just("fill"), st.lists(st.integers(0, SLOTS - 1), max_size=4, unique=True)),
    st.tuples(st.just("reopen"), st.just([])),
    st.tuples(st.just("abandon"), st.lists(st.integers(0, SLOTS - 1), max_size=4, unique=True)),
)


@given(st.lists(steps, max_size=12), st.sampled_from([ROOM, 5 * 4096]))
def test_kept_is_what_was_written(told: list[tuple[str, list[int]]], room: int) -> None:
    """Against a set: every cache block that was kept is read, in this run and in later ones."""
    with tempfile.TemporaryDirectory(prefix="penstock-", dir="/var/tmp") as name:
        tier, kept, used = opened(Path(name), room_bytes=room), set[int](), 0
        for what, slots in told:
            if what == "reopen":
                tier.close()
                tier = opened(Path(name), room_bytes=room)
                continue
            codes = tier.claim(np.array(slots, np.int64))
            assert codes.tolist() == [READY if slot in kept else MINE for slot in slots]
            mine = [slot for slot in slots if slot not in kept]
            if what == "abandon":
                tier.abandon(np.array(mine, np.int64))
                continue
            cache_blocks = [content(slot, length_of(slot)) for slot in mine]
            for slot, done in zip(
                mine, tier.write(np.array(mine, np.int64), cache_blocks), strict=True
            ):
                assert done == (used + length_of(slot) <= room)
                if done:
                    kept.add(slot)
                    used += -(-length_of(slot) // 4096) * 4096
        assert found(tier) == sorted(kept)
        assert tier.counters().dropped == 0
        tier.close()


def test_a_later_process_uses_what_was_kept(folder: Path) -> None:
    """Cache blocks outlive the process that wrote them, killed or not, past the page cache."""
    script = (
        "import os, signal; from pathlib import Path; from tests.cache.test_disk import *\n"
        f"tier = opened(Path({str(folder)!r})); assert fill(tier, [1, 2, 6]) == [True] * 3\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = warm.run([sys.executable, "-c", script], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    with opened(folder) as tier:
        assert found(tier) == [1, 2, 6]
        assert fill(tier, [0, 3]) == [True, True]
        assert tier.own_counters() == (3, 2, 0)
        flags = fcntl.fcntl(tier._data, fcntl.F_GETFL)
        assert flags & os.O_DIRECT
    with opened(folder) as tier:
        assert found(tier) == [0, 1, 2, 3, 6]


@pytest.mark.parametrize(
    "other", [{"identity": b"other data of 16"}, {"slots": SLOTS + 1}, {"slots": SLOTS - 1}]
)
def test_what_is_of_other_data_is_discarded(folder: Path, other: dict[str, Any]) -> None:
    """And then the folder is that of the new data."""
    with opened(folder) as tier:
        fill(tier, [1, 2])
    with opened(folder, **other) as tier:
        assert found(tier, 3) == []
        assert os.stat(folder / "tier.data").st_size == 4096
        fill(tier, [2])
    with opened(folder, **other) as tier:
        assert found(tier, 3) == [2]
    with opened(folder) as tier:
        assert found(tier) == []


def test_less_room_keeps_what_fits(folder: Path) -> None:
    """The file never stays larger than the room that a run is given."""
    with opened(folder) as tier:
        fill(tier, [1, 2, 6, 3])
    with opened(folder, room_bytes=3 * 4096) as tier:
        assert found(tier) == [1, 2]
        assert os.stat(folder / "tier.data").st_size <= 4 * 4096
        assert fill(tier, [5, 4]) == [True, False]
        assert tier.is_writable
    with opened(folder, room_bytes=3 * 4096) as tier:
        assert found(tier) == [1, 2, 5]


@given(st.data())
def test_damage_is_a_miss(data: st.DataObject) -> None:
    """Whatever bytes change, in a run or between, no wrong one is read, and cache blocks come
    back."""
    with tempfile.TemporaryDirectory(prefix="penstock-", dir="/var/tmp") as name:
        folder = Path(name)
        tier = opened(folder)
        fill(tier, list(range(SLOTS)))
        reopened = data.draw(st.booleans())
        if reopened:
            tier.close()
        file = folder / data.draw(st.sampled_from(["tier.table", "tier.data"]))
        size = os.stat(file).st_size
        how = data.draw(st.sampled_from(["flip", "overwrite", "truncate", "swap entries"]))
        with open(file, "r+b") as out:
            start = data.draw(st.integers(0, size - 1))
            if how == "truncate":
                out.truncate(start)
            elif how == "overwrite":
                out.seek(start)
                out.write(data.draw(st.binary(max_size=64))[: size - start])
            elif how == "flip":
                out.seek(start)
                byte = out.read(1)[0] ^ (1 << data.draw(st.integers(0, 7)))
                out.seek(start)
                out.write(bytes([byte]))
            else:  # whole entries, each of which was right in its own place
                a, b = (data.draw(st.integers(0, SLOTS - 1)) for _ in range(2))
                with open(folder / "tier.table", "r+b") as table:
                    content = bytearray(table.read())
                    at, to = 4096 + 24 * a, 4096 + 24 * b
                    content[to : to + 24] = content[at : at + 24]
                    table.seek(0)
                    table.write(content)
        if reopened:
            tier = opened(folder)
        first = found(tier)
        assert reopened or tier.own_counters().damaged == SLOTS - len(first)
        assert found(tier) == first
        missing = sorted(set(range(SLOTS)) - set(first))
        assert fill(tier, missing) == [True] * len(missing)
        if not (how == "truncate" and file.name == "tier.data" and not reopened):
            assert found(tier) == list(range(SLOTS))
        tier.close()
        with opened(folder) as tier:
            found(tier)


@pytest.mark.long
def test_every_byte_of_a_cache_block_and_its_entry_counts(folder: Path) -> None:
    """Each bit of the entry, and each byte of the cache block, one at a time."""
    with opened(folder) as tier:
        fill(tier, [5])
    table, cache_block = (folder / "tier.table").read_bytes(), (folder / "tier.data").read_bytes()
    entry = 4096 + 5 * 24
    for at in range(entry * 8, (entry + 20) * 8):  # the last 4 bytes of an entry are not used
        damaged = bytearray(table)
        damaged[at // 8] ^= 1 << at % 8
        (folder / "tier.table").write_bytes(damaged)
        with opened(folder) as tier:
            assert found(tier) == []
    (folder / "tier.table").write_bytes(table)
    for at in range(4096, 4096 + length_of(5)):
        damaged = bytearray(cache_block)
        damaged[at] ^= 0x10
        (folder / "tier.data").write_bytes(damaged)
        with opened(folder) as tier:
            assert found(tier) == []
            assert tier.own_counters().damaged == 1
    (folder / "tier.data").write_bytes(cache_block)
    with opened(folder) as tier:
        assert found(tier) == [5]
    for at in range(64):  # the header of the table
        damaged = bytearray(table)
        damaged[at] ^= 0x10
        (folder / "tier.table").write_bytes(damaged)
        assert read_note(str(folder)) is None
        with opened(folder) as tier:
            assert tier.counters().ready == 0


def test_a_note_is_for_later_runs(folder: Path) -> None:
    """A note is found without knowing the identity; another note is another content."""
    assert read_note(str(folder)) is None
    with opened(folder, note=b"of cache blocks") as tier:
        fill(tier, [5])
    assert read_note(str(folder)) == b"of cache blocks".ljust(24, b"\0")
    with opened(folder, note=b"of cache blocks") as tier:
        assert found(tier) == [5]
    with opened(folder, note=b"of others") as tier:
        assert found(tier) == []
    with pytest.raises(UsageError, match="up to 24"):
        opened(folder, note=bytes(25))


HOLDER = """
import json, sys
import numpy as np
from penstock.cache.disk import DiskTier
folder, address = sys.argv[1], json.loads(sys.argv[2])
identity = b"of these tests.."
if address is None:
    tier = DiskTier.open(folder, 8, 1 << 20, identity)
else:
    tier = DiskTier.attach(folder, address, identity)
print(json.dumps(tier.address), flush=True)
for line in sys.stdin:
    slot = np.array([int(line)])
    codes, cache_blocks = tier.claim(slot).tolist(), [np.full(100, 7, np.uint8)]
    print(json.dumps([codes, tier.write(slot, cache_blocks).tolist()]), flush=True)
"""


class Holder:
    """A process that has the tier of a folder."""

    def __init__(self, folder: Path, address: Any = None) -> None:
        self.process = warm.Popen(
            [sys.executable, "-c", HOLDER, str(folder), json.dumps(address)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def fill(self, slot: int) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{slot}\n")
        self.process.stdin.flush()
        return self._line()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_folder_in_use_by_this_process_says_so(folder: Path) -> None:
    with opened(folder), pytest.raises(UsageError, match="by another loader of this process"):
        opened(folder)


def test_a_folder_is_of_one_job(folder: Path) -> None:
    """Another job is told whose it is, as long as one rank of the first one lives."""
    first = Holder(folder)
    second = Holder(folder, first.address)
    assert second.fill(3) == [[MINE], [True]]
    assert first.fill(3) == [[READY], [False]]
    for holder in (first, second):
        with pytest.raises(
            UsageError, match=f"in use by another job, process .*{holder.process.pid}"
        ):
            opened(folder)
        with DiskTier.attach(str(folder), holder.address, IDENTITY) as tier:
            cache_block = tier.read(np.array([3]), np.array([100]))[0]
            assert cache_block is not None
            assert cache_block.tolist() == [7] * 100
        if holder is first:
            first.kill()
            with pytest.raises(UsageError, match=f"{second.process.pid}") as refused:
                opened(folder)
            assert str(first.process.pid) not in str(refused.value).split("process")[1]
    second.kill()
    with opened(folder) as tier:
        assert tier.claim(np.array([3])).tolist() == [READY]


def test_attaching_by_another_folder_is_refused(folder: Path) -> None:
    """Offsets are of one folder's file."""
    with opened(folder) as tier:
        other = folder.parent / "other"
        with opened(other):
            pass
        with pytest.raises(StateError, match="other data"):
            DiskTier.attach(str(other), tier.address, IDENTITY)
        with pytest.raises(UsageError, match="16"):
            DiskTier.attach(str(other), tier.address, b"short")
        with opened(other):  # the refused one has let go
            pass


def count_written() -> int:
    """Return the bytes that disk tiers of this process have written."""
    return PROCESS_QUEUE.totals().get("sweep", PurposeTotals()).written_bytes


def test_a_full_disk_ends_writing(tmp_path: Path) -> None:
    """One warning; what was kept is read, nothing is claimed any more, and training goes on."""
    with mounted("tmpfs", tmp_path / "disk", "size=64k,mode=0700") as disk:
        with opened(disk, slots=100) as tier:
            assert fill(tier, [1, 4]) == [True, True]
            written_bytes = count_written()
            with pytest.warns(
                RuntimeWarning, match=f"{disk} keeps no more cache blocks: No space left"
            ):
                assert fill(tier, [6, 14, 22, 30]) == [True, True, False, False]
            written_bytes = count_written() - written_bytes
            assert 2 * 20_480 <= written_bytes < 64 << 10  # those that were kept count
            assert not tier.is_writable
            assert tier.claim(np.array([1, 22, 7])).tolist() == [READY, LEFT_OUT, LEFT_OUT]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert tier.write(np.array([7]), [content(7, 10)]).tolist() == [False]
            assert found(tier) == [1, 4, 6]
            with DiskTier.attach(str(disk), tier.address, IDENTITY) as other:
                assert other.claim(np.array([22])).tolist() == [MINE]  # was given back
        with opened(disk, slots=100) as tier:
            assert found(tier) == [1, 4, 6]


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    """Said when it is opened, with what to do."""
    with mounted("tmpfs", tmp_path / "disk", "size=16k,mode=0700") as disk:
        (disk / "other").write_bytes(b"x" * 16384)
        with pytest.raises(StorageError, match=f"{disk} cannot be used: No space left"):
            opened(disk)


def test_without_direct_access_it_works_too(tmp_path: Path) -> None:
    """ramfs refuses O_DIRECT."""
    with mounted("ramfs", tmp_path / "disk", "mode=700") as disk:
        with opened(disk) as tier:
            assert not fcntl.fcntl(tier._data, fcntl.F_GETFL) & os.O_DIRECT
            fill(tier, list(range(SLOTS)))
            assert found(tier) == list(range(SLOTS))
        with opened(disk) as tier:
            assert found(tier) == list(range(SLOTS))


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A file in the way of the folder is named."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file/tier cannot be used: Not a directory"):
        opened(tmp_path / "file" / "tier")


# -- names that lead elsewhere ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tier.lock", "tier.table", "tier.data"])
@pytest.mark.parametrize("how", ["link", "dangling link", "second name", "pipe"])
def test_names_that_lead_elsewhere_are_refused(name: str, how: str, tmp_path: Path) -> None:
    """A link that somebody put into the folder has nothing else overwritten, or made."""
    folder, target = tmp_path / "tier", tmp_path / "target"
    folder.mkdir()
    target.write_bytes(b"precious" * 1000)
    if how == "link":
        (folder / name).symlink_to(target)
    elif how == "dangling link":
        (folder / name).symlink_to(tmp_path / "new")
    elif how == "second name":
        os.link(target, folder / name)
    else:
        os.mkfifo(folder / name)
    with pytest.raises(UsageError, match=rf"{name} is .*nothing is written to it"):
        DiskTier.open(str(folder), 4, 1 << 20, b"i" * 16)
    assert target.read_bytes() == b"precious" * 1000
    assert not (tmp_path / "new").exists()
    (folder / name).unlink()
    DiskTier.open(str(folder), 4, 1 << 20, b"i" * 16).close()


def test_a_folder_that_others_may_change_is_refused(tmp_path: Path) -> None:
    """Whoever may exchange its files could have us write elsewhere."""
    folder = tmp_path / "tier"
    folder.mkdir()
    folder.chmod(0o1777)
    with pytest.raises(UsageError, match=r"every user may write to .*chmod o-w"):
        DiskTier.open(str(folder), 4, 1 << 20, b"i" * 16)
    folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        with pytest.raises(UsageError, match="belongs to user 65534"):
            DiskTier.open(str(folder), 4, 1 << 20, b"i" * 16)
