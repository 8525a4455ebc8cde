"""Packed rows from data to batches: exactly once, one sequence on any world, from any state; what
batches hold; and what is refused."""

from __future__ import annotations

import gc
import json
import pickle
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.errors import ChangedError, DataError, LimitError, StateError, UsageError


class Corpus(NamedTuple):
    """Documents, by their number in the whole dataset, and the dataset of them."""

    documents: list[np.ndarray]
    dataset: Any


def draw_documents(count: int, longest: int, seed: int) -> list[np.ndarray]:
    """Draw documents whose tokens say where they are: document * 1000 + place, from 1 on."""
    random = np.random.default_rng(seed)
    lengths = np.minimum(random.lognormal(2.5, 1.1, count).astype(int), longest)
    lengths[random.integers(count)] = 0
    return [1 + number * 1000 + np.arange(length) for number, length in enumerate(lengths)]


def write_megatron(prefix: Path, documents: list[np.ndarray]) -> penstock.Dataset:
    """Write documents as Megatron's tokens of 32 bits."""
    lengths = np.array([len(each) for each in documents], np.int32)
    offsets = 4 * (np.cumsum(lengths, dtype=np.int64) - lengths)
    prefix.with_suffix(".bin").write_bytes(np.concatenate(documents).astype("<i4").tobytes())
    head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x04"
    counts = np.array([len(documents), len(documents) + 1], "<u8")
    numbers = np.arange(len(documents) + 1, dtype="<i8")
    parts = (counts, lengths, offsets, numbers)
    prefix.with_suffix(".idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    return penstock.open(prefix, index="memory")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    documents = draw_documents(300, 150, seed=0)
    folder = tmp_path_factory.mktemp("packing")
    return Corpus(documents, write_megatron(folder / "corpus", documents))


def walk(rows: Any, state: Any = None, steps: int | None = None, **options: Any) -> list[Any]:
    """Return the batches of an epoch, or its first steps, and the state after the last one."""
    with penstock.Loader(rows, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        batches: list[Any] = []
        for batch in loader:
            batches.append(batch)
            if len(batches) == steps:
                break
        return [batches, loader.state_dict()]


def list_rows(batches: list[Any]) -> dict[int, tuple[list[int], list[int]]]:
    """Return tokens and labels of each row by its number, of which each comes once."""
    found = {}
    for batch in batches:
        for number, tokens, labels in zip(
            batch.ids.tolist(), batch["input_ids"], batch["labels"], strict=True
        ):
            assert number not in found
            found[number] = tokens.tolist(), labels.tolist()
    return found


def check_targets(batches: list[Any], documents: dict[int, np.ndarray], shift: bool) -> None:
    """Check that every token but the first of each document is the target of its predecessor
    once, and that documents, boundaries and positions agree."""
    seen = set()
    pairs: list[tuple[int, int]] = []
    for batch in batches:
        tokens, labels, positions = (
            batch[name].reshape(-1) for name in ("input_ids", "labels", "position_ids")
        )
        bounds = batch["cu_seqlens"].tolist()
        assert bounds[0] == 0
        assert bounds[-1] == len(tokens)
        assert batch["max_seqlen"] == max(np.diff(bounds), default=0)
        for number, low, high in zip(
            batch["documents"].tolist(), bounds[:-1], bounds[1:], strict=True
        ):
            held, wanted = tokens[low:high], labels[low:high]
            assert positions[low:high].tolist() == list(range(high - low))
            if number < 0:
                assert set(wanted.tolist()) == {-100}
                continue
            seen.add(number)
            start = int(held[0] - documents[number][0])
            assert held.tolist() == documents[number][start : start + high - low].tolist()
            assert wanted[-1 if shift else 0] == -100
            follows = wanted[:-1] if shift else wanted[1:]
            assert follows.tolist() == held[1:].tolist()
            pairs += zip(held[:-1].tolist(), follows.tolist(), strict=True)
    expected = [
        pair
        for number in documents
        for pair in zip(
            documents[number][:-1].tolist(), documents[number][1:].tolist(), strict=True
        )
    ]
    assert sorted(pairs) == sorted(expected)
    assert seen == {number for number in documents if len(documents[number])}


@st.composite
def views(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    options: dict[str, Any] = {
        "length": 8 * draw(st.integers(1, 16)),
        "window": draw(st.sampled_from([1, 37, 64, 1000])),
        "shift_labels": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["int32", "int64"])),
        "style": draw(st.sampled_from(["rows", "flat"])),
    }
    return draw(st.sampled_from(["whole", "selection"])), options


@given(views(), st.integers(1, 40), st.integers(0, 9))
def test_every_target_comes_once_an_epoch(
    corpus: Corpus, view: tuple[str, dict[str, Any]], batch_size: int, seed: int
) -> None:
    kind, options = view
    dataset, chosen = corpus.dataset, range(len(corpus.documents))
    if kind == "selection":
        chosen = range(1, 300, 3)
        dataset = dataset.select(chosen)
    rows = penstock.pack(dataset, **options)
    batches, state = walk(rows, batch_size=batch_size, seed=seed)
    assert {batch["labels"].dtype.name for batch in batches} == {options["dtype"]}
    check_targets(batches, {n: corpus.documents[n] for n in chosen}, options["shift_labels"])
    assert (state["epoch"], state["step"], state["window"], state["before"]) == (1, 0, 0, 0)
    with penstock.Loader(rows, batch_size, seed=seed) as loader:
        assert len(loader) == len(batches)


@given(st.data())
def test_one_sequence_on_any_world_from_any_state(corpus: Corpus, data: st.DataObject) -> None:
    check_worlds(corpus, data)


def check_worlds(corpus: Corpus, data: st.DataObject, worlds: int = 4) -> None:
    """Walk an epoch on one rank, and again in two parts on others; batches and states are equal."""
    rows = penstock.pack(
        corpus.dataset, data.draw(st.integers(8, 100)), window=data.draw(st.integers(20, 200))
    )
    size = data.draw(st.integers(worlds, worlds + 20))
    options: dict[str, Any] = {"global_batch_size": size, "seed": data.draw(st.integers(0, 9))}
    options["drop_last"] = data.draw(st.booleans())
    alone = {"rank": 0, "world_size": 1}
    if len(rows.order(options["seed"])) < size:
        return
    whole, _ = walk(rows, **options, **alone)
    reference = list_rows(whole)
    stop = data.draw(st.integers(1, len(whole)))
    state: Any = None
    done: dict[int, Any] = {}
    for first, last in ((0, stop), (stop, len(whole))):
        if first == last:
            continue
        world = data.draw(st.integers(1, worlds))
        assignment = data.draw(st.sampled_from(["strided", "contiguous"]))
        states = []
        for rank in range(world):
            batches, after = walk(
                rows,
                json.loads(json.dumps(state)),
                last - first,
                assignment=assignment,
                rank=rank,
                world_size=world,
                **options,
            )
            assert [batch.step for batch in batches] == list(range(first, last))
            own = list_rows(batches)
            assert not own.keys() & done.keys()
            done |= own
            states.append(after)
        assert all(each == states[0] for each in states)
        assert len(json.dumps(states[0])) < 1024
        state = states[0]
    assert done == reference


def test_padded_steps_repeat_rows_of_the_head(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset, 64, window=50)
    options = {"global_batch_size": 8, "seed": 1}
    whole = list_rows(walk(rows, rank=0, world_size=1, **options)[0])
    state = walk(rows, None, 3, rank=0, world_size=1, **options)[1]
    for rank in range(8):
        batches, _ = walk(
            rows, state, global_batch_size=8, seed=1, rank=rank, world_size=8, pad=True
        )
        assert {len(batch.ids) for batch in batches} == {1}
        last = batches[-1]
        number = int(last.ids[0])
        assert last["input_ids"][0].tolist() == whole[number][0]
        assert bool(last.valid[0]) == (number >= 24)
        labels = whole[number][1] if last.valid[0] else [-100] * 64  # no target counts twice
        assert last["labels"][0].tolist() == labels


def test_places_are_multiples_for_context_parallelism(corpus: Corpus) -> None:
    for style in ("rows", "flat"):
        rows = penstock.pack(corpus.dataset, 64, multiple=8, style=style, pad_id=7)
        for batch in walk(rows, batch_size=4)[0]:
            places, bounds = batch["cu_seqlens_padded"], batch["cu_seqlens"]
            assert not (places % 8).any()
            assert places[-1] == batch["input_ids"].size
            assert batch["max_seqlen"] == max(np.diff(places))  # ranks share places
            tokens, labels = batch["input_ids"].reshape(-1), batch["labels"].reshape(-1)
            for number, place, end, length in zip(
                batch["documents"], places[:-1], places[1:], np.diff(bounds), strict=True
            ):
                assert tokens[place] in corpus.documents[number]
                assert (tokens[place + length : end] == 7).all()
                assert (labels[place + length : end] == -100).all()
                assert (labels[place + 1 : place + length] > 0).all()


def test_cut_documents_keep_their_heads(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset, 16, long="cut")
    batches, _ = walk(rows, batch_size=4)
    check_targets(batches, {n: each[:16] for n, each in enumerate(corpus.documents)}, False)
    with pytest.raises(DataError, match=r"document \d+ has \d+ tokens, more than a row of 16"):
        walk(penstock.pack(corpus.dataset, 16, long="error"), batch_size=4)


def test_an_error_of_a_later_window_comes_after_the_batches_before_it(tmp_path: Path) -> None:
    documents = [np.arange(1, 9)] * 64
    documents[60] = np.arange(1, 30)
    rows = penstock.pack(write_megatron(tmp_path / "x", documents), 8, window=16, long="error")
    with penstock.Loader(rows, 4, shuffle="none") as loader:
        batches = iter(loader)
        given = [next(batches) for _ in range(12)]
        assert [batch.step for batch in given] == list(range(12))
        assert loader.state_dict()["step"] == 12
        with pytest.raises(DataError, match="document 60 has 29 tokens"):
            next(batches)
        assert next(batches, None) is None


def test_a_window_of_too_many_rows_comes_after_the_batches_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "packing_pieces_max", 50)
    documents = [np.arange(1, 9)] * 64
    documents[60] = np.arange(1, 2000)
    rows = penstock.pack(write_megatron(tmp_path / "x", documents), 8, window=16)
    with penstock.Loader(rows, 4, shuffle="none") as loader:
        batches = iter(loader)
        assert [next(batches).step for _ in range(12)] == list(range(12))
        with pytest.raises(LimitError, match="document 60 has 1,999"):
            next(batches)


