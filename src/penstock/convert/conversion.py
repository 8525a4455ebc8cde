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

import contextlib
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import limits
from ..arguments import (
    bind_arguments,
    check_flag,
    check_function,
    check_kind,
    check_whole,
)
from ..dataset.dataset import Dataset
from ..engine.atomic_file import AtomicFile, storage_errors, sync_folder
from ..engine.open import is_url, open_store
from ..errors import ChangedError, LimitError, UsageError
from .encoding import (
    Container,
    EncodingRecipe,
    Keys,
    StoredSample,
    choose_recipe,
    resize_images,
)
from .lmdb import LmdbConversion
from .manifest import (
    REPORTED_EVERY,
    Conversion,
    Converted,
    Progress,
    check_destination,
    lock_folder,
    mismatch_error,
    open_written,
    read_digests,
)

_side_max = 65_535  # of a JPEG
_seed_max = (1 << 64) - 1
_PARTS = ".penstock-parts"
"""Folder in the destination, of shards that are being written by several processes."""
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
    place for them they are beside it in labels.npy. Memory: a few batches; with keys="names" in tar
    and LMDB 8 bytes a sample, and 16 for each sample of a shard.

    Raises UsageError if the arguments are impossible or the destination holds another conversion;
    StorageError if writing fails, disk full included; FormatError if a written file does not read
    back; ChangedError if the source changed. After any of these, and after Ctrl-C or kill -9,
    nothing half-written has a final name, and the same call resumes.
    """
    return prepare_conversion(**locals()).run()


def prepare_conversion(
    source: Dataset, destination: str | os.PathLike[str], **settings: Any
) -> ShardsConversion | LmdbConversion:
    """Check the arguments of `convert`, and return the conversion that they ask for."""
    asked = bind_arguments(convert, source, destination, **settings)
    _check_source(source)
    path = check_destination("destination", destination)
    check_function("progress", asked.progress, "a function of numbers of samples")
    check_flag("force", asked.force)
    check_outside(source, path)
    check_unchanged(source)
    to, keys, shuffle = asked.to, asked.keys, asked.shuffle
    if asked.resize is not None and to == "records":
        raise UsageError("records have one size, and resized images have many: write tar")
    recipe = choose_recipe(
        source, to, fields=asked.fields, keys=keys, raw=asked.raw, as_datum=asked.datum
    )
    if asked.resize is not None:
        side = check_whole("resize", asked.resize, 1, _side_max)
        recipe = resize_images(source, recipe, side)
    options = {
        "to": to,
        **_resolve_sizes(to, asked.shard_bytes, asked.shards, len(source)),
        "shuffle": None if shuffle is None else check_whole("shuffle", shuffle, 0, _seed_max),
        "name": choose_name(asked.name, path),
        "fields": [field.name for field in recipe.fields],
        "keys": keys,
        "raw": bool(asked.raw),
        "datum": bool(asked.datum),
    }
    if asked.resize is not None:  # not in manifests that were written before
        options["resize"] = int(asked.resize)
    kind = LmdbConversion if to == "lmdb" else ShardsConversion
    return kind(source, path, recipe, options, asked.force, asked.progress)


def _check_source(source: Dataset) -> None:
    check_kind("source", source, Dataset, "what penstock.open() returns")
    if not len(source):
        raise UsageError(f"{source.path} holds no samples: there is nothing to convert")
    if source.subset is not None:
        raise UsageError("source is a selection: convert all samples, and select from the result")
    if source.weighting is not None or source.kind is not None:
        raise UsageError("source has weights, or is mixed or packed: convert its data instead")
    if any(field.parser is not None for field in source.index.fields):
        raise UsageError("source is opened with fields=: open it without, lines are written whole")
    if source.index.attributes:
        raise UsageError("source has annotations or padding, held by no container: open it without")


# -- what was asked for ----------------------------------------------------------------------------


def check_outside(source: Dataset, path: str) -> None:
    """Raise UsageError if the destination is inside the source: writing must not change it."""
    root = source.index.files.root
    if is_url(root):
        return
    real = os.path.realpath(path)
    for name in {source.path, root} if os.path.isdir(source.path) else {source.path}:
        inside = os.path.realpath(name)
        if real == inside or real.startswith(inside.rstrip("/") + "/"):
            raise UsageError(f"the destination {path} is inside the source: choose another folder")


def check_unchanged(source: Dataset) -> None:
    """Raise ChangedError unless the files are as they were indexed."""
    files = source.index.files
    now, errors = open_store(files.root).probe(files)
    changed = (errors != 0) | (now.size != files.size) | (now.mtime_ns != files.mtime_ns)
    if changed.any():
        path = files.path(int(np.argmax(changed)))
        raise ChangedError(f"{path} is not as it was indexed: open the data again")


def _resolve_sizes(
    to: str, shard_bytes: int | None, shards: int | None, count: int
) -> dict[str, int | None]:
    if shard_bytes is not None and shards is not None:
        raise UsageError("shard_bytes and shards are both given: choose one")
    if to == "lmdb":
        if shard_bytes is not None or shards is not None:
            raise UsageError("LMDB is one file: leave shard_bytes= and shards= out")
        return {}
    if shards is not None:
        check_whole("shards", shards, 1, min(count, limits.shards_max))
        return {"shard_bytes": None, "shards": shards}
    shard_bytes = limits.shard_bytes_default if shard_bytes is None else shard_bytes
    return {"shard_bytes": check_whole("shard_bytes", shard_bytes), "shards": None}


def choose_name(name: str | None, path: str) -> str:
    """Check the name of shards; by default one made of the destination's."""
    if name is None:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", os.path.basename(path)).lstrip(".-")[:100]
        return plain or "shard"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"name is {name!r}: use letters, digits, '_', '-', '.', 100 at most")
    return name


