"""WebDataset: tar archives in which consecutive files with one stem form a sample.

The key is the path up to the first dot of its last part. The rest, in lower case, is the extension
and names a field. Fields are the extensions that every sample has, in order of first appearance,
unless `fields` picks them: `["jpg;png", "json"]` or `{"image": "jpg;png"}`. Of alternatives, the
first that a sample has is taken. The extension `cls` is the label if every sample has it; `label`
names another, or is "" for none. Labels are integers in ASCII, else names of classes.

Files without a dot in their name, and those that WebDataset reserves (`__x__/`), are left out, as
WebDataset does. Links and sparse files are refused. Key and extension come from the archive and are
never used as paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...engine.store import StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int, Names
from ..fields import Field
from ..layout import RowTable
from ..table import Index
from . import detection, options, shards
from .image_annotations import IMAGE, IMAGE_SUFFIXES
from .shards import Scan

_LABEL = "cls"
_IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_TEXTS = {"txt": ("text", "text"), "json": ("json", "json")}
"""Name and kind of the field that an extension of a pair becomes."""


class TarShard(NamedTuple):
    """The members of one file; `sample` and `extension` are numbers within it."""

    keys: Names
    at: Int
    sample: Int
    extension: Int
    offset: Int
    length: Int
    extensions: list[str]
    dropped: int
    labels: tuple[Int, Int, Names]  # of each label member: value, is it an integer, text

    def find(self, names: Sequence[str]) -> tuple[Int, Int]:
        """Find each sample's first member with one of these extensions: offset -1 for none."""
        offset = np.full(len(self.at), -1, np.int64)
        length = np.zeros(len(self.at), np.int64)
        for name in reversed(names):
            if name in self.extensions:
                rows = np.flatnonzero(self.extension == self.extensions.index(name))
                if len(rows) == len(self.at):  # each sample has it once: they are in order
                    offset, length = self.offset.take(rows), self.length.take(rows)
                else:
                    offset[self.sample[rows]] = self.offset[rows]
                    length[self.sample[rows]] = self.length[rows]
        return offset, length


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form: fields as a mapping from name to alternatives."""
    return options.normalize(
        given,
        fields=_normalize_fields,
        label=_normalize_label,
        missing=options.one_of("error", "empty"),
        duplicates=options.one_of("error", "all"),
        ignore_zeros=options.one_of(False, True),
        end=options.one_of("required", "optional"),
        extensions=options.EXTENSIONS,
    )


def _normalize_label(name: str, value: Any) -> str:
    check = options.text("an extension, such as 'cls', or '' for none")
    return str(check(name, value)).lower().lstrip(".")


def _normalize_fields(_: str, fields: Any) -> dict[str, list[str]]:
    """Return the alternatives of each field; the first names it if it has no name of its own."""
    normalized: dict[str, list[str]] = {}
    try:
        listed = [fields] if isinstance(fields, str) else fields
        named = isinstance(fields, Mapping)
        for name, alternatives in fields.items() if named else [("", one) for one in listed]:
            split = alternatives.split(";") if isinstance(alternatives, str) else alternatives
            names = [one.strip().lower().lstrip(".") for one in split]
            if not all(names) or (name or names[0]) in normalized:
                raise ValueError
            normalized[str(name or names[0])] = names
    except (AttributeError, IndexError, TypeError, ValueError):
        normalized = {}
    if not normalized:
        raise UsageError(f"fields is {fields!r}: name extensions once, such as ['jpg;png', 'json']")
    return normalized


def sniff(head: bytes, name: str) -> bool:
    """True if a file is an archive: ustar, GNU and pax by magic; V7 and compressed ones by name."""
    if head[257:262] == b"ustar" or name.lower().endswith(".tar"):
        return True
    ending = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
    return name.lower().endswith(ending) and detection.find_compression(head) is not None


def build(
    scan: Scan,
    fields: Mapping[str, Sequence[str]] | None = None,
    label: str | None = None,
    missing: str = "error",
    duplicates: str = "error",
    ignore_zeros: bool = False,
    end: str = "required",
    extensions: Sequence[str] = (".tar",),
) -> Index:
    """The index of all samples of the files, in their order."""
    files, sources = scan.list_files(extensions)
    wanted = _LABEL if label is None else label or None
    walking = {
        "ignore_zeros": ignore_zeros,
        "end_required": end == "required",
        "duplicates": duplicates == "all",
        "label": wanted,
    }
    contents = scan.parse(files, lambda _, source: _walk_archive(source, walking))
    counts = [len(shard.at) for shard in contents]
    dropped = sum(shard.dropped for shard in contents)
    shards.check_any(files, sum(counts), f"samples ({dropped:,} files have no dot in their name)")
    in_all: list[str] = []
    for number, shard in enumerate(filter(lambda shard: len(shard.at), contents)):
        # No sample has an extension twice: one that all have is counted once for each.
        times = np.bincount(shard.extension, minlength=len(shard.extensions))
        here = [shard.extensions[n] for n in np.flatnonzero(times == len(shard.at))]
        in_all = [name for name in in_all if name in here] if number else here
    if label is None and wanted not in in_all:
        wanted = None
    if fields is None:
        names = [name for name in in_all if name != wanted]
        fields = {name: [name] for name in names or in_all}
    if not fields:
        there = list(dict.fromkeys(name for shard in contents for name in shard.extensions))
        shown = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
        raise FormatError(
            f"{files.path(0)}: no extension is in every sample (there are {shown}): "
            f"give fields=, such as fields=['{';'.join(there[:2])}']"
        )
    if wanted is not None and "label" in fields:
        raise UsageError(f"{files.path(0)}: a field would hide the label {wanted!r}: label=''")
    file = shards.make_file_column(counts)
    layouts = []
    for alternatives in fields.values():
        columns = [shard.find(alternatives) for shard in contents]
        if missing == "error":
            _check_none_lacks(files, contents, columns, " or ".join(alternatives), "or missing=")
        offset, length = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        layouts.append(RowTable(file, np.maximum(offset, 0), length))
    classes = labels = None
    if wanted is not None:
        found = [shard.find([wanted]) for shard in contents]
        _check_none_lacks(files, contents, found, wanted, "or give label=''")
        # One member of that extension for each sample, in the order of samples.
        labels = np.concatenate([shard.labels[0] for shard in contents])
        if not all(bool(shard.labels[1].all()) for shard in contents):
            texts = [shard.labels[2][i] for shard in contents for i in range(len(shard.at))]
            classes, labels = shards.number_classes(
                texts, lambda text: text.encode("utf-8", "surrogateescape")
            )
    parts = tuple(Field(name, np.dtype(np.uint8), None) for name in fields)
    keys = shards.join_names([shard.keys for shard in contents])
    return Index("tar", files, parts, tuple(layouts), sources, classes, labels, keys)


def build_pairs(scan: Scan, **settings: Any) -> Index:
    """The index of pairs of image and text (format "clip"), as CLIP and its successors train on.

    The image, the text (`.txt`) and, where there is one, the document of JSON of a key are the
    fields "image" (bytes), "text" (str) and "json" (parsed). Other files that every sample has keep
    their names. Texts are read with the batch, not indexed.
    """
    index = build(scan, **settings)
    names = [field.name for field in index.fields]
    images = [name for name in names if name in _IMAGES]
    if "txt" not in names:
        raise FormatError(
            f"{index.files.path(0)}: not every sample has a text (.txt), but {', '.join(names)}: "
            f"leave out format='clip'"
        )
    if len(images) > 1:
        raise FormatError(
            f"{index.files.path(0)}: every sample has {' and '.join(images)}: leave out "
            f"format='clip', and name them by fields="
        )
    if not images:  # some samples have one kind, and some another
        fields = {IMAGE: list(_IMAGES)}
        fields |= {name: [name] for name in names if name not in images}
        index = build(scan, fields=fields, **settings)
    parts = []
    for part in index.fields:
        name, text = _TEXTS.get(part.name, (part.name, ""))
        name = IMAGE if name in _IMAGES else name
        parts.append(replace(part, name=name, text=text))
    return replace(index, format="clip", fields=tuple(parts), fingerprint="")


def _walk_archive(source: StoreFile, settings: Mapping[str, Any]) -> TarShard:
    detection.refuse_compressed(source, "tar archive")
    columns = source.walk("tar", **settings)
    extensions = Names(columns["extension_text"], columns["extension_ends"])
    return TarShard(
        Names(columns["key_text"], columns["key_ends"]),
        columns["at"],
        columns["sample"],
        columns["extension"],
        columns["offset"],
        columns["length"],
        [extensions[i] for i in range(len(extensions))],
        columns["dropped"],
        (
            columns["label_value"],
            columns["label_is_integer"],
            Names(columns["label_text"], columns["label_ends"]),
        ),
    )


def _check_none_lacks(
    files: Files, contents: list[TarShard], columns: list[tuple[Int, Int]], what: str, remedy: str
) -> None:
    """Raise FormatError for the first sample without a member of a column."""
    for file, (shard, (offset, _)) in enumerate(zip(contents, columns, strict=True)):
        for sample in np.flatnonzero(offset < 0)[:1].tolist():
            numbers = shard.extension[shard.sample == sample].tolist()
            has = ", ".join(shard.extensions[number] for number in numbers)
            raise FormatError(
                f"{files.path(file)}: at byte {shard.at[sample]:,}: the sample "
                f"{shard.keys[sample]!r} has no {what} (it has {has}): name what every sample has, "
                f"{remedy}"
            )
