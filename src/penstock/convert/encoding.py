"""Encoding of samples for the containers that `penstock convert` writes, and reading them back."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import limits
from ..arguments import check_choice, check_kind
from ..dataset.dataset import Dataset
from ..engine.atomic_file import Bytes
from ..errors import UsageError
from ..images.other_formats import make_smaller_copy
from ..images.sources import choose_field
from ..index.fields import SUMS_FIELD, Field
from ..index.layout import Fixed
from ..index.table import Index
from ..loader.batch import Batch
from . import containers
from .containers import Parts

Container = Literal["tar", "tfrecord", "records", "lmdb"]
Keys = Literal["names", "numbers", "both"]
"""Names of samples in the container: their own, their numbers in the new sequence, or both."""

SUFFIXES = {"tar": ".tar", "tfrecord": ".tfrecord", "records": ".bin", "lmdb": ".mdb"}
"""File suffix of each container."""

_ENDING = re.compile(r"[A-Za-z0-9]{1,10}")
_KEY_BYTES_MAX = 511  # of LMDB


class StoredSample(NamedTuple):
    """A sample as a container stores it: its name there ("" if it has none), parts and label."""

    key: str
    parts: Parts
    label: int | None

    def digest(self) -> bytes:
        """Return 128 bits over name, label and parts."""
        state = hashlib.blake2b(repr((self.key, self.label)).encode(), digest_size=16)
        for name, data in self.parts:
            state.update(f"{name}:{len(data)};".encode())
            state.update(data)
        return state.digest()


class Sample(NamedTuple):
    """A sample as it was read: raw fields as bytes, others as arrays."""

    number: int
    position: int
    name: str
    values: tuple[Any, ...]
    label: int | None


@dataclass(frozen=True, slots=True)
class EncodingRecipe:
    """Encoding of one data set into one kind of container.

    suffix:          of the files.
    store_sample:    turns a sample into its stored form.
    encode_sample:   the bytes to append to a file for a stored sample.
    encode_end:      the bytes that end a file of so many bytes.
    read_options:    options of `penstock.open` for reading the files back.
    part_names:      the names of the parts.
    user_options:    options that users have to give to `penstock.open`.
    has_keys, has_labels:  whether keys and labels can be read back from the container.
    has_label_file:  labels are not in the container, and are written beside it.
    shrink:          makes of a sample that was read the one to store; several threads call it.
    """

    suffix: str
    fields: tuple[Field, ...]
    store_sample: Callable[[Sample], StoredSample]
    encode_sample: Callable[[StoredSample], list[Bytes]]
    read_options: Mapping[str, Any]
    encode_end: Callable[[int], bytes] = lambda size: b""
    part_names: tuple[str, ...] = ("data",)
    user_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    has_keys: bool = False
    has_labels: bool = False
    has_label_file: bool = False
    shrink: Callable[[Sample], Sample] | None = None

    def iterate_samples(self, index: Index, batch: Batch, start: int) -> Iterator[Sample]:
        """Yield the samples of a batch whose first has position `start`."""
        names = index.keys(batch.ids)
        labels = None if index.label_column is None else batch["label"].tolist()
        columns = [_get_row_reader(field, batch[field.name]) for field in self.fields]
        numbers = batch.ids.tolist()
        for row, (number, name) in enumerate(zip(numbers, names, strict=True)):
            values = tuple(column(row) for column in columns)
            yield Sample(number, start + row, name, values, labels[row] if labels else None)

    def read_back(self, index: Index, batch: Batch) -> Iterator[StoredSample]:
        """Yield the samples of a batch of written files in their stored form."""
        keys = index.keys(batch.ids) if self.has_keys else [""] * len(batch.ids)
        labels = batch["label"].tolist() if self.has_labels else None
        columns = [(name, batch[name]) for name in self.part_names]
        for row, key in enumerate(keys):
            parts = tuple((name, memoryview(column[row].tobytes())) for name, column in columns)
            yield StoredSample(key, parts, labels[row] if labels else None)


def _get_row_reader(field: Field, column: Any) -> Callable[[int], Any]:
    """Return a function of a row's value: bytes of a raw field, else an array of any shape."""
    if is_raw(field):
        return lambda row: column[row].data
    if field.shape == ():
        return lambda row: column[row : row + 1].reshape(())
    return lambda row: column[row]


def is_raw(field: Field) -> bool:
    """True if a field is bytes rather than an array."""
    return field.dtype == np.uint8 and (field.shape is None or len(field.shape) == 1)


