"""Clips of films: a few frames each, a function of their number; by time, or by rows of a table.

The frames of all films are numbered one film after the other, in the sequence in which they are
shown. No table of clips is made: of 10^9 of them an index is as small as of one.

    FrameTimes   when frames are shown.
    ClipCut      which frames each clip has.
    RowSpan      rows at some distances from each row of a table, within its episode.
    FrameCut     which frames these rows have in the films of a camera.
    Clips        the layout: windows over frames, whose compressed chunks are groups of pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..extent import Files, Int
from .chunked import Chunked, Windowed
from .windows import Columns, Description, take_column


@dataclass(frozen=True, slots=True, eq=False)
class FrameTimes:
    """Times of frames, in ticks of their films: frames at equal distances are one run.

    films:  int64 (films + 1,), number of each film's first frame; the last is the count.
    scale:  int64 (films,), ticks of a second.
    end:    int64 (films,), tick at which the film's last frame ends.
    first:  int64 (runs,), number of the frame at which a run begins; a run is of one film.
    start, step:  int64 (runs,), the tick of that frame, and ticks from a frame to the next.
    """

    films: Int
    scale: Int
    end: Int
    first: Int
    start: Int
    step: Int

    def find_films(self, frames: Int) -> Int:
        """Return the films of frames."""
        films: Int = np.searchsorted(self.films, frames, side="right") - 1
        return films

    def find_ticks(self, frames: Int) -> Int:
        """Return the ticks at which frames are shown."""
        run = np.searchsorted(self.first, frames, side="right") - 1
        ticks: Int = self.start[run] + (frames - self.first[run]) * self.step[run]
        return ticks

    def find_seconds(self, frames: Int) -> npt.NDArray[np.float64]:
        """Return the times at which frames are shown, in seconds from their films' start."""
        scale = self.scale[self.find_films(frames)]
        seconds: npt.NDArray[np.float64] = self.find_ticks(frames) / scale
        return seconds

    def find_frames(self, films: Int, ticks: Int) -> Int:
        """Return the frames that films show at these ticks: before the start the first one, behind
        the end the last."""
        films, ticks = np.broadcast_arrays(films, ticks)
        low, high = self.films[films], self.films[films + 1] - 1
        while (low < high).any():  # bisection, of all at once
            middle = (low + high + 1) // 2
            is_shown = self.find_ticks(middle) <= ticks
            low, high = np.where(is_shown, middle, low), np.where(is_shown, high, middle - 1)
        frames: Int = low
        return frames

    def sections(self, prefix: str) -> Columns:
        return {f"{prefix}.times.{name}": getattr(self, name) for name in _TIMES}

    @classmethod
    def rebuild(cls, prefix: str, sections: Mapping[str, npt.NDArray[Any]]) -> FrameTimes:
        return cls(*(take_column(sections, f"{prefix}.times.{name}", np.int64) for name in _TIMES))

    def find_flaw(self) -> str | None:
        films = len(self.scale)
        if len(self.films) != films + 1 or len(self.end) != films or self.films[0] != 0:
            return "the films' first frames do not match the films"
        if (np.diff(self.films) < 1).any() or (self.scale < 1).any():
            return "a film has no frames, or no ticks"
        if not len(self.first) == len(self.start) == len(self.step):
            return "columns of times differ in length"
        if not np.isin(self.films[:-1], self.first).all() or (np.diff(self.first) < 1).any():
            return "the times of frames are not in order"
        return None


_TIMES = ("films", "scale", "end", "first", "start", "step")


