"""The sharing folder."""

from __future__ import annotations

from . import schedule
from .address import Address, read_key
from .allocation import UNITS, Resources
from .broker import Broker
from .federation import Upstream
from .leased_budget import LeasedBudget
from .ledger import Ledger
from .monitor import watch_broker
from .throughput_model import check_number
from .transfer_permit import TransferPermit
from .wire import find_socket

__all__ = [
    "UNITS",
    "Address",
    "Broker",
    "LeasedBudget",
    "Ledger",
    "Resources",
    "TransferPermit",
    "Upstream",
    "check_number",
    "find_socket",
    "read_key",
    "schedule",
    "watch_broker",
]
