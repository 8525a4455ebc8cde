"""The order is a bijection, pure, equal on every instruction set, and refuses bad arguments."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import _core
from penstock.errors import UsageError
from penstock.order.order import Order, key_state
from tests.attempts import retried
from tests.order import feistel_numpy as twin
from tests.slices import first

LEVELS = list(_core.list_order_levels())
IMPLEMENTATIONS = [*LEVELS, "numpy"]
EVERY = pytest.mark.parametrize("level", IMPLEMENTATIONS)
SLOW = pytest.mark.skipif(not os.environ.get("PENSTOCK_SLOW"), reason="set PENSTOCK_SLOW=1")

EDGES = [
    *(2**m + d for m in (27, 28, 31, 32, 33, 40, 48, 53, 60, 61) for d in (-1, 0, 1)),
    2**62 - 1,
    2**62,
    100_000_000,
]
SIZES = sorted(
    {2**k + d for k in range(1, 21) for d in (-1, 0, 1)} | {262_145, 1_281_167, 3 * 2**18}
)

# These are what wheels are compared with, too (wheels/check.py).
GOLDEN_CHECKSUM = 0xF9E67F36
GOLDEN_ORDER = [290849, 879930, 179887, 548938]
# Five positions (0, 1, 2, n//2, n-1) of the permutation drawn from state 42.
GOLDEN = {
    100: [54, 99, 31, 36, 82],
    65_537: [33436, 49559, 35091, 1005, 63310],
    1_281_167: [1008599, 837175, 1164390, 1252445, 1035728],
    2**27 + 1: [71700403, 98671160, 119391161, 56666706, 61597212],
    2**32 - 5: [4089698021, 568682715, 4183365091, 2827276746, 1272926167],
    2**40 + 1: [533141330273, 441285377984, 129606822226, 345577627117, 445012728720],
    2**62: [
        3753331152082875161,
        1970796709776910122,
        1340162070264965943,
        1415922916823692889,
        3391646890703037486,
    ],
}


def permutation(level, count, state, cipher=True):
    """A permutation of the given implementation, with the cipher forced unless said otherwise."""
    if level == "numpy":
        return twin.Permutation(count, state, cipher)
    return _core.Permutation(count, state, cipher, level)


def mapped(through, values):
    values = np.asarray(values, np.uint64)
    out = np.empty_like(values)
    assert through(values, out) == len(values)
    return out


def whole(perm, count):
    out = np.empty(count, np.uint64)
    assert perm.run(0, out) == count
    return out


def is_bijection(perm, count):
    """True if all outputs lie inside and the inverse leads each back: then none comes twice."""
    return np.array_equal(mapped(perm.inverse, whole(perm, count)), np.arange(count))


def probes(count, size=20_000):
    """The first and last 32 positions and a spread between them."""
    edges = [*range(32), *range(count - 32, count)]
    return np.array(edges + [w % count for w in twin.random_words(1, size).tolist()], np.uint64)


# -- the values ------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("count", GOLDEN)
def test_golden_values(level, count):
    """Every implementation gives the recorded samples at five positions."""
    perm = permutation(level, count, 42)
    positions = [0, 1, 2, count // 2, count - 1]
    assert mapped(perm.forward, positions).tolist() == GOLDEN[count]
    assert mapped(perm.inverse, GOLDEN[count]).tolist() == positions


@EVERY
def test_golden_checksum(level):
    """All 65,537 outputs together have the recorded CRC-32."""
    out = whole(permutation(level, 65_537, 42), 65_537)
    assert zlib.crc32(out.astype("<u8").tobytes()) == GOLDEN_CHECKSUM


@EVERY
def test_golden_table(level):
    """Up to 4,096 samples the Fisher-Yates table gives the recorded order."""
    ten = whole(permutation(level, 10, 42, cipher=False), 10)
    assert ten.tolist() == [8, 3, 6, 5, 4, 0, 9, 2, 1, 7]
    most = whole(permutation(level, 4096, 42, cipher=False), 4096).tolist()
    assert [*most[:5], most[-1]] == [4050, 1306, 2270, 161, 3713, 3037]


def test_golden_order():
    """The key schedule and the order drawn from it are the recorded ones."""
    order = Order(1_281_167, seed=42, epoch=3)
    assert order.key() == key_state(1, 42, 3, 0, 1_281_167) == 0x904888673F3CE8F0
    assert order.samples([0, 1, 2, 3]).tolist() == GOLDEN_ORDER


def test_golden_keys():
    """Round keys are the high halves of SplitMix64, and the hash gives the recorded words."""
    keys = "bdd73226 28efe333 47526757 581ce1ff 09bc585a de4431fa 37e9671c ccf635ee"
    assert [f"{key:08x}" for key in twin.Permutation(5000, 42).keys] == keys.split()
    words = np.array([1, 0x12345678], np.uint32)
    hashed = [int(twin._hash32(words, np.uint32(key))[i]) for i, key in enumerate((0, 0x9ABCDEF0))]
    assert hashed == [0x75FF9613, 0x050749D7]


# -- bijections ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cipher", [True, False])
def test_bijection_small_counts(level, cipher):
    """Every count from 1 to 2,000 is permuted without gap or repetition, with two keys."""
    for count in range(1, 2001):
        for state in (count, ~count & twin.WORD):
            assert is_bijection(permutation(level, count, state, cipher), count), count


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cipher", first(1, [True, False]))
def test_bijection_around_powers_of_two(level, cipher):
    """Counts at and around powers of two up to 2^20, and some others, are permuted exactly."""
    for count in SIZES:
        assert is_bijection(permutation(level, count, 7, cipher), count), count


@pytest.mark.long
def test_bijection_numpy():
    """The numpy twin is a bijection too, with cipher and table."""
    for count in [*range(1, 60), 100, 255, 256, 257, 1000, 4096, 4097, 65_537, 262_145]:
        for cipher in (True, False):
            assert is_bijection(permutation("numpy", count, 7, cipher), count), count


@SLOW
@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [2**24 - 1, 2**24 + 1, 2**27 + 1])
def test_bijection_large(count):
    """Every position of a large count is served once."""
    seen = np.zeros(count, bool)
    order = Order(count, seed=3)
    for start in range(0, count, 1 << 20):
        seen[order.run(start, min(1 << 20, count - start))] = True
    assert seen.all()


@EVERY
@pytest.mark.parametrize("count", first(12, EDGES))
def test_round_trip_at_the_edges(level, count):
    """Around every power of two up to 2^62 positions come back, and all levels agree."""
    perm = permutation(level, count, 9)
    positions = probes(count, 20_000 if level != "numpy" else 2_000)
    samples = mapped(perm.forward, positions)
    assert int(samples.max()) < count
    assert np.array_equal(mapped(perm.inverse, samples), positions)
    assert np.array_equal(samples, mapped(twin.Permutation(count, 9).forward, positions))


@pytest.mark.parametrize("count", [2**32 - 1, 2**32 + 1, 2**33 + 1])
def test_no_duplicates_above_32_bits(count):
    """A million consecutive outputs are distinct and not cut to 32 bits."""
    samples = np.sort(Order(count, seed=1).run(5, 1_000_000))
    assert (samples[1:] > samples[:-1]).all()
    assert int(samples[-1]) < count
    if count > 2**33:
        assert 480_000 < np.count_nonzero(samples >= 2**32) < 520_000


counts = st.one_of(
    st.integers(1, 5000),
    st.integers(1, 2**62),
    st.tuples(st.integers(1, 61), st.integers(-1, 1)).map(lambda t: max(1, 2 ** t[0] + t[1])),
)
words = st.integers(0, twin.WORD)


@given(count=counts, state=words, cipher=st.booleans(), start=words, size=st.integers(0, 200))
def test_every_level_equals_the_twin(count, state, cipher, start, size):
    """All instruction sets and numpy give the same bits, forward, back and in runs."""
    cipher = cipher and count >= 50  # below, the cipher walks long; other tests go there
    start %= count
    size = min(size, count - start)
    positions = np.arange(size, dtype=np.uint64) + np.uint64(start)
    expected = mapped(twin.Permutation(count, state, cipher).forward, positions)
    for level in IMPLEMENTATIONS:
        perm = permutation(level, count, state, cipher)
        assert np.array_equal(mapped(perm.forward, positions), expected)
        assert np.array_equal(mapped(perm.inverse, expected), positions)
        run = np.empty(size, np.uint64)
        assert perm.run(start, run) == size
        assert np.array_equal(run, expected)


@EVERY
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 2049, 9000])
def test_batch_size_changes_nothing(level, size):
    """A value maps alike in any batch, whole vectors or their tails, in place or not."""
    perm = permutation(level, 9001, 5)
    expected = whole(twin.Permutation(9001, 5, True), 9001)[:size]
    values = np.arange(size, dtype=np.uint64)
    assert perm.forward(values, values) == size
    assert np.array_equal(values, expected)
    assert perm.inverse(values, values) == size
    assert np.array_equal(values, np.arange(size))


@EVERY
def test_outside_values_are_located(level):
    """The first value outside is reported by its index, wherever it stands, and nothing breaks."""
    for count, cipher in ((10, False), (5000, True), (2**40, True)):
        perm = permutation(level, count, 1, cipher)
        for where in (0, 77, 4999, 9999):
            for bad in (count, 2**63 - 1, 2**63, 2**64 - 1):
                values = np.zeros(10_000, np.uint64)
                values[where] = bad
                assert perm.forward(values, np.empty_like(values)) == where
                assert perm.inverse(values, np.empty_like(values)) == where


# -- Order: pure, and unrelated where any field differs ----------------------------------------


def test_any_field_changes_the_order():
    """Seed, epoch, stream, purpose and count each give an order of its own."""
    base = Order(1_000_000, seed=5, epoch=6, stream=7)
    others = [
        Order(1_000_000, seed=6, epoch=5, stream=7),
        Order(1_000_000, seed=5, epoch=7, stream=6),
        Order(1_000_000, seed=4, epoch=7, stream=7),
        Order(1_000_000, seed=6, epoch=6, stream=7),
        Order(1_000_000, seed=5, epoch=6, stream=8),
        Order(1_000_000, seed=5, epoch=6, stream=7, purpose="placement"),
        Order(1_000_001, seed=5, epoch=6, stream=7),
        Order(1_000_000, seed=5, epoch=6, stream=7, shuffle="blocked"),
    ]
    for other in others:
        assert np.count_nonzero(base.run(0, 1000) == other.run(0, 1000)) < 5, other


def test_epochs_and_seeds_do_not_collide():
    """Epoch 1 of a seed is not epoch 0 of the next seed."""
    for seed in range(20):
        one, other = Order(10**6, seed, 1), Order(10**6, seed + 1, 0)
        assert np.count_nonzero(one.run(0, 1000) == other.run(0, 1000)) < 5


@pytest.mark.parametrize("shuffle", ["exact", "blocked", "none"])
def test_any_partition_gives_one_sequence(shuffle):
    """Pieces of any size, on any thread, in any sequence, are pieces of the same epoch."""
    order = Order(50_001, seed=2, shuffle=shuffle, block=16, group=32)
    expected = order.run(0, len(order))
    cuts = [0, 1, 2, 7, 512, 513, 20_000, 20_001, 50_001]
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(lambda cut: order.run(cut[0], cut[1] - cut[0]), pairwise(cuts)))
    assert np.array_equal(np.concatenate(pieces), expected)
    scattered = twin.random_words(3, 5000) % np.uint64(len(order))
    assert np.array_equal(order.samples(scattered), expected[scattered])


def test_order_is_a_value():
    """Orders compare, hash, copy and pickle by their fields; epochs are derived."""
    order = Order(1000, 1, 2, shuffle="blocked", block=10, group=3, stream=4, purpose="shard")
    for again in (pickle.loads(pickle.dumps(order)), copy.copy(order), copy.deepcopy(order)):
        assert again == order
        assert hash(again) == hash(order)
        assert np.array_equal(again.run(0, 1000), order.run(0, 1000))
    assert order.at_epoch(2) == order
    assert order.at_epoch(3) != order
    assert order.at_epoch(3).epoch == 3
    assert len(order) == 1000
    assert "seed=1" in repr(order)
    assert "_map" not in repr(order)
    with pytest.raises(AttributeError):
        order.seed = 2


def test_algorithm_names_what_changes_the_order():
    """The identifier tells shuffles and block geometries apart, and nothing else."""
    assert Order(10, 1).algorithm == Order(20, 2, 3, block=9).algorithm == "mixfeistel8-1"
    assert Order(10, 1, shuffle="none").algorithm == "none-1"
    blocked = Order(10, 1, shuffle="blocked", block=4, group=2).algorithm
    assert blocked == "mixfeistel8-1/blocked-1:4x2"


def test_one_sample():
    """A single sample is its own order."""
    for shuffle in ("exact", "blocked", "none"):
        order = Order(1, seed=9, shuffle=shuffle)
        assert order.run(0, 1).tolist() == order.samples([0]).tolist() == [0]
        assert order.positions([0]).tolist() == [0]


@pytest.mark.parametrize("shuffle", ["exact", "blocked", "none"])
def test_largest_count(shuffle):
    """At 2^62 samples both ends map and come back, whatever the shuffle."""
    order = Order(2**62, seed=1, shuffle=shuffle)
    positions = probes(2**62, 100)
    samples = order.samples(positions)
    assert int(samples.max()) < 2**62
    assert np.array_equal(order.positions(samples), positions)
    assert order.run(2**62 - 5, 5).tolist() == order.samples(positions[59:64]).tolist()


def test_no_shuffle_is_the_identity():
    """With shuffle="none" a sample's position is its number."""
    order = Order(1000, seed=1, epoch=5, shuffle="none")
    assert np.array_equal(order.run(3, 900), np.arange(3, 903))
    assert order.samples([7, 7, 3]).tolist() == order.positions([7, 7, 3]).tolist() == [7, 7, 3]


