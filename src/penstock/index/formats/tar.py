"""WebDataset: tar archives in which consecutive files with one stem form a sample.

The key is the path up to the first dot of its last part. The rest, in lower case, is the extension
and names a field. Fields are the extensions, in order of first appearance, unless `fields` picks
them: `["jpg;png", "json"]` or `{"image": "jpg;png"}`. Of alternatives, the first that a sample has
is taken. Several suffixes of images, of which each sample has one, are the field "image". An
extension that some samples lack is an error, or with `missing="empty"` no bytes. The extension
`cls` is the label; `label` names another, or is "" for none. Labels are integers in ASCII, else
names of classes.

Files without a dot in their name, and those that WebDataset reserves (`__x__/`), are left out, as
WebDataset does; so are hidden ones, and what systems leave. Links and sparse files are refused. Key
and extension come from the archive and are never used as paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import FormatError, UsageError
from ...extent import Files, Int, Names
from ..fields import Field
from ..layout import RowTable
from ..table import Index
from . import detection, options, shards, splits
from .image_annotations import IMAGE, IMAGE_SUFFIXES
from .shards import Scan
from .tar_walk import Headers, TarShard, join_pieces, walk_archive, walk_piece

_LABEL = "cls"
_IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_TEXTS = {"txt": ("text", "text"), "json": ("json", "json")}
"""Name and kind of the field that an extension of a pair becomes."""


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
    seen: Headers = {}
    contents = scan.parse_pieces(
        files,
        lambda _, source: walk_archive(source, walking),
        lambda source, start, stop: walk_piece(source, start, stop, walking, seen),
        lambda pieces: join_pieces(pieces, duplicates == "all"),
    )
    counts = [len(shard.at) for shard in contents]
    dropped = sum(shard.dropped for shard in contents)
    shards.check_any(files, sum(counts), f"samples ({dropped:,} files have no dot in their name)")
    total, have = sum(counts), _count_members(contents)
    in_all = [name for name, count in have.items() if count == total]
    if label is None and wanted not in have:
        wanted = None
    if fields is None:
        names = [name for name in have if name != wanted] or [*have]
        fields = _join_images({name: [name] for name in names}, contents, in_all)
        partial = [n for n, names in fields.items() if names == [n] and n not in in_all]
        if partial and missing == "error":
            column = [shard.find(partial[:1]) for shard in contents]
            common = [";".join(names) for name, names in fields.items() if name not in partial]
            remedy = f"give fields={common or [';'.join(partial[:2])]}, or missing='empty' for b''"
            _check_none_lacks(files, contents, column, partial[0], remedy)
    if wanted is not None and "label" in fields:
        raise UsageError(f"{files.path(0)}: a field would hide the label {wanted!r}: label=''")
    file = shards.make_file_column(counts)
    layouts = []
    for alternatives in fields.values():
        columns = [shard.find(alternatives) for shard in contents]
        if missing == "error":
            remedy = "name what every sample has, or give missing='empty'"
            _check_none_lacks(files, contents, columns, " or ".join(alternatives), remedy)
        offset, length = (np.concatenate(arrays) for arrays in zip(*columns, strict=True))
        layouts.append(RowTable(file, np.maximum(offset, 0), length))
    classes = labels = None
    if wanted is not None:
        label_columns = [shard.find([wanted]) for shard in contents]
        _check_none_lacks(
            files,
            contents,
            label_columns,
            wanted,
            "give label='' for no label, and fields= or missing='empty'",
        )
        # One member of that extension for each sample, in the order of samples.
        labels = np.concatenate([shard.labels[0] for shard in contents])
        if not all(bool(shard.labels[1].all()) for shard in contents):
            texts = [shard.labels[2][i] for shard in contents for i in range(len(shard.at))]
            classes, labels = shards.number_classes(
                texts, lambda text: text.encode("utf-8", "surrogateescape")
            )
    member_fields = tuple(Field(name, np.dtype(np.uint8), None) for name in fields)
    keys = shards.join_names([shard.keys for shard in contents])
    rows = _choose_rows(scan.place, keys, layouts[0].length)
    if rows is not None:
        keys = Names.of([keys[row] for row in rows])
        layouts = [
            RowTable(file[rows], np.asarray(one.offset)[rows], one.length[rows]) for one in layouts
        ]
        labels = labels if labels is None else labels[rows]
    return Index("tar", files, member_fields, tuple(layouts), sources, classes, labels, keys)


def _choose_rows(place: shards.Location, keys: Names, length: Int) -> list[int] | None:
    """Choose the samples whose keys are of the split that is asked for; None for all."""
    if place.kind != "file" and place.splits is not None:
        return None  # the files are of it
    return splits.choose(Files(place.path, keys.text, keys.ends, length, length), place, True)


def _count_members(contents: Sequence[TarShard]) -> dict[str, int]:
    """Count the samples that have each extension: none has one twice."""
    have: dict[str, int] = {}
    for shard in contents:
        times = np.bincount(shard.extension, minlength=len(shard.extensions)).tolist()
        for name, count in zip(shard.extensions, times, strict=True):
            have[name] = have.get(name, 0) + count
    return have


def _join_images(
    fields: dict[str, list[str]], contents: Sequence[TarShard], in_all: Sequence[str]
) -> dict[str, list[str]]:
    """Join the suffixes of images to one field if each sample has an image of just one of them."""
    suffixes = [name for name in fields if name in _IMAGES and name not in in_all]
    if len(suffixes) < 2 or IMAGE in fields:
        return fields
    times = []
    for shard in contents:
        numbers = [n for n, name in enumerate(shard.extensions) if name in suffixes]
        rows = shard.sample[np.isin(shard.extension, numbers)]
        times.append(np.bincount(rows, minlength=len(shard.at)))
    if not (np.concatenate(times) == 1).all():
        return fields
    joined: dict[str, list[str]] = {}
    for name, names in fields.items():
        joined.setdefault(*((IMAGE, suffixes) if name in suffixes else (name, names)))
    return joined


def build_pairs(scan: Scan, **settings: Any) -> Index:
    """The index of pairs of image and text (format "clip"), as CLIP and its successors train on.

    The image, the text (`.txt`) and, where there is one, the document of JSON of a key are the
    fields "image" (bytes), "text" (str) and "json" (parsed). Other files that every sample has keep
    their names. Texts are read with the batch, not indexed.
    """
    index = build(scan, **settings)
    names = [field.name for field in index.fields]
    images = [name for name in names if name in (IMAGE, *_IMAGES)]
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
    fields = []
    for field in index.fields:
        name, text = _TEXTS.get(field.name, (field.name, ""))
        name = IMAGE if name in _IMAGES else name
        fields.append(replace(field, name=name, text=text))
    return replace(index, format="clip", fields=tuple(fields), fingerprint="")


def _check_none_lacks(
    files: Files, contents: list[TarShard], columns: list[tuple[Int, Int]], what: str, remedy: str
) -> None:
    """Raise FormatError for the first sample without a member of a column."""
    lacking = sum(int(np.count_nonzero(offset < 0)) for offset, _ in columns)
    for file, (shard, (offset, _)) in enumerate(zip(contents, columns, strict=True)):
        for sample in np.flatnonzero(offset < 0)[:1].tolist():
            numbers = shard.extension[shard.sample == sample].tolist()
            has = ", ".join(shard.extensions[number] for number in numbers)
            total = sum(len(shard.at) for shard in contents)
            raise FormatError(
                f"{files.path(file)}: at byte {shard.at[sample]:,}: the sample "
                f"{shard.keys[sample]!r} has no {what} (it has {has}), as {lacking:,} of "
                f"{total:,}: {remedy}"
            )
