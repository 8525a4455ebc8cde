"""NoPFS: each node by itself keeps the samples that it will read most often. Pure.

A node looks through its whole stream and fills its tiers with its most frequent samples, the
fastest tier first, each before it first needs it. One peer is known for each sample: the one with
the fastest tier, then the one that needs it soonest among the samples that it keeps. A node asks
that peer for what it has not got; what no other node is known to keep it reads from storage: what
it keeps itself once, the rest every time.

A node of NoPFS guesses how far peers are ahead. The model favours it: from the second epoch on a
peer has a sample whenever a node asks for it. In the first epoch each sample is needed once, and
the node that needs it reads it from storage.

The policy `nopfs_published` fills tiers from storage alone, as NoPFS's published code does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError

from .policies import NodeTraffic
from .workload import BYTES, Ints, Nodes, SimulatedWorkload

Streams = npt.NDArray[np.uint32]

# Marks of accesses in streams: the reader keeps the sample; it has read it before.
_kept, _again = np.uint32(1 << 31), np.uint32(1 << 30)
_never = np.iinfo(np.int64).max


class _KnownPeers:
    """The peer that is known to keep each sample.

    rank:  of the peer's copy: its tier, then its place in the peer's list; the lowest wins.
    node:  the peer; -1 for none.
    tier:  the peer's tier.
    step:  step at which the peer itself first needs the sample.
    due:   step at which the sample is first needed from there, by any node.
    """

    def __init__(self, samples: int) -> None:
        self.rank: Ints = np.full(samples, _never)
        self.node: Nodes = np.full(samples, -1, np.int32)
        self.tier = np.zeros(samples, np.int8)
        self.step: Ints = np.zeros(samples, np.int64)
        self.due: Ints = self.step


def nopfs(workload: SimulatedWorkload, *, fill_from_peers: bool = True) -> NodeTraffic:
    """Trace NoPFS. Memory is 4 bytes an access of the whole run, of all nodes."""
    scenario = workload.scenario
    accesses = workload.steps * scenario.training.global_batch
    if len(workload.sizes) > _again or accesses > 1 << 32:
        raise UsageError(
            f"nopfs cannot run in {scenario.name}: it looks through {accesses:,} accesses to "
            f"{len(workload.sizes):,} samples, above the model's limits of 2^32 and 2^30; use "
            "fewer epochs, or leave it out"
        )
    traffic = NodeTraffic.empty(scenario)
    # The samples that each node reads, in its sequence.
    batch = scenario.batch
    streams = np.empty((scenario.training.nodes, workload.steps * batch), np.uint32)
    for window in workload.windows():
        dealt = window.samples.reshape(-1, scenario.training.nodes).T
        streams[:, window.step * batch : window.step * batch + dealt.shape[1]] = dealt
    known = _KnownPeers(len(workload.sizes))
    scratch = np.full(len(workload.sizes), -1, np.int64)
    for node in range(scenario.training.nodes):
        _choose_kept(workload, traffic, known, node, streams[node], scratch)
    known.due = known.step.copy()
    for epoch in range(scenario.training.epochs):
        _trace_epoch(workload, traffic, known, epoch, streams, fill_from_peers)
    _read_ahead(workload, traffic, known)
    return traffic


def _choose_kept(
    workload: SimulatedWorkload,
    traffic: NodeTraffic,
    known: _KnownPeers,
    node: int,
    stream: Streams,
    scratch: Ints,
) -> None:
    """Choose the samples that one node keeps; mark them in the stream.

    scratch: int64 (samples,), of any values.
    """
    steps, batch = workload.steps, workload.scenario.batch
    step = np.repeat(np.arange(steps, dtype=np.int32), batch)
    size = workload.sizes[stream]
    traffic.need[:, node] = size.reshape(steps, batch).sum(axis=1)
    # Written backwards, so that the first access of each sample stays.
    places = np.arange(len(stream))
    scratch[stream[::-1]] = places[::-1]
    first = scratch[stream]  # of each access, the first one of its sample
    new = first == places
    used = np.flatnonzero(new)
    frequency = np.bincount(first, minlength=len(stream))[used]
    often = np.argsort((frequency.max(initial=0) - frequency).astype(np.int32), kind="stable")
    tier = np.full(len(used), -1, np.int8)
    begin = 0
    for number, spec in enumerate(workload.scenario.system.tiers):
        filled = np.cumsum(size[used[often[begin:]]])
        fit = int(np.searchsorted(filled, int(spec.capacity_mb * BYTES), side="right"))
        tier[often[begin : begin + fit]] = number
        begin += fit
    at = np.full(len(stream), -1, np.int8)
    at[used] = tier
    at = at[first]  # of each access, the tier that its sample is kept in
    keep = at >= 0
    again = keep & ~new
    traffic.own[:] += np.bincount(step[again], size[again], steps).astype(np.int64)
    for number in range(len(traffic.tiers)):
        where = again & (at == number)
        traffic.tiers[number, :, node] = np.bincount(step[where], size[where], steps)
    for number in range(len(traffic.tiers)):
        listed = used[tier == number]  # by first access
        samples = stream[listed].astype(np.int64)
        rank = (np.int64(number) << 40) + np.arange(len(listed))  # tier, then first access
        better = rank < known.rank[samples]
        chosen = samples[better]
        known.rank[chosen] = rank[better]
        known.node[chosen] = node
        known.tier[chosen] = number
        known.step[chosen] = step[listed[better]]
    stream[keep] |= _kept
    stream[again] |= _again


def _trace_epoch(
    workload: SimulatedWorkload,
    traffic: NodeTraffic,
    known: _KnownPeers,
    epoch: int,
    streams: Streams,
    fill_from_peers: bool,
) -> None:
    """Add the bytes of one epoch that nodes have not got themselves, from peers or storage."""
    scenario = workload.scenario
    nodes, batch = scenario.training.nodes, scenario.batch
    first, last = epoch * scenario.steps, (epoch + 1) * scenario.steps
    window = streams[:, first * batch : last * batch]
    node, place = np.nonzero(window & _again == 0)
    if not len(node):
        return
    marked = window[node, place]
    keep, samples = marked >= _kept, (marked & ~_kept).astype(np.int64)
    step = place // batch  # of this epoch
    size = workload.sizes[samples]
    holder = known.node[samples]
    asked = (holder >= 0) & (holder != node) & (epoch > 0) & (fill_from_peers | ~keep)

    def add(into: Ints, at: npt.NDArray[np.integer], where: npt.NDArray[np.bool_]) -> None:
        cells = step[where] * nodes + at[where]
        sums = np.bincount(cells, size[where], scenario.steps * nodes)
        into[first:last] += sums.astype(np.int64).reshape(-1, nodes)

    add(traffic.ring, node, ~asked & ~keep)
    add(traffic.ahead, node, ~asked & keep)
    add(traffic.received, node, asked)
    add(traffic.sent, holder, asked)
    for number, tier in enumerate(traffic.tiers):
        add(tier, holder, asked & (known.tier[samples] == number))
    # An epoch holds no sample twice, so no due date is written twice.
    known.due[samples[asked]] = np.minimum(known.due[samples[asked]], first + step[asked])


def _read_ahead(workload: SimulatedWorkload, traffic: NodeTraffic, known: _KnownPeers) -> None:
    """Move reads ahead to the step at which a node needs a sample before its keeper does."""
    sooner = np.flatnonzero((known.node >= 0) & (known.due < known.step))
    node, size = known.node[sooner], workload.sizes[sooner]
    np.subtract.at(traffic.ahead, (known.step[sooner], node), size)
    np.add.at(traffic.ahead, (known.due[sooner], node), size)
