"""Caching by importance: caches keep the samples of the highest value for training. Pure.

FedCaSe (SoCC'24) keeps the samples that are drawn often and whose loss is high, and draws samples
of higher value more often. Here that is a baseline for comparison, and a plug-in: any function of
the samples' history is a `Value`.

It has two prices that hits of caches do not show:

- **It changes the training.** Sample i is drawn with probability p_i instead of 1/n. The expected
  gradient is uniform drawing's only if its loss is weighted by 1/(n p_i), by `correct_bias`; the
  variance then differs.
- **It destroys clairvoyance.** The order depends on losses that are not known yet. So nothing can
  be planned or prefetched beyond the current draw, no run can be resumed or checked from its seed
  alone, and exact eviction by next use, the better rule where the order is known, is impossible.

That is why loaders do not draw so. They take weights that are known when an epoch begins
(`Dataset.weigh`, `Loader.set_weights`), under which the order stays a function: everything is
planned, resumed and checked as without weights. Where each epoch uses every sample once, no value
can beat the fixed division that the loader uses: hits are at most cache/data.

The published 2.06 times is on a simulated clock. The original repeats samples that are cached
within a round as well. That is not rebuilt: such hits replace samples instead of serving them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.arguments import check_whole
from penstock.errors import UsageError
from penstock.extent import Int
from penstock.plan import count_fitting

from .closed_forms import Floats
from .policies import NodeTraffic
from .scenario import ImportanceSampling
from .workload import BYTES, Ints, SimulatedWorkload

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class History:
    """History of each of n samples before a batch.

    rank:  int64 (n,), its place by ascending loss, from 0, in the last batch that had it; of a
           sample that the batch had several times, the last. 0 before.
    loss:  float64 (n,), its loss in that batch; NaN before.
    uses:  int64 (n,), how often it was used.
    """

    rank: Int
    loss: Floats
    uses: Int

    @classmethod
    def of(cls, samples: int) -> History:
        """Make the history of samples of which none has been used."""
        none = np.zeros(samples, np.int64)
        return cls(none, np.full(samples, np.nan), none)

    def after(self, ids: Int, losses: Floats) -> History:
        """Return the history after a batch of these samples and losses, (batch,) each. O(n)."""
        order = np.argsort(losses, kind="stable")
        rank, loss = self.rank.copy(), self.loss.copy()
        # Of equal indices numpy assigns the last value.
        rank[ids[order]] = np.arange(len(ids))
        loss[ids] = losses
        return History(rank, loss, self.uses + np.bincount(ids, minlength=len(rank)))


class Value(Protocol):
    """Value of each sample for training: a pure function of the history."""

    def __call__(self, history: History) -> Floats:
        """Return finite values from 0 on, float64 (n,); higher ones are kept, and drawn more."""
        ...


def fedcase(history: History) -> Floats:
    """FedCaSe's value: norm(w) + norm(uses), w = ln(rank + 10), or 1 for samples never used.

    norm(v) = (v - min) / (max - min) over all samples, 0 if all are equal.
    """
    weight = np.where(history.uses > 0, np.log(history.rank + 10.0), 1.0)
    return normalise(weight) + normalise(history.uses.astype(np.float64))


def normalise(values: Floats) -> Floats:
    """Shift and scale values to 0..1; all 0 if all are equal."""
    low, high = values.min(), values.max()
    return np.zeros_like(values) if high == low else (values - low) / (high - low)


class SampleCache(Protocol):
    """A node's cache of samples of one size."""

    def serve(self, ids: Int, values: Floats) -> Bool:
        """Serve a batch; return True for each sample that was a hit, bool (batch,).

        A sample that the batch has twice is read once. `values` has all samples' values at that
        time.
        """
        ...


