"""Agreement of ranks: what has to be equal on several of them is compared before it counts.

Peers are the processes of one data coordinate: they have to get equal batches. That follows from
the place; a program that forgot its place, or gave other seeds, is found by `PeerCheck`. Peers
compare a hash, and tell each other all numbers of samples only where hashes differ.

`Reweighing` takes the weights that a training loop hands in between epochs. A state names them by
number and digest; it holds small ones itself, and the path of a file with others if the user gave
one.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import limits
from ..arguments import Path, check_path, check_whole
from ..dataset.dataset import Dataset
from ..dataset.saved import load_weights, save_weights
from ..dataset.weighing import WeightsOf
from ..errors import PenstockError, StateError, UsageError
from ..order.order import Ordering
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


def same_batch(group: Any = None) -> Callable[[Any], None]:
    """Make a check to be called with each batch, on all ranks of a group of torch.distributed.

        check = penstock.testing.same_batch(mesh["tp"].get_group())
        for batch in loader:
            check(batch)

    group:  ranks that have to get equal batches, such as the peers of tensor parallelism; None: all
            of the process group. Or a function that takes a text and returns all ranks' texts.

    The check raises UsageError on all ranks if the numbers of samples (`ids`, "__id__") differ: it
    says at which batch, on which ranks, and which sample is the first that differs. Each check
    takes a message; `check_peers` of the loaders checks every n-th step.
    """
    gather = group if callable(group) else _make_gather(group)
    ranks = None if callable(group) else _list_ranks(group)
    count = 0

    def check(batch: Any) -> None:
        nonlocal count
        compare_samples(gather, ranks, f"batch {count}", find_ids(batch))
        count += 1

    return check


def _make_gather(group: Any) -> Callable[[str], list[str]]:
    import torch.distributed as dist

    def gather(text: str) -> list[str]:
        texts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(texts, text, group=group)
        return texts

    return gather


def _list_ranks(group: Any) -> list[int]:
    import torch.distributed as dist

    ranks: list[int] = dist.get_process_group_ranks(group)
    return ranks


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


WeightsRecord = Mapping[str, Any]


class Reweighing:
    """The orders of one dataset under the weights that are handed in.

    make_order:  makes the order of epoch 0 of a dataset, as its loader draws it.
    """

    def __init__(self, dataset: Dataset, make_order: Callable[[Dataset], Ordering]) -> None:
        self._dataset = dataset
        self._make_order = make_order

    def weigh(
        self,
        weights: WeightsOf,
        columns: Mapping[str, Any] | None,
        record: WeightsRecord | None,
        epoch: int,
        place: Place,
        path: Path | None,
        gather: Gather | None,
    ) -> tuple[Ordering, WeightsRecord]:
        """Return the order under these weights, and the record for states.

        record:  of the weights before.
        epoch:   first epoch of these weights.

        UsageError on all ranks, and nothing has changed, if one has other weights, or none.
        """
        number = 1 if record is None else int(record["number"]) + 1
        path = None if path is None else os.path.abspath(check_path("path", path))
        reader = find_reader(place, os.environ, sys.modules)
        weighed = self._dataset

        def weigh() -> dict[str, Any]:
            nonlocal weighed
            weighed = self._dataset.weigh(weights, columns=columns)
            table = weighed.join_weights()
            if path is not None and reader.rank == 0:
                save_weights(path, table, self._dataset.fingerprint)
            return {"number": number, "epoch": epoch, "path": path, "digest": table.digest}

        remedy = "Give all the same ones, gathered from all, at the same epoch's end"
        compare_values(_find_gather(place, gather), reader, weigh, "hand in other weights", remedy)
        table = weighed.join_weights()
        saved: dict[str, Any] = {"number": number, "digest": table.digest}
        if path is not None:
            saved["path"] = path
        elif len(table) <= limits.weights_state_samples_max:
            packed = zlib.compress(table.weights.astype("<u4").tobytes())
            saved["values"] = base64.b64encode(packed).decode()
        return self._make_order(weighed), saved

    def resume(self, record: WeightsRecord | None) -> Ordering:
        """Return the order under the weights of a state; without, under those at the start.

        StateError if the state names them only, or if what it names is not what it was.
        """
        if record is None:
            return self._make_order(self._dataset)
        named = f"weights number {record.get('number')} of digest {record.get('digest')!r}"
        values: Any
        try:
            if "values" in record:
                packed = base64.b64decode(record["values"], validate=True)
                unpack = zlib.decompressobj()
                plain = unpack.decompress(packed, 4 * limits.weights_state_samples_max)
                values = np.frombuffer(plain, "<u4")
            elif "path" in record:
                path, data = str(record["path"]), self._dataset.fingerprint
                values = load_weights(path, data, str(record["digest"])).weights
            else:
                remedy = "call set_weights() with them before load_state_dict(), or give it path="
                raise StateError(f"the state is of {named}, which it does not hold: {remedy}")
            weighed = self._dataset.weigh(values)
        except StateError:
            raise
        except (PenstockError, ValueError, KeyError, TypeError, zlib.error) as error:
            raise StateError(f"the state is of {named}, which cannot be had: {error}") from None
        if weighed.join_weights().digest != record.get("digest"):
            raise StateError(f"the state is of {named}, and holds others: it was changed")
        return self._make_order(weighed)


def _find_gather(place: Place, gather: Gather | None) -> Gather:
    try:
        return find_gather(place, sys.modules, os.environ, gather)
    except UsageError as error:
        ranks = f"the weights of {place.world_size} ranks ({place.source})"
        remedy = "initialise torch.distributed first, or give gather="
        problem = f"set_weights compares {ranks}, which cannot"
        raise UsageError(f"{problem}: {remedy} ({error})") from None
