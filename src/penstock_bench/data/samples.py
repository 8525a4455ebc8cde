"""Samples to write: the sizes of each file's samples, and their bytes. Pure.

Samples of one file have one shape, as in DLIO's files. Sizes are by a model whose mean and
deviation are the ones asked for, or as DLIO draws them. The models give a set of sizes rather than
draws: quantiles of a distribution, in an order that depends on the seed, so that 168 files have the
mean and deviation asked for as well as a million. Shapes are nearly square and miss a size by a few
elements: visible only in samples of less than some thousand.

normal:     a normal distribution, cut at a hundredth of the mean.
lognormal:  no cut, a longer tail.
empirical:  quantiles of the sizes in a file, whose mean it keeps.
dlio:       bit for bit DLIO's own shapes, whose deviation is the one asked for over the square root
            of two, and whose mean misses it by what a square root loses.

Contents depend on seed, file and place alone, however many threads and ranks make them. The stream
of a file is made in blocks, each with its key.

random:        every bit is random; of floating-point numbers the mantissa is, of values in [1, 2).
compressible:  half of the bytes are random, in runs of 128: common compressors halve it.
field:         a smooth field with the noise of a detector: two potentials of a resistive mesh,
               moved for each sample and added up. Integers have at most 13 bits of it,
               floating-point numbers are in [0, 2].
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError
from penstock.order import Order

from . import import_library

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
"""A model's parameter is solved for on this many quantiles; what is left is corrected by a line."""

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
    return import_library("scipy.special", "bench", "data of sizes that deviate")


def _empirical(known: Floats, count: int) -> Floats:
    """`count` quantiles of known sizes, of their mean."""
    quantiles = np.quantile(known, _levels(count)) if count else known[:0]
    return quantiles * (known.mean() / quantiles.mean()) if count else quantiles


# -- shapes ----------------------------------------------------------------------------------------


def near_squares(sizes: Floats, tried: int = 16) -> Shapes:
    """Rows and columns of nearly these products, the squarest of the best of `tried` shapes; none
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


# -- contents --------------------------------------------------------------------------------------

KINDS = ("random", "compressible", "field")
Bytes = npt.NDArray[np.uint8]
Tile = npt.NDArray[Any]
Grid = npt.NDArray[np.float64]

BLOCK_BYTES = 1 << 20
_ALL = np.uint64(2**64 - 1)
_RUN_WORDS = 16
"""Compressible bytes come in so many words that are random, and as many that are not."""

_MESHES = ((500, 700), (512, 512))
"""Added up, two of such sizes repeat after so many rows and columns that no sample holds them."""

_DETECTOR_LEVELS = 1 << 12
"""Levels of a tile, for integers that have as many: detectors count no further."""

_NOISE_LEVELS = 2.0
"""Span of the noise of a tile."""

_FRACTION_BITS = {2: 9, 4: 20, 8: 40}
"""Bits of a field of floating-point numbers of this many bytes: all processors agree on these."""


class SampleContents(Protocol):
    """Makes the samples of a file."""

    def pieces(self, part: int, number: int, shape: tuple[int, ...], count: int) -> Iterator[Bytes]:
        """The bytes of `count` samples of a shape, one after the other, in C order and in pieces of
        about BLOCK_BYTES.

        part, number:  of the file. A piece is the caller's until the next one is asked for.
        """
        ...


def make_contents(kind: str, seed: int, dtype: str) -> SampleContents:
    """Make the contents of a kind for a type of elements; UsageError for an unknown kind."""
    element = np.dtype(dtype)
    if kind == "field":
        return SmoothField(seed, element)
    if kind not in KINDS:
        raise UsageError(f"contents is {kind!r}: use one of {', '.join(KINDS)}")
    return Noise(seed, element, compressible=kind == "compressible")


def _draw_words(count: int, *key: int) -> npt.NDArray[np.uint64]:
    """Random words of a key. SFC64's stream is fixed for all releases of numpy."""
    words: npt.NDArray[np.uint64] = np.random.SFC64(np.random.SeedSequence(key)).random_raw(count)
    return words


