"""Small workloads and their data, written by numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock_bench.contenders.delivery import DeliveryTask
from penstock_bench.run import BenchJob
from penstock_bench.workload.distribution import Distribution
from penstock_bench.workload.sections import (
    DatasetSpec,
    DlioWorkload,
    EvaluationSpec,
    OutputSpec,
    ReaderSpec,
    SkippedSteps,
    TrainSpec,
    WorkflowSpec,
)


def workload(
    folder: Path, files: int = 12, per_file: int = 1, batch: int = 2, **more: Any
) -> DlioWorkload:
    """npz files of 5 x 7 bytes a sample; `more` are sections that replace these."""
    found = DlioWorkload(
        dataset=DatasetSpec(
            data_folder=str(folder),
            format="npz",
            num_files_train=files,
            num_samples_per_file=per_file,
            record_length_bytes=35,
        ),
        reader=ReaderSpec(batch_size=batch, batch_size_eval=batch, read_threads=0),
        train=TrainSpec(epochs=2, computation_time=Distribution.constant(0.0)),
        workflow=WorkflowSpec(train=True),
        evaluation=EvaluationSpec(),
        output=OutputSpec(metric=SkippedSteps(exclude_start_steps=1)),
    )
    return replace(found, **more)


def reading(**changes: Any) -> ReaderSpec:
    """A reader of this process."""
    return replace(ReaderSpec(batch_size=2, batch_size_eval=2, read_threads=0), **changes)


def content(number: int, per_file: int = 1, shape: tuple[int, int] = (5, 7)) -> np.ndarray:
    """The content of file `number`: its samples differ from each other and from all others."""
    drawn = np.random.default_rng(number).integers(0, 256, (*shape, per_file), dtype=np.uint8)
    drawn[0, :4, :] = np.frombuffer(np.int32(number).tobytes(), np.uint8)[:, None]
    drawn[1, 0, :] = np.arange(per_file)
    return drawn


def identity(sample: np.ndarray) -> tuple[int, int]:
    """File and number of a sample, by its content."""
    flat = np.asarray(sample)
    return int(np.frombuffer(flat[0, :4].tobytes(), np.int32)[0]), int(flat[1, 0])


def write(folder: Path, files: int = 12, per_file: int = 1, part: str = "train") -> list[str]:
    """The files, as DLIO names and fills them."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(files):
        path = folder / part / f"img_{number:0{len(str(files))}d}_of_{files}.npz"
        np.savez(path, x=content(number, per_file), y=np.zeros(per_file, np.int64))
        paths.append(str(path))
    return paths


def job(load: DlioWorkload, paths: list[str], loader: str = "penstock", **more: Any) -> BenchJob:
    """A job over these files."""
    folder = str(Path(paths[0]).parent)
    given = {"paths": {"train": paths}, "folders": {"train": folder}, "control": False} | more
    return BenchJob(loader=loader, workload=load, **given)


def task(
    load: DlioWorkload, paths: list[str], rank: int = 0, ranks: int = 1, **more: Any
) -> DeliveryTask:
    """The delivery task of one rank's contender."""
    given = {"part": "train", "steps": load.steps(ranks), "seed": 5} | more
    folder = str(Path(paths[0]).parent)
    return DeliveryTask(workload=load, paths=paths, folder=folder, rank=rank, ranks=ranks, **given)
