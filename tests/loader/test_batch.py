"""Batches: dicts of fields that know their samples, whoever copies, moves or rebuilds them."""

from __future__ import annotations

import collections
import copy
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.dataset.fields import Ragged
from penstock.errors import UsageError

ROWS = 37


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    np.save(tmp_path / "x.npy", np.arange(ROWS * 6, dtype=np.int32).reshape(ROWS, 6))
    return penstock.open(tmp_path / "x.npy", index="memory")


def as_dict(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": sample["data"], "text": f"{sample['__id__']}", "inner": {"y": sample["__id__"]}}


READING: list[dict[str, Any]] = [
    {},
    {"decode": as_dict},
    {"decode": as_dict, "collate": lambda samples: {"inner": {"y": len(samples)}, "x": [0]}},
]


@pytest.mark.parametrize("arguments", READING)
def test_one_kind_of_batch(records: penstock.Dataset, arguments: dict[str, Any]) -> None:
    """With decode or without, a batch is a dict of fields alone, and knows its samples."""
    loader = penstock.Loader(records, 8, seed=3, pad=True, rank=0, world_size=2, **arguments)
    expected = [b.ids.tolist() for b in penstock.Loader(records, 8, seed=3, rank=0, world_size=2)]
    for epoch in range(2):
        batches = list(loader)
        assert [(b.epoch, b.step) for b in batches] == [(epoch, i) for i in range(len(loader))]
        assert [int(b.valid.sum()) for b in batches] == [8, 8, 3]
        for batch in batches:
            assert isinstance(batch, penstock.Batch)
            assert isinstance(batch, Mapping)
            assert list(batch) == list(batch.keys()) == [name for name, _ in batch.items()]
            assert not {"ids", "step", "epoch", "__id__", "__valid__"} & set(batch)
        if epoch == 0:
            assert [b.ids[b.valid].tolist() for b in batches] == expected


@pytest.mark.parametrize(
    "decode",
    [
        lambda sample: (sample["data"], 1),
        lambda sample: sample["__id__"],
        lambda sample: collections.OrderedDict(x=sample["data"]),
    ],
)
def test_other_results_stay_as_they_are(
    records: penstock.Dataset, decode: Callable[[dict[str, Any]], Any]
) -> None:
    """Tuples, numbers and other mappings are collated as torch does, and become no batch."""
    (batch,) = penstock.Loader(records, ROWS, shuffle="none", decode=decode)
    assert type(batch) in (list, np.ndarray, collections.OrderedDict)


def rebuild_by_type(batch: Any) -> Any:
    return type(batch)(dict(batch.items()))


def rebuild_by_pairs(batch: Any) -> Any:
    return type(batch)(list(batch.items()))


KEEPING = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "method": lambda batch: batch.copy(),
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "union": lambda batch: batch | {},
    "moved": lambda batch: batch.to("cpu"),
}


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("arguments", READING[:2])
def test_copies_keep_the_samples(
    records: penstock.Dataset, arguments: dict[str, Any], name: str
) -> None:
    """A copy, however it is made, is an equal batch."""
    batch = next(iter(penstock.Loader(records, 8, seed=3, **arguments)))
    again = KEEPING[name](batch)
    assert type(again) is penstock.Batch
    assert again is not batch
    assert again == batch
    assert again == batch
    assert (again.ids == batch.ids).all()
    assert (again.step, again.epoch) == (0, 0)
    assert repr(again) == repr(batch)


def test_unpacking_is_refused(records: penstock.Dataset) -> None:
    """`for x, y in loader` would take names for values; what iterates over names still does."""
    wanted = r"take batch\['x'\], .* as_tuple=\('x', 'text', 'inner'\)"
    loader = penstock.Loader(records, 8, decode=as_dict)
    with pytest.raises(UsageError, match=wanted):
        for _x, _text, _inner in loader:
            pass
    (batch, *_) = loader
    with pytest.raises(UsageError, match=wanted):
        _first, *_rest = batch
    with pytest.raises(UsageError, match=wanted):
        [_ for _, (_x, _text, _inner) in enumerate(loader)]
    names = ["x", "text", "inner"]
    assert list(batch) == [*batch] == sorted(batch, key=names.index) == list(dict(batch)) == names
    assert list({**batch}) == names == (lambda **fields: list(fields))(**batch)
    x, _, inner = batch.values()
    assert (x is batch["x"], inner is batch["inner"]) == (True, True)
    assert set().union(*[batch, batch]) == set(names)


