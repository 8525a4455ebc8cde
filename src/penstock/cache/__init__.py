"""The cache folder."""

from __future__ import annotations

from .join import Cache, Joined, join_cache
from .peer import Bytes, Keys, Peer, PeerCompletion, PeerRequest, Reason
from .rendezvous import Gather, machine_identity, store_of

__all__ = [
    "Bytes",
    "Cache",
    "Gather",
    "Joined",
    "Keys",
    "Peer",
    "PeerCompletion",
    "PeerRequest",
    "Reason",
    "join_cache",
    "machine_identity",
    "store_of",
]
