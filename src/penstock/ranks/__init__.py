"""Ranks of a job: which process this is, and how it exchanges texts with the others.

`place` says which share of each global batch a process gets. `gather` finds a way for all ranks to
exchange texts: torch.distributed, jax.distributed, MPI, or a function of the user.
"""

from __future__ import annotations

from .gather import (
    Gather,
    exchange_values,
    find_gather,
    find_reachable_address,
    find_store,
    host_identity,
    is_mpi,
    machine_identity,
)
from .place import (
    Place,
    check_division,
    choose_place,
    detect,
    find_reader,
    suspect_processes,
)

__all__ = [
    "Gather",
    "Place",
    "check_division",
    "choose_place",
    "detect",
    "exchange_values",
    "find_gather",
    "find_reachable_address",
    "find_reader",
    "find_store",
    "host_identity",
    "is_mpi",
    "machine_identity",
    "suspect_processes",
]
