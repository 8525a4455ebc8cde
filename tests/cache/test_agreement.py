"""The agreement of all ranks, made of their introductions alone."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from penstock.cache.agreement import CacheAgreement, _agree, _locate_coordinates
from penstock.cache.key_index import Addressed
from penstock.cache.shared_memory import alignment_default
from penstock.extent import Files
from penstock.index import Field, Index
from penstock.index.layout import Fixed, RowTable
from penstock.plan.cache_blocks import count_cache_blocks, measure_cache_blocks
from penstock.ranks.place import Place

FIELD = Field("data", np.dtype(np.uint8), (512,))
FILES = Files.of("/data", ["a.bin"], np.full(1, 512 * 10**6), np.full(1, 10**18))
INDEX = Index(
    "records", FILES, (FIELD,), (Fixed(np.array([0, 10**6]), np.zeros(1, np.int64), 512),), FILES
)


def introduce(ranks: int, hosts: int, seed: int) -> list[dict[str, Any]]:
    """Introductions of ranks that were dealt to hosts of three sizes by chance."""
    chance = random.Random(seed)
    where = [*range(hosts), *(chance.randrange(hosts) for _ in range(ranks - hosts))]
    chance.shuffle(where)
    return [
        {
            "host": f"host{host}",
            "name": f"host{host}",
            "coordinate": rank // 2,
            "world_size": -(-ranks // 2),
            "ram_bytes": 10**7 * (1 + host % 3),
            "disk_bytes": 0,
            "replicas": False,
            "job": "job",
        }
        for rank, host in enumerate(where)
    ]


def agree(members: list[dict[str, Any]]) -> CacheAgreement:
    """The agreement as rank 0 makes it."""
    return _agree(Addressed(INDEX), Place(0, len(members)), members, 8)


def test_hosts_are_numbered_by_their_first_ranks() -> None:
    """Nodes, leaders, room and readers are what going through all ranks for each host gives."""
    for seed in range(20):
        members = introduce(60, 9, seed)
        hosts = list(dict.fromkeys(member["host"] for member in members))
        job = agree(members)
        assert job.nodes == tuple(hosts.index(member["host"]) for member in members)
        assert job.leaders == tuple(job.nodes.index(node) for node in range(9))
        room = [members[rank]["ram_bytes"] for rank in job.leaders]
        assert job.placement.ram_cache_blocks == tuple(
            count_cache_blocks(Addressed(INDEX), 8, size, alignment_default) for size in room
        )
        readers = [{m["coordinate"] for m in members if m["host"] == host} for host in hosts]
        assert job.placement.ranks == tuple(map(len, readers))
        first = {m["coordinate"]: m["host"] for m in reversed(members)}
        nodes = _locate_coordinates(members, "strided")
        assert nodes == tuple(hosts.index(first[number]) for number in range(30))


def test_hosts_keep_equal_bytes() -> None:
    """Hosts' bytes differ by two cache blocks at most, whatever the sizes and order of samples."""
    length = np.arange(10_000) % 997
    rows = RowTable(np.zeros(10_000, np.uint32), np.cumsum(length) - length, length)
    field = Field("data", np.dtype(np.uint8), None)
    source = Addressed(Index("rows", FILES, (field,), (rows,), FILES))
    members = [member | {"ram_bytes": 10**7} for member in introduce(9, 9, 1)]
    placement = _agree(source, Place(0, 9), members, 4).placement
    held = np.bincount(placement.owners(np.arange(10_000)), length, 9) / length.mean()
    counts = np.array(placement.shares) * 4
    assert np.ptp(held) < 2 * 4 * 997 / length.mean() < np.ptp(counts)


def test_cache_blocks_are_measured_once_for_each_size_of_hosts() -> None:
    """Three sizes of memory and no disk: four counts, however many hosts there are."""
    calls = 0

    def watch(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is measure_cache_blocks.__code__

    members = introduce(200, 100, 1)
    sys.setprofile(watch)
    try:
        agree(members)
    finally:
        sys.setprofile(None)
    assert calls == 4
