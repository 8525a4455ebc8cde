"""Training through penstock: alone, until it crashes, and resumed on two ranks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
import torch
from torch import nn

from .images import Decode, open_images

Keys = list[str]
"""The samples of one batch."""


@dataclass(frozen=True)
class Task:
    """A model and its data; `classes` is 0 where there are no labels: then an autoencoder."""

    train: Path
    test: Path
    side: int
    channels: int
    classes: int
    epochs: int
    global_batch: int
    seed: int = 1

    def loader(self, rank: int = 0, world_size: int = 1) -> penstock.Loader:
        """The training data as one rank sees it."""
        return penstock.Loader(
            open_images(self.train),
            global_batch_size=self.global_batch,
            seed=self.seed,
            decode=Decode(self.side, self.channels),
            rank=rank,
            world_size=world_size,
        )


@dataclass(frozen=True)
class Step:
    """One finished step: `loss` is the rank's sum over its samples."""

    epoch: int
    step: int
    keys: Keys
    broken: Keys
    loss: float


class Trainer:
    """A model, its optimizer and its loader; what a checkpoint holds."""

    def __init__(self, task: Task, rank: int = 0, world_size: int = 1) -> None:
        torch.manual_seed(task.seed)
        self.task = task
        self.model = network(task)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.loader = task.loader(rank, world_size)
        self.world_size = world_size

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])

    def steps(self) -> Iterator[Step]:
        """Trains from where the loader stands to the last epoch."""
        while self.loader.epoch < self.task.epochs:
            epoch, step = self.loader.epoch, self.loader.state_dict()["step"]
            for number, batch in enumerate(self.loader, step):
                loss = self._learn(batch)
                pairs = zip(batch["key"], batch["whole"], strict=True)
                broken = [key for key, whole in pairs if not whole]
                yield Step(epoch, number, batch["key"], broken, loss)

    def _learn(self, batch: dict[str, Any]) -> float:
        """One step; several ranks sum their gradients, so that the global batch alone counts."""
        loss = losses(self.model, self.task, batch).sum()
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self.world_size > 1:
                torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= self.task.global_batch
        self.optimizer.step()
        return float(loss.detach())


def network(task: Task) -> nn.Module:
    """A small CNN that halves the image down to 4 x 4, and a head: classes, or the image again."""
    layers: list[nn.Module] = [nn.Conv2d(task.channels, 32, 3, padding=1), nn.ReLU()]
    side, width = task.side, 32
    while side > 4:
        layers += [nn.Conv2d(width, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        side, width = side // 2, 48
    if task.classes:
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * side * side, task.classes))
    layers += [nn.Conv2d(width, 16, 1)]  # the code: 16 x 4 x 4 numbers
    width = 16
    while side < task.side:
        layers += [nn.ConvTranspose2d(width, 32, 2, stride=2), nn.ReLU()]
        side, width = side * 2, 32
    return nn.Sequential(*layers, nn.Conv2d(width, task.channels, 3, padding=1))


def losses(model: nn.Module, task: Task, batch: dict[str, Any]) -> torch.Tensor:
    """Each sample's loss; 0 for those that could not be decoded."""
    images = torch.from_numpy(batch["image"]).float() / 255
    found = model(images)
    if task.classes:
        labels = torch.from_numpy(batch["label"])
        each = nn.functional.cross_entropy(found, labels, reduction="none")
    else:
        each = (found - images).square().mean((1, 2, 3))
    return each * torch.from_numpy(batch["whole"])


@torch.no_grad()
def score(model: nn.Module, task: Task) -> float:
    """On the held-out images: the share that is classified right, or the mean squared error."""
    loader = penstock.Loader(
        open_images(task.test),
        batch_size=256,
        shuffle="none",
        decode=Decode(task.side, task.channels),
        rank=0,
        world_size=1,
    )
    total, count = 0.0, 0
    for batch in loader:
        if task.classes:
            right = model(torch.from_numpy(batch["image"]).float() / 255).argmax(1).numpy()
            total += float(((right == batch["label"]) & batch["whole"]).sum())
        else:
            total += float(losses(model, task, batch).sum())
        count += int(batch["whole"].sum())
    return total / max(count, 1)


# -- in processes of their own ---------------------------------------------------------------------


def crashing(task: Task, folder: Path, saved_at: int, killed_at: int) -> None:
    """Trains, saves a checkpoint after step `saved_at`, and is killed after `killed_at`."""
    torch.set_num_threads(1)
    trainer = Trainer(task)
    with open(folder / "crashed.jsonl", "w") as ledger:
        for number, step in enumerate(trainer.steps(), 1):
            print(json.dumps(step.keys), file=ledger, flush=True)
            if number == saved_at:
                torch.save(trainer.state(), folder / "checkpoint.pt")
            if number == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)


def resuming(task: Task, folder: Path, rank: int, world_size: int) -> None:
    """One rank of several that continue from the checkpoint."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/rendezvous", rank=rank, world_size=world_size
    )
    trainer = Trainer(task, rank, world_size)
    trainer.restore(torch.load(folder / "checkpoint.pt"))
    with open(folder / f"resumed-{rank}.jsonl", "w") as ledger:
        for step in trainer.steps():
            print(json.dumps(step.keys), file=ledger, flush=True)
    if rank == 0:
        torch.save(trainer.state(), folder / "final.pt")
    torch.distributed.destroy_process_group()


def run_processes(calls: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> list[int | None]:
    """Runs each call in a fresh process; returns the exit codes. Ctrl-C ends them all."""
    context = torch.multiprocessing.get_context("spawn")
    children = [
        context.Process(target=call, args=arguments, daemon=True) for call, arguments in calls
    ]
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: only the parent reacts
    try:
        for child in children:
            child.start()
    finally:
        signal.signal(signal.SIGINT, previous)
    try:
        for child in children:
            child.join()
    finally:
        for child in children:
            child.kill()
    return [child.exitcode for child in children]


def ledger(path: Path) -> list[Keys]:
    """The batches that a process has trained on."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def merged(parts: list[list[Keys]]) -> list[Keys]:
    """Global batches from those of the ranks: rank r has every n-th sample from the r-th on."""
    batches = []
    for shares in zip(*parts, strict=True):
        batch = [""] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            batch[rank :: len(shares)] = share
        batches.append(batch)
    return batches
