"""Keras 3 on torch: fit draws batch numbers at random, looks ahead, and resumes by epoch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")  # its default is TensorFlow
keras = pytest.importorskip("keras")

import penstock  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from tests.trainers import drives, scenario  # noqa: E402

pytestmark = pytest.mark.usefixtures("group")


class Witness(keras.Model):  # type: ignore[misc]
    """A model that writes down what it is trained on."""

    def __init__(self, batches: list[list[int]], built: bool = False) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self._see = batches.append
        self.compile(optimizer="sgd", loss=None if built else "mse")
        if built:
            self(keras.ops.zeros((1, 1)))

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        assert (x == y).all()
        self._see(scenario.read_numbers(x))
        return {}


def pair(sample: dict[str, Any]) -> tuple[Any, Any]:
    value = np.array([sample["data"][0]], np.float32)
    return value, value


def make_loader(data: Path, **options: Any) -> DataLoader:
    return scenario.make_loader(DataLoader, data, **({"decode": pair} | options))


def list_expected(data: Path) -> list[list[int]]:
    return scenario.list_rest(scenario.list_expected(data), 0)


@pytest.mark.parametrize("built", [False, True])
def test_the_sequence_is_that_of_penstock(built: bool, data: Path) -> None:
    """Keras takes a first batch of a model that is not built; it is given again."""
    given: list[list[int]] = []
    batches = penstock.keras.Data(make_loader(data))
    assert len(batches) == scenario.STEPS
    Witness(given, built).fit(batches, epochs=3, verbose=0)
    assert given == list_expected(data)


def test_ranks_share_each_epoch(data: Path) -> None:
    """`fit` knows no ranks; the loader has them of the process group, or by `place=`."""

    def drive(loader: DataLoader, state: None, count: int) -> tuple[list[list[int]], None]:
        given: list[list[int]] = []
        batches = penstock.keras.Data(loader)
        Witness(given).fit(batches, epochs=scenario.EPOCHS, verbose=0)
        return given, state

    drives.check_sequence(drive, data, decode=pair)
    drives.check_places(drive, data, decode=pair)


@pytest.mark.parametrize("done", [1, 2])
def test_a_run_is_resumed_by_epoch(done: int, data: Path) -> None:
    """Another process goes on with the epoch after, also where this one was killed within it."""
    states: list[dict[str, Any]] = []
    given: list[list[int]] = []

    class Killed(Exception):
        pass

    def save(epoch: int, logs: Any) -> None:
        states.append(loader.state_dict())

    def kill(batch: int, logs: Any) -> None:
        if len(given) == done * scenario.STEPS + 5:
            raise Killed

    loader = make_loader(data)
    callback = keras.callbacks.LambdaCallback(on_epoch_end=save, on_train_batch_end=kill)
    with pytest.raises(Killed):
        Witness(given).fit(penstock.keras.Data(loader), epochs=3, verbose=0, callbacks=[callback])
    assert len(states) == done
    loader, rest = make_loader(data), []
    loader.load_state_dict(states[-1])
    batches = penstock.keras.Data(loader)
    Witness(rest).fit(batches, initial_epoch=done, epochs=3, verbose=0)
    assert rest == list_expected(data)[done * scenario.STEPS :]


def test_an_epoch_that_was_cut_is_begun_again(data: Path) -> None:
    """A second fit after an interruption does not go on in the middle."""
    given: list[list[int]] = []

    def stop(batch: int, logs: Any) -> None:
        model.stop_training = len(given) == scenario.STEPS + 5

    model = Witness(given)
    batches = penstock.keras.Data(make_loader(data))
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    model.fit(batches, epochs=2, verbose=0, callbacks=[callback])
    expected = list_expected(data)
    assert given == expected[: scenario.STEPS + 5]
    given.clear()
    model.fit(batches, epochs=2, verbose=0)
    assert given == expected[scenario.STEPS :]


def test_steps_per_epoch_goes_on_in_the_epoch(data: Path) -> None:
    """Eight epochs of Keras are two of the loader."""
    given: list[list[int]] = []
    batches = penstock.keras.Data(make_loader(data))
    Witness(given).fit(batches, steps_per_epoch=4, epochs=8, verbose=0)
    assert given == list_expected(data)[: 2 * scenario.STEPS]


def test_what_cannot_be_exact_is_refused(data: Path) -> None:
    """A state from the middle of an epoch, and what is no loader."""
    loader = make_loader(data)
    walk = iter(loader)
    for _ in range(7):
        next(walk)
    state = loader.state_dict()
    loader = make_loader(data)
    loader.load_state_dict(state)
    with pytest.raises(UsageError, match=r"at step 7: load a state of an epoch end"):
        Witness([]).fit(penstock.keras.Data(loader), verbose=0)
    with pytest.raises(UsageError, match=r"penstock.keras.Data was given a ndarray"):
        penstock.keras.Data(np.zeros(3))
