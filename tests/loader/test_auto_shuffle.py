"""shuffle="auto": what is measured, chosen, told, and kept by states."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.engine.host import draw_large_extents, measure_copying, time_reads
from penstock.engine.open import open_engine
from penstock.errors import ChangedError, StateError, UsageError
from penstock.extent import Extents
from penstock.loader.auto_shuffle import choose_shuffle

COUNT, RECORD = 4096, 512


@pytest.fixture
def dataset(tmp_path: Path) -> penstock.Dataset:
    """Records in three files."""
    for number in range(3):
        data = np.random.default_rng(number).integers(0, 256, COUNT * RECORD, np.uint8)
        (tmp_path / f"{number}.bin").write_bytes(data.tobytes())
    return penstock.open(str(tmp_path / "*.bin"), record_bytes=RECORD, index="memory")


def state_of(loader: penstock.Loader, order: str) -> dict[str, Any]:
    return loader.state_dict() | {"order": order, "step": 3}


def test_a_probe_measures(dataset: penstock.Dataset) -> None:
    """Latency, rate and bandwidth are positive, and large reads lie in their files."""
    files = dataset.index.files
    large = draw_large_extents(files.size, seed=1)
    assert (large.offset + large.length <= files.size[large.file]).all()
    assert set(large.file.tolist()) == {0, 1, 2}
    engine = open_engine(files, penstock.Budget(), RECORD)
    try:
        small = dataset.index.extents(np.arange(1000))
        probed = time_reads(engine, small, large, lambda *_: AssertionError("a read failed"))  # type: ignore[arg-type, return-value]
    finally:
        engine.close()
    assert min(probed.latency_ns, probed.reads_per_s, probed.bytes_per_s, probed.took_s) > 0
    assert measure_copying() > 0


def test_one_sample_can_be_probed(tmp_path: Path) -> None:
    """The least data there is gives a choice."""
    (tmp_path / "one.bin").write_bytes(b"x" * RECORD)
    one = penstock.open(tmp_path / "one.bin", record_bytes=RECORD, index="memory")
    files = one.index.files
    engine = open_engine(files, penstock.Budget(), RECORD)
    extents = Extents(np.zeros(1, np.uint32), np.zeros(1, np.int64), np.full(1, RECORD))
    probed = time_reads(engine, extents, draw_large_extents(files.size, 0), lambda *_: OSError())  # type: ignore[arg-type, return-value]
    engine.close()
    assert probed.latency_ns > 0
    loader = penstock.Loader(one, shuffle="auto")
    assert [batch.ids.tolist() for batch in loader] == [[0]]


def test_a_changed_file_is_found_while_probing(dataset: penstock.Dataset) -> None:
    """A probe's reads are checked like any read, and a changed file is named."""
    direct = penstock.Budget(mmap="off", direct="required")
    os.truncate(dataset.index.files.path(1), 10)
    with pytest.raises(ChangedError, match=r"1\.bin at byte"):
        choose_shuffle(dataset, direct, 64, 1, 64)


