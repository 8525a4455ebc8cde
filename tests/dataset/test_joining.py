"""Rows that are cut from joined documents: against all tokens in one array, on any world, from any
state, over the ends of files; and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.errors import DataError, LimitError, StateError, UsageError
from penstock.order.packed_order import JoinedDocuments, count_joined_rows
from tests.dataset.test_packing import Corpus, check_targets, draw_documents, walk, write_megatron


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Documents that end with the token 0, in four files, the second of which ends within one."""
    folder = tmp_path_factory.mktemp("joining")
    documents = [np.append(each, 0) for each in draw_documents(120, 150, seed=1)]
    documents[79] = documents[79][:-1]
    for number, part in enumerate(np.split(np.arange(120), [7, 80, 84])):
        values = np.concatenate([documents[each] for each in part])
        values.astype("<u4").tofile(folder / f"{number}.bin")
    dataset = penstock.open(folder, format="tokens", dtype="uint32", eos=0, index="memory")
    return Corpus(documents, dataset)


Row = tuple[list[int], list[int], list[int], list[int], list[int]]


def cut_plainly(documents: list[np.ndarray], length: int, shift: bool) -> list[Row]:
    """Return tokens, labels, positions, documents' numbers and their tokens of each row."""
    stream = [(number, token) for number, each in enumerate(documents) for token in each.tolist()]
    rows: list[Row] = []
    first = 0
    while first + 1 < len(stream) or (first == 0 and stream):
        part = stream[first : first + length]
        if first and part[0][0] != part[1][0]:
            part = part[1:]
        row: Row = ([], [], [], [], [])
        for at, (number, token) in enumerate(part):
            follows = at > 0 and part[at - 1][0] == number
            goes_on = at + 1 < len(part) and part[at + 1][0] == number
            row[0].append(token)
            if shift:
                row[1].append(part[at + 1][1] if goes_on else -100)
            else:
                row[1].append(token if follows else -100)
            row[2].append(row[2][-1] + 1 if follows else 0)
            if follows:
                row[4][-1] += 1
            else:
                row[3].append(number)
                row[4].append(1)
        rows.append(row)
        first += length - 1
    return rows


def split_rows(batches: list[Any], pad: int) -> dict[int, Row]:
    """Return the rows of some batches by their number in the epoch, of which each comes once."""
    found: dict[int, Row] = {}
    for batch in batches:
        numbers, sizes = batch["documents"], np.diff(batch["cu_seqlens"])
        at = 0
        tokens, labels, positions = (
            batch[name].reshape(-1) for name in ("input_ids", "labels", "position_ids")
        )
        length = batch["input_ids"].shape[1]
        for row, number in enumerate(batch.ids.tolist()):
            assert number not in found
            end, low = (row + 1) * length, row * length
            own: Row = ([], [], [], [], [])
            place = low
            while place < end:
                size = int(sizes[at])
                if numbers[at] >= 0:
                    own[3].append(int(numbers[at]))
                    own[4].append(size)
                else:
                    assert set(tokens[place : place + size].tolist()) == {pad}
                    assert set(labels[place : place + size].tolist()) == {-100}
                    end -= size
                    place -= size
                place, at = place + size, at + 1
            assert place == end
            for column, values in zip(own, (tokens, labels, positions), strict=False):
                column += values[low:end].tolist()
            found[number] = own
    return found


