"""`shuffle="auto"`: measures the cost of reading and chooses one order for all ranks.

The choice is part of the order, and so of every state: a resumed run keeps it. If there are several
ranks, rank 0 measures, and the others learn the choice through the process group's store.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.sample import choose_gap, kept_decoded_bytes
from ..engine.host import ProbeResult
from ..engine.open import open_engine
from ..errors import UsageError
from ..index.layout import Chunked, Windowed
from ..index.read_cost import measure_cost, summarize_cost
from ..order.order import Order, Ordering, Shuffle, parse_shuffle
from ..order.shuffling import (
    Blocking,
    choose_blocks,
    choose_chunk_blocks,
    shuffle_quality,
    window_samples,
)
from ..plan.readahead import Session
from ..plan.steps import Steps
from ..ranks.gather import find_store
from ..ranks.place import Place, find_reader

log = logging.getLogger("penstock")

_window_groups = 4, 2, 1  # blocks of windows that are mixed, so that a batch is not of one place
_few_decodes = 4.5  # of a chunk in an epoch
_planned_samples = 4096  # whose chunks are planned to count their decodes


class AutoShuffle:
    """Choice of the order of a dataset; an `OrderChoice`.

    budget:  for reading; its owner replaces it where it changes before the choice is made.
    record:  the choice, {} before it is made: shuffle, block, group, reached, reason, quality; and
             the measurements of the rank that made them: latency_ns, bytes_per_s, requests, took_s.
    """

    def __init__(self, dataset: Dataset, seed: int, budget: Budget) -> None:
        if dataset.kind is not None:
            raise UsageError(f"shuffle='auto' does not choose for {dataset.kind.noun}: use 'exact'")
        self._dataset = dataset
        self._seed = seed
        self.budget = budget
        self.record: dict[str, Any] = {}

    def resume_order(self, algorithm: str) -> Ordering | None:
        """Return the order of a saved state: the state decides."""
        parsed = parse_shuffle(algorithm)
        if parsed is None:
            return None
        shuffle, block, group = parsed
        self.record = {"shuffle": shuffle, "block": block, "group": group, "reason": "resumed"}
        return self._dataset.order(self._seed, shuffle=shuffle, block=block, group=group)

    def choose(self, place: Place, steps: Steps) -> Ordering:
        """Choose the order that suits the storage, on all ranks; rank 0 logs it."""
        key = f"penstock/shuffle/{self._dataset.fingerprint}"
        process = find_reader(place, os.environ, sys.modules)
        choice = agree_on_choice(process, key, lambda: self._decide(place, steps), sys.modules)
        self.record = json.loads(choice)
        shuffle, block, group = (self.record[name] for name in ("shuffle", "block", "group"))
        if process.rank == 0:
            # Python shows warnings even if a program has set up no logging: nobody should miss that
            # the order is less than exact.
            log.log(logging.INFO if shuffle == "exact" else logging.WARNING, "%s", self)
        return self._dataset.order(self._seed, shuffle=shuffle, block=block, group=group)

    def __str__(self) -> str:
        return f"{self._dataset.path}: {describe_choice(self.record)}"

    def _decide(self, place: Place, steps: Steps) -> str:
        rows, data = steps.rows(0, place.rank), self._dataset
        choice = choose_shuffle(data, self.budget, rows, place.world_size, steps.global_batch)
        return json.dumps(record_choice(len(data), *choice))


def describe_choice(record: Mapping[str, Any]) -> str:
    """Describe a choice in one line: the shuffle, its reason and its quality."""
    how = f'shuffle="{record["shuffle"]}"'
    if record["shuffle"] == "blocked":
        how += f", block={record['block']}, group={record['group']}"
    quality = f" (shuffle quality {record['quality']:.3f})" if "quality" in record else ""
    return f"auto chose {how}{quality}: {record['reason']}"


def record_choice(count: int, chosen: Blocking, probed: ProbeResult | None) -> dict[str, Any]:
    """Return a choice as JSON values, for `AutoShuffle.record`."""
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
    """Choose the order of a dataset. Returns the choice, and the measurement if one was made.

    rows:    samples of one rank in a step.
    probed:  an earlier measurement, in place of a new one.
    """
    index = dataset.index
    one_in = index.count / max(1, len(dataset))  # samples of which one is selected
    chunked = [layout for layout in index.layouts if isinstance(layout, Chunked)]
    if any(isinstance(layout, Windowed) for layout in chunked):
        return _choose_window_blocks(dataset, budget, global_batch, world_size), None
    if chunked:
        block = max(1, int(float(np.median(chunked[0].chunk_samples)) / one_in))
        return choose_chunk_blocks(len(dataset), block, global_batch), None
    window = window_samples(index.mean_bytes, rows, world_size, budget.readahead_bytes)
    engine = open_engine(index.files, budget, index.mean_bytes)
    try:
        gap_bytes = choose_gap(index, engine.choice)
        apart_bytes = index.mean_bytes * (one_in - 1)
        reasons = {
            "the data is in the page cache": engine.choice.cached,  # blocks would only save calls
            "there are no bytes to read": index.total_bytes == 0,
            "each sample is a file of its own: neighbours cannot be read together": gap_bytes
            is None,
            "selected samples lie too far apart to be read together": apart_bytes
            > (gap_bytes or 0),
        }
        for reason, holds in reasons.items():
            if holds:
                return Blocking("exact", 1, 1, 1.0, reason), None
        assert gap_bytes is not None
        probed = probed or measure_cost(index, engine)
    finally:
        engine.close()
    chosen = choose_blocks(
        len(dataset),
        index.mean_bytes * one_in,  # what lies between is read along
        summarize_cost(probed),
        window_samples=window,
        world_size=world_size,
        gap_bytes=gap_bytes,
    )
    return chosen, probed


def _choose_window_blocks(
    dataset: Dataset, budget: Budget, global_batch: int, world_size: int
) -> Blocking:
    """Choose the order nearest to exact of which a rank decodes a chunk few times, as planned; or
    the one that decodes least."""
    index, room_bytes = dataset.index, kept_decoded_bytes(budget)
    fields = {
        id(layout.chunks): (layout, field.dtype.itemsize)
        for layout, field in zip(index.layouts, index.fields, strict=True)
        if isinstance(layout, Windowed)
    }
    count = dataset.samples_per_epoch
    chunks = (
        len(dataset)
        / max(1, index.count)
        * sum(layout.chunks.count for layout, _ in fields.values())
    )
    elements = room_bytes // 2 // sum(itemsize for _, itemsize in fields.values())
    first, _ = next(iter(fields.values()))
    steps = Steps(count, global_batch, world_size)

    def estimate_decodes(shuffle: Shuffle, block: int, group: int) -> float:
        order = dataset.order(0, shuffle=shuffle, block=block, group=group).at_epoch(0)
        session = Session(index, order, steps, 0, memory=(room_bytes, {}))
        return session.estimate_decodes(_planned_samples // steps.rows(0, 0) + 1, chunks)

    tried: list[tuple[float, Blocking]] = []
    for group in (0, *_window_groups):
        shuffle: Shuffle = "blocked" if group else "exact"
        block = first.count_neighbours(elements // group) * count // index.count if group else 1
        block = min(max(1, block), count)
        group = max(group, min(global_batch, count) // block if group else 1)
        decodes = estimate_decodes(shuffle, block, group)
        reason = f"each chunk is decoded {decodes:.1f} times an epoch"
        if group > 1 or block > 1:
            reason += f", {tried[0][0]:.1f} times if exact"
        tried.append((decodes, Blocking(shuffle, block, group, 1.0, reason)))
        if decodes <= _few_decodes:
            break
    return min(tried, key=lambda one: max(one[0], _few_decodes))[1]


def agree_on_choice(
    place: Place, key: str, decide: Callable[[], str], modules: Mapping[str, Any]
) -> str:
    """Return the decision of rank 0 on every rank.

    Ranks wait for rank 0 no longer than the time-out of the process group's store.

    Raises UsageError if there are several ranks and no process group, or if rank 0 failed.
    """
    if place.world_size == 1:
        return decide()
    store = find_store(modules)
    if store is None:
        needs = f"shuffle='auto' on {place.world_size} ranks needs torch.distributed"
        raise UsageError(f"{needs}: initialise it, or see `penstock inspect --shuffle`")
    if place.rank == 0 and not (store.check([key]) and store.get(key)[:1] == b"{"):
        try:
            store.set(key, decide())
        except Exception as error:
            store.set(key, f"!{error}")  # the others must not wait for a choice that does not come
            raise
    try:
        choice: str = store.get(key).decode()
    except RuntimeError as error:  # the store timed out, or its server has gone
        what = f"rank {place.rank} did not learn which shuffle rank 0 chose ({error})"
        raise UsageError(f"{what}: iterate the loader on all ranks, or name a shuffle") from None
    if choice.startswith("!"):
        raise UsageError(f"rank 0 could not choose a shuffle: {choice[1:]}")
    return choice
