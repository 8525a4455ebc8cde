"""The state of a job, saved behind training and committed whole or not at all: see `Checkpoints`,
and docs/checkpoints.md.

A *save* copies the state of all ranks into *staging* memory while training waits. A thread behind
training then writes each rank's part as a *shard* and *commits* the *index* that names all shards;
only a committed save is a *checkpoint*. The *repository* is the place where checkpoints are
committed: a folder of a file system, or a prefix of an object store. A save may be *held* on
*tiers* of the hosts (their memory and disks) until a thread has *drained* it to the repository. A
checkpoint consists of *pieces* with checksums; a damaged byte is an error that names file and
piece, never silent data.

This folder writes and reads bytes of states. It must not know what a state means: models,
optimizers and data loaders reach it as containers of arrays and numbers, and torch is imported only
if a state holds its tensors. It knows nothing of plans, caches or the loader; storage requests of
training do not pass through it. It may use the budget, the sharing of storage bandwidth between
jobs (`penstock.sharing`), and the object client of `penstock.engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from . import shards as shards
    from .checkpoints import Checkpoints as Checkpoints
    from .interval import Costs as Costs
    from .interval import Failures as Failures
    from .interval import advise_interval as advise_interval
    from .loading import Checkpoint as Checkpoint
    from .loading import load as load
    from .manifest import Piece as Piece
    from .repository import Folder as Folder
    from .shards import Flush as Flush
    from .shards import lay_out_pieces as lay_out_pieces
    from .staging import Staging as Staging
    from .tiers import LocalTier as LocalTier
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "checkpoints": "Checkpoints",
            "interval": "Costs Failures advise_interval",
            "loading": "Checkpoint load",
            "manifest": "Piece",
            "repository": "Folder",
            "shards": "shards Flush lay_out_pieces",
            "staging": "Staging",
            "tiers": "LocalTier",
        },
    )
