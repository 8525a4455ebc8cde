"""`penstock index | inspect | doctor | formats | convert | simulate | plan | broker | top |
bench | trace | checkpoint`.

Results go to standard output, messages to standard error. An error that penstock foresees is one
message and exit code 1; Ctrl-C is exit code 130 and leaves nothing half-written.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import numpy as np

from ..budget import Budget
from ..convert import Converted
from ..convert import convert as converted
from ..engine import Progress, open_store
from ..errors import SidecarError, UsageError
from ..index import FORMATS, Chunked, Index
from ..loader import (
    Dataset,
    choose_shuffle,
    describe_choice,
    locate_data,
    record_choice,
    sidecar_paths,
)
from ..loader import open as open_dataset
from . import console, exit_codes

try:
    import rich.box
    import rich.markup
    import rich.table
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"penstock: the command line needs {missing.name}: pip install 'penstock[cli]'"
    ) from None

from . import bench, checkpoint, trace
from .broker import broker
from .doctor import doctor
from .options import (
    Dtype,
    Extension,
    Format,
    HeaderBytes,
    Option,
    Path,
    RecordBytes,
    Shape,
    options_of,
    remembered,
    without_secrets,
)
from .plan import plan
from .schedule import schedule
from .simulate import simulate
from .top import top

app = typer.Typer(
    help="Training data from storage to accelerators: look at data, index it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)

_SHOWN = 8
"""Rows shown of what may have many."""


def main() -> None:
    """Run the command line and exit."""
    exit_codes.run(app)


@app.callback()
def _commands() -> None:
    """Training data from storage to accelerators."""


@app.command()
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
    options = options_of(format, record_bytes, header_bytes, dtype, shape, extension, option)
    options = {**remembered(path, options), **options}
    before = _stamps(path)
    started = time.monotonic()
    with (
        console.progress(f"Looking at {without_secrets(path)}") as progress,
        console.warnings_said(),
    ):
        how = "rebuild" if force else "auto"
        found = open_dataset(path, index=how, progress=progress, **options)
    if found.sidecar is None:
        raise SystemExit(1)
    seconds = time.monotonic() - started
    console.show(f"[bold]{console.escaped(found.path)}[/]: {_headline(found)}")
    same = _stamps(path).get(found.sidecar) == before.get(found.sidecar)
    done = "is up to date" if same else f"made in {seconds:.2f} s"
    console.show(f"index {done}: {console.escaped(found.sidecar)}")


@app.command()
def inspect(
    path: Path,
    format: Format = None,
    record_bytes: RecordBytes = None,
    header_bytes: HeaderBytes = 0,
    dtype: Dtype = None,
    shape: Shape = None,
    extension: Extension = None,
    option: Option = None,
    verify: Annotated[
        bool, typer.Option(help="Check all of the saved index, and every file against it.")
    ] = False,
    shuffle: Annotated[
        bool,
        typer.Option(help="Measure reading (0.2 s) and say what shuffle='auto' would choose."),
    ] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Samples of a step of one rank, for --shuffle.")
    ] = 256,
    ranks: Annotated[int, typer.Option(min=1, help="How many ranks, for --shuffle.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a data set is: samples, sizes, labels, the state of its index. Writes nothing.

    Examples:

      penstock inspect /data/imagenet/train

      penstock inspect /data/tokens.bin --dtype uint16 --shape 2048

      penstock inspect /data/imagenet/train --verify

      penstock inspect /data/imagenet/train --shuffle --batch-size 64

      penstock inspect /data/imagenet/train --json | jq .samples
    """
    options = options_of(format, record_bytes, header_bytes, dtype, shape, extension, option)
    with (
        console.progress(f"Looking at {without_secrets(path)}") as progress,
        console.warnings_said(),
    ):
        found = open_dataset(path, index="read", progress=progress, **options)
        states = dict(_sidecar_states(found, verify))
        changed = _changed(found.index, progress) if verify else []
        choice = _choice(found, batch_size, ranks) if shuffle else None
    if as_json:
        report = _report(found, states, changed, verify) | {"shuffle": choice}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        _show(found, states, changed, verify)
        if choice is not None:
            console.out.print(rich.markup.escape(_choice_said(choice)))
    if changed or (verify and any(state.startswith("damaged") for state in states.values())):
        raise SystemExit(1)


