"""Tiers: folders of this host where shards wait until the repository has them. They are fast, and
lost with the host.

    .lock                                   the job that writes here
    step-<N>.<attempt>.<id>.held/           a save; <id> is a checksum of its repository's path
        rank-<r>.shard                      of the ranks of this host, as for the repository
        index                               put last, by rank 0 alone: all ranks have written

Once the index exists, all shards of a save are synced, here, on tiers of other hosts, or in the
repository already: the save is held. The index names the checkpoint that was the last committed at
that time, so that saves which a run went back behind are not committed later.

`choose_tiers` chooses a tier for each shard, or none, by VELOC's rule: the place that frees the
shard's memory soonest, in predicted seconds. A fast tier without room is waited for if even that is
sooner. All bandwidths are of all writers of a host together.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from ..arguments import check_fields, file_path, whole
from ..engine.atomic_file import storage_errors
from ..errors import DataError, FormatError, StorageError, UsageError
from .manifest import (
    CheckpointIndex,
    ShardEntry,
    decode_index,
    seal,
    unseal,
)
from .repository import INDEX, Folder, FolderLock, remove_shards_folder, write_index
from .shards import Flush, ShardContent, translate_read_errors
from .storage import CheckpointStorage

# -- the choice of a tier --------------------------------------------------------------------------

REPOSITORY = -1
"""The place that is no tier: the repository, where checkpoints are committed."""

_FORGET_SAVES = 10
"""Saves after which the bandwidth of an unused place is unknown again: a place that was slow, full
or missing may have recovered."""
_WEIGHT = 0.5
"""Weight of the last figure in a moving average."""


class TierRoom(NamedTuple):
    """The state of a tier of a host before a save.

    free_bytes:   bytes that may be written there now.
    bytes_per_s:  of all its writers together. None: not known; 0: not to be used.
    """

    free_bytes: int
    bytes_per_s: float | None


class WaitingSave(NamedTuple):
    """A save on its way to the repository: the bytes that this host still has to drain, and the
    bytes by tier that are free again then."""

    left_bytes: int
    freed_bytes: tuple[int, ...]


class TierChoice(NamedTuple):
    """The place to which a shard is written.

    place:        the number of a tier, or REPOSITORY.
    after:        how many of the saves on their way have to be drained before.
    predicted_s:  time until its memory is free, by each tier, and straight to the repository as the
                  last; None if it cannot be written there, or nothing is known.
    """

    place: int
    after: int
    predicted_s: tuple[float | None, ...]


def choose_tiers(
    sizes: Sequence[int],
    rooms: Sequence[TierRoom],
    line: Sequence[WaitingSave],
    repository_bytes_per_s: float | None,
) -> list[TierChoice]:
    """Choose where the ranks of a host write their shards, all from now on: one rank after the
    other.

    sizes:  bytes of each rank's shard.
    line:   saves on their way, one after the other, at `repository_bytes_per_s` of this host;
            shards that go straight to the repository come after them.

    A tier of unknown bandwidth that has room is tried. While the repository's bandwidth is unknown,
    or 0, shards go straight to it only if no tier has room.
    """
    free = [room.free_bytes for room in rooms]
    done_s = [0.0] * len(rooms)  # when each tier will have written the shards chosen for it
    # When the first saves of the line are drained: none, one, ... all.
    left_bytes = itertools.accumulate((save.left_bytes for save in line), initial=0)
    drained_s = [_predict_s(0.0, line_bytes, repository_bytes_per_s) for line_bytes in left_bytes]
    drained_s[0], repository_s = 0.0, drained_s[-1] if line else 0.0
    choices = []
    for size in sizes:
        straight_s = _predict_s(repository_s, size, repository_bytes_per_s)
        predicted, is_tried = [], False
        best, best_s, best_after = REPOSITORY, straight_s, len(line)
        for number, room in enumerate(rooms):
            freed = (save.freed_bytes[number] for save in line)
            room_bytes = itertools.accumulate(freed, initial=free[number])
            # The saves that have to be drained before the tier has room.
            after = next((count for count, there in enumerate(room_bytes) if there >= size), None)
            end_s = math.inf
            if after is not None and drained_s[after] < math.inf and room.bytes_per_s != 0:
                begin_s = max(done_s[number], drained_s[after])
                end_s = _predict_s(begin_s, size, room.bytes_per_s)
                is_unknown = room.bytes_per_s is None and after == 0
                if not is_tried and (is_unknown or end_s < best_s):
                    best, best_s, best_after, is_tried = number, end_s, after, is_unknown
            predicted.append(end_s)
        known_s = tuple(None if end_s == math.inf else end_s for end_s in (*predicted, straight_s))
        choices.append(TierChoice(best, best_after, known_s))
        if best == REPOSITORY:
            repository_s = best_s
        else:
            free[best] -= size
            done_s[best] = done_s[best] if best_s == math.inf else best_s
    return choices


def _predict_s(begin_s: float, size: int, bytes_per_s: float | None) -> float:
    """Predict when a write has ended that begins at `begin_s`; inf if the rate is not known."""
    return begin_s + size / bytes_per_s if bytes_per_s else math.inf


class Rates:
    """Bandwidth of the places of a host, as moving averages of measurements."""

    def __init__(self, places: Sequence[int]) -> None:
        self._bytes_per_s: dict[int, float | None] = dict.fromkeys(places)
        self._unused = dict.fromkeys(places, 0)

    def __getitem__(self, place: int) -> float | None:
        """Return the bandwidth in bytes/s; None: not known; 0: the place failed."""
        return self._bytes_per_s[place]

    def record_measurement(self, place: int, size: int, seconds: float) -> None:
        """Record that all writers of a host together wrote this many bytes there in this time."""
        if size and seconds > 0:
            before, now = self._bytes_per_s[place], size / seconds
            self._bytes_per_s[place] = _WEIGHT * now + (1 - _WEIGHT) * before if before else now
            self._unused[place] = 0

    def record_failure(self, place: int) -> None:
        """Record that a place failed: it is not to be used for some time."""
        self._bytes_per_s[place], self._unused[place] = 0.0, 0

    def record_save(self) -> None:
        """Record that places were chosen for one more save."""
        for place, unused in self._unused.items():
            self._unused[place] = unused + 1
            if unused >= _FORGET_SAVES and place != REPOSITORY:
                self._bytes_per_s[place] = None


# -- tiers of a host -------------------------------------------------------------------------------

_RESERVE = 16
"""Divisor of a tier's file system: one part of this many is left to others."""


