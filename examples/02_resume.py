"""Stop in the middle of an epoch, and go on with another number of ranks: the same batches."""

import json
import tempfile
from pathlib import Path

import numpy as np

import penstock


def loaders(path: Path, world_size: int) -> list[penstock.Loader]:
    """One loader for each rank; in real life each has a process of its own."""
    dataset = penstock.open(path, record_bytes=64)
    ranks = range(world_size)
    return [
        penstock.Loader(dataset, global_batch_size=120, seed=7, rank=rank, world_size=world_size)
        for rank in ranks
    ]


def global_batch(parts: list[penstock.Batch]) -> list[int]:
    """Rank r has every n-th sample of a step, from the r-th on."""
    batch = np.empty(sum(len(part.ids) for part in parts), np.uint64)
    for rank, part in enumerate(parts):
        batch[rank :: len(parts)] = part.ids
    return batch.tolist()


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "records.bin"
    path.write_bytes(bytes(64 * 1000))

    (alone,) = loaders(path, 1)
    uninterrupted = [global_batch([batch]) for batch in alone]

    two = loaders(path, 2)
    resumed = []
    for parts in zip(*two, strict=True):
        resumed.append(global_batch(parts))
        if len(resumed) == 4:
            break
    saved = json.dumps(two[1].state_dict())  # equal on all ranks: any may save it
    print(f"stopped after {len(resumed)} of {len(two[0])} steps: step {json.loads(saved)['step']}")

    three = loaders(path, 3)
    for loader in three:
        loader.load_state_dict(json.loads(saved))
    resumed += [global_batch(parts) for parts in zip(*three, strict=True)]
    print(f"2 ranks, then 3: {len(resumed)} global batches")
    print(f"the same as 1 rank alone: {resumed == uninterrupted}")

    for loader in [alone, *two, *three]:
        loader.close()
