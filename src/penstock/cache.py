"""The cache of a job: what each node keeps of the data, agreed on by all ranks at first use.

`join` is called on every rank. The ranks tell each other where they are, those of one host share a
slab, everybody works out the same placement, and each gets an engine that knows all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import limits
from .addressed import Addressed
from .assignment import Locality
from .budget import Budget
from .cached import CachedEngine
from .dataset import Dataset
from .disk_tier import DiskTier
from .engines import engine_for
from .errors import UsageError
from .index import Index
from .membership import Gather, gather_of, host_identity, reachable_address, told
from .placement import Placement, lots_fitting
from .tier import RamTier, alignment_default
from .topology import Place

if TYPE_CHECKING:
    from .zeromq_peer import ZeroMQPeer

log = logging.getLogger("penstock")
_seed = 0x70656E73746F636B
"""Of the placement: the same in every run, so that what lies on a disk is found again."""


_page_bytes = 4096  # where lots begin on a disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What the ranks of a host keep of the data, together.

    ram_bytes:  of this host's memory, shared by its ranks. Hosts may give different amounts.
    disk_path:  folder on a local disk of this host, for what its memory cannot hold. Later runs of
                the same data on as many hosts and ranks, with as much memory, find it filled.
    disk_bytes: most that the folder may hold.
    lot_bytes:  neighbouring samples that are read and kept together have about so many; None
                chooses: single samples where each is a file of its own or larger than 64 KiB.
    host:       name of this host, the same for the ranks that share its memory; None finds it. For
                hosts that are emulated, or containers that see each other's processes.
    listen:     address at which this host's ranks are reached by the others; None finds it.
    gather:     how ranks tell each other who they are, where neither torch.distributed nor MPI
                started them: a function of a text that returns the texts of all ranks in order.

    Whatever it is, batches are the same; samples that fit nowhere are read each time.
    """

    ram_bytes: int
    disk_path: str | None = None
    disk_bytes: int = 0
    lot_bytes: int | None = None
    host: str | None = None
    listen: str | None = None
    gather: Gather | None = None

    def __post_init__(self) -> None:
        for name, least in (("ram_bytes", 0), ("disk_bytes", 0), ("lot_bytes", 1)):
            value = getattr(self, name)
            if value is None and name == "lot_bytes":
                continue
            if type(value) is not int or value < least:
                raise UsageError(f"Cache.{name} is {value!r}: use a number of bytes from {least}")
        if bool(self.disk_bytes) != (self.disk_path is not None):
            raise UsageError(
                f"Cache.disk_path is {self.disk_path!r} and disk_bytes {self.disk_bytes:,}: give "
                "both or none"
            )


class Joined(NamedTuple):
    """A rank's part of the cache; `place` is the rank's, of the world that it was shared with."""

    place: Place
    engine: CachedEngine
    locality: Locality
    addressed: Addressed


@dataclass(frozen=True, slots=True)
class _Job:
    """What all ranks agree on.

    name:    made up for this job; nobody else knows it.
    nodes:   of each rank.
    leaders: of each node, its first rank, which makes what the others attach to.
    """

    name: str
    place: Place
    fingerprint: str
    placement: Placement
    nodes: tuple[int, ...]
    leaders: tuple[int, ...]

    @property
    def node(self) -> int:
        """Of this rank."""
        return self.nodes[self.place.rank]

    @property
    def slots(self) -> tuple[int, int]:
        """Lots that this node keeps in memory, and on its disk."""
        share = self.placement.shares[self.node]
        ram = min(share, self.placement.ram_lots[self.node])
        return ram, share - ram

    def identity(self, lasting: bool) -> bytes:
        """Of a tier: the same for later jobs that place the data alike, or of this job alone."""
        text = f"{self.placement}/{self.node}" if lasting else self.name
        return hashlib.blake2b(f"{self.fingerprint}/{text}".encode(), digest_size=16).digest()


def join(dataset: Dataset, cache: Cache, place: Place, budget: Budget) -> Joined:
    """Take part in the cache; called on all ranks.

    Raises UsageError where the ranks are of different minds (other data, other lots), and on all
    ranks where one of them cannot take part.
    """
    index = dataset.index
    gather = gather_of(place, sys.modules, os.environ, cache.gather)
    job = _agreed(dataset, place, told(gather, place, lambda: _introduction(dataset, cache)))
    addressed = Addressed(index)
    with contextlib.ExitStack() as opened:
        parts = _Parts()
        opened.callback(parts.close)
        members = told(gather, place, lambda: parts.make(job, index, cache))
        # Who has made something keeps it until all have attached.
        told(gather, place, lambda: parts.attach(job, members))
        assert parts.slab is not None
        engine = CachedEngine(
            addressed,
            engine_for(index.files, budget, index.mean_bytes),
            job.placement,
            job.nodes,
            place.rank,
            parts.slab,
            parts.disk,
            parts.peer,
        )
        opened.pop_all()
    if place.rank == 0:
        kept = "%s: %d hosts keep %.0f %% of the samples, in lots of %d"
        placement = job.placement
        log.info(kept, dataset.path, placement.nodes, 100 * placement.kept, placement.lot)
    return Joined(place, engine, Locality(job.placement, job.nodes), addressed)


