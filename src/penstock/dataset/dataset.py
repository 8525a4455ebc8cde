"""Datasets: `open` finds the format of data where it lies, and loads or builds its index."""

from __future__ import annotations

import contextlib
import copy
import errno
import glob
import hashlib
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import Path, check_function, check_path, check_whole
from ..engine import INSTALLED_BYTES, add_mirrors, find_commit, is_url, pin_hub_urls, read_extent
from ..engine import store as stores
from ..errors import ChangedError, FormatError, LimitError, PenstockError, SidecarError, UsageError
from ..extent import Int
from ..index import (
    FORMATS,
    SUMS_FIELD,
    Field,
    Index,
    JsonFields,
    Location,
    choose_format,
    find_outside,
    set_vocabulary,
)
from ..order import (
    Bitmap,
    Order,
    Ordering,
    Selection,
    Shuffle,
    Subset,
    WeightedOrder,
    WeightTable,
    check_words,
    map_numbers,
)
from ..plan import Ids, StepPlan, plan_samples
from .columns import Slice
from .fields import build_fields, open_column
from .lengths import SavedLengths, allot_lengths, count_numbers, find_counted, load_lengths
from .sample import Decode, LoadedSample
from .saved_selection import load_selection, save_selection, spill_selection
from .selecting import By, Condition, choose_samples, divide_samples, narrow
from .weighing import Weighting, WeightsOf, make_table, narrow_weights, read_weights, spill_weights

Options = dict[str, Any]


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
    mirrors: Path | Sequence[Path] = (),
    as_dtype: Any = None,
    vocabulary: int | Mapping[str, int] | None = None,
    **more: Any,
) -> Dataset:
    """Open the samples at `path`. Only the metadata that locates them is read.

    path:          a file or folder of any format in `penstock formats`, or the URL of one
                   ("s3://bucket/folder"); a pattern such as "train-*.tar" or
                   "train-{000..146}.tar", or a list of files, which make one dataset.
    format:        the format's name; by default it is recognised by the content.
    more:          options of the format: `penstock formats` lists them.
    record_bytes:  size of a record; or `dtype` and `shape` of one. `header_bytes` are skipped at
                   the start of each file.
    extensions:    which files of a folder count; by default all.
    index:         "auto" takes the saved index if it is fresh, and else makes and saves it;
                   "read" does not save it; "rebuild" makes and saves it; "memory" neither reads
                   nor writes one; anything else is the path of a saved index, which must fit.
    progress:      called now and then with the number of files seen.
    mirrors:       folders or URLs that hold copies of these files, or of some of them, under the
                   same names as the folder that `path` is, or lies in. Loaders read from all places
                   at once, and fall back from one to another. Sizes are compared now; that the
                   bytes are the same is for you to guarantee. docs/mirrors.md
    as_dtype:      integers in which samples and batches have all fields of integers, in place of
                   those stored: "int64" or "int32", as embeddings take them. Raw bytes stay bytes.
    vocabulary:    the number of tokens that there are, of which lists of tokens have none but 0 to
                   vocabulary - 1: another one is an error at its step. Of several fields with rows
                   of integers, that named "input_ids" or "tokens"; or by name, {field: number}.

    Raises a PenstockError that names the file: MissingError, FormatError, SidecarError, UsageError.
    """
    given_paths = [path] if isinstance(path, str | bytes | os.PathLike) else path
    if not isinstance(given_paths, Sequence) or not given_paths:
        raise UsageError(f"path is {path!r}: give a path, or a list of them")
    checked = [check_path("path", part) for part in given_paths]
    paths = tuple(_make_absolute(part) for part in pin_hub_urls(checked))
    index = check_path("index", index)
    if not isinstance(mirrors, Sequence):
        raise UsageError(f"mirrors is {mirrors!r:.100}: give folders or URLs in a list")
    check_function("progress", progress, "a function of a number of files")
    given_mirrors = [mirrors] if isinstance(mirrors, str | bytes) else mirrors
    checked = [check_path("a mirror", mirror) for mirror in given_mirrors]
    roots = [_make_absolute(root) for mirror in checked for root in pin_hub_urls([mirror])]
    place, store = locate_data(*paths)
    options: Options = {name: value for name, value in more.items() if value is not None}
    layout = {"record_bytes": record_bytes, "dtype": dtype, "shape": shape}
    options |= {name: value for name, value in layout.items() if value is not None}
    if header_bytes != 0:
        options["header_bytes"] = header_bytes
    if extensions is not None:
        options["extensions"] = stores.checked_extensions(extensions)
    request = _Request(place, store, format, options, progress)
    table, sidecar = _find_index(request, index)
    table = request.attach(table)
    if as_dtype is not None:
        table = _convert_integers(table, as_dtype, place.path)
    if vocabulary is not None:
        table = set_vocabulary(table, vocabulary, place.path)
    if roots:
        table = replace(table, files=add_mirrors(table.files, roots))
    return Dataset(place.path, table, sidecar, paths)


