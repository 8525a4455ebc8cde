"""Actions of a checkpoint: what its protocol wants done, as values. Pure.

The protocol consists of generators. Each yields an action and waits for its outcome: the result is
sent in, an error is raised at the `yield`. So nothing of it opens a file, asks a service, reads a
clock or starts a thread. `perform` is the driver of a training job, which performs actions over
files, object stores and threads; `tests.virtual` performs the same ones over modelled
storage, in virtual time, with faults between any two of them.

    who decides                   about
    `Checkpoints`, its driver     which save begins, and when a job is waited for
    `save.Save`                   the states of one save, the same on all ranks: written, held,
                                  committed, removed
    `drain.Drain`                 which place a shard goes to, and the order of the held saves
    `recovery`                    which saves of a job that was killed are committed
    `repository_steps`,           what stands in storage at each time: shards, index, commit,
    `folder_steps`,               retention, what is left of dead attempts, and who may write
    `prefix_steps`, `commits`

Events are the outcomes of actions. Every action either ends with a result, or with an error that is
raised in the generator that asked for it: none is dropped, and none is waited for but by its own
generator. A process may end before any action: what was performed until then is all that is left.

Invariants, whatever fails. A reader finds whole checkpoints alone. At most one job commits a
sequence number, and a job that was replaced commits nothing. A commit that a caller was told of is
found by every later reader, also after a power cut if the storage keeps what was synced. The last
`KEEP_MIN` checkpoints are not removed. Parts of attempts that were not committed are removed by
the next job at the latest.

Sizes are bytes, and times are seconds of a clock that only goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .manifest import Memory, Piece, ShardEntry

T = TypeVar("T")

Steps = Generator["Action", Any, T]
"""A part of the protocol: it yields actions, gets their outcomes, and returns a result."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to be done."""


# -- files -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakeFolder(Action):
    """Make a folder; FileExistsError if it is there."""

    path: str


@dataclass(frozen=True, slots=True)
class ListFolder(Action):
    """List the names in a folder, sorted."""

    path: str


@dataclass(frozen=True, slots=True)
class FindPath(Action):
    """Tell whether a path leads to something; links are followed."""

    path: str


@dataclass(frozen=True, slots=True)
class FindLink(Action):
    """Tell whether a path is a symbolic link."""

    path: str


@dataclass(frozen=True, slots=True)
class FindName(Action):
    """Tell whether a name is there, even as a link that leads to nothing."""

    path: str


@dataclass(frozen=True, slots=True)
class CheckOwnFolder(Action):
    """Raise UsageError if the path of a folder that penstock made is something else now."""

    path: str


@dataclass(frozen=True, slots=True)
class MeasureFile(Action):
    """Return the bytes of a file; FileNotFoundError if it is not there."""

    path: str


@dataclass(frozen=True, slots=True)
class ReadFile(Action):
    """Return the content of a file."""

    path: str


@dataclass(frozen=True, slots=True)
class WriteFile(Action):
    """Make a file of this content, and sync it if `sync`. A file that had the name is replaced."""

    path: str
    data: bytes
    sync: bool = True


@dataclass(frozen=True, slots=True)
class WriteShard(Action):
    """Make a file of a shard, and sync its content; its name in its folder is not synced. Returns
    the `ShardEntry`. FileExistsError if there is one. memory, pieces, flush: see `Flush.write`."""

    path: str
    memory: Memory
    pieces: Sequence[Piece]
    flush: Any


@dataclass(frozen=True, slots=True)
class CopyShard(Action):
    """Copy a file of this host to a shard's file, and sync its content; a file that had the name is
    replaced."""

    path: str
    source: str
    flush: Any


