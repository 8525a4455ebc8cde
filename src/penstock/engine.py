"""Engines execute requests and report; they decide nothing.

An engine is given requests (extents with destinations, see `penstock.extent`) and the buffers
they go to, and reports each submission once, with the extents that failed. What to read and when
is the session's business; which system call reads it is `penstock.native`'s.

The life of a ticket: submit -> (reading, in any order, into the buffers) -> reported by poll.
Between submit and that report the buffers belong to the engine.

Every engine and every wrapper passes `penstock.testing.EngineSuite` unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .extent import Requests

Buffer = npt.NDArray[np.uint8]
"""A destination: one-dimensional, contiguous, writable, uint8."""


class Failure(NamedTuple):
    """An extent that did not arrive whole.

    extent:  its number within the submitted requests.
    errno:   the operating system's reason; 0 where the file ended early; ESTALE where the file's
             size or modification time is not that of the index.
    got:     bytes that did arrive.
    """

    extent: int
    errno: int
    got: int


class Completion(NamedTuple):
    """The report on one ticket: `failures` is empty when every byte arrived."""

    ticket: int
    failures: tuple[Failure, ...]


class Engine(Protocol):
    """Reads extents into buffers."""

    def submit(self, requests: Requests, buffers: Sequence[Buffer]) -> int:
        """Accept requests and return their ticket, a number that grows; never waits for storage.

        Raises UsageError where an extent is negative, its destination lies outside its buffer, or
        the engine is closed; nothing is read then.
        """
        ...

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report finished tickets, each once; wait up to `timeout_ns` while there are none.

        Returns at once, with an empty list, when no ticket is outstanding.
        """
        ...

    def close(self) -> None:
        """Drop what has not started, wait for what has, free everything. May be called again."""
        ...
