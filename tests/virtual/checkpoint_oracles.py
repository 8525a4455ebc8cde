"""Oracles of checkpoints: what a reader of the repository must find, whatever has failed.

They look at the storage after each action that changes it, as a reader would who comes at that
moment, and once more when a last job has cleaned up. What a reader finds depends on the paths that
he looks at alone; so nothing is read again until one of these has changed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from penstock.checkpoint.repository import CheckpointEntry
from penstock.errors import DataError
from penstock.ranks.place import Place
from tests.virtual.checkpoint_scenario import CheckpointFaultKind, CheckpointScenario
from tests.virtual.checkpoint_storage import (
    FOLDER,
    PREFIX,
    URL,
    Call,
    CalledStorage,
    VirtualStorage,
)
from tests.virtual.node import require

_session = re.compile(r"step-\d+\.([0-9a-f]{8})[0-9a-f]+")


_loaded: dict[Any, str] = {}
"""Attempts of checkpoints that were loaded, in any run, by what loads and their contents: most runs
save what others have saved."""
_loaded_max = 4096


class Actor(Protocol):
    """Who performs an action: a process, by its name, and its job."""

    @property
    def name(self) -> str: ...
    @property
    def job(self) -> int: ...


class CheckpointOracles:
    """What a run has promised and what was seen of it. ScenarioError for what must not be.

    open_repository:  opens the `Folder` or the `Prefix` over some storage.
    load_entry:   function that loads a checkpoint.
    is_spoiled:   True once a sync has lied and the power was cut: what was saved may be damaged.
    is_damaged:   True once something was damaged on its way to a reader.
    claims:       jobs, in the order in which they took the repository.
    committed:    attempts, in the order in which a reader could see them.
    """

    def __init__(
        self,
        scenario: CheckpointScenario,
        storage: VirtualStorage,
        open_repository: Callable[[Any], Any],
        load_entry: Callable[..., Any],
        trace: Callable[[str], None],
    ) -> None:
        self._scenario, self._storage, self._trace = scenario, storage, trace
        self._repository = open_repository(CalledStorage(self._perform))
        self._load_entry = load_entry
        self._is_listing = False  # paths are noted
        self.is_spoiled = self.is_damaged = False
        self.claims: list[int] = []
        self.committed: list[str] = []
        self._promised: list[str] = []  # attempts, in the order in which callers were told
        self._unheld: set[int] = set()  # jobs that were warned: a tier failed
        self._bases: dict[int, str] = {}  # attempts from which jobs have gone on
        self._told: set[str] = set()  # attempts that callers were told to be committed
        self._visible: list[tuple[int, str]] = []
        self._seen = {FOLDER, URL}  # paths on which depends what is visible
        self._whole: dict[CheckpointEntry, str] = {}  # attempts of what was loaded

    # -- what callers are told -----------------------------------------------------------------

    def note_unheld(self, job: int) -> None:
        """Note that a job was warned: what it holds from now on may not survive."""
        self._unheld.add(job)

    def note_load(self, process: Actor, attempt: str) -> None:
        """Note that a job goes on from this checkpoint."""
        self._bases[process.job] = attempt

    def note_held(self, process: Actor, attempt: str) -> None:
        """Note that a caller was told that a save is held."""
        if attempt not in self._promised and process.job not in self._unheld:
            self._promised.append(attempt)

    def note_commit(self, process: Actor, attempt: str) -> None:
        """Note that a caller was told that a save is committed: a reader finds it."""
        if not self.is_spoiled:
            require(
                attempt in self.committed,
                f"{process.name} takes {attempt} for committed, and no reader finds it",
            )
        self._told.add(attempt)
        if attempt not in self._promised:
            self._promised.append(attempt)

    def check_replaced(self, process: Actor, error: Exception) -> None:
        """Check that a job which takes itself for replaced is."""
        is_replaced = bool(self.claims) and self.claims[-1] != process.job
        require(
            is_replaced or not self._scenario.has_conditions,
            f"{process.name} takes itself for replaced, and is not: {error}",
        )

    # -- what readers find ---------------------------------------------------------------------

    def look(self, process: Actor | None) -> None:
        """Look at the repository as a reader who comes now, after an action of a process, or after
        a power cut."""
        changed = self._storage.take_changed()
        if process is None:
            self._whole.clear()
        elif not changed or not self._is_seen(changed):
            return
        else:
            self._forget(changed)
        visible = self._list_whole()
        attempts = [attempt for _, attempt in visible]
        require(len(set(attempts)) == len(attempts), f"a save is committed twice: {visible}")
        numbers = [number for number, _ in visible]
        require(len(set(numbers)) == len(numbers), f"a number is committed twice: {visible}")
        before = [attempt for _, attempt in self._visible]
        may_return = self._scenario.has_fault(CheckpointFaultKind.LATE)
        self._visible = visible
        for number, attempt in visible:
            if attempt not in self.committed:
                self._check_commit(process, number, attempt)
            elif attempt not in before and process is not None and not self.is_spoiled:
                # A put without an answer may be performed after a removal without one.
                require(
                    may_return and attempt != attempts[-1],
                    f"{attempt} was removed, and is committed again",
                )
        for attempt in before:
            if attempt in attempts or self.is_spoiled:
                continue
            later = [other for other in attempts if before.index(attempt) < _find(before, other)]
            if process is None:
                require(attempt not in self._told, f"the power cut takes {attempt}")
                self.committed.remove(attempt)
            else:
                require(len(later) >= 2, f"{process.name} removes {attempt}, and leaves {attempts}")

    def _is_seen(self, changed: Iterable[str]) -> bool:
        """Tell whether a reader looks at one of these paths, or lists the folder where it lies."""
        return any(path in self._seen or path.rpartition("/")[0] in self._seen for path in changed)

    def _forget(self, changed: Iterable[str]) -> None:
        """Load checkpoints again, some of whose files or objects have changed."""
        touched = {*changed, *(path.rpartition("/")[0] for path in changed)}
        self._whole = {
            entry: attempt
            for entry, attempt in self._whole.items()
            if touched.isdisjoint((entry.path, self._repository.index_path(entry)))
        }

    def _list_whole(self) -> list[tuple[int, str]]:
        """List the checkpoints that a reader finds: their numbers and attempts."""
        self._seen.clear()
        self._is_listing = True
        try:
            entries = self._repository.entries()
        finally:
            self._is_listing = False
        self._seen.update(entry.path for entry in entries)
        visible = []
        for entry in entries:
            attempt = self._whole.get(entry) or self._check_whole(entry)
            if attempt is not None:
                visible.append((entry.sequence, attempt))
        return visible

    def _check_whole(self, entry: CheckpointEntry) -> str | None:
        """Load a checkpoint for each of its ranks, unless the same steps have loaded just these
        contents before; return its attempt."""
        index_path = self._repository.index_path(entry)
        contents = self._storage.read_checkpoint(entry.path, index_path)
        key = self._load_entry, entry.step, contents
        attempt = _loaded.get(key)
        if attempt is None:
            try:
                attempt = self._load(entry)
            except DataError as error:
                what = f"a reader finds {entry.path}, which is not whole: {error}"
                require(self.is_spoiled, what)
                return None
            if len(_loaded) >= _loaded_max:
                _loaded.clear()
            _loaded[key] = attempt
        self._whole[entry] = attempt
        return attempt

    def _load(self, entry: CheckpointEntry) -> str:
        index = self._repository.read_index(entry)
        for rank in range(index.ranks):
            place = Place(rank, index.ranks, "virtual")
            checkpoint = self._load_entry(self._repository, entry, place)
            check_state(checkpoint, index.ranks, index.attempt)
        return str(index.attempt)

    def _check_commit(self, process: Actor | None, number: int, attempt: str) -> None:
        if self.is_spoiled:
            self.committed.append(attempt)
            return
        require(process is not None, f"{attempt} is committed by nobody")
        assert process is not None
        is_last = bool(self.claims) and self.claims[-1] == process.job
        # A request may be performed so late that retention has removed its number.
        is_late = self._scenario.has_fault(CheckpointFaultKind.LATE, CheckpointFaultKind.UNANSWERED)
        is_old = is_late and number < max(other for other, _ in self._visible)
        require(
            is_last or is_old or not self._scenario.has_conditions,
            f"{process.name} commits {attempt}, and {self.claims[-1:]} has taken over",
        )
        if self._scenario.has_conditions:
            self._check_order(number, attempt)
        self._trace(f"{attempt} is committed")
        self.committed.append(attempt)

    def _check_order(self, number: int, attempt: str) -> None:
        """Check that numbers grow from older saves to newer ones, also where a late request makes
        an old checkpoint, among the old ones."""
        for other_number, other in self._visible:
            if other != attempt:
                is_newer = self._is_newer(attempt, other)
                order = "after" if number > other_number else "before"
                what = f"{attempt} is committed {order} {other}, and is not made {order} it"
                require(is_newer == (number > other_number), what)

    def _is_newer(self, attempt: str, other: str) -> bool:
        """Tell whether a save was made after another one: by a later job, by the same, or by a job
        that had loaded the other or a newer one, though it was replaced without knowing."""
        if self._order(attempt) > self._order(other):
            return True
        loaded = self._bases.get(int(attempt[:8], 16))
        return loaded is not None and (loaded == other or self._is_newer(loaded, other))

    def _order(self, attempt: str) -> tuple[int, int]:
        """Return the place of a save in the order of the jobs and of their saves. A job that took a
        number which had been removed, and so never had the repository, comes first."""
        return _find_last(self.claims, int(attempt[:8], 16)), int(attempt[8:], 16)

    def check_removal(self, process: Actor, call: Call) -> None:
        """Check a call to come: a job that was replaced removes nothing of the job that has
        replaced it."""
        paths: list[str] = []
        if call.name in ("remove_file", "remove_folder"):
            paths = [call.args[0]]
        elif call.name == "delete_objects":
            paths = list(call.args[0])
        for path in paths:
            match = _session.search(path)
            if match and int(match[1], 16) != process.job and self.claims:
                owner = int(match[1], 16)
                if owner in self.claims and process.job in self.claims:
                    times = [_find_last(self.claims, job) for job in (owner, process.job)]
                    require(
                        times[0] < times[1],
                        f"{process.name} removes {path} of job {owner}, which has taken over",
                    )

    # -- the end -------------------------------------------------------------------------------

    def check_end(self, last: int) -> None:
        """Check what is left after the last job, in which nothing failed."""
        own = f"{last:08x}"
        attempts = [attempt for _, attempt in self._visible]
        own_attempts = [attempt for attempt in attempts if attempt.startswith(own)]
        require(len(own_attempts) == 2, f"the last job has committed {own_attempts}, not two saves")
        require(len(attempts) <= max(self._scenario.keep, 2), f"too many are kept: {attempts}")
        left = self._repository.leftovers()
        require(not left, f"leftovers of dead attempts stay: {left}")
        held = [path for path in self._storage.files.list_paths() if ".held" in path]
        require(not held, f"held saves stay on tiers: {held}")
        if not self.is_spoiled and self._promised:
            missing = [each for each in self._promised if each not in self.committed]
            require(
                not missing or not self._must_survive(),
                f"callers were told of {missing}, and no reader has ever found it",
            )

    def _must_survive(self) -> bool:
        """Tell whether every save that was held has to be committed: hosts and storage kept their
        promises, nothing was read damaged, and no job came between."""
        uses_all = all(job.uses_tiers for job in self._scenario.jobs) and not self._unheld
        return uses_all and not self.is_damaged

    def _perform(self, call: Call) -> Any:
        """Perform a call at once, without a fault and without a trace."""
        if self._is_listing:
            self._seen.add(_get_path(call))
        return self._storage.perform(call)


# -- what is saved ---------------------------------------------------------------------------------


def make_state(attempt: str, step: int) -> dict[str, Any]:
    """Make the state that all ranks save in an attempt."""
    return {"attempt": attempt, "step": step, "weights": _make_array(attempt, 50)}


def make_own(attempt: str, rank: int) -> dict[str, Any]:
    """Make the state of one rank."""
    return {"rank": rank, "own": _make_array(f"{attempt} {rank}", 20 + 5 * rank)}


def check_state(checkpoint: Any, ranks: int, attempt: str | None = None) -> None:
    """Check what was loaded against what was saved."""
    state = checkpoint.state
    require(attempt in (None, state["attempt"]), f"{attempt} holds {state['attempt']}")
    require(state["step"] == checkpoint.step, f"step {checkpoint.step} holds {state['step']}")
    weights = _make_array(state["attempt"], 50)
    require(_is_equal(state["weights"], weights), f"{state['attempt']} has other weights")
    if checkpoint.ranks == ranks:
        own = checkpoint.per_rank
        wanted = make_own(state["attempt"], own["rank"])
        require(_is_equal(own["own"], wanted["own"]), f"{state['attempt']}: another's own")


@lru_cache(1 << 12)
def _make_array(name: str, size: int) -> Any:
    return np.frombuffer(random.Random(name).randbytes(size), np.uint8)


def _is_equal(array: Any, wanted: Any) -> bool:
    return isinstance(array, np.ndarray) and array.tolist() == wanted.tolist()


def _get_path(call: Call) -> str:
    """Return the path or URL at which a call looks."""
    if call.name == "list_objects":
        return f"{URL}/{call.args[0].removeprefix(PREFIX)}".rstrip("/")
    return call.args[0] if isinstance(call.args[0], str) else ""


def _find(items: list[str], item: str) -> int:
    return items.index(item) if item in items else len(items)


def _find_last(items: list[int], item: int) -> int:
    return max((place for place, each in enumerate(items) if each == item), default=-1)
