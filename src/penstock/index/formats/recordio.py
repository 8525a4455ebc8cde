"""MXNet RecordIO: records of any length, cut in parts where their data hold the magic.

The magic that was cut out follows each part but the last. A piece four bytes longer than its part
contains it, so that records are read as they were written. `label="header"` reads the image header
(IRHeader: flag, label, id, id2; 24 bytes) that im2rec puts before each image. The header is then
left out of the field, unless `header="keep"`. A `.idx` file beside is not needed and not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import FormatError
from ...extent import Files, Int
from ..fields import Field
from ..layout import Layout
from ..table import Index
from . import options, shards
from .shards import Scan

_MAGIC = (0xCED7230A).to_bytes(4, "little")


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    label = options.one_of("header", is_kept=True)
    header = options.one_of("keep", "strip", is_kept=True)
    return options.normalize(given, label=label, header=header, extensions=options.EXTENSIONS)


def sniff(head: bytes, name: str) -> bool:
    """True if a file begins with the magic of a record, or is an empty .rec file."""
    return head.startswith(_MAGIC) or (not head and name.lower().endswith(".rec"))


def build(
    scan: Scan,
    label: str | None = None,
    header: str | None = None,
    extensions: Sequence[str] = (".rec",),
) -> Index:
    """The index of all records of the files, in their order."""
    strip = header == "strip" if header is not None else label is not None
    files, sources = scan.list_files(extensions)
    walked = scan.parse(
        files, lambda _, source: source.walk("recordio", header=label is not None, strip=strip)
    )
    offsets, lengths = ([records[side] for records in walked] for side in ("offset", "length"))
    counts = np.concatenate([np.diff(records["first"]) for records in walked])
    shards.check_any(files, len(counts), "records")
    layout: Layout = shards.lay_out_extents(offsets, lengths)
    if (counts != 1).any():
        layout = shards.lay_out_pieces(counts, offsets, lengths)
    field = Field("data", np.dtype(np.uint8), None)
    labels = _convert_labels(files, walked) if label is not None else None
    return Index("recordio", files, (field,), (layout,), sources, label_column=labels)


def _convert_labels(files: Files, walked: list[dict[str, Any]]) -> Int:
    columns = []
    for file, records in enumerate(walked):
        label, flag = records["label"], records["flag"]
        with np.errstate(invalid="ignore"):
            whole = np.where(np.isfinite(label) & (np.abs(label) < 2**62), label, 0.5)
        wrong = (flag > 0) | (whole != np.floor(whole))
        for row in np.flatnonzero(wrong)[:1]:
            has = f"{flag[row]:,} labels" if flag[row] else f"the label {label[row]}"
            raise FormatError(f"{files.path(file)}: record {row:,} has {has}: leave label= out")
        columns.append(label.astype(np.int64))
    return np.concatenate(columns)
