"""The queue of requests that wait for storage: which one goes next, and to which target. Pure.

    request   one request: who wants which bytes of a file, for what; when two must keep their order
    policy    the order of requests and the choice of a target; the policies that are included
    rate      the account of a rate: when the next bytes may move
    pending   the queue: requests cut, merged, kept in order, and ranked by a policy

After LABIOS (Kougkas et al., HPDC'19), without its service: labels are requests, workers are
targets. Differences: no window has to fill up; the requests that wait when a target has room are
the window. A request that must follow another waits until that one is done, wherever it was
served. There is no energy term.
"""

from __future__ import annotations

from .pending import RequestQueue, Unit
from .policy import (
    HIGH_BANDWIDTH,
    LOW_LATENCY,
    PATIENCE,
    Fifo,
    LeastLoaded,
    Patience,
    Policy,
    RoundRobin,
    Target,
    WeightedScore,
    Weights,
)
from .rate import RateAccount
from .request import Hazard, Kind, Purpose, Request, check_purpose, find_hazard, split_request

__all__ = [
    "HIGH_BANDWIDTH",
    "LOW_LATENCY",
    "PATIENCE",
    "Fifo",
    "Hazard",
    "Kind",
    "LeastLoaded",
    "Patience",
    "Policy",
    "Purpose",
    "RateAccount",
    "Request",
    "RequestQueue",
    "RoundRobin",
    "Target",
    "Unit",
    "WeightedScore",
    "Weights",
    "check_purpose",
    "find_hazard",
    "split_request",
]
