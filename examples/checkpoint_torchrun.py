"""Train, be killed, and go on with another number of ranks: the same model to the last bit.

    torchrun --nproc-per-node=2 checkpoint_torchrun.py /shared/run --killed-at 27
    torchrun --nproc-per-node=3 checkpoint_torchrun.py /shared/run

Model, optimizer and the loader's place are in one checkpoint, which is committed whole or not at
all. Gradients are summed in the order of the global batch, which is the same on any number of
ranks; where they are summed rank by rank, as DDP does, results differ in the last bits.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

import penstock
import torch
from penstock.checkpoint import Checkpoints

SAMPLES, WIDTH, BATCH, STEPS, EVERY = 480, 16, 24, 60, 5


def write(path: Path) -> None:
    """Points of y = mean(x), whose last column is y."""
    x = np.random.default_rng(0).standard_normal((SAMPLES, WIDTH), np.float32)
    x[:, -1] = x[:, :-1].mean(axis=1)
    np.save(path, x)


def gradient(model: torch.nn.Module, row: torch.Tensor) -> torch.Tensor:
    """The gradient of one sample, in one dimension."""
    loss = (model(row[:-1]) - row[-1:]).square().sum()
    parts = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def global_batch(part: torch.Tensor) -> torch.Tensor:
    """Rows of all ranks, in the order of the batch: rank r has each n-th row from the r-th on."""
    ranks = dist.get_world_size()
    parts = [torch.empty_like(part) for _ in range(ranks)]
    dist.all_gather(parts, part)
    whole = torch.empty(ranks * len(part), *part.shape[1:], dtype=part.dtype)
    for rank, each in enumerate(parts):
        whole[rank::ranks] = each
    return whole


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("folder", type=Path, help="for data and checkpoints")
    arguments.add_argument("--killed-at", type=int, help="this step ends all ranks by kill -9")
    given = arguments.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    data = given.folder / "points.npy"
    if dist.get_rank() == 0 and not data.exists():
        write(data)
    dist.barrier()

    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH - 1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    dataset = penstock.open(data, index="memory")
    loader = penstock.Loader(dataset, global_batch_size=BATCH, seed=1)
    step, seen = 0, ""
    with loader, Checkpoints(given.folder / "checkpoints", keep=2) as checkpoints:
        if found := checkpoints.latest():
            model.load_state_dict(found.state["model"])
            optimizer.load_state_dict(found.state["optimizer"])
            loader.load_state_dict(found.loader)
            step, seen = found.step, found.state["seen"]
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks begin after step {step}")

        while step < STEPS:
            for batch in loader:
                rows = torch.from_numpy(batch["data"])
                gradients = global_batch(torch.stack([gradient(model, row) for row in rows]))
                mean, at = gradients.sum(dim=0) / BATCH, 0
                for parameter in model.parameters():
                    parameter.grad = mean[at : at + parameter.numel()].view_as(parameter)
                    at += parameter.numel()
                optimizer.step()
                step += 1
                ids = global_batch(torch.from_numpy(batch.ids.astype(np.int64)))
                seen = hashlib.sha256(seen.encode() + ids.numpy().tobytes()).hexdigest()
                if step % EVERY == 0:
                    state: dict[str, Any] = {"model": model.state_dict(), "seen": seen}
                    state["optimizer"] = optimizer.state_dict()
                    checkpoints.save(step, state, loader=loader)
                if step == given.killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == STEPS:
                    break

    if dist.get_rank() == 0:
        moments = [value for each in optimizer.state.values() for value in each.values()]
        result = hashlib.sha256(seen.encode())
        for tensor in [*model.parameters(), *moments]:
            result.update(tensor.detach().numpy().tobytes())
        print(f"after step {step}: {result.hexdigest()[:16]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
