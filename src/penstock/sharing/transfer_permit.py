"""Permits to write a checkpoint, or stage data, on a host or storage that loaders share.

Bytes are paid for at the granted rate, and may be paid for afterwards, so that no piece is too
large. A grant that is not renewed becomes its floor. Without a broker, or with one that does not
answer a new connection within `limits.grant_wait_s`, any rate is permitted. `TransferSession`
decides this with time as an argument; `TransferPermit` waits.
"""

from __future__ import annotations

import math
import os
import select
import sys
import threading
import time

from .. import limits
from ..arguments import check_kind, check_path
from ..errors import UsageError
from ..ranks.place import detect
from .client import Call, Link, find_call
from .connection import VERSION, Message
from .job_state import read_number
from .lease import Grant, Terms
from .leased_budget import name_job

_burst_s = 0.1
"""Seconds of unused bandwidth that a transfer may use later."""


class TransferPermit:
    """Permit to transfer bytes at the rate that a broker grants.

        with TransferPermit(total_bytes) as permit:
            for piece in pieces:            # of some MiB each
                permit.wait(len(piece))
                file.write(piece)

    Without a broker, or with PENSTOCK_BROKER=off, any rate is permitted.

    bytes:        of the whole transfer.
    job:          name of the job, by default the job of this process's loaders. Transfers of one
                  job, such as its ranks', go together.
    bytes_per_s:  largest rate that the transfer can take; learned if unknown.
    path:         the broker's socket, if not the usual one.

    Whatever the broker does, `wait` ends: a broker that has gone sets no limit, and a silent one
    leaves the transfer its part of the bandwidth of transfers. Any threads may call it. A loader in
    the same process has a lease besides.
    """

    def __init__(
        self,
        bytes: int,
        *,
        job: str | None = None,
        bytes_per_s: float | None = None,
        path: str | None = None,
    ) -> None:
        read_number("bytes", bytes, 1.0)
        if bytes_per_s is not None:
            bytes_per_s = read_number("bytes_per_s", bytes_per_s, 1.0, infinite=True)
            bytes_per_s = None if bytes_per_s == math.inf else bytes_per_s
        if path is not None:
            path = check_path("path", path)
        if job is not None:
            check_kind("job", job, str, "the name of a job")
        else:
            job = name_job(detect(None, None, os.environ, sys.modules), os.environ)
        call, where = find_call(path)
        self._lock = threading.Lock()
        self._is_ending = False
        self._session = TransferSession(bytes, job, bytes_per_s, call, where, time.monotonic())

    def __enter__(self) -> TransferPermit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bytes_per_s(self) -> float | None:
        """Granted rate now, or None without a limit."""
        with self._lock:
            return self._session.rate(time.monotonic())

    def wait(self, bytes: int) -> None:
        """Return when `bytes` more may be transferred."""
        read_number("bytes", bytes, zero=True)
        with self._lock:
            while not self._is_ending:
                wait_s = self._session.find_wait_s(time.monotonic())
                if wait_s is None:
                    break
                self._listen(wait_s)
            self._session.move(bytes, time.monotonic())

    def close(self) -> None:
        """End the transfer, done or given up. A `wait` under way ends soon, in any thread."""
        self._is_ending = True  # a wait under way has the lock
        with self._lock:
            self._session.close(time.monotonic())

    def _listen(self, timeout_s: float) -> None:
        """Wait for a message of the broker."""
        file = self._session.fileno()
        if file is None:
            return
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll(max(1.0, 1000 * timeout_s))


class TransferSession:
    """One transfer; `TransferPermit` describes the arguments.

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
        """Return the granted rate, or the floor of a grant that has ended; None without a limit; 0
        for a moment, until a new broker answers."""
        if not self._step(now_s):
            return None
        if self._grant is None:
            return 0.0 if now_s - self._asked_s < limits.grant_wait_s else None
        return self._grant.bytes_per_s if now_s < self._ends_s else self._grant.floor_bytes_per_s

    def find_wait_s(self, now_s: float) -> float | None:
        """Return the time after which to ask again, or None if the next piece may be transferred.
        If a message arrives, ask at once."""
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
        """Record that a piece is transferred now."""
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
        """Bytes paid for, as reported to the broker."""
        # By the bytes moved, a transfer that still pays for a large piece would look slow.
        return self._moved + min(0.0, self._credit)

    def _hello(self, now_s: float) -> Message:
        self._grant, self._asked_s = None, now_s
        self._before = self._paid_bytes
        return {**self._begin, "bytes": max(1, self._bytes - self._moved)}
