"""Ray: data sets and the state of loaders for Ray Train; a source and a sink for Ray Data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import ray.train

from ..arguments import check_function, check_whole
from ..errors import UsageError
from ..loader.epoch import check_loader
from .ray_data import RayData as Data
from .ray_data import RayDataConfig as DataConfig
from .ray_sink import RaySink as Datasink
from .ray_source import RaySource as Source

__all__ = ["Data", "DataConfig", "Datasink", "Source", "report", "restore", "save_when_preempted"]

Batch = TypeVar("Batch")

_file_name = "penstock_loader.json"


def report(metrics: Mapping[str, Any], loader: Any, folder: str | os.PathLike[str]) -> None:
    """Report metrics and a checkpoint that holds the position of `loader`, too.

    folder:  what this worker saves; the position is added to it. Ray merges the folders of all
             workers into one.

    All workers call it, as `ray.train.report`. `restore` is its other half.
    """
    state = check_loader("penstock.ray.report", loader).state_dict()
    (Path(folder) / _file_name).write_text(json.dumps(state))
    ray.train.report(dict(metrics), checkpoint=ray.train.Checkpoint.from_directory(folder))


def restore(loader: Any) -> bool:
    """Continue at the position in the checkpoint that Ray Train restarts this worker from.

    Any number of workers may continue if the global batch is the same: give `global_batch_size`.
    Returns False in a new run. Raises UsageError if the checkpoint was made without `report`.
    """
    checked = check_loader("penstock.ray.restore", loader)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        file = Path(folder) / _file_name
        if not file.exists():
            raise UsageError(f"{checkpoint.path} has no {_file_name}: save by penstock.ray.report")
        checked.load_state_dict(json.loads(file.read_text()))
    return True


def save_when_preempted(
    batches: Iterable[Batch], save: Callable[[], object], *, every: int = 1
) -> Iterator[Batch]:
    """Yield the batches; call `save` when Ray says that a node will be taken away.

    batches:  of this worker: `shard.iter_torch_batches()`, or a loader.
    save:     a function that saves the model and calls `report`. All workers call it after the
              same step, once for each warning in each epoch.
    every:    steps from one question to the next whether there is a warning. Workers wait for each
              other then.

    Train V1 has no warnings: the batches alone.
    """
    check_whole("every", every)
    check_function("save", save, "a function without arguments")
    ask = getattr(ray.train, "get_preemption_info", lambda: None)
    saved = None
    for step, batch in enumerate(batches, 1):
        yield batch
        warning = None if step % every else ask()
        if warning is not None and warning != saved:
            saved = warning
            save()