class FirstSeenCache:
    """A cache that keeps the first `room` samples it sees, for good: a fixed division."""

    def __init__(self, room: int) -> None:
        check_whole("room", room)
        self._room = room
        self._kept: Int = np.empty(0, np.int64)  # by arrival

    def serve(self, ids: Int, values: Floats) -> Bool:
        """See `SampleCache`. All hits of a batch are decided first; its misses are admitted after
        it, in their order."""
        is_first = np.zeros(len(ids), bool)
        is_first[np.unique(ids, return_index=True)[1]] = True
        is_hit = np.isin(ids, self._kept) | ~is_first
        self._kept = self._choose(np.concatenate([self._kept, ids[~is_hit]]), values)
        return is_hit

    def _choose(self, seen: Int, values: Floats) -> Int:
        """Choose what to keep of samples by arrival."""
        return seen[: self._room]


class ValueCache(FirstSeenCache):
    """A cache of up to `room` samples: the samples of highest value among all seen.

    A miss is admitted while there is room; then only in place of the least valuable sample, if its
    own value is higher. Of equal values the one that came first stays. O(room log room).
    """

    def _choose(self, seen: Int, values: Floats) -> Int:
        # Admitting one by one, and the last of the least always going, leaves the best.
        best = np.lexsort((np.arange(len(seen)), -values[seen]))[: self._room]
        return seen[np.sort(best)]


class RecentCache:
    """A cache of the `room` samples that were used last (LRU), updated sample by sample."""

    def __init__(self, room: int) -> None:
        check_whole("room", room)
        self._room = room
        self._kept: OrderedDict[int, None] = OrderedDict()

    def serve(self, ids: Int, values: Floats) -> Bool:
        """See `SampleCache`."""
        is_hit = np.zeros(len(ids), bool)
        for row, sample in enumerate(ids.tolist()):
            is_hit[row] = sample in self._kept
            self._kept[sample] = None
            self._kept.move_to_end(sample)
            if len(self._kept) > self._room:
                self._kept.popitem(last=False)
        return is_hit


Loss = Callable[[Int, Int], Floats]
"""Model of training, for a simulation: the loss, float64 (batch,), of
these samples after they were used so often."""


class Draw(NamedTuple):
    """One batch of a stream.

    ids:      int64 (batch,).
    values:   float64 (n,), of all samples before the batch.
    weights:  float64 (batch,), factors of the losses that make the gradient unbiased.
    """

    ids: Int
    values: Floats
    weights: Floats


def correct_bias(chances: Floats) -> Floats:
    """Weights 1/(n p_i) for the chances p_i of all n samples.

    The mean of weighted losses of samples drawn by p is, in expectation, the plain mean over all
    samples.
    """
    return 1 / (len(chances) * chances)


def draw_batches(
    samples: int,
    batch: int,
    loss: Loss,
    *,
    value: Value = fedcase,
    floor: float = 0.01,
    seed: int = 0,
) -> Iterator[Draw]:
    """Draw batches by value, with replacement: p_i ~ value_i + floor. Without end.

    floor:  above 0: added to all values, so that every sample can be drawn. FedCaSe has 0.01.

    The same seed, loss and value give the same batches. Each batch takes about O(samples).
    """
    check_whole("samples", samples)
    check_whole("batch", batch)
    if not floor > 0:
        raise UsageError(f"floor is {floor!r}: give a number above 0, or some are never drawn")
    return _draw(History.of(samples), batch, loss, value, floor, seed)


def _draw(
    history: History, batch: int, loss: Loss, value: Value, floor: float, seed: int
) -> Iterator[Draw]:
    random = np.random.Generator(np.random.Philox(seed))
    while True:
        values = evaluate(value, history)
        ahead = np.cumsum(values + floor)
        ids = np.searchsorted(ahead, random.random(batch) * ahead[-1], side="right")
        ids = np.minimum(ids, len(ahead) - 1)
        yield Draw(ids, values, correct_bias((values + floor) / ahead[-1])[ids])
        history = history.after(ids, loss(ids, history.uses[ids]))


def evaluate(value: Value, history: History) -> Floats:
    values = np.asarray(value(history), np.float64)
    if values.shape != history.uses.shape:
        raise UsageError(
            f"value returned the shape {values.shape} for {len(history.uses)} samples: return one "
            "number for each"
        )
    if not np.isfinite(values).all() or values.min() < 0:
        raise UsageError(
            "value returned numbers that are not finite or below 0: return finite numbers from 0 on"
        )
    return values


