"""Samples out of packets of sound, by PyAV's decoders: no container is opened.

A decoder is given the packets from some way before a chunk's first sample on, so that it is in the
state that it would have if it had been given the file from its start. FFmpeg decodes without
Python's lock, each chunk by one thread.

Options: `configs`, a list of the decoder's name, what it is given, in hexadecimal, and how its
packets come: "" for one behind the other, "pages" of Ogg, "primed" if of the first page the last
packet alone is given, for the decoder's state; `channels`, `rate`, `dtype`; `whole`, for
files as one sample.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import missing_library
from .decoder_pool import DecoderPool
from .registry import CompressedChunk, Decoded

_PACKETS_AT_ONCE = 64
_pool = DecoderPool()
_turn = threading.Lock()
"""Held while pages are decoded: two threads that call FFmpeg for each short packet hand Python's
lock to each other at each, and are slower than one."""


def _make_decoder(name: str, config: str, channels: int, rate: int) -> Any:
    """Make a decoder of this name, configuration, channels and rate."""
    try:
        import av
    except ImportError:
        raise missing_library("av", "clips", "decoding sound") from None
    context: Any = av.CodecContext.create(name, "r")
    context.extradata = bytes.fromhex(config) or None
    if name == "flac":
        context.options = {"err_detect": "crccheck+explode"}  # it has checksums
    if not config:
        context.sample_rate = rate
        context.layout = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
    return context


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode a run of samples, (1, samples, channels); or a file, as the bytes of all of them."""
    inside, channels, dtype = compressed.inside, options["channels"], np.dtype(options["dtype"])
    name, config, packing = options["configs"][inside["config"]]
    kind = (name, config, channels, options["rate"])
    first, wanted = inside["place"], inside["frames"]
    room = inside.get("room", wanted)
    if room * channels * 8 > limits.decoded_chunk_bytes_max:
        raise ValueError(f"{room:,} samples of {channels} channels: give shorter clips")
    context = _pool.take(kind, partial(_make_decoder, *kind))
    import av

    try:
        if packing:
            with _turn:
                frames = _decode_pages(av, context, compressed, first + wanted, packing)
        else:
            frames = _decode_run(av, context, compressed)
    except av.FFmpegError as error:
        raise ValueError(f"FFmpeg's {name} decoder says {error.strerror}") from None
    samples = _join_frames(frames)[first : first + wanted]
    if samples.shape != (wanted, channels):
        raise ValueError(f"samples are {samples.shape}, not {(wanted, channels)}")
    if name != "aac":  # a used decoder goes on with its random numbers, for noise
        context.flush_buffers()
        _pool.give_back(kind, context)
    samples = _convert(samples, dtype)
    if options.get("whole"):
        return [np.ascontiguousarray(samples).reshape(-1).view(np.uint8).data]
    if room > wanted:
        samples = np.concatenate([samples, np.zeros((room - wanted, channels), dtype)])
    return samples[None]


_TYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "flt": "f4", "dbl": "f8"}
"""Numpy's name of FFmpeg's types of samples."""


def _join_frames(frames: Sequence[Any]) -> npt.NDArray[Any]:
    """Join what a decoder gave, (samples, channels); `to_ndarray` takes as long as decoding."""
    if not frames:
        raise ValueError("no sound comes out of it")
    dtype = np.dtype(_TYPES[frames[0].format.name.removesuffix("p")])
    each = 1 if frames[0].format.is_planar else frames[0].layout.nb_channels
    sizes = [frame.samples * each * dtype.itemsize for frame in frames]
    columns = [
        b"".join([memoryview(plane)[:size] for plane, size in zip(planes, sizes, strict=True)])
        for planes in zip(*(frame.planes for frame in frames), strict=True)
    ]
    arrays = [np.frombuffer(column, dtype).reshape(-1, each) for column in columns]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, 1)


def _convert(samples: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert samples to floats, where files of several types are read so."""
    if samples.dtype == dtype:
        return samples
    if dtype.kind != "f":
        raise ValueError(f"the decoder gives {samples.dtype}, and {dtype} was announced")
    full = 1 << (8 * samples.itemsize - 1) if samples.dtype.kind != "f" else 1
    shift = full if samples.dtype.kind == "u" else 0
    return ((samples.astype(np.float64) - shift) / full).astype(dtype)


def _decode_run(av: Any, context: Any, compressed: CompressedChunk) -> list[Any]:
    """Decode packets that are back to back, of which FFmpeg takes several as one; ValueError unless
    each gives a piece of sound."""
    data, sizes = compressed.data, compressed.inside["sizes"]
    edges = [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
    frames: list[Any] = []
    several = 1 if context.name in ("aac", "alac", "opus") else _PACKETS_AT_ONCE
    for first in range(0, len(sizes), several):
        last = min(first + several, len(sizes))
        frames += context.decode(av.Packet(data[edges[first] : edges[last]]))
        if len(frames) != last:
            raise ValueError(f"{last} packets give {len(frames)} pieces of sound")
    return frames


def _decode_pages(
    av: Any, context: Any, compressed: CompressedChunk, wanted: int, packing: str
) -> list[Any]:
    """Decode pages of Ogg up to the samples that are wanted; ValueError unless the packets of a
    page give as many as it says."""
    base = None if packing == "primed" else 0
    frames: list[Any] = []
    part, come, start = b"", 0, 0
    for size in compressed.inside["sizes"].tolist():
        page = bytes(compressed.data[start : start + size])
        packets, part = split_page(page, part)
        start += size
        told = int.from_bytes(page[6:14], "little", signed=True)
        if base is None:
            context.decode(av.Packet(packets[-1]))
            base = told
            continue
        for packet in packets:
            given = context.decode(av.Packet(packet))
            frames += given
            come += sum(frame.samples for frame in given)
            if come >= wanted:
                return frames
        if packets and come != told - base:
            what = f"packets give {come:,} samples up to a page's end"
            raise ValueError(f"{what}, where it says {told - base:,}")
    return frames


def split_page(page: bytes, part: bytes) -> tuple[list[bytes], bytes]:
    """Split a page of Ogg into the packets that end in it, and the beginning of one that does not.

    part:  the beginning that the page before has left.
    """
    at = start = 27 + page[26]
    packets = []
    if not page[5] & 1:
        part = b""
    for segment in page[27:start]:
        at += segment
        if segment < 255:
            packets.append(part + page[start:at])
            part, start = b"", at
    return packets, part + page[start:at]
