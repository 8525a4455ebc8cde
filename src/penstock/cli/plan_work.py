"""`penstock plan-work`: plan work that many programs share; with --on, do and commit it, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
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


def _add(
    what: str, help: str, examples: Sequence[str], *taken: tuple[Callable[..., object], str]
) -> None:
    """Add the command that plans, and does, work; its options are taken from functions, by name."""
    parameters = [
        inspect.signature(function, eval_str=True).parameters[name]
        for function, names in taken
        for name in names.split()
    ]

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
        if on == "slurm":
            raise UsageError("--on slurm ends later: plan without it, and then `penstock work`")
        with console.show_progress(f"Planning {folder}") as progress:
            plan = plan_work(
                what, path, folder, progress=progress, open_options=options, **settings
            )
        missing = plan.list_missing()
        text = f"{len(plan):,} tasks, {len(missing):,} to do"
        console.show(f"[bold]{console.escape(plan.folder)}[/]: {text}")
        if on is None:
            console.show(f"do them: penstock work {console.escape(plan.folder)}")
            return
        run_tasks(plan, missing, on, workers)
        commit(folder, on=on, workers=workers)

    calls = [f"  penstock plan-work {what} {example}" for example in examples]
    command.__doc__ = "\n\n".join([help, "Examples:", *calls])
    made = insert_options(command, "settings", parameters, _collect_settings)
    app.command(what, cls=HelpedCommand)(takes_format_options(made))


def _collect_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, as `plan_work` takes them."""
    if "no_eos" in given:
        given["eos"] = choose_end(given["eos"], given.pop("no_eos"))
    if "shards" in given:
        given["fields"] = given.pop("field")
    return {name: value for name, value in given.items() if value not in (None, [])}


def _options(
    *,
    to: str = setting(..., "tar, tfrecord or records.", metavar="FORMAT"),
    shards: int = setting(..., "How many shards, of as many samples: a task each.", min=1),
    destination: str | None = setting(
        None,
        "The folder of shards; or of tokens, the path without .bin and .idx.",
        metavar="PATH",
        show_default="in FOLDER",
    ),
) -> None:
    """Options that no command on one host has."""


_add(
    "index",
    "Plan the index of a data set: its tasks parse some files each.\n\n"
    "Planned again after files were added, only their tasks are missing.",
    [
        "/data/shards /scratch/work --on local",
        "s3://bucket/shards /shared/work --on ray",
    ],
)
_add(
    "convert",
    "Plan a data set in another format: its tasks write a shard each, and read it back.",
    ["photos /shared/work --to tar --shards 1000 --shuffle 0 --on ray"],
    (_options, "to shards destination"),
    (convert, "shuffle name field keys resize"),
)
_add(
    "tokenize",
    "Plan the tokens of texts, as one pair of .bin and .idx: its tasks encode some documents each.",
    ["documents /shared/work --tokenizer tokenizer.json --on dask"],
    (_options, "destination"),
    (tokenize, "tokenizer field eos no_eos bos broken engine"),
)
_add(
    "lengths",
    "Plan the lengths of samples, saved beside the index: its tasks measure some samples each.",
    ["/data/speech /shared/work --by duration --on ray"],
    (lengths, "by field tokenizer"),
)
_add(
    "stats",
    "Plan the statistics of fields of numbers: its tasks measure some samples each.",
    ["/data/weather.zarr /shared/work --on dask"],
    (stats, "by_axis"),
)
_add(
    "verify",
    "Plan to read and decode every sample: names the damaged ones, or makes a digest of all.",
    ["/data/shards /shared/work --on ray"],
)
