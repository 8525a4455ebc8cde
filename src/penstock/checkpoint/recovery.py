"""Recovery of saves that were held when a job was killed: they are committed before another job
loads or saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..budget import Budget
from ..errors import FormatError, MissingError, StorageError
from .all_gather import Ranks
from .flushing import Flush
from .manifest import Attempt, ShardEntry
from .repository import LastAttempt, Repository
from .save import Save, SaveTarget
from .storage import CheckpointStorage
from .tiers import HeldSave, LocalTier, Tiers, read_held_save
from .write_lock import WriteLock


def lock_repository(repository: Repository, writer: bytes, clear: bool) -> WriteLock:
    """Become the job that writes to a repository. writer: names the process and the session.

    clear:  remove leftovers; not before held saves were recovered, which may belong to them.
    """
    lock = repository.lock(writer)
    try:
        if clear:
            repository.delete_leftovers(lock)
    except BaseException:
        lock.close()
        raise
    return lock


def open_tiers(
    local: Sequence[LocalTier],
    target: SaveTarget,
    ranks: Ranks,
    writer: bytes,
    budget: Budget,
    storage: CheckpointStorage | None = None,
) -> tuple[Tiers, str | None]:
    """Lock the tiers, and commit the saves held on them. Returns the tiers, which are empty then,
    and the attempt of the last checkpoint."""
    tiers = Tiers.open(local, target.repository.path, ranks, writer, storage)
    try:
        return tiers, recover_held_saves(tiers, target, ranks, budget)
    except BaseException:
        tiers.close()
        raise


class _HeldParts(NamedTuple):
    """The parts of a save that lie on tiers. folders: by shard, the rank that has it, and its
    folder."""

    held: HeldSave | None
    folders: dict[ShardEntry, tuple[int, str]]


def recover_held_saves(
    tiers: Tiers, target: SaveTarget, ranks: Ranks, budget: Budget
) -> str | None:
    """Commit the saves that all hosts together hold, in the order in which they were saved, and
    remove the rest, also the leftovers in the repository. All ranks call it. Returns the attempt of
    the last checkpoint in the repository; None if there is none.

    A held save is committed only if nothing else was committed since. UsageError if another job has
    taken the repository over: then the tiers are left as they are. StorageError if the repository
    cannot be written, or it cannot be told what was committed last: the saves stay held then.
    """
    last, newest, by_attempt = _find_held_saves(tiers, target, ranks)
    for attempt in sorted(by_attempt, key=Attempt.parse):
        held, folders = by_attempt[attempt]
        if held is None or _is_committed(attempt, last):
            continue
        if not (newest or _is_next(attempt, held.after, last)):
            _warn_uncommitted(target, held, "another checkpoint was committed since")
        elif _commit_held_save(held, folders, target, ranks, budget):
            last, newest = attempt, False
        else:
            why = "shards of it are missing: were they on a host that this job does not have?"
            _warn_uncommitted(target, held, why)

    def clear() -> None:
        tiers.clear()
        if target.lock is not None:
            target.repository.delete_leftovers(target.lock)

    ranks.run_together(clear)
    return last


def _find_held_saves(
    tiers: Tiers, target: SaveTarget, ranks: Ranks
) -> tuple[str | None, bool, dict[str, _HeldParts]]:
    """Find the last attempt in the repository, True if its index is lost, and by attempt the parts
    that lie on tiers. StorageError if a save is held, and that index is damaged on its way."""

    def look() -> Any:
        if target.lock is not None:
            target.lock.check()  # else what is held may be that of the job after us
        last = LastAttempt()
        repository = target.repository
        if target.place.rank == 0 and repository.entries():
            repository.sync_names()  # what they hold is removed from the tiers
            last = repository.find_last_attempt()
        described = []
        for folder, attempt in tiers.list_held_folders():
            described.append(_describe_folder(tiers.storage, folder, attempt))
        return [list(last), described]

    rank_rows = ranks.run_together(look)
    by_attempt: dict[str, _HeldParts] = {}
    for rank, (_, folders) in enumerate(rank_rows):
        for attempt, folder, rows, document in folders:
            parts = by_attempt.setdefault(attempt, _HeldParts(None, {}))
            for row in rows:
                parts.folders.setdefault(ShardEntry(*row), (rank, folder))
            if document is not None:
                by_attempt[attempt] = parts._replace(held=HeldSave.decode(document, folder))
    last = LastAttempt(*rank_rows[0][0])
    if last.damage and any(parts.held is not None for parts in by_attempt.values()):
        raise StorageError(f"{last.damage}, and start the job again: what is held stays held")
    return last.attempt, last.is_lost, by_attempt


def _describe_folder(storage: CheckpointStorage, folder: str, attempt: str) -> list[Any]:
    held = read_held_save(storage, folder)
    document = None if held is None else held.encode()
    shards = storage.find_whole_shards(folder)
    return [attempt, folder, shards, document]


def _commit_held_save(
    held: HeldSave,
    folders: dict[ShardEntry, tuple[int, str]],
    target: SaveTarget,
    ranks: Ranks,
    budget: Budget,
) -> bool:
    """Commit a save if all its shards are there; False if some are missing."""
    own_shards: list[tuple[ShardEntry, str | None]] = []
    for shard in held.index.shards:
        rank, folder = folders.get(shard, (0, None))  # it went straight there, or it is lost
        if rank == target.place.rank:
            own_shards.append((shard, folder))
    save = Save.restore(target, held.index, own_shards, Flush(budget))
    try:
        save.drain(ranks, lambda: Flush(budget))
    except (MissingError, FormatError):
        save.remove()
        return False
    return True


def _is_next(attempt: str, after: str | None, last: str | None) -> bool:
    """True if a save is the next after the last that was committed, or comes after it in one job,
    which held it while those between were still on their way."""
    return last == after or _is_committed(last, attempt)


def _is_committed(attempt: str | None, last: str | None) -> bool:
    """True if a save is the last that was committed, or came before it in the same job."""
    if attempt is None or last is None:
        return False
    save, newest = Attempt.parse(attempt), Attempt.parse(last)
    return save.session == newest.session and save.number <= newest.number


def _warn_uncommitted(target: SaveTarget, held: HeldSave, why: str) -> None:
    if target.place.rank == 0:
        target.repository.storage.warn(
            f"step {held.index.step} was held on tiers and is not committed: {why}"
        )
