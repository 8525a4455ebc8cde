"""What a simulation found: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .devices import Floats

SOURCES = ("storage", "peers", "local")
"""Where bytes come from: shared storage, the caches of other nodes, the node's own."""


@dataclass(frozen=True, slots=True)
class Result:
    """One policy in one scenario.

    scenario, policy, model:  their names.
    total_s:   the run's time, setup and all.
    setup_s:   before the first step: caches that are filled beforehand.
    epochs_s:  float64 (epochs,), how long each took; without the setup.
    stall_s:   float64 (epochs,), how much of that was spent waiting for data.
    moved_mb:  float64 (epochs, 3), MB read in each epoch, by `SOURCES`. Reading ahead counts where
               it is asked for (parity) or due (corrected); the setup's reading is in the first row.
    notes:     counters of one model only.

    Equal inputs give equal results, to the last bit, on every machine of one architecture.
    """

    scenario: str
    policy: str
    model: str
    total_s: float
    setup_s: float
    epochs_s: Floats
    stall_s: Floats
    moved_mb: Floats
    notes: dict[str, Any]
