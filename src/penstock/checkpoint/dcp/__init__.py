"""Storage of torch.distributed.checkpoint (DCP), written behind training.

docs/checkpoints/dcp.md is the page for users. `Storage` gives a `storage_writer` for each save, and
`Reader` is the `storage_reader` of a load.
DCP plans which rank has which part of a sharded state, and its planners reshard it at a load; this
folder keeps the repository, the commit, the checksums and the loader's state, by the modules of
`penstock.checkpoint` above it. It must not know how a state is sharded beyond the plans that DCP
gives it.
"""

from __future__ import annotations

from .reading import Reader
from .storage import Storage

__all__ = ["Reader", "Storage"]
