"""Closed forms for epoch times and the shares of storage, peers and cache. Pure.

They work on a million settings at once. All inputs are numbers and arrays that broadcast together,
and all outputs have their common shape. Units are bytes, seconds, samples/s and bytes/s.

An epoch takes as long as its busiest resource. Prefetching is assumed to hide everything else, so
latency, the start of an epoch, finite buffers, congestion and unequal sizes are left out. With N
nodes, S bytes of data and C bytes of cache on each node, the fraction q = min(1, N C / S) of the
data is kept by some node. With shares of S that come from storage (s) and from peers (r):

    epoch = max(compute, s S / storage, r S / N / peer link, (1 - s) S / N / cache)

    forecast_          first epoch         later epochs
    `least`            s = 1, r = 0        s = 1 - q, r = 0: no policy can be faster
    `penstock`         s = 1, r as later   s = 1 - q, r by the assignment, see `remote_share`
    `nopfs`            s = 1, r = 0        s and 1 - s - r by `find_shares`
    `storage`          s = 1, r = 0        s = 1, r = 0: a loader without a cache

Storage must give S - N C bytes in each later epoch, whatever is evicted when. Each sample is used
once an epoch, so every reuse spans the instant between two epochs, and data that is not
cached then is read again. A fixed owner for each sample reaches that bound.

Sources: Dryden, Boehringer, Ben-Nun, Hoefler, Clairvoyant Prefetching for Distributed Machine
Learning I/O (SC'21), for NoPFS and its access frequencies. Its law of coverage and the share that
no node keeps are derived here.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import missing_library
from penstock.extent import Int

Floats = npt.NDArray[np.float64]


def import_scipy(module: str) -> Any:
    """Import a module of SciPy. Raises UsageError if SciPy is not installed."""
    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError:
        raise missing_library("scipy", "sim", "the simulator") from None


FORM = "closed form"
"""Value of `form` for results that were computed without a simulation."""

RESOURCES = ("compute", "storage", "peers", "cache")
"""Resources that may bind, by number."""

Numbers = npt.ArrayLike
Column = Any
"""Values of a setting: a number, or an array of them."""


class Settings(NamedTuple):
    """Machines and data, as numbers and arrays that broadcast together, all above 0.

    nodes:                     N, nodes that keep a cache each.
    samples, sample_bytes:     how many, and their mean size.
    cache_bytes:               of each node; from 0 on, 0 for none.
    capacity:                  samples of each step that are processed on a node.
    epochs:                    of the whole run; NoPFS's frequencies depend on it.
    compute_samples_per_s:     of a node, with the data at hand; decoding included.
    storage_bytes_per_s:       of the storage, over all nodes.
    storage_node_bytes_per_s:  of one node's way to it.
    peer_bytes_per_s:          of a node's link to other nodes, each way at once.
    cache_bytes_per_s:         that a node's cache gives to itself and others.
    """

    nodes: Column
    samples: Column
    sample_bytes: Column
    cache_bytes: Column
    capacity: Column
    epochs: Column
    compute_samples_per_s: Column
    storage_bytes_per_s: Column
    storage_node_bytes_per_s: Column = np.inf
    peer_bytes_per_s: Column = np.inf
    cache_bytes_per_s: Column = np.inf

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape."""
        return np.broadcast_shapes(*map(np.shape, self))

    @property
    def total_bytes(self) -> Column:
        """Bytes of all samples."""
        return self.samples * self.sample_bytes

    @property
    def share_kept(self) -> Column:
        """Share of the data that some node keeps."""
        return np.minimum(1, self.nodes * self.cache_bytes / self.total_bytes)


class Forecast(NamedTuple):
    """Times and shares of a policy for each setting; arrays of one shape.

    first_s, later_s:        seconds of the first epoch, with empty caches, and of each later one.
    storage, remote, local:  shares of a later epoch's bytes: read from storage, fetched from the
                             caches of other nodes, found in the node's own. Their sum is 1.
    binding:                 number of the one of `RESOURCES` that a later epoch waits for.
    """

    first_s: Floats
    later_s: Floats
    storage: Floats
    remote: Floats
    local: Floats
    binding: Int


Assignment = Literal["local", "strided"]


def forecast_penstock(settings: Settings, assignment: Assignment = "local") -> Forecast:
    """Forecast this library with a cache: one owner for each sample, and the given assignment.

    In the first epoch, too, an owner reads its own samples and sends those that others process.
    """
    q = settings.share_kept
    if assignment == "local":
        remote = remote_share(settings.capacity, settings.nodes, q)
    else:
        remote = q * (1 - 1 / np.asarray(settings.nodes))
    return _forecast(settings, 1 - q, remote, first_remote=remote)


def forecast_nopfs(settings: Settings) -> Forecast:
    """Forecast NoPFS: each node keeps the samples it will use most often, whatever others keep.

    The forecast favours it: filling the caches costs the first epoch nothing beyond what is
    consumed, a node knows at once what others keep, and cold misses count as hits.
    """
    fraction = np.minimum(1, settings.cache_bytes / settings.total_bytes)
    local, storage = find_shares(settings.epochs, settings.nodes, fraction)
    return _forecast(settings, storage, np.maximum(0, 1 - storage - local))


