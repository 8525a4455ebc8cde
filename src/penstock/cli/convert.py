"""`penstock convert`: write a data set in another format, and verify it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..convert import Converted
from ..convert import convert as convert_data
from ..errors import UsageError
from . import console
from .amounts import parse_bytes
from .interrupt import GOES_ON, explain_interrupt
from .options import FormatOptions, Path, open_data, takes_format_options
from .quantities import counted


@takes_format_options
@explain_interrupt(GOES_ON)
def convert(
    path: Path,
    destination: Annotated[str, typer.Argument(help="The folder to write, new or empty.")],
    *,
    to: Annotated[str, typer.Option(help="tar, tfrecord, records or lmdb.")],
    shard_bytes: Annotated[
        str | None, typer.Option(help="Largest shard, such as 1GiB; 256MiB by default.")
    ] = None,
    shards: Annotated[int | None, typer.Option(help="How many shards, of as many samples.")] = None,
    shuffle: Annotated[
        int | None, typer.Option(help="A seed: write the samples in the order drawn from it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the shards: NAME-000000.tar.")] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Write only this field; may be repeated.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option(help="names, numbers or both: what samples are called.")
    ] = None,
    raw: Annotated[
        bool, typer.Option(help="TFRecord: bytes rather than tf.train.Example.")
    ] = False,
    datum: Annotated[bool, typer.Option(help="LMDB: Caffe's Datum, with the label.")] = False,
    resize: Annotated[
        int | None,
        typer.Option(help="Images: reduce the shorter side of larger ones to this length."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Begin anew over another conversion.")] = False,
    options: FormatOptions,
) -> None:
    """Write a data set as tar (WebDataset), TFRecord, records or LMDB, and verify it.

    After Ctrl-C, a full disk or the end of the machine, the same command goes on where it was.
    Each shard is read back and compared before it gets its name.

    Examples:

      penstock convert /data/imagenet/train /fast/train --to tar --shard-bytes 1GiB --shuffle 0

      penstock convert /data/tokens.npy /fast/tokens --to records --shards 64

      penstock convert /data/imagenet/train /fast/small --to tar --resize 256

      penstock convert "/data/train-{000..099}.tar" /fast/train --to lmdb --field jpg --datum
    """
    started = time.monotonic()
    source = open_data(path, options)
    with (
        console.show_progress(f"Writing {destination}", "samples") as progress,
        console.print_warnings(),
    ):
        done = convert_data(
            source,
            destination,
            to=to,  # type: ignore[arg-type]
            shard_bytes=None if shard_bytes is None else _parse_size(shard_bytes),
            shards=shards,
            shuffle=shuffle,
            name=name,
            fields=field,
            keys=keys,  # type: ignore[arg-type]
            raw=raw,
            datum=datum,
            resize=resize,
            force=force,
            progress=progress,
        )
    _show_converted(done, time.monotonic() - started)


def _show_converted(done: Converted, seconds: float) -> None:
    files = counted(len(done.files), "file")
    what = f"{done.samples:,} samples, {console.format_bytes(done.bytes)} in {files}"
    if not done.written:
        how = "it was complete already"
    elif done.written < done.samples:
        how = f"went on after {done.samples - done.written:,}; verified; {seconds:.1f} s"
    else:
        how = f"verified; {seconds:.1f} s"
    console.show(f"[bold]{console.escape(done.path)}[/]: {what}; {how}")
    if done.labels is not None:
        console.show(f"labels: numpy.load({console.escape(repr(done.labels))})")
    console.show(f"read it: {console.escape(done.call)}")


def _parse_size(text: str) -> int:
    try:
        return int(parse_bytes(text))
    except ValueError:
        raise UsageError(f"--shard-bytes is {text!r}: use such as 256MiB, 1GB or 1000000") from None
