"""`penstock checkpoint`: list, verify and prune checkpoints; how often to save one."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import DataError, FormatError, MissingError
from . import console
from .app import HelpedCommand, HelpedGroup
from .console import explain_interrupt
from .options import AsJson, setting
from .quantities import counted, duration, format_bytes

if TYPE_CHECKING:
    from ..checkpoint.interval import Advice
    from ..checkpoint.repository import CheckpointEntry, Repository

app = typer.Typer(
    cls=HelpedGroup,
    help="""Checkpoints: list them, verify them, remove old ones; how often to save one.

    Examples:

      penstock checkpoint list run/checkpoints

      penstock checkpoint verify run/checkpoints --step 12000
    """,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Place = Annotated[str, typer.Argument(help="The folder or URL that `Checkpoints` was given.")]


@app.callback()
def _commands() -> None:
    """Checkpoints: list them, verify them, remove old ones; how often to save one."""


@app.command("list", cls=HelpedCommand)
@explain_interrupt()
def list_checkpoints(folder: Place, as_json: AsJson = False) -> None:
    """List the committed checkpoints in order; a job resumes from the last one.

    Reads the indices alone: `verify` reads everything.

    Examples:

      penstock checkpoint list run/checkpoints

      penstock checkpoint list run/checkpoints --json | jq .checkpoints[-1].step
    """
    from ..checkpoint.loading import open_repository

    place = open_repository(folder)
    rows = [_describe_entry(place, entry) for entry in place.entries()]
    leftovers = [os.path.basename(path) for path in place.leftovers()]
    if as_json:
        console.print_json({"folder": place.path, "checkpoints": rows, "leftovers": leftovers})
        return
    if not rows:
        console.show(f"no checkpoint in {console.escape(place.path)}")
    else:
        _show_entries(rows)
    for name in leftovers:
        console.show(f"{console.escape(name)}: on its way, or left by a job that was killed")


@app.command(cls=HelpedCommand)
@explain_interrupt()
def verify(
    folder: Place, step: int | None = setting(None, "Of this step alone."), as_json: AsJson = False
) -> None:
    """Read every byte and compare it with its checksum. Exit code 1 if one is damaged, or none is
    there.

    Examples:

      penstock checkpoint verify run/checkpoints

      penstock checkpoint verify run/checkpoints --step 12000
    """
    from ..checkpoint.loading import open_repository, verify_checkpoint

    place = open_repository(folder)
    entries = [place.entry(step)] if step is not None else place.entries()
    rows: list[dict[str, Any]] = []
    with console.show_progress(f"Reading {place.path}", "checkpoints") as seen:
        for number, entry in enumerate(entries):
            seen(number, len(entries))
            row: dict[str, Any] = {"step": entry.step, "path": entry.path, "damage": None}
            began = time.monotonic()
            try:
                row["bytes"] = verify_checkpoint(place, entry)
            except DataError as error:
                row["damage"] = str(error)
            rows.append(row | {"seconds": round(time.monotonic() - began, 3)})
    bad = [row for row in rows if row["damage"] is not None]
    if as_json:
        console.print_json({"folder": place.path, "checkpoints": rows})
    for row in () if as_json else rows:
        how = row["damage"] or f"whole, {format_bytes(row['bytes'])} read"
        console.show(f"step {row['step']}: {console.escape(how)}")
    if not rows:
        raise MissingError(f"no checkpoint in {place.path}: give the folder that saves were given")
    if bad:
        count = f"{len(bad)} of {len(rows)} checkpoints"
        raise FormatError(f"{count} are damaged: load another, then remove them")


@app.command(cls=HelpedCommand)
@explain_interrupt("what was removed stays removed, and the same command removes the rest")
def prune(
    folder: Place,
    keep: int = setting(3, "How many stay, the last ones.", min=2),
    dry_run: bool = setting(False, "Say what would go, and remove nothing."),
    leftovers: bool = setting(
        False,
        "In an object store, too, remove what killed jobs have left. A job that writes there "
        "is stopped by that: its next save is refused.",
    ),
) -> None:
    """Remove all checkpoints but the last ones, and what jobs that were killed have left.

    Refused while a job writes to the folder: it prunes by itself. In an object store nobody can
    tell, so that leftovers stay there unless `--leftovers` is given.

    Examples:

      penstock checkpoint prune run/checkpoints --keep 2

      penstock checkpoint prune run/checkpoints --dry-run

      penstock checkpoint prune s3://bucket/run --leftovers
    """
    from ..checkpoint.loading import open_repository
    from ..checkpoint.retention import delete_old, list_old

    place = open_repository(folder)
    collecting = leftovers or not place.takes_over
    lock = place.lock() if collecting and not dry_run else None
    try:
        gone = [entry.path for entry in list_old(place, keep)]
        unfinished = place.leftovers()
        if not dry_run:
            delete_old(place, keep)
        if lock is not None:
            place.delete_leftovers(lock)
    finally:
        if lock is not None:
            lock.close()
    going = gone + (unfinished if collecting else [])
    for path in going:
        said = "would be removed" if dry_run else "is removed"
        if not dry_run and os.path.exists(path):
            said = "is no checkpoint any more, but holds files of others"
        console.show(f"{console.escape(os.path.basename(path))} {said}")
    for path in () if collecting else unfinished:
        console.show(
            f"{console.escape(os.path.basename(path))} stays: a job may be writing it; where none"
            " is, add --leftovers"
        )
    if not going and (collecting or not unfinished):
        console.show("there is nothing to remove")


@app.command(cls=HelpedCommand)
@explain_interrupt()
def interval(
    blocked_seconds: float = setting(..., "How long a save holds training up."),
    commit_seconds: float = setting(..., "From the call of save to the commit."),
    step_seconds: float = setting(..., "A training step."),
    mtbf_hours: float = setting(..., "Between failures of the job, or of a node: --nodes."),
    nodes: int = setting(1, "Nodes of the job, each of which fails every --mtbf-hours."),
    slowdown: float = setting(0.0, "What steps take longer while a save is written; 0.03 is 3 %."),
    restart_seconds: float = setting(0.0, "From a failure until training goes on."),
    overhead: float = setting(0.035, "The largest part of training's time that saves may take."),
    as_json: AsJson = False,
) -> None:
    """Say how often to save: what loses least to failures, or the shortest interval that is
    possible where that is longer.

    Saving often costs time in saves, saving seldom what is done once more after a failure; the
    least of both is near sqrt(2 x cost of a save x time between failures). Two things may ask for
    more: the save before has to be committed, and saves are not to take too much of training.

    `checkpoints.last` has the first two as blocked_s and seconds, and `checkpoints.advice(mtbf_s)`
    says all of this from what it measured.

    Examples:

      penstock checkpoint interval --blocked-seconds 2 --commit-seconds 40 --step-seconds 1 \
