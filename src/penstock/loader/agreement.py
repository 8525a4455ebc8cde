"""Agreement of ranks: what has to be equal on several of them is compared before it counts.

Peers are the processes of one data coordinate: they have to get equal batches. That follows from
the place; a program that forgot its place, or gave other seeds, is found by `PeerCheck`. Peers
compare a hash, and tell each other all numbers of samples only where hashes differ.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arguments import check_whole
from ..errors import UsageError
from ..plan.batch_layout import Ids
from ..ranks.gather import Gather, exchange_values, find_gather
from ..ranks.place import Place, find_reader


def compare_values(
    gather: Gather, reader: Place, say: Callable[[], Mapping[str, Any]], what: str, remedy: str
) -> None:
    """Compare the values that ranks say; UsageError on all of them if they differ.

    what, remedy:  what ranks do that differ, and what to do, for the message.

    If `say` raises on one rank, that rank raises the error, and the others a UsageError.
    """
    told = exchange_values(gather, reader, say)
    other = next((rank for rank, values in enumerate(told) if values != told[0]), None)
    if other is not None:
        pairs = {name: (value, told[other].get(name)) for name, value in told[0].items()}
        differences = ", ".join(f"{n} {a!r} and {b!r}" for n, (a, b) in pairs.items() if a != b)
        raise UsageError(f"ranks 0 and {other} {what}: {differences}. {remedy}")


class PeerCheck:
    """Check of every n-th step of one loader; its peers meet at the first.

    every:        n.
    fingerprint:  identity of the data.
    """

    def __init__(self, every: int, fingerprint: str) -> None:
        self._every = check_whole("check_peers", every)
        self._fingerprint = fingerprint
        self._peers: tuple[Place, Gather, Sequence[int]] | None = None  # and their ranks

    def is_due(self, step: int) -> bool:
        return step % self._every == 0

    def compare(self, place: Place, epoch: int, step: int, ids: Ids) -> None:
        """Compare this step's samples; UsageError on all peers if they differ."""
        if self._peers is None or self._peers[0] != place:
            gather = find_gather(place, sys.modules, os.environ)
            reader = find_reader(place, os.environ, sys.modules)
            told = exchange_values(gather, reader, lambda: {"coordinate": place.rank})
            readers = place.readers or range(reader.world_size)
            ranks: Sequence[int] = [
                rank
                for rank, member in zip(readers, told, strict=True)
                if member["coordinate"] == place.rank
            ]
            peers = Place(0, 1, place.source, readers=ranks)
            self._peers = place, find_gather(peers, sys.modules, os.environ), ranks
        _, gather, ranks = self._peers
        compare_samples(gather, ranks, f"epoch {epoch}, step {step}", ids, self._fingerprint)


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
    rows = list(zip(lists[0], lists[other], strict=False))
    unequal = next((number for number, (one, its) in enumerate(rows) if one != its), None)
    if steps[0] != steps[1]:
        fault = f"the one is at {steps[0]}, the other at {steps[1]}"
    elif unequal is not None:
        values = " and ".join(rows[unequal])
        fault = f"at {steps[0]}, sample {unequal} of the batch is {values}"
    elif len(lists[0]) != len(lists[other]):
        fault = f"at {steps[0]} they have {len(lists[0])} and {len(lists[other])} samples"
    else:
        fault = f"at {steps[0]} the numbers of samples are equal, and the data is not the same"
    ranks = ranks or range(len(hashes))
    who = f"ranks {ranks[0]} and {ranks[other]} have to get equal batches and do not"
    raise UsageError(f"{who}: {fault}. Give all the same data, seed and batch size, and place=")


def find_ids(batch: Any) -> Ids:
    """Return the numbers of a batch's samples. Raises UsageError if it does not have them."""
    ids = getattr(batch, "ids", None)
    if ids is None and isinstance(batch, dict):
        ids = batch.get("__id__")
    if ids is None:
        what = f"the batch is a {type(batch).__name__} without ids"
        raise UsageError(f'{what}: give batches of penstock, or keep "__id__" in decode')
    ids = ids.cpu() if hasattr(ids, "cpu") else ids  # a tensor, perhaps of a device
    return np.asarray(ids).reshape(-1).astype(np.uint64)
