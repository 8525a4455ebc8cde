"""Write a data set as shards of another container: whole files or none, resumable, verified.

    read (Loader) -> store (recipes) -> write under a hidden name -> fsync -> read back, compare
        -> rename -> note in the manifest

The manifest, `.penstock-convert.json` in the destination, records what is converted, how, and
which shards are finished. An interrupted conversion that is run again continues after the last
finished shard, and gives the same bytes as an uninterrupted one. The manifest stays when all is
done: running again then finds nothing to do. LMDB is one file, which can be continued after any
commit; it is written in DESTINATION.tmp, and renamed when it has been verified.

Written samples are compared one by one (128-bit digests) with the samples that were read, through
penstock's own reader.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np

from .. import limits
from ..arguments import check_flag, check_function, check_path, check_whole
from ..dataset import Dataset
from ..engine import is_url, open_store
from ..errors import ChangedError, UsageError
from .encoding import Container, Keys, choose_recipe, resize_images
from .lmdb import LmdbConversion
from .manifest import Converted, Progress
from .shards import ShardsConversion

__all__ = ["Converted", "convert"]

_side_max = 65_535  # of a JPEG
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def convert(
    source: Dataset,
    destination: str | os.PathLike[str],
    *,
    to: Container,
    shard_bytes: int | None = None,
    shards: int | None = None,
    shuffle: int | None = None,
    name: str | None = None,
    fields: Sequence[str] | None = None,
    keys: Keys | None = None,
    raw: bool = False,
    datum: bool = False,
    resize: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Write all samples of `source` below the folder `destination`, or resume an interrupted
    conversion.

    to:           "tar" (WebDataset), "tfrecord", "records" (fixed size) or "lmdb".
    shard_bytes:  a shard is closed before it grows beyond this (256 MiB); or
    shards:       number of shards, with equal numbers of samples. Neither concerns LMDB.
    shuffle:      a seed: the samples in the order of `Order(count, seed)`, else as they are.
    name:         name of the shards, NAME-000000.tar; by default the destination's.
    fields:       fields to write; by default all.
    keys:         "names" (the samples' own, made safe and unique), "numbers" (in the new sequence)
                  or "both"; by default names, and in LMDB, which sorts by key, both.
    raw:          plain records in TFRecord files rather than tf.train.Example.
    datum:        Caffe's Datum as values of LMDB, with the label.
    resize:       length to which the shorter side of larger images is reduced: decoded by Pillow,
                  resized with antialiasing and written in their own format, at quality 90. Images
                  that Pillow cannot read are written as they are.
    force:        start over if the destination holds another conversion.

    Labels are members "key.cls" in tar and a feature "label" in Example; if a container has no
    place for them they lie beside it in labels.npy. Memory: a few batches; with keys="names" in tar
    and LMDB 8 bytes a sample, and 16 for each sample of a shard.

    Raises UsageError if the arguments are impossible or the destination holds another conversion;
    StorageError if writing fails, disk full included; FormatError if a written file does not read
    back; ChangedError if the source changed. After any of these, and after Ctrl-C or kill -9,
    nothing half-written has a final name, and the same call resumes.
    """
    if not isinstance(source, Dataset):
        raise UsageError(f"source is {source!r:.100}: give what penstock.open() returns")
    if not len(source):
        raise UsageError(f"{source.path} holds no samples: there is nothing to convert")
    if source.subset is not None:
        raise UsageError(
            f"source is a selection, {len(source):,} of the {source.index.count:,} samples of "
            f"{source.path}: convert all of them, and select from the result"
        )
    if source.weighting is not None or source.kind is not None:
        raise UsageError(
            f"source is {source!r}, which decides how often samples come: convert the data that it "
            "is of"
        )
    if any(part.parser is not None for part in source.index.fields):
        raise UsageError(
            f"{source.path} is opened with fields=, and lines are written whole: open it without"
        )
    if source.index.attributes:
        name = source.index.attributes[0].name
        raise UsageError(
            f"{source.path} has annotations ({name!r}), which no container written here holds: "
            f"open the folder of the images alone, or copy the data as it is"
        )
    path = check_path("destination", destination)
    if is_url(path):
        raise UsageError(f"destination is {path!r}: write to a folder, and copy it then")
    path = os.path.abspath(path)
    check_function("progress", progress, "a function of numbers of samples")
    check_flag("force", force)
    check_outside(source, path)
    check_unchanged(source)
    if resize is not None and to == "records":
        raise UsageError("records have one size, and resized images have many: write tar")
    recipe = choose_recipe(source, to, fields=fields, keys=keys, raw=raw, as_datum=datum)
    if resize is not None:
        side = check_whole("resize", resize, 1, _side_max)
        recipe = resize_images(source, recipe, side)
    sizes = _resolve_sizes(to, shard_bytes, shards, len(source))
    options = {
        "to": to,
        **sizes,
        "shuffle": None if shuffle is None else _check_seed(shuffle),
        "name": _choose_name(name, path),
        "fields": [part.name for part in recipe.fields],
        "keys": keys,
        "raw": bool(raw),
        "datum": bool(datum),
    }
    if resize is not None:  # not in manifests that were written before
        options["resize"] = int(resize)
    kind = LmdbConversion if to == "lmdb" else ShardsConversion
    return kind(source, path, recipe, options, force, progress).run()


