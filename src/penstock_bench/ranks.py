"""Ranks: the processes that emulate accelerators; their start, meeting points and end.

`launch` gives the work to the ranks that mpiexec or torchrun started, or to processes that it forks
itself: nothing needs MPI. On one host the ranks meet at a barrier in shared memory, within a
microsecond; ranks on several hosts meet by messages to rank 0 if torchrun started them, and by MPI
if mpiexec did. If a rank fails, the process that started the ranks ends the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, Protocol, TypeVar

from penstock.errors import PenstockError, UsageError, WorkerError, say_install
from penstock.ranks import Place, detect

T = TypeVar("T")

_LINE = 8
"""Words of 64 bits in a line of the processor's cache: each rank writes to another line."""

_WATCHED, _YIELDED = 200, 1200
"""Looks at a late rank's word: first without a pause, then yielding the core, then asleep."""

_DOZE_S = 20e-6
_GRACE_S = 2.0
"""Time in which ranks may end after one has failed."""

_MEET_S = 60.0
"""Time in which ranks must find rank 0."""


class Crew(Protocol):
    """The ranks of a run, seen from one of them. All calls are collective: every rank makes them,
    in the same sequence."""

    rank: int
    ranks: int
    host: str
    hosts: int
    first_of_host: bool

    def barrier(self) -> None:
        """Return when all ranks have come."""
        ...

    def gather(self, value: Any) -> list[Any] | None:
        """Collect the values of all ranks, by rank, on rank 0; None on the others."""
        ...

    def share(self, value: T) -> T:
        """Send rank 0's value to all ranks."""
        ...


def gather_everywhere(crew: Crew, value: Any) -> list[Any]:
    """Collect the values of all ranks, by rank, on all ranks."""
    return crew.share(crew.gather(value)) or []


def detect_launch(environ: Mapping[str, str]) -> Place | None:
    """The place of this process among ranks that mpiexec or torchrun started; None if it was
    started alone."""
    place = detect(None, None, environ, {})
    return None if place.source in ("default", "Slurm") else place


def launch(ranks: int | None, work: Callable[[Crew], T]) -> T | None:
    """Have all ranks do the work; return rank 0's result, and None in other processes.

    ranks:  processes to start if no launcher did; by default one.

    Raises the error of a rank, once the others have ended too; WorkerError names a rank that died.
    """
    place = detect_launch(os.environ)
    if place is None:
        return _fork_ranks(1 if ranks is None else ranks, work)
    if ranks not in (None, place.world_size):
        raise UsageError(
            f"--ranks is {ranks}, and {place.source} started {place.world_size}: leave it out"
        )
    if place.source == "torchrun":
        return _do_work(work, _meet_torchrun(place, os.environ))
    return _run_with_mpi(work)


def _do_work(work: Callable[[Crew], T], crew: Crew) -> T | None:
    result = work(crew)
    return result if crew.rank == 0 else None


# -- ranks of one host, or few ---------------------------------------------------------------------


class Barrier:
    """A barrier in memory that processes share: each rank counts its rounds in another word.

    page:  at least `barrier_bytes(ranks)` of zeros.
    """

    def __init__(self, page: mmap.mmap, rank: int, ranks: int) -> None:
        self._rounds = memoryview(page).cast("q")
        self._line = _LINE * rank
        self._others = [_LINE * other for other in range(ranks) if other != rank]
        self._round = 0

    def __call__(self) -> None:
        rounds, self._round = self._rounds, self._round + 1
        rounds[self._line] = self._round
        for other in self._others:
            if rounds[other] < self._round:
                self._wait(other)

    def _wait(self, other: int) -> None:
        looks, rounds, wanted = 0, self._rounds, self._round
        while rounds[other] < wanted:
            looks += 1
            if looks > _YIELDED:
                time.sleep(_DOZE_S)
            elif looks > _WATCHED:
                time.sleep(0)  # lets go of the interpreter's lock; yielding alone does not
                os.sched_yield()


def barrier_bytes(ranks: int) -> int:
    """Bytes of memory that a barrier needs."""
    return 8 * _LINE * ranks


