"""Weights that a training loop hands in between epochs, and their record in a state.

A state names the weights by number and digest. It holds small ones itself, and the path of a file
with others if the user gave one.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import limits
from ..arguments import Path, check_path
from ..dataset.dataset import Dataset
from ..dataset.saved import load_weights, save_weights
from ..dataset.weighing import WeightsOf
from ..errors import PenstockError, StateError, UsageError
from ..order.order import Ordering
from ..ranks.gather import Gather, find_gather
from ..ranks.place import Place, find_reader

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
        problem: PenstockError | None = None
        text: dict[str, Any] = {"number": number, "epoch": epoch, "path": path}
        try:
            weighed = self._dataset.weigh(weights, columns=columns)
            table = weighed.join_weights()
            text["digest"] = table.digest
            if path is not None and find_reader(place, os.environ, sys.modules).rank == 0:
                save_weights(path, table, self._dataset.fingerprint)
        except PenstockError as error:  # the others must hear of it
            problem = error
            text["problem"] = str(error)
        texts = _find_gather(place, gather)(json.dumps(text))
        if problem is not None:
            raise problem
        _compare(texts)
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
        try:
            values = self._find_values(record)
            if values is None:
                raise StateError(
                    f"the state is of {named}, which it does not hold: call set_weights() with "
                    "them before load_state_dict(), and give it path= in runs to come"
                )
            weighed = self._dataset.weigh(values)
        except StateError:
            raise
        except (PenstockError, ValueError, KeyError, TypeError, zlib.error) as error:
            raise StateError(f"the state is of {named}, which cannot be had: {error}") from None
        if weighed.join_weights().digest != record.get("digest"):
            raise StateError(
                f"the state is of {named}, and holds others: pass what state_dict() returned"
            )
        return self._make_order(weighed)

    def _find_values(self, record: WeightsRecord) -> Any:
        if "values" in record:
            packed = base64.b64decode(record["values"], validate=True)
            unpack = zlib.decompressobj()
            plain = unpack.decompress(packed, 4 * limits.weights_state_samples_max)
            return np.frombuffer(plain, "<u4")
        if "path" in record:
            path, data = str(record["path"]), self._dataset.fingerprint
            return load_weights(path, data, str(record["digest"])).weights
        return None


def _find_gather(place: Place, gather: Gather | None) -> Gather:
    try:
        return find_gather(place, sys.modules, os.environ, gather)
    except UsageError as error:
        raise UsageError(
            f"set_weights compares the weights of {place.world_size} ranks ({place.source}), which "
            "have no way to tell each other: initialise torch.distributed first, start them with "
            "mpiexec and install mpi4py, or give gather=, a function that returns the texts of all "
            f"ranks ({error})"
        ) from None


def _compare(texts: list[str]) -> None:
    """Raise UsageError if ranks differ in the weights that they hand in, or if one has failed."""
    told = [json.loads(text) for text in texts]
    for rank, own in enumerate(told):
        if "problem" in own:
            raise UsageError(f"set_weights failed on rank {rank}: {own['problem']}")
    other = next((rank for rank, own in enumerate(told) if own != told[0]), None)
    if other is not None:
        names = [name for name in told[0] if told[0][name] != told[other][name]]
        differences = ", ".join(
            f"{name} {told[0][name]!r} and {told[other][name]!r}" for name in names
        )
        raise UsageError(
            f"ranks 0 and {other} hand in other weights: {differences}. Give all ranks the same "
            "ones, gathered from all, at the same epoch's end"
        )
