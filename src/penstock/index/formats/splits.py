"""Splits: parts of a data set that are named as such, and the choice among them.

One rule for every format and store. A path is of the first split that its folders and its name,
in this sequence, are called by: one of `_WORDS` that stands alone in a name, between signs, digits
or capitals (`train-00000.parquet`, `val2017/`, `trainA/`, `wiki.test.tokens`). Folders that all
paths share do not count. Data of two splits or more are not one data set unless `split=` says so.

Where each file is a sample, its name and its class may be any word: there a folder counts that is
called by the split alone, and other names do if one path in ten has such a word.

A single file, and a text file or table of paths, are what the user chose: no split is asked for,
unless the file is a tar, whose members have paths.
"""

from __future__ import annotations

import errno
import functools
import itertools
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ...engine.open import open_store
from ...engine.store import Listing, Store
from ...errors import UsageError
from ...extent import Files, unseen
from . import options

Kind = Literal["folder", "file", "pattern"]

_SAME = {"training": "train", "testing": "test", "evaluation": "eval"} | dict.fromkeys(
    ("valid", "validation"), "val"
)
"""Words that mean another one's split."""
_WORDS = ("trainval", "train", "test", "val", "dev", "eval", "holdout", *_SAME)
_SHOWN = 8
_ONE_IN = 10


@dataclass(frozen=True, slots=True)
class Location:
    """Location that was opened: the store's root itself, one file in it, or patterns below it.

    names:  the patterns, relative to the root as `name` is; a list of files is several patterns.
    path:   the path as the caller gave it, for messages.
    splits:  the splits that are asked for, () for all data; None: there must be one.
    """

    kind: Kind
    name: str
    path: str
    names: tuple[str, ...] = ()
    splits: tuple[str, ...] | None = None


