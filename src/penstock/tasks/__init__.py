"""Work that many programs share: planned by the input, done on any engine, committed once.

`plan_work` cuts the making of an index, of shards, tokens, lengths or statistics into *tasks*; a
`WorkPlan` does them, each a *part* in a file, and *commits* the parts. `distribute` does tasks on
an *engine*, which is any `concurrent.futures.Executor`; `make_engine` makes those that people have.
`tape` lets a task go on where the plan stopped; `slurm` divides tasks among the elements of an
array.

The folder knows the makings of indexes, and of what is measured, as functions that it stops and
resumes. It must not know formats, or how an engine schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .distribution import make_engine as make_engine
    from .work_plan import WorkPlan as WorkPlan
    from .work_plan import distribute as distribute
    from .work_plan import plan_work as plan_work
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {"distribution": "make_engine", "work_plan": "WorkPlan distribute plan_work"},
    )
