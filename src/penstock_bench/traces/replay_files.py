"""Places of a trace's files on this machine: moved by their folders, or synthesized."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from penstock.engine.trace_file import Trace
from penstock.errors import MissingError, UsageError
from penstock.extent import Files

Progress = Callable[[int, int], object]

_CHUNK = 8 << 20


def ignore_progress(done: int, total: int) -> None:
    """Show no progress."""


def parse_root(text: str) -> tuple[str, str]:
    """Parse FROM=TO."""
    source, equals, target = text.partition("=")
    if not (equals and source and target):
        raise UsageError(f"--root is {text!r}: use FROM=TO, such as /data/train=/mnt/new/train")
    return source, target


def map_paths(names: Sequence[str], roots: Sequence[tuple[str, str]]) -> list[str]:
    """Replace in each path the longest FROM that it is below by its TO."""
    pairs = sorted(((a.rstrip("/"), b.rstrip("/")) for a, b in roots), key=lambda p: -len(p[0]))

    def moved(name: str) -> str:
        for source, target in pairs:
            if name == source or name.startswith(source + "/"):
                return target + name[len(source) :]
        return name

    return [moved(name) for name in names]


def place_below(names: Sequence[str], folder: str) -> list[str]:
    """Each path, or URL, as one below a folder; none leaves it by "..": folders end in /."""
    top = os.path.abspath(folder)
    return [
        top
        + os.path.normpath("/" + name.replace("://", "/").lstrip("/"))
        + "/" * name.endswith("/")
        for name in names
    ]


def find_used(trace: Trace) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the files that the job found, and of those that it read from."""
    seen = np.zeros(len(trace.names), np.bool_)
    read = np.zeros(len(trace.names), np.bool_)
    for _, rows in trace.in_order():
        seen[rows.file[rows.result >= 0]] = True
        read[rows.file[rows.result > 0]] = True
    return seen, read


def check(paths: Sequence[str], read: npt.NDArray[np.bool_]) -> None:
    """Raise MissingError unless each file that the job read from is here, UsageError if a path is
    neither file nor folder: a trace is no reason to open a device."""
    absent = []
    for path, needed in zip(paths, read.tolist(), strict=True):
        if needed and "://" in path:
            raise UsageError(
                f"the job read {path}, an object, and only files are replayed: use --root"
                " URL=FOLDER or --synthesize FOLDER"
            )
        try:
            mode = os.stat(path).st_mode
        except OSError:
            absent += [path] * needed
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"{path} is neither file nor folder: map it elsewhere with --root")
    if absent:
        raise MissingError(
            f"{len(absent):,} of {int(read.sum()):,} files that the job read are not here, such"
            f" as {absent[0]}: say where they are with --root FROM=TO, or make files of the same"
            " sizes with --synthesize FOLDER"
        )


def synthesize(
    paths: Sequence[str],
    sizes: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.bool_],
    *,
    sparse: bool = False,
    progress: Progress = ignore_progress,
) -> int:
    """Make each wanted file that is not there yet, of its size; returns the bytes that were made.

    They hold incompressible random bytes, the same each time; sparse: none at all, so
    that reading them asks no device. UsageError for a file of another size: not ours.
    """
    numbers = np.flatnonzero(wanted).tolist()
    folders = {os.path.dirname(paths[number].rstrip("/")) for number in numbers}
    folders |= {paths[number].rstrip("/") for number in numbers if paths[number].endswith("/")}
    try:
        for folder in sorted(folders):
            os.makedirs(folder, exist_ok=True)
        missing = [
            number
            for number in numbers
            if not os.path.isdir(paths[number])
            and not _is_there(paths[number], int(sizes[number]), sparse)
        ]
        needed = int(sizes[missing].sum())
        if missing and not sparse:
            space = os.statvfs(os.path.dirname(paths[missing[0]]))
            if needed > space.f_bavail * space.f_frsize:
                raise UsageError(
                    f"files of {needed:,} bytes in all have no room beside {paths[missing[0]]},"
                    f" where {space.f_bavail * space.f_frsize:,} are free: use another folder, or"
                    " --sparse"
                )
        made = 0
        for number in missing:
            made += _make(paths[number], int(sizes[number]), number, sparse)
            progress(made, needed)
    except OSError as error:
        raise UsageError(f"cannot make {error.filename}: {error.strerror}") from None
    return needed


def _is_there(path: str, size: int, sparse: bool) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise UsageError(
            f"{path} is there and no file of {size:,} bytes: give --synthesize a folder of its own"
        )
    if not sparse and status.st_blocks * 512 < size // 2:
        raise UsageError(
            f"{path} was made sparse: reading it asks no device; give --synthesize another folder"
        )
    return True


def _make(path: str, size: int, seed: int, sparse: bool) -> int:
    draw = np.random.Generator(np.random.Philox(key=seed))
    partial = f"{path}.partial"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)  # of a run that was killed
    with open(partial, "xb") as file:
        if sparse:
            file.truncate(size)
        else:
            for place in range(0, size, _CHUNK):
                file.write(draw.bytes(min(_CHUNK, size - place)))
            file.flush()
            os.fdatasync(file.fileno())  # what is not on the device yet cannot be evicted
    os.replace(partial, path)
    return size


def make_table(paths: Sequence[str]) -> Files:
    """Make the engine's table of the files as they are now; missing files are empty."""
    sizes, times = np.zeros(len(paths), np.int64), np.zeros(len(paths), np.int64)
    for number, path in enumerate(paths):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            sizes[number], times[number] = status.st_size, status.st_mtime_ns
    return Files.of("/", [os.path.abspath(path)[1:] or "." for path in paths], sizes, times)


def read_once(paths: Sequence[str], progress: Progress = ignore_progress) -> None:
    """Read these files once."""
    memory = bytearray(_CHUNK)
    for number, path in enumerate(paths):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # the replay says so
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                place = 0
                while got := os.preadv(fd, [memory], place):
                    place += got
        finally:
            os.close(fd)
        progress(number + 1, len(paths))
