"""Diagnosis before a run: which resource limits a training job, and what would help.

Its nouns: a *ceiling* is the measured maximum of one resource, a *supply* its rate a second, a
*demand* the use of it by one sample, a *roofline* the ceilings in samples a second with the lowest
one binding, a *finding* a limit of the machine with its remedy, an *examination* all of these for
some data on this machine.

The folder measures and advises; it changes nothing. It must not know the command line, pages or
the benchmark: they present its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .doctor import Examination as Examination
    from .doctor import PlannedJob as PlannedJob
    from .doctor import examine as examine
    from .doctor import examine_folder as examine_folder
    from .roofline import Ceiling as Ceiling
    from .roofline import DataProfile as DataProfile
    from .roofline import Demand as Demand
    from .roofline import Resource as Resource
    from .roofline import Roofline as Roofline
    from .roofline import Supply as Supply
    from .roofline import build_roofline as build_roofline
    from .roofline import compute_ceilings as compute_ceilings
    from .roofline import computing_supply as computing_supply
    from .roofline import estimate_roofline as estimate_roofline
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "doctor": "Examination PlannedJob examine examine_folder",
            "roofline": "Ceiling DataProfile Demand Resource Roofline Supply build_roofline "
            "compute_ceilings computing_supply estimate_roofline",
        },
    )