def forecast_storage(settings: Settings) -> Forecast:
    """Forecast a loader without a cache: everything comes from storage, in every epoch."""
    return _forecast(settings, 1.0, 0.0)


def forecast_least(settings: Settings) -> Forecast:
    """Forecast the lower bound: the least time of compute and storage under any policy."""
    return _forecast(settings, 1 - settings.share_kept, 0.0, cache=False)


def _forecast(
    settings: Settings,
    storage: Floats | float,
    remote: Floats | float,
    *,
    first_remote: Floats | float = 0.0,
    cache: bool = True,
) -> Forecast:
    of_first = _busy_seconds(settings, 1.0, first_remote, cache)
    of_later = _busy_seconds(settings, storage, remote, cache)
    storage, remote = (np.broadcast_to(share, settings.shape) for share in (storage, remote))
    return Forecast(
        of_first.max(axis=0),
        of_later.max(axis=0),
        storage,
        remote,
        1 - storage - remote,
        of_later.argmax(axis=0),
    )


def _busy_seconds(
    settings: Settings, storage: Floats | float, remote: Floats | float, cache: bool
) -> Floats:
    """Seconds that each of `RESOURCES` is busy in an epoch: (resources, ...)."""
    node_bytes = settings.total_bytes / settings.nodes
    links = settings.nodes * settings.storage_node_bytes_per_s
    seconds = np.empty((len(RESOURCES), *settings.shape))
    seconds[0] = settings.samples / (settings.nodes * settings.compute_samples_per_s)
    storage_bytes = storage * settings.total_bytes
    seconds[1] = storage_bytes / np.minimum(settings.storage_bytes_per_s, links)
    seconds[2] = remote * node_bytes / settings.peer_bytes_per_s
    seconds[3] = (1 - storage) * node_bytes / settings.cache_bytes_per_s if cache else 0
    return seconds


def remote_share(capacity: Numbers, nodes: Numbers, kept: Numbers = 1.0) -> Floats:
    """Share of samples that local assignment fetches from another node.

    capacity:  b, samples of each step that a node processes.
    nodes:     N.
    kept:      q, the share of samples that have an owner; the others fill the free capacity.

    A node owns K ~ Bin(N b, q/N) of a step and gives away the samples beyond its capacity:

        E[(K - b)+] / b  =  (1 - q/N) P[Bin(N b - 1, q/N) = b] - (1 - q) P[Bin(N b - 1, q/N) >= b]

    which for q = 1 is (1 - 1/N) P[Bin(N b, 1/N) = b], the formula of `expected_moves` in
    `penstock.plan.assignment`. Owners are assumed to be independent of the order; with F samples
    and steps of B multiply by about sqrt(1 - B/F).
    """
    special = import_scipy("special")
    b, n, q = (np.asarray(values, np.float64) for values in (capacity, nodes, kept))
    b, n, q = np.broadcast_arrays(b, n, q)
    several = (n > 1) & (q > 0)
    n, q = np.where(several, n, 2), np.where(several, q, 1)
    trials, p = n * b - 1, q / n
    log = special.gammaln(trials + 1) - special.gammaln(b + 1) - special.gammaln(trials - b + 1)
    equal = np.exp(log + b * np.log(p) + (trials - b) * np.log1p(-p))
    above = special.betainc(b, trials - b + 1, p)
    return np.where(several, np.maximum(0, (1 - p) * equal - (1 - q) * above), 0.0)


class _Law(NamedTuple):
    """Points of both shares of `find_shares`, by ascending fraction, float64 (points,).

    degree:  (points - 1,), the power that `nobody` nearly follows between two points.
    """

    fraction: Floats
    covered: Floats
    nobody: Floats
    degree: Floats

    def shares(self, fraction: Floats) -> tuple[Floats, Floats]:
        """Interpolate both shares between the points."""
        covered = np.interp(fraction, self.fraction, self.covered)
        after = np.searchsorted(self.fraction, fraction).clip(1, len(self.degree))
        start, end = self.fraction[after - 1], self.fraction[after]
        weight = ((fraction - start) / (end - start)).clip(0, 1)
        ends = self.nobody[after - 1], self.nobody[after]
        return covered, _blend(*ends, weight, self.degree[after - 1])


def _blend(start: Floats, end: Floats, weight: Floats | float, degree: Floats | float) -> Floats:
    """Interpolate between two values of a function whose root of that degree is linear."""
    root = 1 / degree
    blend: Floats = ((1 - weight) * start**root + weight * end**root) ** degree
    return blend


_points = 16
_negligible = 1e-15


