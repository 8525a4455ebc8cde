"""Sharing of a host or a storage between jobs: processor time, bandwidth, and turns to transfer.

A *broker* is a process of a host. Its *ledger* divides the host's *resources* among jobs, by an
*objective* and with *floors* that each job keeps (`allocation`, `share_lp`, `throughput_model`).
Each loader is a *member* of a job: it reports a *profile* and what it measured, and holds a
*lease*, which ends unless it is renewed. A `LeasedBudget` is the loader's side of that. Checkpoints
and stages of data are *transfers*: a `TransferPermit` waits for the broker's *grants*
(`transfer_policy`). An `Upstream` is the broker of several hosts, as one of them sees it. `wire`
carries JSON messages, over UNIX sockets or TCP.

The folder knows rates, costs and budgets. It must not know samples, files or how a loader works: a
loader is a source of counters here. Without a broker nothing here limits anybody.
"""

from __future__ import annotations

from . import deciding
from .address import Address, read_key
from .allocation import UNITS, Resources
from .broker import Broker
from .federation import Upstream
from .leased_budget import LeasedBudget
from .ledger import Ledger
from .monitor import watch_broker
from .online import RULES, Rule, Waiting, grant
from .throughput_model import check_number
from .transfer_permit import TransferPermit
from .wire import find_socket

__all__ = [
    "RULES",
    "UNITS",
    "Address",
    "Broker",
    "LeasedBudget",
    "Ledger",
    "Resources",
    "Rule",
    "TransferPermit",
    "Upstream",
    "Waiting",
    "check_number",
    "deciding",
    "find_socket",
    "grant",
    "read_key",
    "watch_broker",
]
