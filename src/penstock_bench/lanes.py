"""Lanes: as few threads as explain operations that overlap."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def assign_lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Assign a lane to each of some spans of time, given in the order in which they begin: as few
    lanes as the most spans that overlap, with no two overlapping spans in one lane."""
    lane_of: list[int] = []
    busy: list[tuple[int, int]] = []  # until, lane
    for first, last in spans:
        if busy and busy[0][0] <= first:
            lane = heapq.heappop(busy)[1]
        else:
            lane = len(busy)
        heapq.heappush(busy, (last, lane))
        lane_of.append(lane)
    return lane_of
