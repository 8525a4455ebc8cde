"""The cache folder."""

from __future__ import annotations

from .join import Cache, CacheMembership, join_cache
from .peer import Bytes, Keys, Peer, PeerCompletion, PeerRequest, Reason
from .rendezvous import Gather, find_store, machine_identity

__all__ = [
    "Bytes",
    "Cache",
    "CacheMembership",
    "Gather",
    "Keys",
    "Peer",
    "PeerCompletion",
    "PeerRequest",
    "Reason",
    "find_store",
    "join_cache",
    "machine_identity",
]
