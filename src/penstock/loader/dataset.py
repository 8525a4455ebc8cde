"""Open data where it lies: `open` finds the format, finds or makes the index, gives a Dataset."""

from __future__ import annotations

import errno
import glob
import hashlib
import operator
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np

from ..engine import add_mirrors, is_url, read_extent
from ..engine import store as stores
from ..errors import ChangedError, FormatError, PenstockError, SidecarError, UsageError
from ..extent import Int
from ..index import FORMATS, Field, Index, Location, choose_format
from ..order import Order, Ordering, Shuffle
from ..plan import StepPlan, plan_samples
from .batch import build_fields

Options = dict[str, Any]


Path = str | bytes | os.PathLike[str]


def open(
    path: Path | Sequence[Path],
    *,
    format: str | None = None,
    record_bytes: int | None = None,
    header_bytes: int = 0,
    dtype: Any = None,
    shape: Sequence[int] | None = None,
    extensions: str | Sequence[str] | None = None,
    index: str | os.PathLike[str] = "auto",
    progress: stores.Progress | None = None,
    mirrors: Sequence[Path] = (),
    **more: Any,
) -> Dataset:
    """The samples at `path`, of which nothing is read but what says where they are.

    path:          a file or folder of any format in `penstock formats`, or the URL of one
                   ("s3://bucket/folder"); a pattern such as "train-*.tar" or
                   "train-{000..146}.tar", or a list of files, which make one dataset.
    format:        the format's name; by default what the content shows.
    more:          options of the format: `penstock formats` lists them.
    record_bytes:  size of a record; or `dtype` and `shape` of one. `header_bytes` are skipped at
                   the start of each file.
    extensions:    which files of a folder count; by default all.
    index:         "auto" takes the saved index where it is fresh, and else makes and saves it;
                   "read" does not save it; "rebuild" makes and saves it; "memory" neither reads
                   nor writes one; anything else is the path of a saved index, which must fit.
    progress:      called now and then with the number of files seen.
    mirrors:       folders or URLs that hold copies of these files, or of some of them, under the
                   same names as the folder that `path` is, or lies in. Loaders read from all places
                   at once, and what one does not bring from another; sizes are compared now, and
                   that the bytes are the same is your word. docs/mirrors.md

    Raises a PenstockError that names the file: MissingError, FormatError, SidecarError, UsageError.
    """
    given_paths = [path] if isinstance(path, (str, bytes, os.PathLike)) else path
    if not isinstance(given_paths, Sequence) or not given_paths:
        raise UsageError(f"path is {path!r}: give a path, or a list of them")
    for name, given_path in (*(("path", each) for each in given_paths), ("index", index)):
        if not isinstance(given_path, (str, bytes, os.PathLike)):
            raise UsageError(f"{name} is {given_path!r}: give a path")
    paths = tuple(_make_absolute(os.fsdecode(each)) for each in given_paths)
    place, store = locate_data(*paths)
    options: Options = {name: value for name, value in more.items() if value is not None}
    given = {"record_bytes": record_bytes, "dtype": dtype, "shape": shape}
    options |= {name: value for name, value in given.items() if value is not None}
    if header_bytes != 0:
        options["header_bytes"] = header_bytes
    if extensions is not None:
        options["extensions"] = stores.checked_extensions(extensions)
    request = _Request(place, store, format, options, progress)
    made, sidecar = _find_index(request, os.fsdecode(index))
    if mirrors:
        roots = [_make_absolute(os.fsdecode(each)) for each in mirrors]
        made = replace(made, files=add_mirrors(made.files, roots))
    return Dataset(place.path, made, sidecar, paths)


def _find_index(request: _Request, how: str) -> tuple[Index, str | None]:
    """The index, and where it is saved."""
    if how == "memory":
        return request.build(), None
    if how not in ("auto", "read", "rebuild"):
        sidecar = os.path.abspath(how)
        return request.load(sidecar), sidecar
    if how != "rebuild":
        for sidecar in sidecar_paths(request.place):
            found = request.load_if_fresh(sidecar)
            if found is not None:
                return found, sidecar
    built = request.build()
    return built, None if how == "read" else _save(built, request.place)


def _make_absolute(path: str) -> str:
    return path if is_url(path) or not path else os.path.abspath(path)


_SOURCES_OF_A_FILE = 4
"""A dataset named by one file may lie in a few: data and its own index."""