def _convert_integers(index: Index, as_dtype: Any, path: str) -> Index:
    """Return the index with the dtype in which batches have the fields of integers."""
    try:
        dtype = np.dtype(as_dtype)
    except (TypeError, ValueError):
        dtype = np.dtype(object)
    if dtype.kind not in "iu":
        raise UsageError(f"as_dtype is {as_dtype!r}: use integers, such as 'int64'")
    converted = [
        replace(part, parser=replace(part.parser, integers=dtype.name))
        if part.parser is not None
        else replace(part, as_dtype=dtype)
        if part.dtype.kind in "iu"
        and not (part.dtype == np.uint8 and part.shape is None)
        and part.name != SUMS_FIELD
        else part
        for part in index.fields
    ]
    changed = [part for part in converted if part.as_dtype is not None]
    for part in converted:
        if part.parser is not None:
            part.parser.check_defaults()
    attributes = tuple(part.convert_integers(dtype) for part in index.attributes)
    parsed = [*index.made[-len(attributes) :]] if attributes else []
    parsed += [made for part in converted if part.parser is not None for made in part.made]
    for part in changed:
        if not np.can_cast(part.dtype, dtype, "safe"):
            raise UsageError(
                f"as_dtype is {dtype}, which does not hold all values of field {part.name!r} "
                f"({part.dtype}): use 'int64'"
            )
    if not changed and not any(made.dtype.kind in "iu" for made in parsed):
        names = ", ".join(f"{made.name} ({made.dtype})" for part in converted for made in part.made)
        raise UsageError(f"as_dtype: {path} has no field of integers, but {names}: leave it out")
    return replace(index, fields=tuple(converted), attributes=attributes)


def _find_index(request: _Request, how: str) -> tuple[Index, str | None]:
    """Load or build the index. Returns it with the path where it is saved, if it is."""
    if how == "memory":
        return request.build(), None
    if how not in ("auto", "read", "rebuild"):
        sidecar = os.path.abspath(how)
        return request.load(sidecar), sidecar
    if how != "rebuild":
        for sidecar in sidecar_paths(request.place):
            saved = request.load_if_fresh(sidecar)
            if saved is not None:
                return saved, sidecar
    built = request.build()
    if how == "read":
        return built, None
    saved_as = _save(built, request.place)
    if saved_as is not None:
        with contextlib.suppress(OSError, SidecarError):  # others may replace it meanwhile
            if os.path.getsize(saved_as) > limits.sidecar_bytes_verified_max:
                saved = Index.load(saved_as, request.store.root, outside=_is_own(saved_as))
                if saved.fingerprint == built.fingerprint:  # mapped, where `built` takes memory
                    return saved, saved_as
    return built, saved_as


def _make_absolute(path: str) -> str:
    return path if is_url(path) or not path else os.path.abspath(path)


_SOURCES_OF_A_FILE = 4
"""Most files that one named file may stand for: data and the format's own index."""


