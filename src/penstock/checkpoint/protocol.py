"""The protocol of checkpoints: the classes and functions that a driver needs to run it. `actions`
says who decides what; `Checkpoints` is one driver, `tests.virtual` another."""

from __future__ import annotations

from .all_gather import Ranks
from .drain import Drain, finish_save
from .folder_steps import FolderSteps
from .loading import load_entry, load_steps
from .manifest import Attempt
from .prefix_steps import PrefixSteps
from .recovery import lock_repository, open_tiers
from .save import Save, SaveTarget
from .snapshot import Fence, StateSnapshot, divide_state
from .staging import Staging

__all__ = [
    "Attempt",
    "Drain",
    "Fence",
    "FolderSteps",
    "PrefixSteps",
    "Ranks",
    "Save",
    "SaveTarget",
    "Staging",
    "StateSnapshot",
    "divide_state",
    "finish_save",
    "load_entry",
    "load_steps",
    "lock_repository",
    "open_tiers",
]
