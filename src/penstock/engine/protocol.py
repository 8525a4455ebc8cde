"""The protocol of engines: they execute requests and report; they decide nothing.

An engine takes requests (extents with destinations, see `penstock.extent`) and the buffers they go
to, and reports each submission once, with the extents that failed. The session decides what is read
and when; `penstock.engine.read_method` decides which system call reads it.

The life of a ticket: submit -> (reading, in any order, into the buffers) -> reported by poll.
Between submit and report the arrays of requests and buffers belong to the engine: it keeps them
alive, and nobody else may write them. (The sequence of buffers remains the caller's.) After the
report, or after close, the engine holds no reference to them.

Waiting requests are served by purpose, with aging (`penstock.engine.Aging`): a demand goes before
prefetches and sweeps, unless they have waited for long. Within one purpose the first come is the
first served. A read that has started is not interrupted.

An engine is used by one thread at a time, and makes progress at the latest when it is polled.

Every engine and every wrapper passes `penstock.testing.EngineSuite` unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .. import limits
from ..budget import Budget
from ..errors import ForkError, UsageError
from ..extent import Requests
from .request_queue import Purpose

Buffer = npt.NDArray[np.uint8]
"""A destination: one-dimensional, contiguous, writable, uint8."""

Mask = npt.NDArray[np.bool_]


class Failure(NamedTuple):
    """An extent that did not arrive completely.

    extent:  its number within the submitted requests.
    errno:   the operating system's reason; 0 if the file ended early; ENOENT if the file is
             gone; ESTALE if its size or modification time differs from the index.
    got:     bytes that arrived, from the start; the rest of the destination is undefined.
    """

    extent: int
    errno: int
    got: int


class Completion(NamedTuple):
    """The report on one ticket: `failures` is empty if every byte arrived.

    A failure concerns its extent alone: the others of the ticket arrived. An extent of length 0
    always arrives, unless its file cannot be opened.
    """

    ticket: int
    failures: tuple[Failure, ...]


class Engine(Protocol):
    """An engine that reads extents into buffers."""

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Accept requests and return their ticket, a number that grows; never waits for storage.

        purpose:  what the bytes are for: which of what waits is read first.

        Raises UsageError if `check_requests` does, if the purpose is unknown, and if the engine is
        closed. Nothing is read then, no ticket is used up, and the engine goes on. Destinations of
        unreported extents must not overlap; this is not checked.
        """
        ...

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report finished tickets, each once; wait up to `timeout_ns` while there are none.

        Returns at once, with an empty list, if no ticket is outstanding. Raises UsageError if
        the engine is closed.
        """
        ...

    def close(self) -> None:
        """Drop reads that have not started, wait for those that have, and free everything.

        May be called again.

        Tickets that were not reported before are never reported.
        """
        ...


Backend = Literal["pread", "io_uring", "mmap", "object"]
"""The way data is read: "object" by ranged requests, see `penstock.engine.remote`."""


@dataclass(frozen=True, slots=True)
class ReadMethod:
    """The way an engine reads, with the reasons against the other ways.

    cached:     whether the data is in the page cache, so that reading is copying.
    gap_bytes:  unwanted bytes between two extents that are cheaper to read than to skip.
    """

    backend: Backend
    direct: bool
    threads: int
    reasons: dict[str, str]
    cached: bool = False
    gap_bytes: int = limits.gap_bytes_default


class ReadingEngine(Engine, Protocol):
    """An engine as loaders use it: it reports how it reads, and accepts another budget.

    `adopt` may be called at any time and reads nothing. `survey` probes the files again, to see
    whether another way to read has become the better one.
    """

    @property
    def choice(self) -> ReadMethod: ...
    def adopt(self, budget: Budget) -> None: ...
    def survey(self) -> None: ...
    def counters(self) -> dict[str, int]: ...


class EngineWrapper:
    """Engine around another one, which answers what the wrapper does not."""

    def __init__(self, engine: ReadingEngine) -> None:
        self._engine = engine

    @property
    def choice(self) -> ReadMethod:
        """Read method of the engine."""
        return self._engine.choice

    def adopt(self, budget: Budget) -> None:
        """Pass a changed budget to the engine."""
        self._engine.adopt(budget)

    def survey(self) -> None:
        """Let the engine survey its files."""
        self._engine.survey()

    def counters(self) -> dict[str, int]:
        """Return the engine's counters."""
        return self._engine.counters()


def check_usable(is_inherited: bool, is_closed: bool = False) -> None:
    """Raise ForkError if an engine was inherited by a forked process, UsageError if it is
    closed."""
    if is_inherited:
        what = "this engine's threads are in the parent process"
        raise ForkError(f"{what}: create the loader in the child, or start processes by 'spawn'")
    if is_closed:
        raise UsageError("this engine is closed: create another")


def check_requests(
    requests: Requests, buffers: Sequence[Buffer], file_count: int | None = None
) -> None:
    """Raise UsageError unless an engine of `file_count` files may execute these requests.

    None leaves the file numbers unchecked, for wrappers that do not know the files. The message
    names the first wrong extent, run or buffer. A few vectorised passes.
    """
    _check_columns(requests)
    _check_extents(requests, file_count)
    _check_runs(requests)
    check_buffers(buffers)
    _check_destinations(requests, buffers)