def test_boundaries_of_batches_are_32_bits(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "packing_batch_max", 100)
    rows = penstock.pack(corpus.dataset, 32)
    assert len(walk(rows, None, 1, batch_size=3)[0]) == 1
    with pytest.raises(LimitError, match="a batch of 128 tokens.*use fewer rows"):
        walk(rows, None, 1, batch_size=4)


def test_a_false_state_is_refused_when_its_epoch_ends(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(3, 30, 4000).tolist()
    dataset = write_megatron(tmp_path / "x", [1 + np.arange(length) for length in lengths])
    rows = penstock.pack(dataset, 32, window=8)
    with penstock.Loader(rows, 4) as loader:
        steps = len(loader)
    state = walk(rows, None, steps - 1, batch_size=4)[1]
    with penstock.Loader(rows, 4) as loader:
        loader.load_state_dict(state | {"before": state["before"] - 1})
        with pytest.raises(StateError, match="rows come before window"):
            [batch.step for batch in loader]  # and not list(), which asks for the length
        loader.load_state_dict(state)
        assert [batch.step for batch in loader] == [steps - 1]


def test_mixtures_are_packed_and_say_their_sources(corpus: Corpus, tmp_path: Path) -> None:
    other = [np.full(length, 9) for length in (5, 17, 30, 2)]
    second = write_megatron(tmp_path / "other", other)
    mixed = penstock.mix([(corpus.dataset, 1), (second, 1)], samples_per_epoch=400)
    rows = penstock.pack(mixed, 64, window=64)
    batches, _ = walk(rows, batch_size=8)
    for batch in batches:
        held = batch["documents"] >= 0
        assert ((batch["documents"] >= 300) == (batch["source"] == 1))[held].all()
        assert len(batch["source"]) == len(batch["documents"]) == len(batch["pass"])
        tokens = batch["input_ids"].reshape(-1)[batch["cu_seqlens"][:-1]]
        assert ((tokens == 9) == (batch["source"] == 1))[held].all()


def test_mixtures_by_tokens_give_each_its_share(corpus: Corpus, tmp_path: Path) -> None:
    other = write_megatron(tmp_path / "other", [np.full(100, 9)] * 50)
    pairs = [(corpus.dataset, 1), (other, 1)]
    mixed = penstock.mix(pairs, by="tokens", samples_per_epoch=20_000)
    shares = np.zeros(2)
    for batch in walk(penstock.pack(mixed, 128, style="flat"), batch_size=64)[0]:
        np.add.at(shares, batch["source"], np.diff(batch["cu_seqlens"]))
    assert shares[0] / shares.sum() == pytest.approx(0.5, abs=0.01)
    weights = np.arange(len(corpus.documents), dtype=float)
    mixed = penstock.mix(
        [(corpus.dataset.weigh(weights), 3), (other, 1)], by="tokens", samples_per_epoch=20_000
    )
    shares[:] = 0
    for batch in walk(penstock.pack(mixed, 128, style="flat"), batch_size=64)[0]:
        np.add.at(shares, batch["source"], np.diff(batch["cu_seqlens"]))
    assert shares[0] / shares.sum() == pytest.approx(0.75, abs=0.01)
    with pytest.raises(UsageError, match="by is 'bytes'"):
        penstock.mix(pairs, by="bytes")  # type: ignore[arg-type]


def test_documents_of_flat_tokens_end_at_their_end_tokens(tmp_path: Path) -> None:
    documents = [np.append(1 + n * 50 + np.arange(n % 40), 0) for n in range(90)]
    documents[-1] = documents[-1][:-1]  # the file ends within one
    halves = documents[:40], documents[40:]
    for number, half in enumerate(halves):
        np.concatenate(half).astype("<u2").tofile(tmp_path / f"{number}.bin")
    dataset = penstock.open(tmp_path, eos=0, dtype="uint16")
    assert dataset.lengths.tolist() == [len(each) for each in documents]
    batches, _ = walk(penstock.pack(dataset, 32, window=32), batch_size=4)
    seen = np.concatenate([batch["documents"] for batch in batches])
    assert set(seen.tolist()) - {-1} == set(range(90))
    one = penstock.open(tmp_path / "0.bin", eos=0, dtype="uint16", index="memory")
    assert [each["tokens"].tolist() for each in one] == [each.tolist() for each in halves[0]]
    for options in ({}, {"eos": 0, "window": 4}, {"eos": 1 << 16}, {"eos": -1}):
        with pytest.raises(UsageError, match="eos"):
            penstock.open(tmp_path / "0.bin", format="tokens", dtype="uint16", **options)


def test_lists_that_have_to_be_decoded_need_measured_lengths(tmp_path: Path) -> None:
    texts = [{"input_ids": list(range(1 + n * 100, 1 + n * 100 + n % 70))} for n in range(60)]
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in texts))
    dataset = penstock.open(path, fields=["input_ids"])
    with pytest.raises(UsageError, match=r"penstock lengths .*lists.jsonl --by tokens"):
        penstock.pack(dataset, 32)
    penstock.dataset.measure_lengths(dataset, "tokens", processes=1)
    batches, _ = walk(penstock.pack(dataset, 32, window=16), batch_size=4)
    documents = {n: np.array(each["input_ids"]) for n, each in enumerate(texts)}
    check_targets(batches, documents, False)


