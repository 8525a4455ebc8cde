"""`penstock work` and `commit`: work that many programs share, once it is planned."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from ..dataset.measuring import Progress
from ..errors import StorageError, UsageError
from ..tasks.distribution import attempt, make_engine
from ..tasks.slurm import find_share, parse_tasks, submit_script, write_script
from ..tasks.work_plan import WorkPlan, distribute, do_task
from . import console
from .console import GOES_ON, explain_interrupt
from .options import setting

_NAMED_MAX = 10
"""Tasks that failed that are named."""

Folder = Annotated[str, typer.Argument(help="The folder of the plan, which all workers see.")]
Engine = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="An engine that does it: local, ray, dask or mpi; of `work`, slurm submits an array.",
        metavar="ENGINE",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Workers of the engine.", show_default="one a core, or all of them"),
]


@explain_interrupt(GOES_ON)
def work(
    folder: Folder,
    *,
    tasks: str | None = setting(
        None, "Do these: 17, 100:200 or 1,5,10:20.", show_default="all that are missing"
    ),
    on: Engine = None,
    workers: Workers = None,
    sbatch: list[str] | None = setting(
        None, "Slurm: an option of sbatch; may be repeated.", metavar="OPTION"
    ),
    dry_run: bool = setting(False, "Slurm: print the script, and submit nothing."),
) -> None:
    """Do tasks of a plan: here one after the other, or on an engine.

    In an array job of Slurm, or an indexed job of Kubernetes, it does the share of its element.
    SIGUSR1 and SIGTERM stop it after the task at hand. Killed at any time, the same command goes on
    after the tasks that are done.

    Examples:

      penstock work /shared/work --tasks 100:200

      penstock work /shared/work --on local --workers 8

      penstock work /shared/work --on slurm --sbatch=--partition=short --dry-run
    """
    found = WorkPlan.load(folder)
    chosen = None if tasks is None else parse_tasks(tasks, len(found))
    if on == "slurm":
        missing = set(found.list_missing())
        wanted = sorted(missing if chosen is None else missing & set(chosen))
        if not wanted:
            console.show(f"all is done: `penstock commit {found.folder}`")
            return
        command = [sys.executable, "-m", "penstock"]
        script = write_script(found, wanted, command, sbatch or ())
        if dry_run:
            print(script, end="")
            return
        console.show(console.escape(submit_script(script)))
        return
    if dry_run or sbatch:
        raise UsageError("--dry-run and --sbatch are for --on slurm: leave them out")
    if chosen is None and on is None and (share := find_share(len(found), os.environ)) is not None:
        name, chosen = share
        console.show(f"{name}: {len(chosen):,} of {len(found):,} tasks")
    run_tasks(found, chosen, on, workers)
    console.show(f"done: `penstock commit {console.escape(found.folder)}` puts all together")


@explain_interrupt(GOES_ON)
def commit(
    folder: Folder,
    *,
    on: Engine = None,
    workers: Workers = None,
) -> None:
    """Put the tasks of a plan together, when all are done. Names those that are missing.

    Examples:

      penstock commit /shared/work --on ray
    """
    engine = None if on is None else make_engine(on, workers)
    with console.show_progress(f"Committing {folder}", "pieces") as progress:
        done = WorkPlan.load(folder).commit(engine, progress=progress)
    console.show(console.escape(done))


def run_tasks(plan: WorkPlan, tasks: list[int] | None, on: str | None, workers: int | None) -> None:
    """Do tasks, and name those that fail; then the exit code is 1."""
    wanted = plan.list_missing() if tasks is None else tasks
    with console.show_progress(f"Working on {plan.folder}", "tasks") as progress:
        if on is None:
            failed = _do_here(plan, wanted, progress)
        else:
            failed = distribute(plan, make_engine(on, workers), tasks=wanted, progress=progress)
    for task in sorted(failed)[:_NAMED_MAX]:
        console.say(f"{plan.describe(task)}: {failed[task]}")
    if len(failed) > _NAMED_MAX:
        console.say(f"and {len(failed) - _NAMED_MAX:,} more tasks failed")
    if failed:
        what = f"{len(failed):,} of {len(wanted):,} tasks failed"
        console.say(f"{what}: the same command does only those")
        raise SystemExit(1)


def _do_here(plan: WorkPlan, tasks: list[int], progress: Progress) -> dict[int, str]:
    """Do tasks one after the other, as `distribute`; a signal stops after the task at hand."""
    failed: dict[int, str] = {}
    asked: list[int] = []
    with ExitStack() as stack:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            before = signal.signal(number, lambda number, _: asked.append(number))
            stack.callback(signal.signal, number, before)
        for done, task in enumerate(tasks):
            progress(done, len(tasks))
            if asked:
                what = f"stopped after {done:,} of {len(tasks):,} tasks"
                raise StorageError(f"{what}: the same command goes on")
            if (fault := attempt(do_task, plan.folder, task)) is not None:
                failed[task] = fault[1]
    return failed
