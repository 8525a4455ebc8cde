"""The convert folder."""

from __future__ import annotations

from .conversion import Converted, convert
from .manifest import lock_folder

__all__ = [
    "Converted",
    "convert",
    "lock_folder",
]
