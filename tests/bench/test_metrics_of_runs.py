"""The metrics that are worked out of stamps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench.results import metrics
from penstock_bench.results.metrics import Stamps


def stamps(wait, compute, barrier, between=(), nominal=None, paused=None) -> Stamps:
    """Stamps of steps that take so many ns; `between` is after a step, before the next."""
    wait, compute, barrier = (np.asarray(each, np.int64) for each in (wait, compute, barrier))
    gaps = np.asarray(between, np.int64) if len(between) else np.zeros_like(wait)
    pauses = np.zeros_like(wait) if paused is None else np.asarray(paused, np.int64)
    length = wait + compute + barrier + gaps + pauses
    asked = 1_000 + np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64)
    got = asked + wait
    computed = got + compute
    nominal = compute if nominal is None else np.asarray(nominal, np.int64)
    left = computed + barrier
    return Stamps(asked, got, computed, left, pauses, nominal, 1_000, int(left[-1] + pauses[-1]))


times = st.integers(0, 10**7)


@st.composite
def ranks(draw, least_steps=1):
    """Two epochs of some ranks, which leave their barriers together."""
    steps = draw(st.integers(least_steps, 12))
    row = st.lists(times, min_size=steps, max_size=steps)
    number = draw(st.integers(1, 3))
    return [
        [
            stamps(draw(row), [each + 1 for each in draw(row)], draw(row), draw(row))
            for _ in range(number)
        ]
        for _ in range(2)
    ]


@given(ranks(), st.integers(0, 3), st.integers(0, 3))
def test_shares_sum_to_one(walks, start, end):
    parts = metrics.decomposition(walks, start, end)
    assert sum(parts.values()) == pytest.approx(1)
    assert all(share >= -1e-9 for share in parts.values())


@given(ranks(), st.integers(0, 2), st.integers(0, 2), st.integers(1, 64))
def test_the_formulas_step_by_step(walks, start, end, batch):
    """Against loops over steps, from the definitions."""
    spent, steps, shares = 0.0, 0, {}
    for epoch in walks:
        longest = 0.0
        for rank, each in enumerate(epoch):
            rows = list(range(len(each)))
            chosen = rows[start : len(rows) - end] or rows
            clock = each.left[chosen[-1]] - each.asked[chosen[0]]
            useful, total = shares.get(rank, (0, 0))
            shares[rank] = useful + sum(int(each.nominal[k]) for k in chosen), total + clock
            longest = max(longest, clock)
            steps += len(chosen)
        spent += longest * 1e-9
    expected = np.mean([useful / total for useful, total in shares.values()])
    assert metrics.utilisation(walks, start, end) == pytest.approx(expected)
    assert metrics.throughput(walks, start, end, batch) == pytest.approx(steps * batch / spent)


@given(times, st.integers(1, 10**7), times, st.integers(6, 40), st.integers(1, 64),
       st.integers(0, 3), st.integers(0, 2), st.integers(1, 4))  # fmt: skip
def test_steady_throughput_does_not_depend_on_what_is_left_out(
    wait, compute, barrier, steps, batch, start, end, number
):
    """DLIO's is (steps - 2) / T, whatever T leaves out (defect 5): here any window gives the same
    figure, samples by time; and throughput = utilisation x ranks x batch / computation time."""
    each = stamps([wait] * steps, [compute] * steps, [barrier] * steps)
    walks = [[each] * number]
    rate = metrics.throughput(walks, start, end, batch)
    assert rate == pytest.approx(number * batch / ((wait + compute + barrier) * 1e-9))
    assert rate == pytest.approx(metrics.throughput(walks, 0, 0, batch))
    utilisation = metrics.utilisation(walks, start, end)
    assert rate == pytest.approx(utilisation * number * batch / (compute * 1e-9))


def test_what_should_be_computed_counts():
    """DLIO credits the sleep that it measured, which overshoots by a third (defect 10)."""
    steps = 20
    each = stamps([0] * steps, [500] * steps, [0] * steps, nominal=[375] * steps)
    assert metrics.utilisation([[each]], 1, 0) == pytest.approx(0.75)
    parts = metrics.decomposition([[each]], 1, 0)
    assert (parts["compute"], parts["other"]) == pytest.approx((0.75, 0.25))
    (block,) = metrics.blocks(each)
    assert metrics.dlio_block(block, steps, 1, 1, 0)[0] == pytest.approx(100)


def test_checkpoints_are_cut_out_of_the_clock():
    """A pause between steps neither lowers utilisation nor throughput."""
    row = [100] * 6
    plain = stamps(row, row, row)
    paused = stamps(row, row, row, paused=[0, 0, 10**9, 0, 10**9, 0])
    for figure in (metrics.utilisation, metrics.decomposition):
        assert figure([[plain]], 1, 0) == pytest.approx(figure([[paused]], 1, 0))
    rates = [metrics.throughput([[each]], 1, 0, 4) for each in (plain, paused)]
    assert rates[0] == pytest.approx(rates[1])


def test_blocks_lie_between_checkpoints():
    """A checkpoint ends a block; as in DLIO one after the last step begins an empty block."""
    row = [100] * 6
    blocks = metrics.blocks(stamps(row, row, row, paused=[0, 0, 50, 0, 0, 70]))
    assert [len(block.load) for block in blocks] == [3, 3, 0]
    assert [round((block.end - block.start) * 1e9) for block in blocks] == [900, 900, 0]
    assert round((blocks[1].start - blocks[0].end) * 1e9) == 50


def test_dlios_throughput_is_what_it_is():
    """4 steps of 20 ms, batch 7: DLIO says 211 or 637 samples/s, true are 316 with waits."""
    each = stamps([0] * 4, [22_000_000] * 4, [0] * 4)
    (block,) = metrics.blocks(each)
    assert metrics.dlio_block(block, 4, 7, 1, 0)[1] == pytest.approx(2 * 7 / 0.066)
    assert metrics.dlio_block(block, 4, 7, 3, 0)[1] == pytest.approx(2 * 7 / 0.022)
    assert metrics.throughput([[each]], 1, 0, 7) == pytest.approx(7 / 0.022)


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=12))
def test_an_interval_holds_its_mean(values):
    low, high = metrics.interval(values)
    assert min(values) - 1e-6 <= low <= high <= max(values) + 1e-6
    assert low <= np.mean(values) * (1 + 1e-9)
    assert np.mean(values) <= high * (1 + 1e-9)


def test_only_finite_values_are_json():
    assert metrics.replace_nonfinite(
        {"a": [float("nan"), 1.0, np.float64("inf")], "b": np.int64(3)}
    ) == {
        "a": [None, 1.0, None],
        "b": 3,
    }
