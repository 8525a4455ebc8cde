"""Jobs that save checkpoints, in virtual time, over modelled storage.

The ranks of each job run the code that production runs (`penstock.checkpoint`), each in threads of
which one runs at a time (`baton`). Their calls of storage are performed one by one, with faults
between any two of them. Oracles (`checkpoint_oracles`) look at the storage after each call that
changes it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

from penstock.budget import Budget
from penstock.checkpoint import Flush, LocalTier, Staging
from penstock.checkpoint.manifest import Attempt
from penstock.checkpoint.staging import Fence, StateSnapshot, divide_state
from penstock.engine import storage_errors
from penstock.engine.object_client import ObjectRefused
from penstock.errors import DataError, PenstockError, StorageError, UsageError, WorkerError
from penstock.ranks.place import Place
from penstock_sim.event_queue import EventQueue
from tests.virtual.baton import BatonThread, KilledError
from tests.virtual.checkpoint_oracles import CheckpointOracles, check_state, make_own, make_state
from tests.virtual.checkpoint_scenario import (
    MS,
    CheckpointFault,
    CheckpointFaultKind,
    CheckpointJob,
    CheckpointScenario,
    S,
)
from tests.virtual.checkpoint_storage import (
    FOLDER,
    OBJECT_CALLS,
    PREFIX,
    URL,
    Call,
    CalledStorage,
    VirtualStorage,
)
from tests.virtual.node import ScenarioError, require

_actions_max = 20_000
"""Most calls of a run; more are a loop that does not end."""
_silence_ns = 600 * S
"""Time after which ranks give up to wait for the others' texts."""
_retry_ns = 20 * S
_attempt = re.compile(rb'"attempt":"[0-9a-f]{7}([0-9a-f]{2})')
"""Name of a save: its job's last digit, and its number."""
_retries = 30

_READS = frozenset(
    {
        "list_folder",
        "find_path",
        "has_name",
        "is_link",
        "check_own_folder",
        "measure_file",
        "read_file",
        "read_lock",
        "measure_room",
        "list_objects",
        "fetch_objects",
        "check_shard",
        "read_pieces",
        "find_whole_shards",
    }
)
_WRITES = frozenset(
    {
        "write_file",
        "write_shard",
        "put_object",
        "upload_shard",
        "make_folder",
    }
)
_APART = frozenset(
    {
        "read_clock",
        "identify_host",
        "warn",
        "start_thread",
        "join",
        "exchange",
    }
)
"""Calls of which storage knows nothing, and what the threads of a process ask for."""
_REQUESTS = OBJECT_CALLS - _READS
_SYNCS = frozenset({"sync_folder", "write_file", "write_shard"})


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """Counts of a run."""

    virtual_ns: int
    actions: int
    commits: int
    failures: int


DECIDING: dict[str, tuple[str, ...]] = {
    "repository": ("Folder", "lock_repository"),
    "retention": ("delete_old_after_commit",),
    "object_repository": ("Prefix",),
    "tiers": (),
    "save": ("Ranks", "Save", "SaveTarget"),
    "held_saves": ("Drain", "open_tiers"),
    "loading": ("load_entry", "load_latest"),
}
"""Modules of `penstock.checkpoint` that decide, and what of them ranks and readers call."""


def gather_parts(modules: Mapping[str, Any]) -> SimpleNamespace:
    """Gather what ranks and readers call from these modules, by name."""
    names = ((module, name) for module, called in DECIDING.items() for name in called)
    return SimpleNamespace(**{name: getattr(modules[module], name) for module, name in names})


PARTS = gather_parts(
    {name: importlib.import_module(f"penstock.checkpoint.{name}") for name in DECIDING}
)
"""The shipped classes and functions."""


