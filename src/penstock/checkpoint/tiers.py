"""Folders of this host where shards wait until their home has them: fast, and gone with the host.

    .lock                                   the job that writes here
    step-<N>.<attempt>.<home>.held/         a save; <home> is a checksum of its home's path
        rank-<r>.shard                      of the ranks of this host, as the home will have them
        index                               put last, by rank 0 alone: all ranks have written

With the index, all shards of a save are synced, here, on tiers of other hosts, or in the home
already: the save is held. It names the last checkpoint that was committed then, so that what a run
went back behind is not committed later.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..cache import Gather, machine_identity
from ..engine import storage_errors, sync_folder
from ..errors import DataError, StorageError, UsageError
from ..topology import Place
from . import shards
from .all_gather import together
from .fault_points import reached
from .flushing import Flush
from .folder import INDEX, Folder, FolderLock, emptied, put_index, reading
from .manifest import CheckpointIndex, Shard, index_bytes, index_of, seal, unsealed
from .repositories import full_path
from .repository import Repository
from .tier_choice import HOME, Rates, Room

_RESERVE = 16
"""One part in so many of a tier's file system is left to others."""


@dataclass(frozen=True, slots=True)
class LocalTier:
    """A folder of this host for `Checkpoints(local=...)`, and how much of it may be used: None is
    what its file system has free, but for a sixteenth of it. Of /dev/shm, give it: what is there
    takes memory."""

    path: str | os.PathLike[str]
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None and not (type(self.bytes) is int and self.bytes > 0):
            raise UsageError(f"Tier.bytes is {self.bytes!r}: use None or a number above 0")
        if "://" in os.fspath(self.path):
            raise UsageError(f"{self.path} is no folder: a tier is a folder of this host")


Local = str | os.PathLike[str] | LocalTier | Sequence[str | os.PathLike[str] | LocalTier]


def tiers_of(local: Local) -> list[LocalTier]:
    """What `local=` names."""
    given = [local] if isinstance(local, str | os.PathLike | LocalTier) else list(local)
    if not given:
        raise UsageError(f"local={local!r}: name one tier or more, or leave it out")
    return [each if isinstance(each, LocalTier) else LocalTier(each) for each in given]


@dataclass(frozen=True, slots=True)
class HeldSave:
    """What the index on a tier says. after: the attempt of the last checkpoint that its home had;
    None where there was none."""

    after: str | None
    index: CheckpointIndex


