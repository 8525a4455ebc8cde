"""A store: the place where data lives, with names, sizes, times and bytes of files.

Formats ask a store for the bytes they parse and touch nothing else. Every failure of the
operating system becomes one of penstock's errors here, with the path, and nowhere else.
"""

from __future__ import annotations

import errno
import functools
import glob
import itertools
import os
import resource
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _core, limits
from ..arguments import check_path, suggest_path
from ..errors import (
    ChangedError,
    FormatError,
    MissingError,
    PenstockError,
    StorageError,
    UsageError,
)
from ..extent import Files, unseen
from .globbing import expand_braces, has_magic
from .leftovers import is_left_over
from .read_method import LOCAL, find_file_system
from .threads import ThreadPool, name_refusal

Progress = Callable[[int], None]
"""Function called with the number of files seen so far: at once, and then about ten times a
second."""


SaidBy = Callable[[int], str]
"""Function from a file's number to the line or record that named it, for an error's message."""


class Listing(NamedTuple):
    """Content of a folder.

    files:    the regular files below it, in ascending order of path bytes.
    folder:   int32, for each file the number of its folder.
    folders:  the folders, the root (with the empty name) first; their size is -1.
    """

    files: Files
    folder: npt.NDArray[np.int32]
    folders: Files


class StoreFile:
    """One file of a store, open for parsing.

    fetch:  returns the bytes of a range, fewer if the file ends within it.
    file:   descriptor, or -1 if only `fetch` reads.
    start:  of a part of a file, where it starts within it.
    local:  whether the file is on a file system of this machine, where a small read is cheap.
    """

    def __init__(
        self, path: str, size: int, fetch: Callable[[int, int], bytes], file: int, start: int = 0
    ) -> None:
        self.path, self.size, self._fetch, self._file = path, size, fetch, file
        self._start = start

    @property
    def local(self) -> bool:
        return self._file >= 0 and find_file_system(self.path) in LOCAL

    def read(self, offset: int, length: int) -> bytes:
        """Read the bytes of a range; fewer if the file ends within it."""
        return self._fetch(offset, length)

    def cut(self, start: int, stop: int) -> StoreFile:
        """Return the part [start, stop) of the file, for walkers that take `start`."""
        fetch = self._fetch

        def shift(offset: int, length: int) -> bytes:
            return fetch(start + offset, length)

        return StoreFile(self.path, stop - start, shift, self._file, start)

    def walk(self, container: str, **options: Any) -> dict[str, Any]:
        """Run the compiled walker of a container, and return its columns; FormatError at a flaw."""
        walker = getattr(_core, f"walk_{container}")
        if self._start:
            options["start"] = self._start
        try:
            columns, flaw = walker(self._file, self._fetch, self.size, **options)
        except OSError as error:
            if isinstance(error, PenstockError):
                raise
            raise build_storage_error(error.errno or errno.EIO, self.path) from None
        if flaw is not None:
            raise self.flaw(*flaw)
        result: dict[str, Any] = columns
        return result

    def flaw(self, offset: int, message: str) -> FormatError:
        """Build the error for a flaw at a byte of this file."""
        return FormatError(f"{self.path}: at byte {self._start + offset:,}: {message}")


T = TypeVar("T")
Parse = Callable[[int, StoreFile], T]
"""Function by which a format parses one file, given its number."""


class Store(Protocol):
    """Operations that a format may use; names are relative to `root`, or absolute."""

    root: str

    def scan(self, extensions: Sequence[str] = (), progress: Progress | None = None) -> Listing:
        """List all files below the root, without hidden files and sidecars."""
        ...

    def some(self, count: int) -> list[str]:
        """Return the names of the first `count` files found; no hidden files and sidecars."""
        ...

    def match(self, pattern: str) -> list[str]:
        """Return the names of files that match a shell pattern.

        `*`, `?`, `[]` and `**` give what is there, sorted; `{000..012}` and `{a,b}` give each of
        these in turn, there or not.
        """
        ...

    def probe(
        self, files: Files, progress: Progress | None = None
    ) -> tuple[Files, npt.NDArray[np.int32]]:
        """Return the files' present sizes and times, and for each 0 or the errno of the failure.

        A folder has EISDIR, and a time all the same.
        """
        ...

    def stat(
        self,
        names: Sequence[str],
        said_by: SaidBy | None = None,
        progress: Progress | None = None,
    ) -> Files:
        """Return sizes and times of files; the error names the first file that has none, and the
        line that named it."""
        return require_all(*self.probe(unseen(self.root, names), progress), said_by)

    def folders(self, names: Sequence[str]) -> Files:
        """Return the times of folders; their size is -1."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read the bytes of a range; fewer if the file ends within it."""
        ...

    def parse(self, files: Files, parse: Parse[T], progress: Progress | None = None) -> list[T]:
        """Call `parse` for each file, several at a time; return the results in the order of the
        files.

        The first error, in that order, is raised. ChangedError if a file does not have the size and
        time of `files`.
        """
        ...


