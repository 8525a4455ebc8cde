"""Session of one transfer: what a broker permits it now, and how long it waits. Time is an
argument.

Bytes are paid for at the rate that is granted, and may be paid for afterwards, so that no piece is
too large. A grant that is not renewed becomes its floor. Without a broker, or with one that says
nothing to a new connection for `limits.grant_wait_s`, any rate is permitted.
"""

from __future__ import annotations

from .. import limits
from ..errors import UsageError
from .connection import Call, Link
from .lease import Grant, Terms
from .wire import VERSION, Message

_burst_s = 0.1
"""Seconds of unused bandwidth that a transfer may use later."""


class TransferSession:
    """One transfer of so many bytes.

    job:          transfers of one job go together.
    bytes_per_s:  most that the transfer can take, if that is known.
    call, where:  make the connection; place of the broker, for people.
    """

    def __init__(
        self,
        bytes: int,
        job: str,
        bytes_per_s: float | None,
        call: Call | None,
        where: str,
        now_s: float,
    ) -> None:
        self._begin: Message = {
            "say": "transfer",
            "version": VERSION,
            "id": 0,
            "job": job,
            "bytes_per_s": bytes_per_s,
        }
        self._bytes, self._moved = bytes, 0
        self._before = 0.0
        self._link = Link(call, self._hello, where)
        self._told_every_s = Terms().report_s
        self._grant: Grant | None = None
        self._credit = 0.0
        self._settled_s = self._asked_s = self._ends_s = self._tell_s = now_s
        self._is_closed = False
        self._step(now_s)

    def fileno(self) -> int | None:
        """Return the descriptor to wait on for messages; None without a broker."""
        return self._link.fileno()

    def rate(self, now_s: float) -> float | None:
        """Return the rate that the broker last granted, or its floor once the grant has ended; None
        without a limit; 0, for a moment, while the broker has yet to answer."""
        if not self._step(now_s):
            return None
        if self._grant is None:
            return 0.0 if now_s - self._asked_s < limits.grant_wait_s else None
        return self._grant.bytes_per_s if now_s < self._ends_s else self._grant.floor_bytes_per_s

    def find_wait_s(self, now_s: float) -> float | None:
        """Return the time after which to ask again, sooner if a message comes; None if the next
        piece may be transferred."""
        rate = self.rate(now_s)
        if rate is None:
            self._credit = 0.0
            return None
        earned = rate * (now_s - self._settled_s)
        self._credit = min(self._credit + earned, _burst_s * rate)
        self._settled_s = now_s
        if rate > 0 and self._credit >= 0:
            return None
        paid_s = -self._credit / rate if rate > 0 else limits.grant_wait_s
        return min(paid_s, self._told_every_s)

    def move(self, bytes: int, now_s: float) -> None:
        """Note that a piece is transferred now."""
        self._settled_s = now_s
        self._credit -= bytes
        self._moved += bytes

    def close(self, now_s: float) -> None:
        """End the transfer, done or given up."""
        if not self._is_closed:
            self._is_closed = True
            self._link.send({"say": "transferred", "id": 0}, now_s)
            self._link.close()

    def _step(self, now_s: float) -> bool:
        """Receive and send messages; return whether there is a broker."""
        heard = None if self._is_closed else self._link.receive(now_s)
        if heard is None:
            return False
        for message in heard:
            if message["say"] == "grant":
                try:
                    self._grant = Grant.of(message)
                except UsageError as error:
                    self._link.lose(now_s, error)
                    return False
                self._ends_s = now_s + self._grant.lasts_s
        if now_s >= self._tell_s and self._link.can_send(now_s):
            self._tell_s = now_s + self._told_every_s
            paid = self._paid_bytes - self._before
            self._link.send({"say": "moved", "id": 0, "bytes": max(0, int(paid))}, now_s)
        return self._link.is_connected

    @property
    def _paid_bytes(self) -> float:
        """Bytes that are paid for.

        These are what the broker is told: by the bytes that have moved, a transfer that pays for a
        large piece would look as if it could take no more.
        """
        return self._moved + min(0.0, self._credit)

    def _hello(self, now_s: float) -> Message:
        """Make the first message of a new connection, on which nothing has been granted yet."""
        self._grant, self._asked_s = None, now_s
        self._before = self._paid_bytes
        return {**self._begin, "bytes": max(1, self._bytes - self._moved)}
