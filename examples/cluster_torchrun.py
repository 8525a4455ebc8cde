"""Train with data that the hosts of a job keep in their memory; start the same on every host:

    torchrun --nproc-per-node=2 cluster_torchrun.py /shared/storage/points.npy

The first epoch reads every byte from storage once, whichever host wants it; later ones read none.
`--hosts 2` makes ranks of one machine behave as if they were on two: they ask each other over TCP.
"""

import argparse
from pathlib import Path

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import penstock
import torch

SAMPLES, WIDTH, EPOCHS = 4000, 64, 2


def write(path: Path) -> None:
    """Points of y = mean(x), whose last column is y."""
    x = np.random.default_rng(0).standard_normal((SAMPLES, WIDTH), np.float32)
    x[:, -1] = x[:, :-1].mean(axis=1)
    np.save(path, x)


def totals(loader: penstock.Loader) -> torch.Tensor:
    """The bytes from storage, this host's memory and the other hosts; how long this rank waited."""
    stats = loader.stats()
    names = ("bytes", "ram_bytes", "peer_bytes", "stall_ns")
    return torch.tensor([stats.get(name, 0) for name in names])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("data", type=Path, help="an .npy file, written where it is missing")
    arguments.add_argument("--hosts", type=int, help="so many hosts are pretended")
    given = arguments.parse_args()
    dist.init_process_group("gloo")  # before the loader is iterated: ranks meet through its store
    rank = dist.get_rank()
    if rank == 0 and not given.data.exists():
        write(given.data)
    dist.barrier()

    host = None if given.hosts is None else f"host {rank % given.hosts}"
    cache = penstock.Cache(ram_bytes=256 << 20, cache_block_bytes=16 << 10, host=host)
    dataset = penstock.open(given.data, index="memory")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(WIDTH - 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with penstock.Loader(dataset, 50, seed=1, cache=cache, assignment="local") as loader:
        for epoch in range(EPOCHS):
            before = totals(loader)
            for batch in loader:
                points = torch.from_numpy(batch["data"])
                optimizer.zero_grad()
                loss = (model(points[:, :-1])[:, 0] - points[:, -1]).square().mean()
                loss.backward()
                optimizer.step()
            # Whoever is done goes on answering the other hosts: the loader stays open until all are
            spent = totals(loader) - before
            dist.all_reduce(spent)
            storage, ram, peer, stall_ns = spent.tolist()
            if rank == 0:
                print(
                    f"epoch {epoch}: {storage} bytes from storage, {ram / (ram + peer):.0%} of the "
                    f"samples in the memory of their rank's host, {loss.item():.4f} loss, ranks "
                    f"waited {stall_ns / 1e6 / dist.get_world_size():.1f} ms",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