# -- shards ----------------------------------------------------------------------------------------


class ShardsConversion(Conversion):
    """A conversion into NAME-000000.suffix and so on, below the destination."""

    def begin(self) -> None:
        """Note in the destination what is written there; as `run` refuses another conversion."""
        with lock_folder(self.path):
            if not self.take_up(self.path):
                self.manifest.save(self.path)

    def run(self, written: list[dict[str, Any]] | None = None) -> Converted:
        """Write the shards that are missing.

        written:  the entries of all shards, where others wrote them by `write_alone`.
        """
        with lock_folder(self.path):
            if self.take_up(self.path):
                self._check_finished()
            else:
                self.manifest.save(self.path)
            if written is not None and not self.manifest.complete:
                self.manifest.shards = written
                shutil.rmtree(os.path.join(self.path, _PARTS), ignore_errors=True)
            before = self.manifest.samples
            self.report(before)
            if not self.manifest.complete:
                self._write(before)
                self._check_all()
                self.write_labels(self.path)
                self.report(self.count)
                self.manifest.complete = True
                self.manifest.save(self.path)
        return self.summarize(self._list_files(), self.count - before)

    # -- writing -------------------------------------------------------------------------------

    def _write(self, start: int) -> None:
        if start == self.count:
            return
        samples = itertools.chain.from_iterable(self.read_samples(start))
        sample = next(samples, None)
        while sample is not None:
            sample = self._write_shard(sample, samples)

    def _write_shard(
        self, sample: StoredSample | None, samples: Iterator[StoredSample]
    ) -> StoredSample | None:
        """Write one shard, from its first sample on; return the first sample of the next one."""
        number, start = len(self.manifest.shards), self.manifest.samples
        if number >= limits.shards_max:
            what = f"limits.shards_max, {limits.shards_max:,}, is reached after {start:,} samples"
            raise LimitError(f"{what}: start over (--force) with a larger shard_bytes")
        name = f"{self.options['name']}-{number:06d}{self.recipe.suffix}"
        shards = self.options["shards"]
        end = self.count if shards is None else (number + 1) * self.count // int(shards)
        with AtomicFile(os.path.join(self.path, name)) as file:
            entry, sample = self._fill(file, name, sample, samples, start, end)
            file.commit()
        self.manifest.shards.append(entry)
        self.manifest.save(self.path)
        return sample

    def write_alone(self, number: int) -> dict[str, Any]:
        """Write one of the shards, whose number was asked for; its entry of the manifest. Several
        processes may do so, also at one shard."""
        shards = int(self.options["shards"])
        start, end = number * self.count // shards, (number + 1) * self.count // shards
        if (done := self._find_complete(number)) is not None:
            return done
        name = f"{self.options['name']}-{number:06d}{self.recipe.suffix}"
        path = os.path.join(self.path, _PARTS, f"{number}-{secrets.token_hex(8)}")
        with storage_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.closing(self.read_samples(start)) as batches, AtomicFile(path) as file:
            samples = itertools.chain.from_iterable(batches)
            entry, _ = self._fill(file, name, next(samples), samples, start, end)
            if (done := self._find_complete(number)) is not None:  # by another one meanwhile
                return done
            with storage_errors(path):
                os.replace(file.temporary, os.path.join(self.path, name))
        sync_folder(self.path)
        return entry

    def _find_complete(self, number: int) -> dict[str, Any] | None:
        """Find the entry of a shard if all are written. UsageError unless the destination is taken
        for this conversion: it was removed, or taken for another one."""
        if not self.take_up(self.path):
            raise UsageError(f"{self.path} holds no conversion: plan the work again")
        return self.manifest.shards[number] if self.manifest.complete else None

    def _fill(
        self,
        file: AtomicFile,
        name: str,
        sample: StoredSample | None,
        samples: Iterator[StoredSample],
        start: int,
        end: int,
    ) -> tuple[dict[str, Any], StoredSample | None]:
        """Write samples from `start` on, at most to `end`. Return the entry of the shard, and the
        first sample that is not written."""
        size = self.options["shard_bytes"]
        sample, end = fill_shard(self.recipe, file, sample, samples, start, end, size, self.report)
        sums = {"bytes": file.size, "crc32": file.crc32}
        return {"name": name, "first": start, "end": end, **sums}, sample

    # -- verifying -----------------------------------------------------------------------------

    def _check_finished(self) -> None:
        """Raise UsageError unless the finished shards are still there, with their sizes."""
        for shard in self.manifest.shards:
            path = os.path.join(self.path, shard["name"])
            size = os.path.getsize(path) if os.path.isfile(path) else None
            if size != shard["bytes"]:
                now = "is gone" if size is None else f"has {size:,} bytes, not {shard['bytes']:,}"
                raise UsageError(f"{path} {now}: put it back, or start over with force=True")

    def _check_all(self) -> None:
        """Raise StorageError unless the shards together hold all samples."""
        if self.manifest.samples != self.count:
            raise mismatch_error(self.path, f"{self.manifest.samples:,} of {self.count:,} samples")
        self._check_finished()
        count = len(open_written(self.recipe, list(self._list_files())))
        if count != self.count:
            raise mismatch_error(self.path, f"it has {count:,} of {self.count:,} samples")

    def _list_files(self) -> tuple[str, ...]:
        return tuple(os.path.join(self.path, shard["name"]) for shard in self.manifest.shards)


def fill_shard(
    recipe: EncodingRecipe,
    file: AtomicFile,
    sample: StoredSample | None,
    samples: Iterator[StoredSample],
    start: int = 0,
    end: int | None = None,
    bytes_max: int | None = None,
    report: Callable[[int], None] | None = None,
) -> tuple[StoredSample | None, int]:
    """Write samples into a shard, the given one first, from `start` to `end` or until it is full,
    and read them back. Return the first sample that is not written, and how far it came."""
    digests = bytearray()
    done = start
    while sample is not None and done != end:
        pieces = recipe.encode_sample(sample)
        size = file.size + sum(map(len, pieces))
        size += len(recipe.encode_end(size))
        if bytes_max and done > start and size > bytes_max:
            break
        file.write(*pieces)
        digests += sample.digest()
        done += 1
        if report is not None and not done % REPORTED_EVERY:
            report(done)
        sample = next(samples, None)
    file.write(recipe.encode_end(file.size))
    file.sync()
    for at, digest in enumerate(read_digests(recipe, file.temporary, done - start)):
        if digest != digests[16 * at : 16 * at + 16]:
            raise mismatch_error(file.temporary, f"sample {at:,} of it differs")
    return sample, done
