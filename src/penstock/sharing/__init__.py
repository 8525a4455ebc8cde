"""Sharing of a host or a storage between jobs: processor time, bandwidth, and turns to transfer.

A *broker* is a process of a host. Its *ledger* divides the host's *resources* among jobs, by an
*objective* and with *floors* that each job keeps (`allocation`, `job_state`).
Each loader is a *member* of a job: it reports a *profile* and measurements, and holds a *lease*
that ends unless it is renewed; `leased_budget` is the loader's side. Checkpoints and stages of data
are *transfers*: a `TransferPermit` waits for the broker's *grants* (`transfers`). An `Upstream` is
the broker of several hosts, seen from one of them (`federation`). `connection` carries JSON
messages over UNIX sockets or TCP; `client` is the callers' side, `broker` and `broker_session` the
server.

The folder knows rates, costs and budgets. It must not know samples, files or how a loader works: a
loader is a source of counters here. Without a broker there is no limit. A loader loads the client's
side alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .allocation import Resources as Resources
    from .broker import Broker as Broker
    from .client import watch_broker as watch_broker
    from .connection import Address as Address
    from .connection import read_key as read_key
    from .federation import Upstream as Upstream
    from .leased_budget import LeasedBudget as LeasedBudget
    from .ledger import Ledger as Ledger
    from .transfer_permit import TransferPermit as TransferPermit
    from .transfers import grant_fairly as grant_fairly
    from .transfers import grant_in_order as grant_in_order
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "allocation": "Resources",
            "broker": "Broker",
            "client": "watch_broker",
            "connection": "Address read_key",
            "federation": "Upstream",
            "leased_budget": "LeasedBudget",
            "ledger": "Ledger",
            "transfer_permit": "TransferPermit",
            "transfers": "grant_fairly grant_in_order",
        },
    )
