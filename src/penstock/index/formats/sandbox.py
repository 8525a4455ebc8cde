"""Calls in another process, for libraries in C that damaged files can crash.

The process is a fresh interpreter. It has the library, and nothing of the file: what it wants to
read it asks for, and the store of the caller's process answers, so that every kind of store works
and errors of storage keep their names. Messages are pickles over its standard input and output.

This is no jail. A crash ends the other process instead of the job; a file that takes the other
process over can take over the job.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from ... import limits
from ...engine import StoreFile
from ...errors import FormatError, PenstockError, UsageError, WorkerError

P = ParamSpec("P")
T = TypeVar("T")

_START = (
    "import pickle, sys\n"
    "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
    "from penstock.index.formats.sandbox import serve\n"
    "serve()\n"
)


class Apart:
    """One other process, for one call at a time; a context, after which it is gone.

    what:     the library, for messages.
    silent_s: how long the other process may go without an end and without reading.
    """

    def __init__(self, what: str, silent_s: int = limits.apart_silent_s) -> None:
        self.what, self.silent_s = what, silent_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._end()

    def call(
        self,
        source: StoreFile,
        function: Callable[Concatenate[StoreFile, P], T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """What the function makes of a source, and the errors that it raises.

        Function, arguments and result have to be picklable. A crash is a FormatError; so is a
        process that is silent for too long.
        """
        with self._lock:
            try:
                self._send((source.path, source.size, self.silent_s, function, args, options))
                while True:
                    kind, value = self._receive()
                    if kind != "read":
                        break
                    self._send(_answer(source, *value))
            except (EOFError, BrokenPipeError, pickle.UnpicklingError):
                raise self._gone(source) from None
            except BaseException:  # the other process is in the middle of something
                self._end()
                raise
        if kind == "failed":
            raise value
        found: T = value
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        if not sys.executable:
            raise UsageError(
                f"{self.what} runs in a Python interpreter of its own, and none is known here "
                f"(sys.executable): give isolate=False"
            )
        process = subprocess.Popen(
            [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._process = process
        self._send(sys.path)
        return process

    def _send(self, message: Any) -> None:
        process = self._process or self._start()
        assert process.stdin is not None
        _write(process.stdin, message)

    def _receive(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)

    def _end(self) -> int:
        """End the other process and wait for it; how it ended."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.kill()
        code = process.wait()
        with contextlib.suppress(BrokenPipeError):  # what was still to be sent
            process.stdin.close()
        return code

    def _gone(self, source: StoreFile) -> PenstockError:
        """The error for a process that ended by itself."""
        process = self._process
        assert process is not None
        code = process.wait()  # its output ended: so has it, or it is about to
        self._end()
        if code == -signal.SIGALRM:
            return FormatError(
                f"{source.path}: {self.what} did not get any further for {self.silent_s} s: the "
                f"file is damaged; isolate=False waits for longer"
            )
        if code == -signal.SIGKILL:
            return WorkerError(
                f"{source.path}: the process of {self.what} was killed (signal 9): is there "
                f"enough memory?"
            )
        if code < 0:
            return FormatError(
                f"{source.path}: {self.what} crashed (signal {-code}) on this file: it is damaged"
            )
        return WorkerError(
            f"{source.path}: the process of {self.what} ended by itself (status {code}); what it "
            f"said is above; isolate=False goes without it"
        )


def _write(stream: IO[bytes], message: Any) -> None:
    stream.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    stream.flush()


def _answer(source: StoreFile, offset: int, length: int) -> tuple[bool, Any]:
    try:
        return True, source.read(offset, length)
    except PenstockError as error:
        return False, error


def limit_memory(fraction: float) -> None:
    """Bound what this process may allocate, as a fraction of the machine's memory.

    A damaged file of 4 KiB can make the HDF5 library take 24 GB; it is told that there is no more.
    """
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(machine_bytes * fraction)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


# -- in the other process --------------------------------------------------------------------------


def serve() -> None:
    """Answer calls until the standard input ends.

    The clock that ends a silent process is its own, so that one whose caller is gone ends too.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(limits.apart_memory_fraction)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller hears of it, and ends this process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    while True:
        try:
            path, size, silent_s, function, args, options = pickle.load(asked)
        except EOFError:
            return

        def fetch(offset: int, length: int, silent_s: int = silent_s) -> bytes:
            signal.alarm(0)  # slow storage is not the library's fault
            _write(answers, ("read", (offset, length)))
            there, found = pickle.load(asked)
            signal.alarm(silent_s)
            if not there:
                raise found
            data: bytes = found
            return data

        signal.alarm(silent_s)
        try:
            reply = "done", function(StoreFile(path, size, fetch, -1), *args, **options)
        except Exception as error:
            reply = "failed", error
        signal.alarm(0)
        _write(answers, reply)
