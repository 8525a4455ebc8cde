"""Films beside the clips that are cut of them: what is unusual, what it costs, and the remedy.

Headers of some files from everywhere are read again, for what an index does not keep; nothing is
decoded.
"""

from __future__ import annotations

import shlex
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .. import limits
from ..dataset.dataset import Dataset
from ..engine.open import read_extent
from ..index.chunked import Packets
from ..index.clips import ClipCut, Clips
from ..index.fields import Codec
from ..index.table import Index

_FILES_MAX, _CLIPS_MAX, _CONFIGS_MAX = 64, 256, 16
_WASTE_MIN = 1.5  # frames decoded for each that is asked for
_MISSING_S = 0.5


class FilmNote(NamedTuple):
    """A property of films; `is_bad` if something should be done about it."""

    is_bad: bool
    about: str
    says: str


def examine_films(dataset: Dataset) -> Iterator[FilmNote]:
    """Examine the films of clips, a camera's if there are several; nothing for other data."""
    for field, layout in zip(dataset.index.fields, dataset.index.layouts, strict=True):
        if isinstance(layout, Clips) and field.codec is not None and layout.packets is not None:
            yield _examine_groups(dataset, layout)
            yield from _examine_packets(field.codec, layout.packets)
            if isinstance(layout.cut, ClipCut):
                yield from _examine_times(layout.cut)
                yield from _examine_headers(dataset.index, layout.cut)
            return


def _examine_groups(dataset: Dataset, layout: Clips) -> FilmNote:
    """Compare the frames that a clip decodes with those that it has."""
    some = np.linspace(0, layout.count - 1, min(layout.count, _CLIPS_MAX)).astype(np.int64)
    pairs, groups = layout.find_pairs(some)
    assert layout.packets is not None
    decoded = 0
    for clip, group in zip(some[pairs].tolist(), groups.tolist(), strict=True):
        _, _, rows = layout.find_frames(np.array([clip]), np.array([group]))
        packets = layout.packets.list_packets(np.array([group]))
        decoded += int(np.flatnonzero(np.isin(packets.rows, rows))[-1]) + 1
    frames, each = layout.window_shape[0], decoded / len(some)
    distances = np.diff(layout.first)
    says = f"one every {distances.mean():,.3g} frames, {int(distances.max()):,} at most: a clip of"
    says = f"{says} {frames} decodes {each:,.3g} and reads {layout.mean_bytes / 1e3:,.3g} kB"
    wanted = max(1, frames // 2)
    if is_bad := each > _WASTE_MIN * frames and distances.mean() > wanted:
        words = f"penstock convert {shlex.quote(dataset.path)} OUT --keyframes {wanted}"
        says = f"{says}: `{words}` encodes films anew; shuffle='auto' and Budget.decoded_bytes help"
    return FilmNote(is_bad, "keyframes", says)


def _examine_packets(codec: Codec, packets: Packets) -> Iterator[FilmNote]:
    """Look for many settings of decoders, B-frames, open groups, frames that are not shown."""
    kinds = [name for name, *_ in codec.options["configs"]]
    if len(kinds) > _CONFIGS_MAX:
        names = ", ".join(sorted({*kinds}))
        says = f"{len(kinds):,} settings of decoders ({names}), and decoders of a few are kept"
        yield FilmNote(True, "codecs", f"{says}: encode the films alike (penstock convert)")
    if len(packets.shift):
        shared = int((packets.begin[1:] < packets.end[:-1]).sum())
        says = "there are some: frames that no other refers to are skipped where they can be"
        if shared:
            says = f"{shared:,} of {len(packets.begin):,} groups are open: each reads and decodes"
            says = f"{says} frames of the next one or the one before; `--keyframes` closes them"
        yield FilmNote(shared > 0, "B-frames", says)
    if hidden := len(packets.size) - int(packets.frames.sum()):
        says = f"{hidden:,} stored frames are not shown, for edit lists or no keyframe before them"
        yield FilmNote(False, "edit lists", f"{says}: numbers of frames count those that are shown")


def _examine_times(cut: ClipCut) -> Iterator[FilmNote]:
    """Look for distances of frames that change within a film."""
    times = cut.times
    films = times.find_films(times.first)
    begins = np.searchsorted(films, np.arange(len(times.scale)))
    low, high = (edge.reduceat(times.step, begins) for edge in (np.minimum, np.maximum))
    if varying := int((high > 1.5 * np.maximum(low, 1)).sum()):
        says = f"it varies in {varying:,} of {len(begins):,} films, so that clips of as many frames"
        says = f"{says} last differently: give seconds= and fps= in place of frames="
        yield FilmNote(not cut.fps, "frame rate", says)


def _examine_headers(index: Index, cut: ClipCut) -> Iterator[FilmNote]:
    """Read headers of some files again."""
    files, ends = index.files, cut.times.end / cut.times.scale
    numbers = np.unique(np.linspace(0, len(files) - 1, min(len(files), _FILES_MAX)).astype(int))
    late: list[str] = []
    missing: list[str] = []
    for number in numbers.tolist():
        path, heads = files.path(number), dict(_scan(index, number))
        if b"moov" not in heads:
            continue
        if b"moof" not in heads and heads.get(b"mdat", (0, 0))[0] < heads[b"moov"][0]:
            late.append(path)
        start, size = heads[b"moov"]
        moov = read_extent(files, number, start, min(size, limits.header_bytes_max), path)
        claimed, shown = max(_find_durations(moov), default=0.0), float(ends[number])
        if claimed > shown + _MISSING_S:
            missing.append(f"{path} says {claimed:,.2f} s, and its frames end at {shown:,.2f} s")
    if late:
        says = f"{len(late):,} of {len(numbers):,} films have it at the end ({late[0]}): one more"
        says = f"{says} read a film to index it, none later; other programs need faststart"
        yield FilmNote(False, "moov", says)
    if missing:
        says = f"{len(missing):,} of {len(numbers):,} films, or their sound, claim to be longer"
        yield FilmNote(True, "frames", f"{says}: {missing[0]}: compare labels and tables with them")


def _scan(index: Index, number: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the outer boxes of a film: type, and where it is; of equal ones the last counts."""
    at, end = 0, int(index.files.size[number])
    for _ in range(_FILES_MAX):
        if at + 16 > end:
            break
        head = read_extent(index.files, number, at, 16, index.files.path(number))
        size, kind, wide = struct.unpack(">I4sQ", head)
        size = wide if size == 1 else size or end - at
        yield kind, (at, size)
        at += max(8, size)


def _find_durations(moov: bytes) -> Iterator[float]:
    """Yield the seconds that tracks claim to last."""
    at = -1
    while (at := moov.find(b"mdhd", at + 1)) >= 0 and at + 36 <= len(moov):
        layout, start = (">IQ", 24) if moov[at + 4] else (">II", 16)
        scale, ticks = struct.unpack_from(layout, moov, at + start)
        yield ticks / max(1, scale)
