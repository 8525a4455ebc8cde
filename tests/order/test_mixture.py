"""Mixtures: datasets drawn from by weights, through the loader and torch's face."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.errors import StateError, UsageError
from penstock.loader.sampler import StepSampler
from penstock.order.mixture import Mixture, MixtureRecipe, divide_slots
from penstock.ranks.place import Place

COUNTS = (100, 37, 5)


def file_of(path: Path, source: int, count: int, width: int = 4) -> penstock.Dataset:
    """Records that hold their dataset's number and their own."""
    rows = np.zeros((count, width), np.int64)
    rows[:, 0], rows[:, 1] = source, np.arange(count)
    rows.tofile(path)
    return penstock.open(path, dtype="i8", shape=(width,), index="memory")


@pytest.fixture
def parts(tmp_path: Path) -> list[penstock.Dataset]:
    """Three datasets, in folders of their own."""
    found = []
    for source, count in enumerate(COUNTS):
        folder = tmp_path / f"part{source}"
        folder.mkdir()
        found.append(file_of(folder / "rows.bin", source, count))
    return found


def mixed(parts: list[penstock.Dataset], **more: Any) -> penstock.Dataset:
    return penstock.mix(list(zip(parts, (5, 3, 2), strict=True)), **more)


def rows_of(batches: Any) -> list[list[int]]:
    """(source, sample, pass) of each row, read from the bytes where they say."""
    found = []
    for batch in batches:
        assert np.array_equal(batch["data"][:, 0], batch["source"])
        found += np.column_stack([batch["data"][:, :2], batch["pass"]]).tolist()
    return found


def test_batches_say_where_rows_are_from(parts: list[penstock.Dataset]) -> None:
    """Bytes, source and pass of every row agree; each pass holds each sample once, in the order
    of that pass; the counts of what was drawn are those of the rows."""
    with penstock.Loader(mixed(parts), 16, seed=3) as loader:
        rows = rows_of(batch for _ in range(4) for batch in loader)
        drawn = loader.count_draws()
    assert len(rows) == 4 * sum(COUNTS)
    assert drawn == [sum(row[0] == source for row in rows) for source in range(3)]
    for source, count in enumerate(COUNTS):
        own = [row[1:] for row in rows if row[0] == source]
        assert [turn for _, turn in own] == [n // count for n in range(len(own))]
        for turn in range(len(own) // count):
            order = penstock.Order(count, 3, turn, stream=source)
            held = [sample for sample, of in own if of == turn]
            assert held == order.samples(np.arange(count)).tolist()


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([1, 2.5, 7]), min_size=3, max_size=3),
    batch=st.integers(1, 9),
    world=st.integers(1, 3),
    length=st.integers(9, 150),
    start=st.integers(1, 40),
    unit=st.sampled_from([None, "steps", "samples"]),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_passes_are_whole_however_epochs_end(
    counts: list[int],
    weights: list[float],
    batch: int,
    world: int,
    length: int,
    start: int,
    unit: Any,
    drop_last: bool,
    seed: int,
) -> None:
    """The samples that all ranks are given, counted by hand over four epochs: each dataset's come
    once in each pass before one of the next pass comes, with `drop_last` and without."""
    weights = weights[: len(counts)]
    schedule = [weights] if unit is None else [weights, weights[::-1]]
    recipe = MixtureRecipe(
        counts=tuple(counts),
        starts=(0, start)[: len(schedule)],
        slots=tuple(map(divide_slots, schedule)),
        length=max(length, batch * world),
        unit=unit or "steps",
    )
    ranks = [
        StepSampler(
            "data",
            Mixture(recipe, seed),
            batch_size=batch,
            global_batch_size=None,
            drop_last=drop_last,
            pad=False,
            place=Place(rank, world),
        )
        for rank in range(world)
    ]
    seen: dict[int, list[int]] = {source: [] for source in range(len(counts))}
    for epoch in range(4):
        for shares in zip(*(rank.tasks(epoch) for rank in ranks), strict=True):
            step: dict[int, list[tuple[int, int]]] = {source: [] for source in seen}
            for share in shares:
                for number, source, turn in zip(
                    share.ids.tolist(),
                    share.marks["source"].tolist(),
                    share.marks["pass"].tolist(),
                    strict=True,
                ):
                    step[source].append((turn, number - sum(counts[:source])))
            for source, drawn in step.items():
                for turn, sample in sorted(drawn):
                    assert turn == len(seen[source]) // counts[source]
                    seen[source].append(sample)
    for source, samples in seen.items():
        for first in range(0, len(samples) - counts[source] + 1, counts[source]):
            assert sorted(samples[first : first + counts[source]]) == list(range(counts[source]))


def test_the_end_of_epochs_is_in_the_state(parts: list[penstock.Dataset]) -> None:
    """With drop_last the sequence of a mixture is another: its states do not fit the other."""
    with penstock.Loader(mixed(parts), 16, drop_last=True) as loader:
        state = loader.state_dict()
        loader.load_state_dict(state)
    with (
        penstock.Loader(mixed(parts), 16) as loader,
        pytest.raises(StateError, match="samples_per_epoch and drop_last"),
    ):
        loader.load_state_dict(state)
    with (
        penstock.Loader(mixed(parts), 15, drop_last=True) as loader,
        pytest.raises(StateError, match="pass global_batch_size=16"),
    ):
        loader.load_state_dict(state)


def test_samples_by_number(parts: list[penstock.Dataset]) -> None:
    """By number a mixture is one dataset after the other, with its files, keys and bytes."""
    ds = mixed(parts)
    assert len(ds) == sum(COUNTS)
    assert ds[100]["data"].tolist() == [1, 0, 0, 0]
    assert (ds[-1]["source"], ds[-1]["data"].tolist(), ds[-1]["pass"]) == (2, [2, 4, 0, 0], 0)
    assert ds.index.key(137) == parts[2].index.key(0)
    assert "part2/rows.bin at byte 32" in ds.index.where(138)
    assert ds.index.keys(np.array([141, 0, 100])) == [
        part.index.key(sample) for part, sample in ((parts[2], 4), (parts[0], 0), (parts[1], 0))
    ]
    with pytest.raises(UsageError, match="save the indexes of a mixture"):
        ds.index.save("nowhere")
    again = pickle.loads(pickle.dumps(ds))
    assert again.fingerprint == ds.fingerprint
    assert again.order(1).algorithm == ds.order(1).algorithm


def test_labels_and_lengths_of_trees(tmp_path: Path) -> None:
    """Folders of files of different lengths can be mixed: keys, labels and bytes go along."""
    for name in ("one", "two"):
        for i in range(12):
            path = tmp_path / name / ("odd" if i % 2 else "even") / f"{i:02}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} {i} " * (i + 1))
    trees = [penstock.open(tmp_path / name, index="memory") for name in ("one", "two")]
    ds = penstock.mix([(trees[0], 1), (trees[1], 1)])
    assert ds.classes == ("even", "odd")

    def decode(sample: dict[str, Any]) -> tuple[int, int, int]:
        name, number = bytes(sample["data"]).decode().split()[:2]
        assert sample["label"] == int(number) % 2
        assert sample["source"] == ("one", "two").index(name)
        assert sample["__key__"].endswith(f"{int(number):02}.txt")
        return sample["source"], int(number), sample["pass"]

    with penstock.Loader(ds, 7, decode=decode) as loader:
        seen = [row for batch in loader for row in zip(*(c.tolist() for c in batch), strict=True)]
    assert len(seen) == len(set(seen)) == 24


