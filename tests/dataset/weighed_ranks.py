"""A rank of a real process group that hands in weights: `-m tests.dataset.weighed_ranks JSON`.

It writes what it was told each time, the samples of the next epoch, and its state.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

import penstock
from penstock.errors import UsageError


def main() -> None:
    told = json.loads(sys.argv[1])
    rank, folder = told["rank"], Path(told["folder"])
    store = dist.FileStore(str(folder / "store"), told["world"])
    group: dict[str, Any] = {"rank": rank, "world_size": told["world"]}
    dist.init_process_group("gloo", store=store, timeout=timedelta(seconds=300), **group)
    data = penstock.open(folder / "rows.bin", dtype="i8", shape=(2,), index="memory")
    loader = penstock.Loader(data, 4, seed=1)
    found: dict[str, Any] = {"errors": [], "epochs": []}
    for weights in told["weights"]:
        try:
            loader.set_weights(np.array(weights[rank], float))
            found["errors"].append("")
        except UsageError as error:
            found["errors"].append(str(error))
        found["epochs"].append([int(row) for batch in loader for row in batch.ids])
    found["state"] = loader.state_dict()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo may outlive Python, and torch aborts then


if __name__ == "__main__":
    main()
