"""Parts that all conversions share: the manifest, resuming, reading in order, and comparing."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .. import limits
from ..arguments import check_path
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.measuring import Progress as Progress
from ..engine.atomic_file import AtomicFile, storage_errors
from ..engine.open import is_url
from ..engine.threads import ThreadPool
from ..errors import StorageError, UsageError
from ..extent import Int
from ..loader.loader import Loader
from ..order.order import Order, Shuffle
from ..own_files import hold_lock
from .encoding import SUFFIXES, EncodingRecipe, Sample, StoredSample

MANIFEST = ".penstock-convert.json"
LABELS = "labels.npy"
DATA, LOCK, DIGESTS = "data.mdb", "lock.mdb", ".digests"
"""Files of an LMDB environment, and the file of the digests of its samples."""
_VERSION = 1
CHOICES = "use the same options, another destination, or force=True (--force)"
_BATCH_BYTES = 4 * limits.MIB
_BATCH_SAMPLES_MAX = 4096
REPORTED_EVERY = 64
"""Samples between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Converted:
    """Result of a conversion.

    path:     the folder.
    files:    its shards, in order.
    options:  options of `penstock.open` that read it.
    labels:   an .npy file of labels beside the shards, if these hold none.
    written:  samples written by this run; the others were there.
    """

    path: str
    files: tuple[str, ...]
    samples: int
    bytes: int
    options: dict[str, Any]
    labels: str | None
    written: int

    @property
    def call(self) -> str:
        """The Python call that opens the result."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"penstock.open({self.path!r}{options})"


# -- the manifest ----------------------------------------------------------------------------------


@dataclass(slots=True)
class ConversionManifest:
    """State of a destination: what is converted, how, and which `shards` are finished, in order."""

    source: dict[str, Any]
    options: dict[str, Any]
    shards: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False

    @property
    def samples(self) -> int:
        """Number of samples in finished shards."""
        return int(self.shards[-1]["end"]) if self.shards else 0

    def save(self, folder: str, name: str = MANIFEST) -> None:
        """Replace the saved manifest atomically."""
        with AtomicFile(os.path.join(folder, name)) as file:
            text = json.dumps({"version": _VERSION, **asdict(self)}, indent=1)
            file.write(text.encode() + b"\n")
            file.sync()
            file.commit()

    @classmethod
    def load(cls, folder: str, name: str = MANIFEST) -> ConversionManifest | None:
        """Return the manifest in a folder, or None; UsageError if it cannot be understood."""
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                saved = json.loads(file.read())
            if saved["version"] != _VERSION:
                raise ValueError(f"version {saved['version']!r} instead of {_VERSION}")
            shards = [dict(shard) for shard in saved["shards"]]
            for shard in shards:
                shard["end"], shard["bytes"] = int(shard["end"]), int(shard["bytes"])
                shard["name"] = os.path.basename(shard["name"])
            complete = bool(saved["complete"])
            return cls(dict(saved["source"]), dict(saved["options"]), shards, complete)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} cannot be read ({error!r}): remove the folder") from None

    def describe_difference(self, wanted: ConversionManifest) -> str | None:
        """Describe how this conversion differs from the wanted one; None if it does not."""
        was, now = self.source, wanted.source
        if was.get("fingerprint") != now["fingerprint"]:
            return f"of other data ({was.get('path')}, now {now['path']})"
        if was.get("stamp") != now["stamp"]:
            return f"of files of {now['path']} that were written to since"
        for name in {**self.options, **wanted.options}:  # some are there only where they were given
            before, asked = self.options.get(name), wanted.options.get(name)
            if before != asked:
                return f"with {name}={before!r}, and now {name}={asked!r} is asked"
        return None

    def find_present(self, folder: str, force: bool) -> ConversionManifest | None:
        """Find the conversion that a folder holds: None if it is empty, another one only with
        force. UsageError if it holds anything else."""
        present = ConversionManifest.load(folder)
        if present is None:
            refuse_foreign_files(folder)
        elif not force and (different := present.describe_difference(self)) is not None:
            raise UsageError(f"{folder} holds a conversion {different}: {CHOICES}")
        return present


def describe_source(source: Dataset) -> dict[str, Any]:
    """Describe which data is converted, and which state of its files: of the file table, times
    included, because files that changed must not be mixed in."""
    files, state = source.index.files, hashlib.blake2b(digest_size=16)
    for column in (files.names, files.ends, files.size, files.mtime_ns):
        state.update(np.ascontiguousarray(column).data)
    return {
        "path": source.path,
        "format": source.index.format,
        "fingerprint": source.fingerprint,
        "stamp": state.hexdigest(),
        "samples": len(source),
        "classes": source.classes,
    }


def check_destination(name: str, value: object) -> str:
    """Return the absolute path of what is to be written; UsageError if it is a URL."""
    path = check_path(name, value)
    if is_url(path):
        raise UsageError(f"{name} is {path!r}: write to a folder, and copy it then")
    return os.path.abspath(path)


@contextmanager
def lock_folder(folder: str, doing: str = "converting into") -> Iterator[None]:
    """Lock the folder against other writers, and create it if it is missing."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{folder} exists and is not a folder: choose another destination")
    with storage_errors(folder):
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        in_use = f"another process is {doing} {folder}: wait for it"
        lock = hold_lock(descriptor, f"{folder.rstrip('/')}.lock", in_use)
        with ExitStack() as stack:
            with storage_errors(folder):
                stack.enter_context(lock)
            yield
    finally:
        os.close(descriptor)


# -- one conversion --------------------------------------------------------------------------------


