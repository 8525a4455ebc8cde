"""Two ranks that save through DCP in an object store, and load: python -m
tests.checkpoint.dcp_programs_objects URL PORT"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import torch
from penstock.checkpoint.dcp import Reader, Storage

SIZE = 5 << 20
"""Size of a replicated tensor that both ranks write a part of."""


def work(rank: int, url: str, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    with Storage(url, keep=2) as storage:
        for step in range(3):
            state = {"w": torch.full((SIZE,), float(step)), f"own{rank}": torch.ones(5) * rank}
            writer = storage.writer(step, loader={"at": step})
            dcp.async_save(state, storage_writer=writer).result()
    reader = Reader(url)
    found = {"w": torch.zeros(SIZE), f"own{1 - rank}": torch.zeros(5)}
    dcp.load(found, storage_reader=reader)
    assert torch.equal(found["w"], torch.full((SIZE,), 2.0))
    assert torch.equal(found[f"own{1 - rank}"], torch.ones(5) * (1 - rank))
    assert reader.loader == {"at": 2}
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo may outlive Python, and torch aborts then


if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, tuple(sys.argv[1:]), 2, start_method="spawn")
