"""The cli folder."""

from __future__ import annotations

from .app import main
from .bench import main

__all__ = [
    "main",
]