def test_tuples(records: penstock.Dataset) -> None:
    """With `as_tuple` a batch is these fields, in their order, and states count on."""
    loader = penstock.Loader(records, 8, decode=as_dict, as_tuple=("inner", "x"))
    plain = list(penstock.Loader(records, 8, decode=as_dict))
    for step, (inner, x) in enumerate(loader):
        assert (inner["y"] == plain[step]["inner"]["y"]).all()
        assert (x == plain[step]["x"]).all()
        assert loader.state_dict()["epoch"] * 5 + loader.state_dict()["step"] == step + 1
    with pytest.raises(KeyError, match="the fields are x, text, inner"):
        next(iter(penstock.Loader(records, 8, decode=as_dict, as_tuple=["y"])))
    with pytest.raises(UsageError, match="the batch is a list: let decode return a dict"):
        loader = penstock.Loader(records, 8, decode=lambda one: (one["data"], 1), as_tuple=["x"])
        next(iter(loader))
    for names in ("x", [1], 3):
        with pytest.raises(UsageError, match="give names of fields, in a list or tuple"):
            penstock.Loader(records, 8, as_tuple=names)  # type: ignore[arg-type]


def test_equality_looks_at_everything(records: penstock.Dataset) -> None:
    """Another value, dtype, field, step or id makes batches unequal, and no comparison raises."""
    loader = penstock.Loader(records, 8, seed=3)
    first, second = (b for b, _ in zip(loader, range(2), strict=False))
    changed = first.copy()
    changed["data"] = changed["data"] + 1
    other = first | {"data": first["data"].astype(np.int64)}
    later = first.copy()
    later.step = 5
    for batch in (second, changed, other, later, first | {"more": 1}, {}, 0):
        assert first != batch
    assert first == dict(first)


@pytest.mark.parametrize("rebuild", [rebuild_by_type, rebuild_by_pairs])
def test_a_rebuilt_batch_keeps_its_fields(
    records: penstock.Dataset, rebuild: Callable[[Any], Any]
) -> None:
    """Trainers build a new mapping of the same type: it has the fields, and says what it lacks."""
    batch = next(iter(penstock.Loader(records, 8, decode=as_dict)))
    again = rebuild(batch)
    assert type(again) is penstock.Batch
    assert dict(again).keys() == dict(batch).keys()
    for name in ("ids", "step", "epoch", "valid"):
        with pytest.raises(AttributeError, match="made of fields alone"):
            getattr(again, name)
    assert repr(again) == "Batch(['x', 'text', 'inner'])"
    assert again != batch
    assert again == rebuild(batch)


def test_batches_are_trees_of_jax(
    records: penstock.Dataset,
) -> None:
    """Once jax is imported, batches are trees of their fields, and steps share a program."""
    jax = pytest.importorskip("jax")
    assert "jax" in sys.modules
    batch = next(iter(penstock.Loader(records, 8)))
    doubled = jax.tree.map(lambda part: part * 2, batch)
    assert type(doubled) is penstock.Batch
    assert (doubled["data"] == 2 * batch["data"]).all()
    traced = jax.jit(lambda batch: batch["data"].sum())
    assert [int(traced(b)) for b in penstock.Loader(records, 8, drop_last=True)] == [
        int(b["data"].sum()) for b in penstock.Loader(records, 8, drop_last=True)
    ]
    assert traced._cache_size() == 1  # another step is not another program


def test_rows_are_shown() -> None:
    """A Ragged shows its first values, nested ones too, and whatever its values are."""
    rows = Ragged(np.arange(9), np.array([0, 2, 2, 8, 9]))
    assert repr(rows) == "Ragged(4 rows, 72 bytes: [0, 1], [], [2, 3, 4, 5, ...], ...)"
    nested = Ragged(rows, np.array([0, 1, 4]))
    assert repr(nested) == "Ragged(2 rows, 72 bytes: [[0, 1]], [[], [2, 3, 4, 5, ...], [8]])"
    torch = pytest.importorskip("torch")
    tensors = Ragged(torch.tensor([1.5, 2]), torch.tensor([0, 1, 2]))
    assert repr(tensors) == "Ragged(2 rows, 8 bytes: [1.5], [2.0])"
    absent = Ragged(torch.empty(2, device="meta"), torch.tensor([0, 2]))
    assert repr(absent).startswith("Ragged(1 rows, 8 bytes: ")
