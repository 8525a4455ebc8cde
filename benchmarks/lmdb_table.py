"""Where the values of an LMDB file lie, until penstock reads LMDB by itself. Key order."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import penstock
from penstock.formats import FORMATS
from penstock.index import Field, Index, Table
from penstock.store import Posix

PAGE = 4096


def opened(path: str, **options: str) -> penstock.Dataset:
    """The samples of an LMDB file."""
    if "lmdb" in FORMATS:
        return penstock.open(path, format="lmdb", **options)
    folder, name = os.path.split(path)
    saved = Path(path + ".npy")
    table = np.load(saved) if saved.exists() else walked(path)
    if not saved.exists() and os.access(folder, os.W_OK):
        np.save(saved, table)
    files = Posix(folder).stat([name])
    offset, length = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])
    layout = Table(np.zeros(len(table), np.uint32), offset, length)
    field = Field("data", np.dtype("u1"), (int(length[0]),))
    return penstock.Dataset(path, Index("lmdb", files, (field,), (layout,), files))


def walked(path: str) -> np.ndarray:
    data = Path(path).read_bytes()

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    metas = [16, PAGE + 16]
    live = max(metas, key=lambda at: number(at + 128, 8))
    found: list[tuple[int, int]] = []
    stack = [number(live + 72 + 40, 8)]
    while stack:
        page = stack.pop() * PAGE
        flags, lower = number(page + 10, 2), number(page + 12, 2)
        nodes = [page + number(page + 16 + 2 * i, 2) for i in range((lower - 16) // 2)]
        if flags & 1:
            stack += [number(at, 6) for at in reversed(nodes)]
            continue
        for at in nodes:
            payload = at + 8 + number(at + 6, 2)
            big = number(at + 4, 2) & 1
            found.append((number(payload, 8) * PAGE + 16 if big else payload, number(at, 4)))
    return np.array(found, np.int64)
