"""The convert folder."""

from __future__ import annotations

from .conversion import Converted, convert
from .manifest import locked

__all__ = [
    "Converted",
    "convert",
    "locked",
]
