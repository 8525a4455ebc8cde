"""Ranks of a job: which process this is, and how it exchanges texts with the others.

`place` says which share of each global batch a process gets. `gather` finds a way for all ranks to
exchange texts: torch.distributed, jax.distributed, MPI, or a function of the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .gather import Gather as Gather
    from .gather import exchange_values as exchange_values
    from .gather import find_gather as find_gather
    from .place import Place as Place
    from .place import detect as detect
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "gather": "Gather exchange_values find_gather",
            "place": "Place detect",
        },
    )