# -- blocked ---------------------------------------------------------------------------------


def blocked_by_lists(order):
    """The blocked order as its definition reads: lay the blocks end to end, shuffle each group."""
    count, block, span = order.count, order.block, order.block * order.group
    blocks = -(-count // block)
    layout = whole(twin.Permutation(blocks, order.key(0x100, blocks)), blocks).tolist()
    stream = [s for b in layout for s in range(b * block, min(count, (b + 1) * block))]
    result = []
    for q in range(-(-count // span)):
        members = stream[q * span : (q + 1) * span]
        size = len(members)
        state = order.key(0x200, span, q)
        within = whole(twin.Permutation(size, state, cipher=True), size).tolist()
        result += [members[i] for i in within]
    return result


@given(
    count=st.integers(1, 700),
    block=st.integers(8, 40),
    group=st.integers(8, 12),
    seed=words,
    data=st.data(),
)
def test_blocked_is_what_it_says(count, block, group, seed, data):
    """Blocked orders equal their definition, are exact, and invert, at any position."""
    order = Order(count, seed, shuffle="blocked", block=block, group=group)
    expected = blocked_by_lists(order)
    assert sorted(expected) == list(range(count))
    assert order.run(0, count).tolist() == expected
    chosen = data.draw(st.lists(st.integers(0, count - 1), max_size=30))
    assert order.samples(chosen).tolist() == [expected[p] for p in chosen]
    assert order.positions(order.samples(chosen)).tolist() == chosen


@pytest.mark.long
@pytest.mark.parametrize(("block", "group"), first(2, [(1, 1), (2, 9), (1, 20), (7, 1)]))
def test_blocked_with_tiny_groups(block, group):
    """Groups of few samples, which the cipher walks long for, are exact too."""
    order = Order(50, seed=9, shuffle="blocked", block=block, group=group)
    assert order.run(0, 50).tolist() == blocked_by_lists(order)
    assert order.positions(order.run(0, 50)).tolist() == list(range(50))


@pytest.mark.parametrize("count", [2**20, 2**20 + 1, 1_281_167, 1_281_167 // 64 * 64])
def test_blocked_keeps_groups_in_few_blocks(count):
    """A group's samples lie in its blocks; one more where the partial block shifted the slots."""
    order = Order(count, seed=4, shuffle="blocked", block=64, group=100)
    samples = order.run(0, count)
    assert np.array_equal(order.positions(samples), np.arange(count))
    for start in range(0, count, 6400):
        assert len(np.unique(samples[start : start + 6400] // 64)) <= 101


@given(
    count=st.one_of(st.integers(1, 3000), st.integers(1, 2**62)),
    span=st.one_of(st.integers(100, 400), st.integers(100, 2**62)),  # below, numpy walks long
    state=words,
    values=st.lists(words, max_size=20),
    width=st.integers(0, 500),
)
def test_groups_of_every_level_equal_the_twin(count, span, state, values, width):
    """Groups map alike on all instruction sets and in numpy, for scattered values and for runs."""
    start = values[0] % count if values else 0
    mixed = [v % count for v in values] + list(range(start, min(count, start + width)))
    expected = mapped(twin.Groups(count, span, state).forward, mixed)
    cut = np.uint64(span)
    assert np.array_equal(expected // cut, np.array(mixed, np.uint64) // cut)
    for groups in [twin.Groups(count, span, state)] + [
        _core.Groups(count, span, state, level) for level in LEVELS
    ]:
        assert np.array_equal(mapped(groups.forward, mixed), expected)
        assert mapped(groups.inverse, expected).tolist() == mixed
        bad = np.array([*mixed, count], np.uint64)
        assert groups.forward(bad, np.empty_like(bad)) == len(mixed)
        assert groups.inverse(bad, bad) == len(mixed)


def test_blocked_groups_differ():
    """Groups of one size are not shuffled alike."""
    order = Order(64_000, seed=4, shuffle="blocked", block=64, group=10)
    offsets = (order.run(0, 64_000) % 64).reshape(100, 640)
    assert len({tuple(row) for row in offsets.tolist()}) == 100


# -- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["exact", "blocked", "none"])
@pytest.mark.parametrize(
    "values",
    [
        [3, 1, 2],
        (3, 1, 2),
        range(3),
        np.array([3, 1, 2], np.int8),
        np.array([3, 1, 2], np.uint16),
        np.array([3, 1, 2], ">i8"),
        np.array([3, 1, 2], np.int64),
        np.arange(10, dtype=np.uint64)[::3],
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.uint32(7),
        7,
        [],
        np.empty((0, 3), np.int32),
    ],
    ids=repr,
)
def test_integer_arrays_are_accepted(shuffle, values):
    """Integers of any width, order and shape are mapped, in the same shape."""
    order = Order(10, seed=3, shuffle=shuffle, block=3, group=2)
    expected = order.run(0, 10)[np.array(values, np.int64)]
    samples = order.samples(values)
    assert samples.dtype == np.uint64
    assert samples.shape == np.shape(values)
    assert np.array_equal(samples, expected)
    assert np.array_equal(order.positions(samples), np.array(values, np.int64))


@pytest.mark.parametrize("shuffle", ["exact", "blocked", "none"])
@pytest.mark.parametrize("bad", [10, -1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1])
def test_values_outside_are_named(shuffle, bad):
    """A position or sample outside raises, naming the value and the range."""
    order = Order(10, seed=3, shuffle=shuffle)
    for through in (order.samples, order.positions):
        with pytest.raises(UsageError, match=rf"{bad} is outside .* 0\.\.9"):
            through([bad])


@pytest.mark.parametrize(
    "values", [[0.0], [1.5], ["1"], [None], [True], [2**64], [[1], [1, 2]], np.empty(0), 1j]
)
def test_values_of_other_types_are_refused(values):
    """Positions that are not integers raise, instead of being rounded."""
    with pytest.raises(UsageError, match="positions are"):
        Order(10, seed=3).samples(values)


@pytest.mark.parametrize("name", ["count", "seed", "epoch", "stream", "block", "group"])
@pytest.mark.parametrize("bad", [-1, 1.0, float("nan"), "1", None, True, 2**64, np.float64(1)])
def test_bad_arguments_are_named(name, bad):
    """An argument of the wrong type or range raises, naming the argument."""
    arguments = {"count": 10, "seed": 1} | {name: bad}
    with pytest.raises(UsageError, match=rf"^{name} is"):
        Order(**arguments)


def test_bad_counts_and_choices_are_refused():
    """Zero or more than 2^62 samples, unknown shuffles, purposes and oversized groups raise."""
    for count in (0, 2**62 + 1):
        with pytest.raises(UsageError, match="^count is"):
            Order(count, 1)
    for wrong in ({"shuffle": "full"}, {"purpose": "fun"}, {"block": 2**32, "group": 2**31}):
        with pytest.raises(UsageError):
            Order(10, 1, **wrong)
    order = Order(10, 1)
    for start, size in ((-1, 1), (0, 11), (10, 1), (11, 0), (0, -1), (0.0, 1)):
        with pytest.raises(UsageError, match=r"run\((start|count)\) is"):
            order.run(start, size)
    assert order.run(10, 0).size == 0
    assert repr(Order(np.int32(10), np.uint64(7), np.int8(3))) == repr(Order(10, 7, 3))


# -- defects of other libraries that must not come back ----------------------------------------


@pytest.mark.parametrize("j", [8, 9, 10])
def test_last_sample_is_served_at_even_powers(j):
    """At 2^(2j)+1 samples the last position has a sample of its own."""
    order = Order(2 ** (2 * j) + 1, seed=1)
    first, last = order.samples([0, 2 ** (2 * j)])
    assert first != last


@pytest.mark.parametrize("count", [2**26, 2**27, 2**28 - 1, 2**28, 200_000_000])
def test_output_parity_is_even_handed(count):
    """Among 4,096 outputs about half have an odd number of set bits."""
    for seed in range(4):
        outputs = Order(count, seed).run(0, 4096).view(np.uint8).reshape(-1, 8)
        bits = np.unpackbits(outputs, axis=1).sum(axis=1)
        assert abs(np.count_nonzero(bits & 1) - 2048) < 4.5 * 32


def test_powers_of_two_are_not_padded():
    """The cipher's domain is the count itself at every power of two from 256 on, else near it."""
    for m in range(8, 63):
        perm = twin.Permutation(2**m, 1, cipher=True)
        assert perm.left_count << perm.right_bits == 2**m
    for count in (257, 4097, 2**19 + 1, 10**9 + 7, 2**61 + 1):
        perm = twin.Permutation(count, 1, cipher=True)
        assert 0 <= (perm.left_count << perm.right_bits) - count < (2 * count) ** 0.5


def best_s(call, repeat=7):
    """The least processor time of a call."""
    times = []
    for _ in range(repeat):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


@retried
def test_small_counts_cost_no_more():
    """An index among 100 samples costs at most twice one among a million."""
    positions = np.arange(100_000, dtype=np.uint64)
    small, large = Order(100, 1), Order(10**6, 1)
    few = positions % np.uint64(100)
    assert best_s(lambda: small.samples(few)) <= 2 * best_s(lambda: large.samples(positions))


@retried
def test_first_batch_of_ten_billion_is_immediate():
    """Building an order of 10^10 samples and its first batch takes less than a millisecond."""
    assert best_s(lambda: Order(10**10, 1).run(0, 256)) < 1e-3


def test_memory_is_constant():
    """Building, a first batch, a distant batch and an inverse at 10^10 samples need no memory."""
    code = """
import numpy as np
from penstock.order.order import Order
def pages():
    return int(open("/proc/self/statm").read().split()[1])
def use(count):
    for shuffle in ("exact", "blocked"):
        order = Order(count, 1, shuffle=shuffle)
        order.positions(order.samples(np.array([0, count - 1, count // 3])))
        order.run(0, 256), order.run(count // 2, 256)
use(10_000)
before = pages()
use(10**10)
print((pages() - before) * 4096)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1 << 20


_DAEMON = """
import ctypes, sys, threading
from penstock.order.order import Order

order, begun = Order(10**12, 1), threading.Event()

def ask():
    while True:
        begun.set()
        order.run(0, 1_000_000)  # some 10 ms without the GIL

threading.Thread(target=ask, daemon=True).start()
begun.wait()
late = ctypes.CDLL(None)
late.on_exit(late.usleep, None)  # with the exit code: Python has ended, its process has not
sys.exit(100_007)
"""


def test_a_daemon_thread_that_asks_lets_the_process_end() -> None:
    """A thread that wants the GIL of an ended interpreter aborted the process."""
    done = subprocess.run([sys.executable, "-c", _DAEMON], capture_output=True, check=False)
    assert done.returncode == 100_007 % 256, done.stderr
