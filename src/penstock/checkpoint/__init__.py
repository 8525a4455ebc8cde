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

from . import manifest, shards
from .checkpoints import Checkpoints
from .flushing import Flush, lay_out_pieces
from .folder_repository import Folder
from .interval import Advice, Costs, Failures, advise_interval
from .loading import Checkpoint, load, open_repository, verify_checkpoint
from .manifest import Piece
from .repository import CheckpointEntry, Repository
from .save import CommittedSave
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
    "manifest",
    "open_repository",
    "shards",
    "verify_checkpoint",
]
