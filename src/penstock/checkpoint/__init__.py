"""Checkpoints that do not stop training: see `Checkpoints`, and docs/checkpoints.md."""

from __future__ import annotations

from . import shards
from .checkpoints import Checkpoints, Saved, load
from .flushing import Flush, laid_out
from .folder import Folder
from .interval import Advice, Costs, Failures, advised
from .loading import Checkpoint, verified
from .manifest import Piece
from .repositories import home_of
from .repository import Entry, Home
from .staging import Staging
from .tiers import Tier

__all__ = [
    "Advice",
    "Checkpoint",
    "Checkpoints",
    "Costs",
    "Entry",
    "Failures",
    "Flush",
    "Folder",
    "Home",
    "Piece",
    "Saved",
    "Staging",
    "Tier",
    "advised",
    "home_of",
    "laid_out",
    "load",
    "shards",
    "verified",
]