class Linked:
    """Ranks with a connection to rank 0 each. barrier: None makes them meet by messages."""

    def __init__(
        self,
        rank: int,
        links: list[Connection],
        barrier: Callable[[], None] | None,
        ranks: int,
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self._links = links
        self.barrier = barrier or self._by_messages
        self.host = socket.gethostname()
        names = gather_everywhere(self, self.host)
        self.hosts = len(set(names))
        self.first_of_host = names.index(names[rank]) == rank

    def gather(self, value: Any) -> list[Any] | None:
        with _explain_loss():
            if self.rank:
                self._links[0].send(value)
                return None
            return [value, *(link.recv() for link in self._links)]

    def share(self, value: T) -> T:
        with _explain_loss():
            if self.rank:
                shared: T = self._links[0].recv()
                return shared
            for link in self._links:
                link.send(value)
            return value

    def _by_messages(self) -> None:
        self.gather(None)
        self.share(None)


@contextlib.contextmanager
def _explain_loss() -> Iterator[None]:
    """Raise WorkerError where the connection to another rank has ended."""
    try:
        yield
    except (EOFError, OSError) as error:
        reason = error if isinstance(error, OSError) else "it closed the connection"
        raise WorkerError(
            f"another rank has ended ({reason}): its own message, above, says why"
        ) from None


def _fork_ranks(ranks: int, work: Callable[[Crew], T]) -> T | None:
    """Do the work in forked processes; this one starts them, waits, and ends them."""
    page = mmap.mmap(-1, barrier_bytes(ranks))
    links = [Pipe() for _ in range(ranks - 1)]
    reports = [Pipe(duplex=False) for _ in range(ranks)]
    _flush_output()
    starter = os.getpid()
    pids: list[int] = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _run_rank(rank, ranks, starter, page, links, reports, work)
        pids.append(pid)
    for end in (*(end for pair in links for end in pair), *(sender for _, sender in reports)):
        end.close()
    receivers = [receiver for receiver, _ in reports]
    try:
        with _end_on_signal():
            result: T | None = _supervise(pids, receivers)
        return result
    finally:
        _end(pids)
        for receiver in receivers:
            receiver.close()


def _flush_output() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


@contextlib.contextmanager
def _end_on_signal() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, and with it the ranks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # 128 + SIGTERM
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_rank(
    rank: int,
    ranks: int,
    starter: int,
    page: mmap.mmap,
    links: list[tuple[Connection, Connection]],
    reports: list[tuple[Connection, Connection]],
    work: Callable[[Crew], Any],
) -> NoReturn:
    """Be a forked rank: work, report, end."""
    code = 1
    try:
        os.setpgid(0, 0)  # its workers end with it
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that it tidies up
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != starter:  # it ended before prctl
            os._exit(1)
        rank_links = [root for root, _ in links] if rank == 0 else [links[rank - 1][1]]
        sender = reports[rank][1]
        for end in (end for pair in (*links, *reports) for end in pair):
            if end is not sender and not any(end is link for link in rank_links):
                end.close()
        crew = Linked(rank, rank_links, Barrier(page, rank, ranks), ranks)
        try:
            result = work(crew)
            _flush_output()
            sender.send((None, result if rank == 0 else None))
            code = 0
        except BaseException as error:  # SystemExit, too: others wait for this rank
            _flush_output()
            sender.send((_describe_error(rank, ranks, error), None))
    finally:
        os._exit(code)  # a fork must not run its parent's exit handlers


def _describe_error(rank: int, ranks: int, error: BaseException) -> PenstockError:
    """A rank's error, in a form that another process can raise."""
    if isinstance(error, PenstockError):
        try:
            pickle.loads(pickle.dumps(error))
            return error
        except Exception:
            return WorkerError(str(error))
    text = "".join(traceback.format_exception(error)).rstrip()
    where = f"rank {rank} of {ranks}" if ranks > 1 else "the run"
    return WorkerError(f"{where} failed with {type(error).__name__}: {error}\n{text}")


def _supervise(pids: list[int], receivers: list[Connection]) -> Any:
    """Wait for all ranks; return rank 0's result, or raise the error of the first that fails."""
    result: Any = None
    pending = list(receivers)
    while pending:
        for ready in wait(pending):
            receiver = next(pipe for pipe in pending if pipe is ready)
            pending.remove(receiver)
            rank = receivers.index(receiver)
            try:
                error, rank_result = receiver.recv()
            except (EOFError, OSError):
                raise _explain_death(rank, len(pids), pids[rank]) from None
            if error is not None:
                raise error
            result = rank_result if rank == 0 else result
    return result


def _explain_death(rank: int, ranks: int, pid: int) -> WorkerError:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    hint = (
        "out of memory? take fewer ranks, smaller batches or less prefetch"
        if code == -signal.SIGKILL
        else "its own messages, above, say more"
    )
    return WorkerError(f"rank {rank} of {ranks} (pid {pid}) {how}, the others were ended: {hint}")


def _end(pids: list[int]) -> None:
    """End the remaining ranks and their workers; return when they have ended."""
    deadline_s = time.monotonic() + _GRACE_S
    alive = list(pids)
    for sent in (None, signal.SIGTERM, signal.SIGKILL):  # None: see who has ended already
        for pid in alive if sent is not None else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, sent or 0)
        while alive and (sent is not signal.SIGTERM or time.monotonic() < deadline_s):
            alive = [pid for pid in alive if not _has_ended(pid)]
            if sent is None:
                break
            time.sleep(0.005 if alive else 0)
    for pid in pids:  # workers that outlived their rank
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