@dataclass(frozen=True, slots=True, eq=False)
class ClipCut:
    """Frames of each clip.

    first:   int64 (films + 1,), number of each film's first clip.
    frames:  frames of a clip.
    every:   from a frame of a clip to its next, in frames, if `fps` is 0.
    fps:     frames of a clip a second: each is the one that the film shows then.
    stride:  from a clip to the next: frames, or seconds with `fps`.
    is_padded:  whether the last clip of a film may end behind it, and repeats its last frame.
    """

    times: FrameTimes
    first: Int
    frames: int
    every: int
    fps: float
    stride: float
    is_padded: bool

    @classmethod
    def make(cls, times: FrameTimes, **how: Any) -> ClipCut:
        """Cut films into clips: as many as are whole, or have a frame."""
        films = np.arange(len(times.scale))
        cut = cls(times, np.zeros(len(films) + 1, np.int64), **how)
        spans = cut._find_length(films) / (times.scale if cut.fps else 1)
        reach = (cut.frames - 1) / cut.fps if cut.fps else (cut.frames - 1) * cut.every
        counts = np.maximum(np.floor((spans - reach) / cut.stride).astype(np.int64), 0)
        # The division is of rounded numbers: what `_is_within` says counts.
        last = cut.frames - 1
        counts = np.where(cut._is_within(films, counts, last), counts + 1, counts)
        counts -= (counts > 0) & ~cut._is_within(films, np.maximum(counts - 1, 0), last)
        if cut.is_padded:
            has_end = (counts > 0) & (
                cut._place(films, np.maximum(counts - 1, 0))[:, last] == times.films[1:] - 1
            )
            counts += ~has_end & cut._is_within(films, counts, 0)
        np.cumsum(counts, out=cut.first[1:])
        return cut

    @property
    def count(self) -> int:
        return int(self.first[-1])

    def find_films(self, clips: Int) -> Int:
        """Return the films that clips are of."""
        films: Int = np.searchsorted(self.first, clips, side="right") - 1
        return films

    def name_origins(self, clips: Int) -> dict[str, Int]:
        """Return the film of each clip, and its first frame there."""
        films, frames = self.find_films(clips), self.find_frames(clips)[:, 0]
        return {"film": films, "frame": frames - self.times.films[films]}

    def find_frames(self, clips: Int) -> Int:
        """Return the numbers of the frames of clips, int64 (clips, frames)."""
        films = self.find_films(clips)
        return self._place(films, clips - self.first[films])

    def find_valid(self, clips: Int) -> npt.NDArray[np.bool_]:
        """Return which frames of clips are in their films, and not repeated."""
        films = self.find_films(clips)
        numbers, places = (clips - self.first[films])[:, None], np.arange(self.frames)
        return self._is_within(films[:, None], numbers, places)

    def _find_length(self, films: Int) -> Int:
        """Return the length of films: in frames, or with `fps` in ticks."""
        times, first = self.times, self.times.films[films]
        end = times.end[films] if self.fps else times.films[films + 1]
        length: Int = end - (times.find_ticks(first) if self.fps else first)
        return length

    def _locate(self, films: Int, clips: Int, places: Any) -> Int:
        """Locate places in clips of films, in frames or ticks from each film's first frame on."""
        if not self.fps:
            frames: Int = clips * int(self.stride) + places * self.every
            return frames
        seconds = clips * self.stride + places / self.fps
        ticks: Int = np.floor(seconds * self.times.scale[films] + 0.5).astype(np.int64)
        return ticks

    def _is_within(self, films: Int, clips: Int, places: Any) -> npt.NDArray[np.bool_]:
        """Return whether a film has a frame for a place in a clip."""
        length = self._find_length(films)
        within: npt.NDArray[np.bool_] = self._locate(films, clips, places) < length
        return within

    def _place(self, films: Int, clips: Int) -> Int:
        """Return the frames of clips by their numbers within films."""
        times, films = self.times, films[:, None]
        passed = self._locate(films, clips[:, None], np.arange(self.frames))
        first: Int = times.films[films]
        if self.fps:
            return times.find_frames(films, passed + times.find_ticks(first))
        frames: Int = np.minimum(first + passed, times.films[films + 1] - 1)
        return frames

    def described(self) -> Description:
        return {"clips": {name: getattr(self, name) for name in _CUT}}

    def sections(self, prefix: str) -> Columns:
        return {f"{prefix}.clips.first": self.first} | self.times.sections(prefix)

    @classmethod
    def rebuild(
        cls, described: Mapping[str, Any], prefix: str, sections: Mapping[str, npt.NDArray[Any]]
    ) -> ClipCut:
        first = take_column(sections, f"{prefix}.clips.first", np.int64)
        how = {name: kind(described["clips"][name]) for name, kind in _CUT.items()}
        return cls(FrameTimes.rebuild(prefix, sections), first, **how)

    def find_flaw(self, films: int, frames: int) -> str | None:
        """Find a contradiction, also with the number of films and of frames."""
        if flaw := self.times.find_flaw():
            return flaw
        if len(self.times.scale) != films or self.times.films[-1] != frames:
            return "clips are not of the films, or there are other frames"
        if min(self.frames, self.every) < 1 or not 0 < self.stride < math.inf or self.fps < 0:
            return "clips have no frames"
        made = ClipCut.make(self.times, **{name: getattr(self, name) for name in _CUT})
        if not np.array_equal(made.first, self.first) or self.count < 1:
            return "the films' first clips are not in order"
        return None


