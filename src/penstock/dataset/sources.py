"""Sources: the place that paths name, and the index of the data there."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from ..engine import store as stores
from ..engine.open import is_url
from ..errors import ChangedError, SidecarError, UsageError
from ..extent import Int
from ..index.concat import rename_fields
from ..index.fields import RESERVED, SUMS_FIELD, Scaling
from ..index.formats.detection import has_own_splits
from ..index.formats.registry import FORMATS
from ..index.formats.shards import Location
from ..index.formats.splits import narrow_place
from ..index.json_fields import JsonFields
from ..index.saved_index import IndexRequest, load_index
from ..index.table import Index
from ..index.vocabulary import set_vocabulary


def pin_paths(paths: Sequence[str], whole: bool = False) -> list[str]:
    """Return the paths, absolute, with URLs of a hub pinned to a commit.

    whole:  leave a folder of a repository as it is, with documents beside its data.
    """
    if any(path.startswith("hf://") or "/snapshots/" in path for path in paths):
        from ..engine.hub import pin_hub_urls

        paths = pin_hub_urls(paths, whole)
    return [path if is_url(path) or not path else os.path.abspath(path) for path in paths]


def locate_data(*paths: str) -> tuple[Location, stores.Store]:
    """Return the location that paths stand for, and the store that holds it."""
    for name in paths:
        if "\0" in name:
            raise UsageError(f"the path {name!r} holds a zero byte: correct it")
    if any(is_url(name) for name in paths):
        from ..engine.object_store import locate_objects  # its library is optional

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
        kind = f"neither a file nor a folder (mode {mode.st_mode:o})"
        raise UsageError(f"{path} is {kind}: copy it into one")
    return Location("file", name, path), stores.Posix(folder)


def _locate_patterns(patterns: Sequence[str]) -> tuple[Location, stores.Store]:
    paths = [os.path.abspath(pattern) for pattern in patterns]
    paths = [f"{p}.idx" if os.path.isfile(f"{p}.idx") else p for p in paths]  # as prefixes
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    while glob.has_magic(root) or "{" in root:
        root = os.path.dirname(root)
    names = tuple(os.path.relpath(path, root) for path in paths)
    return Location("pattern", names[0], ", ".join(paths), names), stores.Posix(root)


def request_index(
    paths: Sequence[str],
    format: str | None,
    split: str | Sequence[str] | None,
    options: Mapping[str, Any],
    progress: stores.Progress | None = None,
    wrap: Callable[[stores.Store], stores.Store] = lambda store: store,
) -> tuple[IndexRequest, str]:
    """Return the request for the index of paths, which are pinned, and the folder of the split
    below them, or "".

    options:  of the format, as `penstock.open` takes them.
    wrap:     function of the store that returns the one to ask.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if options.get("header_bytes") == 0:
        del options["header_bytes"]
    if "extensions" in options:
        options["extensions"] = stores.checked_extensions(options["extensions"])
    place, store = locate_data(*paths)
    below = ""
    if split is not None and has_own_splits(store, place, format):
        options["split"] = split
    elif split is not None:
        place, store, below = narrow_place(place, store, split)
    return IndexRequest(place, wrap(store), format, options, progress), below


def choose_names(index: Index, rename: Mapping[str, str] | None, path: str) -> Index:
    """Return the index with the names that its fields have for the user.

    UsageError if a name is one of `RESERVED`, or "label" beside labels: one would hide the other.
    """
    if rename is not None:
        if not isinstance(rename, Mapping) or not all(isinstance(n, str) for n in rename.values()):
            raise UsageError(f"rename is {rename!r:.100}: give a dict {{name: another name}}")
        index = rename_fields(index, rename)
    taken = RESERVED if index.label_column is None else (*RESERVED, "label")
    for name in (made.name for made in index.made):
        if name in taken:
            what = f"{path} has a field {name!r}, which would hide that of every sample"
            raise UsageError(f'{what}: give rename={{{name!r}: "another"}} or leave it out')
    return index


