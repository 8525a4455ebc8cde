"""Verdict on a run: its figures beside measured ceilings of this machine and these files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.doctor import (
    DataProfile,
    Demand,
    Examination,
    PlannedJob,
    Resource,
    RunCounts,
    Supply,
    computing_supply,
    estimate_roofline,
    examine,
    judge_run,
    staging_supply,
)

from ..contenders import DeliveryTask, choose_decode, open_task
from ..run import BenchJob


class Verdicts:
    """Judges runs of a workload; measuring takes 2 to 3 seconds, once.

    Raises the error of a file that cannot be read.
    """

    def __init__(self, job: BenchJob, ranks: int) -> None:
        task = DeliveryTask(
            workload=job.workload, part="train", paths=job.paths["train"],
            folder=job.folders["train"], seed=job.seed,
        )  # fmt: skip
        dataset = open_task(task)
        examination = examine(dataset, PlannedJob(decode=choose_decode(task)))
        per_unit = task.count / max(1, len(dataset))  # samples of what is read as one
        self._job, self._samples = job, task.count
        self._data = _describe_data(examination, task.per_file == 1)
        self._supplies: dict[Resource, Supply] = {
            resource: replace(supply, per_s=supply.per_s * per_unit)
            if resource == "decode"
            else supply
            for resource, supply in examination.supplies.items()
        }
        self._demand = (examination.demand or Demand()).scaled(1 / per_unit)
        step_s = job.workload.train.computation_time.mean
        if step_s > 0:
            self._supplies["compute"] = computing_supply(
                step_s, job.workload.reader.batch_size, ranks
            )

    def of(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the roofline of a run, as values for its record. Data that was cached before its
        epochs is not read from storage, and the run's own figures count before later ceilings."""
        supplies = dict(self._supplies)
        epochs = [epoch for epoch in run["epochs"] if epoch["kind"] == "train"]
        if run["staging_s"]:
            supplies["staging"] = staging_supply(self._samples, run["staging_s"], len(epochs))
        cached = self._demand.cached(_cached_share(epochs))
        samples = sum(epoch["samples"] for epoch in epochs)
        if not (samples and run["samples_per_s"]):
            return estimate_roofline(supplies, cached, data=self._data).as_json()
        seconds = samples / run["samples_per_s"]
        counted = RunCounts(
            seconds=seconds,
            samples=samples,
            waited_s=seconds * min(1.0, max(0.0, run["decomposition"]["storage_wait"])),
        )
        return judge_run(counted, cached, supplies, data=self._data).as_json()


def _describe_data(examination: Examination, own_files: bool) -> DataProfile:
    index = None if examination.dataset is None else examination.dataset.index
    total = 0 if index is None else index.total_bytes
    return DataProfile(
        total_bytes=total, memory_bytes=examination.machine.room_bytes, own_files=own_files
    )


def _cached_share(epochs: Sequence[Mapping[str, Any]]) -> float:
    """The share of the data that was in the page cache when epochs began."""
    known = [cached["cached_before"] for cached in epochs if cached["cached_before"]]
    total = sum(cached["total_bytes"] for cached in known)
    return sum(cached["cached_bytes"] for cached in known) / total if total else 0.0