def _introduction(dataset: Dataset, cache: Cache) -> dict[str, Any]:
    """What a rank says first."""
    Addressed(dataset.index)  # what cannot be cached is told to all
    return {
        "host": cache.host or host_identity(),
        "ram_bytes": cache.ram_bytes,
        "disk_bytes": cache.disk_bytes,
        "data": dataset.fingerprint,
        "lot": lot_of(dataset.index, cache.lot_bytes),
        "job": secrets.token_hex(16),
    }


def _agreed(dataset: Dataset, place: Place, members: list[dict[str, Any]]) -> _Job:
    """The same on every rank."""
    first = members[0]
    for name, remedy in (("data", "open the same data"), ("lot", "give the same lot_bytes")):
        for rank, member in enumerate(members):
            if member[name] != first[name]:
                raise UsageError(
                    f"rank {rank} has {name} {member[name]} and rank 0 {first[name]}: {remedy} on "
                    "all ranks"
                )
    hosts = list(dict.fromkeys(member["host"] for member in members))
    nodes = tuple(hosts.index(member["host"]) for member in members)
    leaders = tuple(nodes.index(node) for node in range(len(hosts)))
    index, lot = dataset.index, first["lot"]
    placement = Placement(
        index.count,
        tuple(lots_in(index, lot, members[k]["ram_bytes"], alignment_default) for k in leaders),
        tuple(lots_in(index, lot, members[k]["disk_bytes"], _page_bytes) for k in leaders),
        tuple(nodes.count(node) for node in range(len(hosts))),
        seed=_seed,
        lot=lot,
    )
    return _Job(first["job"], place, dataset.fingerprint, placement, nodes, leaders)


class _Parts:
    """What a rank has of the cache while it is put together."""

    def __init__(self) -> None:
        self.slab: RamTier | None = None
        self.disk: DiskTier | None = None
        self.peer: ZeroMQPeer | None = None

    def make(self, job: _Job, index: Index, cache: Cache) -> dict[str, Any]:
        """What this rank makes for others; returns where they find it."""
        saying: dict[str, Any] = {}
        ram, on_disk = job.slots
        if job.leaders[job.node] == job.place.rank:
            enough = index.total_bytes + alignment_default * ram + limits.slab_spare_bytes
            self.slab = RamTier.create(
                max(1, ram), min(cache.ram_bytes, enough), job.identity(lasting=False)
            )
            saying["slab"] = self.slab.address
            if on_disk and cache.disk_path is not None:
                identity = job.identity(lasting=True)
                self.disk = DiskTier.open(cache.disk_path, on_disk, cache.disk_bytes, identity)
                saying["disk"] = (self.disk.folder, self.disk.address)
        if job.placement.nodes > 1:
            from .zeromq_peer import KeyPair, ZeroMQPeer  # its library is optional

            keys = KeyPair.made()
            host = cache.listen or reachable_address(os.environ)
            self.peer = ZeroMQPeer(job.place.rank, f"{job.name}/{job.fingerprint}", keys, host)
            saying["peer"] = (self.peer.address, keys.public.decode())
        return saying

    def attach(self, job: _Job, members: list[dict[str, Any]]) -> dict[str, Any]:
        """Take what others have made."""
        leader = members[job.leaders[job.node]]
        if self.slab is None:
            self.slab = RamTier.attach(tuple(leader["slab"]), job.identity(lasting=False))
        if self.disk is None and "disk" in leader:
            folder, address = leader["disk"]
            self.disk = DiskTier.attach(folder, tuple(address), job.identity(lasting=True))
        if self.peer is not None:
            from .zeromq_peer import Member

            met = (member["peer"] for member in members)
            self.peer.meet({rank: Member(at, key.encode()) for rank, (at, key) in enumerate(met)})
        return {}

    def close(self) -> None:
        for part in (self.peer, self.disk, self.slab):
            if part is not None:
                part.close()


def lot_of(index: Index, lot_bytes: int | None) -> int:
    """Samples of a lot."""
    alone = len(index.files) >= index.count * len(index.fields)
    if lot_bytes is None and (alone or index.mean_bytes >= limits.lot_bytes_default):
        return 1
    wanted = limits.lot_bytes_default if lot_bytes is None else lot_bytes
    return max(1, min(index.count, int(wanted // max(1.0, index.mean_bytes))))


def lots_in(index: Index, lot: int, room_bytes: int, alignment: int) -> int:
    """How many lots fit for sure, or nearly so: where lengths vary, the sum of so many exceeds its
    mean by three standard deviations once in 700 cases, and then a lot is left out."""
    mean, deviation = lot_statistics(index, lot, alignment)
    total = -(-index.count // lot)
    if room_bytes >= total * mean + limits.slab_spare_bytes:
        return total
    return min(total, lots_fitting(room_bytes, mean, deviation))


def lot_statistics(index: Index, lot: int, alignment: int) -> tuple[float, float]:
    """Mean bytes that a lot takes, and their standard deviation."""
    total = -(-index.count // lot)
    some = np.linspace(0, total - 1, min(total, limits.lots_looked_at)).astype(np.int64)
    ids = (some[:, None] * lot + np.arange(lot)).reshape(-1)
    ids = np.minimum(ids, index.count - 1).astype(np.uint64)
    size = sum(
        (index.lengths(ids, field) for field in range(len(index.fields))),
        np.zeros(len(ids), np.int64),
    )
    lots = size.reshape(-1, lot).sum(axis=1)
    padding = float((-lots % alignment).mean())
    return max(1.0, index.mean_bytes * lot + padding), float(lots.std())