def measure_wrongly(sample: dict[str, Any]) -> int:
    """Count the numbers of a list, of one list falsely."""
    tokens = sample["input_ids"]
    return len(tokens) + (len(tokens) == 13)


def test_lengths_that_disagree_are_an_error_of_their_step(tmp_path: Path) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(json.dumps({"input_ids": [1] * n}) + "\n" for n in range(1, 30)))
    dataset = penstock.open(path, fields=["input_ids"])
    penstock.dataset.measure_lengths(dataset, measure_wrongly, processes=1)
    with pytest.raises(DataError, match=r"document 12 has 13 tokens, not 14"):
        walk(penstock.pack(dataset, 32), batch_size=1)


def test_tokens_beyond_the_dtype_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "wide.npy"
    np.save(path, np.array([[1, 2, 1 << 40]] * 3))
    dataset = penstock.open(path)
    walk(penstock.pack(dataset, 4), batch_size=1)
    with pytest.raises(DataError, match="larger than int32 holds"):
        walk(penstock.pack(dataset, 4, dtype="int32"), batch_size=1)


def test_false_states_are_refused(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset, 32, window=32)
    state = walk(rows, None, 20, batch_size=8)[1]
    assert state["window"] > 1
    for change in (
        {"window": 0},
        {"before": 0},
        {"window": 10**9},
        {"before": -1},
        {"window": 1.5},
    ):
        with (
            penstock.Loader(rows, 8) as loader,
            pytest.raises(StateError, match="window|before|rows"),
        ):
            loader.load_state_dict(state | change)
    with pytest.raises(StateError, match="rows come before"), penstock.Loader(rows, 8) as loader:
        loader.load_state_dict(state | {"before": state["before"] + 1})
        len(loader)
    with pytest.raises(StateError, match="no state of a penstock loader"):
        walk(rows, {name: state[name] for name in state if name != "window"}, batch_size=8)
    for other in (penstock.pack(corpus.dataset, 33, window=32), penstock.pack(corpus.dataset, 32)):
        with pytest.raises(StateError, match="order"):
            walk(other, state, batch_size=8)


