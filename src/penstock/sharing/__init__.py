"""The sharing folder."""

from __future__ import annotations

from .address import Address, key_of
from .allocation import UNITS, Resources
from .broker import Broker
from .federation import Upstream
from .leased_budget import Seat
from .ledger import Ledger
from .monitor import watch
from .throughput_model import check_number
from .transfer_permit import Window
from .wire import socket_path

__all__ = [
    "UNITS",
    "Address",
    "Broker",
    "Ledger",
    "Resources",
    "Seat",
    "Upstream",
    "Window",
    "check_number",
    "key_of",
    "socket_path",
    "watch",
]
