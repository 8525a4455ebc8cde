"""A loader's side of the broker: called once a step, it never waits, and never fails for anything
that a broker does."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path

from . import limits
from .errors import UsageError
from .lease import Lease, Report, Terms
from .lines import VERSION, Gone, Lines, Message, Wrong, peer_of, socket_path

log = logging.getLogger("penstock")


class Tenant:
    """One loader of a job, on a host that may have a broker.

    job:    what the loaders and ranks of one job have in common on this host.
    rank:   of this loader's process.
    name:   of this loader, for people.
    path:   of the broker's socket; None for the usual place (`lines.socket_path`). With
            PENSTOCK_BROKER=off there is no broker, whatever the path.

    Not for several threads. In a process that was forked it makes a connection of its own.
    """

    def __init__(self, job: str, rank: int, name: str, path: str | None = None) -> None:
        found = socket_path(os.environ)
        self._path = found if found is None or path is None else Path(path)
        self._usual = path is None and "PENSTOCK_BROKER" not in os.environ
        self._join = {"say": "join", "version": VERSION, "job": job, "rank": rank, "name": name}
        self._every_s = Terms().report_s
        self._pid = os.getpid()
        self._lines: Lines | None = None
        self._lease: Lease | None = None
        self._ends_s = self._report_s = self._retry_s = -math.inf
        self._told: set[str] = set()

    def step(self, now_s: float, measure: Callable[[], Report]) -> Lease | None:
        """The lease in force: what the broker last said, or its floor where that has ended; None
        without a broker, or before it has said anything.

        now_s:    of a clock that does not go back, such as time.monotonic().
        measure:  called when a report is due.
        """
        if os.getpid() != self._pid:
            self._forked()
        if self._lines is None and not self._connected(now_s):
            return None
        assert self._lines is not None
        try:
            for message in self._lines.receive():
                self._hear(message, now_s)
        except (Gone, Wrong, UsageError) as error:
            self._lost(now_s, error)
            return None
        if now_s >= self._report_s and not self._reported(now_s, measure):
            return None
        if now_s >= self._ends_s and self._lease is not None:
            self._lease, self._ends_s = self._lease.ended, math.inf
        return self._lease

    def close(self) -> None:
        """Leaves, so that others have what it had. The next step would join again."""
        if self._lines is not None and os.getpid() == self._pid:
            with contextlib.suppress(Gone):
                self._lines.send({"say": "leave"})
            self._lines.close()
        self._lines = self._lease = None

    def _connected(self, now_s: float) -> bool:
        """Joins, where there is a broker; looks for one every `limits.broker_retry_s`."""
        if self._path is None or now_s < self._retry_s:
            return False
        self._retry_s = now_s + limits.broker_retry_s
        if not os.path.exists(self._path):
            return False
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(os.fspath(self._path))
        except OSError:  # nobody there, not for us, or too many just now
            connection.close()
            return False
        self._lines = Lines(connection)
        user = peer_of(connection).user
        if self._usual and user not in (os.getuid(), 0):
            self._lost(now_s, Wrong(f"it is user {user}'s, in a place of this user's"))
            return False
        try:
            self._lines.send({**self._join, "pid": self._pid})
        except Gone as gone:
            self._lost(now_s, gone)
            return False
        self._report_s = now_s
        return True

    def _reported(self, now_s: float, measure: Callable[[], Report]) -> bool:
        """Says how it goes, unless the broker does not read now; False where it has gone."""
        assert self._lines is not None
        self._report_s = now_s + self._every_s
        try:
            self._lines.flush()
            if self._lines.waiting:
                return True
            message = {"say": "report", **measure().message()}
            self._lines.send(message)
        except Gone as gone:
            self._lost(now_s, gone)
            return False
        return True

    def _hear(self, message: Message, now_s: float) -> None:
        if message["say"] == "lease":
            self._lease = Lease.of(message)
            self._ends_s = now_s + self._lease.lasts_s
        elif message["say"] == "refused":
            self._tell(f"refused by the broker at {self._path}: {message.get('why')}")

    def _lost(self, now_s: float, why: Exception) -> None:
        """The loader's own budget again, until there is another broker."""
        assert self._lines is not None
        if isinstance(why, Gone):
            with contextlib.suppress(Gone, Wrong, UsageError):  # it may have said why
                for message in self._lines.receive():
                    self._hear(message, now_s)
        else:
            self._tell(f"the broker at {self._path} is not believed: {why}")
        self._lines.close()
        self._lines = self._lease = None
        self._retry_s = now_s + limits.broker_retry_s

    def _tell(self, text: str) -> None:
        """Once each."""
        if text not in self._told and len(self._told) < 16:
            self._told.add(text)
            log.warning("%s", text)

    def _forked(self) -> None:
        """What the parent has is the parent's."""
        if self._lines is not None:
            self._lines.close()  # of this process's copy alone
        self._lines = self._lease = None
        self._pid, self._retry_s = os.getpid(), -math.inf
