"""Actions that the session of a cache asks its driver to perform (`cache_session`). Pure.

An action is a value. The driver performs it, and tells the session what came of it by the method of
`CacheSession` that the action names as its answer, or by `fail` if it could not perform it at all.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..extent import Int
from .cache_keys import Keys

READY, MINE, BUSY, LEFT_OUT = 0, 1, 2, 3
"""States of a slot that claiming it gives.

READY: it is ready. MINE: it is the caller's, from now on, to publish or abandon. BUSY: it
has another claim, of another rank or of this one. LEFT_OUT: it is not kept and will not be.
"""


class NodeTier(Enum):
    """Tier of a node that keeps cache blocks."""

    RAM = "ram"
    DISK = "disk"


class RowFailure(NamedTuple):
    """A key of a step that storage did not give: its row, the reason, and the bytes that came."""

    row: int
    errno: int
    got: int


class Want(NamedTuple):
    """Keys that a step or a peer wants of one tier.

    ticket:  of the step; None for a peer.
    rows:    of these keys in the step, or in the peer's request.
    slots:   the tier's own, of each key.
    """

    number: int
    ticket: int | None
    tier: NodeTier
    rows: Int
    keys: Keys
    slots: Int
    cache_blocks: Keys


class ClaimSlots(NamedTuple):
    """Claim slots of a tier. Answer: `take_claims`."""

    want: int
    tier: NodeTier
    slots: Int


class AllocateRoom(NamedTuple):
    """Take room in the node's memory for cache blocks. Answer: `take_room`."""

    load: int
    size: Int


class LoadBlocks(NamedTuple):
    """Read cache blocks from storage: into the node's memory at these offsets, or one after the
    other into a buffer for the disk: the source `load`. Answer: `take_load`.

    ticket:  of the step for which they are read; None for a peer.
    """

    load: int
    ticket: int | None
    tier: NodeTier
    cache_blocks: Keys
    slots: Int
    at: Int
    size: Int


class PublishSlots(NamedTuple):
    """Make slots of the node's memory ready."""

    slots: Int
    at: Int
    size: Int


class AbandonSlots(NamedTuple):
    """Give claims of slots back."""

    tier: NodeTier
    slots: Int


class WriteDisk(NamedTuple):
    """Write cache blocks of a source to the disk. Answer: `take_write`."""

    source: int
    slots: Int


class ReadDisk(NamedTuple):
    """Read cache blocks from the disk into a source. Answer: `take_disk_read`."""

    source: int
    slots: Int
    size: Int


class ReleaseSource(NamedTuple):
    """Free the memory of a source."""

    source: int


class CopyKeys(NamedTuple):
    """Copy those wanted keys that are there into the step's buffers. Answer: `take_copy`.

    sources:  that hold cache blocks of the disk.
    """

    want: Want
    sources: tuple[int, ...]


class ReadKeys(NamedTuple):
    """Read rows of a step from storage into its buffers. Answer: `take_read`."""

    read: int
    ticket: int
    rows: Int


class TakeReplicas(NamedTuple):
    """Copy those rows of a step that have replicas. Answer: `take_replicas`."""

    ticket: int
    rows: Int


class OfferReplicas(NamedTuple):
    """Make replicas of rows from a peer that are worth it."""

    ticket: int
    rows: Int


class FetchKeys(NamedTuple):
    """Ask another rank for rows of one or more steps. Answer: `take_fetch`; it numbers the keys
    of all parts one after the other.

    parts:  ticket and rows of each step; a step may have several parts.
    """

    fetch: int
    rank: int
    parts: tuple[tuple[int, Int], ...]


class ProbeRank(NamedTuple):
    """Ask another rank for one key, and ignore its bytes. Answer: `take_fetch`."""

    fetch: int
    rank: int
    key: int
    length: int


class AnswerPeer(NamedTuple):
    """Answer a peer with those wanted keys that are there. Answer: `take_answer`.

    lengths:  of all keys of the request; keys of no want are refused.
    wants:    the wanted keys, with the sources that hold cache blocks of the disk.
    """

    request: int
    lengths: Int
    wants: tuple[tuple[Want, tuple[int, ...]], ...]


class ReportStep(NamedTuple):
    """Report a step, with the keys that storage did not give."""

    ticket: int
    failures: tuple[RowFailure, ...]


class GiveUpReplicas(NamedTuple):
    """Let replicas go: using them has failed."""


class Stop(NamedTuple):
    """End with the error of an action that could not be performed, as nothing replaces it."""


Action = (
    ClaimSlots
    | AllocateRoom
    | LoadBlocks
    | PublishSlots
    | AbandonSlots
    | WriteDisk
    | ReadDisk
    | ReleaseSource
    | CopyKeys
    | ReadKeys
    | TakeReplicas
    | OfferReplicas
    | FetchKeys
    | ProbeRank
    | AnswerPeer
    | ReportStep
    | GiveUpReplicas
    | Stop
)
