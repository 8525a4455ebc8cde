"""The order looks uniformly random, by tests that are shown in the same run to catch bad ones.

Keys are fixed, so every statistic is deterministic; it is a z-score (chi-squared values by
Wilson-Hilferty) and must lie within 4.5, which a fair shuffle misses 7 times in a million. The
must-fail controls are ciphers and generators that are, or were, in use elsewhere.

PENSTOCK_SLOW=1 takes ten times as many keys.
"""

from __future__ import annotations

import itertools
import math
import os

import numpy as np
import pytest

from penstock.order.order import Permutation, key_state
from tests.order import feistel_numpy as twin
from tests.slices import first

SCALE = 10 if os.environ.get("PENSTOCK_SLOW") else 1
LIMIT = 4.5
KEYS_MMD = 20_000 * SCALE
KEYS_CELLS = 120_000 * SCALE
if SCALE > 1:
    pytestmark = pytest.mark.timeout(0)

LARGE = [2**20 + 1, 2**27 + 1, 2**28 - 7, 2**40 - 3, 2**61 + 1]


def u64(x):
    return np.uint64(x)


# -- statistics ------------------------------------------------------------------------------


def expected_mallows(n, spread):
    """E exp(-spread * discordant pairs / all pairs) over uniform permutations of n."""
    q = spread / (n * (n - 1) / 2)
    return math.prod(math.expm1(-q * j) / (j * math.expm1(-q)) for j in range(1, n + 1))


def mallows_z(perms):
    """The distance of the mean Mallows kernel to the identity from a uniform shuffle's."""
    n = perms.shape[1]
    columns = np.ascontiguousarray(perms.T.astype(np.int16))
    discordant = np.zeros(len(perms), np.int64)
    for i in range(1, n):
        discordant += (columns[:i] > columns[i]).sum(axis=0)
    kernel = np.exp(-5 * discordant / (n * (n - 1) / 2))
    mean = expected_mallows(n, 5)
    return (kernel.mean() - mean) / math.sqrt((expected_mallows(n, 10) - mean**2) / len(perms))


def forward_z(perms):
    """Displacement from the identity."""
    return mallows_z(perms)


def reference_z(perms):
    """Displacement from a strided order, which a multiplicative generator resembles."""
    n = perms.shape[1]
    stride = math.isqrt(n)
    reference = sorted(range(n), key=lambda i: (i % stride, i))
    return mallows_z(perms[:, reference])


def consecutive_z(perms):
    """Displacement of each key's order from that of the key before; the first one's is far."""
    inverses = np.argsort(np.roll(perms, 1, axis=0), axis=1)
    return mallows_z(np.take_along_axis(inverses, perms.astype(np.int64), axis=1))


def chi_squared_z(observed, expected):
    """Pearson's statistic as a z-score (Wilson-Hilferty)."""
    observed = np.asarray(observed, np.float64).ravel()
    expected = np.broadcast_to(np.asarray(expected, np.float64), observed.shape)
    assert expected.min() >= 10
    df = len(observed) - 1
    ratio = float(((observed - expected) ** 2 / expected).sum()) / df
    return (ratio ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))


def all_orders_z(perms):
    """The deviation of all 120 orders of five from equal frequency."""
    powers = 5 ** np.arange(5)
    codes = (perms.astype(np.int64) * powers).sum(axis=1)
    cells = sorted(sum(s * 5**i for i, s in enumerate(p)) for p in itertools.permutations(range(5)))
    counts = np.bincount(np.searchsorted(cells, codes), minlength=120)
    return chi_squared_z(counts, len(perms) / 120)


def pair_z(firsts):
    """The deviation of all ordered pairs of the first two samples of 16 from equal frequency."""
    codes = firsts[:, 0].astype(np.int64) * 16 + firsts[:, 1].astype(np.int64)
    counts = np.bincount(codes, minlength=256).reshape(16, 16)
    assert not counts.diagonal().any()
    return chi_squared_z(counts[~np.eye(16, dtype=bool)], len(firsts) / 240)


