"""What the ranks of a job tell each other about a save: each says something, all hear everything.

By groups of torch.distributed with gloo, or a function of the user. One that fails is heard by all,
and one that is gone is noticed: nobody waits for ever, and nothing is committed without all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .. import errors
from ..cache import Gather
from ..errors import PenstockError, UsageError, WorkerError
from ..topology import Place
from .fault_points import reached

Gathers = tuple[Gather, Gather, Gather]
"""Three ways to tell, which are used at once: by the thread that trains, by the thread behind it,
and by those that bring home what is held."""


def gathers(place: Place, modules: Mapping[str, Any], given: Gather | Gathers | None) -> Gathers:
    """How the ranks of a job tell each other.

    given: the user's own; one alone is used by all threads, never at once.
    UsageError where there are several ranks and no way.
    """
    if place.world_size == 1:
        return _alone, _alone, _alone
    if given is not None:
        return given if isinstance(given, tuple) else (given, given, given)
    distributed = modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise UsageError(
            f"{place.world_size} ranks ({place.source}) that save together have to tell each other"
            " when they have written: initialise torch.distributed first, or give gather="
        )
    if distributed.get_world_size() != place.world_size:
        raise UsageError(
            f"the process group has {distributed.get_world_size()} ranks and the checkpoint"
            f" {place.world_size} ({place.source}): give gather= among those that save together"
        )
    front, back, far = (_by_group(distributed, place) for _ in range(3))
    return front, back, far


def _alone(text: str) -> list[str]:
    return [text]


def _by_group(distributed: Any, place: Place) -> Gather:
    group = distributed.new_group(backend="gloo")

    def gather(text: str) -> list[str]:
        found: list[Any] = [None] * place.world_size
        try:
            distributed.all_gather_object(found, text, group=group)
        except RuntimeError as error:  # a connection was lost, or the time-out of the group
            raise WorkerError(
                f"rank {place.rank} lost the others while a checkpoint was saved ({error!s:.200}):"
                " nothing was committed by it; restart the job from the last checkpoint"
            ) from None
        return found

    return gather


def together(gather: Gather, place: Place, work: Callable[[], Any]) -> list[Any]:
    """What `work` gives on each rank, as JSON has it. What it raises on any is raised on all."""
    value, failed = None, None
    try:
        value = work()
    except Exception as error:
        failed = error
    said = None if failed is None else [type(failed).__name__, str(failed)]
    reached("hear of the other ranks")
    found = [json.loads(each) for each in gather(json.dumps([value, said]))]
    reached("heard of the other ranks")
    if failed is not None:
        raise failed
    for rank, (_, wrong) in enumerate(found):
        if wrong is not None:
            kind = getattr(errors, wrong[0], WorkerError)
            raise (kind if issubclass(kind, PenstockError) else WorkerError)(
                f"rank {rank}: {wrong[1]}"
            )
    return [each for each, _ in found]
