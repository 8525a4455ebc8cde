"""Iterator of an epoch whose batches workers load whole, in order, with position and counters."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from ..meter import Meter
from ..sharing import LeasedBudget
from .batch_tasks import BatchTask, EpochTasks
from .cpu_throttle import CpuThrottle
from .workers import ResultsAhead, Workers

_poll_s = 0.1  # how soon a waiting caller learns of more processors


class WorkerEpoch:
    """An iterator over the batches of an epoch from a step on.

    ahead:    tasks that workers have beyond the batch that is asked for.
    batched:  True if a task is of many samples, False if of one.
    leased_budget:  the loader's part of the host's budget; workers obey its cores.

    A batch that failed with an exception is not repeated: the next call gives the next batch.
    """

    def __init__(
        self,
        epochs: EpochTasks,
        workers: Workers,
        meter: Meter,
        leased_budget: LeasedBudget,
        epoch: int,
        first: int,
        *,
        ahead: int,
        timeout_s: float | None,
        batched: bool,
    ) -> None:
        meter.began(time.perf_counter_ns())
        self._epochs = epochs
        self._workers = workers
        self._meter = meter
        self._leased_budget = leased_budget
        self._throttle = CpuThrottle(leased_budget.budget().cores)
        self._epoch = epoch
        self._step = first
        self._sizes: deque[int] = deque()  # samples of the tasks that were begun
        tasks = _count_samples(epochs.tasks(epoch, first), self._sizes, batched)
        self._results = ResultsAhead(workers, tasks, ahead, timeout_s, self._throttle)

    def __iter__(self) -> WorkerEpoch:
        return self

    def __next__(self) -> Any:
        asked_ns = time.perf_counter_ns()
        self._meter.asked(asked_ns)
        self._follow_broker()
        while not self._results.has_begun and self._throttle.is_in_debt:
            self._throttle.wait(_poll_s)
            self._follow_broker()
        before = self._workers.spent
        try:
            batch = next(self._results)
        except StopIteration:
            self._epochs.end_epoch(self._epoch)
            raise
        except Exception:
            if self._sizes:  # else the sampler has raised
                self._sizes.popleft()
            self._step += 1  # as in torch
            self._meter.raised(time.perf_counter_ns())
            raise
        ready_ns = time.perf_counter_ns()
        # A worker was busy with this batch; the wait is taken for the last part of that time.
        busy_ns, cpu_ns, queued_ns = self._workers.spent.minus(before)
        self._throttle.charge(cpu_ns * 1e-9)  # not for the time of other batches
        waiting_ns = min(ready_ns - asked_ns, busy_ns)
        decode_ns = waiting_ns * (cpu_ns + queued_ns) // max(1, busy_ns)
        waited = waiting_ns - decode_ns, decode_ns
        meter = self._meter
        meter.worked(busy_ns, cpu_ns)
        if meter.timeline is not None:
            meter.timeline.given(self._epoch, self._step, asked_ns, ready_ns, *waited)
        self._step += 1
        self._epochs.record_step(self._epoch, self._step)
        now_ns = time.perf_counter_ns()
        meter.given(asked_ns, ready_ns, now_ns, self._sizes.popleft(), *waited)
        return batch

    def _follow_broker(self) -> None:
        if self._leased_budget.changed():
            self._throttle.adopt(self._leased_budget.budget().cores)


def _count_samples(
    tasks: Iterator[BatchTask], sizes: deque[int], batched: bool
) -> Iterator[BatchTask]:
    for task in tasks:
        sizes.append(len(task.ids) if batched and hasattr(task.ids, "__len__") else 1)
        yield task