@dataclass(frozen=True, slots=True)
class SampledOutcome:
    """Hits of caches on one stream of batches.

    hits:       by cache, the share of samples that were not read from storage.
    effective:  Kish's effective sample size as a share, (sum w)^2 / (n sum w^2), of the weights
                that make the gradient unbiased: 1 for uniform drawing.
    """

    hits: Mapping[str, float]
    effective: float


def replay(
    stream: Iterator[Draw], caches: Mapping[str, SampleCache], *, batches: int
) -> SampledOutcome:
    """Serve the next `batches` of the stream to each of the caches; contents stay."""
    check_whole("batches", batches)
    hit_counts = dict.fromkeys(caches, 0)
    drawn_weights = []
    for draw in islice(stream, batches):
        for name, cache in caches.items():
            hit_counts[name] += int(np.count_nonzero(cache.serve(draw.ids, draw.values)))
        drawn_weights.append(draw.weights)
    w = np.concatenate(drawn_weights)
    return SampledOutcome(
        {name: hits / len(w) for name, hits in hit_counts.items()},
        float(w.sum() ** 2 / (len(w) * (w**2).sum())),
    )


CACHES: dict[str, Callable[[int], SampleCache]] = {
    "by_value": ValueCache, "recent": RecentCache, "fixed": FirstSeenCache
}  # fmt: skip


def sample_traffic(
    workload: SimulatedWorkload, sampling: ImportanceSampling, policy: str, value: Value
) -> tuple[NodeTraffic, dict[str, Any]]:
    """Trace the bytes of a policy. O(samples) for each step.

    Also returns notes: `hits`, the share of samples that needed no storage, and `effective`, see
    `SampledOutcome`.
    """
    scenario = workload.scenario
    nodes, rows = scenario.training.nodes, workload.steps
    caches: list[SampleCache] = []
    if policy in CACHES:
        caches = [CACHES[policy](count_room(workload, policy)) for _ in range(nodes)]
    flows = NodeTraffic.empty(scenario, staged=bool(caches), known=False)
    kept = _CountedCaches(workload, caches, flows)
    stream = draw_batches(
        scenario.data.samples,
        scenario.training.global_batch,
        lambda ids, uses: 1 / (ids + 1.0) / (uses + 1.0) ** sampling.decay,
        value=value,
        floor=sampling.floor,
        seed=scenario.training.seed,
    )
    outcome = replay(stream, {policy: kept}, batches=rows)
    return flows, {"hits": outcome.hits[policy], "effective": outcome.effective}


def count_room(workload: SimulatedWorkload, policy: str) -> int:
    """Number of samples that fit into a node's fastest tier, by the library's own rule."""
    sizes, tier = workload.sizes, workload.scenario.system.tiers[0]
    fitting = count_fitting(tier.capacity_mb * BYTES, float(sizes.mean()), float(sizes.std()))
    if fitting < 1:
        raise UsageError(
            f"{policy} cannot run in {workload.scenario.name}: a node's memory holds no sample; "
            "give tiers[0] more capacity"
        )
    return min(fitting, len(sizes))


class _CountedCaches:
    """The caches of all nodes, to which batches are dealt in turn, with counts of their bytes."""

    def __init__(self, workload: SimulatedWorkload, caches: list[Any], flows: NodeTraffic) -> None:
        self._workload = workload
        self._caches: list[SampleCache] = caches
        self._flows = flows
        self._step = 0

    def serve(self, ids: Ints, values: Floats) -> Any:
        """See `importance.SampleCache`."""
        nodes = self._workload.scenario.training.nodes
        is_hit = np.zeros(len(ids), bool)
        for node, cache in enumerate(self._caches):
            is_hit[node::nodes] = cache.serve(ids[node::nodes], values)
        size = self._workload.sizes[ids].reshape(-1, nodes)
        local = np.where(is_hit.reshape(-1, nodes), size, 0).sum(axis=0)
        need = size.sum(axis=0)
        self._flows.need[self._step] = need
        self._flows.ring[self._step] = need - local
        self._flows.tiers[0, self._step] = local
        self._flows.own[self._step] = local.sum()
        self._step += 1
        return is_hit
