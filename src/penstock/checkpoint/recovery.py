"""Recovery of saves that were held when a job was killed: they are committed before another job
loads or saves."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, NamedTuple

from ..budget import Budget
from ..cache import Gather
from ..errors import DataError, FormatError, MissingError, PenstockError
from ..topology import Place
from . import shards
from .all_gather import run_together
from .flushing import Flush
from .manifest import ShardEntry, decode_index, encode_index
from .repository import Repository, RepositoryLock
from .tiers import HeldSave, Tiers, copy_to_repository, find_whole_shards, read_held_save

_SESSION = 8
"""Characters of an attempt that name the job; those after them count its saves."""


class _HeldParts(NamedTuple):
    """The parts of a save that lie on tiers. folders: by shard, the rank that has it, and its
    folder."""

    held: HeldSave | None
    folders: dict[ShardEntry, tuple[int, str]]


def recover_held_saves(
    tiers: Tiers,
    repository: Repository,
    lock: RepositoryLock | None,
    place: Place,
    gather: Gather,
    budget: Budget,
) -> str | None:
    """Commit the saves that all hosts together hold, in the order in which they were saved, and
    remove the rest, also the leftovers in the repository. All ranks call it; lock is the first
    one's. Returns the attempt of the last checkpoint in the repository; None if there is none.

    A held save is committed only if nothing else was committed since. StorageError if the
    repository cannot be written: the saves stay held then.
    """
    last, newest, by_attempt = _find_held_saves(tiers, repository, place, gather)
    for attempt in sorted(by_attempt, key=_parse_attempt):
        held, folders = by_attempt[attempt]
        if held is None or _is_committed(attempt, last):
            continue
        if not (newest or _is_next(attempt, held.after, last)):
            _warn_uncommitted(place, held, "another checkpoint was committed since")
        elif _commit_held_save(held, folders, repository, lock, place, gather, budget):
            last, newest = attempt, False
        else:
            _warn_uncommitted(
                place,
                held,
                "shards of it are missing: were they on a host that this job does not have?",
            )

    def clear() -> None:
        tiers.clear()
        if place.rank == 0:
            repository.collect()

    run_together(gather, place, clear)
    return last


def _find_held_saves(
    tiers: Tiers, repository: Repository, place: Place, gather: Gather
) -> tuple[str | None, bool, dict[str, _HeldParts]]:
    """Find the last attempt in the repository, True if that cannot be told, and by attempt the
    parts that lie on tiers."""

    def look() -> Any:
        known, last = True, None
        if place.rank == 0 and (entries := repository.entries()):
            try:
                last = repository.index(entries[-1]).attempt
            except DataError:  # damaged: what is held is all the more welcome
                known = False
        return [
            [last, known],
            [_describe_folder(folder, attempt) for folder, attempt in tiers.list_held_folders()],
        ]

    rank_rows = run_together(gather, place, look)
    by_attempt: dict[str, _HeldParts] = {}
    for rank, (_, folders) in enumerate(rank_rows):
        for attempt, folder, rows, document in folders:
            parts = by_attempt.setdefault(attempt, _HeldParts(None, {}))
            for row in rows:
                parts.folders.setdefault(ShardEntry(*row), (rank, folder))
            if document is not None:
                held = HeldSave(document[0], decode_index(document[1].encode(), folder))
                by_attempt[attempt] = parts._replace(held=held)
    last, known = rank_rows[0][0]
    return last, not known, by_attempt


def _describe_folder(folder: str, attempt: str) -> list[Any]:
    held = read_held_save(folder)
    document = None if held is None else [held.after, encode_index(held.index).decode()]
    return [attempt, folder, list(find_whole_shards(folder).values()), document]


def _commit_held_save(
    held: HeldSave,
    folders: dict[ShardEntry, tuple[int, str]],
    repository: Repository,
    lock: RepositoryLock | None,
    place: Place,
    gather: Gather,
    budget: Budget,
) -> bool:
    """Commit a save if all its shards are there; False if some are missing."""
    index, attempt_path = held.index, ""

    def put() -> None:
        nonlocal attempt_path
        attempt_path = repository.begin(index.step, index.attempt)
        for shard in index.shards:
            rank, folder = folders.get(shard, (0, None))
            if rank == place.rank and folder is not None:
                with Flush(budget) as flush:
                    copy_to_repository(repository, attempt_path, folder, shard, flush)
            elif rank == place.rank:  # it went straight there, or it is lost
                shards.read_shard_pieces(repository, attempt_path, shard)

    try:
        run_together(gather, place, put)
    except (MissingError, FormatError):
        if place.rank == 0:
            with contextlib.suppress(PenstockError):
                repository.abandon(attempt_path)
        return False
    run_together(
        gather,
        place,
        lambda: None if lock is None else repository.commit(attempt_path, index, lock).path,
    )
    return True


def _is_next(attempt: str, after: str | None, last: str | None) -> bool:
    """True if a save is the next after the last that was committed, or comes after it in one job,
    which held it while those between were still on their way."""
    return last == after or _is_committed(last, attempt)


def _is_committed(attempt: str | None, last: str | None) -> bool:
    """True if a save is the last that was committed, or came before it in the same job."""
    if attempt is None or last is None or attempt[:_SESSION] != last[:_SESSION]:
        return False
    return _parse_attempt(attempt) <= _parse_attempt(last)


def _parse_attempt(attempt: str) -> tuple[str, int]:
    """Split an attempt into its job and the number of the save."""
    return attempt[:_SESSION], int(attempt[_SESSION:] or "0", 16)


def _warn_uncommitted(place: Place, held: HeldSave, why: str) -> None:
    if place.rank == 0:
        warnings.warn(
            f"step {held.index.step} was held on tiers and is not committed: {why}",
            RuntimeWarning,
            stacklevel=4,
        )
