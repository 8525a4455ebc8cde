"""File object over a file of a store, for libraries that read files."""

from __future__ import annotations

import functools
import io
from typing import Any

from ...engine.store import StoreFile
from ...errors import PenstockError

_BLOCK_BYTES = 1 << 18
_BLOCKS_KEPT = 64


class BlockFile(io.RawIOBase):
    """File object for h5py and zipfile: read in blocks, of which the latest are kept.

    error:  error of the store: a library may make another of it.
    """

    def __init__(self, source: StoreFile) -> None:
        super().__init__()
        self.size, self.at = source.size, 0
        self.error: PenstockError | None = None

        @functools.lru_cache(_BLOCKS_KEPT)
        def read_block(number: int) -> bytes:
            start = number * _BLOCK_BYTES
            return source.read(start, max(0, min(_BLOCK_BYTES, source.size - start)))

        self._read_block = read_block

    def readinto(self, target: Any) -> int:
        """Fill `target` from the current place."""
        try:
            view, done = memoryview(target).cast("B"), 0
            while done < len(view):
                number, inside = divmod(self.at + done, _BLOCK_BYTES)
                piece = self._read_block(number)[inside : inside + len(view) - done]
                if not piece:
                    break
                view[done : done + len(piece)] = piece
                done += len(piece)
            self.at += done
            return done
        except PenstockError as error:
            self.error = error
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place, from the start, the current place or the end."""
        place = offset + (0, self.at, self.size)[whence]
        if place < 0:
            raise OSError(f"byte {place} is before the start of the file")
        self.at = place
        return self.at

    def tell(self) -> int:
        """Return the current place."""
        return self.at
