"""python -m benchmarks.lerobot_rival: LeRobot's own dataset, in a process of its own, for
`benchmarks.lerobot`.

It reads lines of {"path", "deltas", "workers", "samples", "ids"} and answers each, in a new process
that has imported all, by {"seconds", "samples"}: from the first batch of 32 of a shuffled
DataLoader on; or, with ids, by {"sums"} of these samples' values.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
import zlib
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np

BATCH = 32


class _Absent(types.ModuleType):
    """torchvision, which does not load beside this torch: LeRobot names it, and decodes without."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _import_lerobot() -> Any:
    import datasets  # noqa: F401 - it looks whether torchvision is there

    for name in ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2"):
        module = sys.modules[f"torchvision{name}"] = _Absent(f"torchvision{name}")
        module.__path__, module.__spec__ = [], ModuleSpec(module.__name__, None)
    sys.modules["torchvision.transforms"].v2 = sys.modules["torchvision.transforms.v2"]  # type: ignore[attr-defined]
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        made = _import_lerobot()
    except ImportError as error:
        print(json.dumps({"absent": f"LeRobot is not there ({error})"}), flush=True)
        return
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            print(json.dumps(_answer(made, json.loads(line))), flush=True)
            os._exit(0)  # not waiting for workers
        if os.waitpid(child, 0)[1]:
            return


def _answer(made: Any, asked: dict[str, Any]) -> dict[str, Any]:
    import torch

    data = made(
        "own/data",
        root=asked["path"],
        delta_timestamps=asked["deltas"],
        video_backend="torchcodec",
    )
    if asked.get("ids"):
        return {"sums": [sum_values(data[one], asked["deltas"]) for one in asked["ids"]]}
    workers = asked["workers"]
    options = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        data, batch_size=BATCH, shuffle=True, num_workers=workers, **options
    )
    batches = iter(loader)
    next(batches)
    began, samples = time.perf_counter(), 0
    for batch in batches:
        samples += len(batch["index"])
        if samples >= asked["samples"]:
            break
    return {"seconds": time.perf_counter() - began, "samples": samples}


def sum_values(sample: Any, deltas: Any) -> int:
    """Sum the values of a sample that have times, frames as 8 bits."""
    total = 0
    for name in sorted(deltas):
        value = np.asarray(sample[name])
        if "images" in name and value.dtype != np.uint8:
            value = np.round(value * 255).astype(np.uint8)
        for column in (value, np.asarray(sample[f"{name}_is_pad"])):
            total = zlib.crc32(np.ascontiguousarray(column), total)
    return total


if __name__ == "__main__":
    main()