def convert_integers(index: Index, as_dtype: Any, path: str) -> Index:
    """Return the index with the dtype in which batches have the fields of integers."""
    try:
        dtype = np.dtype(as_dtype)
    except (TypeError, ValueError):
        dtype = np.dtype(object)
    if dtype.kind not in "iu":
        raise UsageError(f"as_dtype is {as_dtype!r}: use integers, such as 'int64'")
    converted = [
        replace(field, parser=replace(field.parser, integers=dtype.name))
        if field.parser is not None
        else replace(field, as_dtype=dtype)
        if field.dtype.kind in "iu"
        and field.scaling is None
        and not (field.dtype == np.uint8 and field.shape is None)
        and field.name != SUMS_FIELD
        else field
        for field in index.fields
    ]
    changed = [field for field in converted if field.as_dtype is not None]
    for field in converted:
        if field.parser is not None:
            field.parser.check_defaults()
    attributes = tuple(attribute.convert_integers(dtype) for attribute in index.attributes)
    parsed = [*index.made[-len(attributes) :]] if attributes else []
    parsed += [made for field in converted if field.parser is not None for made in field.made]
    for item in changed:
        if not np.can_cast(item.dtype, dtype, "safe"):
            raise UsageError(f"as_dtype is {dtype}, and {item.name!r} is {item.dtype}: use 'int64'")
    if not changed and not any(made.dtype.kind in "iu" for made in parsed):
        names = ", ".join(f"{made.name} ({made.dtype})" for item in converted for made in item.made)
        raise UsageError(f"as_dtype: {path} has no field of integers, but {names}: leave it out")
    return replace(index, fields=tuple(converted), attributes=attributes)


def scale_fields(index: Index, scalings: Mapping[str, tuple[Scaling, Any]]) -> Index:
    """Return the index whose fields of these names are normalised, to a dtype each."""
    fields = [
        replace(field, scaling=scalings[field.name][0], as_dtype=scalings[field.name][1])
        if field.name in scalings
        else field
        for field in index.fields
    ]
    return replace(index, fields=tuple(fields))


def _list_names(index: Index) -> list[str]:
    """List the names of the fields and attributes."""
    return [*(item.name for item in index.fields), *(item.name for item in index.attributes)]


class IndexReference(NamedTuple):
    """Reference to a saved index, in place of which a pickled dataset has it.

    mirrors:     root, sizes and times of each mirror.
    as_dtype, parser, vocabulary, scalings, names:  what the saved index lacks of its fields.
    """

    path: str
    paths: tuple[str, ...]
    sidecar: str
    root: str
    format: str
    options: Mapping[str, Any]
    fingerprint: str
    mirrors: Sequence[tuple[str, Int, Int]]
    as_dtype: np.dtype[Any] | None
    parser: JsonFields | None
    vocabulary: Mapping[str, int]
    scalings: Mapping[str, tuple[Scaling, Any]]
    names: Sequence[str]

    @classmethod
    def make(cls, index: Index, path: str, paths: tuple[str, ...], sidecar: str) -> Self:
        """Refer to the index that is saved at `sidecar`."""
        dtypes = [field.as_dtype for field in index.fields if field.scaling is None]
        dtypes += [attribute.as_dtype for attribute in index.attributes]
        return cls(
            path,
            paths,
            sidecar,
            index.files.root,
            index.format,
            dict(index.options),
            index.fingerprint,
            [(mirror.root, mirror.size, mirror.mtime_ns) for mirror in index.files.mirrors],
            next((dtype for dtype in dtypes if dtype is not None), None),
            index.fields[0].parser,
            {field.name: field.vocabulary for field in index.fields if field.vocabulary},
            {one.name: (one.scaling, one.as_dtype) for one in index.fields if one.scaling},
            _list_names(index),
        )

    def open(self) -> tuple[Index, str | None]:
        """Open the saved index, or else make a new one of the same data, not saved.

        Return it, and the path at which it is saved. Raises ChangedError if the data is another.
        """
        try:
            saved = load_index(self.sidecar, self.root)
            if saved.fingerprint == self.fingerprint:
                return self._complete(saved), self.sidecar
        except (OSError, SidecarError):
            pass  # moved or damaged since: the data itself decides
        place, store = locate_data(*self.paths)
        options = dict(self.options)
        if "splits" in options:
            place = replace(place, splits=tuple(options.pop("splits")))
        built = FORMATS[self.format].build(store, place, None, **options)
        if built.fingerprint != self.fingerprint:
            raise ChangedError(f"{self.path} is not the data that was pickled: open it again")
        return self._complete(replace(built, options=self.options)), None

    def _complete(self, index: Index) -> Index:
        names = dict(zip(_list_names(index), self.names, strict=True))
        index = rename_fields(index, {} if index.fields[0].parser else names)
        if self.as_dtype is not None:
            index = convert_integers(index, self.as_dtype, self.path)
        index = scale_fields(set_vocabulary(index, self.vocabulary, self.path), self.scalings)
        if self.parser is not None:
            index = replace(index, fields=(replace(index.fields[0], parser=self.parser),))
        mirrors = tuple(
            replace(index.files, root=root, size=size, mtime_ns=mtime_ns)
            for root, size, mtime_ns in self.mirrors
        )
        return replace(index, files=replace(index.files, mirrors=mirrors))
