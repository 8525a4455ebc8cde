"""Weights that a training loop hands in between epochs, and their record in a state.

A state names the weights by number and digest. It holds small ones itself, and the path of a file
with others if the user gave one.
"""

from __future__ import annotations

import base64
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
from .agreement import compare_values

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
        raise UsageError(
            f"set_weights compares {ranks}, which cannot: {remedy} ({error})"
        ) from None
