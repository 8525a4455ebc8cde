"""`penstock inspect` and `penstock formats`: show what a data set is, and which can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import rich.markup

from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.sources import locate_data
from ..engine.open import open_store
from ..engine.store import Progress
from ..errors import SidecarError
from ..extent import Int
from ..images.positions import check_positions
from ..index.formats.registry import FORMATS
from ..index.layout import Boxes, Chunked, Fixed, RowTable, Windows
from ..index.saved_index import find_staleness, list_index_paths
from ..index.table import Index
from ..loader.auto_shuffle import choose_shuffle, describe_choice, record_choice
from . import console
from .console import explain_interrupt
from .options import (
    AsJson,
    DataPath,
    FormatOptions,
    hide_credentials,
    setting,
    takes_format_options,
)
from .quantities import counted, format_bytes

_SHOWN = 8
"""Rows shown of what may have many."""


@takes_format_options
@explain_interrupt()
def inspect(
    path: DataPath,
    *,
    options: FormatOptions,
    verify: bool = setting(False, "Check all of the saved index, and every file against it."),
    shuffle: bool = setting(
        False, "Measure reading (0.2 s) and say what shuffle='auto' would choose."
    ),
    batch_size: int = setting(256, "Samples of a step of one rank, for --shuffle.", min=1),
    ranks: int = setting(1, "How many ranks, for --shuffle.", min=1),
    as_json: AsJson = False,
) -> None:
    """Show what a data set is: samples, sizes, labels, the state of its index. Writes nothing.

    Examples:

      penstock inspect /data/imagenet/train

      penstock inspect /data/tokens.bin --dtype uint16 --shape 2048

      penstock inspect /data/imagenet/train --verify

      penstock inspect /data/imagenet/train --shuffle --batch-size 64

      penstock inspect /data/imagenet/train --json | jq .samples
    """
    with console.show_progress(f"Looking at {hide_credentials(path)}") as progress:
        dataset = open_dataset(path, index="read", progress=progress, **options)
        states = dict(_check_sidecars(dataset, verify))
        changed = _find_changed(dataset.index, progress) if verify else []
        choice = None
        if shuffle:  # as shuffle="auto" would
            chosen = choose_shuffle(dataset, Budget(), batch_size, ranks, batch_size * ranks)
            choice = record_choice(len(dataset), *chosen)
    if as_json:
        console.print_json(_make_report(dataset, states, changed, verify) | {"shuffle": choice})
    else:
        _show(dataset, states, changed, verify)
        if choice is not None:
            console.out.print(rich.markup.escape(_format_choice(choice)))
    if changed or (verify and any(state.startswith("damaged") for state in states.values())):
        raise SystemExit(1)


def describe_index(dataset: Dataset) -> str:
    """Format, samples, classes, size and files of an index, in a line."""
    index = dataset.index
    files = counted(len(index.files), "file")
    classes = f", {len(index.classes):,} classes" if index.classes is not None else ""
    size = format_bytes(index.total_bytes)
    return f"{index.format}, {index.count:,} samples{classes}, {size} in {files}"


def _check_sidecars(dataset: Dataset, verify: bool) -> Iterator[tuple[str, str]]:
    """Yield each path of a saved index, and the state of the index there."""
    place, store = locate_data(dataset.path)
    if "splits" in dataset.index.options:
        place = replace(place, splits=tuple(dataset.index.options["splits"]))
    for path in list_index_paths(place):
        try:
            saved = Index.load(path, store.root, verify or None)
        except FileNotFoundError:
            continue
        except (OSError, SidecarError) as error:
            yield path, f"damaged: {error}"
            continue
        stale = find_staleness(saved, store)
        if stale is not None:
            yield path, f"stale: {stale}"
        elif saved.racy:
            yield path, "stale: the data changed while the index was made"
        elif saved.fingerprint != dataset.fingerprint:
            yield path, f"of other options: {dict(saved.options)}"
        else:
            yield path, "fresh"


def _find_changed(index: Index, progress: Progress) -> list[str]:
    """List the files that are not as they were indexed."""
    files = index.files
    now, errors = open_store(files.root).probe(files, progress)
    same = (errors == 0) & (now.size == files.size) & (now.mtime_ns == files.mtime_ns)
    return [files.name(int(file)) for file in np.flatnonzero(~same)]


def _format_choice(choice: dict[str, Any]) -> str:
    said = describe_choice(choice)
    if "latency_ns" in choice:
        said += (
            f"\n  measured in {choice['took_s']:.2f} s: {choice['latency_ns']:,.0f} ns a read, "
            f"{choice['requests']:.1f} are served at a time, large reads give "
            f"{choice['bytes_per_s']:,.0f} bytes/s"
        )
    return said


def _sample_lengths(index: Index) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Lengths of all samples, or of a million spread evenly; none if they are compressed."""
    count = min(index.count, 1_000_000)
    if not count or isinstance(index.layouts[0], Chunked):
        return np.zeros(0, np.int64)
    return index.lengths(np.linspace(0, index.count - 1, count).astype(np.int64))


