"""Online rules: which job transfers first through a storage that several share. Pure.

After Gainaru et al., Scheduling the I/O of HPC Applications under Congestion (IPDPS 2015). A broker
follows one of them, min-dilation (`penstock.sharing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.arguments import check_fields, choice, fraction
from penstock.sharing import grant_fairly, grant_in_order

RuleName = Literal["round-robin", "min-dilation", "max-efficiency", "min-max", "fair"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule by which bandwidth is granted.

    name:       "round-robin": first the job with the longest wait since its last transfer;
                "min-dilation": first the job slowed down most; "max-efficiency": first the job with
                most weight, among equally slowed ones; "min-max": the same, but first the job
                slowed down most while one's progress is below `gamma`; "fair": all at once,
                max-min fair, as storage does by default.
    gamma:      progress, as in `Waiting`, of 0..1; for "min-max" alone.
    divisible:  True if the last job may get a part of the rate that it could take; else it waits.

    Raises UsageError for other values.
    """

    name: RuleName = field(default="round-robin", metadata=choice(RuleName))
    gamma: float = field(default=0.5, metadata=fraction())
    divisible: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


RULES = (
    Rule("round-robin"),
    Rule("min-dilation"),
    Rule("max-efficiency"),
    Rule("min-max", gamma=0.5),
)
"""Rules of the paper, with divisible bandwidth: better in both objectives on the paper's jobs."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job with something to transfer.

    bytes_per_s:   rate that it could take.
    weight:        of the job.
    idle_since_s:  end of its last transfer, 0 if there was none.
    progress:      cycles finished, over the cycles that it could have finished alone: 0..1.
    """

    bytes_per_s: float
    weight: float = 1.0
    idle_since_s: float = 0.0
    progress: float = 1.0


def grant(waiting: Sequence[Waiting], bandwidth: float, rule: Rule) -> list[float]:
    """Grant bytes/s to waiting jobs: no job more than it could take, all together no more than
    `bandwidth`. With a divisible bandwidth nothing remains while a job could take it."""
    wanted = [job.bytes_per_s for job in waiting]
    if rule.name == "fair":
        return grant_fairly(wanted, bandwidth)
    order = _order_by_rule(waiting, rule)
    return grant_in_order(wanted, order, bandwidth, divisible=rule.divisible)


def _order_by_rule(waiting: Sequence[Waiting], rule: Rule) -> list[int]:
    """Return the order of the jobs; among equals the first in the list wins."""
    by_progress = rule.name == "min-dilation" or (
        rule.name == "min-max" and any(job.progress < rule.gamma for job in waiting)
    )

    def key(number: int) -> float:
        job = waiting[number]
        if rule.name == "round-robin":
            return job.idle_since_s
        return job.progress if by_progress else job.progress / job.weight

    return sorted(range(len(waiting)), key=key)
