"""Megatron-LM, of which there is a double; the iterator that replays batches is its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

import penstock
from penstock.errors import UsageError
from penstock.torch import DataLoader
from tests.trainers import drives, scenario
from tests.trainers.doubles import MegatronTraining

pytestmark = pytest.mark.usefixtures("group")


class Passed:
    """Wrapper of an iterator that hands batches on; Megatron's own replays them, too."""

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __next__(self) -> Any:
        return next(self.iterable)


@pytest.fixture
def drive(folder: Path) -> drives.Drive:
    """A drive whose state is the iteration that was saved."""

    def drive(loader: Any, iteration: Any, count: int) -> tuple[list[list[int]], int]:
        def provide() -> Any:
            return penstock.megatron.iterator(loader, folder, iteration or 0)

        training = MegatronTraining(provide, Passed)
        batches = [drives.read_batch(batch) for batch in training.train(count)]
        reached = (iteration or 0) + count
        training.save(folder, reached, dist.get_rank())
        dist.barrier()  # as Megatron does after it has saved
        return batches, reached

    return drive


def test_the_sequence_is_that_of_penstock(drive: drives.Drive, data: Path) -> None:
    """It does not end: Megatron counts iterations, not epochs."""
    drives.check_sequence(drive, data)


def test_places_divide_the_batches(drive: drives.Drive, data: Path) -> None:
    drives.check_places(drive, data)


def test_resumed_runs_are_equal(drive: drives.Drive, data: Path) -> None:
    drives.check_resuming(drive, data)
    drives.check_resuming_again(drive, data)


def test_other_numbers_of_ranks_go_on(tmp_path: Path, data: Path) -> None:
    """What rank 1 of 2 saved continues on one rank: the state is that of all."""
    whole = scenario.list_rest(scenario.list_expected(data), 0)
    rows, rank = penstock.open(data / "rows.npy"), {"rank": 1, "world_size": 2}
    loader = DataLoader(rows, 4, shuffle=True, seed=3, decode=scenario.take_number, **rank)
    training = MegatronTraining(lambda: penstock.megatron.iterator(loader), Passed)
    training.train(20)
    training.save(tmp_path, 20, dp_rank=1)
    other = penstock.megatron.iterator(scenario.make_loader(DataLoader, data), tmp_path, 20)
    assert drives.read_batch(next(other)) == whole[20]


@pytest.mark.long  # Megatron takes seconds to import
def test_batches_that_are_held_stay_as_they_are(data: Path) -> None:
    """The rerun machine replays an iteration of many batches after they were used."""
    rerun = pytest.importorskip("megatron.core.rerun_state_machine")
    raw = scenario.make_loader(DataLoader, data, decode=None)
    rerun.initialize_rerun_state_machine(mode=rerun.RerunMode.VALIDATE_RESULTS)
    try:
        training = MegatronTraining(
            lambda: penstock.megatron.iterator(raw), rerun.RerunDataIterator
        )
        first = [copy.deepcopy(batch) for batch in training.train(drives.TOTAL)]
        training.data_iterator.rewind()
        again = training.train(drives.TOTAL)
        for batch, replayed in zip(first, again, strict=True):
            assert (batch["data"] == replayed["data"]).all()
        training.data_iterator.advance()
        following = training.train(1)[0]["data"].ravel().tolist()
    finally:
        rerun.destroy_rerun_state_machine()
    loader = scenario.make_loader(DataLoader, data)
    loader.set_epoch(scenario.EPOCHS)
    assert following == drives.read_batch(next(iter(loader)))


def test_what_cannot_go_on_is_refused(tmp_path: Path, data: Path) -> None:
    """A folder without the state of the iteration would begin the data anew, in silence."""
    loader = scenario.make_loader(DataLoader, data)
    with pytest.raises(UsageError, match=r"iter_0000007 has no train_dataloader.*dataloader-save"):
        penstock.megatron.iterator(loader, tmp_path, 7)
    with pytest.raises(UsageError, match=r"penstock.megatron.iterator was given a range"):
        penstock.megatron.iterator(range(3))
