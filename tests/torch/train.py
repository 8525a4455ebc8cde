"""The ranks of test_ddp: a small model, trained by DistributedDataParallel."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import penstock
import torch
from penstock.torch.loader import DataLoader


class Rows(torch.utils.data.Dataset[Any]):
    """The records, as a dataset of torch's kind."""

    def __init__(self, path: str) -> None:
        self.rows = torch.from_file(path, size=Path(path).stat().st_size // 4).reshape(-1, 4)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor]:
        return i, self.rows[i]


def decode(sample: dict[str, Any]) -> tuple[int, Any]:
    number = int(sample["__key__"].rpartition("#")[2])
    return number, np.frombuffer(sample["data"], np.float32)


def made(kind: str, path: str, **arguments: Any) -> DataLoader:
    """A loader of the records, read by penstock or by a dataset of torch's kind."""
    if kind == "records":
        arguments |= {"dataset": penstock.open(path, record_bytes=16), "decode": decode}
    else:
        arguments |= {"dataset": Rows(path)}
    return DataLoader(shuffle=True, seed=7, global_batch_size=12, num_workers=1, **arguments)


def train(loader: DataLoader, steps: int | None) -> dict[str, Any]:
    """So many steps of the epoch, or all that are left: the samples and gradients of each."""
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    seen, grads = [], []
    for ids, rows in itertools.islice(loader, steps):
        model.zero_grad()
        model(rows).square().mean().backward()
        grads.append(model.module.weight.grad.flatten().tolist())
        seen.append(ids.tolist())
    return {"seen": seen, "grads": grads, "state": loader.state_dict(), "length": len(loader)}


def main() -> None:
    """For each kind of dataset: two steps, and the rest of the epoch with a loader that resumes."""
    path, output = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # ranks differ, as in many scripts: the order must not
    found = {}
    for kind in ("records", "torch"):
        first = train(made(kind, path), 2)
        resumed = made(kind, path)
        resumed.load_state_dict(first["state"])
        found[kind] = [first, train(resumed, None)]
    Path(output, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo may outlive Python, and torch aborts then


if __name__ == "__main__":
    main()
