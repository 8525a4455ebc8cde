"""DeepSpeed's engine: it is given no data; the position of the loader is in its `client_state`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
deepspeed = pytest.importorskip("deepspeed")

import torch.distributed as dist  # noqa: E402

import torch  # noqa: E402
from tests.trainers import drives  # noqa: E402

pytestmark = pytest.mark.usefixtures("group", "environment")


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """Variables of a launcher, and no kernels to compile: gloo alone reduces gradients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", os.environ.get("LOCAL_RANK", "0"))
        patch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", False)
        yield


@pytest.fixture
def drive(folder: Path) -> drives.Drive:
    """A drive whose state is the tag of a checkpoint."""

    def drive(loader: Any, tag: str | None, count: int) -> tuple[list[list[int]], str]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        config = {"train_micro_batch_size_per_gpu": loader.batch_size}
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        if tag is not None:
            _, client_state = engine.load_checkpoint(folder, tag)
            loader.load_state_dict(client_state["loader"])
        batches: list[list[int]] = []
        while len(batches) < count:
            for batch in loader:
                batches.append(drives.read_batch(batch))
                engine.backward(((engine(batch["x"]) - batch["labels"]) ** 2).mean())
                engine.step()
                if len(batches) == count:
                    break
        tag = f"steps-{engine.global_steps}"
        engine.save_checkpoint(folder, tag, client_state={"loader": loader.state_dict()})
        dist.barrier()  # rank 0 writes
        return batches, tag

    return drive


def test_the_sequence_is_that_of_penstock(drive: drives.Drive, data: Path) -> None:
    drives.check_sequence(drive, data)


def test_resumed_runs_are_equal(drive: drives.Drive, data: Path) -> None:
    drives.check_resuming(drive, data)
    drives.check_resuming_again(drive, data)
