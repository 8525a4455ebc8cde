"""Files for libraries: file objects over a store, and calls in a process that damage may crash.

The process of a `Sandbox` is a fresh interpreter. It has the library, but not the file: it asks for
the bytes to read, and the store of the caller's process answers. So every kind of store works, and
storage errors keep their types. Messages are pickles over its standard input and output.

This is no security boundary. A crash ends the other process instead of the job, but a file that
takes over the other process can take over the job.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from ... import limits
from ...engine.store import StoreFile
from ...errors import FormatError, PenstockError, UsageError, WorkerError

_BLOCK_BYTES = 1 << 18
_BLOCKS_KEPT = 64
P = ParamSpec("P")
T = TypeVar("T")

_START = (
    "import pickle, sys\n"
    "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
    "from penstock.index.formats.sandbox import serve\n"
    "serve()\n"
)


class BlockFile(io.RawIOBase):
    """File object for h5py and zipfile: read in blocks, of which the latest are kept.

    error:  error of the store: a library may make another of it.
    """

    def __init__(self, source: StoreFile) -> None:
        super().__init__()
        self.size, self.at = source.size, 0
        self.error: PenstockError | None = None

        @functools.lru_cache(_BLOCKS_KEPT)
        def read_block(number: int) -> bytes:
            start = number * _BLOCK_BYTES
            return source.read(start, max(0, min(_BLOCK_BYTES, source.size - start)))

        self._read_block = read_block

    def readinto(self, target: Any) -> int:
        """Fill `target` from the current place."""
        try:
            view, done = memoryview(target).cast("B"), 0
            while done < len(view):
                number, inside = divmod(self.at + done, _BLOCK_BYTES)
                piece = self._read_block(number)[inside : inside + len(view) - done]
                if not piece:
                    break
                view[done : done + len(piece)] = piece
                done += len(piece)
            self.at += done
            return done
        except PenstockError as error:
            self.error = error
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place, from the start, the current place or the end."""
        place = offset + (0, self.at, self.size)[whence]
        if place < 0:
            raise OSError(f"byte {place} is before the start of the file")
        self.at = place
        return self.at

    def tell(self) -> int:
        """Return the current place."""
        return self.at


class Sandbox:
    """Process for one call at a time; a context manager that ends the process.

    what:     the library, for messages.
    silent_s: seconds that the process may take without finishing and without reading.
    """

    def __init__(self, what: str, silent_s: int = limits.sandbox_silent_s) -> None:
        self.what, self.silent_s = what, silent_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def call(
        self,
        source: StoreFile,
        function: Callable[Concatenate[StoreFile, P], T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call the function on a source in the process; its errors are raised here.

        Function, arguments and result have to be picklable. A crash is a FormatError; so is a
        process that is silent for too long.
        """
        with self._lock:
            try:
                self._send((source.path, source.size, self.silent_s, function, args, options))
                while True:
                    assert self._process is not None
                    assert self._process.stdout is not None
                    kind, value = pickle.load(self._process.stdout)
                    if kind != "read":
                        break
                    try:
                        answer: tuple[bool, Any] = True, source.read(*value)
                    except PenstockError as error:
                        answer = False, error
                    self._send(answer)
            except (EOFError, BrokenPipeError, pickle.UnpicklingError):
                raise self._gone(source) from None
            except BaseException:  # the other process is in the middle of something
                self._end()
                raise
        if kind == "failed":
            raise value
        result: T = value
        return result

    def _send(self, message: Any) -> None:
        """Send a message to the process, which the first one starts."""
        if self._process is None:
            if not sys.executable:
                raise UsageError(f"{self.what} needs sys.executable: give isolate=False")
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._send(sys.path)
        assert self._process.stdin is not None
        _write(self._process.stdin, message)

    def _end(self) -> int:
        """End the other process and wait for it; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.kill()
        code = process.wait()
        with contextlib.suppress(BrokenPipeError):  # data that were still to be sent
            process.stdin.close()
        return code

    def _gone(self, source: StoreFile) -> PenstockError:
        """Make the error for a process that ended by itself."""
        process = self._process
        assert process is not None
        code = process.wait()  # its output ended: so has it, or it is about to
        self._end()
        path, what = source.path, self.what
        if code == -signal.SIGALRM:
            silent = f"made no progress for {self.silent_s} s"
            return FormatError(f"{path}: {what} {silent}: it is damaged; isolate=False waits")
        if code == -signal.SIGKILL:
            cause = "was killed (signal 9): is there enough memory?"
            return WorkerError(f"{path}: the process of {what} {cause}")
        if code < 0:
            return FormatError(f"{path}: {what} crashed (signal {-code}) on it: it is damaged")
        how = f"ended by itself (status {code}): its output is above"
        return WorkerError(f"{path}: the process of {what} {how}")


def _write(stream: IO[bytes], message: Any) -> None:
    stream.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    stream.flush()


def limit_memory(fraction: float) -> None:
    """Limit the memory of this process to a fraction of the machine's.

    A damaged file of 4 KiB can make the HDF5 library take 24 GB. Beyond the limit its allocations
    fail.
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

    The timer that ends a silent process runs in it, so that it ends even if its caller is gone.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(limits.sandbox_memory_fraction)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller gets it too, and ends this process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that libraries print must not mix with answers
    while True:
        try:
            path, size, silent_s, function, args, options = pickle.load(asked)
        except EOFError:
            return

        def fetch(offset: int, length: int, silent_s: int = silent_s) -> bytes:
            signal.alarm(0)  # slow storage is not the library's fault
            _write(answers, ("read", (offset, length)))
            there, answer = pickle.load(asked)
            signal.alarm(silent_s)
            if not there:
                raise answer
            data: bytes = answer
            return data

        signal.alarm(silent_s)
        try:
            reply = "done", function(StoreFile(path, size, fetch, -1), *args, **options)
        except Exception as error:
            reply = "failed", error
        signal.alarm(0)
        _write(answers, reply)
