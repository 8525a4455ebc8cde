"""`penstock index`: find the samples of a data set and save where they are."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Annotated

import typer

from ..dataset import Dataset, locate_data, sidecar_paths
from ..engine import pin_hub_urls
from ..errors import UsageError
from ..images import describe_positions, find_positions
from . import console
from .inspect import describe_index
from .interrupt import explain_interrupt
from .options import FormatOptions, Path, open_data, takes_format_options

_shown_max = 20
"""Damaged images that are named."""


@takes_format_options
@explain_interrupt()
def index(
    path: Path,
    *,
    options: FormatOptions,
    force: Annotated[bool, typer.Option(help="Make the index anew, however fresh it is.")] = False,
    positions: Annotated[
        bool,
        typer.Option(
            help="Decode all JPEG images once, and save where the rows of their blocks begin."
        ),
    ] = False,
    field: Annotated[
        str | None, typer.Option(help="The field that has the images, for --positions.")
    ] = None,
) -> None:
    """Find the samples of a data set and save where they are, beside the data.

    Opening the data is then instant, in every job. [bold]penstock.open[/] does the same by itself
    when there is no index; on large data, or where jobs may not write, do it here once.

    Examples:

      penstock index /data/imagenet/train

      penstock index /data/tokens.bin --dtype uint16 --shape 2048

      penstock index "/data/cifar/*.bin" --record-bytes 3073

      penstock index /data/imagenet/train --positions
    """
    if field is not None and not positions:
        raise UsageError("--field is for --positions: leave it out, or give both")
    before = _stamp_sidecars(path)
    started = time.monotonic()
    found = open_data(path, options, "rebuild" if force else "auto")
    if found.sidecar is None:
        raise SystemExit(1)
    seconds = time.monotonic() - started
    console.show(f"[bold]{console.escape(found.path)}[/]: {describe_index(found)}")
    same = _stamp_sidecars(path).get(found.sidecar) == before.get(found.sidecar)
    done = "is up to date" if same else f"made in {seconds:.2f} s"
    console.show(f"index {done}: {console.escape(found.sidecar)}")
    if positions:
        _index_positions(found, field, force)


def _index_positions(found: Dataset, field: str | None, force: bool) -> None:
    """Find the positions of all images, and report those that are damaged."""
    started = time.monotonic()
    with (
        console.show_progress(f"Decoding {found.path}", "samples") as progress,
    ):
        report = find_positions(found, field=field, force=force, progress=progress)
    seconds = time.monotonic() - started
    console.show(
        f"positions of {describe_positions(found.index, report.saved)}; "
        f"{report.others:,} images are of other kinds; {seconds:.1f} s"
    )
    for _, text in report.broken[:_shown_max]:
        console.say(f"damaged: {text}")
    if len(report.broken) > _shown_max:
        console.say(f"and {len(report.broken) - _shown_max:,} more images are damaged")
    if report.broken:
        raise SystemExit(1)


def _stamp_sidecars(path: str) -> dict[str, tuple[int, int]]:
    """Numbers and times of the saved indexes' files, which differ from one index to the next."""
    stamps = {}
    for sidecar in sidecar_paths(locate_data(*pin_hub_urls([path]))[0]):
        with suppress(OSError):
            status = os.stat(sidecar)
            stamps[sidecar] = status.st_ino, status.st_mtime_ns
    return stamps