@functools.cache
def _compile_words(more: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile the patterns of a split's word in a name, and of a name that is one alone."""
    words = sorted({*_WORDS, *more}, key=len, reverse=True)
    forms = (map(re.escape, words), (re.escape(w.capitalize()) for w in words))
    lower, capital = ("|".join(form) for form in forms)
    upper = lower.upper().replace("\\D", "\\d")
    ends = "(?:set|Set|data|Data)?"
    within = (
        rf"(?<![A-Za-z])({lower}){ends}(?![a-z])|(?<![A-Z])({capital}){ends}(?![a-z])"
        rf"|(?<![A-Za-z])({upper})(?![A-Za-z])"
    )
    alone = rf"[^A-Za-z]*(?:{lower}|{capital}|{upper}){ends}[^A-Za-z]*[A-Z]?[^A-Za-z]*"
    return re.compile(within), re.compile(alone)


@functools.lru_cache(maxsize=1 << 14)
def _find_word(name: str, more: tuple[str, ...]) -> tuple[str, bool]:
    """Find the split that a folder or file is called by, or "", and whether by nothing else."""
    within, alone = _compile_words(more)
    match = within.search(name)
    if match is None:
        return "", False
    word = next(filter(None, match.groups())).lower()
    return _SAME.get(word, word), alone.fullmatch(name) is not None


def normalize(split: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the splits that are asked for; none stand for all data, as one."""
    names = [split] if isinstance(split, str) else split
    fine = isinstance(names, Sequence) and names and all(isinstance(name, str) for name in names)
    if not fine or ("" in names and len(names) > 1):
        raise UsageError(f"split is {split!r}: give a name, names in a list, or '' for all data")
    lowered = [options.below("split", name).lower() for name in names if name]
    return tuple(dict.fromkeys(_SAME.get(name, name) for name in lowered))


def divide(
    names: Sequence[str], samples: bool = False, more: tuple[str, ...] = (), cut: bool = True
) -> tuple[dict[str, list[int]], list[int]]:
    """Divide paths by their splits: the rows of each, of none under "", and in which of its parts
    each path has the word (-1 if in none).

    samples:  each file is a sample, whose name may be any word.
    more:     other words that count as splits.
    cut:      folders that all paths share do not count.
    """
    paths = [name.split("/") for name in names]
    shared = _count_shared([path[:-1] for path in paths]) if cut else 0
    rows: dict[str, list[int]] = {}
    places, weak = [], []
    for row, path in enumerate(paths):
        for place in range(shared, len(path)):
            word, alone = _find_word(path[place], more)
            if word:
                break
        else:
            word, alone, place = "", False, -1
        places.append(place)
        if samples and word and not (alone and place < len(path) - 1):
            weak.append(row)
        rows.setdefault(word, []).append(row)
    if weak and len(weak) * _ONE_IN < len(names):
        others = set(weak)
        rows = {word: [row for row in some if row not in others] for word, some in rows.items()}
        rows[""] = sorted(rows.get("", []) + weak)
        places = [-1 if row in others else place for row, place in enumerate(places)]
    return {word: some for word, some in rows.items() if some}, places


def _count_shared(paths: Sequence[list[str]]) -> int:
    """Count the folders that all of these paths begin with."""
    pairs = zip(min(paths, default=[]), max(paths, default=[]), strict=False)
    return len([*itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])


def divide_by(
    names: Sequence[str], wanted: tuple[str, ...], samples: bool = False
) -> tuple[dict[str, list[int]], list[int]]:
    """Divide paths by the splits that are asked for, which all paths may share, and others."""
    divided = divide(names, samples, wanted)
    return divided if divided[0].keys() & {*wanted} else divide(names, samples, wanted, cut=False)


def choose(files: Files, place: Location, samples: bool = False) -> list[int] | None:
    """Choose the rows of the files of `place.splits`; None for all.

    UsageError if the files are of several splits of which none is chosen, or if one is not there.
    They may be the keys of an archive as well.
    """
    wanted = place.splits
    if wanted == () or (wanted is None and not _may_differ(files)):
        return None
    names = list(map(files.name, range(len(files))))
    where = place.path if len(place.names) < 2 else files.root
    if wanted is None:
        rows = divide(names, samples)[0]
        if len(rows.keys() - {""}) > 1:
            raise build_error(where, _measure(files, rows), True)
        return None
    rows, places = divide_by(names, wanted, samples)
    for split in wanted:
        if split not in rows:
            raise _build_unknown(where, split, _measure(files, rows))
        inner = ["/".join(names[row].split("/")[places[row] + 1 :]) for row in rows[split]]
        within = divide(inner, samples)[0]
        if len(within.keys() - {""}) > 1:
            sizes = _measure(files, within, rows[split])
            raise build_error(f"{where}: split {split!r}", sizes, None)
    return sorted(row for split in wanted for row in rows[split])


def _may_differ(files: Files) -> bool:
    """False if the names hold the letters of fewer than two splits: most do, of a million."""
    text = files.names.tobytes().lower()
    return sum(word.encode() in text for word in _WORDS[1:7]) > 1


def _measure(
    files: Files, rows: Mapping[str, list[int]], of: Sequence[int] | None = None
) -> dict[str, str]:
    """Describe the files and bytes of each split."""
    sized = files.size
    if len(files) and int(sized.min()) < 0:
        now, _ = open_store(files.root).probe(files)
        sized = np.maximum(now.size, 0)
    return {
        split: f"{len(some):,} file{'s' * (len(some) > 1)}, "
        f"{int(sized[some if of is None else [of[row] for row in some]].sum()):,} bytes"
        for split, some in sorted(rows.items(), key=lambda item: (not item[0], item[0]))
    }


def build_error(where: str, splits: Iterable[str], whole: bool | None = False) -> UsageError:
    """Build the error for splits of which one has to be chosen: data must not mix unnoticed.

    splits:  their names; a mapping has what each is.
    whole:   all of them may be opened as one; None: only the folder of one.
    """
    described = splits if isinstance(splits, Mapping) else {}
    names = sorted(filter(None, splits)) + [""] * ("" in splits)
    listed = [f"{n or 'others'} ({described[n]})" if described else n for n in names[:_SHOWN]]
    best = "train" if "train" in names else names[0]
    remedy = f"give split={best!r}" if whole is not None else "open the folder of one"
    more = " or several, or split='' if they are none" if whole else ""
    return UsageError(f"{where} has the splits {', '.join(listed)}: {remedy}{more}")


def _build_unknown(where: str, split: str, there: Mapping[str, str]) -> UsageError:
    named = [f"{name} ({what})" for name, what in there.items() if name][:_SHOWN]
    has = f", but {', '.join(named)}" if named else ""
    return UsageError(f"{where} has no split {split!r}{has}: name a folder, or a word of names")


def take(listing: Listing, rows: list[int] | None) -> Listing:
    """Take rows of a listing; folders stay, as new files may come in any."""
    if rows is None:
        return listing
    files = listing.files
    names = [files.name(row) for row in rows]
    kept = Files.of(files.root, names, files.size[rows], files.mtime_ns[rows])
    return listing._replace(files=kept, folder=listing.folder[rows])


def name_classes(folders: Sequence[str], wanted: tuple[str, ...]) -> list[str]:
    """Name the class that each of these folders is of, apart from its split; "" for none."""
    paths = [_drop_word(folder.split("/"), wanted) for folder in folders]
    shared = _count_shared(paths)
    deepest = min(map(len, paths), default=1)
    return [path[min(shared, deepest - 1)] for path in paths]


def _drop_word(folders: list[str], wanted: tuple[str, ...]) -> list[str]:
    """Drop the folder that is called by a split; of the one that holds the files, the word."""
    for number, folder in enumerate(folders):
        if _find_word(folder, wanted)[0] in wanted:
            rest = folders[:number] + folders[number + 1 :]
            word = _compile_words(wanted)[0].sub("", folder).strip("-_. ")
            return rest or [word]
    return folders


def narrow_place(place: Location, store: Store, split: Any) -> tuple[Location, Store, str]:
    """Narrow a place to splits: to the folder below it that is the only one asked for, if there
    is one, which is returned too."""
    wanted = normalize(split)
    if place.kind == "file" and wanted and not place.name.lower().endswith(".tar"):
        raise UsageError(f"{place.path} is one file: leave split= out, or name a folder or pattern")
    chosen = replace(place, splits=wanted)
    if place.kind != "folder" or len(wanted) != 1:
        return chosen, store, ""
    below = (split if isinstance(split, str) else split[0]).strip("/")
    is_folder = int(store.probe(unseen(store.root, [below]))[1][0]) == errno.EISDIR
    if not is_folder or not open_store(posixpath.join(store.root, below)).some(1):
        listing = store.scan()
        names = list(map(listing.files.name, range(len(listing.files))))
        rows, places = divide_by(names, wanted)
        tops = {
            "/".join(names[row].split("/")[: places[row] + 1])
            for row in rows.get(wanted[0], ())
            if places[row] < names[row].count("/")
        }
        in_files = any(places[row] == names[row].count("/") for row in rows.get(wanted[0], ()))
        if len(tops) != 1 or in_files:
            return chosen, store, ""
        below = tops.pop()
    root = posixpath.join(store.root, below)
    return replace(place, path=posixpath.join(place.path, below)), open_store(root), below
