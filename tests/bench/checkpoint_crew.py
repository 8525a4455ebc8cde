"""Ranks for tests of checkpoints: threads, or processes, that meet and tell each other."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock_bench.checkpoints.files import NumpyWriter
from penstock_bench.checkpoints.run import run_checkpoints
from penstock_bench.checkpoints.shapes import State
from penstock_bench.workload.sections import (
    CheckpointSpec,
    DlioWorkload,
    ModelSpec,
    Parallelism,
    Transformer,
)

Work = Callable[[Any], Any]


class SmallCrew:
    """Ranks that meet by a function, and exchange values by another."""

    hosts, first_of_host = 1, True

    def __init__(
        self,
        rank: int,
        ranks: int,
        barrier: Callable[[], object],
        exchange: Callable[[Any], list[Any]],
        host: str = "here",
    ) -> None:
        self.rank, self.ranks, self.host = rank, ranks, host
        self._barrier, self._exchange = barrier, exchange

    def barrier(self) -> None:
        self._barrier()

    def gather(self, value: Any) -> list[Any] | None:
        found = self._exchange(value)
        return found if self.rank == 0 else None

    def share(self, value: Any) -> Any:
        return self._exchange(value)[0]


def llama(folder: object, *, model: ModelSpec | None = None, **settings: Any) -> DlioWorkload:
    """A workload that only saves and loads a small model: 3 MB by one rank."""
    shape = Transformer(vocab_size=500, hidden_size=64, ffn_hidden_size=128)
    small = ModelSpec(
        name="small",
        type="transformer",
        num_layers=4,
        parallelism=Parallelism(zero_stage=1),
        transformer=replace(shape, num_attention_heads=8, num_kv_heads=4),
    )
    checkpoint = CheckpointSpec(checkpoint_folder=str(folder), **settings)
    return DlioWorkload(framework="pytorch", model=model or small, checkpoint=checkpoint)


def alone(work: Work) -> Any:
    """The work of one rank."""
    return work(SmallCrew(0, 1, lambda: None, lambda value: [json.loads(json.dumps(value))]))


def threads(ranks: int, work: Work, hosts: str = "a" * 64) -> list[Any]:
    """Results or exceptions of `work` by rank, each a thread on the host of its letter."""
    barrier = threading.Barrier(ranks, timeout=240)
    told: list[str] = [""] * ranks
    results: list[Any] = [None] * ranks

    def be(rank: int) -> None:
        def gather(value: Any) -> list[Any]:
            told[rank] = json.dumps(value)
            barrier.wait()
            found = [json.loads(each) for each in told]
            barrier.wait()
            return found

        try:
            results[rank] = work(SmallCrew(rank, ranks, barrier.wait, gather, hosts[rank]))
        except Exception as error:
            results[rank] = error

    crew = [threading.Thread(target=be, args=(rank,)) for rank in range(ranks)]
    for each in crew:
        each.start()
    for each in crew:
        each.join()
    return results


def processes(ranks: int, workload: DlioWorkload, **options: Any) -> list[dict[str, Any]]:
    """Return the answers of `run_checkpoints` of each rank, a process."""
    context = multiprocessing.get_context("spawn")
    boxes = [context.SimpleQueue() for _ in range(ranks)]
    results = context.SimpleQueue()
    barrier = context.Barrier(ranks)
    crew = [
        context.Process(target=_rank, args=(rank, boxes, barrier, results, workload, options))
        for rank in range(ranks)
    ]
    for each in crew:
        each.start()
    found = dict(results.get() for _ in crew)
    for each in crew:
        each.join()
    return [found[rank] for rank in range(ranks)]


def _rank(
    rank: int, boxes: list[Any], barrier: Any, results: Any, workload: DlioWorkload, options: Any
) -> None:
    def gather(value: Any) -> list[Any]:
        for box in boxes:
            box.put((rank, value))
        found = dict(boxes[rank].get() for _ in boxes)
        barrier.wait()  # nobody puts what belongs to the next question
        return [found[each] for each in range(len(boxes))]

    crew = SmallCrew(rank, len(boxes), barrier.wait, gather)
    try:
        results.put((rank, run_checkpoints(workload, crew, **options)))
    except Exception as error:
        results.put((rank, error))
        raise


class Killed(NumpyWriter):
    """A writer whose process is killed while it writes its second file."""

    def __init__(self) -> None:
        self.saved = 0

    def save(self, path: str, state: State, fsync: bool) -> None:
        self.saved += 1
        if self.saved == 2:
            with open(os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.part"), "wb"):
                os.kill(os.getpid(), signal.SIGKILL)
        super().save(path, state, fsync)
