"""Loader's side of the broker: called once a step, never waits, never fails because of a broker."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from ..errors import UsageError
from .connection import Call, Link, find_call
from .lease import Lease, Report, Terms
from .wire import VERSION, Message


class Tenant:
    """One loader of a job, on a host that may have a broker.

    job:   name that the loaders and ranks of one job have in common on this host.
    rank:  of this loader's process.
    name:  of this loader, for people.
    path:  of the broker's socket; None for the usual place (`wire.find_socket`). With
           PENSTOCK_BROKER=off there is no broker, whatever the path.
    call:  makes the connection, if it is not to that socket.

    Not for several threads. In a process that was forked it makes a connection of its own.
    """

    def __init__(
        self,
        job: str,
        rank: int,
        name: str,
        path: str | None = None,
        *,
        call: Call | None = None,
        where: str = "",
    ) -> None:
        if call is None:
            call, where = find_call(path)
        self._join: Message = {
            "say": "join",
            "version": VERSION,
            "job": job,
            "rank": rank,
            "name": name,
        }
        self._report_every_s = Terms().report_s
        self._link = Link(call, self._hello, where)
        self._lease: Lease | None = None
        self._ends_s = self._report_s = -math.inf

    def step(self, now_s: float, measure: Callable[[], Report]) -> Lease | None:
        """Return the lease in force, or None without a broker or before its first lease.

        A lease that has ended is replaced by its floor.

        now_s:    of a clock that does not go back, such as time.monotonic().
        measure:  called when a report is due.
        """
        heard = self._link.receive(now_s)
        if heard is None:
            self._lease = None
            return None
        for message in heard:
            if message["say"] == "lease":
                try:
                    self._lease = Lease.of(message)
                except UsageError as error:
                    self._link.lose(now_s, error)
                    self._lease = None
                    return None
                self._ends_s = now_s + self._lease.lasts_s
        if now_s >= self._report_s:
            self._report_s = now_s + self._report_every_s
            if self._link.can_send(now_s):
                self._link.send({"say": "report", **measure().message()}, now_s)
        if self._lease is not None and now_s >= self._ends_s:
            self._lease, self._ends_s = self._lease.ended, math.inf
        return self._lease

    @property
    def has_ended(self) -> bool:
        """True if the lease was not renewed in time, and its floor holds."""
        return self._lease is not None and self._ends_s == math.inf

    def close(self) -> None:
        """Leave, so that others get this loader's part. The next step would join again."""
        self._link.leave()
        self._lease = None

    def _hello(self, now_s: float) -> Message:
        """Make the first message of a new connection; a lease of an older one is void."""
        self._lease, self._report_s = None, now_s
        return {**self._join, "pid": os.getpid()}
