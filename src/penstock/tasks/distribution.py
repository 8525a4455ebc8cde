"""Tasks of a plan on an engine: anything that is a `concurrent.futures.Executor`.

There is no scheduler here: tasks are submitted, a bounded number at a time, and those that fail by
their storage are tried again. A worker that dies costs the task that it was at.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any

from .. import limits
from ..arguments import check_choice, check_whole
from ..dataset.measuring import end_with_parent
from ..errors import PenstockError, StorageError, UsageError, WorkerError, missing_library
from .work_plan import WorkPlan

Progress = Callable[[int, int], None]
"""Function that is told the tasks done, and all."""

ENGINES = ("local", "ray", "dask", "mpi")


def distribute(
    plan: WorkPlan,
    executor: Callable[[], Executor],
    *,
    tasks: Iterable[int] | None = None,
    retries: int = 2,
    progress: Progress | None = None,
) -> dict[int, str]:
    """Do the tasks of a plan that are missing, on an engine. Return what failed, by task.

    executor:  makes the engine's executor, and another one if its workers died and it ended.
               They import penstock, and see the plan's folder under the same path.
    tasks:     those to do; by default all that are missing.
    retries:   how often a task is tried again if storage fails, and the engine made again if
               nothing was done since.
    progress:  called when tasks are done, with their number and that of all.

    A task that fails does not stop the others.
    """
    missing = plan.list_missing() if tasks is None else list(tasks)
    for task in missing:
        check_whole("a task", task, 0, len(plan) - 1)
    check_whole("retries", retries, 0, 1000)
    failed: dict[int, str] = {}
    tried: Counter[int] = Counter()
    waiting, total, broken = missing[::-1], len(missing), 0
    while waiting:
        running: dict[Future[tuple[bool, str] | None], int] = {}
        with executor() as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < limits.tasks_waiting:
                        future = pool.submit(do_task, plan.folder, waiting[-1])
                        running[future] = waiting.pop()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        fault = _find_fault(future)
                        task = running.pop(future)
                        broken = 0
                        if fault is not None and fault[0] and tried[task] < retries:
                            tried[task] += 1
                            waiting.insert(0, task)
                        elif fault is not None:
                            failed[task] = fault[1]
                        if progress is not None:
                            progress(total - len(waiting) - len(running), total)
            except BrokenExecutor as error:
                broken += 1
                waiting += [task for task in running.values() if not _is_done(plan, task)]
                if broken > retries:
                    what = f"workers died {broken} times and nothing was done in between"
                    first = plan.describe(waiting[-1])
                    raise WorkerError(f"{what}, at {first} and others: {error}") from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return failed


def _find_fault(future: Future[tuple[bool, str] | None]) -> tuple[bool, str] | None:
    """What `do_task` returned; an engine's own error is one that trying again may help against."""
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except Exception as error:
        return True, f"the engine failed: {type(error).__name__}: {error}".split("\n")[0]


def _is_done(plan: WorkPlan, task: int) -> bool:
    return os.path.exists(plan.find_part(task))


@functools.lru_cache(maxsize=2)
def _load_plan(folder: str, inode: int, mtime_ns: int) -> WorkPlan:
    return WorkPlan.load(folder)


def do_task(folder: str, task: int) -> tuple[bool, str] | None:
    """Do a task, as a function for workers of any engine. Return None, or whether trying again may
    help, and the error. Errors are returned: engines differ in what they do with those raised."""
    try:
        status = os.stat(os.path.join(folder, "plan.penstock"))
        _load_plan(folder, status.st_ino, status.st_mtime_ns).do(task)
    except (PenstockError, OSError) as error:
        return isinstance(error, StorageError | WorkerError), str(error)
    return None


# -- engines ---------------------------------------------------------------------------------------


def make_engine(name: str, workers: int | None = None) -> Callable[[], Executor]:
    """Return the function that makes the executor of an engine: "local", "ray", "dask" or "mpi".

    workers:  how many; by default as many as the engine has, locally one a core.

    Ray and Dask are those that their own variables name (RAY_ADDRESS, DASK_SCHEDULER_ADDRESS), or
    are started here. MPI's workers are the other ranks of `mpiexec -n N python -m mpi4py.futures`.
    """
    check_choice("on", name, ENGINES)
    return functools.partial(globals()[f"_start_{name}"], workers)


def _start_local(workers: int | None) -> Executor:
    from concurrent.futures import ProcessPoolExecutor

    count = workers or len(os.sched_getaffinity(0))
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), end_with_parent)


def _start_dask(workers: int | None) -> Executor:
    try:
        from distributed import Client
    except ImportError:
        raise missing_library("distributed", "dask", "--on dask") from None
    settings: dict[str, Any] = {} if workers is None else {"n_workers": workers}
    if address := os.environ.get("DASK_SCHEDULER_ADDRESS"):
        client = Client(address)
    else:
        client = Client(threads_per_worker=1, dashboard_address=None, **settings)
    executor: Executor = client.get_executor(retries=3)
    return executor


def _start_mpi(workers: int | None) -> Executor:
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPIPoolExecutor
    except (ImportError, RuntimeError):
        raise missing_library("mpi4py", "mpi", "--on mpi") from None
    if MPI.COMM_WORLD.Get_size() < 2 and MPI.COMM_WORLD.Get_attr(MPI.UNIVERSE_SIZE) is None:
        what = "--on mpi has one process, and no worker"
        raise UsageError(f"{what}: start `mpiexec -n 9 python -m mpi4py.futures -m penstock ...`")
    executor: Executor = MPIPoolExecutor(workers)
    return executor


def _start_ray(workers: int | None) -> Executor:
    try:
        import ray
    except ImportError:
        raise missing_library("ray", "ray", "--on ray") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, num_cpus=None if "RAY_ADDRESS" in os.environ else workers)
    return RayExecutor(ray)


class RayExecutor(Executor):
    """Executor over tasks of Ray, which starts a task again whose worker or node died."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._references = ray, set[Any]()

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Submit a task of Ray, of one core."""
        reference = self._ray.remote(max_retries=8)(function).remote(*args, **named)
        future: Future[Any] = reference.future()
        self._references.add(reference)
        future.add_done_callback(lambda _: self._references.discard(reference))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel what has not ended; the cluster stays."""
        for reference in list(self._references):
            self._ray.cancel(reference, force=True)
