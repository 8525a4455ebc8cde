"""Balanced assignment in a loader: its options, the samples' costs, and a check that ranks agree.

Ranks deal without messages, each for itself, so unequal costs would have one sample processed twice
and another not at all. Ranks compare their costs when an epoch starts, before the first batch.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from ..arguments import check_choice, check_fields, flag, fraction, function
from ..dataset.dataset import Dataset
from ..dataset.lengths import build_unmeasured_error
from ..errors import UsageError
from ..order.order import Ordering
from ..order.packed_order import RowOrdering
from ..plan.assignment import Locality
from ..plan.balance import CostBalance
from ..plan.sample_cost import CostRule, cost_by_width
from ..plan.sample_cost import LengthCost as LengthCost
from ..plan.sample_cost import fit_cost as fit_cost
from ..plan.steps import Assignment, Steps
from ..ranks.gather import Gather, find_gather
from ..ranks.place import Place, find_reader
from .equal_batches import compare_values

if TYPE_CHECKING:
    from ..cache.agreement import Cache

_width_default = 4096
_probes = 4096
_together = 1 << 14  # rows whose costs are compared, of the next global batches


@dataclass(frozen=True)
class Balanced:
    """Options of balanced assignment: `Loader(..., assignment=Balanced(...))`. Equal on all ranks.

    width:     width of the model (d_model): a document of s tokens costs s (1 + s / (12 width)),
               the time of a causal transformer; by default 4096.
    cost:      instead, a function of an int64 array of lengths that returns the cost of each, such
               as `penstock.loader.fit_cost` gives. It must give equal values on all machines, to
               the last bit: additions, multiplications, divisions and square roots do, exponentials
               and logarithms may not.
    lockstep:  sample number k of every rank's batch have costs near each other, for training that
               waits for all ranks at each microbatch (FSDP). A rank's samples then come by cost.
    locality:  with `cache`, 0..1 trades balance for locality: 0 looks at costs alone, 1 deals as
               assignment="local" does. Small values keep most of both: see docs/balance.md.
    gather:    function of a text that returns the texts of all ranks, by which they compare costs;
               by default the process group's.
    """

    width: int | None = None
    cost: CostRule | None = field(
        default=None, metadata=function("a function of an array of lengths")
    )
    lockstep: bool = field(default=False, metadata=flag())
    locality: float = field(default=0.0, metadata=fraction())
    gather: Gather | None = field(default=None, metadata=function("a function of a text"))

    def __post_init__(self) -> None:
        if self.cost is not None and self.width is not None:
            raise UsageError(f"cost and width={self.width!r} are both given: choose one")
        check_fields(self, "")
        cost_by_width(_width_default if self.width is None else self.width)

    @property
    def rule(self) -> CostRule:
        """The cost of each length."""
        if self.cost is not None:
            return self.cost
        return cost_by_width(_width_default if self.width is None else self.width)


def name_assignment(assignment: Assignment | Balanced) -> Assignment:
    """Return the assignment's name. UsageError if there is none such."""
    name = "balanced" if isinstance(assignment, Balanced) else assignment
    more = ", or penstock.Balanced(...)"
    return cast(Assignment, check_choice("assignment", name, get_args(Assignment), more))


def balance_costs(
    dataset: Dataset, order: Ordering, assignment: Assignment | Balanced, cache: Cache | None
) -> Balancing | None:
    """Return what balanced assignment needs; None for the others.

    UsageError if the lengths of samples are not known.
    """
    if name_assignment(assignment) != "balanced":
        return None
    options = assignment if isinstance(assignment, Balanced) else Balanced()
    if options.locality and cache is None:
        what = f"locality={options.locality!r} is for hosts that share a cache"
        raise UsageError(f"{what}: give cache=")
    has_rows = isinstance(order, RowOrdering)
    if options.locality and has_rows:
        raise UsageError(f"locality={options.locality!r} is not for packed rows: leave it out")
    lengths_of = None if has_rows else dataset.find_id_lengths()
    if lengths_of is None and not has_rows:
        raise build_unmeasured_error(dataset.path, "assignment='balanced' deals by lengths: ")
    balance = CostBalance(options.rule, lengths_of, options.lockstep, None, float(options.locality))
    return Balancing(balance, dataset, options.gather)


class Balancing:
    """Costs of one dataset, and their comparison between ranks."""

    def __init__(self, balance: CostBalance, dataset: Dataset, gather: Gather | None) -> None:
        self._balance = balance
        self._dataset = dataset
        self._gather = gather
        self._warned = False

    @property
    def needs_locality(self) -> bool:
        """True if the caches of the job have a say."""
        return self._balance.locality_share > 0

    def locate(self, locality: Locality | None) -> CostBalance:
        """Return the costs with the nodes that keep samples; before they are known, without."""
        if locality is None:
            return replace(self._balance, locality_share=0.0)
        return replace(self._balance, locality=locality)

    def compare(self, place: Place, steps: Steps, order: Ordering, epoch: int, step: int) -> None:
        """Compare the costs of all ranks; UsageError on all of them if they differ.

        Called on all ranks before an epoch's first batch.
        """
        if place.world_size == 1:
            return
        try:
            gather = find_gather(place, sys.modules, os.environ, self._gather)
        except UsageError:
            if not self._warned:
                self._warned = True
                what = f"assignment='balanced': {place.world_size} ranks ({place.source}) deal by"
                why = "costs, and cannot compare them: samples may come twice, others never"
                remedy = "initialise torch.distributed, or give penstock.Balanced(gather=...)"
                warnings.warn(f"{what} {why}: {remedy}", RuntimeWarning, stacklevel=4)
            return
        compare_values(
            gather,
            find_reader(place, os.environ, sys.modules),
            lambda: self._summarize(place, steps, order, epoch, step),
            "would deal by unequal costs, so that some samples come twice and others never",
            "Give all ranks the same coefficients or function, lengths by one rule (`penstock "
            "lengths`), epoch and step",
        )

    def _summarize(
        self, place: Place, steps: Steps, order: Ordering, epoch: int, step: int
    ) -> dict[str, Any]:
        balance = self._balance
        start = step * steps.global_batch
        known = len(steps) * steps.global_batch
        if steps.counter is not None:  # a rank may know more packed rows than others
            known = start + steps.global_batch
        stop = min(steps.count, known, start + _together)
        next_costs = balance.measure(order, np.arange(start, max(start, stop), dtype=np.uint64))
        lengths = np.empty(0, np.int64)
        if balance.lengths_of is not None:
            count = self._dataset.index.count
            ids = np.linspace(0, count - 1, min(_probes, count)).astype(np.uint64)
            lengths = balance.lengths_of(ids)
        return {
            "world size": place.world_size,
            "global batch": steps.global_batch,
            "epoch": epoch,
            "step": step,
            "data": self._dataset.fingerprint,
            "seed": order.seed,
            "order": order.algorithm,
            "lockstep": balance.lockstep,
            "locality": balance.locality_share,
            "cost": getattr(balance.cost, "__qualname__", None) or repr(balance.cost),
            "lengths": _hash(np.asarray(lengths, "<i8")),
            "costs of the next steps": _hash(np.asarray(next_costs, "<f8")),
        }


def _hash(values: Any) -> str:
    return hashlib.blake2b(
        json.dumps(values.shape).encode() + values.tobytes(), digest_size=8
    ).hexdigest()
