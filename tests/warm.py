"""Python processes that begin with their imports done: forks of one server that imported torch.

`Popen` and `run` are those of subprocess. A command of this Python with `-c`, `-m` or a script is
forked from the server, which the test session starts: a process with its own pid, environment,
folder, exit code and end. A command that a fork cannot be, such as one with options of the
interpreter, under another user, or with other variables that Python or a library reads as it
starts, is started by exec, as always.

A fork has more modules loaded than it asked for, and its parent is the server. It ends without
freeing torch, which would take longer than most tests: its threads are joined, atexit runs, and the
variables of its program are dropped, but not the modules. With `whole_end=True` the interpreter
ends as always; with `lean=True`, too, but soon: it comes from a second server, which has not
imported torch. Tests of starts, imports and memory use subprocess.

`python warm.py -c ...` is such a process too: workers of xdist are, which would import all that
tests use, each for itself.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SOCKET = "PENSTOCK_TESTS_WARM"
"""The variable of the environment that names the server's socket."""

LEAN = [
    "numpy", "concurrent.futures", "multiprocessing.pool", "pytest", "hypothesis",
    "penstock", "penstock.loader", "penstock.testing.engine", "penstock.testing.peer",
]  # fmt: skip
"""Imported by the lean server before the first fork. None of them starts a thread."""

MODULES = [
    "numpy", "torch", "torch.distributed", "torch.distributed.checkpoint", "torch.utils.data",
    "concurrent.futures", "multiprocessing.pool", "pytest", "hypothesis", "zmq", "obstore",
    "typer", "rich.table", "yaml", "pydantic", "h5py", "zarr", "tfrecord",
    "scipy.stats", "scipy.optimize", "scipy.sparse.linalg", "torch._dynamo", "numcodecs", "boto3",
    "torch.distributed.checkpoint.default_planner",
    "moto.moto_server.werkzeug_app", "moto.s3.responses", "moto.iam.models",
    "penstock", "penstock.torch", "penstock.cli", "penstock.checkpoint",
]  # fmt: skip
"""Imported by the other server."""

# Variables that are read while Python or a library starts.
_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "MALLOC_", "TORCH_", "TRITON_")

_NUMBER = struct.Struct("<q")
_END = struct.Struct("<qd")  # a process's exit status, and its seconds on processors

_forked_s = 0.0
_living: set[int] = set()


def forked_s() -> float:
    """Seconds on processors of the forks of this process: those waited for, with their children,
    and those that live, without."""
    found = _forked_s
    for pid in _living:
        with suppress(OSError):
            ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            found += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return found


