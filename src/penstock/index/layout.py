"""Layouts: the place of each sample of one field. Kinds have one interface.

    Fixed     records of one size: arithmetic, no memory.
    RowTable  one extent a sample.
    Pieces    several extents a sample, laid end to end.
    Boxes     the same by arithmetic: windows of an array (see `windows`).
    Chunked   samples inside compressed chunks, to be decoded first.
    Windowed  samples that meet several chunks each: windows of an array, or clips (see `clips`).

A *unit* is read as a whole: a sample, or a compressed chunk of many samples. All layouts give the
bytes and the extents of units. Only for `Chunked` and `Windowed` are units not the samples.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..extent import Files
from .chunked import Chunked as Chunked
from .chunked import Packets as Packets
from .chunked import Windowed as Windowed
from .chunked import Windows as Windows
from .clips import ClipCut, FrameCut
from .clips import Clips as Clips
from .extent_tables import PIECES
from .extent_tables import Fixed as Fixed
from .extent_tables import Pieces as Pieces
from .extent_tables import RowTable as RowTable
from .windows import Boxes as Boxes
from .windows import FileGrids, WindowGrid, take_column

Layout = Fixed | RowTable | Pieces | Boxes | Chunked


def rebuild_layout(
    described: Mapping[str, Any],
    prefix: str,
    sections: Mapping[str, npt.NDArray[Any]],
    files: Files,
    same: Layout | None = None,
) -> Layout:
    """Rebuild the layout of a saved index; builtin errors if it does not fit.

    same:  layout of another field, of windows of the same chunks.
    """
    get = functools.partial(take_column, sections)
    if isinstance(same, Windows):
        grid = WindowGrid.rebuild(described["windows"], same.grid.files)
        return replace(same, grid=grid, chunk=tuple(map(int, described["chunk"])))
    own = FileGrids.rebuild(prefix, sections)
    if described.get("chunks") is not None:
        chunks = rebuild_layout(described["chunks"], prefix, sections, files)
        assert isinstance(chunks, RowTable | Pieces)
        first = get(f"{prefix}.chunks.first", np.int64)
        packets = Packets.rebuild(prefix, sections)
        if "frame" in described:
            kind, shape = ClipCut if "clips" in described else FrameCut, described["frame"]
            cut = kind.rebuild(described, prefix, sections)
            return Clips(first, chunks, cut, tuple(map(int, shape)), packets=packets)
        if (windows := described.get("windows")) is None:
            return Chunked(first, chunks, packets=packets)
        chunk, in_files = tuple(map(int, described["chunk"])), None
        if own is not None:
            in_files = get(f"{prefix}.in_files", np.int64).reshape(own.shape.shape)
        grid = WindowGrid.rebuild(windows, own)
        return Windows(first, chunks, grid, chunk, in_files, packets=packets)
    if (boxes := described.get("boxes")) is not None:
        first, base = get(f"{prefix}.first", np.int64), get(f"{prefix}.base", np.int64)
        return Boxes(WindowGrid.rebuild(boxes, own), first, base, int(described["itemsize"]))
    if described["record_bytes"] is not None:
        first, base = get(f"{prefix}.first", np.int64), get(f"{prefix}.base", np.int64)
        stride_bytes = int(described.get("stride_bytes", 0))
        return Fixed(first, base, int(described["record_bytes"]), stride_bytes)
    if described.get("pieces"):
        return Pieces(*(get(f"{prefix}.{name}", dtype) for name, dtype in PIECES.items()))
    has = sections.__contains__
    file = get(f"{prefix}.file", np.uint32) if has(f"{prefix}.file") else None
    length = get(f"{prefix}.length", np.int64) if has(f"{prefix}.length") else files.size
    if file is not None and len(file) == 1:  # that of all samples: it takes no memory for each
        file = np.broadcast_to(file, len(length))
    return RowTable(
        file, get(f"{prefix}.offset", np.int64) if has(f"{prefix}.offset") else None, length
    )