def test_the_choice_is_recorded_and_told(
    dataset: penstock.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """The loader says what it chose, why and its quality, once, and its sequence is that choice's;
    a warning where it gives up the exact order, else information."""
    caplog.set_level(logging.INFO, "penstock")
    with penstock.Loader(dataset, 64, shuffle="auto", seed=4) as loader:
        assert "auto" in repr(loader)
        assert "shuffle" not in loader.stats()
        found = [batch.ids.tolist() for batch in loader]
        record = loader.stats()["shuffle"]
    chosen = {name: record[name] for name in ("shuffle", "block", "group")}
    with penstock.Loader(dataset, 64, seed=4, **chosen) as loader:
        assert [batch.ids.tolist() for batch in loader] == found
    (told,) = caplog.records
    assert record["reason"] in told.message
    assert f"shuffle quality {record['quality']:.3f}" in told.message
    assert (told.levelno == logging.INFO) == (chosen["shuffle"] == "exact")


@pytest.mark.parametrize("order", ["mixfeistel8-1/blocked-1:8x4", "mixfeistel8-1", "none-1"])
def test_a_state_decides(dataset: penstock.Dataset, order: str) -> None:
    """A run is continued in the order it was begun in, whatever would be chosen now."""
    with penstock.Loader(dataset, 64, shuffle="auto", seed=4) as loader:
        state = state_of(loader, order)
        loader.load_state_dict(state)
        found = [batch.ids.tolist() for batch in loader]
        assert loader.stats()["shuffle"]["reason"] == "resumed"
        assert state["order"] == loader.state_dict()["order"] == order
    kinds = {"mixfeistel8-1": "exact", "none-1": "none"}
    with penstock.Loader(
        dataset, 64, shuffle=kinds.get(order, "blocked"), block=8, group=4, seed=4
    ) as loader:
        expected = [batch.ids.tolist() for batch in loader]
    assert found == expected[3:]


def test_a_state_that_does_not_fit_changes_nothing(dataset: penstock.Dataset) -> None:
    """After a StateError the loader has the order that it had."""
    with penstock.Loader(dataset, 64, shuffle="auto", seed=4) as loader:
        state = loader.state_dict()
        foreign = state | {"order": "mixfeistel8-1/blocked-1:8x4", "seed": 5}
        with pytest.raises(StateError, match="seed"):
            loader.load_state_dict(foreign)
        with pytest.raises(StateError, match="order"):
            loader.load_state_dict(state | {"order": "of another kind"})
        assert loader.state_dict() == state


def test_ranks_must_be_told(dataset: penstock.Dataset) -> None:
    """Several ranks without a process group cannot agree on what one of them measured."""
    loader = penstock.Loader(dataset, 8, shuffle="auto", rank=1, world_size=2)
    assert len(loader) == 3 * COUNT // 16  # this much can be known
    with pytest.raises(UsageError, match=r"torch\.distributed.*penstock inspect --shuffle"):
        next(iter(loader))
    loader.load_state_dict(
        penstock.Loader(
            dataset, 8, shuffle="blocked", block=4, group=2, rank=0, world_size=2
        ).state_dict()
    )
    assert len(next(iter(loader)).ids) == 8  # a state tells all of them
    loader.close()


def test_a_state_decides_where_the_world_comes_later(
    dataset: penstock.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that was loaded before the ranks were known still decides when they are."""
    arguments: dict[str, Any] = {"global_batch_size": 64, "seed": 4}
    state = penstock.Loader(dataset, shuffle="blocked", block=8, group=4, **arguments).state_dict()
    with penstock.Loader(dataset, shuffle="auto", **arguments) as loader:
        loader.load_state_dict(state)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert len(next(iter(loader)).ids) == 32
        assert loader.state_dict()["order"] == state["order"]


@pytest.mark.long
def test_quality_of_any_loader(dataset: penstock.Dataset) -> None:
    """Every loader can say how good its order is."""
    assert penstock.Loader(dataset).shuffle_quality == 1.0
    assert penstock.Loader(dataset, shuffle="none").shuffle_quality == 0.0
    assert 0.5 < penstock.Loader(dataset, shuffle="blocked", group=1).shuffle_quality < 0.97


def test_torch_takes_it_too(dataset: penstock.Dataset) -> None:
    """penstock.torch.DataLoader knows the kinds of shuffle by name, and records the choice."""
    pytest.importorskip("torch")
    from penstock.torch.loader import DataLoader

    loader = DataLoader(dataset, 64, shuffle="auto", seed=4)
    seen = [int(i) for batch in loader for i in batch.ids]
    assert sorted(seen) == list(range(3 * COUNT))
    assert loader.stats()["shuffle"]["shuffle"] in ("exact", "blocked")
    blocked = DataLoader(dataset, 64, shuffle="blocked", seed=4)
    assert blocked.state_dict()["order"].endswith("blocked-1:256x64")
    with pytest.raises(UsageError, match="shuffle is 'some'"):
        DataLoader(dataset, shuffle="some")
    with pytest.raises(UsageError, match="shuffle is 'auto'"):
        DataLoader([1, 2, 3], shuffle="auto")
    with pytest.raises(UsageError, match="^shuffle is"):
        penstock.Loader(dataset, shuffle="some")  # type: ignore[arg-type]
