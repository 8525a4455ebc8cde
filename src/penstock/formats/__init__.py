"""The containers that penstock reads: one module each, which turns names and bytes into an Index.

A format asks the store for what it parses (see `penstock.store.Store`) and opens nothing itself.
What a file is follows from its content, and only where that says nothing from the options given.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import FormatError, UsageError
from ..index import Index
from . import listing, npy, records, tree

if TYPE_CHECKING:
    from ..store import Progress, Store

Kind = Literal["folder", "file", "pattern"]


@dataclass(frozen=True, slots=True)
class Place:
    """What was opened: the store's root itself, one file in it, or a shell pattern below it."""

    kind: Kind
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Format:
    """One container: what it is, where it can be, which options it takes, and how it is read.

    canonical:  the options in their one spelling, as JSON knows it; or UsageError.
    build:      the index; options are canonical.
    """

    name: str
    summary: str
    kinds: tuple[Kind, ...]
    options: tuple[str, ...]
    canonical: Callable[[Mapping[str, Any]], dict[str, Any]]
    build: Callable[[Store, Place, Mapping[str, Any], Progress | None], Index]


FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format(
            "tree",
            "a folder of files; class sub-folders give labels",
            ("folder",),
            ("extensions",),
            tree.canonical,
            lambda store, place, options, progress: tree.build(store, progress, **options),
        ),
        Format(
            "listing",
            "a text file with a path and, where known, a label on each line",
            ("file",),
            (),
            dict,
            lambda store, place, options, progress: listing.build(store, place.name, progress),
        ),
        Format(
            "records",
            "binary records of one size in one file, a folder of files or a pattern",
            ("file", "folder", "pattern"),
            ("record_bytes", "header_bytes", "dtype", "shape", "extensions"),
            records.canonical,
            lambda store, place, options, progress: records.build(
                store, place.kind, place.name, progress, **options
            ),
        ),
        Format(
            "npy",
            "one array in numpy's own file; the first axis counts the samples",
            ("file",),
            (),
            dict,
            lambda store, place, options, progress: npy.build(store, place.name),
        ),
    )
}


def choose(store: Store, place: Place, name: str | None, options: Mapping[str, Any]) -> Format:
    """The format asked for, or the one that the content shows; it takes all the options given."""
    chosen = FORMATS[_detect(store, place, options)] if name is None else _named(name)
    if place.kind not in chosen.kinds:
        raise UsageError(
            f"{place.path} is a {place.kind}, and format {chosen.name!r} is "
            f"{chosen.summary}: leave format= out to have it detected"
        )
    unwanted = [option for option in options if option not in chosen.options]
    if unwanted:
        takes = ", ".join(chosen.options) or "none"
        raise UsageError(
            f"{place.path} is read as {chosen.name!r}, which does not take {', '.join(unwanted)} "
            f"(it takes: {takes}): leave that out, or give format="
        )
    return chosen


def _named(name: str) -> Format:
    if name in FORMATS:
        return FORMATS[name]
    near = difflib.get_close_matches(str(name), FORMATS, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"format is {name!r}: {hint}use one of {', '.join(FORMATS)}")


def _detect(store: Store, place: Place, options: Mapping[str, Any]) -> str:
    geometry = any(name in options for name in ("record_bytes", "dtype", "shape"))
    if place.kind != "file":
        if place.kind == "pattern" and not geometry:
            raise FormatError(
                f"{place.path} is a pattern, which stands for files of records: "
                f"give record_bytes=, or dtype= and shape="
            )
        return "records" if geometry else "tree"
    head = store.read(place.name, 0, 4096)
    if head.startswith(npy.MAGIC):
        return "npy"
    if geometry:
        return "records"
    if listing.looks_like(head, os.path.splitext(place.name)[1]):
        return "listing"
    raise FormatError(
        f"{place.path} is of no format that penstock knows (it starts with {head[:8]!r}): for "
        f"binary records give record_bytes=, or dtype= and shape=; else give format= "
        f"({', '.join(FORMATS)})"
    )
