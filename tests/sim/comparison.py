"""Caches by value, by recency and fixed, on one stream of batches: what a value is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from penstock.order import Order
from penstock_sim.importance import (
    Draw,
    FirstSeenCache,
    History,
    Loss,
    RecentCache,
    SampleCache,
    SampledOutcome,
    Value,
    ValueCache,
    draw_batches,
    evaluate,
    fedcase,
    replay,
)


def walk_epochs(
    samples: int, batch: int, loss: Loss, *, value: Value = fedcase, seed: int = 0
) -> Iterator[Draw]:
    """Yield batches in the library's own order, each sample once an epoch. Without end."""
    history, order, epoch = History.of(samples), Order(samples, seed), 0
    while True:
        ids = order.at_epoch(epoch).run(0, samples).astype(np.int64)
        for part in np.split(ids, range(batch, len(ids), batch)):
            yield Draw(part, evaluate(value, history), np.ones(len(part)))
            history = history.after(part, loss(part, history.uses[part]))
        epoch += 1


def replay_warm(
    stream: Iterator[Draw], caches: Mapping[str, SampleCache], batches: int, warmup: int
) -> SampledOutcome:
    """Serve `warmup` batches that are not counted, then `batches`."""
    for draw in islice(stream, warmup):
        for cache in caches.values():
            cache.serve(draw.ids, draw.values)
    return replay(stream, caches, batches=batches)


def compare(
    samples: int,
    batch: int,
    room: int,
    loss: Loss,
    *,
    value: Value = fedcase,
    seed: int = 0,
    batches: int,
    warmup: int = 0,
) -> dict[str, SampledOutcome]:
    """Compare caches of `room` samples on samples drawn by importance, and on epochs."""
    streams = {
        "importance": draw_batches(samples, batch, loss, value=value, seed=seed),
        "epochs": walk_epochs(samples, batch, loss, value=value, seed=seed),
    }
    found = {}
    for name, stream in streams.items():
        caches = {
            "value": ValueCache(room), "recent": RecentCache(room), "fixed": FirstSeenCache(room)
        }  # fmt: skip
        found[name] = replay_warm(stream, caches, batches, warmup)
    return found
