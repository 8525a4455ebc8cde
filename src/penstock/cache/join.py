"""The cache of a job: what each node keeps of the data, agreed on by all ranks at first use.

`join_cache` is called on every rank. The ranks tell each other where they are, those of one host
share a slab, everybody works out the same placement, and each gets an engine that knows all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import struct
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from .. import limits
from ..budget import Budget
from ..engine import open_engine
from ..errors import PenstockError, UsageError
from ..index import Index, measure_cost, summarize_cost
from ..plan import (
    CacheBlockChoice,
    Locality,
    Placement,
    choose_cache_block,
    count_cache_blocks,
    required_bytes,
    sample_key_lengths,
    samples_per_block,
)
from ..topology import Place
from .disk import DiskTier, noted
from .engine import CachedEngine
from .key_index import Addressed
from .peer import Peer
from .rendezvous import (
    Gather,
    find_store,
    gather_of,
    host_identity,
    is_mpi,
    reachable_address,
    told,
)
from .replicas import Layout, Replicas
from .shared_memory import RamTier, alignment_default

log = logging.getLogger("penstock")
_seed = 0x70656E73746F636B
"""Of the placement: the same in every run, so that what lies on a disk is found again."""


_page_bytes = 4096  # where cache blocks begin on a disk
_note = struct.Struct(
    "<16sQ"
)  # of which data, and the samples of a cache block: what a disk is noted with


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What the ranks of a host keep of the data, together.

    ram_bytes:  of this host's memory, shared by its ranks. Hosts may give different amounts.
    disk_path:  folder on a local disk of this host, for what its memory cannot hold. Later runs of
                the same data on as many hosts and ranks, with as much memory, find it filled.
    disk_bytes: most that the folder may hold.
    cache_block_bytes:  neighbouring samples that are read and kept together have about so many. None: cache blocks
                as a disk of the job has them from a run before; else single samples where these are
                files of their own or have 1 MiB, and else the smallest cache blocks that a few timed reads
                of rank 0 (0.2 s) show to be read about as fast as large ones: see
                `loader.stats()["cache_block"]`. Give it where each rank is to have the same samples in each
                run, with assignment="local".
    replicas:   whether what the memory of this host has left, beyond its share of the data, holds
                copies of what its ranks use next of the other hosts' shares: for assignment
                "strided" and "contiguous".
    host:       name of this host, the same for the ranks that share its memory; None finds it. For
                hosts that are emulated, or containers that see each other's processes.
    listen:     address at which this host's ranks are reached by the others; None finds it.
    gather:     how ranks tell each other who they are, where neither torch.distributed nor MPI
                started them: a function of a text that returns the texts of all ranks in order.
    peers:      how hosts exchange samples: "zeromq", "mpi", or "auto", which is MPI where the
                ranks found each other by it and it lets threads take part. MPI neither encrypts
                nor goes on when a host dies.

    Whatever it is, batches are the same; samples that fit nowhere are read each time.
    """

    ram_bytes: int
    disk_path: str | None = None
    disk_bytes: int = 0
    cache_block_bytes: int | None = None
    replicas: bool = False
    host: str | None = None
    listen: str | None = None
    gather: Gather | None = None
    peers: Literal["auto", "zeromq", "mpi"] = "auto"

    def __post_init__(self) -> None:
        for name, least in (("ram_bytes", 0), ("disk_bytes", 0), ("cache_block_bytes", 1)):
            value = getattr(self, name)
            if value is None and name == "cache_block_bytes":
                continue
            if type(value) is not int or value < least:
                raise UsageError(f"Cache.{name} is {value!r}: use a number of bytes from {least}")
        if type(self.replicas) is not bool:
            raise UsageError(f"Cache.replicas is {self.replicas!r}: use True or False")
        if bool(self.disk_bytes) != (self.disk_path is not None):
            raise UsageError(
                f"Cache.disk_path is {self.disk_path!r} and disk_bytes {self.disk_bytes:,}: give "
                "both or none"
            )
        if self.peers not in ("auto", "zeromq", "mpi"):
            raise UsageError(f'Cache.peers is {self.peers!r}: use "auto", "zeromq" or "mpi"')


class CacheMembership(NamedTuple):
    """A rank's part of the cache.

    place:  of the rank, in the world that it was shared with.
    cache block:    samples, reason, reached of `CacheBlockChoice`; where storage was measured for it, latency_ns,
            reads_per_s, bytes_per_s and took_s of `probe.Probed`.
    group:  the store of the process group there was, if there was one.
    neighbours: the ranks of its host.
    """

    place: Place
    engine: CachedEngine
    locality: Locality
    addressed: Addressed
    cache_block: Mapping[str, Any]
    group: Any
    neighbours: tuple[int, ...]

    def holds(self, place: Place) -> bool:
        """Whether this rank is where it was, among the ranks that it was among."""
        group = find_store(sys.modules)
        regrouped = None not in (group, self.group) and group is not self.group
        return place == self.place and not regrouped