# -- ranks of torchrun -----------------------------------------------------------------------------


def _meet_torchrun(place: Place, environ: Mapping[str, str]) -> Linked:
    """Connect the ranks that torchrun started; torch itself is not needed."""
    rank, ranks = place.rank, place.world_size
    if ranks == 1:
        return Linked(0, [], lambda: None, 1)
    host, port = environ.get("MASTER_ADDR", "127.0.0.1"), int(environ.get("MASTER_PORT", "29500"))
    alone = int(environ.get("LOCAL_WORLD_SIZE", "0")) == ranks
    if alone:
        name = f"\0penstock-bench-{environ.get('TORCHELASTIC_RUN_ID', '')}-{port}"
        family, address = socket.AF_UNIX, name
    else:  # beside the port that torchrun itself has
        family, address = socket.AF_INET, (host, port + 1)  # type: ignore[assignment]
    if rank:
        links = [_connect(family, address)]
        links[0].sendall(rank.to_bytes(8, "little"))
    else:
        links = _accept_ranks(family, ("", port + 1) if not alone else address, ranks)
    crew = Linked(rank, [Connection(link.detach()) for link in links], None, ranks)
    if alone:
        crew.barrier = Barrier(_share_page(crew), rank, ranks)
    return crew


def _accept_ranks(family: int, address: Any, ranks: int) -> list[socket.socket]:
    """Accept the connections of the other ranks; return them by rank."""
    links: dict[int, socket.socket] = {}
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        if family == socket.AF_INET:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # restart at once
        try:
            listener.bind(address)
        except OSError as error:
            raise WorkerError(
                f"rank 0 cannot listen at {address!r} ({error.strerror}), beside the port of"
                " torchrun: give torchrun another --master-port"
            ) from None
        listener.listen(ranks)
        listener.settimeout(_MEET_S)
        while len(links) < ranks - 1:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                missing = sorted(set(range(1, ranks)) - set(links))
                raise WorkerError(
                    f"after {_MEET_S:.0f} s ranks {missing} had not come to rank 0: did they start?"
                ) from None
            link.settimeout(None)
            if family == socket.AF_INET:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small messages
            with _explain_loss():
                hello = link.recv(8, socket.MSG_WAITALL)
                if len(hello) < 8:
                    raise EOFError
            links[int.from_bytes(hello, "little")] = link
    return [links[rank] for rank in sorted(links)]


def _connect(family: int, address: Any) -> socket.socket:
    deadline_s = time.monotonic() + _MEET_S
    while True:
        link = socket.socket(family, socket.SOCK_STREAM)
        try:
            link.connect(address)
        except OSError as error:
            link.close()
            if time.monotonic() > deadline_s:
                raise WorkerError(
                    f"rank 0 did not answer at {address!r} within {_MEET_S:.0f} s ({error})"
                ) from None
            time.sleep(0.02)  # rank 0 does not listen yet
            continue
        if family == socket.AF_INET:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small messages
        return link


def _share_page(crew: Linked) -> mmap.mmap:
    """Memory without a name that rank 0 makes; the others open it through /proc."""
    memory = os.memfd_create("penstock-bench-barrier") if crew.rank == 0 else -1
    if crew.rank == 0:
        os.ftruncate(memory, barrier_bytes(crew.ranks))
    with open(crew.share(f"/proc/{os.getpid()}/fd/{memory}"), "r+b") as file:
        page = mmap.mmap(file.fileno(), barrier_bytes(crew.ranks))
    crew.gather(None)  # rank 0 keeps it until all have it
    if crew.rank == 0:
        os.close(memory)
    return page


# -- ranks of mpiexec ------------------------------------------------------------------------------


class _Mpi:
    """Ranks that mpiexec started."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.rank, self.ranks = world.Get_rank(), world.Get_size()
        self.barrier = world.Barrier
        self.host = socket.gethostname()
        names = world.allgather(self.host)
        self.hosts = len(set(names))
        self.first_of_host = names.index(names[self.rank]) == self.rank

    def gather(self, value: Any) -> list[Any] | None:
        values: list[Any] | None = self._world.gather(value, 0)
        return values

    def share(self, value: T) -> T:
        shared: T = self._world.bcast(value, 0)
        return shared


def _run_with_mpi(work: Callable[[Crew], T]) -> T | None:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise UsageError(
            f"mpiexec started this, which needs mpi4py ({error}): {say_install('mpi4py', 'mpi')}, "
            "or leave mpiexec out and give --ranks"
        ) from None
    world = MPI.COMM_WORLD
    crew = _Mpi(world)
    try:
        return _do_work(work, crew)
    except BaseException as error:  # SystemExit, too: others wait for this rank
        told = _describe_error(crew.rank, crew.ranks, error)
        print(f"penstock: rank {crew.rank}: {told}", file=sys.stderr, flush=True)
        world.Abort(1)
        raise
