"""Packing: the core against plain Python, the rows of an epoch, and what a state claims of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock._core import count_packed_rows, pack_documents
from penstock.errors import DataError, LimitError, StateError, UsageError
from penstock.order import Order, PackedOrder
from penstock.order.packed_order import PackingRule, choose_window
from penstock.order.packed_rows import RowCounts, place_pieces

from .packing_twin import pack_plainly, place_plainly


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], int, bool, int]:
    multiple = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    length = multiple * draw(st.integers(1 if multiple > 1 else 2, 200))
    most = draw(st.sampled_from([3, length, 4 * length]))
    lengths = draw(st.lists(st.integers(0, most), max_size=300))
    return lengths, length, draw(st.booleans()), multiple


@given(windows())
@example(([5000, 64, 4096, 1, 4095, 63, 65, 1], 4096, True, 1))  # three levels of the tree
@example(([2, 3, 2, 5], 2, True, 1))
def test_core_packs_as_plain_python(window: tuple[list[int], int, bool, int]) -> None:
    lengths, length, split, multiple = window
    given_lengths = np.array(lengths, np.int64)
    offsets, document, start, tokens = pack_documents(given_lengths, length, split, multiple)
    pieces = list(zip(document.tolist(), start.tolist(), tokens.tolist(), strict=True))
    rows = [pieces[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    assert rows == pack_plainly(lengths, length, split, multiple)
    assert count_packed_rows(given_lengths, length, split, multiple) == len(rows)
    targets = Counter[tuple[int, int]]()
    for row in rows:
        assert 0 < sum(-(-held // multiple) * multiple for _, _, held in row) <= length
        for number, first, held in row:
            targets.update((number, token) for token in range(first + 1, first + held))
    assert set(targets.values()) <= {1}
    kept = lengths if split else [min(each, length) for each in lengths]
    assert len(targets) == sum(max(0, each - 1) for each in kept)
    assert {number for row in rows for number, _, _ in row} == set(np.flatnonzero(lengths).tolist())


@pytest.mark.parametrize("length", [1, (1 << 24) + 1])
def test_row_lengths_out_of_bounds_are_refused(length: int) -> None:
    with pytest.raises(UsageError, match=r"length is \d+"):
        PackingRule(length, 4096)
    with pytest.raises(ValueError, match="a row has"):
        pack_documents(np.ones(1, np.int64), length, True, 1)


def test_lengths_out_of_bounds_are_refused() -> None:
    for length in (-1, (1 << 63) - 1):
        with pytest.raises(ValueError, match="out of bounds"):
            pack_documents(np.array([length], np.int64), 8, True, 1)


@given(st.data())
def test_core_places_as_plain_python(data: st.DataObject) -> None:
    multiple = data.draw(st.sampled_from([1, 1, 2, 8]))
    length = multiple * data.draw(st.integers(1, 12))
    flat = data.draw(st.booleans())
    rows: list[list[int]] = []
    for _ in range(data.draw(st.integers(0, 4))):
        row, left = [], length
        while left and (not row or data.draw(st.booleans())):
            row.append(data.draw(st.integers(1, left)))
            left -= -(-row[-1] // multiple) * multiple
        rows.append(row)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    lengths = np.array([size for row in rows for size in row], np.int64)
    placed = place_pieces(offsets, lengths, length, multiple, flat=flat)
    found = {name: np.atleast_1d(part).tolist() for name, part in placed._asdict().items()}
    assert found == place_plainly(rows, length, multiple, flat)
    column = np.arange(10, 10 + len(lengths))
    assert placed.spread(column).tolist() == [k + 10 if k >= 0 else -1 for k in found["source"]]


@pytest.mark.parametrize(
    ("offsets", "lengths", "length", "multiple"),
    [
        ([0, 1], [9], 8, 1),
        ([0, 2], [4, 5], 8, 1),
        ([0, 2], [3, 5], 8, 4),
        ([0, 1], [-1], 8, 1),
        ([0, 1], [1, 1], 8, 1),
        ([1, 2], [1, 1], 8, 1),
        ([0, 3, 1, 2], [1, 1], 8, 1),
        ([0, 2, 1, 2], [1, 1], 8, 1),
        ([], [], 8, 1),
        ([0], [], 0, 1),
        ([0], [], 8, 9),
    ],
)
def test_pieces_that_do_not_fit_are_refused(
    offsets: list[int], lengths: list[int], length: int, multiple: int
) -> None:
    with pytest.raises(IndexError):
        place_pieces(np.array(offsets, "i8"), np.array(lengths, "i8"), length, multiple, flat=False)


def make_order(lengths: np.ndarray, rule: PackingRule, seed: int = 0) -> PackedOrder:
    order = Order(len(lengths), seed)
    return PackedOrder(order, rule, lambda documents: lengths[documents.view(np.int64)])


@st.composite
def orders(draw: st.DrawFn) -> PackedOrder:
    count = draw(st.integers(1, 400))
    lengths = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 40, count)
    lengths[draw(st.integers(0, count - 1))] = 5
    rule = PackingRule(draw(st.integers(2, 64)), draw(st.integers(1, 150)))
    return make_order(lengths, rule, draw(st.integers(0, 5))).at_epoch(draw(st.integers(0, 3)))


@given(orders(), st.data())
def test_rows_are_the_same_however_they_are_asked_for(
    order: PackedOrder, data: st.DataObject
) -> None:
    count = len(order)
    whole = order.pieces(np.arange(count))
    asked = data.draw(st.lists(st.integers(0, count - 1), max_size=30))
    fresh = replace(order, _counts={}, _packed={})  # knows nothing yet
    pieces = fresh.pieces(np.array(asked, np.int64))
    assert len(pieces.offsets) == len(asked) + 1
    for place, row in enumerate(asked):
        one, same = pieces.cut(place, place + 1), whole.cut(row, row + 1)
        for name in ("documents", "start", "length", "tokens"):
            assert getattr(one, name).tolist() == getattr(same, name).tolist()
    assert int(whole.length.sum()) >= int(order.read_lengths(np.arange(len(order.inner))).sum())
    lengths, offsets = order.row_document_lengths(np.arange(count))
    assert lengths.tolist() == whole.length.tolist()
    assert offsets.tolist() == whole.offsets.tolist()


@given(orders(), st.data())
def test_true_claims_go_on_and_false_ones_are_refused(
    order: PackedOrder, data: st.DataObject
) -> None:
    count = len(order)
    row = data.draw(st.integers(1, count))
    window, before = order.counts.locate(row - 1)
    fresh = replace(order, _counts={}, _packed={}).counts
    fresh.resume_at(window, before, row)
    assert fresh.counted <= 1
    assert fresh.reach(row) >= row
    assert fresh.locate(row - 1) == (window, before)

    wrong = data.draw(st.integers(-3, 3).filter(bool))
    claims = [(window, before + wrong), (window + wrong, before), (10**6, before)]
    claim = data.draw(st.sampled_from(claims))
    false = replace(order, _counts={}, _packed={}).counts
    try:
        false.resume_at(*claim, row)
    except StateError:
        return
    if claim[0] != window and order.counts.locate(claim[1])[1] == claim[1]:
        return  # windows without rows between them: both claims are true
    for each in range(order.windows):
        false.fill(each, order.count_window(each))
    with pytest.raises(StateError, match=f"{claim[1]:,} rows come before window {claim[0]}"):
        false.check_claim()


def test_epochs_have_other_rows_and_the_same_documents() -> None:
    order = make_order(np.random.default_rng(1).integers(1, 60, 500), PackingRule(64, 128))
    drawn = [order.at_epoch(epoch).pieces(np.arange(3)).documents.tolist() for epoch in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]
    every = order.at_epoch(2)
    assert sorted(every.pieces(np.arange(len(every))).documents.tolist()) == list(range(500))


def test_long_documents_can_be_errors_and_are_bounded() -> None:
    lengths = np.array([3, 9, 5])
    with pytest.raises(DataError, match=r"document 1 has 9 tokens, more than a row of 8"):
        len(make_order(lengths, PackingRule(8, 4, "error")))
    with pytest.raises(LimitError, match=r"document 1 has 1,000,000,000,000"):
        len(make_order(np.array([3, 10**12]), PackingRule(8, 4)))
    assert len(make_order(np.array([3, 10**12]), PackingRule(8, 4, "cut"))) == 2
    with pytest.raises(LimitError, match=r"document \d has 4,611,686,018,427,387,904"):
        len(make_order(np.full(4, 1 << 62), PackingRule(2, 4)))  # whose sum is beyond int64


def test_an_epoch_has_not_too_many_windows() -> None:
    order = make_order(np.array([3]), PackingRule(8, 4096))
    with pytest.raises(LimitError, match=r"268,435,456 windows of 4,096.*larger window="):
        replace(order, inner=Order(1 << 40, 0)).counts.reach(1)


def test_estimates_come_from_the_windows_that_are_counted() -> None:
    order = make_order(np.full(1000, 10), PackingRule(20, 64))
    assert order.counts.estimate() == 500
    assert order.counts.counted == 1
    assert len(order) == 500


def test_windows_have_rows_enough() -> None:
    assert choose_window(2048, 916) == 4096
    assert choose_window(8192, 916) == 8192
    assert choose_window(131072, 916) == 131072
    assert choose_window(1 << 20, 100) == 1 << 20
    assert choose_window(2, 0.0) == 1 << 20


def test_counts_are_kept_when_others_fill_them() -> None:
    counts = RowCounts(3, 1.0, lambda window: window + 1)
    counts.fill(2, 3)
    assert counts.reach(2) == 3
    assert counts.locate(3) == (2, 3)
    assert counts.reach(100) == 6
    assert counts.complete


def test_a_claim_within_its_window_is_refuted_when_all_is_counted() -> None:
    order = make_order(np.random.default_rng(3).integers(1, 60, 500), PackingRule(64, 64))
    before = order.counts.locate(len(order) // 2)[1]
    window = order.counts.locate(before)[0]
    fresh = replace(order, _counts={}, _packed={}).counts
    fresh.resume_at(window, before - 1, before + 5)
    for each in reversed(range(order.windows)):
        fresh.check_claim()  # cannot know yet
        fresh.fill(each, order.count_window(each))
    with pytest.raises(StateError, match=f"{before - 1:,} rows come before window {window}"):
        fresh.check_claim()


def test_rows_of_a_version_are_the_same_for_ever() -> None:
    order = make_order(np.random.default_rng(7).integers(0, 90, 3000), PackingRule(64, 512), 5)
    pieces = order.at_epoch(2).pieces(np.arange(len(order.at_epoch(2))))
    columns = (pieces.offsets, pieces.documents, pieces.start, pieces.length)
    digest = hashlib.sha256(b"".join(column.astype("<i8").tobytes() for column in columns))
    assert digest.hexdigest()[:16] == "2a6f287ff2477fd7"
    assert order.algorithm == "packing-1:64x512:split/mixfeistel8-1"


def test_an_epoch_is_begun_again_after_a_false_claim() -> None:
    order = make_order(np.random.default_rng(3).integers(1, 60, 500), PackingRule(64, 64))
    before = order.counts.locate(len(order) // 2)[1]
    counts = replace(order, _counts={}, _packed={}).counts
    counts.resume_at(order.counts.locate(before)[0], before - 1, before + 5)
    counts.resume_at(0, 0, 0)
    assert counts.reach(1 << 40) == len(order)
    assert counts.complete
