"""Record of an epoch as one rank saw it, by which simulations are calibrated. Pure functions."""

from __future__ import annotations

from ..meter import Counters

SOURCES = {
    "storage_bytes": "bytes",
    "ram_bytes": "ram_bytes",
    "disk_bytes": "disk_bytes",
    "peer_bytes": "peer_bytes",
}
"""Keys of an epoch, and the engine's counters that they come from.

storage_bytes are all bytes that this rank read from storage: for batches, for its cache and for
other ranks. The other three are bytes of batches.
"""


def record_epoch(epoch: int, walked: Counters) -> dict[str, float]:
    """Return an epoch's record as JSON values.

    walked:  counters from the beginning of the epoch until the user found it at its end.
    """
    record: dict[str, float] = {
        "epoch": epoch,
        "steps": walked.batches,
        "seconds": 1e-9 * walked.time_ns,
        "stall_s": 1e-9 * walked.stall_ns,
        "compute_s": 1e-9 * walked.compute_ns,
    }
    for name, counter in SOURCES.items():
        record[name] = walked.engine.get(counter, 0)
    return record
