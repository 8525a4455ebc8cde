"""Checkpoints that do not stop training: see `Checkpoints`, and docs/checkpoints.md."""

from __future__ import annotations

from . import shards
from .checkpoints import Checkpoints, CommittedSave, load
from .flushing import Flush, lay_out_pieces
from .folder import Folder
from .interval import Advice, Costs, Failures, advise_interval
from .loading import Checkpoint, verify_checkpoint
from .manifest import Piece
from .repositories import open_repository
from .repository import CheckpointEntry, Repository
from .staging import Staging
from .tiers import LocalTier

__all__ = [
    "Advice",
    "Checkpoint",
    "CheckpointEntry",
    "Checkpoints",
    "CommittedSave",
    "Costs",
    "Failures",
    "Flush",
    "Folder",
    "LocalTier",
    "Piece",
    "Repository",
    "Staging",
    "advise_interval",
    "lay_out_pieces",
    "load",
    "open_repository",
    "shards",
    "verify_checkpoint",
]
