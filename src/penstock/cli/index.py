"""`penstock index`, `lengths` and `stats`: save where samples are, how long each is, and what their
fields hold."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..arguments import import_function
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
    AsJson,
    DataPath,
    FormatOptions,
    open_data,
    setting,
    takes_format_options,
)
from .quantities import counted

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


@takes_format_options
@explain_interrupt(GOES_ON)
def stats(
    path: DataPath,
    *,
    by_axis: int | None = setting(
        None, "Axis of a sample whose places have statistics of their own, too.", min=0
    ),
    bins: int = setting(0, "Bins of a histogram of each field; takes a second read.", min=0),
    workers: int | None = setting(None, "Threads that measure.", min=1, show_default="one a core"),
    force: bool = setting(False, "Measure again what is there."),
    as_json: AsJson = False,
    options: FormatOptions,
) -> None:
    """Measure mean, deviation and extrema of each field of numbers, and save that beside the index.

    [bold]dataset.load_stats()[/] has them then. The deviation is the population's. NaN are counted
    as missing. After Ctrl-C, kill -9 or the end of the machine, the same command goes on where it
    was.

    Examples:

      penstock stats /data/weather.zarr

      penstock stats /data/weather.zarr --by-axis 0 --bins 64

      penstock stats /data/weather.zarr --json | jq .fields.t2m.mean
    """
    dataset = open_data(path, options)
    with console.show_progress(f"Measuring {dataset.path}", "samples") as progress:
        found = dataset.stats(
            by_axis=by_axis, bins=bins, threads=workers, force=force, progress=progress
        )
    if as_json:
        fields = {name: asdict(field) for name, field in found.items()}
        for values in fields.values():
            for row in (values, *values["rows"]):
                row["sd"] = None if row["sd"] == math.inf else row["sd"]
        console.print_json({"path": dataset.path, "fields": fields})
        return
    names = ("numbers", "missing", "infinite", "minimum", "maximum", "mean", "sd")
    table = console.make_table("field", *names, right=names)
    for name, field in found.items():
        for place, row in enumerate([field, *field.rows], -1):
            label = name if place < 0 else f"{name}[{place}]"
            counts = [f"{count:,}" for count in (row.count, row.missing, row.infinite)]
            ends = map(_show_number, (row.minimum, row.maximum, row.mean, row.sd))
            table.add_row(console.escape(label), *counts, *ends)
    console.show(f"[bold]{console.escape(dataset.path)}[/]: {counted(len(dataset), 'sample')}")
    console.print_wide(table)
    for name, field in found.items():
        if field.histogram:
            console.show(f"\n{console.escape(name)}")
        for low, count in zip(field.edges, field.histogram, strict=False):
            bar = console.draw_bar(count, max(field.histogram), 40)
            console.show(f"{low:>12,.5g} {bar} {count:,}")


def _show_number(value: float | None) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else f"{value:,.6g}"
