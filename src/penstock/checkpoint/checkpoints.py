"""Checkpoints that do not stop training: saved behind it, committed whole or not at all.

    checkpoints = penstock.checkpoint.Checkpoints("run/checkpoints")
    if found := checkpoints.latest():
        model.load_state_dict(found.state["model"]); loader.load_state_dict(found.loader)
    ...
    checkpoints.save(step, {"model": model.state_dict(), ...}, loader=loader)

`save` returns when the state has been copied, at the speed of memory; a thread behind it writes,
syncs and commits. What goes wrong there is raised by the next `save`, `wait` or `close`.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import secrets
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from ..budget import Budget
from ..errors import (
    ForkError,
    FormatError,
    MissingError,
    PenstockError,
    UsageError,
)
from ..membership import Gather
from ..topology import detect
from . import loading
from .agreement import gathers, together
from .boundaries import stalled
from .division import Cut, divided, piece_bytes
from .fence import Fence
from .flushing import Flush, laid_out
from .home import KEEP_MIN, Entry, Lock
from .homes import home_of
from .interval import OVERHEAD, Advice, Costs, Failures, advised
from .loading import Checkpoint
from .manifest import Index, Piece, Shard
from .pace import Pace
from .staging import Staged, Staging, staged_bytes
from .tree import Block, Taken, taken, tensors

Busy = Literal["wait", "skip"]


class Saved(NamedTuple):
    """A save of this rank that was committed.

    bytes:      of its shard; of all ranks together they are the state's, once.
    blocked_s:  how long training waited: for an earlier save, and for the copy, in `save` and in
                the optimizer's next step.
    seconds:    from the call of `save` to the commit.
    """

    step: int
    path: str
    bytes: int
    blocked_s: float
    seconds: float


class Checkpoints:
    """The checkpoints of a job in one place, which all its ranks share.

    folder:  made if it is not there; or a URL, s3://bucket/name, gs:// or az://. One job at a time
             writes to it: a second is refused (UsageError), or in an object store the first, at its
             next save.
    keep:    how many stay; the last two always do. What a killed job left is removed.
    busy:    what `save` does while an earlier one is under way: "wait" for it, or "skip" and
             return False.
    budget:  bytes_per_s of each rank, and direct; see `penstock.Budget`. Assign another to change
             the rate while writing.
    rank, world_size:  of the ranks that hold the same state; None detects them.
    gather:  how these tell each other; None is a group of torch.distributed. See
             `penstock.membership.Gather`.

    Several ranks make it and call `save` at the same time, with the same steps and states of the
    same shape. Each writes a part, so that all of it is written once. `load` may be called by any.

    Used by one thread; the thread behind it ends with `close`, or when the process ends regularly.
    Storage that hangs holds up who waits for a save, and nobody else: with a `timeout_s`, `wait`,
    `close` and `abandon` raise StalledError then. `load` and making these wait for storage itself.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        busy: Busy = "wait",
        budget: Budget | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        gather: Gather | None = None,
    ) -> None:
        if type(keep) is not int or keep < KEEP_MIN:
            raise UsageError(f"keep={keep!r}: keep {KEEP_MIN} checkpoints or more")
        if busy not in ("wait", "skip"):
            raise UsageError(f"busy={busy!r}: use 'wait' or 'skip'")
        self.keep = keep
        self.busy = busy
        self.place = detect(rank, world_size, os.environ, sys.modules)
        self._front, self._back = gathers(self.place, sys.modules, gather)
        if busy == "skip" and gather is not None and self.place.world_size > 1:
            raise UsageError("busy='skip' has ranks tell each other meanwhile: do not give gather=")
        self._budget = budget or Budget()
        self._process = os.getpid()
        self._staging = Staging()
        self._fence = Fence()
        self._pace = Pace()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._flush: Flush | None = None
        self._step = 0  # of the save under way
        self._closed = False
        self._tries = 0
        self.last: Saved | None = None
        """The last save that was committed."""
        self.skipped = 0
        """Saves that were not begun, as an earlier one was under way."""
        self._lock: Lock | None = None
        self._session = secrets.token_hex(4)
        try:
            self._session = together(self._front, self.place, lambda: self._opened(folder))[0]
            self.folder = home_of(folder)
        except BaseException:
            if self._lock is not None:
                self._lock.close()
            raise

    def _opened(self, path: str | os.PathLike[str]) -> str:
        if self.place.rank == 0:
            folder = home_of(path, make=True)
            where = f"process {os.getpid()} on {os.uname().nodename}"
            self._lock = folder.lock(f"{where}, session {self._session}\n")
            folder.collect()
        return self._session

    # -- saving ------------------------------------------------------------------------------------

    def save(self, step: int, state: Any, loader: Any = None) -> bool:
        """Begin to save a state; it may change once this returns. False where it was skipped.

        state:   see `penstock.checkpoint.tree`; UsageError names what of it cannot be saved.
        loader:  saved with it: what has a `state_dict`, or such a state.

        Takes as long as a copy in memory. It is committed later: `wait` returns then. Raises what
        went wrong with the save before, which was not committed then; this one is not begun.
        """
        began = time.perf_counter()
        self._check_usable()
        if type(step) is not int or step < 0:
            raise UsageError(f"step is {step!r}: use an integer from 0 on")
        if self._is_busy():
            self.skipped += 1
            return False
        self.wait()
        self._pace.began(step, began)
        self._tries += 1
        attempt = f"{self._session}{self._tries:x}"
        failure: Exception | None = None
        parts, cuts, copy = Taken(None, ()), list[Cut](), _nothing
        try:
            if hasattr(loader, "state_dict"):
                loader = loader.state_dict()
            parts, cuts, copy = self._copied(*self._parts(state, loader))
        except Exception as error:
            failure = error  # the other ranks are told by the thread
        self._flush = Flush(self._budget)
        self._step = step
        blocked_s = time.perf_counter() - began
        self._thread = threading.Thread(
            target=self._behind,
            args=(step, attempt, parts, cuts, copy, failure, began, blocked_s),
            name="penstock-checkpoint",
            daemon=True,
        )
        _awaited.add(self._thread)
        self._thread.start()
        if failure is not None:
            self._thread.join()
            self._thread, self._failure = None, None
            raise failure
        return True

    def attach(self, optimizer: Any) -> None:
        """Have later saves copy what only an optimizer of torch changes, parameters and what it
        keeps of them, behind training; its next step waits until that is done.

        Whatever else changes those in place (an average copied back, `load_state_dict`) has to come
        before a save, or after `fence`.
        """
        self._check_usable()
        self._fence.attach(optimizer)

    def fence(self) -> None:
        """Returns once the state of the last save has been copied: all of it may change."""
        self._fence.wait()

    def prepare(self, state: Any) -> None:
        """Take the memory for such a state now, so that the first save takes no longer than others.
        Fresh memory costs many times what a copy does."""
        self._check_usable()
        self.wait()
        _, cuts = self._parts(state, None)
        self._staging.reserve(staged_bytes(cuts))

    def _parts(self, state: Any, loader: Any) -> tuple[Taken, list[Cut]]:
        """A state apart, and what of it this rank writes."""
        parts = taken({"state": state, "loader": loader})
        sizes, ranks = [block.bytes for block in parts.blocks], self.place.world_size
        return parts, divided(sizes, ranks, piece_bytes(sizes, ranks))[self.place.rank]

    def _copied(
        self, parts: Taken, cuts: list[Cut]
    ) -> tuple[Taken, list[Cut], Callable[[], Staged]]:
        """Copy what has to be now. The parts without their arrays, the cuts as they will lie, and
        what copies the rest and returns all of it, to be called once."""
        now, later = self._fence.divided(parts.blocks, cuts)
        memory, end = self._staging.reserve(staged_bytes(cuts)), staged_bytes(now)
        first = self._staging.fill(memory[:end], parts.blocks, now)
        bare = tuple(replace(block, leaves=()) for block in parts.blocks)
        if not later:
            return Taken(parts.skeleton, bare), now, lambda: first
        blocks = list(bare)
        for cut in later:
            blocks[cut.block] = parts.blocks[cut.block]
        mark = tensors().mark()
        self._fence.put_up()

        def rest() -> Staged:
            try:
                with tensors().aside(mark):
                    second = self._staging.fill(memory[end:], blocks, later, behind=True)
            finally:
                self._fence.take_down()
            return Staged(memory, first.checksums + second.checksums)

        return Taken(parts.skeleton, bare), now + later, rest

    def _is_busy(self) -> bool:
        if self.busy == "wait":
            return False
        mine = self._thread is not None and self._thread.is_alive()
        return any(together(self._front, self.place, lambda: mine))

    def _behind(
        self,
        step: int,
        attempt: str,
        parts: Taken,
        cuts: list[Cut],
        copy: Callable[[], Staged],
        failure: Exception | None,
        began: float,
        blocked_s: float,
    ) -> None:
        """The thread: write, hear of the others, commit."""
        flush = self._flush
        assert flush is not None
        try:
            path, size = self._written(step, attempt, parts, cuts, copy, failure)
            blocked_s += self._fence.waited_s
            self.last = Saved(step, path, size, blocked_s, time.perf_counter() - began)
            self._pace.committed(blocked_s, self.last.seconds)
            if self.place.rank == 0:
                self.folder.thin(self.keep)
        except Exception as error:
            if not flush.stopped:
                self._failure = error
        finally:
            flush.close()

    def _written(
        self,
        step: int,
        attempt: str,
        parts: Taken,
        cuts: list[Cut],
        copy: Callable[[], Staged],
        failure: Exception | None,
    ) -> tuple[str, int]:
        assert self._flush is not None
        flush, rank = self._flush, self.place.rank
        begun = ""

        def write() -> Any:
            nonlocal begun
            if failure is not None:
                raise failure
            staged = copy()
            begun = self.folder.begin(step, attempt)
            name = f"rank-{rank}.shard"
            pieces = laid_out(_pieces(parts.blocks, cuts, name), staged.checksums)
            shard = self.folder.write(begun, name, staged.memory, pieces, flush)
            flush.check()
            return [list(shard), _shape_of(parts.blocks)]

        def commit() -> str | None:
            if rank != 0:
                return None
            assert self._lock is not None
            flush.check()
            if any(shape != said[0][1] for _, shape in said):
                raise UsageError(
                    f"the ranks save states of different shape at step {step}: save the same names,"
                    " dtypes and shapes on all; nothing was committed"
                )
            made = tuple(Shard(*shard) for shard, _ in said)
            content = loading.content_of(parts)
            index = Index(step, attempt, self.place.world_size, loading.STATE, made, content)
            return self.folder.commit(begun, index, self._lock).path

        try:
            said = together(self._back, self.place, write)
            committed = together(self._back, self.place, commit)[0]
        except BaseException:
            if rank == 0:  # also what others have written, where this one could not begin
                with contextlib.suppress(PenstockError):
                    self.folder.abandon(begun or self.folder.begin(step, attempt))
            raise
        return committed, int(said[rank][0][1])

    def wait(self, timeout_s: float | None = None) -> Saved | None:
        """Returns once what was saved is committed: the last such save. Raises what went wrong.

        timeout_s:  StalledError where that takes longer; it names what is waited for. The save is
                    still under way then.
        """
        self._join(timeout_s)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self.last

    def abandon(self, timeout_s: float | None = None) -> None:
        """Give up the save under way, if there is one, and return once it has ended: soon. It is
        not committed, unless it was about to be. For who has to end before a deadline; on all
        ranks.

        timeout_s:  StalledError where it takes longer, as nobody can end a call of storage that
                    hangs. The save is given up all the same: neither `close` nor the end of the
                    process waits for it, and where storage answers later, it is not committed.
        """
        if self._thread is not None and self._flush is not None:
            self._flush.stop()
            _awaited.discard(self._thread)
            self._join(timeout_s)
            self._failure = None

    def _join(self, timeout_s: float | None) -> None:
        """Until nothing is under way."""
        self._check_process()
        if timeout_s is not None and not timeout_s >= 0:
            raise UsageError(f"timeout_s={timeout_s!r}: use seconds from 0 on, or None")
        if self._thread is None:
            return
        self._thread.join(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
        if self._thread.is_alive():
            assert timeout_s is not None
            raise stalled(self._thread, self._step, timeout_s)
        self._thread = None

    def advice(
        self,
        mtbf_s: float,
        *,
        nodes: int = 1,
        restart_s: float = 0.0,
        step_s: float | None = None,
        slowdown: float = 0.0,
        overhead: float = OVERHEAD,
    ) -> Advice:
        """How often to save, from what the last saves took: see `penstock.checkpoint.interval`.

        mtbf_s:     mean time between failures of the job, or of a node where `nodes` are given.
        restart_s:  from a failure until training goes on.
        step_s:     of a training step; None measures it, from one call of `save` to the next.
        slowdown:   what a step takes longer while a save is written, 0.03 is 3 %; not measured.
        overhead:   the largest part of training's time that saves may take.

        Waits for the save under way, as `wait`. Several ranks ask at the same time, and get the
        same: of the slowest. UsageError before a save has been committed.
        """
        self._check_usable()
        self.wait()

        def mine() -> list[float]:
            found = self._pace.costs(step_s, slowdown)
            return [found.blocked_s, found.commit_s, found.step_s]

        said = together(self._front, self.place, mine)
        blocked_s, commit_s, slowest_s = map(max, zip(*said, strict=True))
        costs = Costs(blocked_s=blocked_s, commit_s=commit_s, step_s=slowest_s, slowdown=slowdown)
        return advised(costs, Failures(mtbf_s=mtbf_s, nodes=nodes, restart_s=restart_s), overhead)

    # -- loading -----------------------------------------------------------------------------------

    def latest(self, *, fall_back: bool = False) -> Checkpoint | None:
        """The last committed checkpoint, or None where there is none. See `load`."""
        try:
            return self.load(fall_back=fall_back)
        except MissingError:
            if self.folder.entries():
                raise
            return None

    def load(self, step: int | None = None, *, fall_back: bool = False) -> Checkpoint:
        """A committed checkpoint, by default the last, on any number of ranks.

        fall_back:  where it is damaged, warn and load the one before it.

        MissingError where there is none; FormatError where any byte of it was altered or cut: the
        message names file and piece, and the checkpoint before.
        """
        self.wait()
        return load(self.folder.path, step, fall_back=fall_back)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, in the order in which they were committed."""
        return [entry.step for entry in self.folder.entries()]

    # -- the rest ----------------------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = budget
        if self._flush is not None:
            self._flush.adopt(budget)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for what is under way, then let others write to the folder. Raises as `wait`; after
        a StalledError it is not closed. What was abandoned and still hangs is not waited for; the
        folder stays locked until the process ends."""
        if self._closed:
            return
        if self._flush is None or not self._flush.stopped:
            self._join(timeout_s)
        self._closed = True
        self._fence.detach()
        self._staging.close()
        hangs = self._thread is not None and self._thread.is_alive()
        if self._lock is not None and not hangs:
            self._lock.close()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise UsageError("these checkpoints are closed: make others")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkError(
                "these checkpoints belong to the process that was forked: save there, or make"
                " others after the fork"
            )


_awaited: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""What the end of the process waits for: threads that save, and were not told to give up."""


@atexit.register
def _finish() -> None:
    for thread in list(_awaited):
        thread.join()


def load(
    folder: str | os.PathLike[str], step: int | None = None, *, fall_back: bool = False
) -> Checkpoint:
    """As `Checkpoints.load`, by who does not write: takes no lock, and changes nothing."""
    place = home_of(folder)
    entry: Entry | None = place.entry(step)
    while True:
        assert entry is not None
        try:
            return loading.loaded(place, entry)
        except (FormatError, MissingError) as error:
            before = place.before(entry)
            if before is None or not fall_back:
                raise place.offering(error, entry) from None
            warnings.warn(f"{error}; loading step {before.step}", RuntimeWarning, stacklevel=2)
            entry = before


def _nothing() -> Staged:
    return Staged(np.empty(0, np.uint8), [])


def _pieces(blocks: tuple[Block, ...], cuts: list[Cut], file: str) -> list[Piece]:
    """A rank's cuts as pieces of its shard, not laid out yet."""
    return [
        Piece(blocks[c.block].name, "uint8", (c.bytes,), (c.start,), file, 0, c.bytes, 0)
        for c in cuts
    ]


def _shape_of(blocks: tuple[Block, ...]) -> str:
    """Equal where states have the same blocks."""
    names = json.dumps([[block.name, block.bytes] for block in blocks])
    return hashlib.sha256(names.encode()).hexdigest()