class Conversion:
    """Base of the conversions into shards and LMDB: resuming, reading in order, reporting."""

    def __init__(
        self,
        source: Dataset,
        path: str,
        recipe: EncodingRecipe,
        options: dict[str, Any],
        force: bool,
        progress: Progress | None,
    ) -> None:
        self.source, self.path, self.recipe = source, path, recipe
        self.force, self.progress = force, progress
        self.count = len(source)
        self.manifest = ConversionManifest(describe_source(source), options)

    @property
    def options(self) -> dict[str, Any]:
        return self.manifest.options

    def take_up(self, folder: str) -> bool:
        """Return True if the folder holds this conversion, finished or not; False if it holds
        nothing, or, with force, after removing another conversion. UsageError if it holds anything
        else."""
        present = self.manifest.find_present(folder, self.force)
        if present is not None and self.force:
            _remove_conversion(folder, present)
            return False
        self.manifest = present or self.manifest
        return present is not None

    def read_samples(self, start: int) -> Generator[list[StoredSample], None, None]:
        """Yield the samples from position `start` on in their stored form, batch by batch."""
        index, seed = self.source.index, self.options["shuffle"]
        size = choose_batch_size(self.source)
        shuffle: Shuffle = "none" if seed is None else "exact"
        settings: dict[str, Any] = {"shuffle": shuffle, "seed": seed or 0}
        with (
            ThreadPool(len(os.sched_getaffinity(0)), "penstock-shrink") as pool,
            Loader(self.source, size, rank=0, world_size=1, **settings) as loader,
        ):
            loader.load_state_dict({**loader.state_dict(), "step": start // size})
            at = start // size * size
            for batch in loader:
                samples = self.recipe.iterate_samples(index, batch, at)
                fresh: Iterator[Sample] = itertools.islice(samples, max(start - at, 0), None)
                if self.recipe.shrink is not None:
                    fresh = pool.map(self.recipe.shrink, fresh)
                yield [self.recipe.store_sample(sample) for sample in fresh]
                at += len(batch.ids)

    def report(self, done: int) -> None:
        """Report how many samples are written."""
        if self.progress is not None:
            self.progress(done, self.count)

    def write_labels(self, folder: str, positions: Int | None = None) -> None:
        """Write the labels beside a container that has no place for them. With `positions`, the
        labels of those positions; else of all."""
        labels = self.source.index.label_column
        if not self.recipe.has_label_file or labels is None:
            return
        if self.options["shuffle"] is not None:
            order = Order(self.count, self.options["shuffle"])
            labels = labels[order.samples(np.arange(self.count, dtype=np.uint64)).view(np.int64)]
        if positions is not None:
            labels = labels[positions]
        with AtomicFile(os.path.join(folder, LABELS)) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(labels))
            file.sync()
            file.commit()

    def summarize(self, files: tuple[str, ...], written: int) -> Converted:
        """Return the result, with the shards or the environment that it consists of."""
        return Converted(
            self.path,
            files,
            self.count,
            sum(map(os.path.getsize, files)),
            dict(self.recipe.user_options),
            os.path.join(self.path, LABELS) if self.recipe.has_label_file else None,
            written,
        )


# -- comparing -------------------------------------------------------------------------------------


def open_written(recipe: EncodingRecipe, path: str | Sequence[str]) -> Dataset:
    """Open written files with penstock's own reader."""
    return open_dataset(path, index="memory", **recipe.read_options)


def read_digests(recipe: EncodingRecipe, path: str, count: int) -> Iterator[bytes]:
    """Yield the digest of each sample of a written file that must have `count` samples."""
    opened = open_written(recipe, path)
    if len(opened) != count:
        raise mismatch_error(path, f"it has {len(opened):,} of {count:,} samples")
    size = choose_batch_size(opened)
    with Loader(opened, size, shuffle="none", rank=0, world_size=1) as loader:
        for batch in loader:
            for sample in recipe.read_back(opened.index, batch):
                yield sample.digest()


def choose_batch_size(source: Dataset) -> int:
    """Choose how many samples are read at once. The decoded size counts, because the stored size of
    compressed samples says little."""
    decoded = sum(stored.nbytes or 0 for stored in source.fields)
    sample_bytes = max(source.index.mean_bytes, decoded, 1)
    return max(1, min(_BATCH_SAMPLES_MAX, int(_BATCH_BYTES // sample_bytes)))


def mismatch_error(path: str, how: str) -> StorageError:
    """Build the error for a file that does not read back as it was written."""
    error = StorageError(
        f"{path} does not read back as it was written: {how}: disk or memory of this machine may "
        f"be damaged, or this is a defect of penstock; nothing of it was kept, run it again"
    )
    error.errno = errno.EIO
    return error


def _remove_conversion(folder: str, manifest: ConversionManifest) -> None:
    """Remove the files that another conversion wrote, and nothing else; the manifest goes last."""
    suffix = SUFFIXES.get(str(manifest.options.get("to")), ".mdb")
    name = os.path.basename(str(manifest.options.get("name")))
    # The one after the last may have been named just before the end of the run.
    shards = [f"{name}-{number:06d}{suffix}" for number in range(len(manifest.shards) + 1)]
    environment = [DATA, LOCK, DIGESTS] if suffix == ".mdb" else []
    with storage_errors(folder):
        for file_name in (*shards, *environment, LABELS, MANIFEST):
            for present_name in (file_name, f".{file_name}.part"):
                path = os.path.join(folder, present_name)
                if os.path.lexists(path):
                    os.unlink(path)


def refuse_foreign_files(folder: str) -> None:
    """Raise UsageError if a folder without a manifest exists and has files."""
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = sorted(name for name in os.listdir(folder) if name != f".{MANIFEST}.part")
    if names:
        raise UsageError(f"{folder} holds {names[0]!r}, not a conversion: choose another folder")
