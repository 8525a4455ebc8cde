"""Import of logs of any kind as traces, and filters of a job's files."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import IO

import numpy as np

from penstock.arguments import suggest_path
from penstock.engine import trace_file as traces
from penstock.errors import FormatError, MissingError, UsageError

from . import strace as trace_strace
from . import tables as trace_tables

Keep = Callable[[str], bool]
Seen = Callable[[int, int], object]
"""Receives the bytes of a log that were read, and its bytes in all."""

_ELSEWHERE = re.compile(
    r"/(?:dev|proc|sys|etc|usr|bin|sbin|lib\w*|boot|run|opt/conda|opt/intel)(?:/|$)"
    r"|.*/(?:__pycache__|site-packages|dist-packages|lib/python\d[^/]*|\.git)(?:/|$)"
    r"|.*(?:\.py|\.pyc|\.so(?:\.[\d.]+)?|/ld\.so\.cache|/pyvenv\.cfg)$"
)


def is_job_data(path: str) -> bool:
    """True if a path is likely data, and not of the system, the interpreter or its packages."""
    return _ELSEWHERE.match(path) is None and path not in ("", "/")


def filter_below(folders: Sequence[str]) -> Keep:
    """The filter of paths that are one of these folders, or below."""
    roots = [each if "://" in each else os.path.abspath(each) for each in folders]
    return lambda path: any(
        path == root or path.startswith(root.rstrip("/") + "/") for root in roots
    )


def keep_everything(path: str) -> bool:
    """Keep any path."""
    return True


def add_log(
    path: str, writer: traces.TraceWriter, keep: Keep, seen: Seen = lambda done, total: None
) -> None:
    """Add a log to a trace. Its first lines show its kind: a trace, strace's, DXT, or CSV.
    MissingError and UsageError if it cannot be read, FormatError if it is of another kind, cut or
    altered."""
    if traces.is_trace(path):
        _copy(traces.load(path), writer, keep)
        return
    with _open_text(path) as file:
        head = file.read(1 << 14)
        lines = head.splitlines()
        if not head.strip():
            raise FormatError(f"{path} is empty: give the log of a job")
        if "\0" in head:
            raise FormatError(
                f"{path} is no text and no trace: give strace's log, what darshan-dxt-parser"
                " prints (of a .darshan file), or CSV"
            )
        file.seek(0)
        text = _report_lines(file, seen)
        if any(line.startswith(("# darshan log version", "# DXT")) for line in lines):
            trace_tables.read_dxt(path, text, writer, keep)
        elif {"time", "path"} <= {word.strip().lower() for word in lines[0].split(",")}:
            trace_tables.read_csv(path, text, writer, keep)
        else:
            trace_strace.StraceLog(path, writer, keep).take(text)


def import_logs(
    paths: Sequence[str],
    target: str,
    keep: Keep,
    *,
    seen: Seen = lambda done, total: None,
    command: str | None = None,
) -> traces.Trace:
    """Make a trace of one or more logs. command: that wrote them just now, on this machine, so that
    files have their sizes of then. UsageError if no operation was wanted."""
    names = ", ".join(os.path.basename(path) for path in paths[:3])
    names += ", ..." if len(paths) > 3 else ""
    with traces.TraceWriter(target, command or names) as writer:
        for path in paths:
            add_log(path, writer, keep, seen)
        if command is not None:
            for _, name in writer.names():
                with contextlib.suppress(OSError):
                    status = os.stat(name)
                    if stat.S_ISREG(status.st_mode):
                        writer.file(name, status.st_size)
        if writer.count == 0:
            raise UsageError(
                f"{command or names}: no operations on files that were wanted: give --under FOLDER"
                " of the data, or --all"
            )
    return traces.load(target)


def _copy(trace: traces.Trace, writer: traces.TraceWriter, keep: Keep) -> None:
    names = [trace.names[i] for i in range(len(trace.names))]
    numbers = np.array(
        [
            writer.file(name, int(size)) if keep(name) else -1
            for name, size in zip(names, trace.sizes, strict=True)
        ],
        np.int64,
    )
    writer.source, writer.notes = trace.source, [*writer.notes, *trace.notes]
    if trace.timing == "shared":
        writer.timing = "shared"
    for number, thread in enumerate(trace.threads):
        target: int | None = None
        for rows in trace.of_thread(number):
            wanted = rows.at(numbers[rows.file] >= 0)
            if len(wanted.kind):
                wanted = wanted._replace(
                    file=numbers[wanted.file].astype(np.uint32),
                    start_ns=wanted.start_ns + trace.began_ns,
                )
                if target is None:
                    target = writer.thread(*thread, new=True)
                writer.extend(target, wanted)


def _report_lines(file: IO[str], seen: Seen) -> Iterator[str]:
    total, done, told = os.fstat(file.fileno()).st_size, 0, 0
    for line in file:
        yield line
        done += len(line)
        if done - told >= 1 << 20:
            told = done
            seen(done, total)


@contextlib.contextmanager
def _open_text(path: str) -> Iterator[IO[str]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            yield file
    except FileNotFoundError:
        raise MissingError(f"{path} does not exist{suggest_path(path)}: check the path") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
