"""Ray Train starts the workers; the data are kept by the memory of the hosts that they are on:

    python cluster_ray.py /shared/storage/points.npy

In a worker the loader finds rank, world size and the other workers in the process group that Ray
has made: nothing of the loader is special to Ray.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import penstock
import torch


def train(config: dict[str, Any]) -> list[int]:
    """One worker; what the first one returns is in the result."""
    dataset = penstock.open(config["path"], index="memory")
    model = prepare_model(torch.nn.Linear(63, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cache = penstock.Cache(ram_bytes=256 << 20, cache_block_bytes=16 << 10)
    with penstock.Loader(dataset, 50, seed=1, cache=cache, assignment="local") as loader:
        read: list[int] = []  # bytes from storage, by epoch
        for epoch in range(2):
            for batch in loader:
                points = torch.from_numpy(batch["data"])
                optimizer.zero_grad()
                loss = (model(points[:, :-1])[:, 0] - points[:, -1]).square().mean()
                loss.backward()
                optimizer.step()
            # Whoever is done goes on answering the other hosts: the loader stays open until all are
            total = torch.tensor(loader.stats()["bytes"])
            dist.all_reduce(total)
            read.append(int(total) - sum(read))
            ray.train.report({"epoch": epoch, "loss": loss.item(), "storage_bytes": read[-1]})
    return read


if __name__ == "__main__":
    path = Path(sys.argv[1]).absolute()
    if not path.exists():
        x = np.random.default_rng(0).standard_normal((4000, 64), np.float32)
        x[:, -1] = x[:, :-1].mean(axis=1)
        np.save(path, x)
    result = TorchTrainer(
        train,
        train_loop_config={"path": str(path)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(path.parent / "ray")),
    ).fit()
    print("bytes from storage, by epoch:", result.return_value)
