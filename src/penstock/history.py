"""What the epochs of a run took, as one rank saw them: what a simulation is calibrated with. Pure.

Times are nanoseconds of one clock, which the caller reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SOURCES = {
    "storage_bytes": "bytes",
    "ram_bytes": "ram_bytes",
    "disk_bytes": "disk_bytes",
    "peer_bytes": "peer_bytes",
}
"""Keys of an epoch, and the counters of an engine that they come from. storage_bytes are all that
this rank read from storage, for batches, to keep, and for others; the other three are bytes of
batches."""


@dataclass(slots=True)
class Walk:
    """One walk through an epoch.

    A step is `next` and what the user does until the next `next`. The latter is computing, as far
    as a loader can tell.
    """

    epoch: int
    begun_ns: int
    counters: Mapping[str, int]  # of the engine, at the beginning
    _given_ns: int | None = None
    _steps: int = field(default=0, init=False)
    _stall_ns: int = field(default=0, init=False)
    _compute_ns: int = field(default=0, init=False)

    def asked(self, now_ns: int) -> None:
        """The user asks for a batch, or for one after the last."""
        if self._given_ns is not None:
            self._compute_ns += now_ns - self._given_ns

    def given(self, now_ns: int, stall_ns: int) -> None:
        """A batch goes to the user, who waited for it."""
        self._given_ns = now_ns
        self._steps += 1
        self._stall_ns += stall_ns

    def ended(self, now_ns: int, counters: Mapping[str, int]) -> dict[str, float]:
        """The epoch, for a record: JSON values. Called when the user has asked in vain."""
        found: dict[str, float] = {
            "epoch": self.epoch,
            "steps": self._steps,
            "seconds": 1e-9 * (now_ns - self.begun_ns),
            "stall_s": 1e-9 * self._stall_ns,
            "compute_s": 1e-9 * self._compute_ns,
        }
        for name, counter in SOURCES.items():
            found[name] = counters.get(counter, 0) - self.counters.get(counter, 0)
        return found