--mtbf-hours 20000 --nodes 512 --restart-seconds 600
    """
    from ..checkpoint.interval import Costs, Failures, advise_interval

    costs = Costs(
        blocked_s=blocked_seconds, commit_s=commit_seconds, step_s=step_seconds, slowdown=slowdown
    )
    failures = Failures(mtbf_s=mtbf_hours * 3600, nodes=nodes, restart_s=restart_seconds)
    advice = advise_interval(costs, failures, overhead)
    if as_json:
        console.print_json(asdict(advice) | {"lost": advice.lost})
        return
    _show_advice(advice, overhead)


def _describe_entry(place: Repository, entry: CheckpointEntry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": entry.step,
        "name": os.path.basename(entry.path),
        "committed": place.committed_s(entry),
        "damage": None,
    }
    try:
        index = place.read_index(entry)
    except DataError as error:
        return row | {"damage": str(error)}
    return row | {
        "kind": index.kind,
        "ranks": index.ranks,
        "shards": len(index.shards),
        "bytes": sum(shard.bytes for shard in index.shards),
    }


def _show_entries(rows: list[dict[str, Any]]) -> None:
    headings = ("step", "committed", "size", "ranks", "folder")
    table = console.make_table(*headings, right=("step", "size"))
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["committed"]))
        size = "damaged" if row["damage"] else format_bytes(row["bytes"])
        cells = (str(row["step"]), when, size, str(row.get("ranks", "")), row["name"])
        table.add_row(*map(console.escape, cells))
    console.out.print(table)


def _show_advice(advice: Advice, overhead: float) -> None:
    costs, share = advice.costs, f"{100 * overhead:.3g} %"
    often = duration(advice.failures.job_mtbf_s)
    table = console.make_table("so that", "steps", "time", "", right=("steps", "time"))
    for binds, least, why in (
        ("failures", advice.failure_steps, f"least is lost to a failure every {often}"),
        ("commit", advice.commit_steps, "the save before is committed"),
        ("overhead", advice.overhead_steps, f"saves take at most {share} of training's time"),
    ):
        mark = "binds" if advice.binds == binds else ""
        table.add_row(why, f"{least:,}", duration(least * costs.step_s + costs.lost_s), mark)
    console.out.print(table)
    steps = counted(advice.steps, "step")
    console.show(f"save every {steps}, which is every {duration(advice.seconds)}")
    console.show(
        f"lost: {advice.lost:.2%} of all time; {advice.saving:.2%} in saves, "
        f"{advice.redoing:.2%} done once more, {advice.restarting:.2%} in restarts"
    )
    console.show(f"a failure costs {duration(advice.lost_per_failure_s)} of training, on average")
