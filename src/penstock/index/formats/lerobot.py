"""LeRobot data sets, v2.0 to v3.0: a sample is a frame of an episode, with what is around it.

    meta/info.json       features, frames a second, how files are called
    meta/episodes        rows and frames of each episode: Parquet; in v2 lines of JSON
    meta/tasks           texts of the tasks, likewise
    data                 Parquet of numbers, a row a frame
    videos               MP4 of each camera; an episode is a part of one, in v2 all of it

Numbers are read once, into the index. A camera's frames are found in the tables of its films (see
`mp4`) by the rows' times; none is decoded.

delta_timestamps   {feature: [seconds from the sample's frame to others]}: it has the values
            of all of them, and "FEATURE_is_pad" says which are outside the episode, whose first or
            last frame takes their place. Without, it has the value of the sample's frame.
tolerance_s by which times may miss the frames', 1e-4 by default.
episodes    numbers of those to read; by default all.
fields      features to read, "task" among them; by default all.
size, layout   of frames, as in `mp4`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...arguments import check_number, check_whole
from ...engine.store import Store
from ...errors import FormatError, MissingError, UsageError
from ...extent import Files, Int, joined, unseen
from ..attributes import Attribute, RowValues, SharedTexts, make_texts
from ..clips import FrameCut, FrameTimes, RowSpan
from ..table import Index
from . import mp4, options
from .media_tracks import parse_film
from .parquet import read_columns
from .shards import Scan, check_below

Seconds = npt.NDArray[np.float64]

_INFO = "meta/info.json"
_META_BYTES_MAX = 256 << 20
_SECONDS_MAX = 1e9
_SURE_S = 1e-4
"""Seconds around a frame within which no other one is nearer."""
_NEEDED = ("episode_index", "frame_index", "timestamp", "task_index")
"""Columns that every data set has, and that are needed here."""
_PARTS = ("chunk_index", "file_index")
"""Columns of meta/episodes that say which file is an episode's, of each kind of files (v3)."""
_DTYPES = {np.dtype(char).name for char in "?efdbhiqBHIQ"}
_PATTERN = re.compile(r"([^{}]|\{\w+(:0?\d{1,2}d)?\})*")
"""Patterns of names: nothing in braces but a name, and to how many digits it is filled up."""


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return options.normalize(
        given,
        delta_timestamps=_check_deltas,
        tolerance_s=options.number(0, 1e3),
        episodes=_check_episodes,
        fields=options.FIELDS,
        size=mp4.check_size,
        layout=options.one_of("hwc", "chw"),
    )


def _check_deltas(name: str, value: Any) -> dict[str, list[float]] | None:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r:.100}: give {{feature: [seconds, ...]}}")
    deltas = {}
    for key, given in value.items():
        is_list = isinstance(key, str) and not isinstance(given, str) and np.ndim(given) == 1
        if not is_list or not 0 < len(given) <= limits.film_frames_max:
            raise UsageError(f"{name} of {key!r:.60} is {given!r:.100}: give seconds in a list")
        what = f"{name} of {key!r}"
        seconds = [float(check_number(what, one, least=-1e6, most=1e6)) for one in given]
        if sorted(seconds) != seconds:
            raise UsageError(f"{what} is {given!r:.100}: sort it")
        deltas[key] = seconds
    return deltas or None


def _check_episodes(name: str, value: Any) -> list[int]:
    if isinstance(value, str) or np.ndim(value) != 1 or not len(value):
        raise UsageError(f"{name} is {value!r:.100}: give numbers of episodes in a list")
    most = limits.order_count_max
    return sorted(
        {check_whole(f"{name}: a number", one, 0, most) for one in np.asarray(value).tolist()}
    )


def is_dataset(store: Store) -> bool:
    """True if the folder has the description that LeRobot writes."""
    if store.probe(unseen(store.root, [_INFO]))[1].any():
        return False
    return b'"codebase_version"' in store.read(_INFO, 0, limits.header_bytes_max)


def _flaw(what: str) -> FormatError:
    return FormatError(f"{what}: fetch or write it again")


