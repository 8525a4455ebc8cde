"""Tasks on an engine: anything that is a `concurrent.futures.Executor`.

There is no scheduler here: tasks are submitted, a bounded number at a time, and those that fail by
their storage are tried again. An engine's own work for a task is the larger part of a short one:
several are submitted as one, which ends early if they take long and hands the rest back. A worker
that dies costs those that it was at; from then on each is submitted alone.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from .. import limits
from ..arguments import check_choice, check_whole
from ..dataset.measuring import Progress, end_with_parent
from ..errors import (
    PenstockError,
    StorageError,
    UsageError,
    WorkerError,
    import_library,
    missing_library,
)

Engine = Callable[[], AbstractContextManager[Executor]]
"""Function that starts an engine's executor; what it started ends with the executor's context."""

Fault = tuple[bool, str] | None  # whether trying again may help, and the error

ENGINES = ("local", "ray", "dask", "mpi")


def spread(
    calls: Mapping[int, tuple[Any, ...]],
    executor: Engine,
    describe: Callable[[int], str],
    retries: int = 2,
    progress: Progress | None = None,
) -> dict[int, str]:
    """Make calls of functions on an engine, as `distribute`; `describe` names one. Return the
    errors of those that failed."""
    check_whole("retries", retries, 0, 1000)
    failed: dict[int, str] = {}
    tried: Counter[int] = Counter()
    waiting, total, broken = [*calls][::-1], len(calls), 0
    size, waiting_max = 1, limits.tasks_tried
    while waiting:
        running: dict[Future[list[Fault]], list[int]] = {}
        with executor() as pool:
            try:
                _await_worker(pool)
                while waiting or running:
                    while waiting and len(running) < waiting_max:
                        count = max(1, min(size, len(waiting) // limits.tasks_tried))
                        group = [waiting.pop() for _ in range(count)]
                        running[pool.submit(attempt_some, [calls[call] for call in group])] = group
                    ended = wait_for(running, limits.task_s, FIRST_COMPLETED).done
                    if not ended:  # tasks are long: as many as there may be workers
                        waiting_max = limits.tasks_waiting
                    for future in ended:
                        faults = _find_faults(future, running[future])
                        group = running.pop(future)
                        broken = 0
                        if len(faults) < len(group):
                            waiting += reversed(group[len(faults) :])
                            size, waiting_max = min(size, len(faults)), limits.tasks_waiting
                        elif len(group) == size:
                            size *= 2
                        for call, fault in zip(group, faults, strict=False):
                            if fault is not None and fault[0] and tried[call] < retries:
                                tried[call] += 1
                                waiting.insert(0, call)
                            elif fault is not None:
                                failed[call] = fault[1]
                        if progress is not None:
                            left = len(waiting) + sum(map(len, running.values()))
                            progress(total - left, total)
            except (BrokenExecutor, CancelledError) as error:
                broken += 1
                waiting += [call for group in running.values() for call in group]
                size, waiting_max = 0, limits.tasks_waiting
                if waiting and broken > retries:
                    what = f"workers died {broken} times and nothing was done in between"
                    first = describe(waiting[-1])
                    raise WorkerError(f"{what}, at {first} and others: {error!r}") from None
            finally:
                for future in running:
                    future.cancel()
    return failed


def attempt_some(calls: list[tuple[Any, ...]]) -> list[Fault]:
    """Attempt calls until some time is over, one at least, for workers of any engine."""
    ended, faults = time.monotonic() + limits.task_s, [attempt(*calls[0])]
    while len(faults) < len(calls) and time.monotonic() < ended:
        faults.append(attempt(*calls[len(faults)]))
    return faults


def attempt(function: Callable[..., object], *arguments: Any) -> Fault:
    """Call a function. Return None, or whether trying again may help,
    and the error. Errors are returned: engines differ in what they do with those raised."""
    try:
        function(*arguments)
    except (PenstockError, OSError) as error:
        return isinstance(error, StorageError | WorkerError), str(error)
    except Exception as error:  # of a function of the user's
        return False, f"{type(error).__name__}: {error}".split("\n")[0]
    return None


def _await_worker(pool: Executor) -> None:
    """Wait for the first worker, for some time: engines wait for one for ever."""
    first = pool.submit(_answer)
    if not wait_for([first], limits.engine_start_s).done:
        first.cancel()
        what = f"no worker of the engine answered within {limits.engine_start_s:g} s"
        raise WorkerError(f"{what}: start workers, with penstock and a free core each")
    _find_faults(first, [])


def _answer() -> None:
    """Return: the worker is there, and can import this module."""


def _find_faults(future: Future[Any], group: list[int]) -> list[Fault]:
    """Return the faults of tasks that were done together. Against an engine's own, trying again
    may help; at which one of several it failed is not known, and none counts as done."""
    try:
        faults: list[Fault] = future.result()
        return faults
    except (BrokenExecutor, CancelledError):
        raise
    except Exception as error:
        what = f"the engine failed: {type(error).__name__}: {error}".split("\n")[0]
        return [(True, what)] if len(group) == 1 else []


# -- engines ---------------------------------------------------------------------------------------


def make_engine(name: str, workers: int | None = None) -> Engine:
    """Return the function that starts an engine: "local", "ray", "dask" or "mpi".

    workers:  how many; by default as many as the engine has, locally one a core.

    Ray and Dask are those that their own variables name (RAY_ADDRESS, DASK_SCHEDULER_ADDRESS), or
    are started here, and end with the work. MPI's workers are the other ranks of
    `mpiexec -n N python -m mpi4py.futures`.
    """
    return functools.partial(_start, check_choice("on", name, ENGINES), workers)


@contextmanager
def _start(name: str, workers: int | None) -> Iterator[Executor]:
    with ExitStack() as started:
        try:
            pool: Executor = globals()[f"_start_{name}"](workers, started)
        except PenstockError:
            raise
        except (OSError, RuntimeError, ValueError) as error:  # those of engines
            what = f"--on {name} does not start: {type(error).__name__}: {error}".split("\n")[0]
            raise WorkerError(f"{what}: look after the cluster, and run this again") from None
        yield started.enter_context(pool)


def _start_local(workers: int | None, started: ExitStack) -> Executor:
    from concurrent.futures import ProcessPoolExecutor

    count = workers or len(os.sched_getaffinity(0))
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), end_with_parent)


def _start_dask(workers: int | None, started: ExitStack) -> Executor:
    distributed = import_library("distributed", "dask", "--on dask")
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what it logs is raised
    settings: dict[str, Any] = {"address": _find_cluster("DASK_SCHEDULER_ADDRESS", workers)}
    if settings["address"] is None:  # a cluster here, with the memory that a process has
        settings = {"threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None}
        settings |= {} if workers is None else {"n_workers": workers}
    client = started.enter_context(distributed.Client(set_as_default=False, **settings))
    executor: Executor = client.get_executor(pure=False)  # a task that is tried again runs again
    return executor


def _start_mpi(workers: int | None, started: ExitStack) -> Executor:
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPIPoolExecutor
    except (ImportError, RuntimeError):
        raise missing_library("mpi4py", "mpi", "--on mpi") from None
    if "mpi4py.futures" not in sys.orig_argv or MPI.COMM_WORLD.Get_size() < 2:
        what = "--on mpi has no workers, the other ranks of mpi4py.futures"
        raise UsageError(f"{what}: start `mpiexec -n 9 python -m mpi4py.futures -m penstock ...`")
    _refuse_workers("mpiexec -n", workers)
    executor: Executor = MPIPoolExecutor()
    return executor


def _start_ray(workers: int | None, started: ExitStack) -> Executor:
    ray = import_library("ray", "ray", "--on ray")
    address = _find_cluster("RAY_ADDRESS", workers)
    if address is not None:  # one try of 40 s: by itself Ray tries for a quarter of an hour
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
    if not ray.is_initialized():
        started.callback(ray.shutdown)
        ray.init(
            address or "local", log_to_driver=False, logging_level=logging.WARNING, num_cpus=workers
        )
    return RayExecutor(ray)


def _find_cluster(variable: str, workers: int | None) -> str | None:
    """The address of a cluster that a variable names, whose workers are not ours to count."""
    if address := os.environ.get(variable):
        _refuse_workers(variable, workers)
    return address


def _refuse_workers(where: str, workers: int | None) -> None:
    if workers is not None:
        raise UsageError(f"--workers is {workers}, and {where} says which there are: leave it out")


class RayExecutor(Executor):
    """Executor over tasks of Ray, which starts a task again whose worker or node died."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._make_remote = ray, functools.cache(ray.remote(max_retries=8))

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Submit a task of Ray, of one core."""
        reference = self._make_remote(function).remote(*args, **named)
        future: Future[Any] = reference.future()

        def cancel(_: object) -> None:
            if future.cancelled():
                self._ray.cancel(reference, force=True)

        future.add_done_callback(cancel)
        return future
