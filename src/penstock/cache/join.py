"""The cache of a job: the part of the data that each node keeps, agreed on by all ranks at first
use.

`join_cache` is called on every rank. The ranks agree (`agreement`), make and attach to each other's
parts, and each gets an engine over all of them. Ranks of one host share a slab.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import limits
from ..budget import Budget
from ..engine.open import open_engine
from ..index.table import Index
from ..plan.assignment import Locality
from ..plan.steps import Assignment
from ..ranks.gather import exchange_values, find_gather, find_reachable_address, find_store
from ..ranks.place import Place, find_reader
from .disk import DiskTier
from .engine import CachedEngine
from .host_agreement import (
    Cache,
    CacheAgreement,
    agree,
    check_alike,
    choose_by_measuring,
    choose_without_measuring,
    introduce,
    locate_coordinates,
)
from .key_index import Addressed
from .peer import Peer
from .replicas import Replicas
from .slab import RamTier, alignment_default

log = logging.getLogger("penstock")


class CacheMembership(NamedTuple):
    """A rank's part of the cache.

    place:        data coordinate of the rank, among those that it was shared with.
    cache_block:  samples, reason, reached of `CacheBlockChoice`; if storage was measured for it,
                  also latency_ns, reads_per_s, bytes_per_s and took_s of `probe.Probed`.
    group:        the store of the process group there was, if there was one.
    neighbours:   data coordinates of the ranks of its host.
    """

    place: Place
    engine: CachedEngine
    locality: Locality
    addressed: Addressed
    cache_block: Mapping[str, Any]
    group: Any
    neighbours: tuple[int, ...]

    def holds(self, place: Place) -> bool:
        """True if this rank is where it was, among the ranks that it was among."""
        group = find_store(sys.modules)
        regrouped = None not in (group, self.group) and group is not self.group
        return place == self.place and not regrouped


def join_cache(
    index: Index,
    path: str,
    cache: Cache,
    place: Place,
    budget: Budget,
    assignment: Assignment = "strided",
) -> CacheMembership:
    """Join the cache of an index's samples; called on all ranks that read.

    path:   the data's, for people.
    place:  data coordinate. Ranks are numbered among the readers; their coordinates may be equal.

    Raises UsageError if the ranks disagree (other data, other cache blocks), and on all ranks if
    one of them cannot take part.
    """
    coordinate, place = place, find_reader(place, os.environ, sys.modules)
    leads = place.rank == 0
    gather = find_gather(coordinate, sys.modules, os.environ, cache.gather)
    members = exchange_values(
        gather, place, lambda: introduce(index, cache, gather, place, coordinate)
    )
    check_alike(members)
    cache_block = choose_without_measuring(index, members)
    if cache_block is None:
        (cache_block, *_) = exchange_values(
            gather, place, lambda: choose_by_measuring(index, budget) if leads else {}
        )
    coordinate_nodes = locate_coordinates(members, assignment)
    job = agree(index, place, members, cache_block["samples"])
    addressed = Addressed(index)
    with contextlib.ExitStack() as opened:
        parts = _CacheParts()
        opened.callback(parts.close)
        if job.placement.nodes > 1 and members[0]["peers"] == "mpi":
            parts.speak_mpi(job)
        introductions = exchange_values(gather, place, lambda: parts.make(job, index, cache))
        # Each rank keeps what it has made until all have attached.
        exchange_values(gather, place, lambda: parts.attach(job, introductions))
        assert parts.slab is not None
        engine = parts.engine = CachedEngine(
            addressed,
            open_engine(index.files, budget, index.mean_bytes),
            job.placement,
            job.nodes,
            place.rank,
            parts.slab,
            parts.disk,
            parts.peer,
            parts.replicas(job, index),
        )
        engine.adopt(budget)
        opened.pop_all()
    if leads:
        kept = "%s: %d hosts keep %.0f %% of the samples, in cache blocks of %d: %s; peers: %s"
        placement = job.placement
        share, peers = 100 * placement.kept, type(parts.peer).__name__ if parts.peer else "none"
        log.info(
            kept, path, placement.nodes, share, placement.cache_block, cache_block["reason"], peers
        )
        if cache.replicas:
            log.info("room for copies of what other hosts keep: %d bytes", job.left_bytes)
    group = find_store(sys.modules)
    locality = Locality(job.placement, coordinate_nodes)
    neighbours = tuple(sorted({members[rank]["coordinate"] for rank in job.neighbours}))
    return CacheMembership(coordinate, engine, locality, addressed, cache_block, group, neighbours)


class _CacheParts:
    """Parts of the cache that a rank has while it is put together."""

    def __init__(self) -> None:
        self.slab: RamTier | None = None
        self.disk: DiskTier | None = None
        self.peer: Peer | None = None
        self.replica_buffers: list[RamTier] = []  # of the ranks of this host
        self.engine: CachedEngine | None = None  # of these parts; its threads use them

    def speak_mpi(self, job: CacheAgreement) -> None:
        """Exchange samples by MPI; all ranks have to call this, or none."""
        from .mpi import MPIPeer, make_communicator

        self.peer = MPIPeer(make_communicator(job.place.rank), f"{job.name}/{job.fingerprint}")

    def make(self, job: CacheAgreement, index: Index, cache: Cache) -> dict[str, Any]:
        """Make the parts that others use; return where they find them."""
        saying: dict[str, Any] = {}
        ram, on_disk = job.slots
        layout = job.replica_buffer(index)
        if layout.pages:
            self.replica_buffers = [RamTier.create(1, layout.bytes, job.identity(lasting=False))]
            saying["replica_buffer"] = self.replica_buffers[0].address
        if job.leaders[job.node] == job.place.rank:
            enough = index.total_bytes + alignment_default * ram + limits.slab_spare_bytes
            self.slab = RamTier.create(
                max(1, ram),
                min(cache.ram_bytes - job.left_bytes, enough),
                job.identity(lasting=False),
            )
            saying["slab"] = self.slab.address
            if on_disk and cache.disk_path is not None:
                identity = job.identity(lasting=True)
                self.disk = DiskTier.open(
                    cache.disk_path, on_disk, cache.disk_bytes, identity, job.note
                )
                saying["disk"] = (self.disk.folder, self.disk.address)
        if job.placement.nodes > 1 and self.peer is None:
            from .zeromq import KeyPair, ZeroMQPeer  # its library is optional

            keys = KeyPair.generate()
            host = cache.listen or find_reachable_address(os.environ)
            peer = ZeroMQPeer(job.place.rank, f"{job.name}/{job.fingerprint}", keys, host)
            self.peer = peer
            saying["peer"] = (peer.address, keys.public.decode())
        return saying

    def attach(self, job: CacheAgreement, members: list[dict[str, Any]]) -> dict[str, Any]:
        """Attach to the parts that others have made."""
        leader = members[job.leaders[job.node]]
        if self.slab is None:
            self.slab = RamTier.attach(tuple(leader["slab"]), job.identity(lasting=False))
        if self.disk is None and "disk" in leader:
            folder, address = leader["disk"]
            self.disk = DiskTier.attach(folder, tuple(address), job.identity(lasting=True))
        if self.replica_buffers:
            (own,) = self.replica_buffers
            self.replica_buffers = [
                own
                if rank == job.place.rank
                else RamTier.attach(
                    tuple(members[rank]["replica_buffer"]), job.identity(lasting=False)
                )
                for rank in job.neighbours
            ]
        if "peer" in leader:
            from .zeromq import ZeromqMember, ZeroMQPeer

            assert isinstance(self.peer, ZeroMQPeer)
            met = (member["peer"] for member in members)
            self.peer.meet(
                {rank: ZeromqMember(at, key.encode()) for rank, (at, key) in enumerate(met)}
            )
        return {}

    def replicas(self, job: CacheAgreement, index: Index) -> Replicas | None:
        """Make replicas in these replica buffers, and keep the memory as long as the replicas."""
        if not self.replica_buffers:
            return None
        memories = [replica_buffer.data for replica_buffer in self.replica_buffers]
        own = job.neighbours.index(job.place.rank)
        return Replicas(job.replica_buffer(index), memories, own, len(index.fields))

    def close(self) -> None:
        for part in (self.engine, self.peer, self.disk, self.slab, *self.replica_buffers):
            if part is not None:
                part.close()
