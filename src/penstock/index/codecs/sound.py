"""Samples out of packets of sound, by FFmpeg's decoders: no container is opened.

A decoder is given the packets from some way before a chunk's first sample on, so that it is in the
state that it would have if it had been given the file from its start. The core does so without
Python's lock, each chunk by one thread.

Options: `configs`, a list of the decoder's name, what it is given, in hexadecimal, and how its
packets come: "" for one behind the other, "pages" of Ogg, "primed" if of the first page the last
packet alone is given, for the decoder's state; `channels`, `rate`, `dtype`; `whole`, for
files as one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import limits
from ...errors import UsageError
from .decoder_pool import find_pool
from .registry import CompressedChunk, Decoded


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode a run of samples, (1, samples, channels); or a file, as the bytes of all of them."""
    inside, channels = compressed.inside, options["channels"]
    packets = inside["packets"]
    name, config, packing = options["configs"][int(packets.config[0])]
    shape = inside["frames"], channels
    if shape[0] * channels * 8 > limits.decoded_chunk_bytes_max:
        raise ValueError(f"{shape[0]:,} samples of {channels} channels: give shorter clips")
    samples = np.empty(shape, options["dtype"])
    try:
        find_pool().decode_samples(
            (name, bytes.fromhex(config), _list_options(name, config, channels, options["rate"])),
            np.frombuffer(compressed.data, np.uint8),
            packets.sizes,
            packing,
            inside["place"],
            samples,
        )
    except RuntimeError as error:
        raise UsageError(str(error)) from None
    return [samples.reshape(-1).view(np.uint8).data] if options.get("whole") else samples[None]


def _list_options(name: str, config: str, channels: int, rate: int) -> list[tuple[str, str]]:
    """List what FFmpeg's decoder is told."""
    told = [("err_detect", "crccheck+explode")] if name == "flac" else []  # it has checksums
    if not config:
        layout = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
        told += [("ar", str(rate)), ("ch_layout", layout)]
    return told
