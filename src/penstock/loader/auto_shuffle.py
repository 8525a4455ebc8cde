"""`shuffle="auto"`: measures what reading costs, chooses, and sees that all ranks take the same.

The choice is part of the order, and so of every state: a run that is resumed keeps it. Where there
are several ranks, rank 0 measures and the others are told through the process group's store.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ..budget import Budget
from ..cache import find_store
from ..engine import ProbeResult, open_engine
from ..errors import UsageError
from ..index import Chunked, measure_cost, summarize_cost
from ..order import (
    Blocking,
    Order,
    Ordering,
    choose_blocks,
    choose_chunk_blocks,
    parse_shuffle,
    shuffle_quality,
    window_samples,
)
from ..plan import Steps
from ..topology import Place
from .batch import choose_gap
from .dataset import Dataset

log = logging.getLogger("penstock")


class AutoShuffle:
    """Chooses the order of a dataset: `penstock.loader.OrderChoice`.

    record:  once chosen, what was: shuffle, block, group, reached, reason, quality; and, of the
             rank that measured, latency_ns, bytes_per_s, requests and took_s. {} before.
    """

    def __init__(self, dataset: Dataset, seed: int, budget: Callable[[], Budget]) -> None:
        if type(dataset).order is not Dataset.order:
            raise UsageError(
                "shuffle='auto' does not choose for a mixture: choose 'exact' or 'blocked'"
            )
        self._dataset = dataset
        self._seed = seed
        self._budget = budget
        self.record: dict[str, Any] = {}

    def resume_order(self, algorithm: str) -> Ordering | None:
        """The order of a saved state, which decides."""
        found = parse_shuffle(algorithm)
        if found is None:
            return None
        shuffle, block, group = found
        self.record = {"shuffle": shuffle, "block": block, "group": group, "reason": "resumed"}
        return self._dataset.order(self._seed, shuffle=shuffle, block=block, group=group)

    def choose(self, place: Place, steps: Steps) -> Ordering:
        """The order that suits the storage; told to all ranks, and logged by rank 0."""
        key = f"penstock/shuffle/{self._dataset.fingerprint}"
        said = agree_on_choice(place, key, lambda: self._decide(place, steps), sys.modules)
        self.record = json.loads(said)
        shuffle, block, group = (self.record[name] for name in ("shuffle", "block", "group"))
        if place.rank == 0:
            # Python shows warnings even where a program has set up no logging: an order less than
            # exact should not be news to anybody.
            log.log(logging.INFO if shuffle == "exact" else logging.WARNING, "%s", self)
        return self._dataset.order(self._seed, shuffle=shuffle, block=block, group=group)

    def __str__(self) -> str:
        return f"{self._dataset.path}: {describe_choice(self.record)}"

    def _decide(self, place: Place, steps: Steps) -> str:
        rows = steps.rows(0, place.rank)
        chosen, probed = choose_shuffle(
            self._dataset, self._budget(), rows, place.world_size, steps.global_batch
        )
        return json.dumps(record_choice(len(self._dataset), chosen, probed))


def describe_choice(record: Mapping[str, Any]) -> str:
    """One line that says what was chosen, why, and what it costs."""
    how = f'shuffle="{record["shuffle"]}"'
    if record["shuffle"] == "blocked":
        how += f", block={record['block']}, group={record['group']}"
    quality = f" (shuffle quality {record['quality']:.3f})" if "quality" in record else ""
    return f"auto chose {how}{quality}: {record['reason']}"


def record_choice(count: int, chosen: Blocking, probed: ProbeResult | None) -> dict[str, Any]:
    """What `AutoShuffle.record` holds."""
    order = Order(count, 0, shuffle=chosen.shuffle, block=chosen.block, group=chosen.group)
    record: dict[str, Any] = {
        "shuffle": chosen.shuffle,
        "block": chosen.block,
        "group": chosen.group,
        "reached": chosen.reached,
        "reason": chosen.reason,
        "quality": 1.0 if chosen.shuffle == "exact" else shuffle_quality(order),
    }
    if probed is not None:
        record |= asdict(summarize_cost(probed)) | {"took_s": probed.took_s}
    return record


def choose_shuffle(
    dataset: Dataset,
    budget: Budget,
    rows: int,
    world_size: int,
    global_batch: int,
    probed: ProbeResult | None = None,
) -> tuple[Blocking, ProbeResult | None]:
    """The choice for a dataset, and what was measured for it, if anything was.

    rows:    samples of one rank in a step.
    probed:  what was measured already, instead of measuring.
    """
    index = dataset.index
    bands = [layout for layout in index.layouts if isinstance(layout, Chunked)]
    if bands:
        held = int(np.median(np.diff(bands[0].first)))
        return choose_chunk_blocks(index.count, held, global_batch), None
    window = window_samples(index.mean_bytes, rows, world_size, budget.readahead_bytes)
    engine = open_engine(index.files, budget, index.mean_bytes)
    try:
        gap_bytes = choose_gap(index, engine.choice)
        if engine.choice.cached:  # then reading is copying, and blocks would only save calls
            return Blocking("exact", 1, 1, 1.0, "the data is in the page cache"), None
        if index.total_bytes == 0:
            return Blocking("exact", 1, 1, 1.0, "there are no bytes to read"), None
        if gap_bytes is None:
            reason = "each sample is a file of its own: neighbours cannot be read together"
            return Blocking("exact", 1, 1, 1.0, reason), None
        probed = probed or measure_cost(index, engine)
    finally:
        engine.close()
    chosen = choose_blocks(
        index.count,
        index.mean_bytes,
        summarize_cost(probed),
        window_samples=window,
        world_size=world_size,
        gap_bytes=gap_bytes,
    )
    return chosen, probed


def agree_on_choice(
    place: Place, key: str, decide: Callable[[], str], modules: Mapping[str, Any]
) -> str:
    """What rank 0 decides, on every rank. Only asks, never makes ranks wait for each other beyond
    the time-out of the process group's store.

    Raises UsageError where there are several ranks and no process group to tell them.
    """
    if place.world_size == 1:
        return decide()
    store = find_store(modules)
    if store is None:
        raise UsageError(
            f"shuffle='auto' on {place.world_size} ranks needs torch.distributed to tell them all "
            "what was chosen: initialise it first, or run `penstock inspect --shuffle` once and "
            "pass the shuffle, block and group that it prints"
        )
    if place.rank == 0 and not (store.check([key]) and store.get(key)[:1] == b"{"):
        try:
            store.set(key, decide())
        except Exception as error:
            store.set(key, f"!{error}")  # the others must not wait for what does not come
            raise
    try:
        said: str = store.get(key).decode()
    except RuntimeError as error:  # the store's time-out, or its server has gone
        raise UsageError(
            f"rank {place.rank} was not told which shuffle rank 0 chose ({error}): iterate the "
            "loader on all ranks, or give shuffle, block and group"
        ) from None
    if said.startswith("!"):
        raise UsageError(f"rank 0 could not choose a shuffle: {said[1:]}")
    return said
