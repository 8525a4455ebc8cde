"""Ranks of a mesh that train by torchtitan's loader: save by DCP, or load and go on.

    torchrun titan_ranks.py FOLDER DP TP save|load STEPS

Writes the batches of each rank to FOLDER/<what>-<dp>x<tp>-<rank>.json.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import penstock
import torch

TOKENS, WINDOW, GLOBAL = 1001, 8, 8


def main() -> None:
    folder, dp, tp, what, steps = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    coordinate = rank // int(tp)  # the mesh is dp x tp
    config = penstock.torchtitan.Loader.Config(
        dataset_path=f"{folder}/tokens.bin", options={"dtype": "uint16"}, seed=3
    )
    loader = config.build(
        dp_world_size=int(dp),
        dp_rank=coordinate,
        tokenizer=None,
        seq_len=WINDOW,
        local_batch_size=GLOBAL // int(dp),
        snapshot_every_n_steps=None,
    )
    states = {"dataloader": loader}
    if what == "load":
        dcp.load(states, checkpoint_id=f"{folder}/checkpoint")
    batches = []
    for inputs, labels in islice(loader, int(steps)):
        assert inputs["input"].shape == labels.shape == (GLOBAL // int(dp), WINDOW)
        assert inputs["input"].dtype == labels.dtype == torch.int64
        assert (inputs["input"][:, 1:] == labels[:, :-1]).all()
        batches.append(inputs["input"][:, 0].tolist())
    if what == "save":
        dcp.save(states, checkpoint_id=f"{folder}/checkpoint")
    Path(folder, f"{what}-{dp}x{tp}-{rank}.json").write_text(json.dumps(batches))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo may outlive Python, and torch aborts then


def write_tokens(folder: Path) -> None:
    np.arange(TOKENS, dtype=np.uint16).tofile(folder / "tokens.bin")


if __name__ == "__main__":
    main()
