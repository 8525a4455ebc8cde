"""Reader of flatbuffers, the metadata of Arrow files. Every position is checked.

A table starts with the signed distance back to its vtable. The vtable holds its own length, the
table's, and the place of each slot in the table (0: the default). Everything else is reached by
unsigned distances forward, so that nothing can contain itself. ValueError if bytes are missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class FlatTable:
    """One table of a buffer."""

    __slots__ = ("_at", "_data", "_slots")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        vtable = at - _read_integer(data, at, 4, True)
        size = _read_integer(data, vtable, 2)
        if size < 4 or size % 2 or vtable + size > len(data):
            raise ValueError(f"a vtable of {size} bytes at {vtable}")
        self._slots = np.frombuffer(data, "<u2", size // 2, vtable).tolist()

    @classmethod
    def root(cls, data: bytes) -> FlatTable:
        """Return the root table of a buffer."""
        return cls(data, _read_integer(data, 0, 4))

    def _place(self, slot: int) -> int:
        """Return the place of a slot's value; 0 if it has the default."""
        slots = self._slots
        if slot + 2 >= len(slots) or not slots[slot + 2]:
            return 0
        return int(self._at + slots[slot + 2])

    def integer(self, slot: int, size: int, default: int = 0) -> int:
        """Return a signed integer of `size` bytes."""
        place = self._place(slot)
        return _read_integer(self._data, place, size, True) if place else default

    def table(self, slot: int) -> FlatTable | None:
        """Return a table, or None."""
        place = self._place(slot)
        return FlatTable(self._data, place + _read_integer(self._data, place, 4)) if place else None

    def _vector(self, slot: int, itemsize: int) -> tuple[int, int]:
        """Return the start of a vector's elements, and their number."""
        place = self._place(slot)
        if not place:
            return 0, 0
        start = place + _read_integer(self._data, place, 4)
        count = _read_integer(self._data, start, 4)
        if start + 4 + count * itemsize > len(self._data):
            raise ValueError(f"a vector of {count:,} elements at {start}")
        return start + 4, count

    def tables(self, slot: int) -> list[FlatTable]:
        """Return a vector of tables."""
        start, count = self._vector(slot, 4)
        places = range(start, start + 4 * count, 4)
        return [
            FlatTable(self._data, place + _read_integer(self._data, place, 4)) for place in places
        ]

    def text(self, slot: int) -> str:
        """Return a string; bytes that are not UTF-8 are replaced."""
        start, count = self._vector(slot, 1)
        return self._data[start : start + count].decode("utf-8", "replace")

    def structs(self, slot: int, dtype: Any) -> npt.NDArray[Any]:
        """Return a vector of structs or numbers."""
        start, count = self._vector(slot, np.dtype(dtype).itemsize)
        return np.frombuffer(self._data, dtype, count, start)


def _read_integer(data: bytes, at: int, size: int, signed: bool = False) -> int:
    if at < 0 or at + size > len(data):
        raise ValueError(f"{size} bytes at {at}, outside of {len(data):,}")
    return int.from_bytes(data[at : at + size], "little", signed=signed)