def bins(values, n, size):
    """floor(value * size / n), exactly, at any n up to 2^62."""
    edges = np.array([-(-b * n // size) for b in range(1, size)], np.uint64)
    return np.searchsorted(edges, values, side="right")


def difference_z(outputs, n):
    """The deviation of differences of consecutive outputs from an even spread."""
    before, after = outputs[:, :999], outputs[:, 1:1000]
    differences = np.where(after >= before, after - before, after + (u64(n) - before))
    counts = np.bincount(bins(differences.ravel(), n, 256), minlength=256)
    return chi_squared_z(counts, differences.size / 256)


def key_z(outputs, n):
    """The deviation of one position's sample from an even spread over keys."""
    return chi_squared_z(np.bincount(bins(outputs, n, 256), minlength=256), len(outputs) / 256)


def key_pair_z(pairs, n):
    """The deviation of two positions' samples from an even and independent spread over keys."""
    codes = bins(pairs[:, 0], n, 16) * 16 + bins(pairs[:, 1], n, 16)
    return chi_squared_z(np.bincount(codes, minlength=256), len(pairs) / 256)


def batch_z(outputs, n):
    """The deviation of batches of 256 from chance in how many samples of a sixteenth they hold."""
    sixteenths = bins(outputs.ravel(), n, 16).reshape(len(outputs), 8, 256)
    wanted = (np.arange(len(outputs))[:, None] + np.arange(8)) % 16
    held = (sixteenths == wanted[:, :, None]).sum(axis=2).ravel()
    chance = [math.comb(256, k) * 15 ** (256 - k) / 16**256 for k in range(257)]
    observed = np.bincount(held, minlength=257)
    cells = [*observed[5:30], held.size - observed[5:30].sum()]
    return chi_squared_z(cells, np.array([*chance[5:30], 1 - sum(chance[5:30])]) * held.size)


# -- what is tested --------------------------------------------------------------------------


def states(count, size, vary="seed"):
    """Generator states of `size` consecutive seeds, epochs or streams."""
    words = {"seed": 42, "epoch": 3, "stream": 0} | {vary: np.arange(size, dtype=np.uint64)}
    return key_state(1, words["seed"], words["epoch"], words["stream"], count)


def outputs(count, size, width, vary="seed", cipher=True, start=0):
    """The samples at positions start .. start+width-1, one row a key."""
    result = np.empty((size, width), np.uint64)
    for row, state in zip(result, states(count, size, vary).tolist(), strict=True):
        Permutation(count, state, cipher).run(start, row)
    return result


@pytest.mark.parametrize("vary", ["seed", "epoch", "stream"])
@pytest.mark.parametrize("n", first(1, [5, 100]))
def test_mallows(n, vary):
    """Orders of consecutive keys resemble neither fixed orders nor each other."""
    perms = outputs(n, KEYS_MMD, n, vary)
    for statistic in (forward_z, reference_z, consecutive_z):
        assert abs(statistic(perms)) < LIMIT, statistic.__name__


@pytest.mark.parametrize("n", first(1, [5, 100]))
def test_mallows_of_the_table(n):
    """So it is for the table that serves small counts."""
    perms = outputs(n, KEYS_MMD, n, "epoch", cipher=False)
    for statistic in (forward_z, reference_z, consecutive_z):
        assert abs(statistic(perms)) < LIMIT, statistic.__name__


@pytest.mark.parametrize("cipher", [True, False])
@pytest.mark.parametrize("vary", first(0, ["seed", "epoch"]))
def test_all_orders_of_five(vary, cipher):
    """All 120 orders of five samples are equally frequent."""
    assert abs(all_orders_z(outputs(5, KEYS_CELLS, 5, vary, cipher))) < LIMIT


@pytest.mark.long
@pytest.mark.parametrize("vary", first(1, ["seed", "epoch"]))
def test_pairs_of_sixteen(vary):
    """All pairs of first samples of 16 are equally frequent."""
    assert abs(pair_z(outputs(16, KEYS_CELLS, 2, vary))) < LIMIT


@pytest.mark.long
@pytest.mark.parametrize("n", first(1, LARGE))
def test_large_counts(n):
    """Differences, batches and single samples of large counts are as by chance."""
    rows = outputs(n, 2000 * SCALE, 2048)
    assert abs(difference_z(rows, n)) < LIMIT
    assert abs(batch_z(rows, n)) < LIMIT
    assert abs(key_z(outputs(n, 200_000 * SCALE, 1, "epoch", start=n // 3)[:, 0], n)) < LIMIT
    assert abs(key_pair_z(outputs(n, 200_000 * SCALE, 2), n)) < LIMIT


# -- must-fail controls ----------------------------------------------------------------------
# Each maps values (rows of a domain of 2^bits or a * 2^k) under one row of keys each.


def random_keys(size, width):
    """32-bit words, one row a key."""
    table = np.empty((size, width), np.uint64)
    for row, state in zip(table, states(0, size).tolist(), strict=True):
        row[:] = twin.random_words(state, width)
    return table >> u64(32)


def compacted(domain_map, n, bits, keys):
    """The values below n of a map of [0, 2^bits), in sequence: a permutation a row."""
    out = domain_map(np.arange(2**bits, dtype=np.uint64)[None, :], keys, bits)
    return out[out < n].reshape(len(keys), n)


def walked(domain_map, n, values, keys):
    """The map iterated on each value until it is below n."""
    shape = np.broadcast_shapes(values.shape, (len(keys), 1))
    out = domain_map(values, keys)
    assert out.shape == shape
    rows, columns = np.nonzero(out >= n)
    while rows.size:
        again = domain_map(out[rows, columns][:, None], keys[rows])[:, 0]
        out[rows, columns] = again
        rows, columns = rows[again >= n], columns[again >= n]
    return out


def congruential(values, keys, bits):
    """a * i + c modulo 2^bits, with a odd."""
    return (values * (keys[:, :1] | u64(1)) + keys[:, 1:2]) & u64(2**bits - 1)


def philox(values, keys, bits):
    """VariablePhilox, of as many rounds as there are keys."""
    low = bits // 2
    high = bits - low
    left, right = values >> u64(high), values & u64(2**high - 1)
    for r in range(keys.shape[1]):
        product = u64(0xD2B74407B1CE6E93) * left
        turned = ((product >> u64(32)) ^ keys[:, r : r + 1] ^ right) & u64(2**low - 1)
        moved = (product & u64(2**32 - 1)) << u64(high - low) | right >> u64(low)
        left, right = turned, moved & u64(2**high - 1)
    return left << u64(high) | right


def mixfeistel(n, rounds, least_bits=4, least_left=16):
    """MixFeistel with another number of rounds, or without the smallest domain."""
    k = max(least_bits, (n - 1).bit_length() // 2)
    a = max(least_left, -(-n >> k))
    word = u64(2**32 - 1)

    def hashed(x, key):
        x = ((x ^ key) * u64(0x85EBCA6B)) & word
        x = ((x ^ (x >> u64(15))) * u64(0xC2B2AE35)) & word
        return x ^ (x >> u64(16))

    def domain_map(values, keys):
        left, right = values >> u64(k), values & u64(2**k - 1)
        for r in range(0, rounds, 2):
            left = left + (hashed(right, keys[:, r : r + 1]) * u64(a) >> u64(32))
            left = np.where(left >= a, left - u64(a), left)
            right = right ^ (hashed(left, keys[:, r + 1 : r + 2]) >> u64(32 - k))
        return left << u64(k) | right

    return domain_map


def simon(width, half_rounds=4):
    """A Feistel network of two words with a round function of rotations, as in Simon."""
    mask = u64(2**width - 1)

    def rotated(x, by):
        return ((x << u64(by)) | (x >> u64(width - by))) & mask

    def mixed(x):
        return (rotated(x, 1) & rotated(x, 8)) ^ rotated(x, 2)

    def domain_map(values, keys):
        left, right = values >> u64(width), values & mask
        for r in range(0, half_rounds, 2):
            left = left ^ mixed(right) ^ (keys[:, r : r + 1] & mask)
            right = right ^ mixed(left) ^ (keys[:, r + 1 : r + 2] & mask)
        return left << u64(width) | right

    return domain_map


def everything(n):
    return np.arange(n, dtype=np.uint64)[None, :]


@pytest.mark.parametrize("n", [5, 100, 5000])
def test_controls_differ_in_what_they_say(n):
    """With eight rounds and the smallest domain the controls' MixFeistel is the shipped one."""
    expected = outputs(n, 20, n)
    keys = random_keys(20, 8)
    for row, state in zip(keys, states(n, 20).tolist(), strict=True):
        row[:] = twin.Permutation(n, state, True).keys
    assert np.array_equal(walked(mixfeistel(n, 8), n, everything(n), keys), expected)


@pytest.mark.long
@pytest.mark.parametrize("n", [5, 100])
def test_control_identity(n):
    """No shuffle at all is caught."""
    assert forward_z(np.tile(everything(n), (KEYS_MMD, 1))) > 100


@pytest.mark.long
@pytest.mark.parametrize(("n", "bits"), [(5, 3), (100, 7)])
def test_control_congruential(n, bits):
    """A linear congruential shuffle is caught by all three uses of the Mallows kernel."""
    perms = compacted(congruential, n, bits, random_keys(KEYS_MMD, 2))
    for statistic in (forward_z, reference_z, consecutive_z):
        assert abs(statistic(perms)) > LIMIT, statistic.__name__


@pytest.mark.long
def test_control_congruential_cells():
    """A linear congruential shuffle does not reach all orders of five, nor all pairs."""
    keys = random_keys(KEYS_CELLS, 2)
    assert all_orders_z(compacted(congruential, 5, 3, keys)) > LIMIT
    assert pair_z(congruential(everything(2), keys, 4)) > LIMIT


@pytest.mark.long
def test_control_philox_of_four_rounds():
    """VariablePhilox with 4 rounds instead of 24 is caught."""
    keys = random_keys(KEYS_MMD, 4)
    five, hundred = compacted(philox, 5, 4, keys), compacted(philox, 100, 7, keys)
    assert abs(forward_z(five)) > LIMIT
    assert abs(consecutive_z(five)) > LIMIT
    assert abs(consecutive_z(hundred)) > LIMIT
    keys = random_keys(KEYS_CELLS, 4)
    assert all_orders_z(compacted(philox, 5, 4, keys)) > LIMIT


@pytest.mark.long
def test_control_two_rounds():
    """MixFeistel with 2 rounds instead of 8 is caught, at small and at large counts."""
    perms = walked(mixfeistel(100, 2), 100, everything(100), random_keys(KEYS_MMD, 2))
    assert abs(forward_z(perms)) > LIMIT
    n = 2**20 + 1
    rows = walked(mixfeistel(n, 2), n, everything(1000), random_keys(2000, 2))
    assert difference_z(rows, n) > LIMIT


@pytest.mark.long
def test_control_no_smallest_domain():
    """MixFeistel without the smallest domain of 256 is caught at five samples."""
    perms = walked(mixfeistel(5, 8, 1, 1), 5, everything(5), random_keys(KEYS_CELLS, 8))
    assert all_orders_z(perms) > LIMIT


@pytest.mark.long
def test_control_simon_of_four_rounds():
    """Four half-rounds of rotations are caught at large counts."""
    n = 2**20 + 1
    keys = random_keys(8000, 4)
    assert difference_z(walked(simon(11), n, everything(1000), keys[:500]), n) > LIMIT
    assert key_pair_z(walked(simon(11), n, everything(2), keys), n) > LIMIT
    assert batch_z(walked(simon(11), n, everything(2048), keys[:2000]), n) > LIMIT