class _Request:
    """Request of a dataset, and the two ways to its index: load a saved one, or build a new one."""

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
        self.given = options
        try:
            self.format = choose_format(store, place, format, options)
            self.options = self.format.canonical(options)
            self.making = {
                name: value
                for name, value in self.options.items()
                if name not in self.format.reading
            }
            self.saved = {
                name: value
                for name, value in self.making.items()
                if name not in self.format.passing
            }
        except FormatError as error:  # a saved index may still know what the file is
            self.unknown = error

    def build(self) -> Index:
        if self.unknown is not None:
            raise self.unknown
        started_ns = time.time_ns()
        built = self.format.build(self.store, self.place, self.progress, **self.making)
        return replace(built, options=self.saved).flag_if_racy(started_ns)

    def attach(self, index: Index) -> Index:
        """Return the index with what is made of the bytes when they are read."""
        entry = FORMATS[index.format]
        if not entry.reading:
            return index
        options = self.options if self.unknown is None else entry.canonical(self.given)
        return entry.attach(
            index, **{name: value for name, value in options.items() if name in entry.reading}
        )

    def load(self, sidecar: str) -> Index:
        """Load the saved index. Raises SidecarError if it is not of this data."""
        try:
            saved = Index.load(sidecar, self.store.root, outside=_is_own(sidecar))
        except OSError as error:
            raise stores.build_storage_error(error.errno or errno.EIO, sidecar) from None
        reason = self._find_misfit(saved) or saved.validate(self.store) or self._find_restamp(saved)
        if reason is not None:
            raise SidecarError(
                f"{sidecar} does not describe {self.place.path} as it is now: {reason}: "
                f"rebuild it with `penstock index --force {self.place.path}`"
            )
        return saved

    def load_if_fresh(self, sidecar: str) -> Index | None:
        """Load the saved index if it exists, is whole, up to date and of the same options."""
        try:
            saved = Index.load(sidecar, self.store.root, outside=_is_own(sidecar))
        except OSError:
            return None
        except SidecarError as error:
            warnings.warn(f"{error}; it is made anew now", RuntimeWarning, stacklevel=4)
            return None
        stale = saved.racy or self._find_misfit(saved) or saved.validate(self.store)
        return None if stale or self._find_restamp(saved) else saved

    def _find_restamp(self, saved: Index) -> str | None:
        """Describe a change that the files' content shows, but not size or time; else None."""
        entry = FORMATS.get(saved.format)
        if entry is None:
            return None
        try:
            now = entry.stamp(self.store, saved.files)
        except PenstockError as error:
            return str(error)
        return None if now == saved.stamp else f"its files say {now}, and said {saved.stamp}"

    def _find_misfit(self, saved: Index) -> str | None:
        """Describe how the saved index differs from the request, or return None."""
        if self.place.kind == "file":
            few = range(min(len(saved.sources), _SOURCES_OF_A_FILE))
            if self.place.name not in (saved.files.name(0), *map(saved.sources.name, few)):
                return f"it is of {saved.sources.name(0)}"
        if self.unknown is not None:
            return None
        if saved.format != self.format.name:
            return f"it was made as {saved.format!r}, not as {self.format.name!r}"
        if saved.options != self.saved:
            return f"it was made with {dict(saved.options)}, not with {self.saved}"
        return None


def locate_data(*paths: str) -> tuple[Location, stores.Store]:
    """Return the location that paths stand for, and the store that holds it."""
    for name in paths:
        if "\0" in name:
            raise UsageError(f"the path {name!r} holds a zero byte: no file name does, correct it")
    if any(is_url(name) for name in paths):
        from ..engine import locate_objects  # its library is optional

        objects = locate_objects(*paths)
        names = objects.names if objects.kind == "pattern" else ()
        return Location(objects.kind, objects.names[0], objects.path, names), objects.store
    if len(paths) > 1:
        return _locate_patterns(paths)
    path = os.path.abspath(paths[0])
    folder, name = os.path.split(path)
    try:
        mode = os.stat(path)
    except OSError as error:
        if error.errno == errno.ENOENT and os.path.isfile(f"{path}.idx"):
            return locate_data(f"{path}.idx")  # the prefix of several files
        if error.errno == errno.ENOENT and (glob.has_magic(path) or "{" in path):
            return _locate_patterns(paths)
        raise stores.build_storage_error(error.errno or errno.EIO, path) from None
    if os.path.isdir(path):
        return Location("folder", "", path), stores.Posix(path)
    if not os.path.isfile(path):
        raise UsageError(
            f"{path} is neither a file nor a folder (mode {mode.st_mode:o}): copy it into one"
        )
    return Location("file", name, path), stores.Posix(folder)


