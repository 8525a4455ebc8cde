"""The choice of a tier for each shard, or of none: VELOC's rule, in seconds until the shard's
memory is free again.

A tier is used only if that is predicted to be sooner than writing straight to the repository. A
fast tier without room is waited for if even that is sooner. Times are compared here, and every
bandwidth is that of all writers of a host together. To compare the bandwidth of one writer with the
bandwidth at which all flush, as is easily done, would give other choices for other numbers of
writers.

Pure: figures in, choices out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

REPOSITORY = -1
"""The place that is no tier: the repository, where checkpoints are committed."""

_FORGET_SAVES = 10
"""Saves after which the bandwidth of an unused place is unknown again: a place that was slow, full
or missing may have recovered."""
_WEIGHT = 0.5
"""Weight of the last figure in a moving average."""


class TierRoom(NamedTuple):
    """The state of a tier of a host before a save.

    free_bytes:   bytes that may be written there now.
    bytes_per_s:  of all its writers together. None: not known; 0: not to be used.
    """

    free_bytes: int
    bytes_per_s: float | None


class WaitingSave(NamedTuple):
    """A save on its way to the repository: the bytes that this host still has to drain, and the
    bytes by tier that are free again then."""

    left_bytes: int
    freed_bytes: tuple[int, ...]


class TierChoice(NamedTuple):
    """The place to which a shard is written.

    place:        the number of a tier, or REPOSITORY.
    after:        how many of the saves on their way have to be drained before.
    predicted_s:  time until its memory is free, by each tier, and straight to the repository as the
                  last; None if it cannot be written there, or nothing is known.
    """

    place: int
    after: int
    predicted_s: tuple[float | None, ...]


def choose_tiers(
    sizes: Sequence[int],
    rooms: Sequence[TierRoom],
    line: Sequence[WaitingSave],
    repository_bytes_per_s: float | None,
) -> list[TierChoice]:
    """Choose where the ranks of a host write their shards, which all begin now: one rank after the
    other.

    sizes:  bytes of each rank's shard.
    line:   saves on their way, one after the other, at `repository_bytes_per_s` of this host;
            shards that go straight to the repository come after them.

    A tier of unknown bandwidth that has room is tried. While the repository's bandwidth is unknown,
    or 0, shards go straight to it only if no tier has room.
    """
    free = [room.free_bytes for room in rooms]
    done_s = [0.0] * len(rooms)  # when each tier will have written the shards chosen for it
    repository_s = _predict_drained_s(line, repository_bytes_per_s)
    choices = []
    for size in sizes:
        predicted: list[float | None] = []
        best, best_s, best_after = (
            REPOSITORY,
            _predict_end_s(repository_s, size, repository_bytes_per_s),
            len(line),
        )
        tried = False
        for number, room in enumerate(rooms):
            after = _count_saves_before_room(size, free[number], line, number)
            wait_s = (
                None if after is None else _predict_drained_s(line[:after], repository_bytes_per_s)
            )
            end_s = None
            if after is not None and wait_s is not None and room.bytes_per_s != 0:
                begin_s = max(done_s[number], wait_s)
                end_s = _predict_end_s(begin_s, size, room.bytes_per_s)
                unknown = room.bytes_per_s is None and after == 0
                sooner = end_s is not None and (best_s is None or end_s < best_s)
                if not tried and (unknown or sooner):
                    best, best_s, best_after, tried = number, end_s, after, unknown
            predicted.append(end_s)
        predicted.append(_predict_end_s(repository_s, size, repository_bytes_per_s))
        choices.append(TierChoice(best, best_after, tuple(predicted)))
        if best == REPOSITORY:
            repository_s = best_s
        else:
            free[best] -= size
            done_s[best] = done_s[best] if best_s is None else best_s
    return choices


def _predict_end_s(begin_s: float | None, size: int, bytes_per_s: float | None) -> float | None:
    """Predict when a write of this size has ended that begins at `begin_s`."""
    if begin_s is None or not bytes_per_s:
        return None
    return begin_s + size / bytes_per_s


def _predict_drained_s(line: Sequence[WaitingSave], bytes_per_s: float | None) -> float | None:
    """Predict when all of these saves are drained."""
    return _predict_end_s(0.0, sum(save.left_bytes for save in line), bytes_per_s) if line else 0.0


def _count_saves_before_room(
    size: int, free: int, line: Sequence[WaitingSave], number: int
) -> int | None:
    """Count the saves that have to be drained before a tier has room; None if all of them do not
    suffice."""
    for after, save in enumerate([None, *line]):
        free += save.freed_bytes[number] if save is not None else 0
        if free >= size:
            return after
    return None


class Rates:
    """Bandwidth of the places of a host, as moving averages of measurements."""

    def __init__(self, places: Sequence[int]) -> None:
        self._bytes_per_s: dict[int, float | None] = dict.fromkeys(places)
        self._unused = dict.fromkeys(places, 0)

    def __getitem__(self, place: int) -> float | None:
        """Return the bandwidth in bytes/s; None: not known; 0: the place failed."""
        return self._bytes_per_s[place]

    def record_measurement(self, place: int, size: int, seconds: float) -> None:
        """Record that all writers of a host together wrote this many bytes there in this time."""
        if size and seconds > 0:
            before, now = self._bytes_per_s[place], size / seconds
            self._bytes_per_s[place] = _WEIGHT * now + (1 - _WEIGHT) * before if before else now
            self._unused[place] = 0

    def record_failure(self, place: int) -> None:
        """Record that a place failed: it is not to be used for some time."""
        self._bytes_per_s[place], self._unused[place] = 0.0, 0

    def record_save(self) -> None:
        """Record that places were chosen for one more save."""
        for place, unused in self._unused.items():
            self._unused[place] = unused + 1
            if unused >= _FORGET_SAVES and place != REPOSITORY:
                self._bytes_per_s[place] = None
