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

import itertools
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import missing_library
from .registry import CompressedChunk, Decoded

_PACKETS_AT_ONCE = 64
_idle: list[tuple[tuple[Any, ...], Any]] = []
"""Decoders that wait for work, by what they were given; the newest comes last."""
_lock = threading.Lock()


def _take_decoder(kind: tuple[Any, ...]) -> Any:
    """Take a decoder of this name, configuration, channels and rate, or make one."""
    with _lock:
        for place in reversed(range(len(_idle))):
            if _idle[place][0] == kind:
                return _idle.pop(place)[1]
    try:
        import av
    except ImportError:
        raise missing_library("av", "clips", "decoding sound") from None
    name, config, channels, rate = kind
    context: Any = av.CodecContext.create(name, "r")
    context.extradata = bytes.fromhex(config) or None
    if name == "flac":
        context.options = {"err_detect": "crccheck+explode"}  # it has checksums
    if not config:
        context.sample_rate = rate
        context.layout = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
    return context


def _give_back(kind: tuple[Any, ...], context: Any) -> None:
    """Let a decoder wait for work; of too many, the one that has waited longest is dropped."""
    context.flush_buffers()
    with _lock:
        _idle.append((kind, context))
        del _idle[: -limits.idle_decoders_max]


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode a run of samples, (1, samples, channels); or a file, as the bytes of all of them."""
    inside, channels = compressed.inside, options["channels"]
    name, config, packing = options["configs"][inside["config"]]
    kind = (name, config, channels, options["rate"])
    wanted, at = inside["frames"], -inside["place"]
    room = inside.get("room", wanted)
    if room * channels * 8 > limits.decoded_chunk_bytes_max:
        raise ValueError(f"{room:,} samples of {channels} channels: give shorter clips")
    sound = np.zeros((1, room, channels), options["dtype"])
    context = _take_decoder(kind)
    import av

    try:
        for samples in _decode_packets(av, context, packing, compressed):
            if samples.shape[1] != channels:
                raise ValueError(f"{samples.shape[1]} channels, and the header says {channels}")
            low, high = max(at, 0), min(at + len(samples), wanted)
            if low < high:
                sound[0, low:high] = _convert(samples[low - at : high - at], sound.dtype)
            at += len(samples)
            if at >= wanted:
                break
    except av.FFmpegError as error:
        raise ValueError(f"FFmpeg's {name} decoder says {error.strerror}") from None
    if at < wanted:
        raise ValueError(f"{wanted - at:,} samples of {wanted:,} are missing")
    _give_back(kind, context)
    return [sound.reshape(-1).view(np.uint8).data] if options.get("whole") else sound


def _convert(samples: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert samples, where files of several types are read as floats."""
    if samples.dtype == dtype:
        return samples
    if dtype.kind != "f":
        raise ValueError(f"the decoder gives {samples.dtype}, and {dtype} was announced")
    if samples.dtype.kind == "f":
        return samples.astype(dtype)
    full = 1 << (8 * samples.itemsize - 1)
    shift = full if samples.dtype.kind == "u" else 0
    return ((samples.astype(np.float64) - shift) / full).astype(dtype)


def _decode_packets(
    av: Any, context: Any, packing: str, compressed: CompressedChunk
) -> Iterator[npt.NDArray[Any]]:
    """Yield what comes out of a chunk's packets that counts, as (samples, channels) each.

    ValueError unless each packet gives one piece, or a page as many samples as it says.
    """
    data, sizes = compressed.data, compressed.inside["sizes"]
    edges = [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
    if edges[-1] != len(data):
        raise ValueError(f"packets of {edges[-1]:,} bytes, in {len(data):,}")
    if not packing:
        # FFmpeg takes several frames of FLAC or MP3 as one packet: fewer calls.
        for first in range(0, len(sizes), _PACKETS_AT_ONCE):
            last = min(first + _PACKETS_AT_ONCE, len(sizes))
            frames = context.decode(av.Packet(data[edges[first] : edges[last]]))
            if len(frames) != last - first:
                raise ValueError(f"{last - first} packets give {len(frames)} pieces of sound")
            yield from map(_view_frame, frames)
        return
    base = None if packing == "primed" else 0
    part, come = b"", 0
    for start, end in itertools.pairwise(edges):
        packets, part = split_page(bytes(data[start:end]), part)
        granule, is_last = struct.unpack_from("<q", data, start + 6)[0], data[start + 5] & 4
        if base is None:
            context.decode(av.Packet(packets[-1]))
            base = granule
            continue
        for packet in packets:
            for frame in context.decode(av.Packet(packet)):
                samples = _view_frame(frame)
                come += len(samples)
                yield samples
        if packets and not (come >= granule - base if is_last else come == granule - base):
            what = f"packets give {come:,} samples up to a page's end"
            raise ValueError(f"{what}, where it says {granule - base:,}")


_TYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "flt": "f4", "dbl": "f8"}
"""Numpy's name of FFmpeg's types of samples."""


def _view_frame(frame: Any) -> npt.NDArray[Any]:
    """View what a decoder gave as (samples, channels); `to_ndarray` takes as long as decoding."""
    name, planes, count = frame.format.name, frame.planes, frame.samples
    dtype = _TYPES[name.removesuffix("p")]
    if len(planes) > 1:
        return np.stack([np.frombuffer(plane, dtype, count) for plane in planes], 1)
    channels = frame.layout.nb_channels
    return np.frombuffer(planes[0], dtype, count * channels).reshape(count, channels)


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