def choose_recipe(
    source: Dataset,
    to: Container,
    *,
    fields: Sequence[str] | None,
    keys: Keys | None,
    raw: bool,
    as_datum: bool,
) -> EncodingRecipe:
    """Return the recipe for a data set and a container; UsageError if there is none."""
    check_choice("to", to, ("tar", "tfrecord", "records", "lmdb"))
    if keys is not None:
        check_choice("keys", keys, ("names", "numbers", "both"))
    chosen = _choose_fields(source.index, fields)
    nested = next((field.name for field in chosen if field.nesting), None)
    for is_wrong, message in (
        (
            any(field.as_dtype is not None for field in chosen),
            "what is converted keeps its dtype: open the data without as_dtype=",
        ),
        (nested is not None, f"field {nested!r} is of nested lists: choose others by fields="),
        (
            raw and to != "tfrecord",
            "raw applies to TFRecord files only: leave it out, or use to='tfrecord'",
        ),
        (as_datum and to != "lmdb", "datum applies to LMDB only: leave it out, or use to='lmdb'"),
        (
            keys is not None and (raw or to == "records"),
            "these records store no keys: leave keys= out",
        ),
    ):
        if is_wrong:
            raise UsageError(message)
    match to:
        case "tar":
            return _create_tar_recipe(source, chosen, keys or "names")
        case "tfrecord" if raw:
            return _create_raw_tfrecord_recipe(source, chosen)
        case "tfrecord":
            return _create_tfrecord_recipe(source, chosen, keys or "names")
        case "records":
            return _create_records_recipe(source, chosen)
        case _:
            return _create_lmdb_recipe(source, chosen, keys or "both", as_datum)


def resize_images(source: Dataset, recipe: EncodingRecipe, side: int) -> EncodingRecipe:
    """Return the recipe with smaller copies of the images, in place of those above this side."""
    field = source.index.fields[choose_field(source.index, None)]
    if field not in recipe.fields or field.shape is not None:
        raise UsageError(f"resize is for images: write their field {field.name!r} (fields=)")
    at = recipe.fields.index(field)
    make_smaller_copy(b"", side)  # UsageError now if there is no Pillow

    def shrink(sample: Sample) -> Sample:
        copy = make_smaller_copy(sample.values[at], side)
        if copy is None:
            return sample
        values = (*sample.values[:at], memoryview(copy), *sample.values[at + 1 :])
        return sample._replace(values=values)

    return replace(recipe, shrink=shrink)