def test_labels_of_other_classes_are_left_out(tmp_path: Path) -> None:
    """If label 0 means one thing in one dataset and another in the next, there is no label."""
    for name in ("one/cat/a", "one/dog/a", "two/ant/a", "two/bee/a"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    trees = [penstock.open(tmp_path / name, index="memory") for name in ("one", "two")]
    ds = penstock.mix([(tree, 1) for tree in trees])
    assert ds.classes is None
    assert set(ds[0]) == {"data", "__key__", "source", "pass"}
    with penstock.Loader(ds, 4) as loader:
        assert "label" not in next(iter(loader))


@pytest.mark.parametrize("unit", ["steps", "samples"])
def test_a_schedule_is_followed(parts: list[penstock.Dataset], unit: str) -> None:
    """Weights change at their step or sample, across epochs, exactly."""
    batch, per_epoch = 10, 95  # 10 steps of which the last has 5
    # In samples: the 3rd step of epoch 0, the 2nd of epoch 1.
    starts = [0, 3, 12] if unit == "steps" else [0, 30, 95 + 20]
    weights = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    ds = mixed(
        parts,
        samples_per_epoch=per_epoch,
        schedule=list(zip(starts, weights, strict=True)),
        schedule_unit=unit,
    )
    with penstock.Loader(ds, batch) as loader:
        sources = [sorted(set(b["source"].tolist())) for _ in range(2) for b in loader]
    assert sources == [[0]] * 3 + [[1]] * 9 + [[2]] * 8


def test_weights_are_exact_to_the_slot(parts: list[penstock.Dataset]) -> None:
    """Each period of 4096 samples holds the rounded shares, no more and no less."""
    order = mixed(parts, samples_per_epoch=3 * limits.mixture_slots).order(9)
    source = order.marks(np.arange(3 * limits.mixture_slots))["source"]
    for period in source.reshape(3, -1):
        assert np.bincount(period).tolist() == [2048, 1229, 819]
    assert len(set(np.diff(np.flatnonzero(source == 2)).tolist())) > 10  # drawn, not in turn


@pytest.mark.parametrize("world", [1, 2, 3])
def test_resume_at_every_step(parts: list[penstock.Dataset], world: int) -> None:
    """A state taken at any step continues the same rows, on any number of ranks."""
    schedule = [(0, [1, 1, 0]), (7, [0, 1, 2])]
    ds = mixed(parts, samples_per_epoch=70, schedule=schedule)
    arguments: dict[str, Any] = {"global_batch_size": 12, "seed": 5}
    with penstock.Loader(ds, **arguments) as loader:
        states, batches = [loader.state_dict()], []
        for _ in range(2):
            for batch in loader:
                batches.append(np.column_stack([batch["data"], batch["pass"]]).tolist())
                states.append(loader.state_dict())
    for step, state in enumerate(states[:-1]):
        state = json.loads(json.dumps(state))
        loaders = [
            penstock.Loader(ds, rank=rank, world_size=world, **arguments) for rank in range(world)
        ]
        shares = []
        for loader in loaders:
            loader.load_state_dict(state)
            batch = next(iter(loader))
            shares.append(np.column_stack([batch["data"], batch["pass"]]).tolist())
            loader.close()
        together = [share[row] for row in range(12) for share in shares if row < len(share)]
        assert together == batches[step]


def test_another_mixture_is_refused(parts: list[penstock.Dataset]) -> None:
    """A state does not continue under other weights, schedules, epochs or datasets."""
    state = penstock.Loader(mixed(parts), 16).state_dict()
    assert len(json.dumps(state)) < 1024
    others = [
        mixed(parts, samples_per_epoch=100),
        mixed(parts, schedule=[(0, [5, 3, 1])]),
        mixed(parts, schedule=[(0, [5, 3, 2]), (9, [1, 1, 1])]),
        mixed(parts, schedule=[(0, [5, 3, 2]), (9, [1, 1, 1])], schedule_unit="samples"),
    ]
    for other in others:
        with pytest.raises(StateError, match="weights"):
            penstock.Loader(other, 16).load_state_dict(state)
    with pytest.raises(StateError, match="other data"):
        penstock.Loader(mixed(parts[::-1]), 16).load_state_dict(state)
    for scale in (1, 10, 0.1):  # the same shares
        same = penstock.mix(list(zip(parts, (5 * scale, 3 * scale, 2 * scale), strict=True)))
        penstock.Loader(same, 16).load_state_dict(state)


def test_what_cannot_be_mixed(parts: list[penstock.Dataset], tmp_path: Path) -> None:
    """Datasets that cannot be mixed are refused, in words that name the dataset or the value."""
    wide = file_of(tmp_path / "wide.bin", 0, 5, width=8)
    for wrong, message in [
        ([], r"datasets is \[\]: give a list"),
        ([parts[0]], "dataset, weight"),
        ([(parts[0], 1), (wide, 1)], "fields of dataset 1"),
        ([([1, 2], 1)], "dataset 0 is a list"),
        ([(mixed(parts), 1)], "dataset 0 is a mixture"),
        ([(parts[0], 0), (parts[1], 0)], "sum must be above 0"),
        ([(parts[0], -1)], "weight is -1"),
        ([(parts[0], float("nan"))], "weight is nan"),
        ([(parts[0], "1")], "weight is '1'"),
        ([(parts[0], 1), (parts[1], 1e-5)], "dataset 1 is too small"),
    ]:
        with pytest.raises(UsageError, match=message):
            penstock.mix(wrong)  # type: ignore[arg-type]
    for options, message in [
        ({"samples_per_epoch": 0}, "samples_per_epoch is 0"),
        ({"samples_per_epoch": 1.5}, "samples_per_epoch is 1.5"),
        ({"schedule": []}, r"schedule is \[\]: give a list"),
        ({"schedule": [(1, [1, 1, 1])]}, "ascend from 0"),
        ({"schedule": [(0, [1, 1, 1]), (0, [1, 1, 1])]}, "ascend from 0"),
        ({"schedule": [(0, [1, 1])]}, "2 weights from 0"),
        ({"schedule": [3]}, "start, weights"),
        ({"schedule_unit": "epochs"}, "schedule_unit is 'epochs'"),
    ]:
        with pytest.raises(UsageError, match=message):
            mixed(parts, **options)
    with pytest.raises(UsageError, match="mixture"):
        penstock.Loader(mixed(parts), shuffle="auto")
    unsettled = mixed(parts, schedule=[(0, [1, 1, 1]), (5, [1, 0, 0])]).order(0)
    with pytest.raises(UsageError, match="for_steps"):
        unsettled.samples([0])
    with pytest.raises(UsageError, match="position 142 is outside"):
        mixed(parts).order(0).samples([142])


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_torch_takes_a_mixture(parts: list[penstock.Dataset], workers: str) -> None:
    """torch's face gives the same rows, with threads and with processes, and resumes them."""
    torch = pytest.importorskip("torch")
    from penstock.torch.loader import DataLoader

    arguments: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": 1, "workers": workers}
    loader = DataLoader(mixed(parts), 16, **arguments)
    with penstock.Loader(mixed(parts), 16, seed=3) as plain:
        expected = rows_of(plain)
    seen = list(itertools.islice(loader, 4))
    state, drawn = loader.state_dict(), loader.count_draws()
    loader.close()
    rest = DataLoader(mixed(parts), 16, **arguments)
    rest.load_state_dict(state)
    seen += list(rest)
    rest.close()
    assert isinstance(seen[0]["source"], torch.Tensor)
    assert rows_of([{name: seen_of.numpy() for name, seen_of in b.items()} for b in seen]) == (
        expected
    )
    assert drawn == [sum(row[0] == source for row in expected[:64]) for source in range(3)]
