"""Fallback rate of a host on storage that it shares with other hosts, also without a lease. Pure.

Hosts together take no more than there is while the broker that divides it is away, or is back but
has not heard of all of them yet. The floors of all leases never add up to more than there is, and
neither do the leases. So each host goes down to the less of both at once, and up to its floor only
when every lease has ended.
"""

from __future__ import annotations

import math

from .lease import Lease


class Holding:
    """Bytes/s of one host, by its lease.

    own_bytes_per_s:  most that the host takes, and its rate while nothing has been leased to it
                      yet; inf for no limit.
    gather_s:         how long after a loss it takes no more than its floor; it goes by a lease that
                      comes after that, from a broker that had time to hear of the others.
    """

    def __init__(self, own_bytes_per_s: float, gather_s: float) -> None:
        self._own = own_bytes_per_s
        self._gather_s = gather_s
        self._rate = self._floor = own_bytes_per_s
        self._leased = False
        self._lease: Lease | None = None
        self._heard_s = self._ended_s = self._gathered_s = -math.inf

    @property
    def leased(self) -> bool:
        """True if there is a lease now."""
        return self._leased

    def rate(self, lease: Lease | None, now_s: float, *, has_ended: bool = False) -> float:
        """Return the rate from now on.

        lease:      the one in force, None if there is none.
        has_ended:  True if it was not renewed in time; then those of other hosts may last a little
                    longer.
        """
        if lease is None or has_ended:
            self._lose(now_s)
            return min(self._own, self._rate)
        if not self._leased:
            self._leased = True
            # The first one ever is of a broker that has not been away.
            self._gathered_s = -math.inf if self._ended_s == -math.inf else now_s + self._gather_s
        if lease is not self._lease:  # renewed, perhaps with equal values
            self._lease, self._heard_s = lease, now_s
        self._lasts_s = lease.lasts_s
        rate, floor = _decode_rate(lease.bytes_per_s), _decode_rate(lease.floor_bytes_per_s)
        if self._heard_s < self._gathered_s:
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


def _decode_rate(rate: float | None) -> float:
    return math.inf if rate is None else rate
