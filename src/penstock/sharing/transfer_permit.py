"""Permits to write a checkpoint, or stage data, on a host or storage that loaders share."""

from __future__ import annotations

import math
import os
import select
import sys
import threading
import time
from types import TracebackType

from .. import limits
from ..arguments import check_kind, check_path
from ..errors import UsageError
from ..topology import detect
from .connection import Link, find_call
from .lease import Grant, Terms
from .leased_budget import name_job
from .throughput_model import read_number
from .wire import VERSION, Message

_burst_s = 0.1
"""Seconds of unused bandwidth that a transfer may use later."""


class TransferPermit:
    """Permit to transfer so many bytes, at the rate that a broker grants.

        with TransferPermit(total_bytes) as permit:
            for piece in pieces:            # of some MiB each
                permit.wait(len(piece))
                file.write(piece)

    Without a broker, or with PENSTOCK_BROKER=off, any rate is permitted.

    bytes:        of the whole transfer.
    job:          that transfers: by default the job that loaders of this process belong to.
                  Transfers of a job, such as those of its ranks, go together.
    bytes_per_s:  most that the transfer can take, if that is known; it is learned otherwise.
    path:         of the broker's socket, if not the usual one.

    Whatever the broker does, `wait` ends: a broker that has gone sets no limit any more, and one
    that sends nothing leaves the transfer its part of the bandwidth of transfers. Any thread may
    call it, also several at once. A loader in the same process has a lease of its own.
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
        self._begin: Message = {
            "say": "transfer",
            "version": VERSION,
            "id": 0,
            "job": job,
            "bytes_per_s": bytes_per_s,
        }
        self._bytes, self._moved, self._before = bytes, 0, 0
        call, where = find_call(path)
        self._link = Link(call, self._hello, where)
        self._told_every_s = Terms().report_s
        self._lock = threading.Lock()
        self._grant: Grant | None = None
        self._credit, self._settled_s = 0.0, time.monotonic()
        self._asked_s = self._ends_s = self._tell_s = self._settled_s
        self._ending = self._closed = False
        self._step(self._settled_s)

    def __enter__(self) -> TransferPermit:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bytes_per_s(self) -> float | None:
        """Rate that is granted now; None without a limit."""
        with self._lock:
            return self._rate(time.monotonic())

    def wait(self, bytes: int) -> None:
        """Return when so many bytes more may be transferred.

        They may be paid for afterwards, so that no piece is too large.
        """
        read_number("bytes", bytes, zero=True)
        with self._lock:
            while not self._ending:
                now_s = time.monotonic()
                rate = self._rate(now_s)
                if rate is None:
                    self._credit = 0.0
                    break
                earned = rate * (now_s - self._settled_s)
                self._credit = min(self._credit + earned, _burst_s * rate)
                self._settled_s = now_s
                if rate > 0 and self._credit >= 0:
                    break
                paid_s = -self._credit / rate if rate > 0 else limits.grant_wait_s
                self._listen(min(paid_s, self._told_every_s))
            self._settled_s = time.monotonic()
            self._credit -= bytes
            self._moved += bytes

    def close(self) -> None:
        """End the transfer, done or given up. A `wait` under way ends soon, in whichever thread."""
        self._ending = True  # a wait under way has the lock
        with self._lock:
            if not self._closed:
                self._closed = True
                self._link.send({"say": "transferred", "id": 0}, time.monotonic())
                self._link.close()

    def _rate(self, now_s: float) -> float | None:
        """Return the rate that the broker last granted; 0, for a moment, while it has yet to
        answer."""
        if not self._step(now_s):
            return None
        if self._grant is None:
            return 0.0 if now_s - self._asked_s < limits.grant_wait_s else None
        return self._grant.bytes_per_s if now_s < self._ends_s else self._grant.floor_bytes_per_s

    def _step(self, now_s: float) -> bool:
        """Receive and send messages; return whether there is a broker."""
        heard = None if self._closed else self._link.receive(now_s)
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
            moved = self._moved - self._before
            self._link.send({"say": "moved", "id": 0, "bytes": moved}, now_s)
        return True

    def _listen(self, timeout_s: float) -> None:
        """Wait for a message of the broker."""
        file = self._link.fileno()
        if file is None:
            return
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll(max(1.0, 1000 * timeout_s))

    def _hello(self) -> Message:
        """Make the first message of a new connection, on which nothing has been granted yet."""
        self._grant, self._asked_s = None, time.monotonic()
        self._before = self._moved
        return {**self._begin, "bytes": max(1, self._bytes - self._moved)}
