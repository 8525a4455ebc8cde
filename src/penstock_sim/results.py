"""Results of simulations: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .devices import Floats

SOURCES = ("storage", "peers", "local")
"""Sources of bytes: shared storage, the caches of other nodes, the node's own."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one policy in one scenario.

    scenario, policy, model:  their names.
    total_s:   time of the run, including the setup.
    setup_s:   time before the first step, in which caches are filled.
    epochs_s:  float64 (epochs,), time of each epoch, without the setup.
    stall_s:   float64 (epochs,), the part of it spent waiting for data.
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