class _Request:
    """What was asked for, and the two ways to an index: a saved one that fits, or a new one."""

    def __init__(
        self,
        place: Location,
        store: stores.Store,
        format: str | None,
        options: Options,
        progress: stores.Progress | None,
    ) -> None:
        self.place, self.store, self.progress = place, store, progress
        self.unknown: PenstockError | None = None
        try:
            self.format = choose_format(store, place, format, options)
            self.options = self.format.canonical(options)
            self.saved = {
                name: value
                for name, value in self.options.items()
                if name not in self.format.passing
            }
        except FormatError as error:  # a saved index may still know what the file is
            self.unknown = error

    def build(self) -> Index:
        if self.unknown is not None:
            raise self.unknown
        started_ns = time.time_ns()
        made = self.format.build(self.store, self.place, self.options, self.progress)
        return replace(made, options=self.saved).marked(started_ns)

    def load(self, sidecar: str) -> Index:
        """The saved index, or SidecarError where it is not of this data."""
        try:
            found = Index.load(sidecar, self.store.root)
        except OSError as error:
            raise stores.storage_error(error.errno or errno.EIO, sidecar) from None
        reason = self._find_misfit(found) or found.validate(self.store) or self._find_restamp(found)
        if reason is not None:
            raise SidecarError(
                f"{sidecar} does not describe {self.place.path} as it is now: {reason}: "
                f"rebuild it with `penstock index --force {self.place.path}`"
            )
        return found

    def load_if_fresh(self, sidecar: str) -> Index | None:
        """The saved index, if it is there, whole, up to date and of the same options."""
        try:
            found = Index.load(sidecar, self.store.root)
        except OSError:
            return None
        except SidecarError as error:
            warnings.warn(f"{error}; it is made anew now", RuntimeWarning, stacklevel=4)
            return None
        stale = found.racy or self._find_misfit(found) or found.validate(self.store)
        return None if stale or self._find_restamp(found) else found

    def _find_restamp(self, found: Index) -> str | None:
        """What the files themselves say of a change that neither size nor time shows, or None."""
        entry = FORMATS.get(found.format)
        if entry is None or entry.stamp is None:
            return None
        try:
            now = entry.stamp(self.store, found.files)
        except PenstockError as error:
            return str(error)
        return None if now == found.stamp else f"its files say {now}, and said {found.stamp}"

    def _find_misfit(self, found: Index) -> str | None:
        """How the saved index differs from what was asked for, or None."""
        if self.place.kind == "file":
            few = range(min(len(found.sources), _SOURCES_OF_A_FILE))
            if self.place.name not in (found.files.name(0), *map(found.sources.name, few)):
                return f"it is of {found.sources.name(0)}"
        if self.unknown is not None:
            return None
        if found.format != self.format.name:
            return f"it was made as {found.format!r}, not as {self.format.name!r}"
        if found.options != self.saved:
            return f"it was made with {dict(found.options)}, not with {self.saved}"
        return None


def locate_data(*given: str) -> tuple[Location, stores.Store]:
    """What paths stand for, and the store that holds it."""
    for each in given:
        if not each:
            raise UsageError("the path is empty: name a file or a folder")
        if "\0" in each:
            raise UsageError(f"the path {each!r} holds a zero byte")
    if any(is_url(each) for each in given):
        from ..engine import locate_objects  # its library is optional

        found = locate_objects(*given)
        names = found.names if found.kind == "pattern" else ()
        return Location(found.kind, found.names[0], found.path, names), found.store
    if len(given) > 1:
        return _locate_patterns(given)
    path = os.path.abspath(given[0])
    folder, name = os.path.split(path)
    try:
        mode = os.stat(path)
    except OSError as error:
        if error.errno == errno.ENOENT and os.path.isfile(f"{path}.idx"):
            return locate_data(f"{path}.idx")  # the prefix of several files
        if error.errno == errno.ENOENT and (glob.has_magic(path) or "{" in path):
            return _locate_patterns(given)
        raise stores.storage_error(error.errno or errno.EIO, path) from None
    if os.path.isdir(path):
        return Location("folder", "", path), stores.Posix(path)
    if not os.path.isfile(path):
        raise UsageError(f"{path} is neither a file nor a folder (mode {mode.st_mode:o})")
    return Location("file", name, path), stores.Posix(folder)


def _locate_patterns(given: Sequence[str]) -> tuple[Location, stores.Store]:
    paths = [os.path.abspath(each) for each in given]
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    while glob.has_magic(root) or "{" in root:
        root = os.path.dirname(root)
    names = tuple(os.path.relpath(path, root) for path in paths)
    return Location("pattern", names[0], ", ".join(paths), names), stores.Posix(root)


# -- where the index is saved ----------------------------------------------------------------------


