"""The cache of a job: the part of the data that each node keeps, agreed on by all ranks at first
use.

`join_cache` is called on every rank. Each rank introduces itself with a text (`_introduce`): its
host, room and data. If ranks or hosts disagree on the data, or on an argument that must be equal,
`_check_alike` raises the same error on all of them. `_agree` computes the placement of cache blocks
on nodes from the introductions, with the same result on every rank. Then the ranks make and attach
to each other's parts, and each gets an engine over all of them. Ranks of one host share a slab.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import secrets
import socket
import struct
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from .. import limits
from ..arguments import check_fields, choice, file_path, flag, function, instance, whole
from ..budget import Budget
from ..engine.open import open_engine
from ..errors import PenstockError, UsageError
from ..index.read_cost import measure_cost, summarize_cost
from ..index.table import Index
from ..plan.assignment import Locality
from ..plan.cache_blocks import (
    BlockLayout,
    CacheBlockChoice,
    choose_cache_block,
    count_cache_blocks,
    required_bytes,
    sample_key_lengths,
    samples_per_block,
)
from ..plan.placement import Placement
from ..plan.steps import Assignment
from ..ranks.gather import (
    Gather,
    exchange_values,
    find_gather,
    find_reachable_address,
    find_store,
    host_identity,
    is_mpi,
)
from ..ranks.place import Place, find_reader
from .disk import DiskTier, read_note
from .engine import CachedEngine
from .key_index import Addressed
from .peer import Peer
from .replicas import ReplicaLayout, Replicas
from .shared_memory import RamTier, alignment_default

log = logging.getLogger("penstock")
_seed = 0x70656E73746F636B
"""Seed of the placement: the same in every run, so that cache blocks on a disk are found again."""
_page_bytes = 4096  # at which cache blocks start on a disk
_note = struct.Struct("<16sQ")
"""Note of a disk: digest of the data, and the samples of a cache block."""
_bytes_max = limits.cache_bytes_max
Transport = Literal["auto", "zeromq", "mpi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The part of the data that the ranks of a host keep together.

    ram_bytes:          of this host's memory, shared by its ranks. Hosts may give different
                        amounts.
    disk_path:          folder on a local disk of this host, for cache blocks that its memory cannot
                        hold. Later runs of the same data on as many hosts and ranks, with as much
                        memory, find it filled.
    disk_bytes:         most that the folder may hold.
    cache_block_bytes:  size of a cache block: neighbouring samples, or compressed chunks, of about
                        this size are read and kept together. None: as a disk of the job has them
                        from a run before; else single samples if these are files of their own or
                        have 1 MiB; else the smallest cache blocks that a few timed reads of rank 0
                        (0.2 s) show to be read about as fast as large ones: see
                        `loader.stats()["cache_block"]`. Give it if each rank is to have the same
                        samples in each run, with assignment="local".
    replicas:           True if the memory of this host that is left, beyond its share of the data,
                        holds copies of the samples of other hosts that its ranks use next: for
                        assignment "strided" and "contiguous".
    host:               name of this host, the same for the ranks that share its memory; None finds
                        it. For hosts that are emulated, or containers that see each other's
                        processes.
    listen:             address at which the others reach this host's ranks; None finds it.
    gather:             function by which ranks introduce themselves, if neither torch.distributed
                        nor MPI started them: it takes a text and returns the texts of all ranks in
                        order.
    peers:              transport by which hosts exchange samples: "zeromq", "mpi", or "auto", that
                        is MPI if the ranks found each other by it and it lets threads take part.
                        MPI neither encrypts nor goes on when a host dies.

    Batches are the same with any cache. Samples that fit nowhere are read each time. What is
    compressed is kept so, and decoded by each rank.
    """

    ram_bytes: int = field(metadata=whole(0, _bytes_max))
    disk_path: str | None = field(default=None, metadata=file_path())
    disk_bytes: int = field(default=0, metadata=whole(0, _bytes_max))
    cache_block_bytes: int | None = field(default=None, metadata=whole(1, _bytes_max))
    replicas: bool = field(default=False, metadata=flag())
    host: str | None = field(default=None, metadata=instance(str, "a text"))
    listen: str | None = field(default=None, metadata=instance(str, "a text"))
    gather: Gather | None = field(
        default=None, metadata=function("a function of a text that all ranks call")
    )
    peers: Transport = field(default="auto", metadata=choice(Transport))

    def __post_init__(self) -> None:
        check_fields(self)
        if bool(self.disk_bytes) != (self.disk_path is not None):
            what = f"Cache.disk_path is {self.disk_path!r} and disk_bytes {self.disk_bytes:,}"
            raise UsageError(f"{what}: give both or none")


