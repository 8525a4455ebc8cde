"""Ranks that exchange texts, message by message, on a described network.

`StoreExchange` is what `penstock.ranks.gather` does through the store of the process group: each
rank puts its text there and gets those of all, one after the other. `TreeExchange` is a design that
is not built: the ranks of a host speak through one of them, hosts send summaries up a tree, and one
decision comes down. Both are simulated in whole nanoseconds by the queue of the simulator.

A message takes the network's latency and the time of its bytes on the link of the busier end, which
also handles it, one message after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock_sim.event_queue import EventQueue

from .costs import HOST_RANKS


class MessageCosts(NamedTuple):
    """Costs of a message.

    handling_ns:   of a processor at the end that serves many, a message.
    latency_ns:    from one host to another.
    bytes_per_ns:  of a host's link.
    """

    handling_ns: int
    latency_ns: int = 5_000
    bytes_per_ns: float = 12.5

    def serve_ns(self, size: float) -> int:
        """Time for which a message of so many bytes keeps the busier end."""
        return self.handling_ns + int(size / self.bytes_per_ns)


class Exchange(NamedTuple):
    """An exchange that has ended.

    seconds:      until the last rank goes on.
    messages:     of all ends.
    busy_bytes:   that pass the busiest end.
    rank_bytes:   that a rank is left with.
    """

    seconds: float
    messages: int
    busy_bytes: float
    rank_bytes: float


class StoreExchange:
    """One exchange of texts through a store, of which each rank gets one key at a time."""

    def __init__(self, world: int, text_bytes: int, costs: MessageCosts) -> None:
        self._world, self._bytes, self._costs = world, text_bytes, costs
        self._queue = EventQueue()
        self._free_ns = self._messages = 0
        self._busy_bytes = 0.0
        self._set: set[int] = set()
        self._waiting: dict[int, list[Callable[[], None]]] = defaultdict(list)

    def run(self) -> Exchange:
        """Simulate it: each rank counts its turn, sets its text, gets all and deletes its last."""
        for rank in range(self._world):
            self._ask(8, partial(self._set_text, rank))
        while self._queue.step():
            pass
        received = float(self._world * self._bytes)
        return Exchange(self._queue.now_ns / 1e9, self._messages, self._busy_bytes, received)

    def _ask(self, size: int, then: Callable[[], None], key: int | None = None) -> None:
        """Ask the store, and go on when its answer has come: once a key is set, if one is named."""
        self._queue.add_in(self._costs.latency_ns, partial(self._serve, size, then, key))

    def _serve(self, size: int, then: Callable[[], None], key: int | None) -> None:
        if key is not None and key not in self._set:
            self._waiting[key].append(partial(self._serve, size, then, key))
            return
        start = max(self._queue.now_ns, self._free_ns)
        self._free_ns = start + self._costs.serve_ns(size)
        self._messages += 1
        self._busy_bytes += size
        self._queue.add(self._free_ns + self._costs.latency_ns, then)

    def _set_text(self, rank: int) -> None:
        self._ask(self._bytes, partial(self._note_text, rank))

    def _note_text(self, rank: int) -> None:
        self._set.add(rank)
        for call in self._waiting.pop(rank, []):
            call()
        self._get_text(0)

    def _get_text(self, key: int) -> None:
        if key < self._world:
            self._ask(self._bytes, partial(self._get_text, key + 1), key)
        else:
            self._ask(8, lambda: None)


def predict_store(world: int, text_bytes: int, costs: MessageCosts) -> Exchange:
    """The same in closed form: the store serves everybody's messages one after the other, and no
    rank is faster than its own, each of which waits for the one before."""
    asked = 2 * costs.serve_ns(8) + (world + 1) * costs.serve_ns(text_bytes)
    alone = (world + 3) * 2 * costs.latency_ns + asked
    messages = world * (world + 3)
    size = float(world * (16 + (world + 1) * text_bytes))
    seconds = max(world * asked + 2 * costs.latency_ns, alone) / 1e9
    return Exchange(seconds, messages, size, float(world * text_bytes))


class TreeExchange:
    """One exchange in a tree of hosts: summaries go up, and one decision comes down.

    fan:            hosts below each host of the tree.
    host_bytes:     of a host's summary, which the decision has too: room, ranks, version.
    """

    def __init__(
        self, world: int, text_bytes: int, costs: MessageCosts, fan: int = 32, host_bytes: int = 64
    ) -> None:
        self._costs, self._fan, self._host_bytes = costs, fan, host_bytes
        self._text_bytes = text_bytes
        self._hosts = -(-world // HOST_RANKS)
        self._world = world
        self._queue = EventQueue()
        self._messages = 0
        self._free_ns = [0] * self._hosts
        self._passed = [0.0] * self._hosts
        self._below = [1] * self._hosts  # hosts whose summaries have come, itself included
        self._missing = [len(self._children(host)) for host in range(self._hosts)]

    def run(self) -> Exchange:
        """Simulate it: texts within hosts, summaries to the root, the decision to all ranks."""
        for host in range(self._hosts):
            ranks = min(HOST_RANKS, self._world - host * HOST_RANKS)
            for _ in range(ranks - 1):
                self._pass(host, self._text_bytes)
            if not self._missing[host]:
                self._queue.add(self._free_ns[host], partial(self._send_up, host))
        while self._queue.step():
            pass
        decision = float(self._hosts * self._host_bytes)
        return Exchange(max(self._free_ns) / 1e9, self._messages, max(self._passed), decision)

    def _children(self, host: int) -> range:
        return range(
            min(self._hosts, host * self._fan + 1), min(self._hosts, (host + 1) * self._fan + 1)
        )

    def _pass(self, host: int, size: float) -> None:
        """Keep a host busy with a message from now on."""
        start = max(self._queue.now_ns, self._free_ns[host])
        self._free_ns[host] = start + self._costs.serve_ns(size)
        self._passed[host] += size
        self._messages += 1

    def _send_up(self, host: int) -> None:
        if host:
            self._queue.add_in(self._costs.latency_ns, partial(self._take_summary, host))
        else:
            self._send_down(0)

    def _take_summary(self, child: int) -> None:
        parent = (child - 1) // self._fan
        self._pass(parent, self._below[child] * self._host_bytes)
        self._below[parent] += self._below[child]
        self._missing[parent] -= 1
        if not self._missing[parent]:
            self._queue.add(self._free_ns[parent], partial(self._send_up, parent))

    def _send_down(self, host: int) -> None:
        size = self._hosts * self._host_bytes
        for child in self._children(host):
            self._pass(host, size)
            arrives_ns = self._free_ns[host] + self._costs.latency_ns
            self._queue.add(arrives_ns, partial(self._send_down, child))
        ranks = min(HOST_RANKS, self._world - host * HOST_RANKS)
        for _ in range(ranks - 1):  # through memory that they share
            self._pass(host, 0)
