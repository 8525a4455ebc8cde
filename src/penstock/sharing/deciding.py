"""Deciding classes of sharing, and their values: what a driver needs to run them. `Broker`,
`LeasedBudget` and `TransferPermit` drive them over sockets, `tests.virtual` does so in
virtual time."""

from __future__ import annotations

from .broker_session import BrokerSession, EndConnection, SendMessage
from .client import Tenant
from .federation import HostShare
from .lease import Grant, JobMeasurement, Lease, Report, Terms
from .ledger import Ledger
from .throughput_model import JobProfile, Share, predict
from .transfer_session import TransferSession
from .wire import ConnectionLost, Message, WireError, parse_message

__all__ = [
    "BrokerSession",
    "ConnectionLost",
    "EndConnection",
    "Grant",
    "HostShare",
    "JobMeasurement",
    "JobProfile",
    "Lease",
    "Ledger",
    "Message",
    "Report",
    "SendMessage",
    "Share",
    "Tenant",
    "Terms",
    "TransferSession",
    "WireError",
    "parse_message",
    "predict",
]
