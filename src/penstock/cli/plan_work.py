"""`penstock plan-work`: plan work that many programs share; with --on, do and commit it, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from ..errors import UsageError
from ..tasks.work_plan import plan_work
from . import console
from .app import HelpedCommand, HelpedGroup
from .console import GOES_ON, explain_interrupt
from .convert import choose_end, convert, tokenize
from .index import lengths, stats
from .options import DataPath, FormatOptions, insert_options, setting, takes_format_options
from .work import Engine, Folder, Workers, commit, run_tasks

app = typer.Typer(
    cls=HelpedGroup,
    help="""Plan work that many programs share: an index, shards, tokens, lengths, statistics, a
    check.

    With --on, the work is done and committed, too.

    Examples:

      penstock plan-work index /data/shards /scratch/work

      penstock plan-work index /data/shards /scratch/work --on local
    """,
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _plans(
    what: str, alike: Callable[..., None] | None = None, names: str = ""
) -> Callable[[Callable[..., dict[str, Any]]], None]:
    """Add the command that plans, and does, work with the settings that a function returns.

    The function has options of its own, and then those of a command on one host, by their names.
    """

    def add(choose: Callable[..., dict[str, Any]]) -> None:
        own = inspect.signature(choose, eval_str=True).parameters.values()
        parameters = [each for each in own if each.kind is each.KEYWORD_ONLY]
        if alike is not None:
            parameters += [inspect.signature(alike).parameters[name] for name in names.split()]

        @explain_interrupt(GOES_ON)
        def command(
            path: DataPath,
            folder: Folder,
            *,
            settings: dict[str, Any],
            on: Engine = None,
            workers: Workers = None,
            options: FormatOptions,
        ) -> None:
            given = {name: value for name, value in settings.items() if value not in (None, [])}
            if on == "slurm":
                raise UsageError("--on slurm ends later: plan without it, and then `penstock work`")
            with console.show_progress(f"Looking at {path}") as progress, console.print_warnings():
                plan = plan_work(
                    what, path, folder, progress=progress, open_options=options, **given
                )
            missing = plan.list_missing()
            text = f"{len(plan):,} tasks, {len(missing):,} to do"
            console.show(f"[bold]{console.escape(plan.folder)}[/]: {text}")
            if on is None:
                console.show(f"do them: penstock work {console.escape(plan.folder)}")
                return
            run_tasks(plan, missing, on, workers)
            commit(folder, on=on, workers=workers)

        command.__doc__ = choose.__doc__
        made = insert_options(command, "settings", parameters, lambda given: choose(**given))
        app.command(what, cls=HelpedCommand)(takes_format_options(made))

    return add


@_plans("index")
def _plan_index() -> dict[str, Any]:
    """Plan the index of a data set: its tasks parse some files each.

    Planned again after files were added, only their tasks are missing.

    Examples:

      penstock plan-work index /data/shards /scratch/work --on local

      penstock plan-work index s3://bucket/shards /shared/work --on ray
    """
    return {}


@_plans("convert", convert, "shuffle name field keys resize")
def _plan_convert(
    *,
    to: str = setting(..., "tar, tfrecord or records.", metavar="FORMAT"),
    shards: int = setting(..., "How many shards, of as many samples: a task each.", min=1),
    destination: str | None = setting(
        None, "The folder to write.", metavar="PATH", show_default="FOLDER/shards"
    ),
    **given: Any,
) -> dict[str, Any]:
    """Plan a data set in another format: its tasks write a shard each, and read it back.

    Examples:

      penstock plan-work convert photos /shared/work --to tar --shards 1000 --shuffle 0 --on ray
    """
    given["fields"] = given.pop("field")
    return {"to": to, "shards": shards, "destination": destination, **given}


@_plans("tokenize", tokenize, "field eos no_eos bos broken engine")
def _plan_tokenize(
    *,
    tokenizer: str = setting(..., "A tokenizer.json, or the folder that has one.", metavar="PATH"),
    destination: str | None = setting(
        None, "What to write, without .bin and .idx.", metavar="PATH", show_default="FOLDER/tokens"
    ),
    **given: Any,
) -> dict[str, Any]:
    """Plan the tokens of texts, as one pair of .bin and .idx: its tasks encode some documents each.

    Examples:

      penstock plan-work tokenize documents /shared/work --tokenizer tokenizer.json --on dask
    """
    given["eos"] = choose_end(given["eos"], given.pop("no_eos"))
    return {"tokenizer": tokenizer, "destination": destination, **given}


@_plans("lengths", lengths, "by field tokenizer")
def _plan_lengths(**given: Any) -> dict[str, Any]:
    """Plan the lengths of samples, saved beside the index: its tasks measure some samples each.

    Examples:

      penstock plan-work lengths /data/speech /shared/work --by duration --on ray
    """
    return given


@_plans("stats", stats, "by_axis")
def _plan_stats(**given: Any) -> dict[str, Any]:
    """Plan the statistics of fields of numbers: its tasks measure some samples each.

    Examples:

      penstock plan-work stats /data/weather.zarr /shared/work --on dask
    """
    return given


@_plans("verify")
def _plan_verify() -> dict[str, Any]:
    """Plan to read and decode every sample: names the damaged ones, or makes a digest of all.

    Examples:

      penstock plan-work verify /data/shards /shared/work --on ray
    """
    return {}
