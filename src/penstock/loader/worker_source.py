"""The source of batches that workers load whole."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from ..budget import Budget
from ..meter import Meter
from .batch_tasks import BatchTask
from .cpu_throttle import CpuThrottle
from .epoch_iterator import ReadyBatch
from .workers import ResultsAhead, Workers

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
        counted = _count_samples(tasks, self._sizes, batched)
        self._results = ResultsAhead(workers, counted, ahead, timeout_s, self._throttle)

    @property
    def closed(self) -> bool:
        return self._closed

    def take(self, asked_ns: int, meanwhile: Callable[[], None]) -> ReadyBatch | None:
        while not self._results.has_begun and self._throttle.is_in_debt:
            self._throttle.wait(_poll_s)
            meanwhile()
        before = self._workers.spent
        try:
            batch = next(self._results)
        except StopIteration:
            return None
        ready_ns = time.perf_counter_ns()
        # A worker was busy with this batch; the wait is taken for the last part of that time.
        busy_ns, cpu_ns, queued_ns = self._workers.spent.minus(before)
        self._throttle.charge(cpu_ns * 1e-9)  # not for the time of other batches
        waiting_ns = min(ready_ns - asked_ns, busy_ns)
        decode_ns = waiting_ns * (cpu_ns + queued_ns) // max(1, busy_ns)
        self._meter.count_work(busy_ns, cpu_ns)
        samples, step = self._sizes.popleft(), self._step
        self._step += 1
        return ReadyBatch(batch, step, samples, ready_ns, waiting_ns - decode_ns, decode_ns)

    def skip(self) -> None:
        if self._sizes:  # else the sampler has raised
            self._sizes.popleft()
        self._step += 1

    def adopt(self, budget: Budget) -> None:
        self._throttle.adopt(budget.cores)

    def close(self) -> None:
        self._closed = True
        self._results.close()


def _count_samples(
    tasks: Iterator[BatchTask], sizes: deque[int], batched: bool
) -> Iterator[BatchTask]:
    for task in tasks:
        sizes.append(len(task.ids) if batched and hasattr(task.ids, "__len__") else 1)
        yield task
