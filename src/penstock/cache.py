"""The cache of a job: what each node keeps of the data, agreed on by all ranks at first use.

`join` is called on every rank. The ranks tell each other where they are, those of one host share a
slab, everybody works out the same placement, and each gets an engine that knows all of it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import secrets
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import limits
from .assignment import Locality
from .budget import Budget
from .cached import Addressed, CachedEngine
from .dataset import Dataset
from .engines import engine_for
from .errors import UsageError
from .index import Index
from .membership import Gather, gather_of, host_identity, reachable_address, told
from .placement import Placement
from .tier import RamTier
from .topology import Place

log = logging.getLogger("penstock")
_seed = 0x70656E73746F636B
"""Of the placement: the same in every run, so that what lies on a disk is found again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What the ranks of a host keep of the data, together.

    ram_bytes:  of this host's memory, shared by its ranks. Hosts may give different amounts.
    lot_bytes:  neighbouring samples that are read and kept together have about so many; None
                chooses: single samples where each is a file of its own or larger than 256 KiB.
    host:       name of this host, the same for the ranks that share its memory; None finds it. For
                hosts that are emulated, or containers that see each other's processes.
    listen:     address at which this host's ranks are reached by the others; None finds it.
    gather:     how ranks tell each other who they are, where neither torch.distributed nor MPI
                started them: a function of a text that returns the texts of all ranks in order.

    Whatever it is, batches are the same; samples that fit nowhere are read each time.
    """

    ram_bytes: int
    lot_bytes: int | None = None
    host: str | None = None
    listen: str | None = None
    gather: Gather | None = None

    def __post_init__(self) -> None:
        for name, least in (("ram_bytes", 0), ("lot_bytes", 1)):
            value = getattr(self, name)
            if value is None and name == "lot_bytes":
                continue
            if type(value) is not int or value < least:
                raise UsageError(f"Cache.{name} is {value!r}: use a number of bytes from {least}")


class Joined(NamedTuple):
    """A rank's part of the cache."""

    engine: CachedEngine
    locality: Locality
    addressed: Addressed


def join(dataset: Dataset, cache: Cache, place: Place, budget: Budget) -> Joined:
    """Take part in the cache; called on all ranks.

    Raises UsageError where the ranks are of different minds: other data, other lots.
    """
    index = dataset.index
    addressed = Addressed(index)
    lot = lot_of(index, cache.lot_bytes)
    gather = gather_of(place, sys.modules, os.environ, cache.gather)
    mine = {
        "host": cache.host or host_identity(),
        "ram_bytes": cache.ram_bytes,
        "data": dataset.fingerprint,
        "lot": lot,
        "job": secrets.token_hex(16),
    }
    members = told(gather, place, mine)
    for name, remedy in (("data", "open the same data"), ("lot", "give the same lot_bytes")):
        for rank, member in enumerate(members):
            if member[name] != mine[name]:
                raise UsageError(
                    f"rank {rank} has {name} {member[name]} and rank {place.rank} {mine[name]}: "
                    f"{remedy} on all ranks"
                )
    hosts: list[str] = []
    for member in members:
        if member["host"] not in hosts:
            hosts.append(member["host"])
    nodes = tuple(hosts.index(member["host"]) for member in members)
    leaders = [nodes.index(node) for node in range(len(hosts))]
    room = [members[leader]["ram_bytes"] for leader in leaders]
    ram_lots = tuple(lots_in(index, lot, size) for size in room)
    ranks = tuple(nodes.count(node) for node in range(len(hosts)))
    placement = Placement(index.count, ram_lots, None, ranks, seed=_seed, lot=lot)
    node = nodes[place.rank]
    job = members[0]["job"]
    identity = hashlib.blake2b(f"{job}/{dataset.fingerprint}".encode(), digest_size=16).digest()
    leads = place.rank == leaders[node]
    slab: RamTier | None = None
    if leads:
        share = placement.shares[node]
        enough = index.total_bytes + 64 * share + limits.slab_spare_bytes
        slab = RamTier.create(max(1, share), min(room[node], enough), identity)
    saying: dict[str, Any] = {"slab": list(slab.address) if slab is not None else None}
    peer = None
    if len(hosts) > 1:
        from .zeromq_peer import KeyPair, Member, ZeroMQPeer  # its library is optional

        keys = KeyPair.made()
        host = cache.listen or reachable_address(os.environ)
        peer = ZeroMQPeer(place.rank, f"{job}/{dataset.fingerprint}", keys, host)
        saying |= {"address": peer.address, "key": keys.public.decode()}
    members = told(gather, place, saying)
    if slab is None:
        slab = RamTier.attach(tuple(members[leaders[node]]["slab"]), identity)
    # The slab is there as long as one process has it: until all have, the first must not close it.
    told(gather, place, {"attached": place.rank})
    if peer is not None:
        peer.meet(
            {
                rank: Member(member["address"], member["key"].encode())
                for rank, member in enumerate(members)
            }
        )
    inner = engine_for(index.files, budget, index.mean_bytes)
    engine = CachedEngine(addressed, inner, placement, nodes, place.rank, slab, peer)
    if place.rank == 0:
        log.info(
            "%s: %d hosts keep %.0f %% of the samples in memory, in lots of %d",
            dataset.path,
            len(hosts),
            100 * placement.kept,
            lot,
        )
    return Joined(engine, Locality(placement, nodes), addressed)


def lot_of(index: Index, lot_bytes: int | None) -> int:
    """Samples of a lot."""
    alone = len(index.files) >= index.count * len(index.fields)
    if lot_bytes is None and (alone or index.mean_bytes >= limits.lot_bytes_default):
        return 1
    wanted = limits.lot_bytes_default if lot_bytes is None else lot_bytes
    return max(1, min(index.count, int(wanted // max(1.0, index.mean_bytes))))


def lots_in(index: Index, lot: int, room_bytes: int) -> int:
    """How many lots fit for sure, or nearly so: where lengths vary, the sum of so many exceeds its
    mean by three standard deviations once in 700 cases, and then a lot is left out."""
    mean, deviation = lot_statistics(index, lot)
    total = -(-index.count // lot)
    if room_bytes >= total * mean + limits.slab_spare_bytes:
        return total
    # n lots of this mean and deviation: n mean + 3 deviation sqrt(n) <= room
    root = (-3 * deviation + math.sqrt(9 * deviation**2 + 4 * mean * room_bytes)) / (2 * mean)
    return min(total, int(root**2))


def lot_statistics(index: Index, lot: int) -> tuple[float, float]:
    """Mean bytes of a lot in a slab, and their standard deviation."""
    total = -(-index.count // lot)
    some = np.linspace(0, total - 1, min(total, limits.lots_looked_at)).astype(np.int64)
    ids = (some[:, None] * lot + np.arange(lot)).reshape(-1)
    ids = np.minimum(ids, index.count - 1).astype(np.uint64)
    size = sum(
        (index.lengths(ids, field) for field in range(len(index.fields))),
        np.zeros(len(ids), np.int64),
    )
    lots = size.reshape(-1, lot).sum(axis=1)
    spare = 63 if (lots % 64).any() else 0  # each begins at a cache line
    mean = index.mean_bytes * lot + spare
    return max(1.0, mean), float(lots.std())