class Info(NamedTuple):
    """Content of meta/info.json.

    is_joint:  True if a file has several episodes (v3).
    features:  what it says of each feature.
    paths:     patterns of the names of files, "data" and "video".
    chunk:     episodes of a folder (v2).
    """

    path: str
    is_joint: bool
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    paths: Mapping[str, Any]
    chunk: int

    def get_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a feature's values; one number is none of an axis."""
        shape = tuple(self.features[name]["shape"])
        return () if shape == (1,) else shape

    def name_files(self, kind: str, columns: Mapping[str, Any]) -> list[str]:
        """Name a file of each episode by what its pattern mentions."""
        pattern = self.paths[kind]
        try:
            if not _PATTERN.fullmatch(pattern):
                raise ValueError("no such pattern")
            rows = zip(*(column.tolist() for column in columns.values()), strict=True)
            names = [pattern.format(**dict(zip(columns, row, strict=True))) for row in rows]
        except (LookupError, TypeError, ValueError) as error:
            raise _flaw(f"{self.path}: {kind}_path is {pattern!r:.200} ({error!r})") from None
        return [check_below(f"{self.path}: ", name) for name in names]


class Episodes(NamedTuple):
    """Descriptions of the episodes to read, by ascending number.

    files:  names of the files that have each one's rows, "data", and frames, "videos/CAMERA".
    start:  likewise, the second of that film at which the episode begins.
    """

    path: str
    number: Int
    length: Int
    files: Mapping[str, Sequence[str]]
    start: Mapping[str, Seconds]

    def stat(self, store: Store, kind: str) -> tuple[Files, Int]:
        """Return the files of a kind, sorted by name, and the number of each episode's."""
        unique, first, number = np.unique(self.files[kind], return_index=True, return_inverse=True)
        by = self.number[first]
        return store.stat(unique.tolist(), lambda row: f"{self.path}, episode {by[row]}: "), number


def build(
    scan: Scan,
    delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    tolerance_s: float = 1e-4,
    episodes: Sequence[int] | None = None,
    fields: Sequence[str] | None = None,
    **asked: Any,
) -> Index:
    """The index of all rows of the episodes, in the sequence of their files."""
    store = scan.store
    info, sources = _read_info(store)
    if scan.place.splits:
        what = f"split is {scan.place.splits[0]!r}, and episodes are of none"
        raise UsageError(f"{store.root}: {what}: choose some by episodes=")
    names, cameras = _choose_features(info, fields)
    offsets = _count_offsets(info, names, delta_timestamps or {}, tolerance_s)
    known, read = _read_episodes(scan, info, cameras, episodes)
    data, _ = known.stat(store, "data")
    table, span = _read_rows(scan, info, known, data, names, episodes is None)
    attributes: list[Attribute] = []
    spans = {name: RowSpan(span.first, offsets.get(name, (0,))) for name in names}
    for name in names:
        if name in table:
            windows = spans[name] if name in offsets else None
            attributes.append(_make_attribute(info, name, table[name], windows))
        if name in offsets:
            attributes.append(RowValues.make(f"{name}_is_pad", spans[name]))
    if "task" in names:
        texts, tasks = _read_tasks(scan, info, table["task_index"])
        attributes.append(texts)
        read = joined(read, tasks)
    placed = [known.stat(store, f"videos/{name}") for name in cameras]
    files = functools.reduce(joined, [films for films, _ in placed])
    tracks = scan.parse(files, lambda _, source: parse_film(source))
    made, layouts, begin = [], [], 0
    for name, (own, film) in zip(cameras, placed, strict=True):
        films = mp4.join_films(name, own, tracks[begin : begin + len(own)], asked, begin)
        frames = _find_frames(known, films, own, film, table, span, tolerance_s)
        field, layout = films.cut(FrameCut.make(spans[name], frames))
        if len(spans[name].offsets) == 1:
            field = replace(field, made_shape=films.shape)
        made.append(field)
        layouts.append(layout)
        begin += len(own)
    sources = functools.reduce(joined, [sources, read, data, files])
    return Index("lerobot", files, (*made,), (*layouts,), sources, attributes=(*attributes,))


# -- meta ------------------------------------------------------------------------------------------