def _count_classes(index: Index) -> list[tuple[str, int]]:
    """Samples of each class or label, in order of label."""
    if index.label_column is None:
        return []
    if index.classes is not None:
        counts = np.bincount(index.label_column, minlength=len(index.classes))
        return [(name, int(n)) for name, n in zip(index.classes, counts, strict=True)]
    values, counts = np.unique(index.label_column, return_counts=True)
    return [(str(value), int(n)) for value, n in zip(values, counts, strict=True)]


def _make_report(
    dataset: Dataset, states: dict[str, str], changed: list[str], verify: bool
) -> dict[str, Any]:
    """Collect all values that inspect shows, for JSON."""
    index = dataset.index
    lengths = _sample_lengths(index)
    return {
        "path": dataset.path,
        "format": index.format,
        "options": dict(index.options),
        "samples": index.count,
        "files": len(index.files),
        "bytes": index.total_bytes,
        "mean_bytes": index.mean_bytes,
        "min_bytes": int(lengths.min()) if len(lengths) else None,
        "max_bytes": int(lengths.max()) if len(lengths) else None,
        "fields": [
            {"name": field.name, "dtype": field.dtype.str, "shape": field.shape}
            for field in index.fields
        ],
        "attributes": [attribute.describe() for attribute in index.attributes],
        "classes": None if index.classes is None else len(index.classes),
        "samples_per_label": dict(_count_classes(index)),
        "fingerprint": index.fingerprint,
        "sidecars": states,
        "positions": list(check_positions(index, dataset.path)),
        "changed_files": changed if verify else None,
    }


