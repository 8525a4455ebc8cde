"""Federation of brokers: a host's broker as a job of another broker that divides storage.

Its samples are bytes: those that the jobs of the host could read, and those that they do read. It
divides the bandwidth leased to it among them.

Hosts together take no more than there is while the upper broker is away, or is back but has not
heard of all of them yet (`FallbackRate`). Neither the leases nor their floors ever add up to more
than there is. So each host goes down to the lesser of both at once, and up to its floor only when
every lease has ended.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .. import limits
from ..arguments import check_kind
from .client import Tenant, call_by_network
from .connection import Address
from .job_state import read_number
from .lease import Lease
from .ledger import Ledger


class FallbackRate:
    """Rate of one host on shared storage, in bytes/s, with and without a lease.

    own_bytes_per_s:  largest rate of the host, and its rate before the first lease; inf for no
                      limit.
    gather_s:         time after a loss in which it takes no more than its floor: a later lease is
                      from a broker that had time to hear of the other hosts.
    """

    def __init__(self, own_bytes_per_s: float, gather_s: float) -> None:
        self._own = own_bytes_per_s
        self._gather_s = gather_s
        self._rate = self._floor = own_bytes_per_s
        self.leased = False
        """True if there is a lease now."""
        self._lease: Lease | None = None
        self._heard_s = self._ended_s = self._gathered_s = -math.inf

    def rate(self, lease: Lease | None, now_s: float, *, has_ended: bool = False) -> float:
        """Return the rate from now on.

        has_ended:  True if the lease was not renewed in time; leases of other hosts may last a
                    little longer.
        """
        if lease is None or has_ended:
            self._lose(now_s)
            return min(self._own, self._rate)
        if not self.leased:
            self.leased = True
            # The very first lease comes from a broker that was not away.
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
        if self.leased:
            self.leased = False
            self._ended_s = now_s + self._lasts_s
            self._rate = min(self._rate, self._floor)
        elif now_s >= self._ended_s:
            self._rate = self._floor


class HostShare:
    """One host's share of a storage that several hosts share. Pure.

    tenant:           at the broker of all hosts.
    where:            place of that broker, for people.
    own_bytes_per_s:  largest rate of this host; inf for no limit.
    """

    def __init__(self, tenant: Tenant, where: str, own_bytes_per_s: float) -> None:
        self._tenant, self._where = tenant, where
        self._fallback = FallbackRate(own_bytes_per_s, limits.broker_gather_s)
        self._own = self._rate = own_bytes_per_s

    def step(self, ledger: Ledger, now_s: float) -> None:
        """Report the host's jobs, and let the ledger divide the bandwidth that is leased."""
        lease = None
        if ledger.is_busy:
            lease = self._tenant.step(now_s, lambda: ledger.report_together(self._own))
        else:
            self._tenant.close()
        self._rate = self._fallback.rate(lease, now_s, has_ended=self._tenant.has_ended)
        if self._rate != ledger.resources.bytes_per_s:
            ledger.resources = replace(ledger.resources, bytes_per_s=self._rate)

    def close(self) -> None:
        """Give the lease back."""
        self._tenant.close()

    def state(self) -> dict[str, Any]:
        return {
            "address": self._where,
            "leased": self._fallback.leased,
            "bytes_per_s": self._rate if self._rate < math.inf else None,
        }


class Upstream:
    """The broker of several hosts, as one of them sees it over the network.

    name:             unique name of this host.
    own_bytes_per_s:  largest rate of this host; inf for no limit.
    """

    def __init__(self, address: Address, key: bytes, name: str, own_bytes_per_s: float) -> None:
        check_kind("address", address, Address, "a penstock.sharing.Address")
        check_kind("key", key, bytes, "what penstock.sharing.read_key returns")
        check_kind("name", name, str, "the name of this host")
        own_bytes_per_s = read_number("own_bytes_per_s", own_bytes_per_s, infinite=True)
        call = call_by_network(address, key)
        tenant = Tenant(name, 0, "broker", call=call, where=address.text)
        self.share = HostShare(tenant, address.text, own_bytes_per_s)


def _decode_rate(rate: float | None) -> float:
    return math.inf if rate is None else rate