def find_shares(epochs: Numbers, nodes: Numbers, fraction: Numbers) -> tuple[Floats, Floats]:
    """Share of a node's accesses that hit its cache, and share of samples that no node keeps.

    Each node's cache holds the fraction q of all samples: those that it will use most often,
    whatever others keep. Nodes decide at random among samples of equal counts.

    A node processes a sample in X ~ Bin(E, 1/N) of E epochs. Take samples by descending X until
    their probability is q: the first share is the part of E[X] = E/N that has been taken. First
    accesses cannot be hits, and are counted as hits.

    NoPFS reads the samples of the second share from storage in every epoch. The N nodes' counts are
    multinomial. A node keeps a sample that it uses X times with probability w(X): 1 above a
    threshold, 0 below, and between 0 and 1 at it, so that q is used up. A multinomial is N Poisson
    counts, given that their sum is E, so that with P ~ Poisson(E/N)

        share = [z^E] (sum over k of P[P = k] (1 - w(k)) z^k)^N / P[Poisson(E) = E]

    where [z^E] is a Fourier sum. It is interpolated between 16 points a count: within 0.0005.
    Each pair of epochs and nodes takes one law.
    """
    e, n, q = np.broadcast_arrays(*(np.asarray(values) for values in (epochs, nodes, fraction)))
    pairs, which = np.unique(np.stack([e.ravel(), n.ravel()]), axis=1, return_inverse=True)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which.ravel(), minlength=pairs.shape[1]))
    wanted = q.ravel()[order]
    shares = np.empty((2, q.size))
    start = 0
    for pair, end in zip(pairs.T, ends, strict=True):
        law = _tabulate_law(int(pair[0]), int(pair[1]))
        chunk = wanted[start:end]
        covered, missing = law.shares(chunk)
        # All caches together hold no more than N q, which the last digits must not hide.
        shares[:, order[start:end]] = covered, np.maximum(missing, 1 - pair[1] * chunk)
        start = end
    return shares[0].reshape(q.shape), shares[1].reshape(q.shape)


@lru_cache(maxsize=4096)
def _tabulate_law(epochs: int, nodes: int) -> _Law:
    special = import_scipy("special")
    k = np.arange(epochs + 1)
    log = special.gammaln(epochs + 1) - special.gammaln(k + 1) - special.gammaln(epochs - k + 1)
    chance = np.exp(log + special.xlogy(k, 1 / nodes) + special.xlog1py(epochs - k, -1 / nodes))
    # Samples never used are never kept, and counts that do not happen need no points.
    used = np.flatnonzero((chance > _negligible) & (k > 0))[::-1]
    kept = np.arange(1, _points + 1) / _points
    mass, sum_ = chance[used], used * chance[used]
    fraction = (np.cumsum(mass) - mass)[:, None] + kept * mass[:, None]
    covered = (np.cumsum(sum_) - sum_)[:, None] + kept * sum_[:, None]
    missing = np.append(1.0, _tabulate_nobody(epochs, nodes, used, kept))
    # The share is a polynomial in the part that is not kept. Its degree is the number of nodes that
    # can use a sample so often: it is near to that power, or to a line if some node must keep the
    # sample. Each second point tells which.
    degree = np.repeat(np.minimum(nodes, epochs // used), _points // 2).astype(float)
    start, middle, end = missing[:-1:2], missing[1::2], missing[2::2]
    errors = [np.abs(_blend(start, end, 0.5, power) - middle) for power in (degree, 1)]
    degree = np.where(errors[0] < errors[1], degree, 1.0)
    return _Law(
        np.append(0.0, fraction),
        np.append(0.0, covered * nodes / epochs).clip(0, 1),
        missing,
        np.repeat(degree, 2),
    )


def _tabulate_nobody(epochs: int, nodes: int, counts: Int, kept: Floats) -> Floats:
    """Tabulate P[no node keeps a sample] by threshold and the part kept there: (counts, kept)."""
    special = import_scipy("special")
    k = np.arange(counts.max() + 1)
    rate = epochs / nodes
    poisson = np.exp(special.xlogy(k, rate) - rate - special.gammaln(k + 1))
    # As many roots of unity as reach beyond what a Poisson sum of this mean is near; those of one
    # half of the circle mirror the others.
    half = 16 + int(5 * epochs**0.5)
    turn = np.exp(-1j * np.pi * (np.outer(k, np.arange(half + 1)) % (2 * half)) / half)
    terms = poisson[:, None] * turn
    below = np.cumsum(terms, axis=0) - terms
    ahead = np.exp(1j * np.pi * (epochs * np.arange(half + 1) % (2 * half)) / half)
    ahead[1:-1] *= 2
    total = np.exp(special.xlogy(epochs, epochs) - epochs - special.gammaln(epochs + 1))
    ahead /= 2 * half * total
    chances = np.zeros((len(counts), len(kept)))
    for row, count in enumerate(counts):
        factor = below[count] + (1 - kept)[:, None] * terms[count]
        chances[row] = (_raise_power(factor, nodes) @ ahead).real
        if chances[row, -1] < _negligible:  # then all that follow are
            break
    return chances.clip(0, 1)


def _raise_power(base: Any, exponent: int) -> Any:
    """Raise to a power by squaring, in a fraction of the time of complex `**`."""
    power = base if exponent & 1 else np.ones_like(base)
    while exponent := exponent >> 1:
        base = base * base
        if exponent & 1:
            power = power * base
    return power