def refuse_first(bad: Mask, message: Callable[[int], str]) -> None:
    """Raise UsageError with the message for the first index at which `bad` is True."""
    if np.count_nonzero(bad):  # `any` goes through Python: four times the time for a small step
        raise UsageError(message(int(bad.argmax())))


def _check_columns(requests: Requests) -> None:
    count = len(requests.file)
    for name, column in requests._asdict().items():
        dtype = np.dtype(np.uint32 if name in ("file", "buffer") else np.int64)
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype != dtype:
            raise UsageError(f"requests.{name} is {describe_argument(column)}: use 1-D {dtype}")
        if name != "runs" and len(column) != count:
            size = len(column)
            raise UsageError(f"requests.{name} has {size} values where requests.file has {count}")


def _check_extents(requests: Requests, file_count: int | None) -> None:
    file, offset, length = requests.file, requests.offset, requests.length
    refuse_first(offset < 0, lambda i: f"extent {i} has offset {offset[i]}: use 0 or above")
    refuse_first(length < 0, lambda i: f"extent {i} has length {length[i]}: use 0 or above")
    # Both are at least 0 here, so a negative sum has wrapped round.
    refuse_first(
        offset + length < 0,
        lambda i: f"extent {i} ends at {int(offset[i]) + int(length[i])}: stay below 2^63",
    )
    if file_count is not None:
        refuse_first(
            file >= file_count,
            lambda i: f"extent {i} is of file {file[i]}: the engine has {file_count} files",
        )


def _check_runs(requests: Requests) -> None:
    file, offset, length, runs = requests.file, requests.offset, requests.length, requests.runs
    count = len(file)
    if len(runs) == 0 or runs[0] != 0 or runs[-1] != count:
        problem = describe_argument(runs)
        raise UsageError(f"requests.runs is {problem}: start at 0 and end at {count}")
    extents = np.diff(runs)
    refuse_first(
        extents <= 0,
        lambda j: f"run {j} goes from extent {runs[j]} to {runs[j + 1]}: give it one or more",
    )
    refuse_first(
        extents > limits.run_extents_max,
        lambda j: f"run {j} has {extents[j]} extents, above run_extents_max: split it",
    )
    if len(extents) == count:
        return  # a run for each
    follows = np.ones(max(count - 1, 0), np.bool_)  # extent i + 1 is in the run of extent i
    follows[runs[1:-1] - 1] = False
    refuse_first(
        follows & (file[1:] != file[:-1]),
        lambda i: f"extents {i} and {i + 1} of one run are of files {file[i]} and {file[i + 1]}",
    )
    end = offset + length
    refuse_first(
        follows & (offset[1:] < end[:-1]),
        lambda i: (
            f"extent {i + 1} starts at {offset[i + 1]}, before extent {i} of its run ends at"
            f" {end[i]}: put overlaps into different runs"
        ),
    )
    if count:
        span = end[runs[1:] - 1] - offset[runs[:-1]]
        # A single long extent is no merged read: an engine splits it as it likes.
        refuse_first(
            (extents > 1) & (span > limits.run_bytes_max),
            lambda j: f"run {j} covers {span[j]} bytes, above run_bytes_max: split it",
        )


def check_buffers(buffers: Sequence[Buffer]) -> None:
    """Raise UsageError unless bytes can be delivered into each of these buffers."""
    for number, buffer in enumerate(buffers):
        if not (
            isinstance(buffer, np.ndarray)
            and buffer.dtype == np.uint8
            and buffer.ndim == 1
            and buffer.flags.c_contiguous
            and buffer.flags.writeable
        ):
            problem = describe_argument(buffer)
            raise UsageError(f"buffer {number} is {problem}: use 1-D, writable, contiguous uint8")


def _check_destinations(requests: Requests, buffers: Sequence[Buffer]) -> None:
    buffer, target, length = requests.buffer, requests.target, requests.length
    refuse_first(
        buffer >= len(buffers),
        lambda i: f"extent {i} goes to buffer {buffer[i]}: {len(buffers)} buffers were given",
    )
    if len(buffers) == 0:
        return  # no extents either
    size = np.array([len(destination) for destination in buffers], np.int64)[buffer]
    refuse_first(
        (target < 0) | (target > size - length),
        lambda i: (
            f"extent {i} goes to {target[i]}..{int(target[i]) + int(length[i])} of buffer"
            f" {buffer[i]}, which has {size[i]} bytes"
        ),
    )


def describe_argument(value: object) -> str:
    """Describe an argument for an error message."""
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}"
    words = [f"{value.dtype} of shape {value.shape}"]
    if not value.flags.c_contiguous:
        words.append("not contiguous")
    if not value.flags.writeable:
        words.append("read-only")
    if value.ndim == 1 and len(value):
        words.append(f"{value[0]}..{value[-1]}")
    return ", ".join(words)
