"""Video tracks of MP4 files: each frame's bytes, its place in the sequence shown, and its time.

A *packet* is what the container calls a sample: the bytes of one frame. Packets are stored in the
sequence of decoding, frames are numbered in the sequence of showing; where B-frames are used, these
differ. Frames before the first keyframe, and those that an edit list leaves out, are not counted:
players and FFmpeg do not show them either.

A *group* is what is decoded to have the frames from a keyframe to the next. Its packets begin at
the keyframe, and end with the last one of its frames. In an open group frames that are shown before
the next keyframe refer to it: the group has its packet too.

The core's `walk_mp4` reads the file's headers: `moov` at the start or the end, and each `moof`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...engine.store import StoreFile
from ...extent import Int


class FilmTrack(NamedTuple):
    """The video track of one file. Packets and places are counted from the file's first on.

    codec, config:  the name of the decoder, and what it is given first.
    turns:    quarter turns clockwise to show a frame, of `width` and `height`, upright; none
              of a mirror.
    size:     uint32 (packets,), bytes of each.
    shift:    int16 (packets,), place in the sequence shown less the packet's number; None: all 0.
    frames:   int64 (groups,), frames of each group.
    first_packet, last_packet:  int64 (groups,): its packets, `last_packet` among them.
    place:    int64 (groups,), place of its first frame in the sequence shown.
    pieces:   int64 (groups,), extents of each group; `offset` and `length` have all of them.
    times:    int64 (runs, 3): number of the frame at which frames of one distance begin, its time
              and that distance, in ticks, of which a second has `scale`.
    end:      time at which the last frame ends.
    """

    codec: str
    config: bytes
    width: int
    height: int
    turns: int
    size: npt.NDArray[np.uint32]
    shift: npt.NDArray[np.int16] | None
    frames: Int
    first_packet: Int
    last_packet: Int
    place: Int
    pieces: Int
    offset: Int
    length: Int
    times: Int
    scale: int
    end: int

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of an upright frame."""
        return (self.width, self.height) if self.turns % 2 else (self.height, self.width)


def parse_film(source: StoreFile, is_one_group: bool = False) -> FilmTrack:
    """Parse the first video track of a file; FormatError if there is none that can be read.

    is_one_group:  whether all its frames are one group.
    """
    found = source.walk("mp4", one_group=is_one_group)
    found["times"] = found["times"].reshape(-1, 3)
    found["shift"] = found["shift"] if len(found["shift"]) else None
    return FilmTrack(**found)
