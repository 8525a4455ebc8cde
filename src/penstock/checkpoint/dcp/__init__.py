"""Storage of torch.distributed.checkpoint, written behind training: see docs/checkpoints.md."""

from __future__ import annotations

from .reading import Reader
from .storage import Storage

__all__ = ["Reader", "Storage"]
