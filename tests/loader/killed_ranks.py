"""A rank of a run over a view of test_weighing: a line of each step, with ids and state.

`python -m tests.loader.killed_ranks JSON`; the line is written at once, so that a kill leaves whole
lines but for the last.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from tests.dataset.test_weighing import make_view


def make_dataset(folder: Path, job: dict[str, Any]) -> Any:
    """Make the dataset of a job, the same in every process."""
    random = np.random.default_rng(job["seed"])
    views = [
        make_view(folder, random, job["on_parts"], job["mixed"], job["on_top"]).dataset,
        make_view(folder, random, [], job["mixed"], job["later"] or []).dataset,
    ]
    if job["later"] is None:
        return views[0]
    return penstock.curriculum([(0, views[0]), (job["start"], views[1])], unit="steps")


def main() -> None:
    job = json.loads(sys.argv[1])
    dataset = make_dataset(Path(job["folder"]), job)
    loader = penstock.Loader(dataset, **job["options"], rank=job["rank"], world_size=job["world"])
    step = job["step"]
    if job["state"] is not None:
        loader.load_state_dict(job["state"])
    with open(job["log"], "wb", buffering=0) as log:
        while step < job["steps"]:
            for batch in loader:
                stage, source = (batch.get(name, batch.ids * 0) for name in ("stage", "source"))
                drawn = np.stack([stage, source, batch.ids], 1).astype(np.int64).tolist()
                assert np.array_equal(batch["data"][:, 0], batch.ids.astype(np.int64))
                step += 1
                line = {"step": step, "drawn": drawn, "state": loader.state_dict()}
                log.write(json.dumps(line).encode() + b"\n")
                os.write(1, b".")
                if step == job["steps"]:
                    break
    loader.close()


if __name__ == "__main__":
    main()
