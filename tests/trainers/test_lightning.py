"""Lightning with our loader, alone and as `penstock.lightning.Data`: exact, at every step."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pytorch_lightning")

import pytorch_lightning as lightning

import penstock
import torch
from penstock.errors import StateError, UsageError
from penstock.torch import DataLoader, StepLoader
from tests.trainers.scenario import (
    EPOCHS,
    RANKS,
    STEPS,
    Numbers,
    list_expected,
    list_rest,
    list_stops,
    make_loader,
    read_numbers,
    take_number,
)

warnings.filterwarnings("ignore", module="pytorch_lightning")


class Seen(lightning.LightningModule):  # type: ignore[misc]
    """A model that notes the numbers it is given, and saves and stops after a step."""

    def __init__(self, stop: Path | None = None, step: int = 0, estimate: bool = False) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.batches: list[Numbers] = []
        self._stop, self._step, self._estimate = stop, step, estimate

    def training_step(self, batch: Any, number: int) -> Any:
        parts = batch if isinstance(batch, list) else [batch]
        self.batches += [read_numbers(part["x"]) for part in parts]
        return sum(self.line(part["x"] / 125).mean() for part in parts)

    def on_train_batch_end(self, *_: Any) -> None:
        if self._stop is not None and self.global_step == self._step:
            self.trainer.save_checkpoint(self._stop)
            self.trainer.should_stop = True
            self.trainer.limit_train_batches = 0

    def validation_step(self, batch: Any, number: int) -> None:
        self.batches.append([-1])

    def configure_optimizers(self) -> Any:
        if self._estimate:
            assert self.trainer.estimated_stepping_batches == EPOCHS * STEPS
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Stop(Exception):
    """The end of a job by its scheduler."""


class Killed(Seen):
    """A model whose job ends right after it has saved."""

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step == self._step:
            self.trainer.save_checkpoint(self._stop)
            raise Stop


def fit(model: Seen, train: Any, resume: Path | None = None, **options: Any) -> list[Numbers]:
    """Fit for three epochs, or until it stops, and return the batches."""
    settings: dict[str, Any] = {
        "max_epochs": EPOCHS,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    if RANKS > 1:
        settings |= {"devices": RANKS, "strategy": "ddp"}
    with contextlib.suppress(Stop):
        lightning.Trainer(**settings | options).fit(model, train, ckpt_path=resume)
    return model.batches


class OwnData(lightning.LightningDataModule):  # type: ignore[misc]
    """A data module as users write it: it keeps no position."""

    def __init__(self, *loaders: Any) -> None:
        super().__init__()
        self._loaders = loaders

    def train_dataloader(self) -> Any:
        return self._loaders[0] if len(self._loaders) == 1 else list(self._loaders)


WAYS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda loader: loader,
    "own module": OwnData,
    "data": penstock.lightning.Data,
}


def make(way: str, data: Path, **options: Any) -> Any:
    return WAYS[way](make_loader(DataLoader, data, **options))


@pytest.fixture(scope="module")
def expected(data: Path) -> list[list[Numbers]]:
    return list_expected(data)


@pytest.mark.parametrize("way", WAYS)
def test_three_epochs(way: str, data: Path, expected: list[list[Numbers]]) -> None:
    assert fit(Seen(), make(way, data)) == list_rest(expected, 0)


@pytest.mark.parametrize("way", WAYS)
def test_resume_at_every_step(
    way: str, folder: Path, data: Path, expected: list[list[Numbers]]
) -> None:
    """Also if the model asks for the number of steps before: Lightning then forgets positions."""
    for step in list_stops():
        saved = folder / f"{step}.ckpt"
        begun = fit(Killed(saved, step), make(way, data))
        assert begun == list_rest(expected, 0)[:step]
        for estimate in (False, True):
            resumed = fit(Seen(estimate=estimate), make(way, data), saved)
            assert resumed == list_rest(expected, step), (step, estimate)


def test_positions_that_lightning_forgets(folder: Path, data: Path) -> None:
    """Each of several loaders finds its own."""

    def combine() -> Any:
        return OwnData(*(make_loader(DataLoader, data, seed=seed) for seed in (3, 4)))

    whole = fit(Seen(), combine())
    saved = folder / "both.ckpt"
    assert fit(Killed(saved, 21), combine()) == whole[:42]
    assert fit(Seen(estimate=True), combine(), saved) == whole[42:]


def test_a_resume_leaves_validation_alone(folder: Path, data: Path) -> None:
    """Loaders of validation over the training data, in its order, have whole epochs."""
    saved = folder / "before.ckpt"
    fit(Killed(saved, 21), make_loader(DataLoader, data))
    module = OwnData(make_loader(DataLoader, data))
    module.val_dataloader = lambda: make_loader(DataLoader, data)
    batches = fit(Seen(estimate=True), module, saved)
    assert batches.count([-1]) == STEPS * (EPOCHS - 21 // STEPS)


def test_resume_of_a_resumed_run(folder: Path, data: Path, expected: list[list[Numbers]]) -> None:
    last, seen = None, []
    for step in (18, 23, 40):
        saved = folder / f"{step}.ckpt"
        seen += fit(Killed(saved, step), make("data", data), last)
        last = saved
    assert seen + fit(Seen(), make("data", data), last) == list_rest(expected, 0)


@pytest.mark.parametrize("way", WAYS)
def test_limited_epochs(way: str, data: Path, expected: list[list[Numbers]]) -> None:
    """Five batches of each epoch, which are the first of that epoch."""
    limited = fit(Seen(), make(way, data), limit_train_batches=5)
    assert limited == [batch for epoch in expected for batch in epoch[:5]]


def test_validation_in_mid_epoch(data: Path, expected: list[list[Numbers]]) -> None:
    training, validation = make_loader(DataLoader, data), make_loader(DataLoader, data)
    module = penstock.lightning.Data(training, validation)
    batches = fit(Seen(), module, val_check_interval=4)
    assert [batch for batch in batches if batch != [-1]] == list_rest(expected, 0)
    assert batches.count([-1]) == EPOCHS * STEPS // 4 * STEPS
    assert batches[4] == [-1]


def test_two_loaders_together(folder: Path, data: Path, expected: list[list[Numbers]]) -> None:
    """Lightning combines them; each has its own position."""

    def combine() -> Any:
        return penstock.lightning.Data(
            [make_loader(DataLoader, data), make_loader(DataLoader, data, seed=4)]
        )

    loader = make_loader(DataLoader, data, seed=4)
    other = [read_numbers(batch["x"]) for _ in range(EPOCHS) for batch in loader]
    both = [part for pair in zip(list_rest(expected, 0), other, strict=True) for part in pair]
    saved = folder / "both.ckpt"
    assert fit(Killed(saved, 21), combine()) == both[:42]
    assert fit(Seen(), combine(), saved) == both[42:]
    with pytest.raises(StateError, match="the same loaders"):
        fit(Seen(), make("data", data), saved)


def test_a_shorter_loader_keeps_its_own_epochs(folder: Path, data: Path) -> None:
    """Where the longer one is in its first epoch, the other is in its fourth."""

    def combine() -> Any:
        long = make_loader(DataLoader, data)
        short = make_loader(DataLoader, data, seed=4, batch_size=32 // RANKS)
        return penstock.lightning.Data([long, short])

    whole = fit(Seen(), combine())
    saved = folder / "short.ckpt"
    assert fit(Killed(saved, 5), combine()) == whole[:10]
    assert fit(Seen(), combine(), saved) == whole[10:]
    shorter = whole[1::2]
    assert shorter[4:8] != shorter[:4]


class Validated(Seen):
    """A model that notes batches of validation, too."""

    def validation_step(self, batch: Any, number: int) -> None:
        self.batches.append(read_numbers(batch["x"]))


def test_overfitting(data: Path, expected: list[list[Numbers]]) -> None:
    """Each epoch has the same first batches."""
    assert fit(Seen(), make("data", data), overfit_batches=3) == expected[0][:3] * EPOCHS


def test_overfitting_with_validation(data: Path, expected: list[list[Numbers]]) -> None:
    """Its batches are the same in each epoch, too; other loaders are Lightning's to change."""
    loader = make_loader(DataLoader, data, seed=5)
    first = [read_numbers(batch["x"]) for batch in loader][:3]
    rows = [take_number({"data": [i]}) for i in range(3 * RANKS)]  # Lightning deals them out
    plain = torch.utils.data.DataLoader(rows)  # type: ignore[arg-type]
    for validation, seen in ((make_loader(DataLoader, data, seed=5), first), (plain, None)):
        module = penstock.lightning.Data(make_loader(DataLoader, data), validation)
        batches = fit(Validated(), module, overfit_batches=3)
        assert len(batches) == 6 * EPOCHS
        assert seen is None or batches == [*expected[0][:3], *seen] * EPOCHS