@given(st.data())
def test_rows_are_those_of_one_array_of_all_tokens(corpus: Corpus, data: st.DataObject) -> None:
    chosen = range(len(corpus.documents))
    dataset = corpus.dataset
    if data.draw(st.booleans()):
        chosen = range(data.draw(st.integers(0, 9)), len(chosen), data.draw(st.integers(1, 30)))
        dataset = dataset.select(chosen)
    length = data.draw(st.one_of(st.integers(2, 5), st.integers(6, 700)))
    shift = data.draw(st.booleans())
    rows = penstock.pack(dataset, length, join=True, shift_labels=shift, pad_id=9, dtype="int32")
    expected = cut_plainly([corpus.documents[number] for number in chosen], length, shift)
    seed = data.draw(st.integers(0, 9))
    options: dict[str, Any] = {"seed": seed, "batch_size": data.draw(st.integers(1, 50))}
    shuffle = data.draw(st.sampled_from(["none", "exact", "blocked"]))
    batches, state = walk(rows, shuffle=shuffle, block=4, group=3, **options)
    found = split_rows(batches, 9)
    order = rows.order(seed, shuffle=shuffle, block=4, group=3).inner
    assert len(found) == len(expected) == len(order) == len(rows.order(seed))
    for place, number in enumerate(order.samples(np.arange(len(order))).tolist()):
        tokens, labels, positions, numbers, sizes = expected[number]
        own = found[place]
        assert own == (tokens, labels, positions, [chosen[each] for each in numbers], sizes)
    assert (state["epoch"], state["step"]) == (1, 0)
    with penstock.Loader(rows, **options) as loader:
        assert len(loader) == loader.estimate_steps() == len(batches)


@given(st.integers(2, 400), st.booleans(), st.integers(1, 40))
def test_every_target_comes_once_an_epoch(
    corpus: Corpus, length: int, shift: bool, batch_size: int
) -> None:
    rows = penstock.pack(corpus.dataset, length, join=True, style="flat", shift_labels=shift)
    batches, _ = walk(rows, batch_size=batch_size)
    check_targets(batches, dict(enumerate(corpus.documents)), shift)
    tokens = sum(batch["input_ids"].size for batch in batches)
    whole = sum(map(len, corpus.documents))
    assert whole <= tokens <= whole + whole // (length - 1)


