"""`penstock plan-work`, `work` and `commit`: work that many programs share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from ..errors import StorageError, UsageError
from ..tasks.distribution import distribute, do_task, make_engine
from ..tasks.slurm import find_share, parse_tasks, submit_script, write_script
from ..tasks.work_plan import WorkPlan, plan_work
from . import console
from .app import HelpedCommand, HelpedGroup
from .console import GOES_ON, explain_interrupt
from .options import DataPath, FormatOptions, setting, takes_format_options

_NAMED_MAX = 10
"""Tasks that failed that are named."""

plan = typer.Typer(
    cls=HelpedGroup,
    help="""Plan work that many programs share: an index, shards, tokens, lengths or statistics.

    With --on, the work is done and committed, too.

    Examples:

      penstock plan-work index /data/shards /scratch/work

      penstock plan-work index /data/shards /scratch/work --on local
    """,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Folder = Annotated[str, typer.Argument(help="The folder of the plan, which all workers see.")]
Engine = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="An engine that does it: local, ray, dask or mpi; slurm submits an array.",
        metavar="ENGINE",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Workers of the engine.", show_default="one a core, or all of them"),
]


@plan.callback()
def _plan() -> None:
    """Plan work that many programs share: an index, shards, tokens, lengths or statistics."""


@plan.command("index", cls=HelpedCommand)
@takes_format_options
@explain_interrupt(GOES_ON)
def plan_index(
    path: DataPath,
    folder: Folder,
    *,
    on: Engine = None,
    workers: Workers = None,
    options: FormatOptions,
) -> None:
    """Plan the index of a data set: its tasks parse some files each.

    Planned again after files were added, only their tasks are missing.

    Examples:

      penstock plan-work index /data/shards /scratch/work --on local

      penstock plan-work index s3://bucket/shards /shared/work --on ray
    """
    _plan_and_run("index", path, folder, on, workers, options)


@plan.command("convert", cls=HelpedCommand)
@takes_format_options
@explain_interrupt(GOES_ON)
def plan_convert(
    path: DataPath,
    folder: Folder,
    *,
    to: str = setting(..., "tar, tfrecord or records.", metavar="FORMAT"),
    shards: int = setting(..., "How many shards, of as many samples: a task each.", min=1),
    destination: str | None = setting(
        None, "The folder to write.", metavar="PATH", show_default="FOLDER/shards"
    ),
    shuffle: int | None = setting(None, "A seed: write the samples in the order drawn from it."),
    name: str | None = setting(None, "Of the shards: NAME-000000.tar."),
    field: list[str] | None = setting(None, "Write only this field; may be repeated."),
    keys: str | None = setting(None, "names, numbers or both: what samples are called."),
    resize: int | None = setting(
        None, "Images: reduce the shorter side of larger ones to this length."
    ),
    on: Engine = None,
    workers: Workers = None,
    options: FormatOptions,
) -> None:
    """Plan a data set in another format: its tasks write a shard each, and read it back.

    Examples:

      penstock plan-work convert photos /shared/work --to tar --shards 1000 --shuffle 0 --on ray
    """
    given: dict[str, Any] = {"destination": destination, "shuffle": shuffle, "name": name}
    given |= {"keys": keys, "fields": field or None, "resize": resize}
    settings = {name: value for name, value in given.items() if value is not None}
    _plan_and_run("convert", path, folder, on, workers, options, to=to, shards=shards, **settings)


@plan.command("tokenize", cls=HelpedCommand)
@takes_format_options
@explain_interrupt(GOES_ON)
def plan_tokenize(
    path: DataPath,
    folder: Folder,
    *,
    tokenizer: str = setting(..., "A tokenizer.json, or the folder that has one.", metavar="PATH"),
    destination: str | None = setting(
        None, "What to write, without .bin and .idx.", metavar="PATH", show_default="FOLDER/tokens"
    ),
    field: str | None = setting(
        None, "The field of text.", show_default="text, txt or the only one"
    ),
    eos: str | None = setting(
        None, "Token that ends a document.", metavar="TOKEN", show_default="the tokenizer's own"
    ),
    no_eos: bool = setting(False, "No token at the ends of documents.", "--no-eos"),
    bos: str | None = setting(
        None, "Token that starts a document.", metavar="TOKEN", show_default="none"
    ),
    broken: str = setting(
        "raise", "Broken lines and texts: raise an error, or mask them as empty."
    ),
    engine: str = setting("tokenizers", "tokenizers, or tiktoken where it is proved to be equal."),
    on: Engine = None,
    workers: Workers = None,
    options: FormatOptions,
) -> None:
    """Plan the tokens of texts, as one pair of .bin and .idx: its tasks encode some documents each.

    Examples:

      penstock plan-work tokenize documents /shared/work --tokenizer tokenizer.json --on dask
    """
    if eos is not None and no_eos:
        raise UsageError("--eos and --no-eos are both given: choose one")
    given = {"destination": destination, "field": field, "bos": bos}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings |= {"tokenizer": tokenizer, "broken": broken, "engine": engine}
    settings["eos"] = not no_eos if eos is None else eos
    _plan_and_run("tokenize", path, folder, on, workers, options, **settings)


@plan.command("lengths", cls=HelpedCommand)
@takes_format_options
@explain_interrupt(GOES_ON)
def plan_lengths(
    path: DataPath,
    folder: Folder,
    *,
    by: str = setting(
        ..., "bytes, tokens, duration, or module:function of a sample.", metavar="RULE"
    ),
    field: str | None = setting(None, "The field with the text or sound."),
    tokenizer: str | None = setting(
        None, "A tokenizer.json, or the folder that has one, for tokens of texts.", metavar="PATH"
    ),
    on: Engine = None,
    workers: Workers = None,
    options: FormatOptions,
) -> None:
    """Plan the lengths of samples, saved beside the index: its tasks measure some samples each.

    Examples:

      penstock plan-work lengths /data/speech /shared/work --by duration --on ray
    """
    given = {"by": by, "field": field, "tokenizer": tokenizer}
    settings = {name: value for name, value in given.items() if value is not None}
    _plan_and_run("lengths", path, folder, on, workers, options, **settings)


@plan.command("stats", cls=HelpedCommand)
@takes_format_options
@explain_interrupt(GOES_ON)
def plan_stats(
    path: DataPath,
    folder: Folder,
    *,
    by_axis: int | None = setting(
        None, "Axis of a sample whose places have statistics of their own, too.", min=0
    ),
    on: Engine = None,
    workers: Workers = None,
    options: FormatOptions,
) -> None:
    """Plan the statistics of fields of numbers: its tasks measure some samples each.

    Examples:

      penstock plan-work stats /data/weather.zarr /shared/work --on dask
    """
    settings = {} if by_axis is None else {"by_axis": by_axis}
    _plan_and_run("stats", path, folder, on, workers, options, **settings)


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
    _run(found, chosen, on, workers)
    console.show(f"done: `penstock commit {console.escape(found.folder)}` puts all together")


@explain_interrupt(GOES_ON)
def commit(folder: Folder) -> None:
    """Put the tasks of a plan together, when all are done. Names those that are missing.

    Examples:

      penstock commit /shared/work
    """
    with console.print_warnings():
        console.show(console.escape(WorkPlan.load(folder).commit()))


def _plan_and_run(
    what: str,
    path: str,
    folder: str,
    on: str | None,
    workers: int | None,
    options: FormatOptions,
    **settings: Any,
) -> None:
    if on == "slurm":
        raise UsageError("--on is 'slurm', whose jobs end later: give it to `penstock work`")
    with console.show_progress(f"Looking at {path}") as progress, console.print_warnings():
        made = plan_work(what, path, folder, progress=progress, open_options=options, **settings)
    missing = made.list_missing()
    text = f"{len(made):,} tasks, {len(missing):,} to do"
    console.show(f"[bold]{console.escape(made.folder)}[/]: {text}")
    if on is None:
        console.show(f"do them: penstock work {console.escape(made.folder)}")
        return
    _run(made, missing, on, workers)
    commit(folder)


def _run(plan: WorkPlan, tasks: list[int] | None, on: str | None, workers: int | None) -> None:
    """Do tasks, and name those that fail; then the exit code is 1."""
    wanted = plan.list_missing() if tasks is None else tasks
    failed: dict[int, str] = {}
    with console.show_progress(f"Working on {plan.folder}", "tasks") as progress:
        if on is not None:
            engine = make_engine(on, workers)
            failed = distribute(plan, engine, tasks=wanted, progress=progress)
        else:
            with _stop_on_signals() as stopped:
                for done, task in enumerate(wanted):
                    progress(done, len(wanted))
                    if stopped():
                        what = f"stopped after {done:,} of {len(wanted):,} tasks"
                        raise StorageError(f"{what}: the same command goes on")
                    if (fault := do_task(plan.folder, task)) is not None:
                        failed[task] = fault[1]
    for task in sorted(failed)[:_NAMED_MAX]:
        console.say(f"{plan.describe(task)}: {failed[task]}")
    if len(failed) > _NAMED_MAX:
        console.say(f"and {len(failed) - _NAMED_MAX:,} more tasks failed")
    if failed:
        what = f"{len(failed):,} of {len(wanted):,} tasks failed"
        console.say(f"{what}: the same command does only those")
        raise SystemExit(1)


@contextmanager
def _stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that is true once a signal asks to stop."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number))
        for number in (signal.SIGUSR1, signal.SIGTERM)
    }
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
