"""Frames out of groups of pictures, by FFmpeg's decoders on packets: no container is opened.

A decoder is given the packets from a keyframe to the last one that is needed, each marked with the
row that its frame has, and then its end. Of packets that are not needed, it skips those to which no
others refer. Frames shown before the group's first one, which refer to the group before it, are
decoded as well as may be, and left out. The core does so without Python's lock, the groups of a
batch by several threads, into the memory of the batch.

Options: `configs`, a list of the decoder's name, what it is given, in hexadecimal, and the quarter
turns clockwise that show a frame upright; `frame`, the height and width of upright frames, or
`size`, to which they are scaled; `layout`, "hwc" or "chw"; `whole`, for films as one sample.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import UsageError
from ...extent import Int
from .decoder_pool import find_pool
from .registry import CompressedChunk, Decoded, PacketColumns

_DECODERS = {"av1": "libdav1d"}
"""FFmpeg's name of a codec's decoder, where it is not the codec's: `av1` is one for hardware."""


class WantedFrames(NamedTuple):
    """Frames to be decoded from some groups.

    group, row:  of each.
    place:       where it belongs: a frame of the memory that is given, counted through all of it.
    """

    group: Int
    row: Int
    place: Int


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode all rows of a group, uint8; or a film, as the bytes of all frames."""
    rows = np.arange(compressed.inside["frames"])
    frames = np.empty((len(rows), *_find_shape(options)), np.uint8)
    problem = decode_groups(
        options,
        np.frombuffer(compressed.data, np.uint8),
        np.array([0, len(compressed.data)]),
        compressed.inside["packets"],
        WantedFrames(np.zeros_like(rows), rows, rows),
        [frames],
    )
    if problem is not None:
        raise ValueError(problem[1])
    return [frames.reshape(-1).data] if options.get("whole") else frames


def decode_groups(
    options: Mapping[str, Any],
    data: npt.NDArray[np.uint8],
    bounds: Int,
    packets: PacketColumns,
    wanted: WantedFrames,
    memory: Sequence[npt.NDArray[np.uint8]],
) -> tuple[int, str] | None:
    """Decode frames of groups into memory, by as many threads as there are cores. Return the first
    group that cannot be, and what is wrong with it.

    bounds:  int64 (groups + 1,), the bytes of each group in the data.
    """
    shape, ends = _find_shape(options), np.append(0, np.cumsum(packets.sizes))
    sizes = np.diff(ends[packets.bounds])
    if (wrong := sizes != np.diff(bounds)).any():
        group = int(np.argmax(wrong))
        return group, f"packets of {sizes[group]:,} bytes, in {np.diff(bounds)[group]:,}"
    order = np.lexsort((wanted.row, wanted.group))
    edges = np.searchsorted(wanted.group[order], np.arange(len(sizes) + 1))
    most = int(np.diff(edges).max(initial=0))
    if most * int(np.prod(shape)) > limits.decoded_chunk_bytes_max:
        return int(np.diff(edges).argmax()), f"{most:,} frames of {shape}: give shorter clips"
    if any(frames.shape[1:] != shape for frames in memory):
        raise ValueError(f"frames are {shape} after decoding")
    used, numbers = np.unique(packets.config, return_inverse=True)
    configs = [options["configs"][number] for number in used.tolist()]
    if options.get("layout") == "chw":
        memory = [frames.transpose(0, 2, 3, 1) for frames in memory]
    try:
        return find_pool().decode_pictures(
            data,
            bounds,
            packets.bounds,
            packets.sizes,
            packets.rows,
            numbers.reshape(-1),
            np.array([turns for *_, turns in configs], np.int64)[numbers.reshape(-1)],
            edges,
            wanted.row[order],
            wanted.place[order],
            [(_DECODERS.get(name, name), bytes.fromhex(given), []) for name, given, _ in configs],
            memory,
            "size" in options,
            len(os.sched_getaffinity(0)),
        )
    except RuntimeError as error:
        raise UsageError(str(error)) from None


def _find_shape(options: Mapping[str, Any]) -> tuple[int, ...]:
    height, width = options.get("size") or options["frame"]
    return (3, height, width) if options.get("layout") == "chw" else (height, width, 3)
