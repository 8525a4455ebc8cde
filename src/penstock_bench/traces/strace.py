"""A job's strace log as a trace.

`strace -f -ttt -T -y -o LOG COMMAND` writes such logs; `FLAGS` are those that see all there is to
see. Descriptors are followed through opens, duplicates, seeks, forks and threads, so that reads
without an offset have one. Reads through maps, io_uring and libaio are no system calls of their
own: they are counted where they are set up, and the trace says so.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.errors import FormatError, UsageError

from .trace_file import CLOSE, MAP, OPEN, OPEN_DIRECT, READ, STAT, TraceWriter

_CALLS = (
    "open,openat,openat2,creat,close,close_range,dup,dup2,dup3,fcntl,lseek,"
    "read,pread64,readv,preadv,preadv2,mmap,stat,lstat,fstat,newfstatat,statx,"
    "clone,clone3,fork,vfork,execve,io_uring_setup,io_submit,sendfile,splice,copy_file_range"
)
FLAGS = (
    "-f", "-y", "-s", "0", "-e", f"trace={_CALLS}",
    "-e", "abbrev=!readv,preadv,preadv2", "-e", "signal=none",
    "--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns",
)  # fmt: skip
"""Flags of strace 5.6 (2020) or later. Processes attach with -f; no data is shown (-s 0)."""

_LINE = re.compile(r"(?:\[pid +(\d+)\] +|(\d+) +)?(\d+)\.(\d{6,9}) (.*)", re.DOTALL)
_WHOLE = re.compile(
    r'(\w+)\(((?:[^"<]|"(?:[^"\\]|\\.)*"|<[^<>]*>|<)*?)\)\s+= (-?\d+|\?|0x[0-9a-f]+)(.*)', re.DOTALL
)
_BEGUN = re.compile(r"(\w+)\((.*?),? *<unfinished \.\.\.>$", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed> ?(.*)", re.DOTALL)
_TOOK = re.compile(r"<(\d+)\.(\d{6,9})>$")
_DESCRIPTOR = re.compile(r"(-?\d+)(?:<([^<>]*)>(?:\(deleted\))?)?")
_ERROR = re.compile(r" (E[A-Z0-9]+)")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_IOV = re.compile(r"iov_len=(\d+)")
_SIZE = re.compile(r"stx?_size=(\d+)")
_ESCAPE = re.compile(r'\\([0-7]{1,3}|x[0-9a-f]{2}|[abtnvfr"\\])')
_LETTERS = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_UNSEEN = {
    "io_uring_setup": "it used io_uring, whose reads strace does not see",
    "io_submit": "it used libaio, whose reads strace does not see",
    "sendfile": "it used sendfile, whose reads are not in the trace",
    "splice": "it used splice, whose reads are not in the trace",
    "copy_file_range": "it used copy_file_range, whose reads are not in the trace",
}


@dataclass(slots=True, eq=False)
class _Open:
    """An open file. told: True if its open is in the trace."""

    path: str
    table: _OpenFiles
    told: bool = False
    offset: int = 0


@dataclass(slots=True, eq=False)
class _OpenFiles:
    """Descriptors of a process, shared by its threads. closing: on exec."""

    process: int
    files: dict[int, _Open] = field(default_factory=dict)
    closing: set[int] = field(default_factory=set)

    def put(self, descriptor: int, file: _Open, closing: bool) -> None:
        self.files[descriptor] = file
        (self.closing.add if closing else self.closing.discard)(descriptor)

    def forked(self, process: int) -> _OpenFiles:
        return _OpenFiles(process, dict(self.files), set(self.closing))


@dataclass(slots=True)
class _Call:
    """A finished system call. given: its arguments as text. rest: after the result."""

    thread: int
    name: str
    given: str
    result: int
    rest: str
    start_ns: int
    duration_ns: int
    table: _OpenFiles


class StraceLog:
    """Takes a log line by line into a trace.

    keep:  whether the operations on a path are wanted.

    Raises FormatError for a line that strace does not write, or without -ttt and -T.
    """

    def __init__(self, name: str, writer: TraceWriter, keep: Callable[[str], bool]) -> None:
        self._name = name
        self._writer = writer
        self._keep = keep
        self._line = 0
        self._tables: dict[int, _OpenFiles] = {}  # by thread
        self._numbers: dict[int, int] = {}  # of threads in the trace
        self._begun: dict[int, tuple[str, str, int]] = {}  # by thread: call, arguments, start
        self._closing: dict[int, _Open | None] = {}  # by thread: the file of a close that has begun
        self._made: dict[int, int] = {}  # of threads that a clone was to make, by who called it
        self._said: Counter[str] = Counter()
        self._paths: dict[str, str | None] = {}  # made whole, None where not wanted
        self._handlers: dict[str, Callable[[_Call], None]] = {
            **dict.fromkeys(("open", "openat", "openat2", "creat"), self._opened),
            **dict.fromkeys(("read", "pread64", "readv", "preadv", "preadv2"), self._read),
            **dict.fromkeys(("stat", "lstat", "newfstatat", "statx"), self._stat),
            **dict.fromkeys(("dup", "dup2", "dup3", "fcntl"), self._duplicated),
            **dict.fromkeys(("clone", "clone3", "fork", "vfork"), self._forked),
            **dict.fromkeys(_UNSEEN, self._unseen),
            "fstat": self._sized,
            "close": self._closed,
            "close_range": self._closed_range,
            "lseek": self._sought,
            "mmap": self._mapped,
            "execve": self._executed,
        }

    def take(self, lines: Iterable[str]) -> None:
        """Read all lines, then add notes about them. A last line that was cut is left out."""
        for line in lines:
            self._line += 1
            try:
                self._take(line.rstrip("\n"))
            except FormatError:
                if line.endswith("\n"):
                    raise
                self._said["the log's last line was cut: it is left out"] = 1
            except UsageError as error:
                raise self._wrong(str(error)) from None
        if self._begun:
            self._said[f"{len(self._begun)} calls had not ended when the log did"] = 1
        self._writer.notes += [
            text if count == 1 else f"{text} ({count:,} times)"
            for text, count in self._said.items()
        ]

    def _wrong(self, what: str) -> FormatError:
        return FormatError(f"{self._name}, line {self._line:,}: {what}")

    def _take(self, line: str) -> None:
        if not line or line.startswith("strace:"):
            return
        match = _LINE.fullmatch(line)
        if match is None:
            raise self._wrong(
                f"{line[:60]!r} is no line of strace with seconds since 1970: record with"
                " `strace -f -ttt -T -y`"
            )
        thread = int(match[1] or match[2] or 0)
        start_ns = int(match[3]) * 10**9 + int(match[4].ljust(9, "0"))
        text = match[5]
        if text.startswith(("---", "+++")):
            if text.startswith("+++"):
                for known in (self._tables, self._begun, self._closing, self._numbers):
                    known.pop(thread, None)
            return
        if text.startswith("<") and (resumed := _RESUMED.fullmatch(text)):
            name, given, start_ns = self._begun.pop(thread, ("", "", 0))
            if name != resumed[1]:
                return  # it began before the log did
            rest = resumed[2]
            comma = ", " if given and not rest.startswith((")", ",", "=>")) else ""
            text = f"{name}({given}{comma}{rest}"
        elif text.endswith("...>") and (begun := _BEGUN.fullmatch(text)):
            self._begun[thread] = begun[1], begun[2], start_ns
            if begun[1] in ("clone", "clone3", "fork", "vfork"):
                self._made[thread] = thread
            elif begun[1] == "close":  # its number is free before the call returns
                self._closing[thread] = self._remove(self._table(thread), begun[2])
            return
        name = text[: text.find("(")]
        if name not in self._handlers:
            if not name.isidentifier():
                raise self._wrong(f"{text[:60]!r} is no system call")
            return
        call = self._call(thread, text, start_ns)
        try:
            self._handlers[name](call)
        except (ValueError, IndexError, TypeError) as error:
            if isinstance(error, UsageError):
                raise
            raise self._wrong(f"{text[:60]!r} has other arguments than {name}") from None

    def _call(self, thread: int, text: str, start_ns: int) -> _Call:
        whole = _WHOLE.fullmatch(text)
        if whole is None:
            raise self._wrong(f"the call {text[:60]!r} has no end")
        name, given, value, rest = whole.groups()
        took = _TOOK.search(rest)
        if took is None and value != "?":
            raise self._wrong("how long the call took is not said: record with `strace -T`")
        duration_ns = int(took[1]) * 10**9 + int(took[2].ljust(9, "0")) if took else 0
        result = int(value, 0) if value != "?" else -errno.EINTR
        if result == -1:
            error = _ERROR.match(rest)
            result = -int(getattr(errno, error[1], errno.EIO)) if error else -errno.EIO
        return _Call(thread, name, given, result, rest, start_ns, duration_ns, self._table(thread))

    def _table(self, thread: int) -> _OpenFiles:
        table = self._tables.get(thread)
        if table is None:
            caller = next(iter(self._made.values()), None)
            if caller is not None:  # its clone has not returned yet
                self._adopt(thread, caller, self._begun.get(caller, ("", "", 0))[1])
                return self._tables[thread]
            table = self._tables[thread] = _OpenFiles(thread)
        return table

    def _adopt(self, child: int, parent: int, flags: str) -> None:
        table = self._tables.get(parent) or _OpenFiles(parent)
        self._tables[child] = table if "CLONE_FILES" in flags else table.forked(child)

    # -- what is in the trace ------------------------------------------------------------------

    def _add(
        self, call: _Call, kind: int, path: str, offset: int = 0, length: int = 0, result: int = 0
    ) -> bool:
        """Add an operation to the trace; True if its path is wanted."""
        whole = self._wanted(path)
        if whole is None:
            return False
        number = self._numbers.get(call.thread)
        if number is None:
            number = self._writer.thread(call.table.process, call.thread)
            self._numbers[call.thread] = number
        file = self._writer.file(whole)
        self._writer.add(
            number, kind, file, offset, length, result, call.start_ns, call.duration_ns
        )
        return True

    def _wanted(self, path: str) -> str | None:
        if path not in self._paths:
            whole = _unescape(path)
            self._paths[path] = whole if self._keep(whole) else None
        return self._paths[path]

    def _file(self, call: _Call) -> _Open | None:
        """The open file of a call's first argument, if it has a path."""
        match = _DESCRIPTOR.match(call.given)
        if match is None:
            return None
        number, path = int(match[1]), match[2]
        file = call.table.files.get(number)
        if path is not None and (file is None or file.path != path):
            if not path.startswith("/"):
                return None  # a pipe, a socket
            file = _Open(path, call.table)  # it was opened before, or in a way that is not seen
            call.table.put(number, file, False)
        if file is None and call.result >= 0 and number > 2:
            self._said["reads of files that were opened before the log began are left out"] += 1
        return file

    def _opened(self, call: _Call) -> None:
        quoted = _PATH.search(call.given)
        if quoted is None:
            return
        flags = call.given[quoted.end() :]
        if "O_DIRECTORY" in flags or "O_PATH" in flags:
            return
        reading = "O_WRONLY" not in flags and "O_CREAT" not in flags and call.name != "creat"
        path = self._joined(call, quoted)
        if call.result < 0:
            if reading:
                self._add(call, OPEN, path, result=call.result)
            return
        given = re.match(r"<([^<>]*)>", call.rest)
        file = _Open(given[1] if given else path, call.table)
        if not file.path.startswith("/") and given:
            return
        if reading:
            kind = OPEN_DIRECT if "O_DIRECT" in flags else OPEN
            file.told = self._add(call, kind, file.path)
        call.table.put(call.result, file, "O_CLOEXEC" in flags)

    def _joined(self, call: _Call, quoted: re.Match[str]) -> str:
        """A path with the folder that it is relative to, if that is known; still escaped."""
        folder = re.match(r"(?:AT_FDCWD|\d+)<([^<>]*)>", call.given[: quoted.start()])
        path = quoted[1]
        if path.startswith("/") or folder is None:
            return path
        return f"{folder[1].rstrip('/')}/{path}"

    def _read(self, call: _Call) -> None:
        file = self._file(call)
        if file is None or call.result in (-errno.EINTR, -errno.EAGAIN):
            return
        words = call.given.rsplit(", ", 3)
        result = min(call.result, _LONGEST)
        if call.name in ("read", "pread64"):
            length = int(words[-1] if call.name == "read" else words[-2])
        else:
            length = max(sum(map(int, _IOV.findall(call.given))), result, 0)
        if call.name in ("read", "readv"):
            offset = file.offset
        else:
            offset = int(words[-2] if call.name == "preadv2" else words[-1])
        if offset == -1:  # of preadv2: as read
            offset = file.offset
        if call.name in ("read", "readv") and result > 0:
            file.offset += result
        self._add(call, READ, file.path, offset, min(length, _LONGEST), result)

    def _stat(self, call: _Call) -> None:
        quoted = _PATH.search(call.given)
        if quoted is None:
            return
        if not quoted[1]:  # of the descriptor itself
            self._sized(call)
            return
        path = self._joined(call, quoted)
        folder = "S_IFDIR" in call.given and call.result == 0
        name = path.rstrip("/") + "/" if folder else path
        if self._add(call, STAT, name, result=min(call.result, 0)) and not folder:
            self._size(call, name)

    def _sized(self, call: _Call) -> None:
        file = self._file(call) if call.result == 0 else None
        if file is not None:
            self._size(call, file.path)

    def _size(self, call: _Call, path: str) -> None:
        match = _SIZE.search(call.given)
        whole = self._wanted(path)
        if match and whole and "S_IFREG" in call.given:
            self._writer.file(whole, int(match[1]))

    def _mapped(self, call: _Call) -> None:
        words = call.given.rsplit(", ", 5)
        if call.result < 0 or len(words) < 6 or words[4].startswith("-1") or "EXEC" in words[2]:
            return
        match = _DESCRIPTOR.match(words[4])
        file = call.table.files.get(int(match[1])) if match else None
        path = (match[2] if match else None) or (file.path if file else None)
        if path is None or not path.startswith("/"):
            return
        if self._add(call, MAP, path, int(words[5], 0), int(words[1])):
            self._said["it mapped files: what it read through maps is not in the trace"] = 1

    def _remove(self, table: _OpenFiles, given: str) -> _Open | None:
        """Remove the descriptor that close is given from a table, and return its file."""
        match = _DESCRIPTOR.match(given)
        return table.files.pop(int(match[1]), None) if match else None

    def _closed(self, call: _Call) -> None:
        if call.thread in self._closing:
            file = self._closing.pop(call.thread)
        else:
            file = self._remove(call.table, call.given)
        # One that a parent opened, or of which there is a duplicate, stays open.
        if (
            file is not None
            and file.told
            and file.table is call.table
            and not any(other is file for other in call.table.files.values())
        ):
            self._add(call, CLOSE, file.path)

    def _closed_range(self, call: _Call) -> None:
        first, last = call.given.split(", ")[:2]
        most = int(last, 0) if last[:1].isdigit() else _LONGEST
        least = int(re.match(r"\d+", first)[0])  # type: ignore[index]
        for number in [number for number in call.table.files if least <= number <= most]:
            del call.table.files[number]

    # -- what it takes to follow descriptors ---------------------------------------------------

    def _sought(self, call: _Call) -> None:
        file = self._file(call)
        if file is not None and call.result >= 0:
            file.offset = call.result

    def _duplicated(self, call: _Call) -> None:
        if call.name == "fcntl" and "F_DUPFD" not in call.given:
            return
        file = self._file(call) if call.result >= 0 else None
        if file is not None:
            call.table.put(call.result, file, "CLOEXEC" in call.given)

    def _forked(self, call: _Call) -> None:
        self._made.pop(call.thread, None)
        if call.result > 0 and call.result not in self._tables:
            self._adopt(call.result, call.thread, call.given)

    def _executed(self, call: _Call) -> None:
        if call.result == 0:
            for number in call.table.closing:
                call.table.files.pop(number, None)
            call.table.closing.clear()

    def _unseen(self, call: _Call) -> None:
        if call.result >= 0:
            self._said[_UNSEEN[call.name]] += 1


_LONGEST = (1 << 31) - 4096
"""Bytes that Linux gives to one read at most."""


def _unescape(path: str) -> str:
    if "\\" not in path:
        return path

    def byte(match: re.Match[str]) -> bytes:
        code = match[1]
        value = _LETTERS.get(code)
        if value is None:
            value = int(code[1:], 16) if code[0] == "x" else int(code, 8)
        return bytes([value & 255])

    pieces, place = [], 0
    for match in _ESCAPE.finditer(path):
        pieces += [os.fsencode(path[place : match.start()]), byte(match)]
        place = match.end()
    return os.fsdecode(b"".join([*pieces, os.fsencode(path[place:])]))