@given(st.data())
def test_one_sequence_on_any_world_from_any_state(corpus: Corpus, data: st.DataObject) -> None:
    rows = penstock.pack(corpus.dataset, data.draw(st.integers(30, 80)), join=True)
    size = 12
    kinds = ["strided", "contiguous", "balanced"]
    options: dict[str, Any] = {"global_batch_size": size, "seed": data.draw(st.integers(0, 9))}
    expected = split_rows(walk(rows, rank=0, world_size=1, **options)[0], 0)
    steps = -(-len(expected) // size)
    stop = data.draw(st.integers(1, steps - 1))
    state: Any = None
    found: dict[int, Row] = {}
    for first, last in ((0, stop), (stop, steps)):
        world = data.draw(st.integers(1, 4))
        assignment: Any = data.draw(st.sampled_from(kinds))
        if assignment == "balanced":
            assignment = penstock.Balanced(gather=lambda text, world=world: [text] * world)
        states = []
        for rank in range(world):
            place = {"rank": rank, "world_size": world, "assignment": assignment}
            batches, after = walk(rows, state, last - first, **place, **options)
            own = split_rows(batches, 0)
            assert not own.keys() & found.keys()
            found |= own
            states.append(after)
        assert all(each == states[0] for each in states)
        state = states[0]
    assert found == expected


def test_states_belong_to_their_rows(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset, 64, join=True)
    state = walk(rows, None, 3, batch_size=4)[1]
    assert "window" not in state
    for other in (
        penstock.pack(corpus.dataset, 65, join=True),
        penstock.pack(corpus.dataset, 64),
        penstock.pack(corpus.dataset.select(range(1, 120)), 64, join=True),
    ):
        with pytest.raises(StateError):
            walk(other, state, batch_size=4)
    with pytest.raises(StateError):
        walk(rows, walk(penstock.pack(corpus.dataset, 64), None, 3, batch_size=4)[1], batch_size=4)


def test_padded_steps_repeat_rows_without_their_targets(corpus: Corpus) -> None:
    for style in ("rows", "flat"):
        rows = penstock.pack(corpus.dataset, 150, join=True, style=style)
        batches = []
        for rank in range(4):
            own, _ = walk(rows, batch_size=3, pad=True, rank=rank, world_size=4)
            batches += own
        assert not all(batch.valid.all() for batch in batches)
        targets = sum(int((batch["labels"] != -100).sum()) for batch in batches)
        assert targets == sum(len(each) - 1 for each in corpus.documents)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_lists_of_tables_are_joined(kind: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    documents = draw_documents(80, 60, seed=2)
    for number, part in enumerate((documents[:50], documents[50:])):
        table = pyarrow.table({"input_ids": pyarrow.array(part, pyarrow.list_(pyarrow.int32()))})
        path = tmp_path / f"{number}.{kind}"
        if kind == "arrow":
            with pyarrow.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=30)
        else:
            import pyarrow.parquet

            pyarrow.parquet.write_table(table, path, row_group_size=30)
    dataset = penstock.open(tmp_path)
    if kind == "parquet":
        with pytest.raises(UsageError, match="--by tokens"):
            penstock.pack(dataset, 24, join=True)
        penstock.dataset.measure_lengths(dataset, "tokens", processes=1)
    rows = pickle.loads(pickle.dumps(penstock.pack(dataset, 24, join=True, shift_labels=True)))
    found = split_rows(walk(rows, shuffle="none", batch_size=7)[0], 0)
    assert list(found.values()) == cut_plainly(documents, 24, True)


def test_sums_of_blocks_find_the_same_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(5).integers(0, 9, 2500)
    lengths[300:900] = 0  # whole blocks of nothing
    found = []
    for block, chunk in ((4, 8), (256, 1 << 20), (1 << 20, 1 << 20)):
        monkeypatch.setattr(limits, "joining_block_documents", block)
        monkeypatch.setattr(limits, "joining_chunk_documents", chunk)
        joined = JoinedDocuments(
            2500,
            lambda numbers: numbers.view(np.uint64),
            lengths.take,
        )
        starts = np.arange(0, joined.tokens - 40, 39)
        found.append(joined.cut(starts, starts + 40))
    for pieces in found:
        for name in ("offsets", "documents", "start", "length", "tokens"):
            assert getattr(pieces, name).tolist() == getattr(found[0], name).tolist()
    assert joined.tokens == lengths.sum()


def test_false_lengths_are_refused() -> None:
    for length, error, message in (
        (-1, DataError, "document 1 has a length of -1 tokens"),
        (1 << 62, LimitError, "2 documents have more than"),
    ):
        lengths = np.array([3, length])
        with pytest.raises(error, match=message):
            JoinedDocuments(2, lambda numbers: numbers.view(np.uint64), lengths.take)


def test_the_number_of_rows_is_arithmetic() -> None:
    for tokens in range(40):
        for length in (2, 3, 7):
            plain = cut_plainly([np.zeros(tokens, int)], length, False)
            assert count_joined_rows(tokens, length) == len(plain)


def test_what_does_not_go_with_joined_rows_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    documents = corpus.dataset
    for options, message in (
        ({"window": 64}, "once: leave out window"),
        ({"multiple": 2}, "leave out multiple"),
        ({"long": "cut"}, "leave out long"),
        ({"join": "yes"}, "join is 'yes'"),
    ):
        with pytest.raises(UsageError, match=message):
            penstock.pack(documents, 64, **{"join": True, **options})
    for wrong, message in (
        (penstock.mix([(documents, 1)]), "leave out a mixture"),
        (documents.weigh(np.ones(120)), "leave out weights"),
    ):
        with pytest.raises(UsageError, match=message):
            penstock.pack(wrong, 64, join=True)
    empty = write_megatron(tmp_path / "x", [np.arange(0)] * 3)
    with pytest.raises(UsageError, match="no document of .* has a token"):
        penstock.Loader(penstock.pack(empty, 8, join=True), 1)
