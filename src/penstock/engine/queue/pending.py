"""The request queue: requests waiting and in progress, cut, merged and kept in order, by a
policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import NamedTuple

from ... import limits
from ...errors import LimitError, UsageError
from .policy import Policy, Target
from .request import Kind, Request, find_hazard, split_request

_Turn = tuple[int, int, int]
"""Rank, step, number: the smallest goes first."""
_Group = tuple[Kind, tuple[int, ...]]
"""Kind and holders: requests of one group may go to the same targets."""


class Unit(NamedTuple):
    """Requests that are sent to a target together.

    They are neighbours in one file, ascending, of one kind and one purpose.

    number:    number of the unit.
    target:    number of the target.
    requests:  requests, or pieces of them with the id of the whole.
    """

    number: int
    target: int
    requests: tuple[Request, ...]

    @property
    def offset(self) -> int:
        """Offset of the first byte."""
        return self.requests[0].offset

    @property
    def length(self) -> int:
        """Bytes, contiguous."""
        return self.requests[-1].end - self.requests[0].offset


@dataclass(slots=True, eq=False)
class _QueuedPiece:
    """A piece of a request that is not done.

    turn:    its own turn, or an earlier one of a piece that it holds up.
    before:  pieces that must be done first.
    after:   pieces that wait for it.
    gone:    it is in progress.
    """

    request: Request
    turn: _Turn
    before: set[_QueuedPiece] = field(default_factory=set)
    after: list[_QueuedPiece] = field(default_factory=list)
    gone: bool = False

    @property
    def group(self) -> _Group:
        return self.request.kind, self.request.holders


class RequestQueue:
    """Requests that wait for a few targets.

    Guarantees:
    - Every request is sent once, in pieces of at most `unit_bytes`.
    - A read returns the bytes written by the writes that were put before it, and the write that was
      put last remains: no two requests of which one writes bytes of the other are in progress
      together or out of order.
    - No target has more in progress than it accepts.
    - Pieces that nothing holds up are sent by the rank that the policy gave them, among those that
      a target with room can serve, and take their waiting neighbours along.
    - A piece that holds up a more urgent request is as urgent as that.

    No clock, no storage: call `put` as requests come, `take` while it returns units, `done` as
    units end, `withdraw` for a request that is not wanted any more.
    """

    def __init__(
        self,
        policy: Policy,
        targets: Sequence[Target],
        unit_bytes: int = limits.unit_bytes_default,
    ) -> None:
        if not targets:
            raise UsageError("targets is empty: give one Target or more")
        if type(unit_bytes) is not int or unit_bytes < 1:
            raise UsageError(f"unit_bytes is {unit_bytes!r}: use a whole number above 0")
        self._policy = policy
        self._targets = list(targets)
        self._unit_bytes = unit_bytes
        self._pieces = 0  # put so far
        self._units = 0
        self._last_ns = 0
        self._undone: dict[int, list[_QueuedPiece]] = {}
        self._of_file: dict[int, dict[int, Request]] = defaultdict(dict)
        self._ready: dict[_Group, list[tuple[_Turn, _QueuedPiece]]] = defaultdict(list)
        self._starts: dict[tuple[object, ...], list[_QueuedPiece]] = defaultdict(list)
        self._ends: dict[tuple[object, ...], list[_QueuedPiece]] = defaultdict(list)
        self._under_way: dict[int, list[_QueuedPiece]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of pieces that are not done."""
        return self._count

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets in their present state."""
        return tuple(self._targets)

    def update(self, number: int, target: Target) -> None:
        """Replace a target whose properties changed; its bytes in progress are known here and
        kept."""
        if not 0 <= number < len(self._targets):
            raise UsageError(f"target {number} does not exist: use 0..{len(self._targets) - 1}")
        queued = self._targets[number].queued_bytes
        self._targets[number] = replace(target, queued_bytes=queued)

    def put(self, request: Request) -> None:
        """Add a request. UsageError if its id is that of a request not done, its holders are no
        targets, or it arrived before the last one; LimitError beyond `limits.pieces_max`."""
        if request.id in self._undone:
            raise UsageError(f"request {request.id} is not done yet: give each an id of its own")
        if request.holders and max(request.holders) >= len(self._targets):
            raise UsageError(
                f"request {request.id} can be served by the targets {request.holders}: there are"
                f" {len(self._targets)}"
            )
        if request.arrived_ns < self._last_ns:
            raise UsageError(
                f"request {request.id} arrived at {request.arrived_ns} ns, before the last one at"
                f" {self._last_ns}: put requests as they come"
            )
        count = max(1, -(-request.length // self._unit_bytes))
        if self._count + count > limits.pieces_max:
            raise LimitError(
                f"request {request.id} has {count} pieces and {self._count} wait, more than"
                f" pieces_max {limits.pieces_max}: take and finish some first"
            )
        self._last_ns = request.arrived_ns
        self._count += count
        rank, step = self._policy.rank(request), request.step
        step = limits.order_count_max if step is None else step
        conflicting = [
            piece
            for earlier in self._of_file[request.file].values()
            if find_hazard(earlier, request)
            for piece in self._undone[earlier.id]
        ]
        own = []
        for part in split_request(request, self._unit_bytes):
            piece = _QueuedPiece(part, (rank, step, self._pieces))
            self._pieces += 1
            own.append(piece)
            piece.before.update(
                earlier for earlier in conflicting if find_hazard(earlier.request, part)
            )
            for predecessor in piece.before:
                predecessor.after.append(piece)
                self._hasten(predecessor, piece.turn)
            if not piece.before:
                self._release(piece)
        self._undone[request.id] = own
        self._of_file[request.file][request.id] = request

    def take(self) -> Unit | None:
        """Return the unit to send next; None if nothing may be sent before something ends or
        arrives."""
        heads = []
        for group in list(self._ready):
            waiting = self._ready[group]
            while waiting and (waiting[0][1].gone or waiting[0][1].turn != waiting[0][0]):
                heappop(waiting)  # it went as a neighbour, or was hastened
            if waiting:
                heads.append(waiting[0])
            else:
                del self._ready[group]
        for _, piece in sorted(heads, key=lambda head: head[0]):
            open_to = dict(self._list_targets(piece.request))
            if open_to:
                number = self._policy.choose(piece.request, open_to)
                if number not in open_to:
                    raise UsageError(
                        f"{self._policy!r} chose target {number!r} of {sorted(open_to)}: choose one"
                        " of these"
                    )
                return self._send(piece, number)
        return None

    def done(self, unit: Unit) -> list[int]:
        """Note that a unit ended, successfully or not; return the ids of the requests that ended
        with it."""
        parts = self._under_way.pop(unit.number, None)
        if parts is None:
            raise UsageError(f"unit {unit.number} is not in progress: call done once for each unit")
        target = self._targets[unit.target]
        queued = target.queued_bytes - sum(piece.request.length for piece in parts)
        self._targets[unit.target] = replace(target, queued_bytes=queued)
        self._count -= len(parts)
        ended = []
        for piece in parts:
            for later in piece.after:
                later.before.discard(piece)
                if not later.before:
                    self._release(later)
            if self._drop_piece(piece):
                ended.append(piece.request.id)
        return ended

    def withdraw(self, number: int) -> bool:
        """Remove what waits of a request; True if nothing of it is in progress. What it held up
        goes on."""
        for piece in [piece for piece in self._undone.get(number, ()) if not piece.gone]:
            if piece.before:
                piece.gone = True
                for earlier in piece.before:
                    earlier.after.remove(piece)
            else:
                self._forget(piece)
            self._count -= 1
            for later in piece.after:
                later.before.discard(piece)
                if not later.before:
                    self._release(later)
            self._drop_piece(piece)
        return number not in self._undone

    def _drop_piece(self, piece: _QueuedPiece) -> bool:
        """Drop a piece that ended; True if its request ended with it."""
        left = self._undone[piece.request.id]
        left.remove(piece)
        if left:
            return False
        del self._undone[piece.request.id]
        of_file = self._of_file[piece.request.file]
        del of_file[piece.request.id]
        if not of_file:
            del self._of_file[piece.request.file]
        return True

    def _list_targets(self, request: Request) -> Iterator[tuple[int, Target]]:
        for number in request.holders or range(len(self._targets)):
            if self._targets[number].has_room_for(request):
                yield number, self._targets[number]

    def _hasten(self, piece: _QueuedPiece, turn: _Turn) -> None:
        """Make a piece as urgent as the one it holds up, and likewise all that hold it up."""
        hastened = [piece]
        while hastened:
            blocker = hastened.pop()
            if blocker.gone or blocker.turn[:2] <= turn[:2]:
                continue
            blocker.turn = (*turn[:2], blocker.turn[2])
            if not blocker.before:
                heappush(self._ready[blocker.group], (blocker.turn, blocker))
            hastened += blocker.before

    def _release(self, piece: _QueuedPiece) -> None:
        """Make a piece ready, because nothing holds it up any more."""
        heappush(self._ready[piece.group], (piece.turn, piece))
        if piece.request.length:
            self._starts[_get_edge(piece, piece.request.offset)].append(piece)
            self._ends[_get_edge(piece, piece.request.end)].append(piece)

    def _send(self, piece: _QueuedPiece, number: int) -> Unit:
        """Send the piece with its neighbours, as far as there is room."""
        target = self._targets[number]
        room = max(
            piece.request.length,
            min(self._unit_bytes, target.queued_bytes_max - target.queued_bytes),
        )
        parts = [piece]
        self._forget(piece)
        length = piece.request.length
        for edges, last in ((self._starts, True), (self._ends, False)):
            while length:  # an empty piece has no neighbours
                at = parts[-1].request.end if last else parts[0].request.offset
                neighbours = edges.get(_get_edge(piece, at))
                if not neighbours or length + neighbours[0].request.length > room:
                    break
                neighbour = neighbours[0]
                self._forget(neighbour)
                length += neighbour.request.length
                parts.insert(len(parts) if last else 0, neighbour)
        self._targets[number] = replace(target, queued_bytes=target.queued_bytes + length)
        unit = Unit(self._units, number, tuple(part.request for part in parts))
        self._units += 1
        self._under_way[unit.number] = parts
        return unit

    def _forget(self, piece: _QueuedPiece) -> None:
        """Remove a piece that is sent from the waiting ones."""
        piece.gone = True
        if not piece.request.length:
            return
        for edges, at in (
            (self._starts, piece.request.offset),
            (self._ends, piece.request.end),
        ):
            pieces = edges[_get_edge(piece, at)]
            pieces.remove(piece)
            if not pieces:
                del edges[_get_edge(piece, at)]


def _get_edge(piece: _QueuedPiece, at: int) -> tuple[object, ...]:
    """Return the key under which a piece meets its neighbours that may be sent along."""
    request = piece.request
    return request.file, at, request.kind, request.purpose, request.holders
