"""The cache: samples that the nodes of a job keep, so that storage is read about once.

`join_cache` is called on every rank. The ranks introduce themselves by a *gather* function
(`penstock.ranks`), and all compute the same placement of cache blocks on nodes. A node keeps its
share in a *tier*: shared memory (`slab`), which its ranks fill together, or a folder on
a local disk (`disk`), which later runs find again. A *peer* exchanges samples with other nodes
(`peer`), over ZeroMQ or MPI. *Replicas* are copies of other nodes' samples in memory left over.
`engine` joins all of these into an engine that a loader uses like any other. It performs what
`penstock.plan.CacheSession` decides.

The folder knows placements, keys and bytes. It must not know how samples are ordered or decoded,
what a batch is, or who uses it: the loader hands it requests and a clock of uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .agreement import Cache as Cache
    from .peer import Bytes as Bytes
    from .peer import Keys as Keys
    from .peer import Peer as Peer
    from .peer import PeerCompletion as PeerCompletion
    from .peer import PeerRequest as PeerRequest
    from .peer import Reason as Reason
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "agreement": "Cache",
            "peer": "Bytes Keys Peer PeerCompletion PeerRequest Reason",
        },
    )
