"""Online rules: which transfer goes first, decided whenever one starts or ends. Pure.

After Gainaru et al., Scheduling the I/O of HPC Applications under Congestion (IPDPS 2015). `grant`
is the decision, for a storage that running jobs share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import UsageError

RuleName = Literal["round-robin", "min-dilation", "max-efficiency", "min-max", "fair"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule by which bandwidth is granted.

    name:           "round-robin": first the job that has waited longest since its last transfer;
                    "min-dilation": first the one that is slowed down most; "max-efficiency": first
                    the one with most weight, if all are slowed down alike; "min-max": the same, but
                    while a job's progress is below `gamma`, first the one that is slowed down most;
                    "fair": to all at once, none gets less than another that could do with less: so
                    does storage that is left to itself.
    gamma:          progress, as in `Waiting`, of 0..1; for "min-max" alone.
    divisible:      True if the last job that gets something may get a part of the rate that it
                    could take; else a job that cannot have all of it waits.

    Raises UsageError if one is something else.
    """

    name: RuleName = "round-robin"
    gamma: float = 0.5
    divisible: bool = True

    def __post_init__(self) -> None:
        if self.name not in get_args(RuleName):
            raise UsageError(
                f"Rule.name is {self.name!r}: use one of {', '.join(get_args(RuleName))}"
            )
        gamma = self.gamma
        if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
            raise UsageError(f"Rule.gamma is {self.gamma!r}: use a fraction of 0..1")


RULES = (
    Rule("round-robin"),
    Rule("min-dilation"),
    Rule("max-efficiency"),
    Rule("min-max", gamma=0.5),
)
"""The rules of the paper, with bandwidth that can be divided.

On the paper's own jobs that is better in both objectives than without, for every rule.
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that has something to transfer now.

    bytes_per_s:   rate that it could take.
    weight:        of the job.
    idle_since_s:  end of its last transfer, 0 if there was none.
    progress:      its cycles so far, over those that it could have finished alone: 0..1.
    """

    bytes_per_s: float
    weight: float = 1.0
    idle_since_s: float = 0.0
    progress: float = 1.0


def grant(waiting: Sequence[Waiting], bandwidth: float, rule: Rule) -> list[float]:
    """Grant bytes/s to each waiting job.

    None gets more than it could take, nor all more than `bandwidth`. With a divisible bandwidth
    nothing is left while a job could take it.
    """
    if rule.name == "fair":
        return _grant_fairly(waiting, bandwidth)
    rates = [0.0] * len(waiting)
    left = bandwidth
    for number in _order_by_rule(waiting, rule):
        wanted = min(waiting[number].bytes_per_s, bandwidth)
        if rule.divisible or wanted <= left * (1 + 1e-9):
            rates[number] = min(wanted, left)
            left -= rates[number]
    return rates


def _order_by_rule(waiting: Sequence[Waiting], rule: Rule) -> list[int]:
    """Return the order of the jobs; among equals the first in the list goes first."""
    by_progress = rule.name == "min-dilation" or (
        rule.name == "min-max" and any(job.progress < rule.gamma for job in waiting)
    )

    def key(number: int) -> float:
        job = waiting[number]
        if rule.name == "round-robin":
            return job.idle_since_s
        return job.progress if by_progress else job.progress / job.weight

    return sorted(range(len(waiting)), key=key)


def _grant_fairly(waiting: Sequence[Waiting], bandwidth: float) -> list[float]:
    rates = [0.0] * len(waiting)
    left, unserved = bandwidth, len(waiting)
    for number in sorted(range(len(waiting)), key=lambda number: waiting[number].bytes_per_s):
        rates[number] = min(waiting[number].bytes_per_s, left / unserved)
        left -= rates[number]
        unserved -= 1
    return rates