class Tiers:
    """The tiers of a host, as one of its ranks sees them. All ranks of a job make it at once.

    The lowest of the ranks that name the same tiers leads them: it has their locks, says what room
    there is, and what they hold from before. A tier that cannot be written is left out, with a
    warning; one that another job has is a UsageError.
    """

    def __init__(
        self, given: Sequence[LocalTier], home: str, place: Place, session: str, gather: Gather
    ) -> None:
        self.paths = [full_path(each.path) for each in given]
        self._most = [each.bytes for each in given]
        self.rank = place.rank
        self._home = f"{zlib.crc32(home.encode()):08x}"
        self._locks: list[FolderLock] = []
        self._warned: set[int] = set()
        self.rates = Rates([HOME, *range(len(given))])
        said = together(gather, place, lambda: [machine_identity(), self._made()])
        self.group = [rank for rank, each in enumerate(said) if each == said[place.rank]]
        """The ranks that name these tiers."""
        self.leading = self.group[0] == place.rank
        try:
            out = together(gather, place, lambda: self._locked(session))[self.group[0]]
        except BaseException:
            self.close()
            raise
        self._out: set[int] = set(out or ())

    def _made(self) -> list[Any]:
        """The tiers, made, and what tells whether another rank has the same."""
        found: list[Any] = []
        for number, path in enumerate(self.paths):
            try:
                with storage_errors(path, "try again"):
                    os.makedirs(path, exist_ok=True)
                    folder = os.stat(path)
                found.append([folder.st_dev, folder.st_ino])
            except StorageError as error:
                self.failed(number, error)
                found.append(path)
        return found

    def _locked(self, session: str) -> list[int]:
        """Take the locks; tiers that cannot be written."""
        out = []
        for number, path in enumerate(self.paths if self.leading else ()):
            try:
                self._locks.append(FolderLock(path, session))
            except StorageError as error:
                self.failed(number, error)
                out.append(number)
        return out

    def failed(self, number: int, error: Exception) -> None:
        """A tier is not used for some time; said once."""
        self.rates.failed(number)
        if number not in self._warned:
            self._warned.add(number)
            warnings.warn(
                f"{error}. Until then checkpoints do without {self.paths[number]}",
                RuntimeWarning,
                stacklevel=2,
            )

    def rooms(self, held_bytes: Sequence[int]) -> list[Room]:
        """What each tier has room for. held_bytes: that lie on each already, of this job."""
        return [
            Room(self._free(number, held), self.rates[number])
            for number, held in enumerate(held_bytes)
        ]

    def _free(self, number: int, held: int) -> int:
        if number in self._out:
            return -1
        try:
            system = os.statvfs(self.paths[number])
        except OSError:
            return -1
        free = system.f_bavail * system.f_frsize
        most = self._most[number]
        if most is not None:
            return min(free, most - held)
        return free - system.f_blocks * system.f_frsize // _RESERVE

    # -- holding -----------------------------------------------------------------------------------

    def folder(self, number: int, step: int, attempt: str) -> str:
        """Where a tier has the shards of an attempt."""
        return os.path.join(self.paths[number], f"step-{step}.{attempt}.{self._home}.held")

    def begin(self, number: int, step: int, attempt: str) -> str:
        """A folder for the shards of an attempt; each rank may call it."""
        path = self.folder(number, step, attempt)
        with storage_errors(path, "try again"), contextlib.suppress(FileExistsError):
            reached(f"make {path}")
            os.mkdir(path)
        sync_folder(self.paths[number])
        return path

    def put_index(self, held: HeldSave) -> bool:
        """From here on the save is held; False where no tier takes the index."""
        data = seal("held", [held.after, index_bytes(held.index).decode()])
        for number in range(len(self.paths)):
            if number in self._out or self.rates[number] == 0:
                continue
            try:
                with storage_errors(
                    self.folder(number, held.index.step, held.index.attempt), "try again"
                ):
                    put_index(self.begin(number, held.index.step, held.index.attempt), data)
            except StorageError as error:
                self.failed(number, error)
            else:
                return True
        return False

    def remove(self, step: int, attempt: str) -> None:
        """The save is not held any more, then what this rank has of it is gone. Others do so, too;
        what cannot be removed is, when the tiers are used next."""
        names = ([INDEX, f"{INDEX}.part"] if self.rank == 0 else []) + [f"rank-{self.rank}.shard"]
        for name in names:
            for number in range(len(self.paths)):
                path = os.path.join(self.folder(number, step, attempt), name)
                if os.path.exists(path):
                    reached(f"remove {path}")
                    with contextlib.suppress(OSError):
                        os.unlink(path)
        for number in range(len(self.paths)):
            with contextlib.suppress(OSError):  # others are in there still, or it is gone
                os.rmdir(self.folder(number, step, attempt))

    def close(self) -> None:
        """Others may write to the tiers. May be called again."""
        while self._locks:
            self._locks.pop().close()

    # -- what was held before ----------------------------------------------------------------------

    def found(self) -> Iterator[tuple[str, str]]:
        """Folders of this home's saves that lie on the tiers, with their attempts; only the leader
        looks."""
        name = re.compile(rf"step-\d+\.([0-9a-z]+)\.{self._home}\.held")
        for path in self.paths if self.leading else ():
            with contextlib.suppress(OSError):
                for each in sorted(os.listdir(path)):
                    if match := name.fullmatch(each):
                        yield os.path.join(path, each), match[1]

    def clear(self) -> None:
        """Remove what was found."""
        for path, _ in list(self.found()):
            with contextlib.suppress(OSError):
                reached(f"clear {path}")
                emptied(path)


def bring(home: Repository, begun: str, folder: str, shard: Shard, flush: Flush) -> None:
    """A shard goes from its folder on a tier to its home. MissingError or FormatError where it is
    not held any more; StorageError where the home does not take it."""
    shards.pieces(Folder(os.path.dirname(folder)), folder, shard)
    try:
        home.put(begun, shard.file, f"{folder}/{shard.file}", flush)
    except DataError as error:
        raise StorageError(str(error)) from None


def shards_in(folder: str) -> dict[str, Shard]:
    """The shards in a held folder that are whole: every byte is read."""
    found, here = {}, Folder(folder)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".shard"):
            with contextlib.suppress(DataError, StorageError):
                pieces, shard = shards.examined(here, f"{folder}/{name}")
                shards.read(here, folder, pieces, lambda _: None)
                found[name] = shard
    return found


def held_in(folder: str) -> HeldSave | None:
    """What the index in a held folder says; None where there is none that is whole."""
    path = os.path.join(folder, INDEX)
    try:
        with reading(path), open(path, "rb") as file:
            data: Any = file.read()
        after, text = unsealed("held", data, path)
        return HeldSave(after, index_of(text.encode(), path))
    except (DataError, StorageError):
        return None