class Noise:
    """Random bytes, all of them or half of them."""

    def __init__(self, seed: int, dtype: np.dtype[Any], *, compressible: bool) -> None:
        self._seed, self._itemsize, self._compressible = seed, dtype.itemsize, compressible
        self._random, self._fixed = _mask_bits(dtype)

    def pieces(self, part: int, number: int, shape: tuple[int, ...], count: int) -> Iterator[Bytes]:
        remaining_bytes = count * math.prod(shape) * self._itemsize
        for block in range(-(-remaining_bytes // BLOCK_BYTES)):
            runs = -(-min(remaining_bytes, BLOCK_BYTES) // (16 * _RUN_WORDS))
            words = _draw_words(2 * _RUN_WORDS * runs, self._seed, part, number, block)
            if self._random != _ALL:
                words &= self._random
                words |= self._fixed
            if self._compressible:
                words.reshape(-1, 2, _RUN_WORDS)[:, 1] = self._fixed
            yield words.view(np.uint8)[:remaining_bytes]
            remaining_bytes -= BLOCK_BYTES


def _mask_bits(dtype: np.dtype[Any]) -> tuple[np.uint64, np.uint64]:
    """The mask of the random bits of a word of elements, and the other bits."""
    if dtype.kind != "f":
        return np.uint64(0x0101010101010101) if dtype.kind == "b" else _ALL, np.uint64(0)
    whole = np.dtype(f"u{dtype.itemsize}")
    mantissa = np.array((1 << np.finfo(dtype).nmant) - 1, whole)
    bits = (mantissa, np.ones((), dtype).view(whole))
    random, fixed = (np.full(8 // dtype.itemsize, pattern).view(np.uint64)[0] for pattern in bits)
    return random, fixed


class SmoothField:
    """Smooth fields: two tiles, each at another place for each sample, added up."""

    def __init__(self, seed: int, dtype: np.dtype[Any]) -> None:
        self._seed = seed
        self._tiles = [
            _make_tile(seed, _FIRST_TILE + number, size, dtype)
            for number, size in enumerate(_MESHES)
        ]

    def pieces(self, part: int, number: int, shape: tuple[int, ...], count: int) -> Iterator[Bytes]:
        rows, columns = (1, *shape)[-2:]
        for sample in range(count):
            key = struct.pack("<4Q", self._seed, part, number, sample)
            at = struct.unpack("<4I", hashlib.blake2b(key, digest_size=16).digest())
            for plane in range(math.prod(shape[:-2])):  # what lies beside another one resembles it
                yield from self._plane(at[0] + plane, at[1], at[2], at[3] + plane, rows, columns)

    def _plane(
        self, top: int, left: int, other_top: int, other_left: int, rows: int, columns: int
    ) -> Iterator[Bytes]:
        one = _cut_tile(self._tiles[0], top, left, rows, columns)
        other = _cut_tile(self._tiles[1], other_top, other_left, rows, columns)
        high = max(1, BLOCK_BYTES // one[:1].nbytes)
        row = 0
        while row < rows:
            at, other_at = row % len(one), row % len(other)
            taken = min(high, rows - row, len(one) - at, len(other) - other_at)
            band = one[at : at + taken] + other[other_at : other_at + taken]
            yield band.reshape(-1).view(np.uint8)
            row += taken


_FIRST_TILE = 2
"""Keys of tiles come after the keys of the parts of the data."""


def _make_tile(seed: int, key: int, size: tuple[int, int], dtype: np.dtype[Any]) -> Tile:
    """A potential with its mirror images and noise, in the range of its levels; the first tile's
    starts below 0 where the type can."""
    tile = mirror(solve_potential(_draw_uniform(size, seed, key)))
    tile = (tile - tile.min()) / (tile.max() - tile.min())
    if dtype.kind == "b":
        return np.asarray(tile > np.quantile(tile, 0.7))  # added up, about half of them are true
    if dtype.kind == "f":
        levels, least = 1 << _FRACTION_BITS[dtype.itemsize], 0
    else:
        limits = np.iinfo(dtype)
        levels = min((int(limits.max) - int(limits.min)) // 2, _DETECTOR_LEVELS)
        least = max(int(limits.min), -levels)
    noisy = tile * levels + _NOISE_LEVELS * _draw_uniform(tile.shape, seed, key, 1)
    quantised: Tile = np.rint(np.clip(noisy, 0, levels))
    if dtype.kind == "f":
        return (quantised / levels).astype(dtype)
    quantised = quantised.astype(dtype)
    return quantised + dtype.type(least) if key == _FIRST_TILE else quantised


def _draw_uniform(size: tuple[int, ...], *key: int) -> Grid:
    """Values in [-0.5, 0.5)."""
    drawn = (_draw_words(math.prod(size), *key) >> np.uint64(11)).astype(np.float64)  # 53 bits
    return (drawn * 2.0**-53 - 0.5).reshape(size)


def _cut_tile(tile: Tile, top: int, left: int, rows: int, columns: int) -> Tile:
    """So many columns of a tile that repeats for ever, and as many rows, but each once."""
    wide = tile[(top + np.arange(min(rows, len(tile)))) % len(tile)]
    left %= wide.shape[1]
    cuts = [wide[:, left : left + columns]]
    while (missing := columns - sum(cut.shape[1] for cut in cuts)) > 0:
        cuts.append(wide[:, :missing])
    return np.concatenate(cuts, axis=1)


def solve_potential(currents: Grid) -> Grid:
    """Solve the discrete Poisson equation on a resistive mesh: the potential, of mean 0.

    Nodes of a rectangular grid are joined to their neighbours by resistors of one ohm; currents
    that flow in and out of nodes make a potential. The currents of a mesh sum up to 0, and what is
    left over is taken from all nodes alike. Nothing flows over the edge, so the cosines of the
    DCT-II diagonalise the mesh: the solution is one transform, a division and the transform back.
    """
    fft = import_library("scipy.fft", "bench", "a field of data")
    axes = [2 - 2 * np.cos(np.pi * np.arange(size) / size) for size in currents.shape]
    conductance = axes[0][:, None] + axes[1][None, :]
    conductance[0, 0] = 1.0
    waves: Any = fft.dctn(currents, type=2, norm="ortho")
    waves[0, 0] = 0.0
    solution: Grid = fft.idctn(waves / conductance, type=2, norm="ortho")
    return solution


def mirror(grid: Grid) -> Grid:
    """A grid and its mirror images, fitting together on all sides: the equation holds over the
    seams as well, since nothing flows there."""
    wide = np.concatenate([grid, grid[:, ::-1]], axis=1)
    return np.concatenate([wide, wide[::-1]], axis=0)