# -- what was asked for ----------------------------------------------------------------------------


def check_outside(source: Dataset, path: str) -> None:
    """Raise UsageError if the destination lies inside the source: writing must not change what is
    read."""
    root = source.index.files.root
    if is_url(root):
        return
    real = os.path.realpath(path)
    for name in {source.path, root} if os.path.isdir(source.path) else {source.path}:
        inside = os.path.realpath(name)
        if real == inside or real.startswith(inside.rstrip("/") + "/"):
            raise UsageError(
                f"the destination {path} lies inside the source {inside}: choose a folder outside"
            )


def check_unchanged(source: Dataset) -> None:
    """Raise ChangedError unless the files are as they were indexed, so that everything written is
    of one state."""
    files = source.index.files
    now, errors = open_store(files.root).probe(files)
    wrong = (errors != 0) | (now.size != files.size) | (now.mtime_ns != files.mtime_ns)
    if wrong.any():
        raise ChangedError(
            f"{files.path(int(np.argmax(wrong)))} is not as it was indexed: open the data again, "
            f"or run `penstock index --force {source.path}`",
        )


def _resolve_sizes(
    to: str, shard_bytes: int | None, shards: int | None, count: int
) -> dict[str, int | None]:
    if shard_bytes is not None and shards is not None:
        raise UsageError("shard_bytes and shards are both given: choose one")
    if to == "lmdb":
        if shard_bytes is not None or shards is not None:
            raise UsageError("LMDB is one file: leave shard_bytes= and shards= out")
        return {}
    for what, value in (("shard_bytes", shard_bytes), ("shards", shards)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise UsageError(f"{what} is {value!r}: give an integer")
        if value is not None and value < 1:
            raise UsageError(f"{what} is {value!r}: use at least 1")
    if shards is not None and shards > count:
        raise UsageError(f"shards is {shards:,} and there are {count:,} samples: use fewer shards")
    if shards is not None and shards > limits.shards_max:
        raise UsageError(f"shards is {shards:,}, and limits.shards_max is {limits.shards_max:,}")
    if shards is None and shard_bytes is None:
        shard_bytes = limits.shard_bytes_default
    return {"shard_bytes": shard_bytes, "shards": shards}


def _check_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise UsageError(f"shuffle is {seed!r}: give a seed, an integer of 0..2^64-1")
    return seed


def _choose_name(name: str | None, path: str) -> str:
    if name is None:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", os.path.basename(path)).lstrip(".-")[:100]
        return plain or "shard"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"name is {name!r}: use letters, digits, '_', '-', '.', 100 at most")
    return name
