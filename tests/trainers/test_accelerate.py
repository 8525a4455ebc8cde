"""accelerate with StepLoader and `prepare`: exact, skipped and restored at each step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("accelerate")

from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin

import penstock
import torch
from penstock.errors import UsageError
from penstock.torch import DataLoader, StepLoader
from tests.trainers.scenario import (
    COUNT,
    EPOCHS,
    GLOBAL,
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


@pytest.fixture(scope="module")
def expected(data: Path) -> list[list[Numbers]]:
    return list_expected(data)


def prepare(data: Path, **options: Any) -> tuple[StepLoader, Any]:
    loader = make_loader(StepLoader, data)
    return loader, Accelerator(cpu=True, **options).prepare(loader)


def list_batches(batches: Any) -> list[Numbers]:
    return [read_numbers(batch["x"]) for batch in batches]


def test_three_epochs(data: Path, expected: list[list[Numbers]]) -> None:
    loader, prepared = prepare(data)
    assert len(prepared) == STEPS
    assert len(loader.dataset) == COUNT
    assert [list_batches(prepared) for _ in range(EPOCHS)] == expected


def test_skip_at_every_step(data: Path, expected: list[list[Numbers]]) -> None:
    """`skip_first_batches` in the epoch that was named, and the whole epoch after it."""
    for stop in list_stops():
        epoch, step = divmod(stop, STEPS)
        loader, prepared = prepare(data)
        prepared.set_epoch(epoch)
        assert list_batches(skip_first_batches(prepared, step)) == expected[epoch][step:]
        assert loader.counters().batches == STEPS - step  # nothing else was read
        if epoch + 1 < EPOCHS:
            prepared.set_epoch(epoch + 1)
            assert list_batches(prepared) == expected[epoch + 1]


@pytest.mark.parametrize("named", [False, True], ids=["epochs from 0", "epochs named"])
def test_a_checkpoint_holds_the_loader(
    named: bool, folder: Path, data: Path, expected: list[list[Numbers]]
) -> None:
    """`register_for_checkpointing` resumes exactly, though accelerate holds a batch back, and
    whether the loop goes on counting epochs or begins at 0."""
    for stop in list_stops():
        accelerator = Accelerator(cpu=True)
        loader = make_loader(StepLoader, data)
        prepared = accelerator.prepare(loader)
        accelerator.register_for_checkpointing(loader)
        seen: list[Numbers] = []
        while len(seen) < stop:
            for batch in prepared:
                seen.append(read_numbers(batch["x"]))
                if len(seen) == stop:
                    break
        accelerator.save_state(str(folder / f"state-{stop}"))
        accelerator.wait_for_everyone()
        assert seen == list_rest(expected, 0)[:stop]

        accelerator = Accelerator(cpu=True)
        loader = make_loader(StepLoader, data)
        prepared = accelerator.prepare(loader)
        accelerator.register_for_checkpointing(loader)
        accelerator.load_state(str(folder / f"state-{stop}"))
        rest: list[Numbers] = []
        for epoch in range(stop // STEPS, EPOCHS):
            if named:
                prepared.set_epoch(epoch)
            rest += list_batches(prepared)
        assert rest == list_rest(expected, stop), stop


def test_weights_through_prepare_and_checkpoints(folder: Path, data: Path) -> None:
    """Weighed samples, and weights that the loop hands in between epochs, are those of our own
    loader, from a checkpoint too."""
    weights, later = np.arange(COUNT) % 5, np.arange(COUNT)[::-1] % 7
    expected = []
    own = make_loader(DataLoader, data, weights)
    for epoch in range(EPOCHS):
        if epoch == 1:
            own.set_weights(later)
        expected.append([read_numbers(batch["x"]) for batch in own])
    if RANKS == 1:
        drawn = np.bincount(np.concatenate(expected[0]), minlength=COUNT)[weights == 0]
        assert not drawn.any()
    for stop in (1, STEPS + 1):
        accelerator = Accelerator(cpu=True)
        loader = make_loader(StepLoader, data, weights)
        prepared = accelerator.prepare(loader)
        accelerator.register_for_checkpointing(loader)
        seen: list[Numbers] = []
        while len(seen) < stop:
            if len(seen) == STEPS:
                loader.loader.set_weights(later)
            for batch in prepared:
                seen.append(read_numbers(batch["x"]))
                if len(seen) == stop:
                    break
        assert seen == list_rest(expected, 0)[:stop]
        accelerator.save_state(str(folder / f"weighed-{stop}"))
        accelerator.wait_for_everyone()
        accelerator = Accelerator(cpu=True)
        loader = make_loader(StepLoader, data, weights)
        prepared = accelerator.prepare(loader)
        accelerator.register_for_checkpointing(loader)
        accelerator.load_state(str(folder / f"weighed-{stop}"))
        rest: list[Numbers] = []
        for epoch in range(stop // STEPS, EPOCHS):
            if epoch == 1 and stop < STEPS:
                loader.loader.set_weights(later)
            rest += list_batches(prepared)
        assert rest == list_rest(expected, stop), stop


def test_a_state_within_another_loop(data: Path) -> None:
    """The batch that is held back is that of the loader which is asked, whatever runs beside it."""
    accelerator = Accelerator(cpu=True)
    training, other = make_loader(StepLoader, data), make_loader(StepLoader, data)
    prepared, evaluated = accelerator.prepare(training, other)
    for number, _ in enumerate(prepared, 1):
        for _ in evaluated:
            assert training.state_dict()["step"] == number % STEPS
            break
        state = training.state_dict()
        assert (state["epoch"], state["step"]) == divmod(number, STEPS)


def test_steps_of_the_optimizer_are_those_of_a_torch_loader(data: Path) -> None:
    """The last batch of an epoch is known: gradients of three batches do not wait for more."""

    def count_steps(loader: Any) -> list[int]:
        plugin = GradientAccumulationPlugin(num_steps=3)
        accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
        prepared = accelerator.prepare(loader)
        steps = []
        for _ in range(2):
            for number, _ in enumerate(prepared):
                with accelerator.accumulate():
                    if accelerator.sync_gradients:
                        steps.append(number)
        return steps

    rows = [take_number({"data": [i]}) for i in range(COUNT)]
    plain = torch.utils.data.DataLoader(rows, GLOBAL // RANKS)  # type: ignore[arg-type]
    ours = count_steps(make_loader(StepLoader, data))
    assert ours == count_steps(plain)
    assert ours[-1] == STEPS - 1


def test_a_loader_that_is_not_prepared_is_told(data: Path) -> None:
    """accelerate passes it through; the batches are right."""
    loader = Accelerator(cpu=True).prepare(make_loader(DataLoader, data))
    with pytest.warns(UserWarning, match=r"prepare a penstock\.torch\.StepLoader instead"):
        assert len(list(loader)) == STEPS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(prepare(data)[1])) == STEPS


@pytest.mark.skipif(STEPS < 3, reason="epochs are too short to be cut")
def test_a_repeated_beginning_is_told(data: Path) -> None:
    """A loop that cuts epochs short and does not name them gets the same batches again."""
    _, prepared = prepare(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(prepared))
    with pytest.warns(UserWarning, match="epoch 0 begins again after . of its steps"):
        next(iter(prepared))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once
        next(iter(prepared))
        _, prepared = prepare(data)
        for epoch in range(EPOCHS):
            prepared.set_epoch(epoch)
            next(iter(prepared))


def test_states_after_epochs_that_were_broken_off(data: Path) -> None:
    """accelerate remembers walks that were not taken to their end."""
    loader, prepared = prepare(data)
    for epoch in range(EPOCHS):
        prepared.set_epoch(epoch)
        for number, _ in enumerate(prepared, 1):
            state = loader.state_dict()
            assert (state["epoch"], state["step"]) == (epoch, number)
            if number == 2:
                break


@pytest.mark.skipif(RANKS > 1, reason="of one process")
def test_dealing_to_other_numbers_of_processes_is_refused(data: Path) -> None:
    """Also where the batches of this rank would be among those that it is given."""
    Accelerator(cpu=True)
    loader = make_loader(StepLoader, data, place=penstock.Place(0, 1))
    dealt = prepare_data_loader(loader, num_processes=4, process_index=0)
    with pytest.raises(UsageError, match="accelerate has 4 processes"):
        list(dealt)
    configuration = DataLoaderConfiguration(use_stateful_dataloader=True)
    with pytest.raises(UsageError, match="use_stateful_dataloader"):
        list(prepare(data, dataloader_config=configuration)[1])


@pytest.mark.skipif(RANKS == 1, reason="on one rank nothing is divided")
@pytest.mark.parametrize("option", ["split_batches"])
def test_other_dealings_are_refused(option: str, data: Path) -> None:
    configuration = DataLoaderConfiguration(**{option: True})
    with pytest.raises(UsageError, match="split_batches"):
        list(prepare(data, dataloader_config=configuration)[1])


def test_two_ranks(run_on_two_ranks: Callable[[str], None]) -> None:
    run_on_two_ranks(__file__)
