"""`penstock lengths`: measure how long each sample of a data set is."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ..dataset import measure_lengths
from . import console
from .interrupt import GOES_ON, explain_interrupt
from .options import FormatOptions, Path, import_function, open_data, takes_format_options


@takes_format_options
@explain_interrupt(GOES_ON)
def lengths(
    path: Path,
    *,
    by: Annotated[
        str,
        typer.Option(
            help="bytes; tokens (numbers of a list); duration (milliseconds of WAV or FLAC); or "
            "module:function of a sample."
        ),
    ],
    field: Annotated[str | None, typer.Option(help="The field with the text or sound.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="A tokenizer.json, or the folder that has one, for tokens of texts."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many measure; by default one for each core.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Measure again what is there.")] = False,
    options: FormatOptions,
) -> None:
    """Measure how long each sample of a data set is, and save that beside the index.

    Selections can then name [bold]length[/], and [bold]dataset.lengths[/] has them all. After
    Ctrl-C, kill -9 or the end of the machine, the same command goes on where it was.

    Examples:

      penstock lengths /data/corpus --by bytes

      penstock lengths "/data/text-*.jsonl" --by tokens --tokenizer tokenizer.json -o fields=text

      penstock lengths /data/corpus --by mytrain.data:count_tokens

      penstock lengths /data/speech --by duration
    """
    rule: Any = import_function("--by", by) if ":" in by else by
    dataset = open_data(path, options)
    started = time.monotonic()
    with (
        console.show_progress(f"Measuring {dataset.path}", "samples") as progress,
    ):
        saved = measure_lengths(
            dataset,
            rule,
            field=field,
            tokenizer=tokenizer,
            processes=processes,
            force=force,
            progress=progress,
        )
    values = saved.values
    shown = f"{len(values):,} samples, no length"
    if len(values):
        shown = (
            f"{len(values):,} samples, {int(values.min()):,} to {int(values.max()):,} long, "
            f"{float(values.mean()):,.1f} on average"
        )
    seconds = time.monotonic() - started
    console.show(f"[bold]{console.escape(dataset.path)}[/]: {shown}; {seconds:.1f} s")
    console.show(f"lengths by {console.escape(saved.rule)}: {console.escape(saved.path)}")
