"""`penstock index`: find the samples of a data set and save where they are."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Annotated

import typer

from ..loader import locate_data, sidecar_paths
from ..loader import open as open_dataset
from . import console
from .inspect import describe_index
from .options import (
    Dtype,
    Extension,
    Format,
    HeaderBytes,
    Option,
    Path,
    RecordBytes,
    Shape,
    collect_options,
    hide_credentials,
    recall_options,
)


def index(
    path: Path,
    format: Format = None,
    record_bytes: RecordBytes = None,
    header_bytes: HeaderBytes = 0,
    dtype: Dtype = None,
    shape: Shape = None,
    extension: Extension = None,
    option: Option = None,
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
    options = collect_options(format, record_bytes, header_bytes, dtype, shape, extension, option)
    options = {**recall_options(path, options), **options}
    before = _stamp_sidecars(path)
    started = time.monotonic()
    with (
        console.show_progress(f"Looking at {hide_credentials(path)}") as progress,
        console.print_warnings(),
    ):
        how = "rebuild" if force else "auto"
        found = open_dataset(path, index=how, progress=progress, **options)
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
