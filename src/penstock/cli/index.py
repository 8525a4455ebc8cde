"""`penstock index`: find the samples of a data set and save where they are."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Annotated

import typer

from ..loader import locate_data, sidecar_paths
from . import console
from .inspect import describe_index
from .options import FormatOptions, Path, open_data, takes_format_options


@takes_format_options
def index(
    path: Path,
    *,
    options: FormatOptions,
    force: Annotated[bool, typer.Option(help="Make the index anew, however fresh it is.")] = False,
) -> None:
    """Find the samples of a data set and save where they are, beside the data.

    Opening the data is then instant, in every job. [bold]penstock.open[/] does the same by itself
    when there is no index; on large data, or where jobs may not write, do it here once.

    Examples:

      penstock index /data/imagenet/train

      penstock index /data/tokens.bin --dtype uint16 --shape 2048

      penstock index "/data/cifar/*.bin" --record-bytes 3073
    """
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


def _stamp_sidecars(path: str) -> dict[str, tuple[int, int]]:
    """Numbers and times of the saved indexes' files, which differ from one index to the next."""
    stamps = {}
    for sidecar in sidecar_paths(locate_data(path)[0]):
        with suppress(OSError):
            status = os.stat(sidecar)
            stamps[sidecar] = status.st_ino, status.st_mtime_ns
    return stamps