def sidecar_paths(place: Location) -> list[str]:
    """Where an index is looked for and saved, best first: beside the data, then the user's cache.

    Beside a folder, not inside: writing there would change the folder's time and so the data.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    real = place.path if is_url(place.path) else os.path.realpath(place.path)
    digest = hashlib.blake2b(os.fsencode(real), digest_size=8).hexdigest()
    name = os.path.basename(place.path)[:100].replace("*", "_")
    cache = os.path.join(base, "penstock", f"{digest}-{name}.penstock")
    if place.kind == "pattern" or is_url(place.path):
        return [cache]
    return [f"{place.path}.penstock", cache]


def _save(index: Index, place: Location) -> str | None:
    """Save the index where that is possible, and say where; failing is no more than a warning."""
    problem: OSError | None = None
    for number, sidecar in enumerate(sidecar_paths(place)):
        try:
            if number or place.kind == "pattern" or is_url(place.path):
                os.makedirs(os.path.dirname(sidecar), exist_ok=True)
            index.save(sidecar)
            return sidecar
        except OSError as error:
            problem = error
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                break
    warnings.warn(
        f"{place.path}: the index could not be saved ({problem}) and will be made again at the "
        f"next open: make room or a writable place, or use index='memory'",
        RuntimeWarning,
        stacklevel=4,
    )
    return None


# -- dataset ---------------------------------------------------------------------------------------


class Dataset:
    """Samples by number, and the index that says where they are.

    `dataset[i]` reads one sample and checks that its file is as it was indexed; loaders read many
    at once. Immutable; may be pickled, and then opens the saved index again.
    """

    def __init__(
        self, path: str, index: Index, sidecar: str | None = None, paths: tuple[str, ...] = ()
    ) -> None:
        self.path = path
        self._paths = paths or (path,)
        self.index = index
        self.sidecar = sidecar

    @property
    def fields(self) -> tuple[Field, ...]:
        """The parts of a sample."""
        return self.index.fields

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, where labels stand for names."""
        return self.index.classes

    @property
    def fingerprint(self) -> str:
        """The identity of the data: equal for a copy elsewhere, different for other data."""
        return self.index.fingerprint

    def __len__(self) -> int:
        return self.index.count

    def order(
        self, seed: int, *, shuffle: Shuffle = "exact", block: int = 256, group: int = 64
    ) -> Ordering:
        """The order of epoch 0, as loaders draw it."""
        return Order(len(self), seed, shuffle=shuffle, block=block, group=group)

    def __getitem__(self, sample: SupportsIndex) -> dict[str, Any]:
        """One sample: its fields, its "__key__" and, where known, its "label".

        A field is an array where the format knows dtype and shape, else bytes. ChangedError where
        the file is not as it was indexed.
        """
        number = operator.index(sample)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} does not exist: there are {len(self):,}")
        number %= len(self)
        planned, buffer = self._read(number)
        parts = build_fields(self.index, planned, buffer)
        found: dict[str, Any] = {}
        for field in self.fields:
            rows = parts[field.name]
            if field.shape is not None:
                found[field.name] = rows.reshape(field.shape)  # an array even where it is ()
            else:
                found[field.name] = rows[0].tobytes() if field.dtype == np.uint8 else rows[0]
        found["__key__"] = self.index.key(number)
        if planned.labels is not None:
            found["label"] = int(planned.labels[0])
        return found

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[sample] for sample in range(len(self)))

    def _read(self, sample: int) -> tuple[StepPlan, np.ndarray[Any, np.dtype[np.uint8]]]:
        """One sample's bytes, and where its fields lie in them."""
        ids, bounds = np.array([sample], np.uint64), np.array([0, 1], np.int64)
        (group,) = plan_samples(self.index, ids, bounds, 0, None)
        (planned,) = group.steps
        buffer = np.empty(planned.bytes, np.uint8)
        columns = (column.tolist() for column in planned.requests[:-1])
        where = f"sample {sample:,}: {self.index.where(sample)}"
        for file, offset, length, _, target in zip(*columns, strict=True):
            data = read_extent(self.index.files, file, offset, length, where)
            buffer[target : target + length] = np.frombuffer(data, np.uint8)
        return planned, buffer

    def __reduce__(self) -> tuple[Any, ...]:
        if self.sidecar is None:
            return Dataset, (self.path, self.index, None, self._paths)
        index = self.index
        asked = (index.files.root, index.format, dict(index.options), index.fingerprint)
        mirrors = [(each.root, each.size, each.mtime_ns) for each in index.files.mirrors]
        return _reopen, (self.path, self._paths, self.sidecar, *asked, mirrors)

    def __repr__(self) -> str:
        labelled = f", {len(self.classes)} classes" if self.classes is not None else ""
        return (
            f"<penstock.Dataset {self.path!r}: {len(self):,} samples{labelled}, "
            f"{self.index.total_bytes:,} bytes, format {self.index.format}>"
        )


def _reopen(
    path: str,
    paths: tuple[str, ...],
    sidecar: str,
    root: str,
    format: str,
    options: Options,
    fingerprint: str,
    mirrors: Sequence[tuple[str, Int, Int]] = (),
) -> Dataset:
    """The dataset that was pickled: by its saved index, or else by a new one of the same data."""

    def opened(index: Index, sidecar: str | None) -> Dataset:
        files = index.files
        tables = [
            replace(files, root=root, size=size, mtime_ns=mtime_ns)
            for root, size, mtime_ns in mirrors
        ]
        files = replace(files, mirrors=tuple(tables))
        return Dataset(path, replace(index, files=files), sidecar, paths)

    try:
        found = Index.load(sidecar, root)
        if found.fingerprint == fingerprint:
            return opened(found, sidecar)
    except (OSError, SidecarError):
        pass  # moved or damaged since: the data itself decides
    place, store = locate_data(*paths)
    made = FORMATS[format].build(store, place, options, None)
    if made.fingerprint != fingerprint:
        raise ChangedError(
            f"{path} is not the data that was pickled (fingerprint {made.fingerprint}, was "
            f"{fingerprint}): open it again"
        )
    return opened(replace(made, options=options), None)
