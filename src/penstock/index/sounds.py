"""Sound in compressed packets: windows of samples, a function of their number.

A chunk is a run of samples that has nothing to do with where packets begin: as long as what windows
have in common, so that none decodes what it does not need. Its bytes are the packets that have its
samples, and those before them by which the decoder comes into their state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..extent import Files
from .chunked import Windows
from .clips import Packets
from .windows import Columns, Description


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SoundWindows(Windows):
    """Windows of the samples of files, each of a rate.

    packets:  of each chunk; a chunk's place is where its first sample is in what comes out of its
              packets.
    """

    packets: Packets

    def describe_inside(self, chunk: int) -> Mapping[str, Any]:
        start, end = self.find_box(chunk)
        room = self.find_shape(chunk)[0]
        return self.packets.describe(chunk) | {"frames": end[1] - start[1], "room": room}

    def described(self) -> Description:
        return Windows.described(self) | {"sound": True}

    def sections(self, prefix: str, files: Files) -> Columns:
        return Windows.sections(self, prefix, files) | self.packets.sections(prefix)

    @classmethod
    def make(cls, windows: Windows, packets: Packets) -> SoundWindows:
        """Make the layout of what it has as any windows, and its packets."""
        parts = windows.first, windows.chunks, windows.grid, windows.chunk, windows.in_files
        return cls(*parts, packets=packets)

    def flaw(self, files: Files) -> str | None:
        if self.grid.files is None or len(self.grid.shape) != 3:
            return "sound has no files, or no channels"
        return Windows.flaw(self, files) or self.packets.find_flaw(self.chunks.count)