def _locate_patterns(patterns: Sequence[str]) -> tuple[Location, stores.Store]:
    paths = [os.path.abspath(pattern) for pattern in patterns]
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    while glob.has_magic(root) or "{" in root:
        root = os.path.dirname(root)
    names = tuple(os.path.relpath(path, root) for path in paths)
    return Location("pattern", names[0], ", ".join(paths), names), stores.Posix(root)


# -- saved indexes ----------------------------------------------------------------------


def sidecar_paths(place: Location) -> list[str]:
    """List the paths at which an index is looked for and saved: beside the data, then in a cache.

    Beside a folder, not inside: writing there would change the folder's time and so the data.
    """
    cache = f"{_own_path(place.path)}.penstock"
    if place.kind == "pattern" or is_url(place.path):
        return [cache]
    return [f"{place.path}.penstock", cache]


def list_saved_paths(path: str, kind: str) -> list[str]:
    """List the paths at which a file of this kind is looked for and saved: beside the data, as the
    index is, and in this user's cache."""
    own = f"{_own_path(path)}.{kind}.penstock"
    beside = not is_url(path) and os.path.exists(path)
    return [f"{path}.{kind}.penstock", own] if beside else [own]


def _own_path(path: str) -> str:
    """Return the path, without an end, at which this user saves what belongs to the data."""
    real = path if is_url(path) else os.path.realpath(path)
    digest = hashlib.blake2b(os.fsencode(real), digest_size=8).hexdigest()
    name = os.path.basename(path)[:100].replace("*", "_")
    return os.path.join(_own_folder(), f"{digest}-{name}")


