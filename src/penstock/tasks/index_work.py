"""The index, made by many: each task parses some of the files."""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from .. import limits
from ..dataset.sources import request_index
from ..engine.open import open_store
from ..engine.store import Progress, Store
from ..errors import ChangedError, StorageError, UsageError
from ..extent import Files, Int, slice_files, unseen
from ..index.saved_index import IndexRequest, find_staleness
from .tape import Stopped, Tape, pack, unpack
from .work_plan import Sections, Tasks, Work, WorkPlan, read_part

_RACY_NS = 2_000_000_000
Share = Callable[[Files, Callable[[Sequence[int]], list[Any]]], list[Any]]


class IndexWork(Work):
    """The index of a place: units are the files that its format parses."""

    def __init__(self, plan: WorkPlan) -> None:
        self._plan = plan
        self._answers = unpack(plan.sections["answers"], plan.folder)

    @staticmethod
    def plan(
        about: dict[str, Any],
        folder: str,
        before: WorkPlan | None,
        progress: Progress | None,
    ) -> Tasks:
        """List the files, and group those that are to be parsed."""
        answers: dict[tuple[Any, ...], Any] = {}
        started_ns = time.time_ns()
        request = _ask(about, answers, _stop, progress)
        files = unseen("", [])  # of a format that parses none
        try:
            request.build(started_ns)
        except Stopped as stopped:
            files = stopped.value
        bounds, rarity = _group(files, 0 if before is None else before.kept["rarity"])
        spans = [*pairwise(bounds.tolist())]
        around = _describe_around(request.format, files, answers)
        states = [around + _describe(files, *span, started_ns) for span in spans]
        labels = [_label(files, *span) for span in spans]
        kept = {"rarity": rarity, "started_ns": started_ns}
        return Tasks(bounds, states, labels, kept, {"answers": pack(answers)})

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        def share(files: Files, parse: Callable[[Sequence[int]], list[Any]]) -> NoReturn:
            self._check(len(files))
            raise Stopped(parse(range(first, stop)))

        try:
            _ask(self._plan.about, self._answers, share).build()
        except Stopped as stopped:
            return {}, {"results": pack(stopped.value)}
        except ChangedError as error:
            what = str(error).partition(" since the data was indexed")[0]
            raise ChangedError(f"{what} since the work was planned: plan it again") from None
        raise AssertionError("a format parses files in one run and not in the next")

    def commit(self, parts: Sequence[str], _: Callable[..., None]) -> str:
        """Make the index of what was parsed, and save it where `penstock.open` looks for it."""
        results: list[Any] = []
        for path in parts:
            results += unpack(read_part(path)[1]["results"], path)

        def share(files: Files, parse: object) -> list[Any]:
            self._check(len(files))
            self._check(len(results))
            return results

        request = _ask(self._plan.about, self._answers, share)
        index = request.build(self._plan.kept["started_ns"])
        if (reason := find_staleness(index, open_store(index.sources.root))) is not None:
            raise ChangedError(f"{reason}, or planned: plan it again")
        saved = request.save(index)
        if saved is None:
            raise StorageError(f"{request.place.path}: the index has no place: commit it again")
        return f"index of {len(index):,} samples in {len(index.files):,} files: {saved}"

    def _check(self, count: int) -> None:
        """Check that so many files are parsed as were planned."""
        planned = int(self._plan.sections["bounds"][-1])
        if count != planned:
            what = f"{self._plan.folder}: {count:,} files are parsed, and {planned:,} were planned"
            raise UsageError(f"{what}: plan the work again, with the same limits everywhere")


def _stop(files: Files, parse: object) -> NoReturn:
    raise Stopped(files)


def _ask(
    about: Mapping[str, Any],
    answers: dict[tuple[Any, ...], Any],
    share: Share,
    progress: Progress | None = None,
) -> IndexRequest:
    """The request for the index, whose store is asked through a tape."""
    options = dict(about["options"])
    format, split = options.pop("format", None), options.pop("split", None)

    def wrap(store: Store) -> Store:
        return Tape(store, answers, share)

    return request_index(about["source"], format, split, options, progress, wrap)[0]


def _group(files: Files, rarity: int) -> tuple[Int, int]:
    """Group files. A group ends by the name of its last file, so that files that are added change
    only the groups that they fall into; and where it has bytes enough.

    rarity:  one name of so many ends a group; 0 chooses, by the number of files.
    """
    rarity = rarity or max(32, 1 << (len(files) // limits.tasks_usual).bit_length())
    ends, size = [0], 0
    names, start = files.names.tobytes(), 0
    for row, (end, length) in enumerate(zip(files.ends.tolist(), files.size.tolist(), strict=True)):
        if size and size + length > limits.task_bytes:
            ends.append(row)
            size = 0
        size += max(1, length)
        if zlib.crc32(names[start:end]) % rarity == 0:
            ends.append(row + 1)
            size = 0
        start = end
    if ends[-1] < len(files):
        ends.append(len(files))
    return np.array(ends, np.int64), rarity


def _describe_around(format: str, files: Files, answers: Mapping[tuple[Any, ...], Any]) -> bytes:
    """Describe what else a file is parsed by, as it is: what was read of other files, such as
    the manifest of a data set, and their sizes and times. Folders, which more files change, are
    left out, and so are the files themselves: a part is of its own."""
    parsed = {files.name(row) for row in range(len(files))}
    read, others = set[tuple[Any, ...]](), set[tuple[str, int, int]]()
    for question, answer in answers.items():
        if question[0] == "read" and question[1] not in parsed:
            read.add((*question, hashlib.blake2b(answer).hexdigest()))
        if question[0] in ("scan", "probe"):
            table: Files = answer[0]
            for row in np.flatnonzero(table.size >= 0).tolist():
                if (name := table.name(row)) not in parsed:
                    others.add((name, int(table.size[row]), int(table.mtime_ns[row])))
    return hashlib.blake2b(repr((format, sorted(read), sorted(others))).encode()).digest()


def _describe(files: Files, first: int, stop: int, started_ns: int) -> bytes:
    """Describe files of a group as they are: names, sizes and times; and the plan's own time, if
    one of them was just written, and may be written again without a sign of it."""
    group = slice_files(files, first, stop)
    racy = started_ns if (np.abs(group.mtime_ns - started_ns) <= _RACY_NS).any() else 0
    columns = (group.names, group.ends, group.size, group.mtime_ns)
    about = f"{racy} {limits.parsed_piece_bytes} {_find_piece(files, first)} {len(group)} "
    return about.encode() + b"".join(column.tobytes() for column in columns)


def _find_piece(files: Files, row: int) -> int:
    """The number of a piece within its file: large files are listed once for each piece."""
    name, before = files.name(row), row
    while before and files.name(before - 1) == name:
        before -= 1
    return row - before


def _label(files: Files, first: int, stop: int) -> str:
    last = f" to {os.path.basename(files.name(stop - 1))}" if stop - first > 1 else ""
    if piece := _find_piece(files, first):
        last = f", piece {piece}{last}"
    return f"{files.name(first)}{last}".encode("utf-8", "backslashreplace").decode()