def test_a_refused_state_changes_nothing(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset, 32, window=32)
    whole, _ = walk(rows, batch_size=8)
    with penstock.Loader(rows, 8) as loader:
        batches = iter(loader)
        first = next(batches)
        state = loader.state_dict()
        with pytest.raises(StateError):
            loader.load_state_dict(state | {"step": 5})
        assert loader.state_dict() == state
        rest = list(batches)
    assert list_rows([first, *rest]) == list_rows(whole)


def test_counts_are_shared_by_a_file_that_damage_does_not_fool(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(limits, "packing_table_documents_min", 1)
    rows = penstock.pack(corpus.dataset, 32, window=16)
    with penstock.Loader(rows, 8) as loader:
        steps = len(loader)
    (table,) = (tmp_path / "penstock").glob("*.rows")
    content = bytearray(table.read_bytes())
    content[1024] ^= 1  # rows of the first window
    content[1024 + 8 * 5 + 6] ^= 4
    content[1024 + 8 * 7 : 1024 + 8 * 8] = content[1024 + 8 * 8 : 1024 + 8 * 9]
    table.write_bytes(content)
    counted: list[int] = []
    count_window = penstock.order.PackedOrder.count_window

    def note(order: Any, window: int) -> int:
        counted.append(window)
        return count_window(order, window)

    monkeypatch.setattr(penstock.order.PackedOrder, "count_window", note)
    with penstock.Loader(rows, 8) as loader:
        assert len(loader) == steps
    assert sorted(counted) == [0, 5, 7]
    counted.clear()
    with penstock.Loader(rows, 8, seed=1) as loader:  # another table
        assert len(loader)
    assert len(counted) == 19


def test_threads_that_count_end_with_their_loader(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset, 32, window=1)
    loader = penstock.Loader(rows, 2)
    next(iter(loader))
    del loader
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "penstock-rows":
            thread.join(20)
            assert not thread.is_alive()


def test_estimates_need_no_counting(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset, 32, window=30)
    with penstock.Loader(rows, 8, seed=2) as loader:
        estimate = loader.estimate_steps()
        assert loader.estimate_steps() == estimate
        assert 0.7 < estimate / len(loader) < 1.4
        assert loader.estimate_steps() == len(loader)


def test_packs_are_pickled(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset.select(range(50)), 32, pad_id=3)
    again = pickle.loads(pickle.dumps(rows))
    assert again.rows is not None
    assert list_rows(walk(again, batch_size=4)[0]) == list_rows(walk(rows, batch_size=4)[0])


def test_tensors_share_the_memory_of_batches(corpus: Corpus) -> None:
    torch = pytest.importorskip("penstock.torch")
    rows = penstock.pack(corpus.dataset, 32, window=64)
    loader = torch.DataLoader(rows, batch_size=4, shuffle=True, seed=5, drop_last=True)
    steps = len(loader)
    batches = list(loader)
    assert steps == len(batches)
    plain, _ = walk(rows, batch_size=4, seed=5, drop_last=True)
    for batch, same in zip(batches, plain, strict=True):
        assert batch["input_ids"].numpy().tolist() == same["input_ids"].tolist()
        assert batch["cu_seqlens"].dtype.itemsize == 4
        assert batch["max_seqlen"] == same["max_seqlen"]
        both = batch["input_ids"].untyped_storage(), batch["labels"].untyped_storage()
        assert batch["labels"].shape == (4, 32)
        assert both[0].device.type == "cpu"


def test_step_loaders_count_the_steps_of_each_epoch(corpus: Corpus) -> None:
    torch = pytest.importorskip("penstock.torch")
    rows = penstock.pack(corpus.dataset, 24, window=8)
    drawn = ([len(rows.order(seed).at_epoch(epoch)) for epoch in range(2)] for seed in range(99))
    seed, counts = next((seed, each) for seed, each in enumerate(drawn) if each[0] < each[1])
    left = torch.StepLoader(rows, batch_size=1, shuffle=True, seed=seed)
    next(iter(left))
    seen = [number for batch in left for number in batch.ids.tolist()]
    assert seen == list(range(counts[1]))
    size = counts[0] - 1  # the last step has one row
    whole = torch.StepLoader(rows, batch_size=size, shuffle=True, seed=seed)
    for _ in range(2):
        states = [whole.state_dict() for _ in whole]
        assert [state["step"] for state in states[:-1]] == list(range(1, len(states)))
        assert (states[-1]["step"], states[-1]["window"], states[-1]["before"]) == (0, 0, 0)
    assert states[-1]["epoch"] == 2


def test_samplers_and_worker_processes_are_refused(corpus: Corpus) -> None:
    torch = pytest.importorskip("penstock.torch")
    rows = penstock.pack(corpus.dataset, 32)
    for options in ({"sampler": range(5)}, {"num_workers": 2, "workers": "processes"}):
        with pytest.raises(UsageError, match=r"packed rows (take|are laid out)"):
            torch.DataLoader(rows, 2, **options)
    with pytest.raises(UsageError, match=r"packed rows (take|are laid out)"):
        next(iter(torch.DataLoader(rows, 2).sampler))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length is 1"),
        ({"length": (1 << 24) + 1}, "length is"),
        ({"length": 30, "multiple": 4}, "no multiple of 4: use 28"),
        ({"length": 8, "style": "dense"}, "style is 'dense'"),
        ({"length": 8, "dtype": "int16"}, "dtype is 'int16'"),
        ({"length": 8, "dtype": "int32", "pad_id": 1 << 31}, "pad_id"),
        ({"length": 8, "long": "drop"}, "long is 'drop'"),
        ({"length": 8, "field": "text"}, "the lists of integers of .* are tokens"),
        ({"length": 8, "window": 0}, "window is 0"),
    ],
)
def test_wrong_arguments_are_refused(corpus: Corpus, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        penstock.pack(corpus.dataset, **options)


def test_what_does_not_go_with_rows_is_refused(corpus: Corpus) -> None:
    rows = penstock.pack(corpus.dataset, 32)
    for misuse in (
        lambda: rows.select([1]),
        lambda: rows.weigh([1.0] * 300),
        lambda: rows.split({"a": 1.0}),
        lambda: penstock.pack(rows, 32),
        lambda: penstock.mix([(rows, 1)]),
        lambda: penstock.Loader(rows, 2, decode=len),
        lambda: penstock.Loader(rows, 2, shuffle="auto"),
        lambda: penstock.Loader(rows, 2, cache=penstock.Cache(ram_bytes=1 << 20)),
        lambda: penstock.pack(penstock.curriculum([(0, corpus.dataset)]), 32),
        lambda: next(iter(penstock.Loader(rows, 2, assignment="local"))),
    ):
        with pytest.raises(UsageError):
            misuse()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_lists_of_tables_are_packed(kind: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    documents = draw_documents(80, 60, seed=2)
    lists = pyarrow.array(documents, pyarrow.list_(pyarrow.int32()))
    table = pyarrow.table({"input_ids": lists, "number": np.arange(80)})
    path = tmp_path / f"table.{kind}"
    if kind == "arrow":
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    else:
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, path, row_group_size=30)
    dataset = penstock.open(path)
    if kind == "parquet":
        with pytest.raises(UsageError, match="--by tokens"):
            penstock.pack(dataset, 24)
        penstock.dataset.measure_lengths(dataset, "tokens", processes=1)
    batches, _ = walk(penstock.pack(dataset, 24, window=20), batch_size=4)
    check_targets(batches, dict(enumerate(documents)), False)


def test_changed_files_are_errors_that_name_the_document(tmp_path: Path) -> None:
    documents = [np.arange(1, 9)] * 64
    rows = penstock.pack(write_megatron(tmp_path / "x", documents), 16)
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ChangedError, match=r"sample \d+: .*x.bin"):
        walk(rows, batch_size=4)


def test_documents_without_tokens_make_no_rows(tmp_path: Path) -> None:
    rows = penstock.pack(write_megatron(tmp_path / "x", [np.arange(0)] * 3), 8)
    with pytest.raises(UsageError, match="no document has a token"):
        walk(rows, batch_size=1)