def _choose_fields(index: Index, names: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the fields to write: by default all but those that only carry the label, which is
    written as the label."""
    known = {field.name: field for field in index.fields if field.name != SUMS_FIELD}
    if names is None:
        hidden = {"label", "cls"} if index.label_column is not None else set()
        return tuple(field for name, field in known.items() if name not in hidden) or index.fields
    check_kind("fields", names, Sequence, "names of fields, in a list")  # type: ignore[type-abstract]
    for name in names:
        check_choice("fields", name, known)
    if len(set(names)) < len(names) or not names:
        raise UsageError(f"fields is {list(names)}: name each field once")
    return tuple(known[name] for name in names)


def _require_single(fields: tuple[Field, ...], what: str) -> Field:
    if len(fields) > 1:
        names = ", ".join(field.name for field in fields)
        raise UsageError(f"{what} holds one field: choose one by fields= of {names}")
    return fields[0]


def _view_bytes(value: Any) -> Bytes:
    return value if isinstance(value, memoryview) else memoryview(value.tobytes())


def _store_bytes(sample: Sample) -> StoredSample:
    return StoredSample("", (("data", _view_bytes(sample.values[0])),), None)


# -- keys ------------------------------------------------------------------------------------------


def _create_namer(
    index: Index, keys: Keys, plain: Callable[[str], str], unique: bool
) -> Callable[[Sample], str]:
    """Return a function that names samples in the container; `plain` makes a name fit for it."""
    width = max(8, len(str(index.count - 1)))
    if keys == "numbers":
        return lambda sample: f"{sample.position:0{width}d}"
    if keys == "both":
        return lambda sample: f"{sample.position:0{width}d}_{plain(sample.name)}"
    repeated = _find_repeated(index, plain) if unique else frozenset()

    def name_sample(sample: Sample) -> str:
        key = plain(sample.name)
        if key and not (repeated and _hash_key(key) in repeated):
            return key
        return "-".join(filter(None, (key, f"{sample.number:0{width}d}")))

    return name_sample


def _read_names(index: Index) -> Iterator[list[str]]:
    step = limits.window_samples_max
    for first in range(0, index.count, step):
        yield index.keys(np.arange(first, min(first + step, index.count)))


def _hash_key(key: str) -> int:
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _find_repeated(index: Index, plain: Callable[[str], str]) -> frozenset[int]:
    """Return hashes of the names that several samples would have. 8 bytes of memory for each
    sample."""
    if index.names is None and isinstance(index.layouts[0], Fixed):
        return frozenset()  # a file's name and a number
    hashes = np.empty(index.count, np.int64)
    at = 0
    for names in _read_names(index):
        hashes[at : at + len(names)] = [_hash_key(plain(name)) for name in names]
        at += len(names)
    hashes.sort()
    return frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())


# -- tar -------------------------------------------------------------------------------------------


def _create_tar_recipe(source: Dataset, fields: tuple[Field, ...], keys: Keys) -> EncodingRecipe:
    """Plan members "key.extension", with the label as "key.cls": the layout that WebDataset
    reads."""
    index = source.index
    alone = len(fields) == 1 and is_raw(fields[0])
    endings = _collect_endings(index) if alone else set()
    names = _choose_extensions(source, fields, endings)
    cut = {*endings, *containers.EXTENSIONS} if len(endings) > 1 else endings

    def plain(name: str) -> str:
        stem, ending = os.path.splitext(name)
        return containers.make_safe_key(stem if alone and ending[1:].lower() in cut else name)

    namer = _create_namer(index, keys, plain, unique=True)
    label = index.label_column is not None and "cls" not in names
    return make_tar_recipe(fields, names, namer, label)


def make_tar_recipe(
    fields: tuple[Field, ...],
    names: Sequence[str],
    name_sample: Callable[[Sample], str],
    has_label: bool,
) -> EncodingRecipe:
    """Return the recipe of members "key.extension"; `names` are the extensions of the fields."""
    arrays = [not is_raw(field) for field in fields]

    def store_sample(sample: Sample) -> StoredSample:
        parts = [
            (name, containers.encode_npy(value) if array else value)
            for name, value, array in zip(names, sample.values, arrays, strict=True)
        ]
        return StoredSample(name_sample(sample), tuple(parts), sample.label if has_label else None)

    def encode_sample(stored: StoredSample) -> list[Bytes]:
        label = () if stored.label is None else (("cls", str(stored.label).encode()),)
        return containers.encode_tar_member(stored.key, (*stored.parts, *label))

    return EncodingRecipe(
        SUFFIXES["tar"],
        fields,
        store_sample,
        encode_sample,
        {
            "format": "tar",
            "fields": {name: name for name in names},
            "label": "cls" if has_label else "",
        },
        encode_end=containers.encode_tar_end,
        part_names=tuple(names),
        has_keys=True,
        has_labels=has_label,
    )


def _collect_endings(index: Index) -> set[str]:
    """Collect the extensions of the sample names; stops after 64 different ones."""
    endings: set[str] = set()
    for names in _read_names(index):
        for name in names:
            ending = os.path.splitext(name)[1][1:]
            endings.add(ending.lower() if _ENDING.fullmatch(ending) else "")
        if len(endings) > 64:
            break
    return endings


def _choose_extensions(source: Dataset, fields: tuple[Field, ...], endings: set[str]) -> list[str]:
    """Choose the extension of each field: its name if that is one, else the common extension of all
    the files, else the one guessed from the first sample's bytes. With several fields, it follows
    the field's name."""
    names = []
    first: dict[str, Any] | None = None
    for field in fields:
        name = clean_extension(field.name)
        if name.rsplit(".", 1)[-1] in containers.EXTENSIONS:
            names.append(name)
            continue
        (ending,) = endings if len(endings) == 1 else [""]
        if ending and (ending != "cls" or source.index.label_column is None):
            extension = ending
        elif not is_raw(field):
            extension = "npy"
        else:
            first = first or source[0]
            extension = containers.guess_extension(memoryview(first[field.name]))
        names.append(extension if len(fields) == 1 else f"{name}.{extension}")
    if len(set(names)) < len(names):
        raise UsageError(f"fields would share the extensions {', '.join(names)}: choose by fields=")
    return names


def clean_extension(name: str) -> str:
    """Return a name with the letters that an extension may have."""
    return re.sub(r"[^a-z0-9_.-]", "_", name.lower()).strip(".")


# -- TFRecord --------------------------------------------------------------------------------------


def _create_tfrecord_recipe(
    source: Dataset, fields: tuple[Field, ...], keys: Keys
) -> EncodingRecipe:
    namer = _create_namer(source.index, keys, lambda name: name, unique=False)
    return make_tfrecord_recipe(fields, namer, source.index.label_column is not None)


def make_tfrecord_recipe(
    fields: tuple[Field, ...], name_sample: Callable[[Sample], str], has_label: bool
) -> EncodingRecipe:
    """Return the recipe of a tf.train.Example: fields by name, "label" and "__key__"."""
    names = [field.name for field in fields]

    def store_sample(sample: Sample) -> StoredSample:
        features = dict(zip(names, sample.values, strict=True))
        features["__key__"] = name_sample(sample).encode("utf-8", "surrogateescape")
        if sample.label is not None:
            features["label"] = np.array([sample.label], np.int64)
        return StoredSample("", (("data", containers.join_example(features)),), None)

    # Features whose values are in the file as they are can be fields; others are parsed by users.
    direct = {
        field.name: field.name
        for field in fields
        if field.dtype.kind not in "iub" or field.dtype == np.uint8
    }
    user_options: dict[str, Any] = {"example": direct} if direct else {}
    if has_label:
        user_options["label"] = "label"
    return _create_framed_recipe(fields, store_sample, user_options)


def _create_raw_tfrecord_recipe(source: Dataset, fields: tuple[Field, ...]) -> EncodingRecipe:
    """Plan each sample's bytes as a record; labels are beside the shards."""
    _require_single(fields, "a plain record")
    has_label_file = source.index.label_column is not None
    # Among the shards is a file of labels then.
    user_options = {"format": "tfrecord", "extensions": ["tfrecord"]} if has_label_file else {}
    return _create_framed_recipe(fields, _store_bytes, user_options, has_label_file)


def _create_framed_recipe(
    fields: tuple[Field, ...],
    store_sample: Callable[[Sample], StoredSample],
    user_options: Mapping[str, Any],
    has_label_file: bool = False,
) -> EncodingRecipe:
    return EncodingRecipe(
        SUFFIXES["tfrecord"],
        fields,
        store_sample,
        lambda sample: containers.encode_record(sample.parts[0][1]),
        {"format": "tfrecord", "check": "all"},
        user_options=user_options,
        has_label_file=has_label_file,
    )


# -- records ---------------------------------------------------------------------------------------


def _create_records_recipe(source: Dataset, fields: tuple[Field, ...]) -> EncodingRecipe:
    """Plan records of one size, back to back; labels are beside them."""
    only = _require_single(fields, "a file of records")
    index = source.index
    row_bytes = index.row_bytes[[candidate.name for candidate in index.fields].index(only.name)]
    if only.shape is None and row_bytes is None:
        raise UsageError(f"field {only.name!r} has samples of different lengths: write tar or lmdb")
    return make_records_recipe(only, row_bytes, index.label_column is not None)


def make_records_recipe(only: Field, row_bytes: int | None, has_label_file: bool) -> EncodingRecipe:
    """Return the recipe of records of one field; `row_bytes` if it has no shape."""
    read_options: dict[str, Any] = {"format": "records", "extensions": ["bin"]}
    if only.shape is None or is_raw(only):
        read_options["record_bytes"] = only.nbytes or row_bytes
    else:
        read_options |= {"dtype": only.dtype.str, "shape": list(only.shape)}

    return EncodingRecipe(
        SUFFIXES["records"],
        (only,),
        _store_bytes,
        lambda sample: [sample.parts[0][1]],
        read_options,
        user_options=read_options,
        has_label_file=has_label_file,
    )


# -- LMDB ------------------------------------------------------------------------------------------


def _create_lmdb_recipe(
    source: Dataset, fields: tuple[Field, ...], keys: Keys, as_datum: bool
) -> EncodingRecipe:
    """Plan one value a key: a sample's bytes, or Caffe's Datum. Without Datum, labels are
    beside it."""
    field = _require_single(fields, "an LMDB value")
    index = source.index
    shape: tuple[int, int, int] | None = None
    if as_datum:
        if index.label_column is None:
            raise UsageError("there are no labels, which datum= needs: leave it out")
        if not is_raw(field):
            if field.dtype != np.uint8 or field.shape is None or len(field.shape) != 3:
                raise UsageError(f"field {field.name!r} is no image: write uint8 (C, H, W)")
            shape = (field.shape[0], field.shape[1], field.shape[2])
    namer = _create_namer(index, keys, lambda name: name, unique=False)
    if keys == "names" and _find_repeated(index, lambda name: name):
        raise UsageError("several samples have one name: use keys='both' (--keys both)")

    def store_sample(sample: Sample) -> StoredSample:
        data = _view_bytes(sample.values[0])
        if as_datum:
            assert sample.label is not None
            data = containers.encode_datum(data, sample.label, shape)
        key = namer(sample)
        size = len(key.encode("utf-8", "surrogateescape"))
        if not 0 < size <= _KEY_BYTES_MAX:
            what = f"sample {sample.number:,} has a key of {size:,} bytes"
            most = f"LMDB takes 1 to {_KEY_BYTES_MAX}"
            raise UsageError(f"{what}, and {most}: use keys='numbers' (--keys numbers)")
        return StoredSample(key, (("data", data),), None)

    has_label_file = index.label_column is not None and not as_datum

    return EncodingRecipe(
        SUFFIXES["lmdb"],
        fields,
        store_sample,
        lambda sample: [],  # LMDB is written as a whole
        {"format": "lmdb", "exclude": []},
        user_options={"datum": True} if as_datum else {},
        has_keys=True,
        has_label_file=has_label_file,
    )
