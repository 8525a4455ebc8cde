"""Frames out of groups of pictures, by FFmpeg's decoders on packets: no container is opened.

A decoder is given the packets from a keyframe to the last one that is needed, each marked with the
row that its frame has, and then its end. Of packets that are not needed, it skips those to which no
others refer. Frames shown before the group's first one, which refer to the group before it, are
decoded as well as may be, and left out. The core does so without Python's lock, each group by one
thread, into the memory of the batch.

Options: `configs`, a list of the decoder's name, what it is given, in hexadecimal, and the quarter
turns clockwise that show a frame upright; `frame`, the height and width of upright frames, or
`size`, to which they are scaled; `layout`, "hwc" or "chw"; `whole`, for films as one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import limits
from .decoder_pool import DecoderKind, DecoderPool
from .registry import CompressedChunk, Decoded

_DECODERS = {"av1": "libdav1d"}
"""FFmpeg's name of a codec's decoder, where it is not the codec's: `av1` is one for hardware."""
_pool = DecoderPool()


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the rows of a group that are needed, uint8; or a film, as the bytes of all frames."""
    inside = compressed.inside
    name, config, turns = options["configs"][inside["config"]]
    rows = np.arange(inside["frames"]) if compressed.rows is None else compressed.rows
    if (size := inside["sizes"].sum()) != len(compressed.data):
        raise ValueError(f"packets of {size:,} bytes, in {len(compressed.data):,}")
    is_chw = options.get("layout") == "chw"
    height, width = options.get("size") or options["frame"]
    shape = (3, height, width) if is_chw else (height, width, 3)
    if 3 * len(rows) * height * width > limits.decoded_chunk_bytes_max:
        raise ValueError(f"{len(rows):,} frames of {shape}: give shorter clips")
    frames = compressed.out
    if frames is None:
        frames = np.empty((len(rows), *shape), np.uint8)
    lines = frames.transpose(0, 2, 3, 1) if is_chw else frames
    kind = DecoderKind(_DECODERS.get(name, name), config)
    decoder = _pool.take(kind)
    decoder.decode_pictures(
        np.frombuffer(compressed.data, np.uint8),
        inside["sizes"],
        inside["rows"],
        rows,
        np.rot90(lines, turns, (1, 2)),  # a view
        "size" in options,
    )
    _pool.give_back(kind, decoder)
    return [frames.reshape(-1).data] if options.get("whole") else frames
