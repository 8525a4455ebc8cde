"""Retention: which committed checkpoints stay, and the deletion of the others.

Old checkpoints are deleted after a commit, or by `penstock checkpoint prune`, but never the last
`KEEP_MIN`: if the last one proves damaged, there is another. A checkpoint is deleted as its
repository says (`Repository.delete`): first its index, so that no reader finds a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import PenstockError

if TYPE_CHECKING:
    from .repository import CheckpointEntry, Repository

KEEP_MIN = 2
"""Checkpoints that are never deleted."""


def list_old(
    repository: Repository, keep: int, last: str | None = None
) -> Sequence[CheckpointEntry]:
    """List all but the last `keep` checkpoints, never the last two. Checkpoints whose index is
    damaged, perhaps on its way, are not counted, and go once as many later ones are there.

    last:  the path of the checkpoint that counts as the last; None is the latest.
    """
    entries = repository.entries()
    while last is not None and entries and entries[-1].path != last:
        entries.pop()
    whole = [entry for entry in entries if entry.step >= 0]
    least = max(keep, KEEP_MIN)
    if len(whole) < least:
        return ()
    return entries[: entries.index(whole[-least])]


def delete_old(repository: Repository, keep: int, last: str | None = None) -> None:
    """Delete the checkpoints that `list_old` lists."""
    for entry in list_old(repository, keep, last):
        repository.delete(entry)


def delete_old_after_commit(repository: Repository, keep: int, path: str) -> None:
    """Call `delete_old` after a commit; an error becomes a warning.

    path:  of the checkpoint that was committed. Later ones are of a job that has taken over, and
           keeps as many as it wants.
    """
    try:
        delete_old(repository, keep, path)
    except PenstockError as error:
        what = "a checkpoint was committed, but older ones were not removed"
        repository.storage.warn(f"{what}: {error}")