@dataclass(frozen=True, slots=True)
class LocalTier:
    """A folder of this host for `Checkpoints(local=...)`, and the bytes of it that may be used.
    None is all that its file system has free, except for a sixteenth of the file system. Give it
    for /dev/shm: files there take memory."""

    path: str | os.PathLike[str] = field(metadata=file_path())
    bytes: int | None = field(default=None, metadata=whole())

    def __post_init__(self) -> None:
        check_fields(self)
        if "://" in str(self.path):
            raise UsageError(f"{self.path} is no folder: a tier is a folder of this host")


Local = str | os.PathLike[str] | LocalTier | Sequence[str | os.PathLike[str] | LocalTier]


def parse_local(local: Local) -> list[LocalTier]:
    """List the tiers that `local=` names."""
    several = isinstance(local, Sequence) and not isinstance(local, str)
    tiers: list[Any] = list(cast(Any, local)) if several else [local]
    if not tiers:
        raise UsageError(f"local={local!r}: name one tier or more, or leave it out")
    return [tier if isinstance(tier, LocalTier) else LocalTier(tier) for tier in tiers]


@dataclass(frozen=True, slots=True)
class HeldSave:
    """The content of the index on a tier. after: the attempt that was last committed in the
    repository; None if there was none."""

    after: str | None
    index: CheckpointIndex

    def encode(self) -> list[Any]:
        """Encode as JSON has it."""
        return [self.after, self.index.encoded.decode()]

    @classmethod
    def decode(cls, document: Any, where: str) -> HeldSave:
        """Decode what `encode` returned; FormatError if it is something else."""
        try:
            after, text = document
            if isinstance(after, str | None):
                return cls(after, decode_index(text.encode(), where))
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
        raise FormatError(f"{where} is {document!r:.80}, not the index of a held save")


