"""Checkpoints that do not stop training: see `Checkpoints`, and docs/checkpoints.md."""

from __future__ import annotations

from .checkpoints import Checkpoints, Saved, load
from .interval import Advice
from .loading import Checkpoint
from .tiers import Tier

__all__ = ["Advice", "Checkpoint", "Checkpoints", "Saved", "Tier", "load"]