_PROBED_AT_ONCE = 1 << 14


class Posix(Store):
    """Files below a folder of this machine, local or mounted."""

    def __init__(self, root: str) -> None:
        self.root = root

    def scan(self, extensions: Sequence[str] = (), progress: Progress | None = None) -> Listing:
        suffixes = [os.fsencode(extension.lower()) for extension in extensions]
        root, threads = os.fsencode(self.root), limits.scan_threads
        with name_refusal("a thread that lists files did not start"):
            names, ends, size, mtime_ns, folder, folder_names, folder_ends, folder_ns, failures = (
                _core.scan_folder(root, suffixes, threads, progress)
            )
        for code, name in failures[:1]:
            more = f" (and {len(failures) - 1:,} more like it)" if len(failures) > 1 else ""
            path = os.path.join(self.root, os.fsdecode(name)).rstrip("/")
            raise build_storage_error(code, path, more)
        files = Files(self.root, names, ends, size, mtime_ns)
        sizes = np.full(len(folder_ends), -1, np.int64)
        return Listing(files, folder, Files(self.root, folder_names, folder_ends, sizes, folder_ns))

    def some(self, count: int) -> list[str]:
        names: list[str] = []
        folders = [""]
        visited = set()  # a link may lead to a folder around it
        while folders and len(names) < count:
            folder = folders.pop()
            path = os.path.join(self.root, folder) if folder else self.root
            try:
                real = os.path.realpath(path)
                if real in visited:
                    continue
                visited.add(real)
                with os.scandir(path) as entries:
                    for entry in entries:
                        if is_left_over(entry.name) or entry.name.endswith(".penstock"):
                            continue
                        name = os.path.join(folder, entry.name)
                        if entry.is_dir():
                            folders.append(name)
                        elif entry.is_file():
                            names.append(name)
                            if len(names) == count:
                                break
            except OSError as error:
                raise build_storage_error(
                    error.errno or errno.EIO, os.fsdecode(error.filename or path)
                ) from None
        return names

    def match(self, pattern: str) -> list[str]:
        names: dict[str, None] = {}
        for alternative in expand_braces(pattern):
            if has_magic(alternative):
                matches = glob.glob(alternative, root_dir=self.root, recursive=True)
                files = (name for name in matches if os.path.isfile(os.path.join(self.root, name)))
                named = {*alternative.split("/")}  # what the pattern names is meant
                files = (n for n in files if not any(map(is_left_over, {*n.split("/")} - named)))
                if "**" in alternative:
                    files = (name for name in files if not self._is_in_loop(name))
                names.update(dict.fromkeys(sorted(files, key=os.fsencode)))
            else:
                names[alternative] = None
        return list(names)

    def _is_in_loop(self, name: str) -> bool:
        """True if a folder of the path is a link to one around it: the file has a shorter name."""
        folders = itertools.accumulate([self.root, *name.split("/")[:-1]], os.path.join)
        real = [os.path.realpath(folder) for folder in folders]
        return len(set(real)) < len(real)

    def probe(
        self, files: Files, progress: Progress | None = None
    ) -> tuple[Files, npt.NDArray[np.int32]]:
        root = os.fsencode(self.root)
        size, mtime_ns = np.empty_like(files.ends), np.empty_like(files.ends)
        errors = np.empty(len(files), np.int32)
        for first in range(0, len(files), _PROBED_AT_ONCE):  # Ctrl-C is noticed between them
            rows = slice(first, first + _PROBED_AT_ONCE)
            start = int(files.ends[first - 1]) if first else 0
            ends = files.ends[rows] - start
            names = files.names[start : start + int(ends[-1])]
            size[rows], mtime_ns[rows], errors[rows] = _core.stat_files(
                root, names, ends, limits.scan_threads
            )
            if progress is not None:
                progress(min(first + _PROBED_AT_ONCE, len(files)))
        return Files(self.root, files.names, files.ends, size, mtime_ns), errors

    def folders(self, names: Sequence[str]) -> Files:
        probed, errors = self.probe(unseen(self.root, names))
        for row in np.flatnonzero(errors != errno.EISDIR)[:1]:
            raise build_storage_error(int(errors[row]) or errno.ENOTDIR, probed.path(int(row)))
        return Files(
            self.root, probed.names, probed.ends, np.full_like(probed.size, -1), probed.mtime_ns
        )

    def read(self, name: str, offset: int, length: int) -> bytes:
        path = os.path.join(self.root, name)
        file = _open(path)
        try:
            return _fetch(file, path, offset, length)
        finally:
            os.close(file)

    def parse(self, files: Files, parse: Parse[T], progress: Progress | None = None) -> list[T]:
        def parse_one(number: int) -> T:
            path = files.path(number)
            file = _open(path)
            try:
                _check_same(os.fstat(file), files, number, path)
                source = StoreFile(
                    path, int(files.size[number]), functools.partial(_fetch, file, path), file
                )
                try:
                    result = parse(number, source)
                finally:  # a file that was written to looks damaged
                    _check_same(os.fstat(file), files, number, path)
                return result
            finally:
                os.close(file)

        return map_in_threads(parse_one, len(files), progress)


