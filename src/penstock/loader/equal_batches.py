"""Peer check: whether processes that have to get equal batches get them.

Peers are the processes of one data coordinate. What they are to have follows from the place; what a
program that forgot its place, or gave other seeds, makes of it shows here. They compare a hash, and
tell each other all numbers of samples only where hashes differ.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arguments import check_whole
from ..errors import UsageError
from ..plan.batch_layout import Ids
from ..ranks.gather import Gather, exchange_values, find_gather
from ..ranks.place import Place, find_reader


class PeerCheck:
    """Check of every n-th step of one loader; its peers meet at the first.

    every:        n.
    fingerprint:  identity of the data.
    """

    def __init__(self, every: int, fingerprint: str) -> None:
        self._every = check_whole("check_peers", every)
        self._fingerprint = fingerprint
        self._peers: _Peers | None = None

    def is_due(self, step: int) -> bool:
        return step % self._every == 0

    def compare(self, place: Place, epoch: int, step: int, ids: Ids) -> None:
        """Compare this step's samples; UsageError on all peers if they differ."""
        if self._peers is None or self._peers.place != place:
            self._peers = _meet(place)
        _, gather, ranks = self._peers
        where = f"epoch {epoch}, step {step}"
        compare_samples(gather, ranks, where, ids, self._fingerprint)


class _Peers(NamedTuple):
    """The peers of a coordinate, by their ranks in the process group."""

    place: Place
    gather: Gather
    ranks: Sequence[int]


def _meet(place: Place) -> _Peers:
    """Find the processes that have this coordinate; all that read have to call this."""
    reader = find_reader(place, os.environ, sys.modules)
    gather = find_gather(place, sys.modules, os.environ)
    told = exchange_values(gather, reader, lambda: {"coordinate": place.rank})
    readers = place.readers or range(reader.world_size)
    ranks = [
        rank
        for rank, member in zip(readers, told, strict=True)
        if member["coordinate"] == place.rank
    ]
    peers = Place(0, 1, place.source, readers=ranks)
    return _Peers(place, find_gather(peers, sys.modules, os.environ), ranks)


def compare_samples(
    gather: Gather, ranks: Sequence[int] | None, where: str, ids: Ids, data: str = ""
) -> None:
    """Compare the samples of one step among peers.

    ranks:  of the peers, in the order of their texts; None numbers them.
    where:  the step, in words.
    data:   identity of the data.

    Raises UsageError on all of them if they differ: the ranks, and the first sample that differs.
    """
    numbers = np.ascontiguousarray(ids, np.uint64)
    digest = hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest()
    hashes = gather(f"{where}\n{digest}\n{data}")
    if len(set(hashes)) == 1:
        return
    lists = [text.split(",") if text else [] for text in gather(",".join(map(str, numbers)))]
    other = next(k for k, text in enumerate(hashes) if text != hashes[0])
    steps = [text.split("\n")[0] for text in (hashes[0], hashes[other])]
    rows = lists[0], lists[other]
    difference = _describe_difference(steps, rows)
    ranks = ranks or range(len(hashes))
    raise UsageError(
        f"ranks {ranks[0]} and {ranks[other]} have to get equal batches and do not: {difference}. "
        "Give all ranks the same data, seed and batch size, and place= as their mesh says"
    )


def _describe_difference(steps: Sequence[str], rows: tuple[list[str], list[str]]) -> str:
    if steps[0] != steps[1]:
        return f"the one is at {steps[0]}, the other at {steps[1]}"
    for number, (one, other) in enumerate(zip(*rows, strict=False)):
        if one != other:
            return f"at {steps[0]}, sample {number} of the batch is {one} and {other}"
    if len(rows[0]) != len(rows[1]):
        return f"at {steps[0]} they have {len(rows[0])} and {len(rows[1])} samples"
    return f"at {steps[0]} the numbers of samples are equal, and the data is not the same"


def find_ids(batch: Any) -> Ids:
    """Return the numbers of a batch's samples. Raises UsageError if it does not have them."""
    ids = getattr(batch, "ids", None)
    if ids is None and isinstance(batch, dict):
        ids = batch.get("__id__")
    if ids is None:
        raise UsageError(
            f"the batch is a {type(batch).__name__} without ids: give batches of penstock, or "
            'those whose decode keeps "__id__"'
        )
    ids = ids.cpu() if hasattr(ids, "cpu") else ids  # a tensor, perhaps of a device
    return np.asarray(ids).reshape(-1).astype(np.uint64)
