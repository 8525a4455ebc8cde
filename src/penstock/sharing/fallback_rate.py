"""What a host may take of storage that it shares with other hosts, also while nobody says so. Pure.

Hosts together take no more than there is while whoever divides it among them is away, or is back
but has not heard of all of them yet. What the floors of all leases add up to is never more than
there is, and so is what the leases add up to; so each goes down to the less of both at once, and up
to its floor only when every lease has ended.
"""

from __future__ import annotations

import math

from .lease import Lease


class Holding:
    """Bytes/s of one host, by what it is leased.

    own_bytes_per_s:  what the host takes at most, and while nothing has been leased to it yet; inf
                      for no limit.
    gather_s:         how long after a loss it takes no more than its floor.
    """

    def __init__(self, own_bytes_per_s: float, gather_s: float) -> None:
        self._own = own_bytes_per_s
        self._gather_s = gather_s
        self._rate = self._floor = own_bytes_per_s
        self._leased = False
        self._ended_s = self._gathered_s = -math.inf

    @property
    def leased(self) -> bool:
        """Whether there is a lease now."""
        return self._leased

    def rate(self, lease: Lease | None, now_s: float) -> float:
        """What it may take from now on; `lease` is that in force, None where there is none."""
        if lease is None:
            self._lose(now_s)
            return min(self._own, self._rate)
        if not self._leased:
            self._leased = True
            # The first one ever is of a broker that has not been away.
            self._gathered_s = -math.inf if self._ended_s == -math.inf else now_s + self._gather_s
        self._lasts_s = lease.lasts_s
        rate, floor = _number(lease.bytes_per_s), _number(lease.floor_bytes_per_s)
        if now_s < self._gathered_s:
            self._rate = min(rate, self._floor)
        else:
            self._rate, self._floor = rate, floor
        return min(self._own, self._rate)

    def _lose(self, now_s: float) -> None:
        if self._leased:
            self._leased = False
            self._ended_s = now_s + self._lasts_s
            self._rate = min(self._rate, self._floor)
        elif now_s >= self._ended_s:
            self._rate = self._floor


def _number(rate: float | None) -> float:
    return math.inf if rate is None else rate