@app.command()
def formats(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the formats that are read, and the options that each takes.

    Options are keyword arguments of [bold]penstock.open[/], and --option NAME=VALUE here.

    Examples:

      penstock formats

      penstock inspect /data/shards --option label=class
    """
    if as_json:
        listed = [
            {
                "name": entry.name,
                "summary": entry.summary,
                "kinds": list(entry.kinds),
                "options": list(entry.options),
                "detected": entry.sniff is not None or entry.folder is not None,
            }
            for entry in FORMATS.values()
        ]
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
        return
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("format", "what", "where", "options"):
        table.add_column(heading, overflow="fold")
    for entry in FORMATS.values():
        table.add_row(
            entry.name, entry.summary, ", ".join(entry.kinds), ", ".join(entry.options) or "-"
        )
    console.out.print(table)


@app.command()
def convert(
    path: Path,
    destination: Annotated[str, typer.Argument(help="The folder to write, new or empty.")],
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
    force: Annotated[bool, typer.Option(help="Begin anew over another conversion.")] = False,
    format: Format = None,
    record_bytes: RecordBytes = None,
    header_bytes: HeaderBytes = 0,
    dtype: Dtype = None,
    shape: Shape = None,
    extension: Extension = None,
    option: Option = None,
) -> None:
    """Write a data set as tar (WebDataset), TFRecord, records or LMDB, and verify it.

    After Ctrl-C, a full disk or the end of the machine, the same command goes on where it was.
    Each shard is read back and compared before it gets its name.

    Examples:

      penstock convert /data/imagenet/train /fast/train --to tar --shard-bytes 1GiB --shuffle 0

      penstock convert /data/tokens.npy /fast/tokens --to records --shards 64

      penstock convert "/data/train-{000..099}.tar" /fast/train --to lmdb --field jpg --datum
    """
    options = options_of(format, record_bytes, header_bytes, dtype, shape, extension, option)
    options = {**remembered(path, options), **options}
    started = time.monotonic()
    with (
        console.progress(f"Looking at {without_secrets(path)}") as progress,
        console.warnings_said(),
    ):
        source = open_dataset(path, progress=progress, **options)
    try:
        with (
            console.progress(f"Writing {destination}", "samples") as progress,
            console.warnings_said(),
        ):
            done = converted(
                source,
                destination,
                to=to,  # type: ignore[arg-type]
                shard_bytes=None if shard_bytes is None else _parsed_size(shard_bytes),
                shards=shards,
                shuffle=shuffle,
                name=name,
                fields=field,
                keys=keys,  # type: ignore[arg-type]
                raw=raw,
                datum=datum,
                force=force,
                progress=progress,
            )
    except KeyboardInterrupt:
        console.say("stopped: what is finished is kept, and the same command goes on after it")
        raise
    _show_converted(done, time.monotonic() - started)


app.command()(simulate)
app.command()(plan)
app.command()(schedule)
app.command()(doctor)
app.command()(broker)
app.command()(top)
app.add_typer(bench.app(), name="bench")
app.add_typer(trace.app, name="trace")
app.add_typer(checkpoint.app, name="checkpoint")


def _show_converted(done: Converted, seconds: float) -> None:
    files = "1 file" if len(done.files) == 1 else f"{len(done.files):,} files"
    what = f"{done.samples:,} samples, {console.size(done.bytes)} in {files}"
    if not done.written:
        how = "it was complete already"
    elif done.written < done.samples:
        how = f"went on after {done.samples - done.written:,}; verified; {seconds:.1f} s"
    else:
        how = f"verified; {seconds:.1f} s"
    console.show(f"[bold]{console.escaped(done.path)}[/]: {what}; {how}")
    if done.labels is not None:
        console.show(f"labels: numpy.load({console.escaped(repr(done.labels))})")
    console.show(f"read it: {console.escaped(done.call)}")


def _parsed_size(text: str) -> int:
    """Bytes, from such as 256MiB, 1G or 1000000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", text.strip().lower())
    if found is None:
        raise UsageError(f"--shard-bytes is {text!r}: use such as 256MiB, 1GB or 1000000")
    number, unit, rest = found.groups()
    base = 1000 if rest == "b" else 1024
    return int(float(number) * base ** " kmgt".index(unit or " "))


# -- what the commands share -----------------------------------------------------------------------


def _stamps(path: str) -> dict[str, tuple[int, int]]:
    """What tells one saved index from its successor: the file's number and time."""
    stamps = {}
    for sidecar in sidecar_paths(locate_data(path)[0]):
        with suppress(OSError):
            status = os.stat(sidecar)
            stamps[sidecar] = status.st_ino, status.st_mtime_ns
    return stamps


def _headline(found: Dataset) -> str:
    index = found.index
    files = "1 file" if len(index.files) == 1 else f"{len(index.files):,} files"
    classes = f", {len(index.classes):,} classes" if index.classes is not None else ""
    size = console.size(index.total_bytes)
    return f"{index.format}, {index.count:,} samples{classes}, {size} in {files}"


# -- inspect ---------------------------------------------------------------------------------------


def _sidecar_states(found: Dataset, verify: bool) -> Iterator[tuple[str, str]]:
    """Each place where an index may be saved, and how it is."""
    place, store = locate_data(found.path)
    for path in sidecar_paths(place):
        try:
            saved = Index.load(path, store.root, verify or None)
        except FileNotFoundError:
            continue
        except (OSError, SidecarError) as error:
            yield path, f"damaged: {error}"
            continue
        stale = saved.validate(store)
        if stale is not None:
            yield path, f"stale: {stale}"
        elif saved.racy:
            yield path, "stale: the data changed while the index was made"
        elif saved.fingerprint != found.fingerprint:
            yield path, f"of other options: {dict(saved.options)}"
        else:
            yield path, "fresh"


def _changed(index: Index, progress: Progress) -> list[str]:
    """Files that are not as they were indexed."""
    files = index.files
    now, errors = open_store(files.root).probe(files, progress)
    same = (errors == 0) & (now.size == files.size) & (now.mtime_ns == files.mtime_ns)
    return [files.name(int(file)) for file in np.flatnonzero(~same)]


def _choice(found: Dataset, batch_size: int, ranks: int) -> dict[str, Any]:
    """What shuffle="auto" would choose, and what was measured for it."""
    chosen, probed = choose_shuffle(found, Budget(), batch_size, ranks, batch_size * ranks)
    return record_choice(len(found), chosen, probed)


def _choice_said(choice: dict[str, Any]) -> str:
    said = describe_choice(choice)
    if "latency_ns" in choice:
        said += (
            f"\n  measured in {choice['took_s']:.2f} s: {choice['latency_ns']:,.0f} ns a read, "
            f"{choice['requests']:.1f} are served at a time, large reads give "
            f"{choice['bytes_per_s']:,.0f} bytes/s"
        )
    return said


def _sampled_lengths(index: Index) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The lengths of all samples, or of a million spread evenly; none where they are compressed."""
    count = min(index.count, 1_000_000)
    if not count or isinstance(index.layouts[0], Chunked):
        return np.zeros(0, np.int64)
    return index.lengths(np.linspace(0, index.count - 1, count).astype(np.int64))


def _class_counts(index: Index) -> list[tuple[str, int]]:
    """Samples of each class or label, in order of label."""
    if index.label_column is None:
        return []
    if index.classes is not None:
        counts = np.bincount(index.label_column, minlength=len(index.classes))
        return [(name, int(n)) for name, n in zip(index.classes, counts, strict=True)]
    values, counts = np.unique(index.label_column, return_counts=True)
    return [(str(value), int(n)) for value, n in zip(values, counts, strict=True)]


def _report(
    found: Dataset, states: dict[str, str], changed: list[str], verify: bool
) -> dict[str, Any]:
    """All that inspect shows, as JSON knows it."""
    index = found.index
    lengths = _sampled_lengths(index)
    return {
        "path": found.path,
        "format": index.format,
        "options": dict(index.options),
        "samples": index.count,
        "files": len(index.files),
        "bytes": index.total_bytes,
        "mean_bytes": index.mean_bytes,
        "min_bytes": int(lengths.min()) if len(lengths) else None,
        "max_bytes": int(lengths.max()) if len(lengths) else None,
        "fields": [
            {"name": part.name, "dtype": part.dtype.str, "shape": part.shape}
            for part in index.fields
        ],
        "classes": None if index.classes is None else len(index.classes),
        "samples_per_label": dict(_class_counts(index)),
        "fingerprint": index.fingerprint,
        "sidecars": states,
        "changed_files": changed if verify else None,
    }


def _show(found: Dataset, states: dict[str, str], changed: list[str], verify: bool) -> None:
    index = found.index
    console.show(f"[bold]{console.escaped(found.path)}[/]: {_headline(found)}")
    console.show(f"fingerprint {index.fingerprint}")
    for part in index.fields:
        kind = "bytes" if part.shape is None else f"{part.dtype} {list(part.shape)}"
        console.show(
            f"field {console.escaped(repr(part.name))}: {console.escaped(kind)}, "
            f"{console.size(index.mean_bytes)} a sample on average"
        )
    _show_sizes(index)
    _show_labels(index)
    _show_samples(found)
    console.show("")
    if not states:
        console.show(f"index: not saved; `penstock index {console.escaped(found.path)}` saves it")
    for path, state in states.items():
        console.show(f"index {console.escaped(path)}: {console.escaped(state)}")
    for name in changed[:_SHOWN]:
        console.say(f"{name} is not as it was indexed")
    if len(changed) > _SHOWN:
        console.say(f"and {len(changed) - _SHOWN:,} more files are not")
    if verify and not changed:
        console.show(
            f"verified: {len(index.files):,} files have the size and time that were indexed"
        )


def _show_sizes(index: Index) -> None:
    """A histogram of sample sizes, each bin half as large again as the one before."""
    lengths = _sampled_lengths(index)
    if not len(lengths):
        console.show("sizes: known after decoding")
        return
    least, most = int(lengths.min()), int(lengths.max())
    if least == most:
        console.show(f"sizes: every sample has {least:,} bytes")
        return
    edges = np.unique(np.geomspace(max(least, 1), most + 1, 13).astype(np.int64))
    edges[0], edges[-1] = least, most + 1
    counts, _ = np.histogram(lengths, edges)
    console.show("\nsizes")
    for low, count in zip(edges[:-1], counts, strict=True):
        bar = "█" * round(40 * count / counts.max()) or ("▏" if count else "")
        console.show(f"{console.size(low):>10} {bar} {100 * count / len(lengths):.1f} %")


def _show_labels(index: Index) -> None:
    counts = _class_counts(index)
    if not counts:
        console.show("labels: none")
        return
    each = [n for _, n in counts]
    console.show(f"\nlabels: {len(counts):,}, each with {min(each):,} to {max(each):,} samples")
    for name, n in counts[:_SHOWN]:
        console.show(f"{n:>10,} {console.escaped(name)}")
    if len(counts) > _SHOWN:
        console.show(f"{'...':>10} and {len(counts) - _SHOWN:,} more")


def _show_samples(found: Dataset) -> None:
    index = found.index
    first = np.arange(min(4, index.count))
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in ("sample", "key", "file", "byte", "length", "label"):
        table.add_column(name, justify="left" if name == "key" else "right", overflow="fold")
    labels = index.labels(first)
    for sample, file, offset, length in zip(first, *index.extents(first), strict=True):
        label = "" if labels is None else str(labels[sample])
        row = (
            sample,
            console.escaped(index.key(int(sample))),
            file,
            f"{offset:,}",
            f"{length:,}",
            label,
        )
        table.add_row(*(str(cell) for cell in row))
    console.show("")
    console.out.print(table)


if __name__ == "__main__":
    main()
