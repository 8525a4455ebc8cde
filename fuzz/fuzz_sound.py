"""Tables of sound alone, without an index: ten times as many inputs a second as `audio`."""

from __future__ import annotations

import contextlib

import numpy as np

from fuzz.fuzz_audio import seeds as seeds
from penstock.engine.store import StoreFile
from penstock.errors import PenstockError
from penstock.index.formats.audio import parse_sound


def one(data: bytes) -> None:
    """Parse a file: its packets ascend, and lie in it."""
    source = StoreFile("/fuzz/x", len(data), lambda at, size: data[at : at + size], -1)
    with contextlib.suppress(PenstockError):
        track = parse_sound(source)
        assert track.rate > 0
        assert track.channels > 0
        assert len(track.at) == len(track.start) == len(track.since) + 1
        assert (np.diff(track.at) >= 0).all()
        assert (np.diff(track.start) >= 0).all()
        assert (track.since < np.arange(len(track.since)) + 1).all()
        assert track.at[0] >= 0
        end = int(track.at[-1])
        if track.runs is not None:
            first, offset = track.runs
            assert len(first) == len(offset) + 1
            end = int(np.max(offset + np.diff(first), initial=0))
        assert end <= len(data)