@dataclass(frozen=True, slots=True)
class CacheAgreement:
    """The agreement of all ranks on their cache.

    name:        made up for this job; nobody else knows it.
    place:       number of this rank among the readers, as all ranks are numbered here.
    version:     of the data, as this rank sees it: ranks of one node see the same.
    nodes:       of each rank.
    leaders:     of each node, its first rank: makes the parts that the others attach to.
    left_bytes:  of this node's memory, beyond its share of the data; 0 if no replicas are wanted.
    """

    name: str
    place: Place
    fingerprint: str
    version: str
    placement: Placement
    nodes: tuple[int, ...]
    leaders: tuple[int, ...]
    left_bytes: int

    @property
    def node(self) -> int:
        """Node of this rank."""
        return self.nodes[self.place.rank]

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks of this node."""
        return tuple(rank for rank, node in enumerate(self.nodes) if node == self.node)

    def replica_buffer(self, source: Addressed) -> ReplicaLayout:
        """Division of a rank's part of the memory that is left on this node."""
        lengths = sample_key_lengths(source)
        return ReplicaLayout.of(self.left_bytes // len(self.neighbours), lengths)

    @property
    def slots(self) -> tuple[int, int]:
        """Cache blocks that this node keeps in memory, and on its disk."""
        share = self.placement.shares[self.node]
        ram = min(share, self.placement.ram_cache_blocks[self.node])
        return ram, share - ram

    @property
    def note(self) -> bytes:
        """Note for later runs, so that they place the data alike."""
        return _note.pack(_digest(self.version), self.placement.cache_block)

    def identity(self, lasting: bool) -> bytes:
        """Identity of a tier.

        lasting:  True for one that later jobs share if they place the data alike; False for one of
                  this job alone.
        """
        text = f"{self.placement}/{self.node}" if lasting else self.name
        return _digest(f"{self.version}/{text}")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _choose_transport(cache: Cache, gather: Gather, place: Place) -> str:
    """Choose the transport by which this rank would exchange samples."""
    if cache.peers == "zeromq" or (cache.peers == "auto" and not is_mpi(gather)):
        return "zeromq"
    from .mpi import explain_unusable  # its library is optional

    why = explain_unusable(place.world_size)
    if why is None:
        return "mpi"
    if cache.peers == "mpi":
        raise UsageError(f'Cache.peers is "mpi": {why}, or use "zeromq"')
    log.info("hosts exchange samples over ZeroMQ: %s", why)
    return "zeromq"


def _introduce(
    index: Index, cache: Cache, gather: Gather, place: Place, coordinate: Place
) -> dict[str, Any]:
    """Make the introduction of this rank, its first text."""
    source = Addressed(index)
    if cache.replicas and source.has_chunks:
        what = "its samples are decoded from chunks that many of them share"
        raise UsageError(f"Cache.replicas: {index.files.root}: {what}: leave it out")
    return {
        "host": cache.host or host_identity(),
        "name": cache.host or socket.gethostname(),
        "coordinate": coordinate.rank,
        "world_size": coordinate.world_size,
        "ram_bytes": cache.ram_bytes,
        "disk_bytes": cache.disk_bytes,
        "replicas": cache.replicas,
        "data": index.fingerprint,
        "version": index.version,
        "root": index.files.root,
        "cache_block_bytes": cache.cache_block_bytes,
        "cache_block_on_disk": _read_cache_block_on_disk(source, cache),
        "job": secrets.token_hex(16),
        "peers": _choose_transport(cache, gather, place),
    }


def _check_alike(members: list[dict[str, Any]]) -> None:
    first = members[0]
    for name, remedy in (
        ("data", "open the same data"),
        ("world_size", "give the same place"),
        ("cache_block_bytes", "give the same cache_block_bytes"),
        ("peers", "give the same peers"),
    ):
        for rank, member in enumerate(members):
            if member[name] != first[name]:
                what = f"rank {rank} has {name} {member[name]} and rank 0 {first[name]}"
                raise UsageError(f"{what}: {remedy} on all ranks")
    roots = {member["root"]: member["version"] for member in reversed(members)}  # the first rank's
    for rank, member in enumerate(members):
        if member["version"] != roots[member["root"]]:
            what = f"rank {rank} sees other times of writing in {member['root']} than an earlier"
            remedy = "start the job again, or copy times too (cp -p, rsync -t)"
            raise UsageError(f"{what} rank: {remedy}")


def _locate_coordinates(members: list[dict[str, Any]], assignment: Assignment) -> tuple[int, ...]:
    """Return the node of each data coordinate: of its first rank, if it spans several."""
    hosts = {host: n for n, host in enumerate(dict.fromkeys(m["host"] for m in members))}
    spans: dict[int, dict[str, str]] = {}
    for member in members:
        spans.setdefault(member["coordinate"], {})[member["host"]] = member["name"]
    absent = set(range(members[0]["world_size"])) - spans.keys()
    if absent:
        what = f"no rank of {len(members)} reads data coordinate {min(absent)}"
        world = members[0]["world_size"]
        raise UsageError(f"{what} of {world}: name all that iterate in Place(readers=...)")
    for coordinate, names in sorted(spans.items()):
        if assignment == "local" and len(names) > 1:
            hosts_named = f"{len(names)} hosts ({', '.join(names.values())})"
            remedy = "use assignment='strided', or a mesh with each on one host"
            raise UsageError(f"data coordinate {coordinate} spans {hosts_named}: {remedy}")
    return tuple(hosts[next(iter(spans[number]))] for number in sorted(spans))


def _read_cache_block_on_disk(source: Addressed, cache: Cache) -> int | None:
    """Return the items of a cache block of this data, as an earlier run has left them on the
    disk."""
    note = None if cache.disk_path is None else read_note(cache.disk_path)
    if note is None:
        return None
    data, cache_block = _note.unpack(note)
    of_this = data == _digest(source.index.version)
    return cache_block if of_this and 1 <= cache_block <= source.keys.count else None


def _choose_without_measuring(
    source: Addressed, members: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Choose the cache block, the same on every rank; return None if storage has to be
    measured."""
    wanted_bytes = members[0]["cache_block_bytes"]
    on_disk = Counter(filter(None, (member["cache_block_on_disk"] for member in members)))
    index, count, mean_bytes = source.index, source.keys.count, source.item_bytes
    small = min(limits.cache_block_bytes_default, index.total_bytes // limits.cache_blocks_min)
    probe_bytes = index.total_bytes * limits.cache_block_probe_fraction
    if wanted_bytes is not None:
        cache_block = samples_per_block(wanted_bytes, count, mean_bytes)
        reason = "cache_block_bytes was given"
    elif on_disk:  # of most hosts, where they differ
        cache_block, reason = on_disk.most_common(1)[0][0], "as on disk, from an earlier run"
    elif len(index.files) >= source.keys.key_count:
        cache_block, reason = 1, "each sample is one file"
    elif mean_bytes >= limits.cache_block_bytes_max:
        cache_block, reason = 1, "samples are large"
    elif probe_bytes < limits.cache_block_probe_bytes_min:
        small = max(small, limits.cache_block_bytes_min)
        cache_block = samples_per_block(small, count, mean_bytes)
        reason = "there is too little data to measure storage for it"
    else:
        return None
    return asdict(CacheBlockChoice(cache_block, reason))


def _choose_by_measuring(source: Addressed, budget: Budget) -> dict[str, Any]:
    """Choose the cache block by timed reads of this rank.

    A failed read is no error here: the batch that wants the bytes reports it.
    """
    index, count, mean_bytes = source.index, source.keys.count, source.item_bytes
    engine = open_engine(index.files, budget, index.mean_bytes)
    unmeasured = "the data is in the page cache, so storage was not measured"
    try:
        if not engine.choice.cached:
            most = int(index.total_bytes * limits.cache_block_probe_fraction)
            large = min(limits.cache_block_bytes_max, most // 4)
            probed = measure_cost(index, engine, large_bytes=large, most_bytes=most)
            chosen = choose_cache_block(count, mean_bytes, summarize_cost(probed))
            return asdict(chosen) | probed._asdict()
    except PenstockError as error:
        unmeasured = f"storage could not be measured ({error})"
    finally:
        engine.close()
    cache_block = samples_per_block(limits.cache_block_bytes_default, count, mean_bytes)
    return asdict(CacheBlockChoice(cache_block, unmeasured))


def _agree(
    source: Addressed, place: Place, members: list[dict[str, Any]], cache_block: int
) -> CacheAgreement:
    """Make the agreement, the same on every rank."""
    first = members[0]
    hosts = {host: n for n, host in enumerate(dict.fromkeys(m["host"] for m in members))}
    nodes = tuple(hosts[member["host"]] for member in members)
    first_ranks = {node: rank for rank, node in reversed([*enumerate(nodes)])}
    leaders = tuple(first_ranks[node] for node in range(len(hosts)))
    room: dict[str, tuple[int, ...]] = {}
    for kind, alignment in (("ram", alignment_default), ("disk", _page_bytes)):
        sizes = [members[rank][f"{kind}_bytes"] for rank in leaders]
        fitting = {  # most hosts have the same, and counting looks at thousands of cache blocks
            size: count_cache_blocks(source, cache_block, size, alignment) for size in set(sizes)
        }
        room[kind] = tuple(fitting[size] for size in sizes)
    readers = Counter(host for host, _ in {(m["host"], m["coordinate"]) for m in members})
    reader_counts = tuple(readers[host] for host in hosts)
    index, count = source.index, source.keys.count
    placement = Placement(
        count, room["ram"], room["disk"], reader_counts, seed=_seed, cache_block=cache_block
    ).deal_bytes(BlockLayout(source, cache_block).measure)
    left_bytes = 0
    leader = members[leaders[nodes[place.rank]]]
    if leader["replicas"] and len(hosts) > 1:
        share = placement.shares[nodes[place.rank]]
        left_bytes = max(
            0, leader["ram_bytes"] - required_bytes(source, cache_block, share, alignment_default)
        )
    return CacheAgreement(
        first["job"], place, index.fingerprint, index.version, placement, nodes, leaders, left_bytes
    )


# -- joining ---------------------------------------------------------------------------------------


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
        gather, place, lambda: _introduce(index, cache, gather, place, coordinate)
    )
    _check_alike(members)
    addressed = Addressed(index)
    cache_block = _choose_without_measuring(addressed, members)
    if cache_block is None:
        (cache_block, *_) = exchange_values(
            gather, place, lambda: _choose_by_measuring(addressed, budget) if leads else {}
        )
    coordinate_nodes = _locate_coordinates(members, assignment)
    job = _agree(addressed, place, members, cache_block["samples"])
    with contextlib.ExitStack() as opened:
        parts = _CacheParts()
        opened.callback(parts.close)
        if job.placement.nodes > 1 and members[0]["peers"] == "mpi":
            from .mpi import MPIPeer, make_communicator  # all ranks come here, or none

            parts.peer = MPIPeer(make_communicator(place.rank), f"{job.name}/{job.fingerprint}")
        introductions = exchange_values(gather, place, lambda: parts.make(job, addressed, cache))
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
            parts.replicas(job, addressed),
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
    find_items = addressed.find_items if addressed.has_chunks else None
    locality = Locality(job.placement, coordinate_nodes, find_items)
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

    def make(self, job: CacheAgreement, source: Addressed, cache: Cache) -> dict[str, Any]:
        """Make the parts that others use; return where they find them."""
        saying: dict[str, Any] = {}
        ram, on_disk = job.slots
        layout = job.replica_buffer(source)
        if layout.pages:
            self.replica_buffers = [RamTier.create(1, layout.bytes, job.identity(lasting=False))]
            saying["replica_buffer"] = self.replica_buffers[0].address
        if job.leaders[job.node] == job.place.rank:
            total_bytes = math.ceil(source.item_bytes * source.keys.count)
            enough = total_bytes + alignment_default * ram + limits.slab_spare_bytes
            room_bytes = min(cache.ram_bytes - job.left_bytes, enough)
            self.slab = RamTier.create(max(1, ram), room_bytes, job.identity(lasting=False))
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
            (own_buffer,) = self.replica_buffers
            identity = job.identity(lasting=False)
            self.replica_buffers = [
                own_buffer
                if rank == job.place.rank
                else RamTier.attach(tuple(members[rank]["replica_buffer"]), identity)
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

    def replicas(self, job: CacheAgreement, source: Addressed) -> Replicas | None:
        """Make replicas in these replica buffers, and keep the memory as long as the replicas."""
        if not self.replica_buffers:
            return None
        memories = [replica_buffer.data for replica_buffer in self.replica_buffers]
        own_number = job.neighbours.index(job.place.rank)
        return Replicas(job.replica_buffer(source), memories, own_number, source.keys.width)

    def close(self) -> None:
        for part in (self.engine, self.peer, self.disk, self.slab, *self.replica_buffers):
            if part is not None:
                part.close()
