"""What the epochs of a run took, as one rank saw them: what simulations go by. Pure."""

from __future__ import annotations

from ..meter import Counters

SOURCES = {
    "storage_bytes": "bytes",
    "ram_bytes": "ram_bytes",
    "disk_bytes": "disk_bytes",
    "peer_bytes": "peer_bytes",
}
"""Keys of an epoch, and the counters of an engine that they come from. storage_bytes are all that
this rank read from storage, for batches, to keep, and for others; the other three are bytes of
batches."""


def record_epoch(epoch: int, walked: Counters) -> dict[str, float]:
    """An epoch for a record, JSON values; `walked` is what was counted from its beginning until the
    user asked in vain."""
    found: dict[str, float] = {
        "epoch": epoch,
        "steps": walked.batches,
        "seconds": 1e-9 * walked.time_ns,
        "stall_s": 1e-9 * walked.stall_ns,
        "compute_s": 1e-9 * walked.compute_ns,
    }
    for name, counter in SOURCES.items():
        found[name] = walked.engine.get(counter, 0)
    return found
