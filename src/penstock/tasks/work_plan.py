"""Plan, work, commit: work on data that many programs share, on whatever starts them.

A plan cuts the input into tasks, by the input alone: which engine runs them, and how many at a
time, changes nothing of what comes out. A task writes one file, the part, whole or not at all; its
name is a digest of the files it is of and of all that was asked, so that a part that is there is
right, for this plan and for the next. The commit puts the parts together.

    folder/plan.penstock       the plan
    folder/parts/<digest>      the parts
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import pathlib
import platform
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy.typing as npt

from .. import __version__
from ..arguments import Path, check_choice, check_path, check_whole
from ..dataset.measuring import Progress
from ..dataset.sources import pin_paths
from ..engine.atomic_file import storage_errors
from ..engine.open import is_url
from ..errors import MissingError, SidecarError, UsageError
from ..extent import Int
from ..index.sidecar import read_sidecar, write_sidecar
from .distribution import Engine, spread

PLAN, PARTS = "plan.penstock", "parts"
_FORMAT = "work-plan-2"
_DIGEST_BYTES = 16
_KINDS = {
    "index": "index_work.IndexWork",
    "tokenize": "convert_work.TokenWork",
    "convert": "convert_work.ShardWork",
    "lengths": "measure_work.LengthWork",
    "stats": "measure_work.StatsWork",
    "verify": "measure_work.VerifyWork",
}
"""Kinds of work by name: the module and class of each."""

Sections = dict[str, npt.NDArray[Any]]


class Tasks(NamedTuple):
    """Tasks of a plan, as a kind of work divides them.

    bounds:    int64 (n + 1,), task i is of the units [bounds[i], bounds[i + 1]).
    states:    of each task, what its units were when they were planned.
    labels:    of each task, its units in a message.
    header:    what the work keeps, in types of JSON.
    sections:  what the work keeps, in arrays.
    """

    bounds: Int
    states: list[bytes]
    labels: list[str]
    header: dict[str, Any]
    sections: Sections


class Work(Protocol):
    """A kind of work, for one plan.

    settings:  the names of those that it takes.
    """

    settings: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        """Do the units of a task: header and arrays of the part."""

    @abstractmethod
    def commit(self, parts: Sequence[str], share: Callable[..., None]) -> str:
        """Put the parts together: a line about the result. `share(function, pieces)` calls a
        function with the arguments of each piece, on the engine."""


def plan_work(
    what: str,
    source: Path | Sequence[Path],
    folder: Path,
    *,
    progress: Any = None,
    open_options: dict[str, Any] | None = None,
    **settings: Any,
) -> WorkPlan:
    """Plan work on data, and save the plan in a folder that all who work see.

    what:          "index", "convert", "tokenize", "lengths", "stats" or "verify".
    source:        as `penstock.open` takes it, with `open_options` as its options.
    settings:      of the work: those of `penstock.convert.convert`, with shards=, and of `tokenize`
                   there, both with destination=, by default in `folder`; of "lengths" by=, field=
                   and tokenizer=, a function by its name, "module:function"; of "stats" by_axis=.
    progress:      called now and then with the number of files seen.

    Planned again, the folder keeps the parts of files that are as they were, so that more files
    cost only their own tasks. UsageError if the folder holds another plan.
    """
    known = _load_kind(check_choice("what", what, tuple(_KINDS))).settings
    if unknown := settings.keys() - {*known}:
        has = " ".join(known) or "none"
        raise UsageError(f"{what!r} has no setting {min(unknown)!r}: leave it out, it has {has}")
    folder = check_path("folder", folder)
    if is_url(folder):
        raise UsageError(f"folder is {folder!r}: use one that all workers share, and no URL")
    folder = os.path.abspath(folder)
    given = [source] if isinstance(source, str | bytes | os.PathLike) else [*source]
    paths = [check_path("source", path) for path in given]
    before = None
    with contextlib.suppress(MissingError):
        before = WorkPlan.load(folder)
    for path in paths:
        if not is_url(path) and pathlib.Path(folder).resolve().is_relative_to(
            os.path.realpath(path)
        ):
            raise UsageError(f"folder is {folder!r}, in {path}: choose one outside of the data")
    for name in {"tokenizer", "destination"} & settings.keys():
        settings[name] = os.path.abspath(check_path(name, settings[name]))
    options = dict(open_options or {})
    if unknown := {"index", "progress"} & options.keys():
        raise UsageError(f"open_options has {unknown.pop()!r}: leave it out")
    asked = {"what": what, "source": pin_paths(paths), "options": options, "settings": settings}
    try:
        about = json.loads(json.dumps({**asked, "made_by": _name_runtime()}))
    except (TypeError, ValueError) as error:
        raise UsageError(f"options must be text, numbers and lists of them: {error}") from None
    if before is not None and (difference := _differ(before.about, about)):
        what = f"{folder} holds a plan with {difference}"
        raise UsageError(f"{what}: use another folder, or remove this one")
    tasks = _load_kind(what).plan(about, folder, before, progress)
    key = hashlib.blake2b(json.dumps(about, sort_keys=True).encode()).digest()
    named = functools.partial(hashlib.blake2b, key=key, digest_size=_DIGEST_BYTES)
    parts = [named(state).hexdigest() for state in tasks.states]
    header = {"format": _FORMAT, "about": about, "labels": tasks.labels, "parts": parts}
    with storage_errors(folder):
        os.makedirs(os.path.join(folder, PARTS), exist_ok=True)
        path = os.path.join(folder, PLAN)
        sections = {**tasks.sections, "bounds": tasks.bounds}
        write_sidecar(path, {**header, "kept": tasks.header}, sections)
    return WorkPlan.load(folder)


@dataclass(frozen=True, eq=False)
class WorkPlan:
    """Work that is planned; `plan_work` makes it, and `WorkPlan.load` finds it again.

    about:     what is to be done, with which data and by which penstock.
    kept:      what the kind of work keeps, and `sections` its arrays.
    labels:    of each task, what it is of, and `parts` the name of its part.
    """

    folder: str
    about: dict[str, Any]
    kept: dict[str, Any]
    labels: list[str]
    parts: list[str]
    sections: Sections

    @classmethod
    def load(cls, folder: Path) -> WorkPlan:
        """Load the plan in a folder; MissingError if there is none, SidecarError if damaged."""
        folder = os.path.abspath(check_path("folder", folder))
        path = os.path.join(folder, PLAN)
        missing = f"{folder} holds no plan of work: make one by `penstock plan-work`"
        header, sections = _read_file(path, True, missing, "make the plan again")
        if header.get("format") != _FORMAT:
            raise SidecarError(f"{path} is no plan of work: make the plan again")
        about, kept, labels, parts = (header[n] for n in ("about", "kept", "labels", "parts"))
        return cls(folder, about, kept, labels, parts, sections)

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.labels)

    def describe(self, task: int) -> str:
        """Name a task, for messages."""
        return f"task {task:,} ({self.labels[task]})"

    def find_part(self, task: int) -> str:
        """The path of a task's part, there or not."""
        return os.path.join(self.folder, PARTS, self.parts[task])

    def list_missing(self) -> list[int]:
        """List the tasks whose parts are not there."""
        present: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            present.update(os.listdir(os.path.join(self.folder, PARTS)))
        return [task for task, part in enumerate(self.parts) if part not in present]

    def do(self, task: int) -> bool:
        """Do a task; False if its part is there. Killed at any time, nothing half-written stays.

        ChangedError if the files are not as they were planned, UsageError if this penstock is
        another than the plan's; what reading and writing raise.
        """
        check_whole("task", task, 0, len(self) - 1)
        path = self.find_part(task)
        if os.path.exists(path):
            return False
        with storage_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        header, sections = self._work.do(*self.sections["bounds"][task : task + 2].tolist())
        with storage_errors(path):
            write_sidecar(path, {"format": "work-part-1", **header}, sections)
        return True

    def commit(self, executor: Engine | None = None, *, progress: Progress | None = None) -> str:
        """Put the parts together, and return a line about the result. Killed at any time, either
        the result is there, or nothing of it.

        executor:  starts an engine that copies tokens, see `distribute`; by default threads do.
        progress:  called when pieces are copied, with their number and that of all.

        MissingError names tasks that are not done.
        """
        if missing := self.list_missing():
            first = ", ".join(map(self.describe, missing[:3])) + ", ..." * (len(missing) > 3)
            what = f"{self.folder}: {len(missing):,} of {len(self):,} tasks are not done: {first}"
            raise MissingError(f"{what}: run `penstock work {self.folder}`")

        def share(function: Callable[..., object], pieces: Sequence[tuple[Any, ...]]) -> None:
            calls = {number: (function, *piece) for number, piece in enumerate(pieces)}
            name = "piece {:,} of the commit".format
            for failed in spread(calls, executor or ThreadPoolExecutor, name, progress=progress):
                function(*pieces[failed])  # here it raises its error

        return self._work.commit([self.find_part(task) for task in range(len(self))], share)

    @functools.cached_property
    def _work(self) -> Work:
        """The work, if this is the penstock that planned it."""
        planned, runtime = self.about["made_by"], _name_runtime()
        if planned != runtime:
            what = f"{self.folder} was planned by {planned}, and this is {runtime}"
            raise UsageError(f"{what}: use one environment everywhere, or plan it again")
        work: Work = _load_kind(self.about["what"])(self)
        return work


