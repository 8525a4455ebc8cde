"""Which tier a shard waits on, or none: VELOC's rule, in seconds until its memory is free again.

A tier is used only where that is predicted to be sooner than straight to the home, and a fast tier
is waited for where even that is sooner. Who compares the bandwidth that one writer gets with the
one at which all flush, as is easily done, chooses otherwise with another number of writers. Here
times are compared, and every bandwidth is of all writers of a host together.

Pure: figures in, choices out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HOME = -1
"""The place that is no tier: where checkpoints are committed."""

_FORGOTTEN_AFTER = 10
"""Saves after which a place that was not used is unknown again: what was slow, or full, or not
there, may be well by now."""
_WEIGHT = 0.5
"""Of the last figure in a moving average."""


class Room(NamedTuple):
    """A tier, as a host finds it before a save.

    free_bytes:   that may be written there now.
    bytes_per_s:  of all its writers together. None: not known; 0: it is not to be used.
    """

    free_bytes: int
    bytes_per_s: float | None


class WaitingSave(NamedTuple):
    """A save on its way home: what this host has to bring there still, and what its tiers have free
    again then."""

    left_bytes: int
    freed_bytes: tuple[int, ...]


class TierChoice(NamedTuple):
    """Where a shard is written.

    place:        the number of a tier, or HOME.
    after:        how many of the saves on their way have to be home before.
    predicted_s:  until its memory is free, by each tier, and straight to the home as the last; None
                  where it cannot be written, or nothing is known.
    """

    place: int
    after: int
    predicted_s: tuple[float | None, ...]


def dealt(
    sizes: Sequence[int],
    rooms: Sequence[Room],
    line: Sequence[WaitingSave],
    home_bytes_per_s: float | None,
) -> list[TierChoice]:
    """Where the ranks of a host write their shards, which all begin now: chosen one by one.

    sizes:  bytes of each rank's shard.
    line:   saves on their way home, one after the other, at `home_bytes_per_s` of this host; what
            goes straight there comes after them.

    A tier of unknown bandwidth that has room is tried. While the home's is unknown, or 0, straight
    is what remains where no tier has room.
    """
    free = [room.free_bytes for room in rooms]
    done_s = [0.0] * len(rooms)  # when each will have written what it was dealt
    home_s = _brought_s(line, home_bytes_per_s)
    choices = []
    for size in sizes:
        predicted: list[float | None] = []
        best, best_s, best_after = HOME, _later(home_s, size, home_bytes_per_s), len(line)
        tried = False
        for number, room in enumerate(rooms):
            after = _room_after(size, free[number], line, number)
            wait_s = None if after is None else _brought_s(line[:after], home_bytes_per_s)
            found_s = None
            if after is not None and wait_s is not None and room.bytes_per_s != 0:
                begin_s = max(done_s[number], wait_s)
                found_s = _later(begin_s, size, room.bytes_per_s)
                unknown = room.bytes_per_s is None and after == 0
                sooner = found_s is not None and (best_s is None or found_s < best_s)
                if not tried and (unknown or sooner):
                    best, best_s, best_after, tried = number, found_s, after, unknown
            predicted.append(found_s)
        predicted.append(_later(home_s, size, home_bytes_per_s))
        choices.append(TierChoice(best, best_after, tuple(predicted)))
        if best == HOME:
            home_s = best_s
        else:
            free[best] -= size
            done_s[best] = done_s[best] if best_s is None else best_s
    return choices


def _later(begin_s: float | None, size: int, bytes_per_s: float | None) -> float | None:
    """When so much has been written that begins then."""
    if begin_s is None or not bytes_per_s:
        return None
    return begin_s + size / bytes_per_s


def _brought_s(line: Sequence[WaitingSave], bytes_per_s: float | None) -> float | None:
    """When all of these are home."""
    return _later(0.0, sum(each.left_bytes for each in line), bytes_per_s) if line else 0.0


def _room_after(size: int, free: int, line: Sequence[WaitingSave], number: int) -> int | None:
    """How many saves have to be home before a tier has room; None where all do not suffice."""
    for after, each in enumerate([None, *line]):
        free += each.freed_bytes[number] if each is not None else 0
        if free >= size:
            return after
    return None


class Rates:
    """Bandwidth of the places of a host, by moving averages of what was measured there."""

    def __init__(self, places: Sequence[int]) -> None:
        self._found: dict[int, float | None] = dict.fromkeys(places)
        self._unused = dict.fromkeys(places, 0)

    def __getitem__(self, place: int) -> float | None:
        """In bytes/s; None: not known; 0: it failed."""
        return self._found[place]

    def measured(self, place: int, size: int, seconds: float) -> None:
        """All writers of a host together wrote so much there in that time."""
        if size and seconds > 0:
            before, now = self._found[place], size / seconds
            self._found[place] = _WEIGHT * now + (1 - _WEIGHT) * before if before else now
            self._unused[place] = 0

    def failed(self, place: int) -> None:
        """It is not to be used, for some time."""
        self._found[place], self._unused[place] = 0.0, 0

    def saved(self) -> None:
        """One more save was dealt."""
        for place, unused in self._unused.items():
            self._unused[place] = unused + 1
            if unused >= _FORGOTTEN_AFTER and place != HOME:
                self._found[place] = None
