"""What was held when a job was killed goes home, before another one loads or saves."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, NamedTuple

from ..budget import Budget
from ..cache import Gather
from ..errors import DataError, FormatError, MissingError, PenstockError
from ..topology import Place
from . import shards
from .all_gather import together
from .flushing import Flush
from .manifest import Shard, index_bytes, index_of
from .repository import Repository, RepositoryLock
from .tiers import HeldSave, Tiers, bring, held_in, shards_in

_SESSION = 8
"""Characters of an attempt that tell the job; those after them count its saves."""


class _Found(NamedTuple):
    """A save that tiers have something of. folders: of each shard of it, who has it, and where."""

    held: HeldSave | None
    folders: dict[Shard, tuple[int, str]]


def recovered(
    tiers: Tiers,
    home: Repository,
    lock: RepositoryLock | None,
    place: Place,
    gather: Gather,
    budget: Budget,
) -> str | None:
    """Commit what all hosts together hold, in the order in which it was saved, and remove the rest,
    also what was cut off in the home. All ranks call it; lock is the first one's. Returns the
    attempt of the last checkpoint in the home; None where there is none.

    Held saves are committed only where nothing else was, since. StorageError where the home cannot
    be written: they stay held then.
    """
    last, newest, found = _found(tiers, home, place, gather)
    for attempt in sorted(found, key=_order):
        held, folders = found[attempt]
        if held is None or _had(attempt, last):
            continue
        if not (newest or _follows(attempt, held.after, last)):
            _say(place, held, "the home went on from another checkpoint since")
        elif _brought(held, folders, home, lock, place, gather, budget):
            last, newest = attempt, False
        else:
            _say(place, held, "shards of it are missing: were they on a host that is not here?")

    def clear() -> None:
        tiers.clear()
        if place.rank == 0:
            home.collect()

    together(gather, place, clear)
    return last


def _found(
    tiers: Tiers, home: Repository, place: Place, gather: Gather
) -> tuple[str | None, bool, dict[str, _Found]]:
    """The last attempt in the home, whether nobody can tell, and by attempt what tiers have."""

    def look() -> Any:
        known, last = True, None
        if place.rank == 0 and (entries := home.entries()):
            try:
                last = home.index(entries[-1]).attempt
            except DataError:  # damaged: what is held is all the more welcome
                known = False
        return [[last, known], [_seen(folder, attempt) for folder, attempt in tiers.found()]]

    said = together(gather, place, look)
    found: dict[str, _Found] = {}
    for rank, (_, seen) in enumerate(said):
        for attempt, folder, rows, document in seen:
            each = found.setdefault(attempt, _Found(None, {}))
            for row in rows:
                each.folders.setdefault(Shard(*row), (rank, folder))
            if document is not None:
                held = HeldSave(document[0], index_of(document[1].encode(), folder))
                found[attempt] = each._replace(held=held)
    last, known = said[0][0]
    return last, not known, found


def _seen(folder: str, attempt: str) -> list[Any]:
    held = held_in(folder)
    document = None if held is None else [held.after, index_bytes(held.index).decode()]
    return [attempt, folder, list(shards_in(folder).values()), document]


def _brought(
    held: HeldSave,
    folders: dict[Shard, tuple[int, str]],
    home: Repository,
    lock: RepositoryLock | None,
    place: Place,
    gather: Gather,
    budget: Budget,
) -> bool:
    """Whether all of a save was there, and is committed now."""
    index, begun = held.index, ""

    def put() -> None:
        nonlocal begun
        begun = home.begin(index.step, index.attempt)
        for shard in index.shards:
            rank, folder = folders.get(shard, (0, None))
            if rank == place.rank and folder is not None:
                with Flush(budget) as flush:
                    bring(home, begun, folder, shard, flush)
            elif rank == place.rank:  # it went straight there, or it is lost
                shards.pieces(home, begun, shard)

    try:
        together(gather, place, put)
    except (MissingError, FormatError):
        if place.rank == 0:
            with contextlib.suppress(PenstockError):
                home.abandon(begun)
        return False
    together(gather, place, lambda: None if lock is None else home.commit(begun, index, lock).path)
    return True


def _follows(attempt: str, after: str | None, last: str | None) -> bool:
    """Whether a save is the next after the last that was committed, or comes after it in one job,
    which held it when those between were on their way still."""
    return last == after or _had(last, attempt)


def _had(attempt: str | None, last: str | None) -> bool:
    """Whether a save is the last that was committed, or came before it in the same job."""
    if attempt is None or last is None or attempt[:_SESSION] != last[:_SESSION]:
        return False
    return _order(attempt) <= _order(last)


def _order(attempt: str) -> tuple[str, int]:
    return attempt[:_SESSION], int(attempt[_SESSION:] or "0", 16)


def _say(place: Place, held: HeldSave, why: str) -> None:
    if place.rank == 0:
        warnings.warn(
            f"step {held.index.step} was held on tiers and is not committed: {why}",
            RuntimeWarning,
            stacklevel=4,
        )
