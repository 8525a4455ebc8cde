"""Sizes of the samples of each file: by a model whose mean and deviation are the ones asked for, or
as DLIO draws them. Pure.

Samples of one file have one shape, as in DLIO's files. The models give a set of sizes rather than
draws: quantiles of a distribution, in an order that depends on the seed, so that 168 files have the
mean and deviation asked for as well as a million. Shapes are nearly square and miss a size by a
few elements: visible only in samples of less than some thousand.

normal:     a normal distribution, cut at a hundredth of the mean.
lognormal:  no cut, a longer tail.
empirical:  quantiles of the sizes in a file, whose mean it keeps.
dlio:       bit for bit DLIO's own shapes, whose deviation is the one asked for over the square root
            of two, and whose mean misses it by what a square root loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError
from penstock.index import missing_library
from penstock.order import Order

if TYPE_CHECKING:
    from ..workload.sections import DatasetSpec

MODELS = ("normal", "lognormal", "dlio")
Floats = npt.NDArray[np.float64]
Shapes = npt.NDArray[np.int64]
"""(files, dimensions): the shape of a sample of each file."""

Family = Callable[[Floats, float], Floats]
"""Positive quantiles for levels and a parameter, with which their variation grows."""

Model = str | Sequence[float]
"""A name of MODELS, or sizes in bytes: the empirical model."""

_LEAST = 0.01
"""The normal distribution is cut at this part of the mean."""

_SOLVED = 10_000
"""A model's parameter is solved for on so many quantiles; what is left is corrected by a line."""

_DLIO_SEED = 10


def shapes(data: DatasetSpec, part: str, model: Model = "normal", seed: int = 10) -> Shapes:
    """The shapes of samples, a row for each file of "train" or "valid", in elements; of tables with
    columns, in bytes.

    UsageError if a model has no such mean and deviation.
    """
    count = data.files(part)
    sample_shapes: Shapes
    if data.format == "parquet" and data.parquet.columns:
        sample_shapes = np.full((count, 1), data.sample_bytes(), np.int64)
    elif data.record_dims:
        sample_shapes = np.tile(np.array(data.record_dims, np.int64), (count, 1))
    elif model == "dlio":
        sample_shapes = _draw_as_dlio(data, part)
    else:
        itemsize = np.dtype(data.record_element_type).itemsize
        mean, stdev = data.record_length_bytes / itemsize, data.record_length_bytes_stdev / itemsize
        if not isinstance(model, str):
            sizes = _empirical(np.sort(np.asarray(model, np.float64)) / itemsize, count)
        elif stdev and count > 1:
            sizes = _quantiles(model, count, mean, stdev)
        else:
            alike = near_squares(np.array([mean]), math.isqrt(int(mean)) + 1)
            return _stack_datasets(data, np.tile(alike, (count, 1)))
        order = Order(max(count, 1), seed).samples(np.arange(count, dtype=np.uint64))
        sample_shapes = near_squares(sizes[order.view(np.int64)])
    return _stack_datasets(data, sample_shapes)


# -- sizes -----------------------------------------------------------------------------------------


def _quantiles(model: str, count: int, mean: float, stdev: float) -> Floats:
    """`count` ascending sizes of a model, of exactly this mean and deviation."""
    least = mean * _LEAST if model == "normal" else 0.0
    wanted = stdev / (mean - least)
    family: Family = _lognormal
    low, high = 0.0, 9.0
    if model == "normal":
        family, low, high = _normal, -10 - 2 / wanted, 12.0
    few = _levels(min(count, _SOLVED))
    if not _variation(family(few, low)) <= wanted <= _variation(family(few, high)):
        remedy = "use sizes lognormal" if model == "normal" else "lower it, or give more files"
        raise UsageError(
            f"record_length_bytes_stdev is {stdev:g} of a mean of {mean:g} elements, which "
            f"{count:,} sizes of the model {model!r} cannot have: {remedy}"
        )
    for _ in range(60):  # the variation grows with the parameter
        middle = (low + high) / 2
        if _variation(family(few, middle)) < wanted:
            low = middle
        else:
            high = middle
    drawn = family(_levels(count), (low + high) / 2)
    line = (drawn - drawn.mean()) * (stdev / drawn.std()) + mean
    wanted_sizes: Floats = np.maximum(line, 1.0)
    return wanted_sizes


def _levels(count: int) -> Floats:
    return (np.arange(count) + 0.5) / count


def _variation(values: Floats) -> float:
    return float(values.std() / values.mean())


def _normal(levels: Floats, cut: float) -> Floats:
    """Quantiles of the part above `cut` in a standard normal distribution, from 0 on."""
    special = _import_special()
    above: Floats = -special.ndtri((1 - levels) * special.ndtr(-cut)) - cut
    return above


def _lognormal(levels: Floats, sigma: float) -> Floats:
    values: Floats = np.exp(sigma * _import_special().ndtri(levels))
    return values


def _import_special() -> Any:
    try:
        from scipy import special
    except ModuleNotFoundError:
        raise missing_library("scipy", "bench", "data of sizes that deviate") from None
    return special


def _empirical(known: Floats, count: int) -> Floats:
    """`count` quantiles of known sizes, of their mean."""
    quantiles = np.quantile(known, _levels(count)) if count else known[:0]
    return quantiles * (known.mean() / quantiles.mean()) if count else quantiles


# -- shapes ----------------------------------------------------------------------------------------


def near_squares(sizes: Floats, tried: int = 16) -> Shapes:
    """Rows and columns of nearly these products, the squarest of the best of so many shapes; none
    has more than about four times as many columns."""
    root = np.maximum(np.sqrt(sizes).astype(np.int64), 1)
    squares = np.zeros((len(sizes), 2), np.int64)
    missed = np.full(len(sizes), np.inf)
    for narrower in range(tried):
        rows = np.maximum(root - narrower, (root + 1) // 2)
        columns = np.maximum(np.rint(sizes / rows).astype(np.int64), 1)
        misses = np.abs(rows * columns - sizes)
        better = misses < missed
        squares[better] = np.stack([rows, columns], axis=1)[better]
        missed[better] = misses[better]
        if (missed <= 0.5).all():
            break
    return squares


def _draw_as_dlio(data: DatasetSpec, part: str) -> Shapes:
    """DLIO's draws: two sides of each file, "train" first; numpy's legacy generator."""
    root = math.sqrt(data.record_length_bytes)
    count = data.num_files_train + data.num_files_eval
    generator: Any = np.random.RandomState(_DLIO_SEED)
    stdev = data.record_length_bytes_stdev / (2 * root)
    sides = generator.normal(math.floor(root), stdev, 2 * count).astype(np.int64)
    all_shapes: Shapes = np.maximum(sides, 1).reshape(-1, 2)
    of_train = data.num_files_train
    return all_shapes[:of_train] if part == "train" else all_shapes[of_train:]


def _stack_datasets(data: DatasetSpec, sample_shapes: Shapes) -> Shapes:
    """HDF5 samples in several datasets: each has the size asked for unless record_dims says what
    all of them have, as in DLIO's files."""
    if data.format == "hdf5" and not data.record_dims:
        sample_shapes = sample_shapes * np.array([data.hdf5.num_dset_per_record, 1])
    return sample_shapes
