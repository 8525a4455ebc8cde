"""Federation of brokers: a host's broker as a job of another broker, which divides storage.

Its samples are bytes: those that the jobs of the host could read, and those that they do read. It
divides the bandwidth that it is leased among them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .. import limits
from ..arguments import check_kind
from .address import Address
from .client import Tenant
from .connection import call_by_network
from .fallback_rate import Holding
from .ledger import Ledger
from .throughput_model import read_number


class HostShare:
    """Part of a storage that one host takes of what several hosts share. Nothing here waits, or
    knows a clock.

    tenant:           of the broker of all hosts.
    where:            place of that broker, for people.
    own_bytes_per_s:  most that this host takes; inf for no limit.
    """

    def __init__(self, tenant: Tenant, where: str, own_bytes_per_s: float) -> None:
        self._tenant, self._where = tenant, where
        self._holding = Holding(own_bytes_per_s, limits.broker_gather_s)
        self._own = self._rate = own_bytes_per_s

    def step(self, ledger: Ledger, now_s: float) -> None:
        """Report the host's jobs, and let the ledger divide the bandwidth that is leased."""
        lease = None
        if ledger.is_busy:
            lease = self._tenant.step(now_s, lambda: ledger.report_together(self._own))
        else:
            self._tenant.close()
        self._rate = self._holding.rate(lease, now_s, has_ended=self._tenant.has_ended)
        if self._rate != ledger.resources.bytes_per_s:
            ledger.resources = replace(ledger.resources, bytes_per_s=self._rate)

    def close(self) -> None:
        """Give the lease back."""
        self._tenant.close()

    def state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "address": self._where,
            "leased": self._holding.leased,
            "bytes_per_s": self._rate if self._rate < math.inf else None,
        }


class Upstream:
    """The broker of several hosts, as one of them sees it over the network.

    name:             of this host, which no other has.
    own_bytes_per_s:  most that this host takes; inf for no limit.
    """

    def __init__(self, address: Address, key: bytes, name: str, own_bytes_per_s: float) -> None:
        check_kind("address", address, Address, "a penstock.sharing.Address")
        check_kind("key", key, bytes, "what penstock.sharing.read_key returns")
        check_kind("name", name, str, "the name of this host")
        own_bytes_per_s = read_number("own_bytes_per_s", own_bytes_per_s, infinite=True)
        call = call_by_network(address, key)
        tenant = Tenant(name, 0, "broker", call=call, where=address.text)
        self.share = HostShare(tenant, address.text, own_bytes_per_s)
