"""What waits for storage, and which of it goes next, where. Pure.

    request   who wants which bytes of a file, for what; when two of them must keep their order
    policy    whose turn it is, and at which target; the policies that come along
    queue     what waits and what is under way: cut, merged, kept in order, by a policy

After LABIOS (Kougkas et al., HPDC'19), without its service: labels are requests, workers are
targets. Differences: nobody waits for a window to fill, what waits when a target has room is the
window; what must follow a request waits until that is done, wherever it was; no energy term.
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