def _show(dataset: Dataset, states: dict[str, str], changed: list[str], verify: bool) -> None:
    index = dataset.index
    console.show(f"[bold]{console.escape(dataset.path)}[/]: {describe_index(dataset)}")
    console.show(f"fingerprint {index.fingerprint}")
    for field, layout in zip(index.fields, index.layouts, strict=True):
        kind = "bytes" if field.shape is None else f"{field.dtype} {list(field.shape)}"
        if field.shape is None and field.dtype != np.uint8:
            kind = f"lists of {field.dtype}"
        if field.nesting:
            kind = (
                f"{'nested ' if field.levels else ''}lists of {field.dtype} {list(field.element)}"
            )
        mean = f"{format_bytes(layout.total_bytes / max(1, index.count))} a sample on average"
        if isinstance(layout, Boxes | Windows):
            mean = f"windows of an array of {list(layout.grid.shape)}"
            if isinstance(layout, Windows):
                mean += f" in chunks of {list(layout.chunk)}, unpacked as wholes"
        elif isinstance(layout, Chunked):
            together = -(-index.count // max(1, layout.chunks.count))
            mean += f" as stored; {together:,} are unpacked together, for one as well"
        console.show(f"field {console.escape(repr(field.name))}: {console.escape(kind)}, {mean}")
    for attribute in index.attributes:
        kind = attribute.kind
        if kind == "numbers":
            rows = "rows of " if attribute.ends is not None else ""
            kind = f"{rows}{attribute.dtype} {list(attribute.shape)}"
        name = console.escape(repr(attribute.name))
        console.show(f"annotation {name}: {console.escape(kind)}, in the index")
    _show_sizes(index)
    _show_labels(index)
    _show_samples(dataset)
    console.show("")
    if not states:
        console.show(f"index: not saved; `penstock index {console.escape(dataset.path)}` saves it")
    for path, state in states.items():
        console.show(f"index {console.escape(path)}: {console.escape(state)}")
    for state in check_positions(index, dataset.path):
        console.show(f"positions {console.escape(state)}")
    for name in changed[:_SHOWN]:
        console.say(f"{name} is not as it was indexed")
    if len(changed) > _SHOWN:
        console.say(f"and {len(changed) - _SHOWN:,} more files are not")
    if verify and not changed:
        console.show(
            f"verified: {len(index.files):,} files have the size and time that were indexed"
        )


def _show_sizes(index: Index) -> None:
    """Show a histogram of sample sizes, each bin half as large again as the one before."""
    lengths = _sample_lengths(index)
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
        bar = console.draw_bar(count, counts.max(), 40)
        console.show(f"{format_bytes(low):>10} {bar} {100 * count / len(lengths):.1f} %")


def _show_labels(index: Index) -> None:
    counts = _count_classes(index)
    if not counts:
        console.show("labels: none")
        return
    least, most = min(n for _, n in counts), max(n for _, n in counts)
    samples = counted(least, "sample") if least == most else f"{least:,} to {most:,} samples"
    console.show(f"\nlabels: {len(counts):,}, each with {samples}")
    for name, n in counts[:_SHOWN]:
        console.show(f"{n:>10,} {console.escape(name)}")
    if len(counts) > _SHOWN:
        console.show(f"{'...':>10} and {len(counts) - _SHOWN:,} more")


def _show_samples(dataset: Dataset) -> None:
    index = dataset.index
    first = np.arange(min(4, index.count))
    labels = index.labels(first)
    if not isinstance(index.layouts[0], Fixed | RowTable):
        _show_places(index, first, labels)
        return
    numbers = ("file", "byte", "length", "label")
    table = console.make_table("sample", "key", *numbers, right=("sample", *numbers))
    for sample, file, offset, length in zip(first, *index.extents(first), strict=True):
        label = "" if labels is None else str(labels[sample])
        key = console.escape(index.key(int(sample)))
        table.add_row(str(sample), key, str(file), f"{offset:,}", f"{length:,}", label)
    console.show("")
    console.out.print(table)


def _show_places(index: Index, first: Int, labels: Int | None) -> None:
    """Show samples of several pieces each, or in chunks that are decoded as a whole."""
    table = console.make_table("sample", "key", "place", "label", right=("sample", "label"))
    for sample in first.tolist():
        label = "" if labels is None else str(labels[sample])
        place = console.escape(index.where(sample))
        table.add_row(str(sample), console.escape(index.key(sample)), place, label)
    console.show("")
    console.print_wide(table)


# -- formats ---------------------------------------------------------------------------------------


@explain_interrupt()
def formats(as_json: AsJson = False) -> None:
    """List the formats that are read, and the options that each takes.

    Options are keyword arguments of [bold]penstock.open[/], and --option NAME=VALUE here.

    Examples:

      penstock formats

      penstock inspect /data/shards --option label=class
    """
    if as_json:
        rows = [
            {
                "name": entry.name,
                "summary": entry.summary,
                "kinds": list(entry.kinds),
                "options": list(entry.options),
                "detected": entry.detected,
            }
            for entry in FORMATS.values()
        ]
        console.print_json(rows)
        return
    table = console.make_table("format", "what", "where", "options")
    for entry in FORMATS.values():
        options = ", ".join(entry.options) or "-"
        table.add_row(entry.name, entry.summary, ", ".join(entry.kinds), options)
    console.out.print(table)