def test_overfitting_without_the_data_module(data: Path) -> None:
    """A loader that does not shuffle gives the same first batches. One that does is refused by
    Lightning, before it asks the loader for anything that could tell what it is for."""
    first = list_expected(data, shuffle=False)[0][:3]
    assert fit(Seen(), make("alone", data, shuffle=False), overfit_batches=3) == first * EPOCHS
    loader = make("alone", data)
    with pytest.raises(ValueError, match=r"needs to subclass `torch.utils.data.DataLoader`"):
        fit(Seen(), loader, overfit_batches=3)
    assert loader.counters().batches == 0


def test_overfitting_of_steps_is_refused(data: Path) -> None:
    """Lightning would put another order in place of theirs, and torch's sampler of theirs would
    tell it that there is nothing to put: each epoch had other batches."""
    loader = make_loader(StepLoader, data)
    with pytest.raises(UsageError, match=r"Lightning a penstock\.lightning\.Data"):
        fit(Seen(), loader, overfit_batches=3)
    assert loader.counters().batches == 0


def test_loaders_without_a_state_are_refused() -> None:
    plain = torch.utils.data.DataLoader([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"train\['a'\] was given a DataLoader: give"):
        penstock.lightning.Data({"a": plain})


def test_two_ranks(run_on_two_ranks: Callable[[str], None]) -> None:
    run_on_two_ranks(__file__)
