"""Selections through torch's face: its workers, its samplers, and samplers of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402

COUNT = 300


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    """Records that hold their own number."""
    path: Path = tmp_path_factory.mktemp("numbers") / "rows.bin"
    np.arange(COUNT).tofile(path)
    return penstock.open(path, dtype="i8", shape=())


def read_numbers(loader: Any) -> list[int]:
    found = []
    for batch in loader:
        assert torch.equal(batch["data"].reshape(-1), torch.as_tensor(batch.ids).to(torch.int64))
        found += batch["data"].reshape(-1).tolist()
    return found


@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (2, "threads"), (1, "processes")])
def test_workers_and_samplers(numbers: Any, workers: int, kind: Any) -> None:
    """Each kind of workers gives the selected samples once. The loader's sampler, and samplers of
    the user, name samples as `dataset[i]` does."""
    dataset = numbers.select(range(0, COUNT, 3)).select(fraction=0.5, seed=1)
    ids = dataset.ids(np.arange(len(dataset))).astype(int)
    options = {"num_workers": workers, "workers": kind, "batch_size": 8}
    loader = DataLoader(dataset, shuffle=True, seed=3, **options)
    expected = [int(dataset[i]["data"]) for i in loader.sampler]
    assert sorted(expected) == ids.tolist()
    assert read_numbers(loader)[: len(expected)] == expected
    loader.close()
    chosen = DataLoader(dataset, sampler=[5, 0, -1], **options)
    assert read_numbers(chosen) == ids[[5, 0, -1]].tolist()
    chosen.close()
    plain = torch.utils.data.DataLoader(dataset, batch_size=None, collate_fn=lambda row: row)
    assert [int(row["data"]) for row in plain] == ids.tolist()
