"""Weights of samples, as `Dataset.weigh` takes them: per sample, per class, or from the columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_number
from ..errors import UsageError
from ..order.order import Order
from ..order.selection import Bitmap
from ..order.weighted import DrawnOrder, WeightedOrder, WeightTable, round_weights
from .columns import Array, Columns, IndexedSamples, Slice, make_array, slice_column
from .predicate import describe_near
from .saved import allot_array, spill

WeightsOf = Mapping[Any, float] | str | Callable[[Mapping[str, Array]], Any] | npt.ArrayLike
"""Weights: of each class, the name of a column, a function of the columns, or one a sample."""


@dataclass(frozen=True)
class Weighting:
    """The weights of a dataset's samples, and the samples that an epoch draws by them.

    table:  None if all are alike, and each is drawn at random of a stretch of the data.
    """

    table: WeightTable | None
    samples_per_epoch: int

    def make_order(self, base: Order, count: int) -> WeightedOrder | DrawnOrder:
        """Return the order of `count` samples whose picks `base` shuffles."""
        return DrawnOrder(base, count) if self.table is None else WeightedOrder(base, self.table)


def read_weights(
    dataset: IndexedSamples, weights: WeightsOf, columns: Mapping[str, Any] | None
) -> Slice:
    """Return a function that gives the weights of the samples [start, stop) of `dataset`."""
    known = Columns(dataset, columns)
    if isinstance(weights, Mapping):
        return _weigh_classes(dataset, weights, known)
    if isinstance(weights, str):
        if known.kinds.get(weights, "number") != "number":
            raise UsageError(f"the column {weights!r} holds no numbers: weigh by one that does")
        return known.find(weights)
    name = "weights"
    if callable(weights):
        name, weights = "what weights returned", weights(known)
    elif columns is not None:
        raise UsageError("columns are for a column's name or a function: leave them out")
    return slice_column(make_array(name, weights, "iuf", len(dataset)))


def _weigh_classes(dataset: IndexedSamples, weights: Mapping[Any, float], known: Columns) -> Slice:
    """Give each sample the weight of its class."""
    if "label" not in known.kinds:
        raise UsageError(f"{dataset.path} has no labels to weigh by: give an array, or a function")
    labels = known.find("label")
    count, chunk = len(dataset), limits.selection_chunk_samples
    starts = range(0, count, chunk)
    chunk_labels = [np.unique(labels(start, min(start + chunk, count))) for start in starts]
    present: list[int] = np.unique(np.concatenate(chunk_labels)).tolist()
    classes = dataset.classes
    names: dict[Any, int] = {label: label for label in present}
    if classes is not None:
        names = {name: number for number, name in enumerate(classes)}
    if unknown := [name for name in weights if name not in names]:
        kind = "class" if classes is not None else "label"
        raise UsageError(f"weights: there is no {kind} {describe_near(unknown[0], names)}")
    given = {names[name]: weight for name, weight in weights.items()}
    missing = [name for name, label in names.items() if label in present and label not in given]
    if missing:
        raise UsageError(f"weights has none for {missing[0]!r}: give each class one, perhaps 0")
    for name, weight in weights.items():
        check_number(f"the weight of {name!r}", weight)
    values = np.array([float(given[label]) for label in present])
    table = np.array(present)
    return lambda start, stop: values[np.searchsorted(table, labels(start, stop))]


def cut_slice(values: Slice, first: int) -> Slice:
    """Return the function that gives the same values, of samples numbered from `first` on."""
    return lambda start, stop: values(first + start, first + stop)


def make_table(values: Slice, count: int, folder: str) -> WeightTable:
    """Return the table of the weights of `count` samples.

    A large one is in an unlinked file in `folder`.
    """
    return _fill_table(count, lambda out: round_weights(count, values, out), folder)


def narrow_weights(weighting: Weighting, chosen: Bitmap, folder: str) -> Weighting:
    """Return the weights of the chosen samples, as integers as they were.

    An epoch draws as many samples as there are, if it did so before; else as many as before.
    """
    if weighting.table is None:
        return replace(weighting, samples_per_epoch=min(weighting.samples_per_epoch, len(chosen)))
    weights, count = weighting.table.weights, len(chosen)

    def fill(out: npt.NDArray[np.uint32]) -> None:
        for start in range(0, count, limits.selection_chunk_samples):
            stop = min(start + limits.selection_chunk_samples, count)
            numbers = np.arange(start, stop, dtype=np.uint64)
            chosen.forward(numbers, numbers)
            out[start:stop] = weights[numbers.view(np.int64)]

    drew_all = weighting.samples_per_epoch == len(weights)
    number = count if drew_all else weighting.samples_per_epoch
    return Weighting(_fill_table(count, fill, folder), number)


def _fill_table(
    count: int, fill: Callable[[npt.NDArray[np.uint32]], None], folder: str
) -> WeightTable:
    if not 1 <= count <= limits.weights_count_max:
        most = limits.weights_count_max
        raise UsageError(f"weights are for {most:,} samples, not {count:,}: weigh selections")
    weights = allot_array(count, np.uint32, folder, limits.weights_samples_inline_max)
    fill(weights)
    return WeightTable.from_integers(weights)


def spill_weighting(weighting: Weighting, data: str, folder: str) -> Weighting:
    """Return the same weights, to be pickled: large ones in a file with a name in `folder`.

    data:  fingerprint of the data.
    """
    if weighting.table is None or len(weighting.table) <= limits.weights_samples_inline_max:
        return weighting
    return replace(weighting, table=spill(weighting.table, data, folder))