@dataclass(frozen=True, slots=True)
class _Job:
    """What all ranks agree on.

    name:    made up for this job; nobody else knows it.
    nodes:   of each rank.
    leaders: of each node, its first rank, which makes what the others attach to.
    left_bytes: of this node's memory, beyond what its share takes; 0 where no replicas are wanted.
    """

    name: str
    place: Place
    fingerprint: str
    placement: Placement
    nodes: tuple[int, ...]
    leaders: tuple[int, ...]
    left_bytes: int

    @property
    def node(self) -> int:
        """Of this rank."""
        return self.nodes[self.place.rank]

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks of this node."""
        return tuple(rank for rank, node in enumerate(self.nodes) if node == self.node)

    def replica_buffer(self, index: Index) -> Layout:
        """How each rank of this node divides its part of what is left."""
        return Layout.of(self.left_bytes // len(self.neighbours), sample_key_lengths(index))

    @property
    def slots(self) -> tuple[int, int]:
        """Cache blocks that this node keeps in memory, and on its disk."""
        share = self.placement.shares[self.node]
        ram = min(share, self.placement.ram_cache_blocks[self.node])
        return ram, share - ram

    @property
    def note(self) -> bytes:
        """For later runs, which have to place the data alike."""
        return _note.pack(_digest(self.fingerprint), self.placement.cache_block)

    def identity(self, lasting: bool) -> bytes:
        """Of a tier: the same for later jobs that place the data alike, or of this job alone."""
        text = f"{self.placement}/{self.node}" if lasting else self.name
        return _digest(f"{self.fingerprint}/{text}")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def join_cache(
    index: Index, path: str, cache: Cache, place: Place, budget: Budget
) -> CacheMembership:
    """Take part in the cache of an index's samples; called on all ranks.

    path:  the data's, for people.

    Raises UsageError where the ranks are of different minds (other data, other cache blocks), and on all
    ranks where one of them cannot take part.
    """
    leads = place.rank == 0
    gather = gather_of(place, sys.modules, os.environ, cache.gather)
    members = told(gather, place, lambda: _introduction(index, cache, gather, place))
    _check_alike(members)
    cache_block = _cache_block_without_measuring(index, members)
    if cache_block is None:
        (cache_block, *_) = told(gather, place, lambda: _measured(index, budget) if leads else {})
    job = _agreed(index, place, members, cache_block["samples"])
    addressed = Addressed(index)
    with contextlib.ExitStack() as opened:
        parts = _Parts()
        opened.callback(parts.close)
        if job.placement.nodes > 1 and members[0]["peers"] == "mpi":
            parts.speak_mpi(job)
        made = told(gather, place, lambda: parts.make(job, index, cache))
        # Who has made something keeps it until all have attached.
        told(gather, place, lambda: parts.attach(job, made))
        assert parts.slab is not None
        engine = CachedEngine(
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
    locality = Locality(job.placement, job.nodes)
    return CacheMembership(place, engine, locality, addressed, cache_block, group, job.neighbours)


def _peers(cache: Cache, gather: Gather, place: Place) -> str:
    """How this rank would exchange samples."""
    if cache.peers == "zeromq" or (cache.peers == "auto" and not is_mpi(gather)):
        return "zeromq"
    from .mpi import unusable  # its library is optional

    why = unusable(place.world_size)
    if why is None:
        return "mpi"
    if cache.peers == "mpi":
        raise UsageError(f'Cache.peers is "mpi": {why}, or use "zeromq"')
    log.info("hosts exchange samples over ZeroMQ: %s", why)
    return "zeromq"


def _introduction(index: Index, cache: Cache, gather: Gather, place: Place) -> dict[str, Any]:
    """What a rank says first."""
    Addressed(index)  # what cannot be cached is told to all
    return {
        "host": cache.host or host_identity(),
        "ram_bytes": cache.ram_bytes,
        "disk_bytes": cache.disk_bytes,
        "replicas": cache.replicas,
        "data": index.fingerprint,
        "cache_block_bytes": cache.cache_block_bytes,
        "cache_block_on_disk": _cache_block_on_disk(index, cache),
        "job": secrets.token_hex(16),
        "peers": _peers(cache, gather, place),
    }


def _check_alike(members: list[dict[str, Any]]) -> None:
    first = members[0]
    for name, remedy in (
        ("data", "open the same data"),
        ("cache_block_bytes", "give the same cache_block_bytes"),
        ("peers", "give the same peers"),
    ):
        for rank, member in enumerate(members):
            if member[name] != first[name]:
                raise UsageError(
                    f"rank {rank} has {name} {member[name]} and rank 0 {first[name]}: {remedy} on "
                    "all ranks"
                )


def _cache_block_on_disk(index: Index, cache: Cache) -> int | None:
    """Samples of a lot of this data, as an earlier run has left them."""
    note = None if cache.disk_path is None else noted(cache.disk_path)
    if note is None:
        return None
    data, cache_block = _note.unpack(note)
    of_this = data == _digest(index.fingerprint)
    return cache_block if of_this and 1 <= cache_block <= index.count else None


def _cache_block_without_measuring(
    index: Index, members: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The same on every rank; None where storage has to be asked."""
    given = members[0]["cache_block_bytes"]
    on_disk = Counter(
        each["cache_block_on_disk"] for each in members if each["cache_block_on_disk"]
    )
    mean_bytes = index.mean_bytes
    small = min(limits.cache_block_bytes_default, index.total_bytes // limits.cache_blocks_min)
    if given is not None:
        chosen = CacheBlockChoice(
            samples_per_block(given, index.count, mean_bytes), "cache_block_bytes was given"
        )
    elif on_disk:  # of most hosts, where they differ
        (cache_block, _), *_ = on_disk.most_common()
        chosen = CacheBlockChoice(cache_block, "so they lie on disk, from an earlier run")
    elif len(index.files) >= index.count * len(index.fields):
        chosen = CacheBlockChoice(1, "each sample is a file of its own")
    elif mean_bytes >= limits.cache_block_bytes_max:
        chosen = CacheBlockChoice(1, "samples are large")
    elif index.total_bytes * limits.cache_block_probe_fraction < limits.cache_block_probe_bytes_min:
        cache_block = samples_per_block(
            max(small, limits.cache_block_bytes_min), index.count, mean_bytes
        )
        chosen = CacheBlockChoice(cache_block, "there is too little data to measure storage for it")
    else:
        return None
    return asdict(chosen)


def _measured(index: Index, budget: Budget) -> dict[str, Any]:
    """What timed reads of this rank say. Where one fails, the batch will that wants its bytes."""
    engine = open_engine(index.files, budget, index.mean_bytes)
    unmeasured = "the data is in the page cache, so storage was not measured"
    try:
        if not engine.choice.cached:
            most = int(index.total_bytes * limits.cache_block_probe_fraction)
            large = min(limits.cache_block_bytes_max, most // 4)
            probed = measure_cost(index, engine, large_bytes=large, most_bytes=most)
            chosen = choose_cache_block(index.count, index.mean_bytes, summarize_cost(probed))
            return asdict(chosen) | probed._asdict()
    except PenstockError as error:
        unmeasured = f"storage could not be measured ({error})"
    finally:
        engine.close()
    cache_block = samples_per_block(limits.cache_block_bytes_default, index.count, index.mean_bytes)
    return asdict(CacheBlockChoice(cache_block, unmeasured))


def _agreed(index: Index, place: Place, members: list[dict[str, Any]], cache_block: int) -> _Job:
    """The same on every rank."""
    first = members[0]
    hosts = list(dict.fromkeys(member["host"] for member in members))
    nodes = tuple(hosts.index(member["host"]) for member in members)
    leaders = tuple(nodes.index(node) for node in range(len(hosts)))
    placement = Placement(
        index.count,
        tuple(
            count_cache_blocks(index, cache_block, members[k]["ram_bytes"], alignment_default)
            for k in leaders
        ),
        tuple(
            count_cache_blocks(index, cache_block, members[k]["disk_bytes"], _page_bytes)
            for k in leaders
        ),
        tuple(nodes.count(node) for node in range(len(hosts))),
        seed=_seed,
        cache_block=cache_block,
    )
    left_bytes = 0
    leader = members[leaders[nodes[place.rank]]]
    if leader["replicas"] and len(hosts) > 1:
        share = placement.shares[nodes[place.rank]]
        left_bytes = max(
            0, leader["ram_bytes"] - required_bytes(index, cache_block, share, alignment_default)
        )
    return _Job(first["job"], place, index.fingerprint, placement, nodes, leaders, left_bytes)


class _Parts:
    """What a rank has of the cache while it is put together."""

    def __init__(self) -> None:
        self.slab: RamTier | None = None
        self.disk: DiskTier | None = None
        self.peer: Peer | None = None
        self.replica_buffers: list[RamTier] = []  # of the ranks of this host

    def speak_mpi(self, job: _Job) -> None:
        """Exchange samples by MPI; all ranks have to call this, or none."""
        from .mpi import MPIPeer, communicator

        self.peer = MPIPeer(communicator(job.place.rank), f"{job.name}/{job.fingerprint}")

    def make(self, job: _Job, index: Index, cache: Cache) -> dict[str, Any]:
        """What this rank makes for others; returns where they find it."""
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

            keys = KeyPair.made()
            host = cache.listen or reachable_address(os.environ)
            made = ZeroMQPeer(job.place.rank, f"{job.name}/{job.fingerprint}", keys, host)
            self.peer = made
            saying["peer"] = (made.address, keys.public.decode())
        return saying

    def attach(self, job: _Job, members: list[dict[str, Any]]) -> dict[str, Any]:
        """Take what others have made."""
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

    def replicas(self, job: _Job, index: Index) -> Replicas | None:
        """Copies on these replica buffers, whose memory stays as long as they do."""
        if not self.replica_buffers:
            return None
        memories = [replica_buffer.data for replica_buffer in self.replica_buffers]
        own = job.neighbours.index(job.place.rank)
        return Replicas(job.replica_buffer(index), memories, own, len(index.fields))

    def close(self) -> None:
        for part in (self.peer, self.disk, self.slab, *self.replica_buffers):
            if part is not None:
                part.close()