def _parse_json(path: str, data: bytes) -> dict[str, Any]:
    """Parse a document that is an object (FormatError)."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _flaw(f"{path} is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise _flaw(f"{path} has {value!r:.60} where an object should be")
    return value


def _read_info(store: Store) -> tuple[Info, Files]:
    files = store.stat([_INFO])
    path = files.path(0)
    value = _parse_json(path, store.read(_INFO, 0, min(int(files.size[0]), _META_BYTES_MAX)))
    version = str(value.get("codebase_version"))
    if (major := re.match(r"v?(\d+)\.", version)) is None or major[1] not in ("2", "3"):
        remedy = "convert it with the scripts of LeRobot"
        raise FormatError(f"{path}: version {version!r:.20}; v2.0 to v3.0 are read: {remedy}")
    try:
        fps, chunk = float(value["fps"]), int(value.get("chunks_size", 1000))
        features = {str(name): dict(one) for name, one in value["features"].items()}
        for one in features.values():
            one["dtype"], one["shape"] = str(one["dtype"]), [int(n) for n in one["shape"]]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _flaw(f"{path}: {error!r}") from None
    paths = {kind: value.get(f"{kind}_path") for kind in ("data", "video")}
    info = Info(path, major[1] == "3", fps, features, paths, chunk)
    if not 1e-6 <= fps <= 1e6 or chunk < 1:
        raise _flaw(f"{path}: fps is {fps}, chunks_size {chunk}")
    return info, files


def _choose_features(info: Info, fields: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Choose the features to read, and the cameras among them."""
    known = [*info.features, "task"]
    names = list(dict.fromkeys(known if fields is None else fields))
    cameras = []
    for name in names:
        options.check_known(info.path, name, known)
        if name == "task":
            continue
        dtype, about = info.features[name]["dtype"], info.features[name].get("info")
        rest = [other for other in names if other != name]
        if dtype == "image":
            remedy = "make it video by `lerobot-edit-dataset`, or leave it out by fields="
            raise UsageError(f"{info.path}: feature {name!r} is images in Parquet: {remedy}{rest}")
        if dtype == "video":
            depths = ("is_depth_map", "video.is_depth_map")
            if isinstance(about, dict) and any(about.get(key) for key in depths):
                raise UsageError(f"{info.path}: {name!r} is a map of depths: give fields={rest}")
            cameras.append(name)
        elif dtype != "string" and dtype not in _DTYPES:
            raise UsageError(f"{info.path}: feature {name!r} is {dtype!r:.40}: give fields={rest}")
    if not cameras:
        what = f"{info.path}: no camera{' among fields' * (fields is not None)}"
        raise UsageError(f"{what}: open the folder data/, its rows, as Parquet")
    return names, cameras


def _count_offsets(
    info: Info, names: Sequence[str], deltas: Mapping[str, Sequence[float]], tolerance_s: float
) -> dict[str, tuple[int, ...]]:
    """Count the rows of each second; UsageError for one that is of no row."""
    offsets = {}
    for name, seconds in deltas.items():
        options.check_known(info.path, name, names)
        if name == "task" or info.features[name]["dtype"] == "string":
            raise UsageError(f"delta_timestamps has {name!r}, which is text: leave it out")
        offsets[name] = tuple(round(one * info.fps) for one in seconds)
        for one, rows in zip(seconds, offsets[name], strict=True):
            if abs(one * info.fps - rows) / info.fps > tolerance_s:
                what = f"delta_timestamps of {name!r} has {one:g} s, no multiple of 1/{info.fps:g}"
                raise UsageError(f"{what} s: give {rows / info.fps:.6g}, or a larger tolerance_s")
    return offsets