def _own_folder() -> str:
    """Return the folder in which only this user saves indexes."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "penstock")


def _is_own(sidecar: str) -> bool:
    """Return whether this user has saved an index, and not whoever the data came from."""
    return os.path.dirname(sidecar) == _own_folder()


def _save(index: Index, place: Location) -> str | None:
    """Save the index at the first possible path, and return that; a failure is only a warning.

    An index of files outside the place (a listing may name such) is saved in the user's own folder.
    """
    problem: OSError | None = None
    for number, sidecar in enumerate(sidecar_paths(place)):
        if not _is_own(sidecar) and find_outside(index.files) is not None:
            continue
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
    """Samples by number, and the index that locates them.

    `dataset[i]` reads one sample and checks that its file is as it was indexed; loaders read many
    at once. Immutable; may be pickled, and then opens the saved index again.

    subset:     samples of the index that are selected; None is all of them.
    weighting:  weights of these samples; None has each once an epoch.
    """

    can_mix = True
    """True if `mix` takes such a dataset."""

    def __init__(
        self,
        path: str,
        index: Index,
        sidecar: str | None = None,
        paths: tuple[str, ...] = (),
        subset: Subset | None = None,
        weighting: Weighting | None = None,
    ) -> None:
        self.path = path
        self._paths = paths or (path,)
        self.index = index
        self.sidecar = sidecar
        self.subset = subset
        self.weighting = weighting

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of a sample."""
        return tuple(made for made in self.index.made if made.name != SUMS_FIELD)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, if labels stand for names."""
        return self.index.classes

    @property
    def fingerprint(self) -> str:
        """Identity of the data: equal for a copy elsewhere, different for other data, or for
        another selection of it."""
        if self.subset is None:
            return self.index.fingerprint
        both = f"{self.index.fingerprint}/{self.subset.digest}"
        return hashlib.blake2b(both.encode(), digest_size=16).hexdigest()

    @property
    def commit(self) -> str:
        """Commit of the hub that the data is of, hf:// or its local cache; "" for other data. In a
        mixture those of its datasets, each once."""
        return find_commit(self.index.files.root)

    def __len__(self) -> int:
        return self.index.count if self.subset is None else len(self.subset)

    @property
    def samples_per_epoch(self) -> int:
        """Samples that an epoch draws: each once, unless there are weights or a mixture."""
        return len(self) if self.weighting is None else self.weighting.samples_per_epoch

    @property
    def lengths(self) -> Int:
        """The length of each sample, int64, as `self[i]` numbers them.

        They are what `penstock lengths` has measured; else what the container knows: the numbers of
        the only list of a sample (of "input_ids" or "tokens", if there are several), or its bytes
        if that holds bytes. Of all samples they are a mapped file, or in memory up to 4 million.
        UsageError if the container does not know them; SidecarError if those measured are of
        another version of the data.
        """
        saved = self.load_lengths()
        if saved is not None and self.subset is None:
            return saved.values
        read = self.find_lengths()
        if read is None:
            path = self.find_unmeasured().path
            raise UsageError(
                f"{path}: the container does not say how long samples are: measure them once "
                f"with `penstock lengths {path} --by tokens|bytes|duration|module:function`"
            )
        values = allot_lengths(len(self), _own_folder())
        for start in range(0, len(self), limits.selection_chunk_samples):
            stop = min(start + limits.selection_chunk_samples, len(self))
            values[start:stop] = read(start, stop)
        return values

    def find_lengths(self) -> Slice | None:
        """Return the function that gives the lengths of the samples [start, stop), if they are
        known."""
        saved = self.load_lengths()
        if saved is None and find_counted(self.index) is None:
            return None

        def read(start: int, stop: int) -> Int:
            ids = self.ids(np.arange(start, stop, dtype=np.uint64)).view(np.int64)
            return count_numbers(self.index, ids) if saved is None else saved.values[ids]

        return read

    def find_id_lengths(self) -> Callable[[Ids], Int] | None:
        """Return the function that gives the lengths of samples by their numbers in the whole
        dataset, as `batch.ids` has them, if lengths are known."""
        saved = self.load_lengths()
        if saved is not None:
            return saved.take
        if find_counted(self.index) is None:
            return None
        return partial(count_numbers, self.index)

    def load_lengths(self) -> SavedLengths | None:
        """Return the lengths that `penstock lengths` has measured of all samples, if it has."""
        return load_lengths(self.list_length_paths(), self.index, self.path)

    def list_length_paths(self) -> list[str]:
        """List the paths at which measured lengths are looked for and saved, as the index is."""
        return list_saved_paths(self.path, "lengths")

    def find_unmeasured(self) -> Dataset:
        """Return the data whose lengths are unknown, if those of this dataset are: a part of a
        mixture."""
        return self

    def has_lengths(self) -> bool:
        """Return whether lengths are known: measured ones may be of another version still."""
        measured = any(os.path.exists(path) for path in self.list_length_paths())
        return measured or find_counted(self.index) is not None

    def ids(self, numbers: npt.ArrayLike) -> Ids:
        """Return the numbers in the whole dataset of the samples `self[number]`, as `batch.ids`
        and "__id__" have them. They differ from `numbers` in a selection only."""
        if self.subset is None:
            return check_words(numbers, len(self), "sample")
        return map_numbers(self.subset, numbers)

    def order(
        self,
        seed: int,
        *,
        shuffle: Shuffle = "exact",
        block: int = 256,
        group: int = 64,
        stream: int = 0,
    ) -> Ordering:
        """Return the order of epoch 0, as loaders draw it; other streams are unrelated to it."""
        count = self.samples_per_epoch
        base = Order(count, seed, shuffle=shuffle, block=block, group=group, stream=stream)
        if self.weighting is None:
            return base if self.subset is None else Selection(base, self.subset)
        order = WeightedOrder(base, self.weighting.table)
        return order if self.subset is None else Selection(order, self.subset)

    def select(
        self,
        ids: Any = None,
        *,
        mask: Any = None,
        where: Condition | None = None,
        fraction: float | None = None,
        seed: int = 0,
        columns: Mapping[str, Any] | None = None,
        saved: Path | None = None,
    ) -> Self:
        """Return the dataset of some of these samples, each once. Give one of:

        ids:       numbers of samples in any sequence, or a `range` of them.
        mask:      truth values, one for each sample.
        where:     a condition on the samples' columns, such as "label == 'cat' and bytes > 1000" or
                   "key.startswith('en/')", or a function of the `Columns` that returns a mask.
        fraction:  of the samples, drawn by `seed`. A larger fraction of one seed holds a smaller.

        saved:     the path of a file that `save_selection` has written for the same data.

        columns:   arrays by name, one value for each sample, for `where`.

        Columns are "label", "bytes" (of a sample), "key", in a mixture "source", fields that are
        one number a sample (read at first use), and `columns`.

        Samples stay in the sequence that they lie in; a loader's order decides how they come. They
        are numbered from 0 on here, as `dataset[i]` takes them, and so is a selection of a
        selection. `batch.ids`, keys, labels and caches keep the numbers of the whole dataset (see
        `ids`). A selection of a mixture draws from the selected samples by the same weights.

        Takes 1.04 bits for each sample of the whole dataset. UsageError if nothing is selected, and
        for ids that do not exist or come twice, masks of another length and unknown columns.
        """
        others = {"ids": ids, "mask": mask, "where": where, "fraction": fraction}
        if saved is not None:
            given = [name for name, value in others.items() if value is not None]
            if given or self.subset is not None:
                also = f"{given[0]} is given too" if given else "this is a selection itself"
                raise UsageError(
                    f"saved is a selection of the whole dataset, and {also}: select from the "
                    "result, or from the dataset as it was opened"
                )
            return self._keep(
                load_selection(
                    check_path("saved", saved), self.index.fingerprint, commit=self.commit
                )
            )
        chosen = choose_samples(
            self, ids=ids, mask=mask, where=where, fraction=fraction, seed=seed, columns=columns
        )
        return self._keep(chosen)

    def save_selection(self, path: Path) -> None:
        """Save which samples are selected, for `select(saved=path)`; whole, or not at all.

        The file is mapped when it is opened: processes of a host share its memory, and a selection
        of 10^9 samples opens at once. StorageError if it cannot be written.
        """
        if not isinstance(self.subset, Bitmap):
            raise UsageError(
                f"{self.path} is "
                + ("no selection" if self.subset is None else "a mixture of selections")
                + ": save a selection of one dataset"
            )
        save_selection(check_path("path", path), self.subset, self.index.fingerprint, self.commit)

    def weigh(
        self,
        weights: WeightsOf,
        *,
        samples_per_epoch: int | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the dataset of the same samples, each of which comes as often as its weight says.

        weights:  an array of one number from 0 on for each sample; a dict {class: weight of each of
                  its samples}; the name of a column (see `select`); or a function of the `Columns`
                  that returns such an array.
        samples_per_epoch:  samples that an epoch draws; by default as many as there are, or as
                  before if there were weights.
        columns:  arrays by name, one value for each sample, for a name or a function.

        A sample of weight w is expected samples_per_epoch * w / (sum of all weights) times in an
        epoch. It comes so often, rounded down or up, in every epoch, and on average exactly so
        often. So samples that are expected less than once are left out of some epochs, evenly:
        they come at least once in any ceil(2 / expected) epochs. A weight of 0 is never drawn.
        Weights are kept to 2^-31 of the largest; one above 0 that this would make 0 is refused.

        Other weights replace these. A selection keeps the weights of its samples. In a mixture,
        weights decide within each dataset; how much comes from each is for the mixture.

        Takes 4.25 bytes a sample, from 4 million samples on in a mapped file without a name in the
        user's cache folder (with one for worker processes, when they start). UsageError for weights
        that are negative, not finite, all 0, or of another number, for unknown classes and columns,
        and for classes without a weight.
        """
        values = read_weights(self, weights, columns)
        number = self.samples_per_epoch
        if samples_per_epoch is not None:
            most = limits.order_count_max
            number = check_whole("samples_per_epoch", samples_per_epoch, 1, most)
        return self._weigh(values, number)

    def split(
        self,
        parts: Mapping[str, float],
        *,
        by: By | None = None,
        seed: int = 0,
        columns: Mapping[str, Any] | None = None,
    ) -> dict[str, Self]:
        """Divide the samples: each is in exactly one of the parts, which are selections.

        parts:    fractions by name that add up to 1: {"train": 0.9, "val": 0.1}.
        by:       None divides a seeded order, to within a sample of the fractions. The name of a
                  column (see `select`), or a function that gives a value for each sample, divides
                  by a hash of seed and value: samples of equal values are in one part, parts have
                  about the fractions, and by="key" gives a sample the same part whichever other
                  samples there are, so that data may be added. (It is refused where keys
                  count samples over several files, as those of Parquet do.)
        columns:  arrays by name, one value for each sample, for `by`.

        UsageError if a part would have no sample.
        """
        found = divide_samples(self, parts, by, seed, columns)
        return {name: self._keep(part) for name, part in found.items()}

    def _keep(self, chosen: Bitmap) -> Self:
        """Return the dataset of the chosen samples, which are numbered as here."""
        found = copy.copy(self)
        if self.weighting is not None:
            found.weighting = narrow_weights(self.weighting, chosen, _own_folder())
        found.subset = chosen if self.subset is None else narrow(self.subset, chosen)
        return found

    def _weigh(self, values: Slice, samples_per_epoch: int) -> Self:
        """Return the dataset of the same samples by the weights that `values` gives."""
        found = copy.copy(self)
        table = make_table(values, len(self), _own_folder())
        found.weighting = Weighting(table, samples_per_epoch)
        return found

    def join_weights(self) -> WeightTable:
        """Return the weights of all samples as one table, as `weigh` takes them again."""
        if self.weighting is None:
            raise UsageError(f"{self.path} has no weights: weigh() it first")
        return self.weighting.table

    def _whole(self) -> Dataset:
        """Return the dataset of all samples, without weights."""
        found = copy.copy(self)
        found.subset = found.weighting = None
        return found

    def __getitem__(self, sample: SupportsIndex) -> LoadedSample:
        """Read one sample: its fields, its "__key__" and, if known, its "label".

        A field is an array if the format knows dtype and shape, else bytes, as `decode` gets it.
        So that `decode(dataset[i])` can be tried, "__id__", "__epoch__" (0) and "__rng__" can be
        asked for too, but are no keys. Raises ChangedError if the file is not as it was indexed.
        """
        number = operator.index(sample)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} does not exist: there are {len(self):,}")
        number = int(self.ids([number % len(self)])[0])
        planned, buffer = self._read(number)
        parts = build_fields(self.index, planned, buffer)
        values = LoadedSample()
        values.stream = 0, 0, number
        plain = {one.name for one in self.index.attributes}
        utf8: set[str] = set()
        for part in self.index.fields:
            if part.parser is not None or part.text:
                plain |= {made.name for made in part.made}
            if part.parser is not None:
                utf8 |= {name for name, kind in part.parser.kinds.items() if kind == "bytes"}
        for field in self.fields:
            rows = parts[field.name]
            if field.name in utf8:
                values[field.name] = rows[0].tobytes()
            elif field.name in plain:
                values[field.name] = rows[0]
            elif field.shape is not None:
                values[field.name] = rows.reshape(field.shape)  # an array even if its shape is ()
            else:
                values[field.name] = open_column(field, field, rows, as_views=False)(0)
        values["__key__"] = self.index.key(number)
        if planned.labels is not None:
            values["label"] = int(planned.labels[0])
        return values

    def compose_decode(self, decode: Decode | None) -> Decode | None:
        """Return the function that turns a sample of a step into what is collated."""
        return decode

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[sample] for sample in range(len(self)))

    def _read(self, sample: int) -> tuple[StepPlan, np.ndarray[Any, np.dtype[np.uint8]]]:
        """Read one sample. Returns the plan that locates its fields in the bytes, and the bytes."""
        ids, bounds = np.array([sample], np.uint64), np.array([0, 1], np.int64)
        (group,) = plan_samples(self.index, ids, bounds, 0, None)
        (planned,) = group.steps
        where = f"sample {sample:,}: {self.index.where(sample)}"
        try:
            if planned.layout.bytes > INSTALLED_BYTES:
                raise MemoryError
            buffer = np.empty(planned.layout.bytes, np.uint8)
        except MemoryError:
            raise LimitError(
                f"{where}: no memory for its {planned.layout.bytes:,} bytes: cut it into several "
                f"samples, or use a machine with more memory"
            ) from None
        columns = (column.tolist() for column in planned.requests[:-1])
        for file, offset, length, _, target in zip(*columns, strict=True):
            data = read_extent(self.index.files, file, offset, length, where)
            buffer[target : target + length] = np.frombuffer(data, np.uint8)
        return planned, buffer

    def __reduce__(self) -> tuple[Any, ...]:
        subset = self.subset
        if isinstance(subset, Bitmap) and subset.nbytes > limits.selection_bytes_inline_max:
            subset = spill_selection(subset, self.index.fingerprint, _own_folder())
        weighting = self.weighting
        if weighting is not None:
            weighting = spill_weights(weighting, self.index.fingerprint, _own_folder())
        if self.sidecar is None:
            return Dataset, (self.path, self.index, None, self._paths, subset, weighting)
        index = self.index
        identity = (index.files.root, index.format, dict(index.options), index.fingerprint)
        mirrors = [(mirror.root, mirror.size, mirror.mtime_ns) for mirror in index.files.mirrors]
        converted = [part.as_dtype for part in index.fields]
        converted += [part.as_dtype for part in index.attributes]
        as_dtype = next((dtype for dtype in converted if dtype is not None), None)
        parser = index.fields[0].parser
        vocabulary = {part.name: part.vocabulary for part in index.fields if part.vocabulary}
        more = mirrors, as_dtype, parser, subset, weighting, vocabulary
        return _reopen, (self.path, self._paths, self.sidecar, *identity, *more)

    def __repr__(self) -> str:
        labelled = f", {len(self.classes)} classes" if self.classes is not None else ""
        selected = "" if self.subset is None else f"{len(self):,} selected of "
        if self.weighting is not None:
            selected = f"{self.samples_per_epoch:,} an epoch by weight, {selected}"
        return (
            f"<penstock.Dataset {self.path!r}: {selected}{self.index.count:,} samples{labelled}, "
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
    as_dtype: np.dtype[Any] | None = None,
    parser: JsonFields | None = None,
    subset: Subset | None = None,
    weighting: Weighting | None = None,
    vocabulary: Mapping[str, int] = MappingProxyType({}),
) -> Dataset:
    """Open a pickled dataset again, by its saved index or else by a new one of the same data."""

    def make_dataset(index: Index, sidecar: str | None) -> Dataset:
        if as_dtype is not None:
            index = _convert_integers(index, as_dtype, path)
        index = set_vocabulary(index, vocabulary, path)
        if parser is not None:
            index = replace(index, fields=(replace(index.fields[0], parser=parser),))
        files = index.files
        tables = [
            replace(files, root=root, size=size, mtime_ns=mtime_ns)
            for root, size, mtime_ns in mirrors
        ]
        files = replace(files, mirrors=tuple(tables))
        return Dataset(path, replace(index, files=files), sidecar, paths, subset, weighting)

    try:
        saved = Index.load(sidecar, root, outside=_is_own(sidecar))
        if saved.fingerprint == fingerprint:
            return make_dataset(saved, sidecar)
    except (OSError, SidecarError):
        pass  # moved or damaged since: the data itself decides
    place, store = locate_data(*paths)
    built = FORMATS[format].build(store, place, None, **options)
    if built.fingerprint != fingerprint:
        raise ChangedError(
            f"{path} is not the data that was pickled (fingerprint {built.fingerprint}, was "
            f"{fingerprint}): open it again"
        )
    return make_dataset(replace(built, options=options), None)