def _pread(file: int, offset: int, length: int) -> bytes:
    """Read until the range or the file ends: one call may return fewer bytes."""
    chunks = []
    while length > 0:
        chunk = os.pread(file, length, offset)
        if not chunk:
            break
        chunks.append(chunk)
        offset += len(chunk)
        length -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise build_storage_error(error.errno or errno.EIO, path) from None


def _fetch(file: int, path: str, offset: int, length: int) -> bytes:
    try:
        return _pread(file, offset, length)
    except OSError as error:
        raise build_storage_error(error.errno or errno.EIO, path) from None


_progress_s = 0.1


def map_in_threads(
    call: Callable[[int], T], count: int, progress: Progress | None = None
) -> list[T]:
    """Return [call(0), call(1), ...], computed by several threads if there are several calls.

    The first error, in that order, is raised; calls that have not started by then are dropped.
    """
    if count <= 1:
        return [call(number) for number in range(count)]
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    numbers = iter(range(count))  # shared: a task of a pool for each would cost 50 us

    def work() -> None:
        for number in numbers:
            try:
                results[number] = call(number)
            except BaseException as error:
                errors[number] = error
            if errors:
                return

    threads = min(count, limits.scan_threads)
    with ThreadPool(threads, "penstock-parse") as pool:
        try:
            left = {pool.submit(work) for _ in range(threads)}
            while left:
                _, left = wait(left, _progress_s)
                if progress is not None:
                    progress(len(results))
        except BaseException as error:
            errors[count] = error  # which ends the threads
            raise
    try:
        if errors:
            raise errors[min(errors)]
    finally:
        errors.clear()  # their tracebacks hold this frame
    return [results[number] for number in range(count)]


def require_all(files: Files, errors: npt.NDArray[np.int32], said_by: SaidBy | None) -> Files:
    """Return the probed files, or raise the error of the first that has one."""
    for row in np.flatnonzero(errors)[:1]:
        by = said_by(int(row)) if said_by else ""
        raise build_storage_error(int(errors[row]), files.path(int(row)), said_by=by)
    return files


def build_storage_error(code: int, path: str, more: str = "", said_by: str = "") -> PenstockError:
    """Build the error for an errno that a system or service returned about a path or URL.

    more:     the reason in a service's words, in parentheses.
    said_by:  the line or record that named the path, as a start of the message.
    """
    error_type, text = _describe_object(code, path) if "://" in path else _describe(code, path)
    error = error_type(f"{said_by}{path} {text.format(more=more)}")
    if isinstance(error, OSError):
        error.errno = code
    return error


_Description = tuple[type[PenstockError], str]
"""Type and text of an error; {more} is the place of the service's reason."""


