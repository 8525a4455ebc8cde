"""Oracle of the linear program of shares: SciPy's HiGHS."""

from __future__ import annotations

import numpy as np
from scipy import optimize

from penstock.sharing.allocation import Program, Solution


def solve_by_highs(program: Program) -> Solution:
    """Find the optimum by HiGHS to its tolerance of 1e-9 of each limit."""
    if not len(program.value):
        return Solution(program.least, None)
    # In parts of what is left, and of what each job could be raised by alone, as the tolerances are
    # absolute: no coefficient is above 1. Bounds get tighter, so prices are not the program's.
    spare = program.spare
    alone = np.full_like(program.cost, np.inf)
    np.divide(spare[:, None], program.cost, out=alone, where=program.cost > 0)
    room = np.minimum(program.room, alone.min(axis=0))
    bound = np.flatnonzero(np.isfinite(spare))
    unit = np.where(spare > 0, spare, 1.0)[bound]
    gain = program.value * room
    most = max(gain.max(initial=0.0), np.finfo(float).tiny)
    result = optimize.linprog(
        -gain / most,
        A_ub=program.cost[bound] * room / unit[:, None],
        b_ub=spare[bound] / unit,
        bounds=[(0, 1)] * len(room),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
    )
    assert result.success, result.message  # bounded, and nothing raised is feasible
    raised = np.clip(result.x, 0.0, 1.0) * room
    used = (program.cost @ raised)[bound]
    over = used > spare[bound]
    raised *= (spare[bound] / np.where(over, used, 1.0))[over].min(initial=1.0)
    return Solution(program.least + raised, None)