def distribute(
    plan: WorkPlan,
    executor: Engine,
    *,
    tasks: Iterable[int] | None = None,
    retries: int = 2,
    progress: Progress | None = None,
) -> dict[int, str]:
    """Do the tasks of a plan that are missing, on an engine. Return what failed, by task.

    executor:  starts the engine's executor, and another one if its workers died and it ended.
               They import penstock, and see the plan's folder under the same path.
    tasks:     those to do; by default all that are missing.
    retries:   how often a task is tried again if storage fails, and the engine made again if
               nothing was done since.
    progress:  called when tasks are done, with their number and that of all.

    A task that fails does not stop the others. WorkerError if the engine has no worker after some
    time, or if workers die and nothing gets done.
    """
    chosen = plan.list_missing() if tasks is None else tasks
    wanted = [check_whole("a task", task, 0, len(plan) - 1) for task in chosen]
    calls = {task: (do_task, plan.folder, task) for task in wanted}
    return spread(calls, executor, plan.describe, retries, progress)


def do_task(folder: str, task: int) -> None:
    """Do a task, for workers of any engine."""
    status = os.stat(os.path.join(folder, PLAN))
    _load_plan(folder, status.st_ino, status.st_mtime_ns).do(task)


@functools.lru_cache(maxsize=2)
def _load_plan(folder: str, inode: int, mtime_ns: int) -> WorkPlan:
    return WorkPlan.load(folder)


def read_part(path: str, verify: bool = True) -> tuple[dict[str, Any], Sections]:
    """Read a part; SidecarError if it is damaged, MissingError if it is gone."""
    missing = f"{path} was removed while parts were put together: run `penstock work` again"
    return _read_file(path, verify, missing, "remove it, and run `penstock work` again")


def _read_file(
    path: str, verify: bool, missing: str, remedy: str
) -> tuple[dict[str, Any], Sections]:
    try:
        return read_sidecar(path, verify)
    except FileNotFoundError:
        raise MissingError(missing) from None
    except SidecarError as error:
        what = str(error).partition(": rebuild it")[0]
        raise SidecarError(f"{what}: {remedy}") from None


def _load_kind(what: str) -> Any:
    module, _, name = _KINDS[what].partition(".")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def _name_runtime() -> str:
    major, minor, _ = platform.python_version_tuple()
    return f"penstock {__version__} on Python {major}.{minor}"


def _differ(was: dict[str, Any], now: dict[str, Any]) -> str:
    """Say how two plans differ; "" if they do not."""
    for name in ("what", "source", "options", "settings", "made_by"):
        if was.get(name) != now[name]:
            return f"{name} {was.get(name)!r:.200}, and now it is {now[name]!r:.200}"
    return ""