_CUT = {"frames": int, "every": int, "fps": float, "stride": float, "is_padded": bool}


@dataclass(frozen=True, slots=True, eq=False)
class RowSpan:
    """Rows at some distances from each row. In place of those outside its episode there is the
    episode's first or last one.

    first:    int64 (episodes + 1,), number of each episode's first row; the last is the count.
    offsets:  the distances, ascending.
    """

    first: Int
    offsets: tuple[int, ...]

    @property
    def count(self) -> int:
        return int(self.first[-1])

    def find_episodes(self, rows: Int) -> Int:
        """Return the numbers of the episodes of rows."""
        episodes: Int = np.searchsorted(self.first, rows, side="right") - 1
        return episodes

    def find_rows(self, rows: Int) -> Int:
        """Return the rows around rows, int64 (rows, offsets), ascending."""
        around, begin, end = self._find_around(rows)
        return np.clip(around, begin, end - 1)

    def find_outside(self, rows: Int) -> npt.NDArray[np.bool_]:
        """Return which of the rows around rows are outside the episode."""
        around, begin, end = self._find_around(rows)
        return (around < begin) | (around >= end)

    def _find_around(self, rows: Int) -> tuple[Int, Int, Int]:
        """Return the rows around rows wherever they are, and each episode's first and end."""
        episodes = self.find_episodes(rows)[:, None]
        around = rows[:, None] + np.array(self.offsets, np.int64)
        return around, self.first[episodes], self.first[episodes + 1]

    def described(self) -> Description:
        return {"offsets": self.offsets}

    def sections(self, prefix: str) -> Columns:
        return {f"{prefix}.episodes": self.first}

    @classmethod
    def rebuild(
        cls, described: Mapping[str, Any], prefix: str, sections: Mapping[str, npt.NDArray[Any]]
    ) -> RowSpan:
        first = take_column(sections, f"{prefix}.episodes", np.int64)
        return cls(first, tuple(map(int, described["offsets"])))

    def find_flaw(self) -> str | None:
        if len(self.first) < 2 or self.first[0] != 0 or (np.diff(self.first) < 1).any():
            return "the episodes' first rows are not in order"
        if not self.offsets or any(np.diff(self.offsets) < 0):
            return "rows around a row are not in order"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class FrameCut:
    """Frames of the rows around each row, in the films of a camera, one film after the other.

    first, frame:  int64 (runs,): the row at which frames begin to follow each other, as the rows
                   do, and its frame.
    """

    span: RowSpan
    first: Int
    frame: Int

    @classmethod
    def make(cls, span: RowSpan, frames: Int) -> FrameCut:
        """Make the cut of the frame of each row."""
        first = np.flatnonzero(np.diff(frames, prepend=frames[0] - 2) != 1)
        return cls(span, first, frames[first])

    @property
    def count(self) -> int:
        return self.span.count

    @property
    def frames(self) -> int:
        """Frames of each row."""
        return len(self.span.offsets)

    def find_frames(self, rows: Int) -> Int:
        """Return the frames of rows, int64 (rows, frames)."""
        around = self.span.find_rows(rows)
        run = np.searchsorted(self.first, around, side="right") - 1
        frames: Int = self.frame[run] + (around - self.first[run])
        return frames

    def name_origins(self, rows: Int) -> dict[str, Int]:
        """Return the number of each row's episode among those that are read, and its row there."""
        episodes = self.span.find_episodes(rows)
        return {"episode": episodes, "row": rows - self.span.first[episodes]}

    def described(self) -> Description:
        return {"rows": self.span.described()}

    def sections(self, prefix: str) -> Columns:
        runs = {f"{prefix}.runs.first": self.first, f"{prefix}.runs.frame": self.frame}
        return self.span.sections(prefix) | runs

    @classmethod
    def rebuild(
        cls, described: Mapping[str, Any], prefix: str, sections: Mapping[str, npt.NDArray[Any]]
    ) -> FrameCut:
        runs = (take_column(sections, f"{prefix}.runs.{n}", np.int64) for n in ("first", "frame"))
        return cls(RowSpan.rebuild(described["rows"], prefix, sections), *runs)

    def find_flaw(self, films: int, frames: int) -> str | None:
        """Find a contradiction, also with the number of frames; any number of films will do."""
        if flaw := self.span.find_flaw():
            return flaw
        if len(self.first) != len(self.frame) or not len(self.first) or self.first[0] != 0:
            return "runs of frames do not begin at the first row"
        lengths = np.diff(self.first, append=self.count)
        if (lengths < 1).any() or (self.frame < 0).any() or (self.frame + lengths > frames).any():
            return "runs of frames are not in order, or not in the films"
        last = self.frame[:-1] + lengths[:-1] - 1
        if ((self.frame[1:] < last) & ~np.isin(self.first[1:], self.span.first)).any():
            return "frames of an episode are not in order"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Clips(Windowed):
    """Clips of films: the compressed chunks are groups of pictures.

    first:   int64 (groups + 1,), number of each group's first frame.
    shape:   of one frame.
    """

    cut: ClipCut | FrameCut
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.cut.count

    @property
    def window_shape(self) -> tuple[int, ...]:
        return self.cut.frames, *self.shape

    @property
    def chunk_elements(self) -> int:
        return int(self.count_rows(np.arange(self.chunks.count)).max()) * math.prod(self.shape)

    @property
    def mean_bytes(self) -> float:
        some = np.unique(np.linspace(0, self.count - 1, min(self.count, 256)).astype(np.int64))
        met = len(self.find_pairs(some)[0]) / len(some)
        return met * self.chunks.total_bytes / self.chunks.count

    def find_shape(self, chunk: int) -> tuple[int, ...]:
        return self.shape

    def count_neighbours(self, elements: int) -> int:
        """Count the clips in a row that have about so many elements between them."""
        return int(elements / math.prod(self.shape) * self.count / int(self.first[-1]))

    def find_places(self, windows: Int) -> Int:
        """Return the frames of clips."""
        return self.cut.find_frames(windows)

    def name_origins(self, windows: Int) -> dict[str, Int]:
        return self.cut.name_origins(windows)

    def find_pairs(self, samples: Int) -> tuple[Int, Int]:
        frames = self.cut.find_frames(samples)
        groups = np.searchsorted(self.first, frames, side="right") - 1
        is_new = np.ones(groups.shape, bool)
        is_new[:, 1:] = groups[:, 1:] != groups[:, :-1]
        return np.nonzero(is_new)[0], groups[is_new]

    def measure_pieces(self, samples: Int, chunks: Int) -> Int:
        pair, _, _ = self.find_frames(samples, chunks)
        return np.bincount(pair, minlength=len(samples)) * math.prod(self.shape)

    def find_frames(self, windows: Int, chunks: Int) -> tuple[Int, Int, Int]:
        frames, first = self.cut.find_frames(windows), self.first[chunks]
        is_met = (frames >= first[:, None]) & (frames < self.first[chunks + 1, None])
        pair, place = np.nonzero(is_met)
        return pair, place, frames[is_met] - first[pair]

    def overlap(self, chunk: int, places: Int) -> Iterator[tuple[Any, Any]]:
        first, end = self.first[chunk : chunk + 2]
        low, high = (places < first).sum(axis=1), (places < end).sum(axis=1)
        for frames, start, stop in zip(places, low.tolist(), high.tolist(), strict=True):
            taken = frames[start:stop] - first
            if len(taken) and (np.diff(taken) == 1).all():  # which copies less
                taken = slice(int(taken[0]), int(taken[-1]) + 1)
            yield slice(start, stop), taken

    def described(self) -> Description:
        mine = self.cut.described() | {"frame": self.shape}
        return Windowed.described(self) | mine

    def sections(self, prefix: str, files: Files) -> Columns:
        return Windowed.sections(self, prefix, files) | self.cut.sections(prefix)

    def flaw(self, files: Files) -> str | None:
        flaw = Chunked.flaw(self, files) or self.cut.find_flaw(len(files), int(self.first[-1]))
        if flaw or self.packets is None:
            return flaw or "clips have no packets"
        return "clips have no size" if len(self.shape) != 3 or min(self.shape) < 1 else None
