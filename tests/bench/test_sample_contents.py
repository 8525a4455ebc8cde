"""Contents: unique, reproducible, and as compressible as their kind says."""

from __future__ import annotations

import itertools
import math
import zlib

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock_bench.data.samples import BLOCK_BYTES, make_contents, mirror, solve_potential

DTYPES = ("uint8", "int8", "int16", "uint32", "int64", "float16", "float32", "float64", "bool")
RANDOM = make_contents("random", 1, "uint8")
FIELD = make_contents("field", 1, "uint8")


def whole(
    kind: str,
    dtype: str = "uint8",
    shape: tuple[int, ...] = (300, 500),
    number: int = 0,
    n: int = 1,
) -> np.ndarray:
    """Samples of a file as one array."""
    pieces = make_contents(kind, 7, dtype).pieces(0, number, shape, n)
    return np.concatenate(list(pieces)).view(dtype).reshape(n, *shape)


def ratio(array: np.ndarray) -> float:
    """The factor by which zlib makes it smaller."""
    return array.nbytes / len(zlib.compress(array.tobytes()))


@given(
    rows=st.integers(1, 3_000),
    columns=st.integers(1, 3_000),
    count=st.integers(1, 3),
    number=st.integers(0, 2**40),
    kind=st.sampled_from([RANDOM, FIELD]),
)
def test_pieces_are_the_samples(
    rows: int, columns: int, count: int, number: int, kind: type[RANDOM]
) -> None:
    """All bytes come, in pieces that are not too large, the same each time."""
    sizes, sums = [], []
    for again in (count, 1):
        pieces = [each.copy() for each in kind.pieces(1, number, (rows, columns), again)]
        sizes.append(sum(map(len, pieces)))
        sums.append(zlib.crc32(np.concatenate(pieces)[: rows * columns]))
        assert max(map(len, pieces)) <= BLOCK_BYTES
    assert sizes == [count * rows * columns, rows * columns]
    assert sums[0] == sums[1]


@pytest.mark.parametrize("kind", ["random", "compressible", "field"])
def test_no_two_files_are_alike(kind: str) -> None:
    """Nor do samples of one file, parts or seeds repeat each other."""
    made = [whole(kind, number=n, n=2) for n in range(4)]
    samples = {each.tobytes() for array in made for each in array}
    for seed, part in ((7, 1), (8, 0)):
        pieces = make_contents(kind, seed, "uint8").pieces(part, 0, (300, 500), 1)
        samples.add(np.concatenate(list(pieces)).tobytes())
    assert len(samples) == 10


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["random", "compressible", "field"])
def test_values_are_valid(kind: str, dtype: str) -> None:
    """Numbers, no infinities; fields have many values, and many different ones."""
    found = whole(kind, dtype)
    assert found.shape == (1, 300, 500)
    assert np.isfinite(found.astype(np.float64)).all()
    if found.dtype.kind == "f":
        assert found.min() >= 0
        assert found.max() <= 2
    if kind == "field":
        assert len(np.unique(found)) > (1 if dtype == "bool" else 60)


@pytest.mark.long
def test_how_well_they_compress() -> None:
    """Random bytes do not, half random ones by two, fields in between, constants by a lot."""
    large = (600, 600)
    assert ratio(whole("random", shape=large)) < 1.001
    assert 1.8 < ratio(whole("compressible", shape=large)) < 2.2
    for dtype in ("uint8", "int16", "float32"):
        field = whole("field", dtype, large)
        assert 1.2 < ratio(field) < 10 < ratio(np.zeros_like(field))
    assert ratio(whole("random", "float32", large)) < 1.2


def test_random_bytes_are_random() -> None:
    """All values are as frequent as they should be, and neighbours are independent."""
    found = whole("random", shape=(2_000, 2_000)).ravel()
    counts = np.bincount(found, minlength=256)
    expected = len(found) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400  # chi-square, 255 degrees of freedom
    pairs = found[:-1].astype(np.int64) * 256 + found[1:]
    counts = np.bincount(pairs, minlength=1 << 16)
    expected = len(pairs) / (1 << 16)
    assert ((counts - expected) ** 2 / expected).sum() < 65535 + 8 * math.sqrt(2 * 65535)


def test_spectrum_of_a_field_falls_off() -> None:
    """Long waves are stronger than short ones, down to the noise; noise itself is flat."""
    window = np.hanning(256)[:, None] * np.hanning(256)
    found = whole("field", "float32", (256, 256))[0]
    power = np.abs(np.fft.fft2((found - found.mean()) * window)) ** 2
    waves = np.hypot(*np.meshgrid(np.fft.fftfreq(256), np.fft.fftfreq(256)))
    bands = [(0.01, 0.03), (0.03, 0.08), (0.08, 0.2), (0.2, 0.5)]
    means = [power[(waves >= low) & (waves < high)].mean() for low, high in bands]
    assert all(long > 8 * short for long, short in itertools.pairwise(means))


@given(rows=st.integers(2, 12), columns=st.integers(2, 12), seed=st.integers(0, 100))
def test_potential_solves_the_mesh(rows: int, columns: int, seed: int) -> None:
    """Against a sparse solution of Kirchhoff's equations, resistor by resistor."""
    currents = np.random.default_rng(seed).normal(size=(rows, columns))
    nodes = np.arange(rows * columns).reshape(rows, columns)
    ends = [(nodes[:-1], nodes[1:]), (nodes[:, :-1], nodes[:, 1:])]
    first, second = (np.concatenate([pair[end].ravel() for pair in ends]) for end in (0, 1))
    resistor = np.arange(len(first))
    across = scipy.sparse.coo_array(
        (
            np.repeat([1.0, -1.0], len(first)),
            (np.tile(resistor, 2), np.concatenate([first, second])),
        )
    ).tocsr()
    mesh = (across.T @ across).tocsc()
    flowing = (currents - currents.mean()).ravel()
    solved = np.zeros(rows * columns)  # node 0 is grounded
    solved[1:] = scipy.sparse.linalg.spsolve(mesh[1:, 1:], flowing[1:])
    found = solve_potential(currents).ravel()
    assert np.allclose(found - found[0], solved, atol=1e-9)
    assert abs(found.mean()) < 1e-9
    tiled = mirror(solve_potential(currents))
    around = sum(np.roll(tiled, by, axis) for by in (1, -1) for axis in (0, 1))
    assert np.allclose(4 * tiled - around, mirror(currents - currents.mean()), atol=1e-9)


def test_volumes_change_slowly() -> None:
    """Planes of a volume resemble the next one more than a later one."""
    volume = whole("field", "float32", (40, 200, 200))[0]
    next_to = np.abs(volume[1:] - volume[:-1]).mean()
    apart = np.abs(volume[30:] - volume[:-30]).mean()
    assert next_to < apart / 4


def test_kinds_that_are_none() -> None:
    """Kinds that do not exist."""
    with pytest.raises(UsageError, match="contents is 'zeros': use one of random"):
        make_contents("zeros", 1, "uint8")
