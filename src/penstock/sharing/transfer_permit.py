"""Permits to write a checkpoint, or stage data, on a host or storage that loaders share."""

from __future__ import annotations

import math
import os
import select
import sys
import threading
import time
from types import TracebackType

from ..arguments import check_kind, check_path
from ..ranks import detect
from .connection import find_call
from .leased_budget import name_job
from .throughput_model import read_number
from .transfer_session import TransferSession


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
        call, where = find_call(path)
        self._lock = threading.Lock()
        self._is_ending = False
        self._session = TransferSession(bytes, job, bytes_per_s, call, where, time.monotonic())

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
            return self._session.rate(time.monotonic())

    def wait(self, bytes: int) -> None:
        """Return when so many bytes more may be transferred.

        They may be paid for afterwards, so that no piece is too large.
        """
        read_number("bytes", bytes, zero=True)
        with self._lock:
            while not self._is_ending:
                wait_s = self._session.find_wait_s(time.monotonic())
                if wait_s is None:
                    break
                self._listen(wait_s)
            self._session.move(bytes, time.monotonic())

    def close(self) -> None:
        """End the transfer, done or given up. A `wait` under way ends soon, in whichever thread."""
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
