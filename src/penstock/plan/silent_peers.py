"""Silent peers: which rank of a node is asked, and when a silent one is tried again. Pure.

A rank that did not answer is silent: nothing that a step waits for is asked of it. From
`limits.peer_pause_s` later on it is asked for one key that nobody waits for, a probe, and it counts
again once it answers. If all ranks of a node are silent, its keys are read from storage.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .. import limits

pause_ns = int(limits.peer_pause_s * 1e9)


class SilentPeers:
    """The ranks of each node, as `rank` asks them, and which of them are silent.

    nodes:  node of each rank.
    """

    def __init__(self, nodes: Sequence[int], node_count: int, rank: int) -> None:
        # The ranks that may be asked, the best one first; spread over who asks.
        self._ranks: list[deque[int]] = [deque() for _ in range(node_count)]
        for other, node in enumerate(nodes):
            self._ranks[node].append(other)
        for ranks in self._ranks:
            ranks.rotate(-rank)
        self._retry_ns: dict[int, float] = {}  # of silent ranks, when they are tried again

    def choose(self, node: int) -> int | None:
        """Return the rank of a node that is asked; None if all of them are silent."""
        return next((rank for rank in self._ranks[node] if rank not in self._retry_ns), None)

    def take_due(self, node: int, now_ns: int) -> list[int]:
        """Return the silent ranks of a node that are to be probed now, each until it is noted."""
        if not self._retry_ns:
            return []
        due = [rank for rank in self._ranks[node] if self._retry_ns.get(rank, math.inf) <= now_ns]
        self._retry_ns |= dict.fromkeys(due, math.inf)
        return due

    def note(self, rank: int, has_answered: bool, now_ns: int) -> None:
        """Note that a rank has answered, or has not."""
        if has_answered:
            self._retry_ns.pop(rank, None)
        else:
            self._retry_ns[rank] = now_ns + pause_ns