class Tiers:
    """The tiers of a host, as one of its ranks sees them. All ranks of a job make it at once.

    The lowest of the ranks that name the same tiers leads them: it holds their locks, measures
    their room, and lists the saves held before. A tier that cannot be written is left out, with a
    warning. UsageError if another job has a tier.
    """

    def __init__(
        self,
        tiers: Sequence[LocalTier],
        repository_path: str,
        rank: int,
        run_together: Callable[[Callable[[], Any]], list[Any]],
        writer: bytes,
        storage: CheckpointStorage | None = None,
    ) -> None:
        """Make the tiers, and lock them. writer: names the process and the session of the job."""
        self.storage = storage or CheckpointStorage(is_shared=False)
        self.paths = [os.path.abspath(tier.path) for tier in tiers]
        self._bytes_max = [tier.bytes for tier in tiers]
        self.rank = rank
        self._repository_id = f"{zlib.crc32(repository_path.encode()):08x}"
        self._locks: list[FolderLock] = []
        self._warned: set[int] = set()
        self.rates = Rates([REPOSITORY, *range(len(tiers))])
        identities = run_together(self._identify)
        self.group = [r for r, other in enumerate(identities) if other == identities[self.rank]]
        """Ranks that name these tiers."""
        self.leading = self.group[0] == self.rank

        def take_locks() -> list[int]:
            """Take the locks. Returns the tiers that cannot be written."""
            left_out = []
            for number, path in enumerate(self.paths if self.leading else ()):
                try:
                    self._locks.append(FolderLock(self.storage, path, writer))
                except StorageError as error:
                    self.record_failure(number, error)
                    left_out.append(number)
            return left_out

        try:
            self._left_out = set(run_together(take_locks)[self.group[0]] or ())
        except BaseException:
            self.close()
            raise

    def _identify(self) -> list[Any]:
        """Make the folders of the tiers, and return values that are equal in ranks with the same
        tiers."""
        identities: list[Any] = [self.storage.identify_host()]
        for number, path in enumerate(self.paths):
            try:
                with storage_errors(path, "try again"):
                    identities.append(self.storage.identify_folder(path))
            except StorageError as error:
                self.record_failure(number, error)
                identities.append(path)
        return identities

    def record_failure(self, number: int, error: Exception) -> None:
        """Record that a tier failed: it is not used for some time. Warns once."""
        self.rates.record_failure(number)
        if number not in self._warned:
            self._warned.add(number)
            path = self.paths[number]
            self.storage.warn(f"{error}. Until then, checkpoints are made without {path}")

    def measure_rooms(self, held_bytes: Sequence[int]) -> list[TierRoom]:
        """Measure the room of each tier. held_bytes: bytes that this job already has on each
        tier."""
        rooms = []
        for number, job_bytes in enumerate(held_bytes):
            free, most = -1, self._bytes_max[number]
            if number not in self._left_out:
                with contextlib.suppress(OSError):
                    free, total = self.storage.measure_room(self.paths[number])
                    free = free - total // _RESERVE if most is None else min(free, most - job_bytes)
            rooms.append(TierRoom(free, self.rates[number]))
        return rooms

    # -- holding -----------------------------------------------------------------------------------

    def get_folder(self, number: int, step: int, attempt: str) -> str:
        """Return where a tier has the shards of an attempt."""
        return os.path.join(self.paths[number], f"step-{step}.{attempt}.{self._repository_id}.held")

    def _make_folder(self, number: int, step: int, attempt: str) -> str:
        """Make a folder for the shards of an attempt; each rank may call it."""
        path = self.get_folder(number, step, attempt)
        with storage_errors(path, "try again"), contextlib.suppress(FileExistsError):
            self.storage.make_folder(path)
        self.storage.sync_folder(self.paths[number], "try again")
        return path

    def write_shard(
        self, number: int, step: int, attempt: str, name: str, content: ShardContent, flush: Flush
    ) -> ShardEntry:
        """Write a shard to a tier; it survives a power cut when this returns."""
        folder = self._make_folder(number, step, attempt)
        return Folder(self.paths[number], self.storage).write_shard(folder, name, content, flush)

    def put_index(self, held_save: HeldSave) -> None:
        """Write the index of a save to the first tier that takes it; then the save is held."""
        data = seal("held", held_save.encode())
        step, attempt = held_save.index.step, held_save.index.attempt
        for number in range(len(self.paths)):
            if number in self._left_out or self.rates[number] == 0:
                continue
            try:
                with storage_errors(self.get_folder(number, step, attempt), "try again"):
                    write_index(self.storage, self._make_folder(number, step, attempt), data)
            except StorageError as error:
                self.record_failure(number, error)
            else:
                break

    def remove(self, step: int, attempt: str) -> None:
        """Make a save not held any more, then remove the parts that this rank has. Other ranks do
        the same. Files that cannot be removed now are removed when the tiers are used next."""
        names = ([INDEX, f"{INDEX}.part"] if self.rank == 0 else []) + [f"rank-{self.rank}.shard"]
        folders = [self.get_folder(number, step, attempt) for number in range(len(self.paths))]
        for name in names:
            for folder in folders:
                path = f"{folder}/{name}"
                is_there = self.storage.has_name(path)
                if is_there and not self.storage.is_link(folder):
                    with contextlib.suppress(OSError):
                        self.storage.remove_file(path)
        for folder in folders:
            with contextlib.suppress(OSError):  # other ranks have files in it still, or it is gone
                self.storage.remove_folder(folder)

    def close(self) -> None:
        """Let others write to the tiers. May be called again."""
        while self._locks:
            self._locks.pop().close()

    # -- what was held before ----------------------------------------------------------------------

    def list_held_folders(self) -> list[tuple[str, str]]:
        """List the folders of this repository's saves on the tiers, with their attempts; empty
        except in the leader. StorageError if a tier cannot be looked at: what is held there is not
        taken for gone, and removed."""
        pattern = re.compile(rf"step-\d+\.([0-9a-f]+)\.{self._repository_id}\.held")
        folders: list[tuple[str, str]] = []
        for number, path in enumerate(self.paths if self.leading else ()):
            if number in self._left_out:
                continue
            with translate_read_errors(path):
                names = self.storage.list_folder(path)
            folders += [
                (f"{path}/{name}", match[1]) for name in names if (match := pattern.fullmatch(name))
            ]
        return folders

    def clear(self) -> None:
        """Remove the folders that `list_held_folders` lists."""
        for path, _ in self.list_held_folders():
            with contextlib.suppress(OSError):
                remove_shards_folder(self.storage, path)


def read_held_save(storage: CheckpointStorage, folder: str) -> HeldSave | None:
    """Read the index in a held folder; None if there is none that is whole and of this folder."""
    path = f"{folder}/{INDEX}"
    try:
        with translate_read_errors(path):
            data = storage.read_file(path)
        save = HeldSave.decode(unseal("held", data, path), path)
    except DataError:
        return None
    name = folder.rpartition("/")[2]
    return save if name.startswith(f"step-{save.index.step}.{save.index.attempt}.") else None