def _read_episodes(
    scan: Scan, info: Info, cameras: Sequence[str], wanted: Sequence[int] | None
) -> tuple[Episodes, Files]:
    """Read the descriptions of the episodes that are wanted, and what they were read of."""
    store = scan.store
    names, kinds = ["episode_index", "length"], ["data", *(f"videos/{name}" for name in cameras)]
    if info.is_joint:
        names += [f"{kind}/{part}" for kind in kinds for part in _PARTS]
        names += [f"{kind}/from_timestamp" for kind in kinds[1:]]
        found = store.match("meta/episodes/*/*.parquet")
        if not found:
            raise MissingError(f"{store.root}/meta/episodes has no Parquet files: fetch them again")
        read = store.stat(found)
        tables = scan.parse(read, lambda _, source: read_columns(source, names))
        table = {name: np.concatenate([one[name] for one in tables]) for name in names}
    else:
        lines, read = _read_lines(scan, "meta/episodes.jsonl")
        try:
            table = {name: np.array([line[name] for line in lines], np.int64) for name in names}
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise _flaw(f"{read.path(0)}: {error!r}") from None
    number = table["episode_index"].astype(np.int64)
    if not len(number) or len(np.unique(number)) < len(number) or number.min() < 0:
        what = "an episode twice, or below 0" if len(number) else "no episodes"
        raise _flaw(f"{read.path(0)} has {what}")
    order = np.argsort(number)
    if wanted is not None:
        if unknown := sorted({*wanted} - {*number.tolist()}):
            what = f"there is no episode {unknown[0]}"
            raise UsageError(f"episodes: {what}: there are {len(number):,}, up to {number.max()}")
        order = order[np.isin(number[order], wanted)]
    table = {name: column[order] for name, column in table.items()}
    number = number[order]

    zeros = np.zeros(len(number), np.int64)  # in v2 each episode has files of its own
    files, start = {}, {}
    for kind in kinds:
        parts = {part: table.get(f"{kind}/{part}", zeros) for part in _PARTS}
        parts |= {"episode_chunk": number // info.chunk, "episode_index": number}
        parts["video_key"] = np.full(len(number), kind.removeprefix("videos/"))
        files[kind] = info.name_files("data" if kind == "data" else "video", parts)
        start[kind] = table.get(f"{kind}/from_timestamp", zeros).astype(np.float64)
    return Episodes(read.path(0), number, table["length"], files, start), read


def _read_lines(scan: Scan, name: str) -> tuple[list[dict[str, Any]], Files]:
    """Read a file of lines of JSON."""
    files = scan.store.stat([name])
    data = scan.store.read(name, 0, min(int(files.size[0]), _META_BYTES_MAX))
    return [_parse_json(files.path(0), line) for line in data.splitlines() if line.strip()], files


def _read_tasks(scan: Scan, info: Info, wanted: Int) -> tuple[SharedTexts, Files]:
    """Read the texts of tasks, and find each row's."""
    if info.is_joint:
        read = scan.store.stat(["meta/tasks.parquet"])
        (table,) = scan.parse(read, lambda _, source: read_columns(source, None))
        numbers = table.get("task_index", ())
        texts = next((one for one in table.values() if isinstance(one, list)), [])
    else:
        lines, read = _read_lines(scan, "meta/tasks.jsonl")
        numbers = [line.get("task_index") for line in lines]
        texts = [line.get("task") for line in lines]
    try:
        number, order = np.unique(np.array(numbers, np.int64), return_index=True)
        made = make_texts("task", "text", [texts[row] for row in order.tolist()])
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _flaw(f"{read.path(0)}: {error!r}") from None
    place = np.searchsorted(number, wanted)
    for row in np.flatnonzero(~np.isin(wanted, number))[:1].tolist():
        raise _flaw(f"{read.path(0)} has no task {wanted[row]}, which row {row:,} has")
    return SharedTexts("task", "text", made.values, made.ends, number=place), read


# -- rows and frames -------------------------------------------------------------------------------


def _read_rows(
    scan: Scan, info: Info, known: Episodes, files: Files, names: Sequence[str], has_all: bool
) -> tuple[dict[str, Any], RowSpan]:
    """Read the rows of the episodes: columns, and where each episode begins."""
    kinds = {name: feature["dtype"] for name, feature in info.features.items()}
    wanted = [name for name in names if kinds.get(name, "video") != "video"]
    shapes = {name: info.get_shape(name) for name in wanted if info.get_shape(name)}
    read = list(dict.fromkeys([*_NEEDED, *wanted]))
    tables = scan.parse(files, lambda _, source: read_columns(source, read, shapes))
    columns = {}
    for name in read:
        dtype = object if kinds.get(name) == "string" else None
        columns[name] = np.concatenate([np.asarray(one[name], dtype) for one in tables])
    number, data = columns["episode_index"], known.files["data"]
    is_known = np.isin(number, known.number)
    for row in np.flatnonzero(~is_known)[:1].tolist() if has_all else ():
        raise _flaw(f"{known.path} has no episode {number[row]}, of which there are rows")
    if not is_known.all():
        columns = {name: column[is_known] for name, column in columns.items()}
        number = columns["episode_index"]
    first = np.flatnonzero(np.diff(number, prepend=-1))
    lengths = np.diff(first, append=len(number))
    which, most = np.searchsorted(known.number, number[first]), len(known.number)
    counts = np.bincount(which, weights=lengths, minlength=most).astype(np.int64)
    places = np.bincount(which, minlength=most)
    for at in np.flatnonzero((counts != known.length) | (places > 1))[:1].tolist():
        what = f"{scan.store.root}/{data[at]} has {counts[at]:,} rows of episode"
        what = f"{what} {known.number[at]}{' in several places' * bool(places[at] > 1)}"
        what = f"{what}, and {known.path} says {known.length[at]:,}"
        raise FormatError(f"{what}: write it again, or leave it out by episodes=")
    frame = np.arange(len(number)) - np.repeat(first, lengths)
    for row in np.flatnonzero(columns["frame_index"] != frame)[:1].tolist():
        at = int(np.searchsorted(known.number, number[row]))
        what = f"{scan.store.root}/{data[at]}: frame_index is {columns['frame_index'][row]}"
        what = f"{what} in row {frame[row]:,} of episode {number[row]}"
        what = f"{what}: rows of an episode follow each other"
        raise FormatError(f"{what}: write it again, or leave it out by episodes=")
    return columns, RowSpan(np.append(first, len(number)), (0,))


def _make_attribute(info: Info, name: str, values: Any, span: RowSpan | None) -> Attribute:
    """Make the attribute of a column, of windows of rows if there is a span."""
    if info.features[name]["dtype"] == "string":
        return make_texts(name, "text", values.tolist())
    dtype, shape = np.dtype(info.features[name]["dtype"]), info.get_shape(name)
    made = values.astype(dtype)
    is_same = np.can_cast(values.dtype, dtype, "same_kind")
    if values.shape[1:] != shape or not is_same or (dtype.kind in "iu" and (made != values).any()):
        what = f"rows have {name!r} as {values.dtype} of {values.shape[1:]}"
        raise _flaw(f"{info.path}: {what}, not {dtype} of {shape}")
    return Attribute(name, "numbers", made) if span is None else RowValues.make(name, span, made)


def _find_frames(
    known: Episodes,
    films: mp4.JointFilms,
    files: Files,
    film: Int,
    table: Mapping[str, Any],
    span: RowSpan,
    tolerance_s: float,
) -> Int:
    """Find each row's frame in a camera's films, which must be at the row's time (FormatError).

    film:  of each episode, by number among `files`.
    """
    first, lengths = span.first[:-1], np.diff(span.first)
    place, times = np.searchsorted(known.number, table["episode_index"][first]), films.times
    wanted = np.repeat(known.start[f"videos/{films.name}"][place], lengths) + table["timestamp"]
    film = np.repeat(film[place], lengths)
    # As a rule frames follow each other as rows do.
    begin, _ = _find_nearest(times, film[first], wanted[first])
    frames: Int = np.repeat(begin, lengths) + table["frame_index"]
    frames = np.minimum(frames, times.films[film + 1] - 1)
    seconds = times.find_seconds(frames)
    apart = np.flatnonzero(~(np.abs(seconds - wanted) <= _SURE_S))
    frames[apart], seconds[apart] = _find_nearest(times, film[apart], wanted[apart])
    slack = tolerance_s + np.spacing(np.abs(table["timestamp"]))
    for row in np.flatnonzero(~(np.abs(seconds - wanted) <= slack))[:1].tolist():
        at = f"episode {table['episode_index'][row]}, row {table['frame_index'][row]}"
        what = f"{files.path(int(film[row]))}: {at} of {films.name!r} is at {wanted[row]:.6f} s"
        remedy = "leave the episode out by episodes=, or give a larger tolerance_s"
        raise FormatError(f"{what}, and the nearest frame at {seconds[row]:.6f} s: {remedy}")
    low, high = frames[first], frames[span.first[1:] - 1]
    order = np.argsort(low, kind="stable")
    for at in np.flatnonzero(low[order[1:]] <= high[order[:-1]])[:1].tolist():
        both = known.number[place[order[at : at + 2]]]
        what = f"{known.path}: episodes {both[0]} and {both[1]} have the same frames of"
        remedy = "fetch or write it again, or leave one out by episodes="
        raise FormatError(f"{what} {films.name!r}: {remedy}")
    return frames


def _find_nearest(times: FrameTimes, films: Int, wanted: Seconds) -> tuple[Int, Seconds]:
    """Find the frames nearest to these seconds of films, and their seconds."""
    is_sane = np.abs(wanted) < _SECONDS_MAX
    ticks = np.floor(np.where(is_sane, wanted, 0) * times.scale[films]).astype(np.int64)
    frames = times.find_frames(films, ticks)
    after = np.minimum(frames + 1, times.films[films + 1] - 1)
    seconds, later = times.find_seconds(frames), times.find_seconds(after)
    is_nearer = np.abs(later - wanted) < np.abs(seconds - wanted)
    return np.where(is_nearer, after, frames), np.where(is_nearer, later, seconds)