class _Task(BatonThread):
    """A thread of a process."""

    def __init__(self, process: _Process, work: Callable[[], Any], ask: Callable[..., Any]) -> None:
        super().__init__(work)
        self.process, self._ask_cluster = process, ask
        self.is_alive = True
        self.waiting: list[Callable[[], None]] = []

    @property
    def error(self) -> Exception | None:
        """The error that the work has returned."""
        require(not self.is_alive, "a task is asked for its error before it has ended")
        return self.value if isinstance(self.value, Exception) else None

    @error.setter
    def error(self, error: None) -> None:
        self.value = error

    def join(self) -> None:
        """Wait for its end, in another thread of the process."""
        self._ask_cluster(Call("join", (self,)))


@dataclass(eq=False)
class _Process:
    """A rank of a job, or a reader, whose job is -1."""

    job: int
    rank: int
    name: str
    faults: list[CheckpointFault]
    is_alive: bool = True
    actions: int = 0
    changes: int = 0
    puts: int = 0
    messages: int = 0
    stopped_until_ns: int = 0
    tasks: list[_Task] = field(default_factory=list)
    channels: list[_Channel] = field(default_factory=list)


class _Channel:
    """Exchanges of texts among the ranks of a job, one after the other."""

    def __init__(self, cluster: CheckpointCluster, ranks: int) -> None:
        self._cluster, self._ranks = cluster, ranks
        self._arrived: dict[int, tuple[_Task, str]] = {}
        self._round = 0
        self._is_broken = False

    def send(self, task: _Task, text: str, is_lost: bool) -> None:
        """Take the text of a rank, unless it has ended."""
        if not task.is_alive:
            return
        rank = task.process.rank
        require(rank not in self._arrived, f"{task.process.name} sends two texts at once")
        self._arrived[rank] = task, text
        if self._is_broken:
            self.fail()
            return
        number = self._round
        self._cluster.queue.add_in(_silence_ns, lambda: self._expire(number))
        if len(self._arrived) == self._ranks:
            self._round += 1
            arrived, self._arrived = self._arrived, {}
            texts = [arrived[rank][1] for rank in range(self._ranks)]
            for waiting, _ in arrived.values():
                if is_lost and waiting is task:
                    self._is_broken = True
                    self._fail(waiting)
                else:
                    self._cluster.resume_later(waiting, lambda: list(texts))

    def fail(self) -> None:
        """End the waiting of all ranks, now and later: a rank is gone."""
        self._is_broken = True
        arrived, self._arrived = self._arrived, {}
        for task, _ in arrived.values():
            self._fail(task)

    def _expire(self, number: int) -> None:
        if number == self._round and self._arrived:
            self.fail()

    def _fail(self, task: _Task) -> None:
        def fail() -> Any:
            raise WorkerError("the other ranks are lost")

        self._cluster.resume_later(task, fail)


