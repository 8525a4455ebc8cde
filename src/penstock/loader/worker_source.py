"""The sources of batches that workers load whole."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ..budget import Budget
from ..meter import Meter
from .batch_tasks import BatchTask
from .cpu_throttle import CpuThrottle
from .epoch import ReadyBatch
from .workers import InlineWorkers, ResultsAhead, Workers, WorkerTime

_poll_s = 0.1  # how soon a waiting caller learns of more processors


class WorkerSource:
    """Source of the batches of `tasks`, which workers load.

    first:    step of the first task.
    ahead:    tasks that workers have beyond the batch that is asked for.
    batched:  True if a task is of many samples, False if of one.
    """

    def __init__(
        self,
        tasks: Iterator[BatchTask],
        workers: Workers,
        meter: Meter,
        budget: Budget,
        first: int,
        *,
        ahead: int,
        timeout_s: float | None,
        batched: bool,
    ) -> None:
        self._workers = workers
        self._meter = meter
        self._throttle = CpuThrottle(budget.cores)
        self._step = first
        self._closed = False
        self._sizes: deque[int] = deque()  # samples of the tasks that were begun
        self._results = ResultsAhead(
            workers, self._count_tasks(tasks, batched), ahead, timeout_s, self._throttle
        )

    @property
    def closed(self) -> bool:
        return self._closed

    def take(self, asked_ns: int, on_wait: Callable[[], object]) -> ReadyBatch | None:
        while not self._results.has_begun and self._throttle.is_in_debt:
            self._throttle.wait(_poll_s)
            on_wait()
        before = self._workers.spent
        try:
            batch = next(self._results)
        except StopIteration:
            return None
        spent = self._workers.spent.minus(before)
        self._throttle.charge(spent.cpu_ns * 1e-9)  # not for the time of other batches
        samples, step = self._sizes.popleft(), self._step
        self._step += 1
        return _account(batch, step, samples, asked_ns, spent, self._meter)

    def skip(self) -> None:
        if not self._sizes:  # the sampler has raised, and gives nothing more
            self._closed = True
            return
        self._sizes.popleft()
        self._step += 1

    def adopt(self, budget: Budget) -> None:
        self._throttle.adopt(budget.cores)

    def close(self) -> None:
        self._closed = True
        self._results.close()

    def _count_tasks(self, tasks: Iterator[BatchTask], batched: bool) -> Iterator[BatchTask]:
        for task in tasks:
            self._sizes.append(_count_samples(task, batched))
            yield task


class InlineSource:
    """Source of the batches of `tasks`, each made in the calling thread when it is asked for.

    batched:  True if a task is of many samples, False if of one.
    """

    def __init__(
        self,
        tasks: Iterator[BatchTask],
        workers: InlineWorkers,
        meter: Meter,
        budget: Budget,
        *,
        batched: bool,
    ) -> None:
        self._tasks = tasks
        self._workers = workers
        self._meter = meter
        self._throttle = CpuThrottle(budget.cores)
        self._batched = batched
        self.closed = False

    def take(self, asked_ns: int, on_wait: Callable[[], object]) -> ReadyBatch | None:
        while self._throttle.is_in_debt:
            self._throttle.wait(_poll_s)
            on_wait()
        try:
            task = next(self._tasks, None)
        except Exception:  # of the sampler, which gives nothing more
            self.closed = True
            raise
        if task is None:
            return None
        batch, spent = self._workers.fetch(task)
        self._throttle.charge(spent.cpu_ns * 1e-9)
        samples = _count_samples(task, self._batched)
        return _account(batch, task.step, samples, asked_ns, spent, self._meter)

    def skip(self) -> None:
        """Do nothing: the next task is of the step after."""

    def adopt(self, budget: Budget) -> None:
        self._throttle.adopt(budget.cores)

    def close(self) -> None:
        self.closed = True
        self._tasks = iter(())


def _count_samples(task: BatchTask, batched: bool) -> int:
    return len(task.ids) if batched and hasattr(task.ids, "__len__") else 1


def _account(
    batch: Any, step: int, samples: int, asked_ns: int, spent: WorkerTime, meter: Meter
) -> ReadyBatch:
    """Return a batch that is ready now, with the wait for it divided."""
    ready_ns = time.perf_counter_ns()
    # A worker was busy with this batch; the wait is taken for the last part of that time.
    busy_ns, cpu_ns, queued_ns = spent
    waiting_ns = min(ready_ns - asked_ns, busy_ns)
    decode_ns = waiting_ns * (cpu_ns + queued_ns) // max(1, busy_ns)
    meter.count_work(busy_ns, cpu_ns)
    return batch, step, samples, ready_ns, waiting_ns - decode_ns, decode_ns