@dataclass(frozen=True, slots=True)
class RenamePath(Action):
    """Rename a file or a folder."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class RemoveFile(Action):
    """Remove a file or a link."""

    path: str


@dataclass(frozen=True, slots=True)
class RemoveFolder(Action):
    """Remove an empty folder; OSError if it is not empty."""

    path: str


@dataclass(frozen=True, slots=True)
class SyncFolder(Action):
    """Let the names in a folder survive a power cut. again: the remedy of its error."""

    path: str
    again: str


@dataclass(frozen=True, slots=True)
class TakeLock(Action):
    """Lock a folder for this process and name the session in the lock's file. Returns the lock,
    whose `close` lets others have it; UsageError if another process has it."""

    path: str
    folder: str
    session: bytes


@dataclass(frozen=True, slots=True)
class ReadLock(Action):
    """Return the beginning of the lock's file; FileNotFoundError if it is gone."""

    path: str


# -- objects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListObjects(Action):
    """List the folders and the objects directly below a key. bucket: where, also in the actions
    below; they raise ObjectRefused once asking again does not help."""

    bucket: Any
    key: str


@dataclass(frozen=True, slots=True)
class FetchObjects(Action):
    """Return the bytes of objects up to `stop`, fewer of those that are shorter; None for those
    that do not exist."""

    bucket: Any
    keys: Sequence[str]
    stop: int


@dataclass(frozen=True, slots=True)
class PutObject(Action):
    """Write an object. new: ObjectRefused with EEXIST if it exists. A request whose answer was lost
    may have been performed, and may be performed later."""

    bucket: Any
    key: str
    data: bytes
    new: bool


@dataclass(frozen=True, slots=True)
class DeleteObjects(Action):
    """Remove objects that may exist."""

    bucket: Any
    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class UploadShard(Action):
    """Write a shard to an object, whole or not at all. Returns the `ShardEntry`. url: in messages.
    The rest is as in `WriteShard`."""

    bucket: Any
    key: str
    url: str
    memory: Memory
    pieces: Sequence[Piece]
    flush: Any


@dataclass(frozen=True, slots=True)
class UploadFile(Action):
    """Copy a file of this host to an object, whole or not at all."""

    bucket: Any
    key: str
    url: str
    source: str
    flush: Any


# -- shards ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckShard(Action):
    """Return the pieces of a shard in a folder; FormatError or MissingError if it is not the shard
    that the entry names. reader: opens shards of a repository."""

    reader: Any
    folder: str
    shard: ShardEntry


@dataclass(frozen=True, slots=True)
class ReadPieces(Action):
    """Read pieces of shards in a folder, and compare them with their checksums; FormatError if one
    is damaged. target: returns the memory for a piece, None if it is only to be checked."""

    reader: Any
    folder: str
    pieces: Sequence[Piece]
    target: Callable[[Piece], Memory | None]


@dataclass(frozen=True, slots=True)
class FindWholeShards(Action):
    """List the shards in a folder of a tier that are whole: every byte is read."""

    folder: str


# -- the rest --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExchangeTexts(Action):
    """Send a text to all ranks, and return the texts of all ranks. It ends with an error if a rank
    is gone, or does not send its text in the time that the transport allows."""

    gather: Any
    text: str


@dataclass(frozen=True, slots=True)
class ReadClock(Action):
    """Return the time."""


@dataclass(frozen=True, slots=True)
class MeasureRoom(Action):
    """Return the bytes of a file system that are free, and all its bytes."""

    path: str


@dataclass(frozen=True, slots=True)
class IdentifyFolder(Action):
    """Make a folder with those that it lies in, and return its identity: equal folders have one."""

    path: str


@dataclass(frozen=True, slots=True)
class IdentifyHost(Action):
    """Return a text that the ranks of a host have in common, and no others."""


@dataclass(frozen=True, slots=True)
class WarnUser(Action):
    """Warn the user. The training goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class StartDrain(Action):
    """Run steps behind the save, in a task of their own. Returns a task whose `is_alive` tells
    whether it has ended. The steps return the error for a later call."""

    steps: Callable[[], Steps[Exception | None]]


@dataclass(frozen=True, slots=True)
class JoinDrain(Action):
    """Wait for the end of such a task."""

    task: Any
