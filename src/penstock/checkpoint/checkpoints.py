"""Checkpoints that do not stop training: saved behind it, committed whole or not at all.

    checkpoints = penstock.checkpoint.Checkpoints("run/checkpoints")
    if last := checkpoints.latest():
        model.load_state_dict(last.state["model"]); loader.load_state_dict(last.loader)
    ...
    checkpoints.save(step, {"model": model.state_dict(), ...}, loader=loader)

`save` returns when the state has been copied, at the speed of memory; a thread behind it writes,
syncs and commits. What goes wrong there is raised by the next `save`, `wait` or `close`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal, Self, get_args

from ..arguments import check_choice, check_kind, check_number, check_whole
from ..budget import Budget
from ..engine.storage_queue import PROCESS_QUEUE
from ..errors import ForkError, MissingError, UsageError
from ..ranks.gather import Gather
from ..ranks.place import detect
from .background import BackgroundThread, JoinDeadline
from .held_saves import Drain, open_tiers
from .interval import OVERHEAD, Advice, Costs, Failures, SavePace, advise_interval
from .loading import Checkpoint, load, open_repository
from .manifest import Attempt
from .repository import WriteLock, describe_writer, lock_repository, make_session
from .retention import KEEP_MIN, delete_old_after_commit
from .save import CommittedSave, Gathers, Ranks, Save, SaveTarget, connect_ranks
from .shards import Flush
from .staging import Fence, Staging, StateSnapshot, divide_state
from .tiers import Local, LocalTier, parse_local

Busy = Literal["wait", "skip"]


class Checkpoints:
    """The checkpoints of a job in one repository that all its ranks share.

    folder:            made if it is not there; or a URL, s3://bucket/name, gs:// or az://. One job
                       at a time writes to it. A second job is refused (UsageError); in an object
                       store the first job is refused instead, at its next save.
    keep:              how many checkpoints stay; the last two always do. The leftovers of a killed
                       job are removed.
    busy:              what `save` does while an earlier save is under way: "wait" for it, or "skip"
                       and return False.
    budget:            bytes_per_s of each rank, and direct; see `penstock.Budget`. Assign another
                       to change the rate while writing.
    rank, world_size:  of the ranks that hold the same state; None detects them.
    gather:            how the ranks exchange texts; None makes groups of torch.distributed. See
                       `penstock.ranks.Gather`. Several of three functions are used at once; with a
                       single function, the next save starts when the one before is committed.
    local:             a folder of this host, or several, the fastest first: see `LocalTier`. A save
                       is held there until it is committed, so that the next may start earlier. If
                       the job is killed meanwhile, the next job with the same tiers commits the
                       save before its own `Checkpoints` is made. All ranks of a host name the same
                       tiers. A tier that fails costs a RuntimeWarning.

    Several ranks make it and call `save` at the same time, with the same steps and states of the
    same shape. Each rank writes a part, so that the whole is written once. Any rank may call
    `load`.

    It is used by one thread. The threads behind it end with `close`, or when the process ends
    regularly. Storage that hangs blocks only the callers that wait for a save: with a `timeout_s`,
    `wait`, `close` and `abandon` raise StalledError then. `load` and the constructor wait for
    storage without a limit.
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
        gather: Gather | Gathers | None = None,
        local: Local | None = None,
    ) -> None:
        keep = check_whole("keep", keep, KEEP_MIN)
        check_choice("busy", busy, get_args(Busy))
        check_kind("budget", budget or Budget(), Budget, "a penstock.Budget")
        tiers = () if local is None else parse_local(local)
        self.keep = keep
        self.busy = busy
        self.place = detect(rank, world_size, os.environ, sys.modules)
        self._train_ranks, self._save_ranks, drain_ranks = connect_ranks(
            self.place, sys.modules, gather
        )
        if busy == "skip" and callable(gather) and self.place.world_size > 1:
            raise UsageError("busy='skip' exchanges texts during a save: give three gather=")
        self._budget = budget or Budget()
        self._process = os.getpid()
        self._staging = Staging()
        self._fence = Fence()
        self._pace = SavePace()
        self._save: Save | None = None  # the last that was begun
        self._task: BackgroundThread | None = None  # of that save, until it was waited for
        self._failure: Exception | None = None  # of a save that was waited for, for the next call
        self._closed = self._released = False
        self._count = 0  # of the saves that were begun
        self.last: CommittedSave | None = None
        """The last save that was committed."""
        self.skipped = 0
        """Number of saves that did not start because an earlier one was under way."""
        self._lock: WriteLock | None = None
        self._session = make_session()
        self._drain: Drain | None = None
        try:
            sessions = self._train_ranks.run_together(
                lambda: self._open_and_lock(folder, not tiers)
            )
            self._session, self.folder = sessions[0], open_repository(folder)
            self._target = SaveTarget(self.place, self.folder, self._lock)
            if tiers:
                self._drain = self._recover_tiers(tiers, drain_ranks)
        except BaseException:
            if self._lock is not None:
                self._lock.close()
            raise

    def _open_and_lock(self, path: str | os.PathLike[str], clear: bool) -> str:
        if self.place.rank == 0:
            repository = open_repository(path, make=True)
            writer = describe_writer(self._session)
            self._lock = lock_repository(repository, writer, clear)
        return self._session

    def _recover_tiers(self, local: Sequence[LocalTier], drain_ranks: Ranks) -> Drain:
        """Commit the saves held on the tiers, which empties them, and make their drain."""
        writer = describe_writer(self._session)
        tiers, last = open_tiers(local, self._target, self._train_ranks, writer, self._budget)
        self._target = self._target._replace(tiers=tiers)
        return Drain(
            tiers,
            self.folder.path,
            self._save_ranks,
            drain_ranks,
            self._budget,
            last,
            self._record_commit,
        )

    # -- saving ------------------------------------------------------------------------------------

    def save(self, step: int, state: Any, loader: Any = None, *, per_rank: Any = None) -> bool:
        """Start to save a state. The state may change once this returns. Returns False if the save
        was skipped.

        state:     see `penstock.checkpoint.pytree`; UsageError names the part of it that cannot be
                   saved.
        loader:    saved with it: an object with `state_dict`, or such a state.
        per_rank:  state of this rank alone, such as random generators or other libraries' loaders.
                   It is saved for each rank, and restored to that rank.

        All ranks save one state. Its numbers, and its arrays below
        `limits.checkpoint_first_rank_bytes`, are rank 0's: under DDP, batch-norm statistics and
        counters differ. Larger arrays have to be equal. If they are not, nothing is committed, and
        all ranks raise a UsageError that names array and ranks. Samples are compared:
        `penstock.checkpoint.comparison` says what they may miss.

        It takes as long as a copy in memory. The commit comes later: `wait` returns then. If an
        earlier save failed, this raises its error: that save was not committed, and this one does
        not start. Saves that are held on tiers are committed with the next save or by the next job.
        """
        began_s = time.perf_counter()
        self._check_usable()
        step = check_whole("step", step, 0)
        if loader is not None and not hasattr(loader, "state_dict"):
            check_kind("loader", loader, dict, "an object with state_dict, or such a state")
        if self.busy == "skip":
            is_under_way = self._task is not None and self._task.is_alive()
            if any(self._train_ranks.run_together(lambda: is_under_way)):
                self.skipped += 1
                return False
        if self._task is not None or self._failure is not None:
            self._wait_until(None, until_held=True)
        self._count += 1
        attempt = Attempt(self._session, self._count)
        snapshot: StateSnapshot | Exception
        try:
            try:
                if hasattr(loader, "state_dict"):
                    loader = loader.state_dict()
                split, cuts = divide_state(state, loader, self.place, per_rank)
                snapshot = StateSnapshot(
                    split, cuts, self._staging, self._fence, self.place.world_size, attempt
                )
            except Exception as error:
                snapshot = error  # the thread sends it to the other ranks
            self._save = save = Save(
                self._target,
                step,
                attempt.name,
                snapshot=snapshot,
                flush=Flush(self._budget),
                began_s=began_s,
                blocked_s=time.perf_counter() - began_s,
            )
            # The thread is stored first, so that the next call waits for it if an interrupt comes
            # during the start.
            self._task = BackgroundThread("penstock-checkpoint", lambda: self._finish_save(save))
            self._task.start_awaited()
        except BaseException:
            if self._task is None or self._task.call_off():  # it has not started: nothing stays
                self._task = None
                self._fence.take_down()
                if self._save is not None:
                    self._save.free_memory()
            raise
        if isinstance(snapshot, Exception):
            self._wait_until(None, until_held=True, raises=False)
            self._failure = None  # it is this one, as the ranks tell it
            raise snapshot
        return True

    def attach(self, optimizer: Any) -> None:
        """Let later saves copy the tensors that only this optimizer of torch changes behind
        training: its parameters, and its state for them. The optimizer's next step waits until the
        copy is done.

        Any other change of those tensors in place (an average copied back, `load_state_dict`) has
        to come before a save, or after `fence`.
        """
        self._check_usable()
        self._fence.attach(optimizer)

    def fence(self) -> None:
        """Return once the state of the last save has been copied: all of it may change then."""
        self._fence.wait()

    def prepare(self, state: Any, *, per_rank: Any = None) -> None:
        """Take the memory for such a state now, so that the first save takes no longer than others.
        Fresh memory costs many times what a copy does."""
        self._check_usable()
        self.wait()
        _, cuts = divide_state(state, None, self.place, per_rank)
        self._staging.reserve(sum(cut.padded_bytes for cut in cuts))

    def _finish_save(self, save: Save) -> Exception | None:
        """Finish a save in the thread behind training. With tiers, it is held, and drained later.
        Returns the error for the next call."""
        try:
            with closing(save.flush):
                if self._drain is not None:
                    return self._drain.hold(save)
                save.write(self._save_ranks)
                save.commit(self._save_ranks)
                self._record_commit(save)
                return None
        except Exception as error:
            return None if save.flush.stopped else error
        finally:
            save.free_memory()

    def _record_commit(self, save: Save) -> None:
        self.last = last = save.describe_commit(self.folder.storage.read_clock())
        self._pace.record_commit(save.step, save.began_s, last.blocked_s, last.seconds)
        if self.place.rank == 0:
            delete_old_after_commit(self.folder, self.keep, save.path)

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        until: Literal["committed", "held"] = "committed",
    ) -> CommittedSave | None:
        """Return once the saves are committed: the last such save. Raises the error of a save that
        failed.

        timeout_s:  StalledError if it takes longer; the error names the action that is waited for.
                    The save is still under way then.
        until:      "held" is enough if there are tiers: the save survives a kill of the job, and
                    its memory is free.
        """
        check_choice("until", until, ("committed", "held"))
        self._check_usable(closed=True)
        self._wait_until(timeout_s, until_held=until == "held")
        return self.last

    def _wait_until(
        self, timeout_s: float | None, *, until_held: bool = False, raises: bool = True
    ) -> None:
        """Wait for the saves under way, or until they are held. Raises the error of a failed save,
        once; it is noted for the next call unless `raises`."""
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, infinite=True)
        within = JoinDeadline(timeout_s)
        if self._save is not None and self._task is not None:
            within.join(self._task, self._save.step)
            self._failure = self._task.error or self._failure
            self._task = None
        if self._drain is not None and not until_held:
            self._drain.wait(self._note_failure, within)
        if raises:
            failed, self._failure = self._failure, None
            if failed is not None:  # no call comes between, and so no interrupt
                raise failed

    def _note_failure(self, error: Exception) -> None:
        self._failure = error

    def abandon(self, timeout_s: float | None = None) -> None:
        """Give up the save under way and return soon, once it has ended. The save is not committed,
        unless the commit had started; saves that are held stay held. For a job that has to end
        before a deadline; called on all ranks.

        timeout_s:  StalledError if it takes longer, because a hanging call to storage cannot be
                    ended. Neither `close` nor the end of the process waits for the save, and if
                    storage answers later, it is not committed.
        """
        self._check_usable(closed=True)
        if self._drain is not None:
            self._drain.stop(self._count)
        if self._save is not None and self._task is not None:
            self._save.flush.stop()
            self._task.give_up()
        self._wait_until(timeout_s, raises=False)
        self._failure = None

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
        """Advise how often to save, from the times of the last saves: see
        `penstock.checkpoint.interval`.

        mtbf_s:     mean time between failures of the job, or of a node if `nodes` is given.
        restart_s:  from a failure until training goes on.
        step_s:     of a training step; None measures it, from one call of `save` to the next.
        slowdown:   the part by which a step takes longer while a save is written, 0.03 is 3 %; not
                    measured.
        overhead:   the largest part of training's time that saves may take.

        Waits for the save under way, as `wait` does. Several ranks call it at the same time, and
        get the same advice: for the slowest rank. UsageError before a save has been committed.
        """
        self._check_usable()
        self.wait()

        def measure_costs() -> list[float]:
            own_costs = self._pace.compute_costs(step_s, slowdown)
            return [own_costs.blocked_s, own_costs.commit_s, own_costs.step_s]

        rank_costs = self._train_ranks.run_together(measure_costs)
        blocked_s, commit_s, slowest_s = map(max, zip(*rank_costs, strict=True))
        costs = Costs(blocked_s=blocked_s, commit_s=commit_s, step_s=slowest_s, slowdown=slowdown)
        return advise_interval(
            costs, Failures(mtbf_s=mtbf_s, nodes=nodes, restart_s=restart_s), overhead
        )

    # -- loading -----------------------------------------------------------------------------------

    def latest(self, *, fall_back: bool = False) -> Checkpoint | None:
        """Load the last committed checkpoint, or return None. See `load`."""
        try:
            return self.load(fall_back=fall_back)
        except MissingError:
            if self.folder.entries():
                raise
            return None

    def load(self, step: int | None = None, *, fall_back: bool = False) -> Checkpoint:
        """Load a committed checkpoint, by default the last, on any number of ranks.

        fall_back:  if it is damaged, warn and load the one before it.

        MissingError if there is none. FormatError if any byte of it was altered or cut: the message
        names the file and the piece, and the checkpoint before.
        """
        self.wait()
        rank, ranks = self.place.rank, self.place.world_size
        return load(self.folder.path, step, fall_back=fall_back, rank=rank, world_size=ranks)

    def stats(self) -> dict[str, Any]:
        """Report what this process got from storage, and with `local` how this rank uses tiers.

        storage:      by purpose, totals of this process: checkpoints, loaders and conversions
                      together (`penstock.engine.PurposeTotals`).
        held:         steps that are held and not committed yet.
        place:        where the last shard was written: a tier, or the repository.
        predicted_s:  by place, the predicted time until the shard's memory is free: the reason of
                      the choice. None without room or figures.
        bytes_per_s:  by place, as measured by all ranks of this host together.
        """
        tiers = {} if self._drain is None else self._drain.stats()
        return {"storage": PROCESS_QUEUE.stats()} | tiers

    def steps(self) -> list[int]:
        """List the steps of the committed checkpoints, in the order of their commits."""
        return [entry.step for entry in self.folder.entries()]

    # -- the rest ----------------------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = budget
        if self._save is not None:
            self._save.flush.adopt(budget)
        if self._drain is not None:
            self._drain.adopt(budget)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the saves under way, then let other jobs write to the folder. Raises as `wait`
        does; after a StalledError it is not closed. If an abandoned save still hangs, this does not
        wait for it, and the folder stays locked until the process ends."""
        if not self._released:
            if self._save is None or not self._save.flush.stopped:
                self._check_usable(closed=True)
                self._wait_until(timeout_s, raises=False)
            self._closed = True
            self._release()
        failed, self._failure = self._failure, None
        if failed is not None:
            raise failed

    def _release(self) -> None:
        """Release memory, tiers and folder. After an interrupt `close` calls this again."""
        self._fence.detach()
        self._staging.close()
        hangs = self._task is not None and self._task.is_alive()
        if self._drain is not None and not self._drain.under_way:
            self._drain.close()
        elif self._drain is not None:
            hangs = True
        if self._lock is not None and not hangs:
            self._lock.close()
        self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self, *, closed: bool = False) -> None:
        """Raise ForkError in a forked process; UsageError once it is closed, unless `closed`."""
        if os.getpid() != self._process:
            raise ForkError("these Checkpoints are the parent's: make new ones after the fork")
        if self._closed and not closed:
            raise UsageError("these Checkpoints are closed: make new ones")
