"""`penstock index` and `penstock lengths`: save where samples are, and how long each is."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from ..dataset.dataset import Dataset
from ..dataset.measuring import measure_lengths
from ..dataset.sources import locate_data
from ..engine.hub import pin_hub_urls
from ..errors import UsageError
from ..images.positions import describe_positions, find_positions
from ..index.saved_index import list_index_paths
from . import console
from .console import GOES_ON, explain_interrupt
from .inspect import describe_index
from .options import (
    DataPath,
    FormatOptions,
    import_function,
    open_data,
    setting,
    takes_format_options,
)

_shown_max = 20
"""Damaged images that are named."""


@takes_format_options
@explain_interrupt()
def index(
    path: DataPath,
    *,
    options: FormatOptions,
    force: bool = setting(False, "Make the index again, however fresh it is."),
    positions: bool = setting(
        False, "Decode all JPEG images once, and save where the rows of their blocks start."
    ),
    field: str | None = setting(None, "The field that has the images, for --positions."),
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
    before, began = _stamp_sidecars(path), time.time()
    started = time.monotonic()
    dataset = open_data(path, options, "rebuild" if force else "auto")
    if dataset.sidecar is None:
        raise SystemExit(1)
    seconds = time.monotonic() - started
    console.show(f"[bold]{console.escape(dataset.path)}[/]: {describe_index(dataset)}")
    now = _stamp_sidecars(path)
    is_same = now.get(dataset.sidecar) == before.get(dataset.sidecar)
    if dataset.sidecar not in now:  # of a split
        is_same = os.path.getmtime(dataset.sidecar) < began
    done = "is up to date" if is_same else f"made in {seconds:.2f} s"
    console.show(f"index {done}: {console.escape(dataset.sidecar)}")
    if positions:
        _index_positions(dataset, field, force)


def _index_positions(dataset: Dataset, field: str | None, force: bool) -> None:
    """Find the positions of all images, and report the damaged ones."""
    started = time.monotonic()
    with console.show_progress(f"Decoding {dataset.path}", "samples") as progress:
        report = find_positions(dataset, field=field, force=force, progress=progress)
    seconds = time.monotonic() - started
    console.show(
        f"positions of {describe_positions(dataset.index, report.saved)}; "
        f"{report.others:,} images are of other kinds; {seconds:.1f} s"
    )
    for _, text in report.broken[:_shown_max]:
        console.say(f"damaged: {text}")
    if len(report.broken) > _shown_max:
        console.say(f"and {len(report.broken) - _shown_max:,} more images are damaged")
    if report.broken:
        raise SystemExit(1)


def _stamp_sidecars(path: str) -> dict[str, tuple[int, int]]:
    """Return inode and time of each saved index's file, which differ from one index to the next."""
    stamps = {}
    for sidecar in list_index_paths(locate_data(*pin_hub_urls([path]))[0]):
        with suppress(OSError):
            status = os.stat(sidecar)
            stamps[sidecar] = status.st_ino, status.st_mtime_ns
    return stamps


@takes_format_options
@explain_interrupt(GOES_ON)
def lengths(
    path: DataPath,
    *,
    by: str = setting(
        ...,
        "bytes; tokens (numbers of a list); duration (milliseconds of WAV or FLAC); or "
        "module:function of a sample.",
        metavar="RULE",
    ),
    field: str | None = setting(None, "The field with the text or sound."),
    tokenizer: str | None = setting(
        None, "A tokenizer.json, or the folder that has one, for tokens of texts.", metavar="PATH"
    ),
    workers: int | None = setting(
        None, "Processes that measure.", min=1, show_default="one a core"
    ),
    force: bool = setting(False, "Measure again what is there."),
    options: FormatOptions,
) -> None:
    """Measure how long each sample of a data set is, and save that beside the index.

    Selections can then name [bold]length[/], and [bold]dataset.lengths[/] has them all. After
    Ctrl-C, kill -9 or the end of the machine, the same command goes on where it was.

    Examples:

      penstock lengths /data/corpus --by bytes

      penstock lengths "/data/text-*.jsonl" --by tokens --tokenizer tokenizer.json --field text

      penstock lengths /data/corpus --by mytrain.data:count_tokens

      penstock lengths /data/speech --by duration
    """
    rule: Any = import_function("--by", by) if ":" in by else by
    dataset = open_data(path, options)
    started = time.monotonic()
    with console.show_progress(f"Measuring {dataset.path}", "samples") as progress:
        saved = measure_lengths(
            dataset,
            rule,
            field=field,
            tokenizer=tokenizer,
            processes=workers,
            force=force,
            progress=progress,
        )
    values = saved.values
    text = f"{len(values):,} samples, no length"
    if len(values):
        text = (
            f"{len(values):,} samples, {int(values.min()):,} to {int(values.max()):,} long, "
            f"{float(values.mean()):,.1f} on average"
        )
    seconds = time.monotonic() - started
    console.show(f"[bold]{console.escape(dataset.path)}[/]: {text}; {seconds:.1f} s")
    console.show(f"lengths by {console.escape(saved.rule)}: {console.escape(saved.path)}")
