"""`penstock checkpoint`: what a folder of checkpoints holds, whether it is whole, less of it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import rich.box
import rich.table
import typer

from . import terminal
from .errors import DataError, FormatError

if TYPE_CHECKING:
    from .checkpoint.home import Entry, Home

app = typer.Typer(
    help="Checkpoints of a folder: list them, verify them, remove old ones.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Place = Annotated[str, typer.Argument(help="The folder or URL that `Checkpoints` was given.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback()
def _commands() -> None:
    """Checkpoints of a folder: list them, verify them, remove old ones."""


@app.command("list")
def listed(folder: Place, as_json: AsJson = False) -> None:
    """List what is committed, in the order in which it was; the last is what a job goes on with.

    Reads the indices alone: `verify` reads everything.

    Examples:

      penstock checkpoint list run/checkpoints

      penstock checkpoint list run/checkpoints --json | jq .checkpoints[-1].step
    """
    from .checkpoint.homes import home_of

    place = home_of(folder)
    rows = [_described(place, entry) for entry in place.entries()]
    left = [os.path.basename(path) for path in place.leftovers()]
    if as_json:
        found = {"folder": place.path, "checkpoints": rows, "leftovers": left}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    if not rows:
        terminal.show(f"no checkpoint in {terminal.escaped(place.path)}")
    else:
        _show(rows)
    for name in left:
        terminal.show(f"{terminal.escaped(name)}: on its way, or left by a job that was killed")


@app.command()
def verify(
    folder: Place,
    step: Annotated[int | None, typer.Option(help="Of this step alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte and compare it with its checksum. Exit code 1 where one is damaged.

    Examples:

      penstock checkpoint verify run/checkpoints

      penstock checkpoint verify run/checkpoints --step 12000
    """
    from .checkpoint.homes import home_of
    from .checkpoint.loading import verified

    place = home_of(folder)
    entries = [place.entry(step)] if step is not None else place.entries()
    rows: list[dict[str, Any]] = []
    with terminal.progress(f"Reading {place.path}", "checkpoints") as seen:
        for number, entry in enumerate(entries):
            seen(number, len(entries))
            row: dict[str, Any] = {"step": entry.step, "path": entry.path, "damage": None}
            began = time.monotonic()
            try:
                row["bytes"] = verified(place, entry)
            except DataError as error:
                row["damage"] = str(error)
            rows.append(row | {"seconds": round(time.monotonic() - began, 3)})
    bad = [row for row in rows if row["damage"] is not None]
    if as_json:
        sys.stdout.write(json.dumps({"folder": place.path, "checkpoints": rows}, indent=2) + "\n")
    for row in () if as_json else rows:
        how = f"whole, {terminal.size(row['bytes'])} read" if not row["damage"] else row["damage"]
        terminal.show(f"step {row['step']}: {terminal.escaped(how)}")
    if bad:
        raise FormatError(
            f"{len(bad)} of {len(rows)} checkpoints are damaged: load another step, and remove"
            " them when you have one"
        )


@app.command()
def prune(
    folder: Place,
    keep: Annotated[int, typer.Option(min=2, help="How many stay, the last ones.")] = 3,
    dry_run: Annotated[bool, typer.Option(help="Say what would go, and remove nothing.")] = False,
    leftovers: Annotated[
        bool,
        typer.Option(
            help="In an object store, too, remove what jobs that were killed have left. A job that"
            " writes there is stopped by that: its next save is refused."
        ),
    ] = False,
) -> None:
    """Remove all checkpoints but the last ones, and what jobs that were killed have left.

    Refused while a job writes to the folder: it prunes by itself. In an object store nobody can
    tell, so that leftovers stay there unless `--leftovers` is given.

    Examples:

      penstock checkpoint prune run/checkpoints --keep 2

      penstock checkpoint prune run/checkpoints --dry-run

      penstock checkpoint prune s3://bucket/run --leftovers
    """
    from .checkpoint.homes import home_of

    place = home_of(folder)
    collecting = leftovers or not place.takes_over
    locked = collecting and not dry_run
    where = f"process {os.getpid()} on {os.uname().nodename}\n"
    lock = place.lock(where) if locked else None
    try:
        gone = [entry.path for entry in place.entries()[:-keep]]
        left = place.leftovers()
        if not dry_run:
            place.retain(keep)
        if locked:
            place.collect()
    finally:
        if lock is not None:
            lock.close()
    going = gone + (left if collecting else [])
    for path in going:
        said = "would be removed" if dry_run else "is removed"
        if not dry_run and os.path.exists(path):
            said = "is no checkpoint any more, but holds files of others"
        terminal.show(f"{terminal.escaped(os.path.basename(path))} {said}")
    for path in () if collecting else left:
        terminal.show(
            f"{terminal.escaped(os.path.basename(path))} stays: a job may be writing it; where none"
            " is, add --leftovers"
        )
    if not going and (collecting or not left):
        terminal.show("there is nothing to remove")


def _described(place: Home, entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": entry.step,
        "name": os.path.basename(entry.path),
        "committed": place.committed_s(entry),
        "damage": None,
    }
    try:
        index = place.index(entry)
    except DataError as error:
        return row | {"damage": str(error)}
    return row | {
        "kind": index.kind,
        "ranks": index.ranks,
        "shards": len(index.shards),
        "bytes": sum(shard.bytes for shard in index.shards),
    }


def _show(rows: list[dict[str, Any]]) -> None:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("step", "committed", "size", "ranks", "folder"):
        table.add_column(heading, justify="right" if heading in ("step", "size") else "left")
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["committed"]))
        size = "damaged" if row["damage"] else terminal.size(row["bytes"])
        cells = (str(row["step"]), when, size, str(row.get("ranks", "")), row["name"])
        table.add_row(*map(terminal.escaped, cells))
    terminal.out.print(table)
