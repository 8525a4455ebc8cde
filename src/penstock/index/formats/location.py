"""The place that was opened: a folder, a file or patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["folder", "file", "pattern"]


@dataclass(frozen=True, slots=True)
class Location:
    """Location that was opened: the store's root itself, one file in it, or patterns below it.

    names:  the patterns, relative to the root as `name` is; a list of files is several patterns.
    path:   the path as the caller gave it, for messages.
    """

    kind: Kind
    name: str
    path: str
    names: tuple[str, ...] = ()
