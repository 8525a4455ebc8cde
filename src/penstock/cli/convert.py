"""`penstock convert` and `penstock tokenize`: write data in another format, and verify it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from ..convert.arrays import Rechunked, convert_arrays
from ..convert.conversion import convert as convert_data
from ..convert.films import Reencoded, convert_films
from ..convert.manifest import Converted
from ..convert.tokenization import Tokenized
from ..convert.tokenization import tokenize as tokenize_data
from ..errors import UsageError
from . import console
from .console import GOES_ON, explain_interrupt
from .options import DataPath, FormatOptions, open_data, setting, takes_format_options
from .quantities import counted, format_bytes, parse_amount


@takes_format_options
@explain_interrupt(GOES_ON)
def convert(
    path: DataPath,
    destination: Annotated[str, typer.Argument(help="The folder to write, new or empty.")],
    *,
    to: str | None = setting(
        None, "tar, tfrecord, records or lmdb; zarr for arrays.", metavar="FORMAT"
    ),
    keyframes: int | None = setting(
        None, "Films: encode them anew, with a keyframe every so many frames.", metavar="FRAMES"
    ),
    quality: int | None = setting(
        None, "Films: the encoder's crf.", show_default="18 for H.264, 20 HEVC, 24 AV1 and VP9"
    ),
    chunks: str | None = setting(
        None, "Zarr: elements of a chunk, with commas: time=24,lat=64.", metavar="AXIS=SIZE"
    ),
    memory: str | None = setting(
        None, "Zarr: for regions in memory.", metavar="SIZE", show_default="1GiB"
    ),
    shard_bytes: str | None = setting(
        None, "Largest shard.", metavar="SIZE", show_default="256MiB"
    ),
    shards: int | None = setting(None, "How many shards, of as many samples."),
    shuffle: int | None = setting(None, "A seed: write the samples in the order drawn from it."),
    name: str | None = setting(None, "Of the shards: NAME-000000.tar."),
    field: list[str] | None = setting(None, "Write only this field; may be repeated."),
    keys: str | None = setting(None, "names, numbers or both: what samples are called."),
    raw: bool = setting(False, "TFRecord: bytes rather than tf.train.Example."),
    datum: bool = setting(False, "LMDB: Caffe's Datum, with the label."),
    resize: int | None = setting(
        None, "Images: reduce the shorter side of larger ones to this length."
    ),
    force: bool = setting(False, "Start again over another conversion."),
    options: FormatOptions,
) -> None:
    """Write a data set as tar (WebDataset), TFRecord, records or LMDB, and verify it.

    With --to zarr, the arrays of a Zarr, HDF5 or NPY in other chunks. With --keyframes, films anew.

    After Ctrl-C, a full disk or the end of the machine, the same command goes on where it was.
    Each shard is read back and compared before it gets its name.

    Examples:

      penstock convert /data/imagenet/train /fast/train --to tar --shard-bytes 1GiB --shuffle 0

      penstock convert /data/tokens.npy /fast/tokens --to records --shards 64

      penstock convert /data/imagenet/train /fast/small --to tar --resize 256

      penstock convert "/data/train-{000..099}.tar" /fast/train --to lmdb --field jpg --datum

      penstock convert /data/era5.nc /fast/era5.zarr --to zarr --chunks time=24,lat=64,lon=64

      penstock convert /data/films /fast/films --keyframes 8
    """
    started, largest = time.monotonic(), None
    others: dict[str, Any] = {"--shard-bytes": shard_bytes, "--shards": shards}
    others |= {"--shuffle": shuffle, "--name": name, "--keys": keys, "--raw": raw or None}
    others["--resize"] = resize
    if keyframes is not None:
        others |= {"--to": to, "--chunks": chunks, "--memory": memory, "--field": field}
        others |= {"--datum": datum or None}
        _refuse_others("--keyframes", others, options)
        with console.show_progress(f"Writing {destination}", "films") as progress:
            films = convert_films(
                path, destination, keyframes, quality=quality, force=force, progress=progress
            )
        _show_reencoded(films, time.monotonic() - started)
        return
    if to is None or quality is not None:
        missing = "--to is" if to is None else "--keyframes is"
        raise UsageError(f"{missing} not given: use --to tar, or --keyframes 8 for films")
    if to == "zarr":
        _refuse_others("--to zarr", others, set(options) - {"fill"})
        with console.show_progress(f"Writing {destination}", "regions") as progress:
            rechunked = convert_arrays(
                path,
                destination,
                _parse_chunks(chunks),
                fields=field,
                fill=bool(options.get("fill")),
                memory_bytes=int(parse_amount("--memory", memory or "1GiB", "1GiB")),
                force=force,
                progress=progress,
            )
        _show_rechunked(rechunked, time.monotonic() - started)
        return
    if chunks or memory:
        raise UsageError("--chunks and --memory are of --to zarr: leave them out")
    if shard_bytes is not None:
        largest = int(parse_amount("--shard-bytes", shard_bytes, "1GiB"))
    source = open_data(path, options)
    with console.show_progress(f"Writing {destination}", "samples") as progress:
        done = convert_data(
            source,
            destination,
            to=to,  # type: ignore[arg-type]
            shard_bytes=largest,
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


def _refuse_others(way: str, given: Mapping[str, Any], options: Iterable[str]) -> None:
    for other in [*(name for name, value in given.items() if value is not None), *options]:
        raise UsageError(f"{other} does not go with {way}: leave it out")


def _parse_chunks(text: str | None) -> dict[str, int]:
    try:
        pairs = [pair.split("=") for pair in (text or "").split(",")]
        return {axis.strip(): int(size) for axis, size in pairs}
    except ValueError:
        raise UsageError(
            f"--chunks is {text!r}: use AXIS=SIZE,..., such as time=24,lat=64"
        ) from None


def _show_rechunked(done: Rechunked, seconds: float) -> None:
    what = f"{counted(len(done.decoded), 'array')} in {done.chunks:,} chunks"
    most = max(done.decoded, key=lambda name: done.decoded[name], default="")
    if done.decoded.get(most, 0) > 1.05:
        what += f", those of {most!r} decoded {done.decoded[most]:,.3g} times (--memory)"
    how = _describe_progress(done.written, done.regions, "verified", seconds)
    console.show(f"[bold]{console.escape(done.path)}[/]: {what}; {how}")


def _show_reencoded(done: Reencoded, seconds: float) -> None:
    sizes = f"{format_bytes(done.bytes)}, before {format_bytes(done.bytes_before)}"
    what = f"{counted(done.films, 'film')} of {', '.join(done.codecs)}, {sizes}"
    how = _describe_progress(done.written, done.films, "frames and times verified", seconds)
    console.show(f"[bold]{console.escape(done.path)}[/]: {what}; {how}")
    same = f"PSNR to the source at least {done.psnr:.1f} dB"
    console.show("frames equal to the source's" if done.psnr == math.inf else same)
    for when, cost in (("before", done.before), ("now", done.after)):
        rate = f"{cost[0]:,.3g} random clips of 16 frames a second here"
        console.show(f"{when}: {rate}, {format_bytes(int(cost[1]))} each")


def _show_converted(done: Converted, seconds: float) -> None:
    files = counted(len(done.files), "file")
    what = f"{done.samples:,} samples, {format_bytes(done.bytes)} in {files}"
    how = _describe_progress(done.written, done.samples, "verified", seconds)
    console.show(f"[bold]{console.escape(done.path)}[/]: {what}; {how}")
    if done.labels is not None:
        console.show(f"labels: numpy.load({console.escape(repr(done.labels))})")
    console.show(f"read it: {console.escape(done.call)}")


def _describe_progress(written: int, total: int, checked: str, seconds: float) -> str:
    if not written:
        return "it was complete already"
    start = f"went on after {total - written:,}; " if written < total else ""
    return f"{start}{checked}; {seconds:.1f} s"


@takes_format_options
@explain_interrupt(GOES_ON)
def tokenize(
    path: DataPath,
    destination: Annotated[
        str, typer.Argument(help="What to write, without .bin and .idx: /fast/documents.")
    ],
    *,
    tokenizer: str = setting(..., "A tokenizer.json, or the folder that has one.", metavar="PATH"),
    field: str | None = setting(
        None, "The field of text.", show_default="text, txt or the only one"
    ),
    eos: str | None = setting(
        None, "Token that ends a document.", metavar="TOKEN", show_default="the tokenizer's own"
    ),
    no_eos: bool = setting(False, "No token at the ends of documents.", "--no-eos"),
    bos: str | None = setting(
        None, "Token that starts a document.", metavar="TOKEN", show_default="none"
    ),
    special: str = setting("text", "Names of special tokens in texts: as text, or as tokens."),
    broken: str = setting(
        "raise", "Broken lines and texts: raise an error, or mask them as empty."
    ),
    engine: str = setting("tokenizers", "tokenizers, or tiktoken where it is proved to be equal."),
    workers: int | None = setting(None, "Processes that encode.", min=1, show_default="one a core"),
    verify: bool = setting(False, "Encode 1,000 documents again, and compare.", "--verify"),
    force: bool = setting(False, "Replace other tokens of this command.", "--force"),
    options: FormatOptions,
) -> None:
    """Write the tokens of texts as Megatron's .bin and .idx, and verify them.

    After Ctrl-C, a full disk or the end of the machine, the same command goes on where it was.
    The files get their names when all is written and was read back.

    Examples:

      penstock tokenize documents /fast/documents --tokenizer tokenizer.json

      penstock tokenize "crawl-{00..99}.parquet" /fast/crawl --tokenizer model/ --field content

      penstock tokenize documents /fast/documents --tokenizer model/ --engine tiktoken --verify
    """
    end = choose_end(eos, no_eos)
    started = time.monotonic()
    source = open_data(path, options)
    with console.show_progress(f"Tokenizing into {destination}", "documents") as progress:
        done = tokenize_data(
            source,
            destination,
            tokenizer,
            field=field,
            eos=end,
            bos=bos,
            special=special,  # type: ignore[arg-type]
            broken=broken,  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            workers=workers,
            verify=verify,
            force=force,
            progress=progress,
        )
    _show_tokenized(done, time.monotonic() - started)


def choose_end(eos: str | None, no_eos: bool) -> str | bool:
    """Choose the token that ends a document, as `tokenize` takes it."""
    if eos is not None and no_eos:
        raise UsageError("--eos and --no-eos are both given: choose one")
    return not no_eos if eos is None else eos


def _show_tokenized(done: Tokenized, seconds: float) -> None:
    documents = f"{done.documents:,} documents, {format_bytes(done.bytes)}"
    what = f"{done.tokens:,} tokens ({done.dtype}) of {documents}"
    if done.empty:
        what += f"; {done.empty:,} empty, of these {done.broken:,} broken"
    how = _describe_progress(done.written, done.documents, "read back", seconds)
    if done.verified:
        how += f"; {done.verified:,} documents encoded again, all equal"
    console.show(f"[bold]{console.escape(done.path)}[/]: {what}; {how}")
    console.show(f"read it: {console.escape(done.call)}")
