"""Messages among the ranks of a job about a save: each rank sends a text, and all ranks receive all
texts.

They are sent by gloo groups of torch.distributed, or by a function of the user. If the work of a
rank fails, all ranks raise its error. If a rank is gone, the others notice: no rank waits for ever,
and nothing is committed without all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .. import errors
from ..errors import PenstockError, UsageError, WorkerError
from ..ranks.gather import Gather
from ..ranks.place import Place
from .background import mark_done, mark_point

Gathers = tuple[Gather, Gather, Gather]
"""Three functions that are used at once: by the thread that trains, by the thread behind it, and by
the threads that drain held saves to the repository."""


class Ranks(NamedTuple):
    """The ranks of a job, as one thread of this rank reaches them. gather: None if it is alone."""

    place: Place
    gather: Gather | None

    def run_together(self, work: Callable[[], Any]) -> list[Any]:
        """Run `work` on each rank and return the results of all ranks, as JSON has them if there
        are several. If it raises on any rank, all ranks raise."""
        return self.exchange_outcomes(work).take_results()

    def exchange_outcomes(self, work: Callable[[], Any]) -> RankOutcomes:
        """Run `work` on each rank, and exchange the outcomes. Raises what the exchange raises:
        then other ranks may have all outcomes, or not."""
        value, own_error = None, None
        try:
            value = work()
        except Exception as error:
            own_error = error
        error_row = None if own_error is None else [type(own_error).__name__, str(own_error)]
        if self.gather is None:
            return RankOutcomes(own_error, [[value, error_row]])
        text = json.dumps([value, error_row])
        mark_point("wait for the other ranks")
        texts = self.gather(text)
        mark_done("heard from the other ranks")
        return RankOutcomes(own_error, [json.loads(row) for row in texts])


class RankOutcomes(NamedTuple):
    """Outcomes of a step on all ranks. own_error: of this rank.

    rows:  result of each rank, and the name and text of its error, or None.
    """

    own_error: Exception | None
    rows: list[Any]

    def take_results(self) -> list[Any]:
        """Return the results of all ranks; raise the error of this rank, or of the first other."""
        if self.own_error is not None:
            raise self.own_error
        for rank, (_, rank_error) in enumerate(self.rows):
            if rank_error is not None:
                kind = getattr(errors, rank_error[0], WorkerError)
                raise (kind if issubclass(kind, PenstockError) else WorkerError)(
                    f"rank {rank}: {rank_error[1]}"
                )
        return [row for row, _ in self.rows]


def connect_ranks(
    place: Place, modules: Mapping[str, Any], gather: Gather | Gathers | None
) -> tuple[Ranks, Ranks, Ranks]:
    """Choose the functions by which the threads of `Gathers` exchange texts.

    gather:  the user's own; a single one is used by all threads, never by two at once.

    UsageError if there are several ranks and no way to exchange texts.
    """
    three = gather if isinstance(gather, tuple) else (gather, gather, gather)
    if gather is not None and (len(three) != 3 or not all(map(callable, three))):
        raise UsageError(
            f"gather is {gather!r:.100}: give a function of a text, which all ranks call, or three"
        )
    if place.world_size == 1:
        alone = Ranks(place, None)
        return alone, alone, alone
    if gather is not None:
        train, save, drain = gather if isinstance(gather, tuple) else (gather, gather, gather)
        return Ranks(place, train), Ranks(place, save), Ranks(place, drain)
    distributed = modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise UsageError(
            f"{place.world_size} ranks ({place.source}) save: initialise torch.distributed first,"
            " or pass gather="
        )
    if distributed.get_world_size() != place.world_size:
        raise UsageError(
            f"the process group has {distributed.get_world_size()} ranks, the checkpoint"
            f" {place.world_size} ({place.source}): pass gather="
        )
    for_train, for_save, for_drain = (
        Ranks(place, _make_group_gather(distributed, place)) for _ in range(3)
    )
    return for_train, for_save, for_drain


def _make_group_gather(distributed: Any, place: Place) -> Gather:
    group = distributed.new_group(backend="gloo")

    def gather(text: str) -> list[str]:
        texts: list[Any] = [None] * place.world_size
        try:
            distributed.all_gather_object(texts, text, group=group)
        except RuntimeError as error:  # a connection was lost, or the time-out of the group
            raise WorkerError(
                f"rank {place.rank} lost the other ranks ({error!s:.200}): the save was not"
                " committed; restart the job from the last checkpoint"
            ) from None
        return texts

    return gather