class CheckpointCluster:
    """The parts of a run. parts: the classes and functions that decide; see `gather_parts`."""

    def __init__(
        self,
        scenario: CheckpointScenario,
        trace: Callable[[str], None] | None = None,
        parts: Any = None,
    ) -> None:
        self.scenario, self._parts = scenario, parts or PARTS
        self.queue = EventQueue()
        self._trace_line = trace
        self._draw = random.Random(f"checkpoint run {scenario.seed}")
        self._storage = VirtualStorage(scenario.hosts, scenario.has_conditions)
        self._oracles = CheckpointOracles(
            scenario, self._storage, self._open_repository, self._parts.load_entry, self._trace
        )
        self._budget = Budget()
        self._flush = Flush(self._budget)
        self._timed: dict[CheckpointFaultKind, list[CheckpointFault]] = {}
        for fault in scenario.faults:
            self._timed.setdefault(fault.kind, []).append(fault)
        self._processes: list[_Process] = []
        self._live_ranks: dict[int, list[_Process]] = {}
        self._actions = self._failures = 0
        self._running: _Task | None = None
        self._is_last = False  # the last job, in which nothing fails
        self._lied = False

    def run(self) -> CheckpointResult:
        """Run until nothing more happens, and clean up; raise ScenarioError for what is wrong."""
        for number, job in enumerate(self.scenario.jobs):
            self.queue.add(job.begin_ns, partial(self._start, number, job, 0))
        for fault in self.scenario.faults:
            if fault.kind is CheckpointFaultKind.POWER:
                self.queue.add(fault.at, self._cut_power)
        for number in range(self.scenario.readers):
            self._start_reader(number)
        self._drain()
        self._is_last = True
        last = len(self.scenario.jobs)
        job = CheckpointJob(max(each.ranks for each in self.scenario.jobs), 2, self.queue.now_ns)
        self._storage.files.is_lying = False
        self._start(last, job, 0)
        self._drain()
        self._oracles.check_end(last)
        return CheckpointResult(
            self.queue.now_ns, self._actions, len(self._oracles.committed), self._failures
        )

    def _drain(self) -> None:
        while self.queue.step():
            require(self._actions < _actions_max, "the run does not end")
        for process in self._processes:
            waits = process.is_alive and any(task.is_alive for task in process.tasks)
            require(not waits, f"{process.name} waits for ever")

    # -- processes -----------------------------------------------------------------------------

    def _start(self, number: int, job: CheckpointJob, tries: int) -> None:
        """Start the ranks of a job. If another job has the folder, it is tried again later."""
        self._trace(f"job {number} begins with {job.ranks} ranks")
        channels = [_Channel(self, job.ranks) for _ in range(3)]
        refused = SimpleNamespace(is_refused=False)
        ranks = []
        for rank in range(job.ranks):
            faults = [
                fault
                for fault in self.scenario.faults
                if (fault.job, fault.rank) == (number, rank) and not tries
            ]
            process = _Process(number, rank, f"job {number} rank {rank}", faults)
            process.channels = channels
            self._processes.append(process)
            ranks.append(process)
            self._spawn(process, partial(self._run_rank, process, job, refused))
        self._live_ranks[number] = ranks

        def try_again() -> None:
            self._start(number, job, tries + 1)

        def look() -> None:
            if any(process.is_alive for process in ranks):
                self.queue.add_in(_retry_ns, look)
            elif refused.is_refused and tries < _retries:
                try_again()

        self.queue.add_in(_retry_ns, look)

    def _spawn(self, process: _Process, work: Callable[[], Any]) -> _Task:
        task = _Task(process, work, self._ask)
        process.tasks.append(task)
        self.queue.add_in(1, lambda: self._advance(task, lambda: None))
        return task

    def _open_repository(self, storage: Any) -> Any:
        if self.scenario.is_folder:
            return self._parts.Folder(FOLDER, storage)
        return self._parts.Prefix(URL, PREFIX, storage)

    def _run_rank(self, process: _Process, job: CheckpointJob, refused: SimpleNamespace) -> None:
        """Run a rank of a job: open, load, save, close, as `Checkpoints` does."""
        place = Place(process.rank, job.ranks, "virtual")
        train, save_ranks, drain_ranks = (
            self._parts.Ranks(place, partial(self._exchange, channel))
            for channel in process.channels
        )
        storage = CalledStorage(self._ask)
        repository = self._open_repository(storage)
        writer, session = f"job {process.job}\n".encode(), f"{process.job:08x}"
        opened: list[Any] = []  # what is closed at the end
        has_tiers = bool(self.scenario.hosts) and job.uses_tiers

        def open_repository() -> None:
            if process.rank == 0:
                clear = not has_tiers
                opened.append(self._parts.lock_repository(repository, writer, clear))

        def load() -> int:
            try:
                checkpoint = self._parts.load_latest(repository, None, True, place)
            except DataError:
                return 0
            check_state(checkpoint, job.ranks)
            self._oracles.note_load(process, checkpoint.state["attempt"])
            return int(checkpoint.step)

        try:
            train.run_together(open_repository)
            lock = opened[0] if opened else None
            target = self._parts.SaveTarget(place, repository, lock)
            drain = None
            on_commit = self._make_on_commit(process, repository)
            if has_tiers:
                local = [LocalTier(f"/host-{process.rank % self.scenario.hosts}", 1 << 20)]
                tiers, last = self._parts.open_tiers(
                    local, target, train, writer, self._budget, storage
                )
                opened.append(tiers)
                target = target._replace(tiers=tiers)
                drain = self._parts.Drain(
                    tiers,
                    repository.path,
                    save_ranks,
                    drain_ranks,
                    self._budget,
                    last,
                    on_commit,
                )
            steps = train.run_together(load)
            staging = Staging(threads=1)
            for number in range(1, job.saves + 1):
                attempt = Attempt(session, number)
                save = self._make_save(target, steps[0] + number, attempt, staging)
                self._save(process, save, save_ranks, drain, on_commit)
            if drain is not None:
                failures: list[Exception] = []
                drain.wait(failures.append)
                for error in failures[-1:]:
                    self._trace(f"{process.name}: a save was not drained: {error}")
        except (PenstockError, OSError) as error:
            self._trace(f"{process.name} ends: {type(error).__name__}: {error}")
            refused.is_refused |= (
                isinstance(error, UsageError) and process.job not in self._oracles.claims
            )
        finally:
            for each in reversed(opened):
                each.close()

    def _make_save(self, target: Any, step: int, attempt: Any, staging: Any) -> Any:
        split, cuts = _divide_state(attempt.name, step, target.place)
        snapshot = StateSnapshot(
            split, list(cuts), staging, Fence(), target.place.world_size, attempt
        )
        return self._parts.Save(
            target, step, attempt.name, snapshot=snapshot, flush=self._flush, began_s=0.0
        )

    def _save(self, process: _Process, save: Any, ranks: Any, drain: Any, on_commit: Any) -> None:
        error: Exception | None = None
        try:
            if drain is not None:
                error = drain.hold(save)
            else:
                save.write(ranks)
                save.commit(ranks)
                on_commit(save)
        except UsageError as failed:
            self._oracles.check_replaced(process, failed)
            raise
        except WorkerError:
            raise
        except PenstockError as failed:  # training goes on, and saves again
            error = failed
        else:
            if process.rank == 0:
                self._oracles.note_held(process, save.attempt)
        finally:
            save.free_memory()
        if error is not None:
            self._trace(f"{process.name}: {type(error).__name__}: {error}")

    def _make_on_commit(self, process: _Process, repository: Any) -> Any:
        def on_commit(save: Any) -> None:
            self._oracles.note_commit(process, save.attempt)
            if process.rank == 0:
                keep = self.scenario.keep
                self._parts.delete_old_after_commit(repository, keep, save.path)

        return on_commit

    def _start_reader(self, number: int) -> None:
        """Start a process that loads the latest checkpoint again and again."""
        process = _Process(-1, number, f"reader {number}", [])
        self._processes.append(process)

        def read() -> None:
            repository = self._open_repository(CalledStorage(self._ask))
            for _ in range(6):
                place = Place(0, self._draw.randint(1, 3), "virtual")
                try:
                    checkpoint = self._parts.load_latest(
                        repository, None, bool(self._draw.randrange(2)), place
                    )
                except (PenstockError, OSError) as error:
                    self._trace(f"{process.name}: {type(error).__name__}: {error}")
                else:
                    check_state(checkpoint, place.world_size)

        def begin() -> None:
            self._spawn(process, read)

        self.queue.add(int(self.scenario.delay_ns * self._draw.uniform(0, 300)), begin)

    def _kill(self, process: _Process) -> None:
        self._trace(f"{process.name} is killed")
        self._failures += 1
        self._end(process)
        for task in process.tasks:
            if task.is_alive:
                self._end_task(task)

    def _end(self, process: _Process) -> None:
        """End a process: its locks are free, and other ranks notice after a while."""
        process.is_alive = False
        self._storage.files.free_locks(process)

        def notice() -> None:
            for channel in process.channels:
                channel.fail()

        self.queue.add_in(self._delay_ns(), notice)

    def throw_away(self) -> None:
        """End the steps that are left after a failure."""
        for process in self._processes:
            for task in process.tasks:
                if task.is_alive:
                    self._end_task(task)

    def _end_task(self, task: _Task) -> None:
        """End a thread of a process that is no more: its later calls are not performed."""
        task.is_alive, self._running = False, task
        task.kill()

    def _cut_power(self) -> None:
        if self._is_last:
            return
        self._trace("the power is cut")
        self._oracles.is_spoiled |= self._lied
        for process in self._processes:
            if process.is_alive and process.job >= 0:
                self._kill(process)
        self._storage.files.cut_power(self._draw)
        self._oracles.look(None)

    # -- calls ---------------------------------------------------------------------------------

    def _ask(self, call: Call) -> Any:
        """Return the outcome of a call, in the thread that runs now."""
        task = self._running
        assert task is not None
        if not task.is_alive:
            raise KilledError
        return task.ask(call)

    def _exchange(self, channel: _Channel, text: str) -> Any:
        return self._ask(Call("exchange", (channel, text)))

    def _advance(self, task: _Task, perform: Callable[[], Any]) -> None:
        """Give a task the outcome of its call, and begin its next one."""
        if not (task.is_alive and task.process.is_alive):
            return
        failure: Exception | None = None
        try:
            outcome = perform()
        except (ScenarioError, AssertionError):
            raise
        except Exception as error:
            failure = error
        self._running = task
        try:
            call = task.resume(None if failure is not None else outcome, failure)
        except (ScenarioError, AssertionError):
            raise
        except Exception as error:
            raise ScenarioError(f"{task.process.name}: {type(error).__name__}: {error}") from error
        if task.is_over:
            self._finish(task)
        else:
            self._begin(task, call)

    def _finish(self, task: _Task) -> None:
        task.is_alive = False
        for wake in task.waiting:
            wake()
        process = task.process
        if process.is_alive and not any(each.is_alive for each in process.tasks):
            self._end(process)

    def resume_later(self, task: _Task, perform: Callable[[], Any]) -> None:
        """Give a task an outcome after a delay."""
        self.queue.add_in(self._delay_ns(), lambda: self._advance(task, perform))

    def _begin(self, task: _Task, call: Call) -> None:
        process = task.process
        self._actions += 1
        if call.name not in _APART:
            delay_ns = self._delay_ns()
            stalled = self._find_own(process, CheckpointFaultKind.STALL, process.actions + 1)
            if stalled is not None:
                delay_ns += stalled.length_ns
            self.queue.add_in(delay_ns, lambda: self._take_turn(task, call))
            return
        if call.name == "exchange":
            channel, text = call.args
            process.messages += 1
            lost = self._find_own(process, CheckpointFaultKind.LOSE, process.messages)
            is_lost = lost is not None
            self.queue.add_in(self._delay_ns(), lambda: channel.send(task, text, is_lost))
            return
        if call.name == "join" and call.args[0].is_alive:
            call.args[0].waiting.append(lambda: self.resume_later(task, lambda: None))
            return
        outcome: Any = None
        match call:
            case Call("read_clock"):
                outcome = self.queue.now_ns / S
            case Call("identify_host"):
                outcome = "hosts"
            case Call("warn", (text,)):
                self._trace(f"{process.name} warns: {text}")
                if "are made without" in text:  # what is held may not survive from now on
                    self._oracles.note_unheld(process.job)
            case Call("start_thread", (_, work)):
                outcome = self._spawn(process, work)
        self.queue.add_in(0, lambda: self._advance(task, lambda: outcome))

    def _take_turn(self, task: _Task, call: Call) -> None:
        """Perform a call of storage, unless the process ends or is stopped before."""
        process = task.process
        if not (process.is_alive and task.is_alive):
            return
        if process.stopped_until_ns > self.queue.now_ns:
            self.queue.add(process.stopped_until_ns, lambda: self._take_turn(task, call))
            return
        process.actions += 1
        if stop := self._find_own(process, CheckpointFaultKind.STOP, process.actions):
            self._trace(f"{process.name} is stopped")
            process.stopped_until_ns = self.queue.now_ns + stop.length_ns
            self.queue.add(process.stopped_until_ns, lambda: self._take_turn(task, call))
            return
        if kill := self._find_own(process, CheckpointFaultKind.KILL, process.actions):
            how = kill.extra % 3
            if how and call.name != "take_lock":
                self._perform_quietly(process, call, 1.0 if how == 1 else 0.5)
            self._kill(process)
            return
        self._advance(task, lambda: self._perform(process, call))

    def _perform_quietly(self, process: _Process, call: Call, torn: float) -> None:
        """Perform a call whose outcome nobody learns."""
        if torn < 1 and call.name in OBJECT_CALLS:
            return  # an object is there whole, or not at all
        with contextlib.suppress(PenstockError, OSError, ObjectRefused):
            self._change(process, call, torn)

    def _perform(self, process: _Process, call: Call) -> Any:
        if self._trace_line is not None:
            self._trace(f"{process.name}: {_describe(call)}")
        self._fail(process, call)
        self._storage.files.is_lying = bool(self._find_now(CheckpointFaultKind.LIE))
        self._lied |= self._storage.files.is_lying and call.name in _SYNCS
        outcome = self._change(process, call, 1.0)
        damages = self._find_now(CheckpointFaultKind.DAMAGE)
        if damages and self._draw.random() < 0.4:
            # Not of more faults: then seeds that have found something would find it no more.
            aims = damages[0].extra % 8 == 4
            outcome = self._damage(call, outcome, aims)
        return outcome

    def _fail(self, process: _Process, call: Call) -> None:
        """Raise the error of a call that fails now; a part of it may have happened."""
        is_change = call.name not in _READS
        process.changes += is_change
        if not (self._timed or process.faults or call.name in _REQUESTS):
            return
        failing = [
            fault
            for fault in self._find_now(CheckpointFaultKind.FAIL)
            if not (self._actions * 40503 + fault.extra) % (2 + fault.extra % 6)
        ]
        is_full = self._find_now(CheckpointFaultKind.FULL) and call.name in _WRITES
        late = (
            self._find_now(CheckpointFaultKind.LATE)
            if call.name in _REQUESTS and self._draw.random() < 0.3
            else []
        )
        is_one = (
            is_change
            and self._find_own(process, CheckpointFaultKind.ERROR, process.changes) is not None
        )
        is_unanswered = False
        if call.name == "put_object":
            process.puts += 1
            kind = CheckpointFaultKind.UNANSWERED
            is_unanswered = self._find_own(process, kind, process.puts) is not None
        if not (failing or is_full or late or is_one or is_unanswered):
            return
        if call.name in ("is_link", "has_name", "check_own_folder"):
            return
        self._failures += 1
        self._trace(f"{process.name}: this fails")
        if late or is_unanswered:
            is_put = call.name == "put_object"
            can_be_late = self.scenario.has_conditions or not is_put  # else it overwrites another
            if self._draw.random() < 0.6 or not can_be_late:
                self._perform_quietly(process, call, 1.0)
                if self._draw.random() < 0.4:  # the client asked again
                    self._change(process, call, 1.0)
            else:
                late_ns = self.scenario.delay_ns * self._draw.choice(
                    (1, 10, 100) if late else (1, 10)
                )
                self.queue.add_in(late_ns, lambda: self._perform_quietly(process, call, 1.0))
            raise ObjectRefused(errno.ETIMEDOUT, "no answer")
        can_tear = call.name in _WRITES and call.name not in OBJECT_CALLS
        if can_tear and self._draw.random() < 0.7:
            self._perform_quietly(process, call, self._draw.choice((0.0, 0.5)))
        elif self._draw.random() < 0.4 and call.name not in _READS | {"take_lock"}:
            self._perform_quietly(process, call, 1.0)  # done, and the answer was lost
        code = errno.ENOSPC if is_full else errno.EIO
        if call.name in OBJECT_CALLS:
            raise ObjectRefused(code, "503")
        if call.name in ("check_shard", "read_pieces", "find_whole_shards"):
            raise StorageError("storage cannot be read")
        refusal = OSError(code, "No space left on device" if is_full else "Input/output error")
        if call.name in ("write_shard", "sync_folder"):
            with storage_errors(call.args[0]):
                raise refusal
        raise refusal

    def _damage(self, call: Call, outcome: Any, aims: bool) -> Any:
        self._oracles.is_damaged = True
        if call.name == "read_file" and outcome:
            return _flip(outcome, self._draw, aims)
        if call.name == "fetch_objects":
            return [data and _flip(data, self._draw, aims) for data in outcome]
        if call.name in ("check_shard", "read_pieces"):
            raise DataErrorOfReading("the bytes that were read are damaged")
        return outcome

    def _change(self, process: _Process, call: Call, torn: float) -> Any:
        """Perform a call on the modelled storage, and look at what a reader would see."""
        self._oracles.check_removal(process, call)
        takes_over = self._takes_repository(call)
        outcome = self._storage.perform(call, process, torn)
        if takes_over:
            self._oracles.claims.append(process.job)
        if call.name not in _READS:
            self._oracles.look(process)
        return outcome

    def _takes_repository(self, call: Call) -> bool:
        if call.name == "take_lock":
            return bool(call.args[1] == FOLDER)
        if call.name != "put_object" or call.args[1][:14] != b"penstock claim":
            return False
        # After a long stop a claim may take a number that was removed: others have gone on.
        indexes = (key for key in self._storage.bucket.objects if key.endswith(".index"))
        return bool(call.args[0] >= max(indexes, default=""))

    def _find_now(self, kind: CheckpointFaultKind) -> list[CheckpointFault]:
        faults = self._timed.get(kind)
        if faults is None or self._is_last:
            return []
        now_ns = self.queue.now_ns
        return [fault for fault in faults if fault.at <= now_ns < fault.at + fault.length_ns]

    def _find_own(
        self, process: _Process, kind: CheckpointFaultKind, number: int
    ) -> CheckpointFault | None:
        for fault in process.faults:
            if fault.kind is kind and fault.at + 1 == number:
                process.faults.remove(fault)
                self._failures += 1
                return fault
        return None

    def _delay_ns(self) -> int:
        return int(self.scenario.delay_ns * self._draw.expovariate(1)) + MS // 100

    def _trace(self, text: str) -> None:
        if self._trace_line is not None:
            self._trace_line(f"{self.queue.now_ns / 1e6:14.3f} ms  {text}")


class DataErrorOfReading(DataError):
    """The error of bytes that were damaged on their way."""


def run_checkpoint_scenario(
    scenario: CheckpointScenario,
    trace: Callable[[str], None] | None = None,
    parts: Any = None,
) -> CheckpointResult:
    """Run a scenario; ScenarioError if an oracle finds a fault."""
    cluster = CheckpointCluster(scenario, trace, parts)
    try:
        return cluster.run()
    except AssertionError as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(f"an assertion failed: {error}") from error
    finally:
        cluster.throw_away()


@lru_cache(1 << 12)
def _divide_state(attempt: str, step: int, place: Place) -> Any:
    """Divide what an attempt saves. Attempts of many runs have the same name and state."""
    return divide_state(make_state(attempt, step), None, place, make_own(attempt, place.rank))


def _flip(data: bytes, draw: random.Random, aims: bool) -> bytes:
    """Flip a bit. aims: where it makes the name of a save that of another one, if it has a name."""
    name = _attempt.search(data) if aims else None
    at = draw.randrange(*name.span(1)) if name else draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _describe(call: Call) -> str:
    parts = [str(value) for value in call.args if isinstance(value, str | list | bool)]
    return " ".join([call.name, *parts])