def _describe(code: int, path: str) -> _Description:
    if code in (errno.ENOENT, errno.ENOTDIR) and os.path.islink(path):
        return MissingError, "is a link to what does not exist{more}: repair or remove the link"
    if code in (errno.ENOENT, errno.ENOTDIR):
        near = suggest_path(path).replace("{", "{{").replace("}", "}}")
        text = f"does not exist{{more}}{near}: check the path, and that it is mounted"
        return MissingError, text
    if code in (errno.EACCES, errno.EPERM):
        remedy = "`chmod -R a+rX` it, or run as its owner"
        return StorageError, f"cannot be read: permission denied{{more}}: {remedy}"
    if code in (errno.EISDIR, errno.EINVAL):
        return FormatError, "is not a regular file: name files only"
    if code in (errno.EMFILE, errno.ENFILE):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return StorageError, (
            f"cannot be opened{{more}}: {os.strerror(code)}: this process may have {soft:,} files "
            f"open, and no file of penstock's is idle: raise the limit (`ulimit -n {hard}`), or "
            "close files, sockets and loaders that are not needed"
        )
    if code == errno.ELOOP:
        return StorageError, "is behind too many links{more}: untangle them"
    return StorageError, f"cannot be read: {os.strerror(code)}{{more}}"


_hub_remedies = {
    errno.ENOENT: "check the names of repository, revision and file on the hub; of a private "
    "repository nothing is found without a token (HF_TOKEN, or `hf auth login`)",
    errno.EACCES: "accept the data set's terms on its page of the hub if it has such, and give a "
    "token that may read it (HF_TOKEN, or `hf auth login`); without one, repositories that do not "
    "exist are refused so, too",
    errno.ETIMEDOUT: "is the hub up (HF_ENDPOINT)? If it refuses as too many, a token raises its "
    "limits, Budget(requests=) lowers yours, and `hf download` reads each file once",
}
_object_errors = {
    errno.ENOENT: "does not exist{more}: check the name, and for another service than the default "
    "its endpoint (AWS_ENDPOINT_URL)",
    errno.EACCES: "cannot be read: access denied{more}: check the credentials; for public data set "
    "AWS_SKIP_SIGNATURE, GOOGLE_SKIP_SIGNATURE or AZURE_SKIP_SIGNATURE to true",
    errno.ETIMEDOUT: "did not arrive in time, with all repeats{more}: is the service up, or are "
    "there too many requests for it (Budget.requests)?",
    errno.ENOTSUP: "cannot be read{more}: use a server that answers ranges",
    errno.EISDIR: "is a folder where a file is expected: name files only{more}",
    errno.ENOTDIR: "is a file where a folder is expected: name folders only{more}",
}


def _describe_object(code: int, url: str) -> _Description:
    if url.startswith("hf://") and code in _hub_remedies:
        text = f"cannot be read{{more}}: {_hub_remedies[code]}"
    else:
        text = _object_errors.get(code, f"cannot be read: {os.strerror(code)}{{more}}")
    if code == errno.ENOENT:
        return MissingError, text
    return (FormatError if code in (errno.EISDIR, errno.ENOTDIR) else StorageError), text


def read_sample(files: Files, file: int, offset: int, length: int, where: str) -> bytes:
    """Read the bytes of one extent; ChangedError unless the file is as it was indexed."""
    path = files.path(file)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise build_changed_error(where, "the file vanished") from None
    except OSError as error:
        raise build_storage_error(error.errno or errno.EIO, path) from None
    try:
        _check_same(os.fstat(descriptor), files, file, where)
        data = _pread(descriptor, offset, length)
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raise build_storage_error(error.errno or errno.EIO, path) from None
    finally:
        os.close(descriptor)
    if len(data) != length:
        raise build_changed_error(where, f"only {len(data):,} bytes are there")
    return data


def _check_same(now: os.stat_result, files: Files, file: int, where: str) -> None:
    """Raise ChangedError unless a file has the size and time of the table."""
    size = int(files.size[file])
    if now.st_size != size:
        raise build_changed_error(where, f"the file has {now.st_size:,} bytes and had {size:,}")
    if now.st_mtime_ns != int(files.mtime_ns[file]):
        raise build_changed_error(where, "the file was written to")


def build_changed_error(where: str, what: str) -> ChangedError:
    """Build the error for a sample that is not as it was indexed."""
    return ChangedError(f"{where}: {what} since the data was indexed: `penstock index --force` it")


def checked_extensions(extensions: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the extensions as a sorted tuple, lower case, each with its dot."""
    if extensions is None:
        return ()
    given = [extensions] if isinstance(extensions, str) else extensions
    names = list(given) if isinstance(given, Iterable) else []
    if not names or not all(isinstance(e, str) and e.strip(".") for e in names):
        raise UsageError(f"extensions is {extensions!r}: use names such as ['.jpg', '.png']")
    return tuple(sorted({"." + check_path("extensions", e).lower().lstrip(".") for e in names}))
