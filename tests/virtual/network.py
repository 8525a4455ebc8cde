"""A network in virtual time: fetches between ranks, each of which is reported once.

It keeps the promises of `penstock.cache.peer`: a fetch ends with its bytes, with the keys that were
refused, or for a reason, within `limits.peer_timeout_s`; an answer that comes later is dropped. In
between messages are delayed, overtake each other, are lost or damaged, and links are cut one way,
as the seed has it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock import limits
from penstock.extent import Int
from penstock.plan import Keys
from penstock_sim.event_queue import EventQueue
from tests.virtual.node import Buffer, require
from tests.virtual.scenario import VirtualScenario

_timeout_ns = int(limits.peer_timeout_s * 1e9)
_silent_ns = int(limits.peer_silent_s * 1e9)
Ended = Callable[[Int, str | None], None]


class Asked(Protocol):
    """A rank that is asked for keys."""

    is_alive: bool

    def take_request(self, number: int, keys: Keys, lengths: Int) -> None: ...


@dataclass(eq=False)
class _SentFetch:
    """A fetch under way."""

    asker: int
    asked: int
    keys: Keys
    lengths: Int
    places: Sequence[Buffer]
    ended: Ended | None  # None once it is reported


class VirtualNetwork:
    """The network of all ranks; `ranks` are those that are there at the time."""

    def __init__(
        self,
        scenario: VirtualScenario,
        queue: EventQueue,
        draw: random.Random,
        ranks: Sequence[Asked],
    ) -> None:
        self._scenario, self._queue, self._draw = scenario, queue, draw
        self._ranks = ranks
        self.cut_until_ns: dict[tuple[int, int], int] = {}
        self.requests: dict[int, tuple[_SentFetch, Asked]] = {}
        self._sent: dict[Asked, list[int]] = {}  # bytes of answers on their way
        self._numbers = 0

    def sent_bytes(self, rank: Asked) -> int:
        """Return the bytes of answers of a rank that are being sent."""
        return sum(self._sent.get(rank, ()))

    def sends_one(self, rank: Asked) -> bool:
        """Tell whether a rank is sending one answer at most."""
        return len(self._sent.get(rank, ())) <= 1

    def unanswered(self, rank: Asked) -> int:
        """Return the number of requests that a rank has not answered."""
        return sum(asked is rank for _, asked in self.requests.values())

    def submit(
        self,
        asker: int,
        asked: int,
        keys: Keys,
        lengths: Int,
        places: Sequence[Buffer],
        ended: Ended,
    ) -> None:
        """Ask a rank for keys, which go to these places; `ended` is called once."""
        fetch = _SentFetch(asker, asked, keys, lengths, places, ended)
        self._queue.add_in(_timeout_ns, lambda: self._fail(fetch, "timeout"))
        if not self._is_lost(asker, asked):
            self._queue.add_in(self._delay_ns(), lambda: self._arrive(fetch))

    def answer(self, rank: Asked, number: int, data: Buffer, refused: Int) -> None:
        """Answer a request with the bytes of the keys that are not refused."""
        require(number in self.requests, f"request {number} is answered twice, or never came")
        fetch, asked = self.requests.pop(number)
        require(asked is rank, f"request {number} is answered by another rank")
        there = np.ones(len(fetch.keys), bool)
        there[refused] = False
        total = int(fetch.lengths[there].sum())
        require(len(data) == total, f"an answer has {len(data)} bytes where its keys have {total}")
        if total:
            self._sent.setdefault(rank, []).append(total)
        is_lost = self._is_lost(fetch.asked, fetch.asker)
        delay_ns = _silent_ns if is_lost else self._delay_ns()

        def deliver() -> None:
            if total:
                self._sent[rank].remove(total)
            if is_lost or fetch.ended is None:
                return
            if self._draw.random() < self._scenario.damaged:
                self._fail(fetch, "damaged")
                return
            at = 0
            for number in np.flatnonzero(there).tolist():
                place = fetch.places[number]
                place[:] = data[at : at + len(place)]
                at += len(place)
            self._end(fetch, refused, None)

        self._queue.add_in(delay_ns, deliver)

    def lose(self, rank: Asked) -> None:
        """Note that a rank has ended: its requests end for those who asked, sooner or later."""
        for request, (fetch, asked) in list(self.requests.items()):
            if asked is rank:
                del self.requests[request]
                if self._draw.random() < 0.5:
                    self._queue.add_in(self._delay_ns(), self._failing(fetch, "gone"))

    def _failing(self, fetch: _SentFetch, reason: str) -> Callable[[], None]:
        return lambda: self._fail(fetch, reason)

    def _arrive(self, fetch: _SentFetch) -> None:
        rank = self._ranks[fetch.asked]
        if fetch.ended is None:
            return
        if not rank.is_alive:
            self._fail(fetch, "gone")
        elif self._draw.random() < self._scenario.refused:
            self._fail(fetch, "refused")
        else:
            self._numbers += 1
            self.requests[self._numbers] = (fetch, rank)
            rank.take_request(self._numbers, fetch.keys, fetch.lengths)

    def _fail(self, fetch: _SentFetch, reason: str) -> None:
        self._end(fetch, np.arange(len(fetch.keys)), reason)

    def _end(self, fetch: _SentFetch, failures: Int, reason: str | None) -> None:
        if fetch.ended is not None:
            ended, fetch.ended = fetch.ended, None
            ended(failures, reason)

    def _is_lost(self, source: int, target: int) -> bool:
        is_cut = self.cut_until_ns.get((source, target), 0) > self._queue.now_ns
        return is_cut or self._draw.random() < self._scenario.lost

    def _delay_ns(self) -> float:
        return self._scenario.network_ns * self._draw.expovariate(1) + 1000
