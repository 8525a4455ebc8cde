"""Frames out of groups of pictures, by PyAV's decoders on packets: no container is opened.

A decoder is given the packets from a keyframe to the last one that is needed, each marked with the
row that its frame has, and then its end. Of packets that are not needed, it skips those to which no
others refer. Frames shown before the group's first one, which refer to the group before it, are
decoded as well as may be, and left out. FFmpeg decodes without Python's lock, each group by one
thread.

Options: `configs`, a list of the decoder's name, what it is given, in hexadecimal, and the quarter
turns clockwise that show a frame upright; `frame`, the height and width of upright frames, or
`size`, to which they are scaled; `layout`, "hwc" or "chw"; `whole`, for films as one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import missing_library
from .decoder_pool import DecoderPool
from .registry import CompressedChunk, Decoded

_DECODERS = {"av1": "libdav1d"}
"""FFmpeg's name of a codec's decoder, where it is not the codec's: `av1` is one for hardware."""


class _Decoder:
    """One decoder, and what makes arrays of its frames."""

    def __init__(self, name: str, config: bytes) -> None:
        try:
            import av.video.reformatter
        except ImportError:
            raise missing_library("av", "clips", "decoding films") from None

        self.av = av
        self.context: Any = av.CodecContext.create(_DECODERS.get(name, name), "r")
        self.context.thread_count = 1
        self.context.extradata = config or None
        self.reformatter = av.video.reformatter.VideoReformatter()
        self.skips = False


_pool = DecoderPool()


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the rows of a group that are needed, uint8; or a film, as the bytes of all frames."""
    inside = compressed.inside
    name, config, turns = options["configs"][inside["config"]]
    rows = np.arange(inside["frames"]) if compressed.rows is None else compressed.rows
    decoder = _pool.take((name, config), partial(_Decoder, name, bytes.fromhex(config)))
    try:
        frames = _decode_rows(decoder, options, compressed, rows, turns)
    except decoder.av.FFmpegError as error:
        raise ValueError(f"FFmpeg's {name} decoder says {error}") from None
    decoder.context.flush_buffers()
    _pool.give_back((name, config), decoder)
    return [frames.reshape(-1).data] if options.get("whole") else frames


def _decode_rows(
    decoder: _Decoder,
    options: Mapping[str, Any],
    compressed: CompressedChunk,
    rows: Any,
    turns: int,
) -> npt.NDArray[np.uint8]:
    """Decode these rows, ascending. They are allocated when the first frame has its size."""
    sizes, row_of = compressed.inside["sizes"], compressed.inside["rows"]
    ends = np.cumsum(sizes, dtype=np.int64)
    if ends[-1] != len(compressed.data):
        raise ValueError(f"packets of {ends[-1]:,} bytes, in {len(compressed.data):,}")
    places = {row: place for place, row in enumerate(rows.tolist())}
    needed = [row in places for row in row_of.tolist()]
    while needed and not needed[-1]:  # no frame that is needed refers to it
        needed.pop()
    packets = zip((ends - sizes).tolist(), ends.tolist(), row_of.tolist(), needed, strict=False)
    frames = compressed.out
    for packet in [*packets, None]:
        if not places:
            break
        for picture in _decode_packet(decoder, compressed.data, packet):
            place = places.pop(picture.pts, None)
            if place is None:
                continue
            pixels = _convert(decoder, options, picture, turns)
            if frames is None:
                size = len(rows) * pixels.nbytes
                if size > limits.decoded_chunk_bytes_max:
                    raise ValueError(f"{len(rows):,} frames of {pixels.shape}: give shorter clips")
                frames = np.empty((len(rows), *pixels.shape), np.uint8)
            frames[place] = pixels
    if places or frames is None:
        raise ValueError(
            f"frame {min(places)} of the group's {compressed.inside['frames']} is not there"
        )
    return frames


def _decode_packet(
    decoder: _Decoder, data: memoryview, packet: tuple[int, int, int, bool] | None
) -> list[Any]:
    """Give the decoder a packet, or the end; return the pictures that come out."""
    if packet is None:
        pictures: list[Any] = decoder.context.decode(None)
        return pictures
    start, end, row, is_needed = packet
    if decoder.skips == is_needed:
        decoder.skips = not is_needed
        decoder.context.skip_frame = "DEFAULT" if is_needed else "NONREF"
    given = decoder.av.Packet(data[start:end])
    given.pts = row
    try:
        pictures = decoder.context.decode(given)
    except decoder.av.FFmpegError:
        if row < 0:  # it refers to frames of the group before
            return []
        raise
    return pictures


def _convert(
    decoder: _Decoder, options: Mapping[str, Any], picture: Any, turns: int
) -> npt.NDArray[np.uint8]:
    """Convert a picture to RGB, in the size that is asked for, and turn it upright."""
    height, width = options.get("size") or options["frame"]
    if turns % 2:
        height, width = width, height
    if "size" not in options and (picture.height, picture.width) != (height, width):
        what = f"a frame of {picture.width} x {picture.height}"
        raise ValueError(f"{what}, and the film's header says {width} x {height}")
    if picture.is_corrupt:
        raise ValueError("a frame is damaged")
    picture = decoder.reformatter.reformat(picture, width, height, "rgb24", threads=1)
    plane = picture.planes[0]
    lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    pixels = lines[:height, : 3 * width].reshape(height, width, 3)
    pixels = np.rot90(pixels, -turns) if turns else pixels
    return pixels.transpose(2, 0, 1) if options.get("layout") == "chw" else pixels
