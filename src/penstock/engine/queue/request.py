"""A request as a value: the bytes of a file, their purpose, and the time of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ...errors import UsageError

Kind = Literal["read", "write"]
Purpose = Literal["demand", "prefetch", "sweep", "checkpoint", "convert"]
"""Purpose of the bytes, the most urgent first.

demand: a rank is waiting for them. prefetch: a rank will want them. sweep: the cache is filled.
checkpoint: a snapshot is written. convert: a dataset is written in another form.
"""
_PURPOSES = get_args(Purpose)  # asked for once a submission
Hazard = Literal["read after write", "write after write", "write after read"]


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes [offset, offset + length) of a file, to be read or written.

    id:           chosen by the caller, unique among requests that are not done.
    file:         its number.
    arrived_ns:   time of arrival, on a clock that never goes back.
    deadline_ns:  time from which it is late; None for never.
    step:         step that needs the bytes; None for no step. Decides between equals.
    holders:      numbers of the targets that can serve it; () for all of them.

    Not to be confused with `extent.Requests`, the columns of one submission to an engine: one
    request here may be all extents of a run there. Raises UsageError if a field has any
    other value.
    """

    id: int
    kind: Kind
    purpose: Purpose
    file: int
    offset: int
    length: int
    arrived_ns: int
    deadline_ns: int | None = None
    step: int | None = None
    holders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(f"Request.kind is {self.kind!r}: use one of {_list_values(Kind)}")
        check_purpose(self.purpose, "Request.purpose")
        for name in ("id", "file", "offset", "length", "arrived_ns"):
            _check_whole(name, getattr(self, name))
        for name in ("deadline_ns", "step"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name))
        if self.end > 1 << 63:
            raise UsageError(f"Request {self.id} ends at {self.end}: stay below 2^63")
        if not isinstance(self.holders, tuple):
            raise UsageError(f"Request.holders is {self.holders!r}: use a tuple of target numbers")
        for number in self.holders:
            _check_whole("holders", number)

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length


def check_purpose(purpose: object, where: str = "purpose") -> None:
    """Raise UsageError naming `where` unless the purpose exists."""
    if purpose not in _PURPOSES:
        raise UsageError(f"{where} is {purpose!r}: use one of {', '.join(_PURPOSES)}")


def _check_whole(name: str, value: object) -> None:
    if type(value) is not int or value < 0:
        raise UsageError(f"Request.{name} is {value!r}: use a whole number of 0 or above")


def _list_values(literal: object) -> str:
    return ", ".join(get_args(literal))


def find_hazard(earlier: Request, later: Request) -> Hazard | None:
    """Return why the later request must wait until the earlier one is done; None if it need not."""
    if earlier.file != later.file:
        return None
    if max(earlier.offset, later.offset) >= min(earlier.end, later.end):
        return None
    if later.kind == "read":
        return "read after write" if earlier.kind == "write" else None
    return "write after write" if earlier.kind == "write" else "write after read"


def split_request(request: Request, piece_bytes: int) -> Iterator[Request]:
    """Yield the request in pieces of at most `piece_bytes`, ascending; each keeps its id."""
    if request.length <= piece_bytes:
        yield request
        return
    for offset in range(request.offset, request.end, piece_bytes):
        length = min(piece_bytes, request.end - offset)
        yield replace(request, offset=offset, length=length)
