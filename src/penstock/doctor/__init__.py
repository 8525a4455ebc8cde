"""Diagnosis before and during a run: which resource limits a training job, and what would help.

Its nouns: a *ceiling* is the measured maximum of one resource, a *supply* its rate a second, a
*demand* the use of it by one sample, a *roofline* the ceilings in samples a second with the lowest
one binding, a *finding* a limit of the machine with its remedy, an *examination* all of these for
some data on this machine.

The folder measures and advises; it changes nothing. It must not know the command line, pages or
the benchmark: they present its values.
"""

from __future__ import annotations

from .doctor import (
    Examination,
    Finding,
    PlannedJob,
    examine,
    examine_folder,
    examine_host,
    is_empty,
)
from .extras import Extra, list_extras
from .roofline import (
    DataProfile,
    Demand,
    Resource,
    Roofline,
    RunCounts,
    Supply,
    computing_supply,
    estimate_roofline,
    judge_run,
    staging_supply,
)

__all__ = [
    "DataProfile",
    "Demand",
    "Examination",
    "Extra",
    "Finding",
    "PlannedJob",
    "Resource",
    "Roofline",
    "RunCounts",
    "Supply",
    "computing_supply",
    "estimate_roofline",
    "examine",
    "examine_folder",
    "examine_host",
    "is_empty",
    "judge_run",
    "list_extras",
    "staging_supply",
]
