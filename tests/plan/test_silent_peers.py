"""Silent peers: who is asked, and what it takes to know it in a large job."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.plan.silent_peers import SilentPeers


class CountedNodes(list[int]):
    """Nodes of ranks, which count how often they are gone through."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def test_ranks_of_a_node_are_asked_in_turns_of_who_asks() -> None:
    """Each rank asks another one of a node first, whatever the sequence of the nodes."""
    nodes = [0, 1, 2, 1, 0, 2, 1]
    for rank in range(len(nodes)):
        peers = SilentPeers(nodes, 3, rank)
        for node in range(3):
            others = [other for other, at in enumerate(nodes) if at == node]
            assert peers.choose(node) == others[rank % len(others)]


def test_the_nodes_of_all_ranks_are_gone_through_once() -> None:
    """What is made for a job of many hosts grows with its ranks, not with ranks times hosts."""
    nodes = CountedNodes(rank // 8 for rank in range(800))
    SilentPeers(nodes, 100, 3)
    assert nodes.walks == 1
