"""Rows of a table around each of its rows, and the frames of films that belong to them.

RowSpan    rows at some distances from each row, within its episode.
FrameCut   the frames that these rows have in the films of a camera.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..extent import Int
from .windows import Columns, Description, take_column


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
