"""The program that test_worlds starts as every process: it takes part in some groups, one after the
other, with one loader, which goes on in each where the last one stood."""

from __future__ import annotations

import itertools
import json
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist

import penstock


def main() -> None:
    """For each group, [steps]: the samples of each, and where the run stands then."""
    told = json.loads(sys.argv[1])
    number, path, output = told["number"], told["path"], Path(told["output"])
    data = np.load(path, mmap_mode="r")
    with penstock.Loader(
        penstock.open(path, index="memory"),
        cache=penstock.Cache(ram_bytes=told["ram_bytes"], listen="127.0.0.1", host=str(number % 2)),
        **told["loader"],
    ) as loader:
        for group, (members, steps) in enumerate(told["groups"]):
            if number not in members:
                continue
            store = dist.FileStore(str(output / f"store-{group}"), len(members))
            rank = members.index(number)
            dist.init_process_group(
                "gloo",
                store=store,
                rank=rank,
                world_size=len(members),
                timeout=timedelta(seconds=60),
            )
            state = output / f"{group - 1}.json"
            if state.exists():
                loader.load_state_dict(json.loads(state.read_text()))
            seen = []
            for batch in itertools.islice(loader, steps):
                assert (batch["data"] == data[batch.ids]).all()
                seen.append(batch.ids.tolist())
            (output / f"{group}-{rank}.json").write_text(json.dumps(seen))
            dist.barrier()
            if rank == 0:
                (output / f"{group}.json").write_text(json.dumps(loader.state_dict()))
            dist.barrier()
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