class Popen(subprocess.Popen):
    """subprocess.Popen that forks the server where it can.

    whole_end:  the interpreter of the process ends as one that was started by exec.
    lean:       likewise, and it has not imported torch.
    """

    def __init__(
        self, *arguments: Any, whole_end: bool = False, lean: bool = False, **options: Any
    ) -> None:
        self._whole_end, self._lean = whole_end or lean, lean
        self._server: socket.socket | None = None
        super().__init__(*arguments, **options)

    # These three are what subprocess.Popen itself consists of on each system. The other
    # parameters are, in order: startupinfo, creationflags, shell, six ends of pipes,
    # restore_signals, gid, gids, uid, umask, start_new_session, process_group.
    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool,
        pass_fds: Any, cwd: Any, env: Any, *more: Any,
    ) -> None:  # fmt: skip
        _, _, shell, *ends, restore_signals, gid, gids, uid, umask, new_session, group = more
        words = [] if isinstance(args, (str, bytes, os.PathLike)) else [*map(os.fsdecode, args)]
        given = os.environ if env is None else env
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}
        plain = (executable, preexec_fn, close_fds, shell, restore_signals, gid, gids, uid, umask)
        usual = (None, None, True, False, True, None, None, None, -1)
        if plain != usual or group not in (-1, None):
            words = []
        if not _is_forkable(words, variables):
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more
            )
            return
        p2cread, _, _, c2pwrite, _, errwrite = ends
        theirs = (p2cread, c2pwrite, errwrite)
        streams = [end if end >= 0 else number for number, end in enumerate(theirs)]
        told = {
            "words": words[1:],
            "environment": variables,
            "folder": os.path.abspath(os.curdir if cwd is None else cwd),
            "pass_fds": [*pass_fds],
            "new_session": bool(new_session),
            "processors": [*os.sched_getaffinity(0)],
            "whole_end": self._whole_end,
        }
        data = json.dumps(told).encode("utf-8", "surrogateescape")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.connect(os.environ[SOCKET] + "-lean" * self._lean)
        descriptors = array.array("i", [*streams, *pass_fds])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
        server.sendmsg([_NUMBER.pack(len(data))], rights)
        server.sendall(data)
        (self.pid,) = _NUMBER.unpack(_receive(server, _NUMBER.size))
        self._server, self._child_created = server, True
        _living.add(self.pid)
        self._close_pipe_fds(*ends)

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._server is None:
            return super()._internal_poll(*arguments, **options)
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._server is None:
            return super()._wait(timeout)
        with self._waitpid_lock:
            if self.returncode is None:
                if timeout is not None and not select.select([self._server], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                status, took_s = _END.unpack(_receive(self._server, _END.size))
                global _forked_s
                _forked_s += took_s
                _living.discard(self.pid)
                self.returncode = os.waitstatus_to_exitcode(status)
                self._server.close()
        return self.returncode


def run(
    *arguments: Any,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """subprocess.run with `Popen`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with Popen(*arguments, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


@contextmanager
def serving(path: Path) -> Iterator[None]:
    """Serve the processes that this one and its children start. Nothing is imported before the
    first."""
    with _serving(f"{path}-lean", LEAN), _serving(str(path), MODULES):
        os.environ[SOCKET] = str(path)
        try:
            yield
        finally:
            del os.environ[SOCKET]


@contextmanager
def _serving(path: str, modules: list[str]) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(64)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        server = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), *modules],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env=environment,
        )
    try:
        yield
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        os.unlink(path)


def _is_forkable(words: list[str], environment: Mapping[str, str]) -> bool:
    if SOCKET not in os.environ or len(words) < 2 or words[0] != sys.executable:
        return False
    if words[1] not in ("-c", "-m") and not words[1].endswith(".py"):
        return False
    return _read_at_start(environment) == _read_at_start(os.environ)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_AT_START) and name != "PYTHONPATH"
    }


def _receive(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = b""
        with suppress(ConnectionResetError):
            part = source.recv(size - len(data))
        if not part:
            raise EOFError("the server of forked processes has ended: see what it wrote")
        data += part
    return bytes(data)


# -- the server ------------------------------------------------------------------------------------

Order = tuple[dict[str, Any], list[int]]
"""A process to begin, and the descriptors that it is given."""


def _serve(listener: socket.socket) -> Order:
    """Fork processes until the standard input ends. Returns in them, and never in the server."""
    import gc
    import importlib

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the session ends the server
    processes: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: pid, and who waits for it
    ready = select.poll()
    ready.register(0, select.POLLHUP)
    ready.register(listener, select.POLLIN)
    imported = False
    while True:
        for descriptor, _ in ready.poll():
            if descriptor == 0:
                os._exit(0)
            if descriptor in processes:
                pid, client = processes.pop(descriptor)
                ready.unregister(descriptor)
                os.close(descriptor)
                _, status, used = os.wait4(pid, 0)
                with client, suppress(OSError):  # nobody may wait for it any more
                    client.sendall(_END.pack(status, used.ru_utime + used.ru_stime))
                continue
            client, _ = listener.accept()
            if not imported:
                for name in sys.argv[2:]:
                    importlib.import_module(name)
                if moto := sys.modules.get("moto.moto_server.werkzeug_app"):
                    # The first request reads the description of S3, which takes a second.
                    moto.create_backend_app("s3").test_client().get("/no-bucket/no-key")
                threads = os.listdir("/proc/self/task")
                assert len(threads) == 1, "an import has started a thread, which forks would lack"
                gc.collect()
                gc.freeze()
                imported = True
            head, rights, _, _ = client.recvmsg(_NUMBER.size, socket.CMSG_SPACE(4 * 64))
            told = json.loads(_receive(client, *_NUMBER.unpack(head)))
            given = array.array("i", b"".join(data for _, _, data in rights)).tolist()
            pid = os.fork()
            if pid == 0:
                return told, given
            for each in given:
                os.close(each)
            process = os.pidfd_open(pid)
            processes[process] = pid, client
            ready.register(process, select.POLLIN)
            with suppress(OSError):
                client.sendall(_NUMBER.pack(pid))


def _become(told: dict[str, Any], given: list[int]) -> None:
    """Have the descriptors, the folder and the environment that Python would begin with."""
    import multiprocessing.process
    import tempfile
    import time

    if told["new_session"]:
        os.setsid()
    # First out of the way of the numbers that they shall have.
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, 1000) for each in given]
    os.closerange(3, 1000)
    for number, each in zip([0, 1, 2, *told["pass_fds"]], high, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.sched_setaffinity(0, told["processors"])
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, name)
        stream = open(number, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        if mode == "w":
            stream.reconfigure(line_buffering=name == "stderr" or os.isatty(number))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    tempfile.tempdir = None
    time.tzset()
    sys.modules["numpy"].random.seed()
    multiprocessing.process.ORIGINAL_DIR = told["folder"]


def _execute(words: list[str]) -> None:
    """Run the program that a command of Python names."""
    import runpy

    first, *arguments = words
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    if first == "-m":
        folder, module, sys.argv = os.getcwd(), arguments[0], ["-m", *arguments[1:]]
    elif first == "-c":
        folder, code, sys.argv = (
            "",
            compile(arguments[0], "<string>", "exec"),
            ["-c", *arguments[1:]],
        )
    else:
        folder, sys.argv = os.path.dirname(os.path.realpath(first)), words
        main.__file__ = first
        code = compile(Path(first).read_bytes(), first, "exec")
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder, *filter(None, path)]
    if first == "-m":
        runpy._run_module_as_main(module)
    else:
        exec(code, vars(main))


def _end(error: BaseException | None) -> int:
    """Do what an interpreter does at its end, but free memory; the exit code."""
    import atexit
    import gc
    import threading

    code = 0
    if isinstance(error, SystemExit):
        code = 1
        if error.code is None or isinstance(error.code, int):
            code = (error.code or 0) & 0xFF
        else:
            print(error.code, file=sys.stderr)
    elif error is not None:
        code = 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    interrupted = isinstance(error, KeyboardInterrupt)
    del error
    with suppress(AttributeError, ValueError, OSError):
        sys.stdout.flush()
    threading._shutdown()
    atexit._run_exitfuncs()
    main = vars(sys.modules["__main__"])
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def _main() -> None:
    """The server, and each of the processes."""
    del sys.path[0]  # the folder of this file, where `torch` are the tests of penstock.torch
    if "-c" in sys.argv:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the process has its own
        sys.exit(run([sys.executable, *sys.argv[sys.argv.index("-c") :]]).returncode)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        told, given = _serve(listener)
    _become(told, given)
    if told["whole_end"]:
        _execute(told["words"])
        return
    try:
        _execute(told["words"])
    except BaseException as error:
        code = _end(error)
    else:
        code = _end(None)
    os._exit(code)


if __name__ == "__main__":
    _main()
