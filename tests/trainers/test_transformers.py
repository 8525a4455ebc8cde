"""transformers' Trainer with `attach`: the exact sequence, resumed at every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import numpy as np
import transformers

import penstock
import torch
from penstock.errors import UsageError
from penstock.torch import DataLoader, StepLoader
from tests.trainers.scenario import (
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


class Seen(torch.nn.Module):
    """A model that notes the numbers that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.batches: list[Numbers] = []

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        if self.training:
            self.batches.append(read_numbers(x))
        return {"loss": ((self.line(x / 125) - labels / 125) ** 2).mean()}


class StopAfter(transformers.TrainerCallback):
    """Save after a step, and stop."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step == self._step:
            control.should_save = control.should_training_stop = True
        return control


def train(
    folder: Path,
    data: Path,
    *,
    stop: int | None = None,
    resume: Path | None = None,
    loader: Any = None,
    **arguments: Any,
) -> tuple[list[Numbers], Any]:
    """Train for three epochs, or to a step, and return the batches and the trainer's state."""
    options: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": GLOBAL // RANKS,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "save_only_model": False,
    }
    model = Seen()
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**options | arguments),
        callbacks=[] if stop is None else [StopAfter(stop)],
    )
    penstock.transformers.attach(trainer, loader or make_loader(StepLoader, data))
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return model.batches, trainer.state


@pytest.fixture(scope="module")
def expected(data: Path) -> list[list[Numbers]]:
    return list_expected(data)


def test_three_epochs(folder: Path, data: Path, expected: list[list[Numbers]]) -> None:
    batches, state = train(folder, data)
    assert batches == list_rest(expected, 0)
    assert state.global_step == EPOCHS * STEPS
    assert state.max_steps == EPOCHS * STEPS


def test_resume_at_every_step(folder: Path, data: Path, expected: list[list[Numbers]]) -> None:
    """Nothing is repeated or left out, whatever the step."""
    for step in list_stops():
        place = folder / str(step)
        begun, _ = train(place, data, stop=step)
        resumed, state = train(place, data, resume=place / f"checkpoint-{step}")
        assert begun == list_rest(expected, 0)[:step]
        assert resumed == list_rest(expected, step), step
        assert state.global_step == EPOCHS * STEPS


def test_resume_of_a_resumed_run(folder: Path, data: Path, expected: list[list[Numbers]]) -> None:
    """Twice in one epoch, and once more in the next."""
    last, seen = None, []
    for step in (18, 23, 40):
        batches, _ = train(folder, data, stop=step, resume=last)
        seen += batches
        last = folder / f"checkpoint-{step}"
    seen += train(folder, data, resume=last)[0]
    assert seen == list_rest(expected, 0)


def test_steps_of_the_optimizer_are_those_of_a_torch_loader(folder: Path, data: Path) -> None:
    """With gradients of three batches the last group of an epoch is smaller, and steps."""
    rows = [take_number({"data": [i]}) for i in range(125)]
    plain = transformers.Trainer(
        model=Seen(),
        args=transformers.TrainingArguments(
            output_dir=str(folder / "plain"),
            num_train_epochs=1,
            per_device_train_batch_size=GLOBAL // RANKS,
            gradient_accumulation_steps=3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=rows,
    )
    plain.train()
    ours = train(folder, data, gradient_accumulation_steps=3, num_train_epochs=1)[1]
    assert ours.global_step == plain.state.global_step == -(-STEPS // 3)


def test_what_does_not_fit_is_refused(folder: Path, data: Path) -> None:
    with pytest.raises(UsageError, match=r"give a penstock\.torch\.StepLoader"):
        train(folder, data, loader=make_loader(DataLoader, data))
    with pytest.raises(UsageError, match="per_device_train_batch_size is 5"):
        train(folder, data, per_device_train_batch_size=5)
    with pytest.raises(UsageError, match="ignore_data_skip"):
        train(folder, data, ignore_data_skip=True)


def test_two_ranks(run_on_two_ranks: Callable[[str], None]) -> None:
    run_on_two_ranks(__file__)


@pytest.mark.parametrize("style", ["rows", "flat"])
def test_documents_of_packed_rows_do_not_see_each_other(style: str, tmp_path: Path) -> None:
    """A model gives each document of a row the logits that it gives it alone."""
    (np.arange(1600) % 50).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    documents = penstock.open(tmp_path / "tokens.bin", dtype="uint16", eos=0, index="memory")
    sizes: dict[str, int] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(vocab_size=64, num_attention_heads=2, **sizes)
    model = transformers.LlamaForCausalLM(config).eval()
    for batch in DataLoader(penstock.pack(documents, 128, style=style), 3, shuffle=True, seed=0):
        given = {name: batch[name] for name in ("input_ids", "position_ids")}
        with torch.no_grad():
            logits = model(**given, use_cache=False).logits.flatten(0, 1)
            bounds = batch["cu_seqlens"].tolist()
            for first, last in itertools.pairwise(bounds):
                alone = model(batch["input_ids"].reshape(1, -1)[:, first:last]).logits[0]
                torch.testing.assert_close(logits[first:last], alone)
