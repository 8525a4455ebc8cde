"""Clients of a broker: a loader's `Tenant`, the `Link` below it, and `watch_broker`.

Loaders and transfers never wait for a broker and never fail because of one: a `Link` looks for the
broker now and then, and without it there is no limit.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import limits
from ..arguments import check_path
from ..errors import UsageError, WorkerError
from .connection import (
    VERSION,
    Address,
    AuthenticatedLines,
    ConnectionLost,
    Lines,
    Message,
    WireError,
    read_peer,
)
from .lease import Lease, Report, Terms

log = logging.getLogger("penstock")

Call = Callable[[], Lines | None]
"""Function that connects to a broker, or returns None if none serves now."""


class Tenant:
    """One loader of a job, on a host that may have a broker.

    job:   name shared by the loaders and ranks of one job on this host.
    rank:  rank of this loader's process.
    name:  name of this loader, for people.
    path:  the broker's socket, by default `find_socket`'s. With PENSTOCK_BROKER=off there is no
           broker, whatever the path.
    call:  makes the connection in place of `path`.

    For one thread. A forked process makes a new connection.
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

        The floor replaces a lease that has ended.

        now_s:    monotonic time.
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
    def quiet_until_s(self) -> float:
        """Time before which no broker is looked for; minus infinity with one."""
        return self._link.quiet_until_s

    @property
    def has_ended(self) -> bool:
        """True if the lease was not renewed in time and its floor holds."""
        return self._lease is not None and self._ends_s == math.inf

    def close(self) -> None:
        """Leave, and free this loader's share for others. The next `step` joins again."""
        self._link.leave()
        self._lease = None

    def _hello(self, now_s: float) -> Message:
        """Make the first message of a new connection; a lease of an older one is void."""
        self._lease, self._report_s = None, now_s
        return {**self._join, "pid": os.getpid()}


class Link:
    """Messages to and from a broker; it is looked for every `limits.broker_retry_s`.

    If a connection older than that is lost, the broker may have restarted: it is looked for at
    once.

    call:   None to look for no broker.
    hello:  makes the first message of every new connection from the time.
    where:  place of the broker, for people.

    For one thread. A forked process makes a new connection.
    """

    def __init__(self, call: Call | None, hello: Callable[[float], Message], where: str) -> None:
        self._call = call
        self._hello = hello
        self._where = where
        self._lines: Lines | None = None
        self._pid = os.getpid()
        self._retry_s = -math.inf
        self._logged: set[str] = set()

    def fileno(self) -> int | None:
        """Return the descriptor to wait on for messages, or None without a broker."""
        return None if self._lines is None else self._lines.fileno()

    @property
    def is_connected(self) -> bool:
        """True if there is a broker."""
        return self._lines is not None

    @property
    def quiet_until_s(self) -> float:
        """Time before which no broker is looked for; minus infinity with one."""
        return -math.inf if self._lines is not None else self._retry_s

    def receive(self, now_s: float) -> list[Message] | None:
        """Return the messages that have arrived, without waiting; None without a broker."""
        if self._lines is None and now_s < self._retry_s:
            return None
        if os.getpid() != self._pid:
            self.close()  # this process's copy alone: the connection is the parent's
            self._pid, self._retry_s = os.getpid(), -math.inf
        if self._lines is None and (now_s < self._retry_s or not self._connect(now_s)):
            return None
        assert self._lines is not None
        try:
            heard = self._lines.receive()
        except (ConnectionLost, WireError) as error:
            self.lose(now_s, error)
            return self.receive(now_s)
        self._log_refusals(heard)
        return heard

    def can_send(self, now_s: float) -> bool:
        """True if all messages have been sent; else the broker does not read now."""
        if self._lines is None:
            return False
        try:
            self._lines.flush()
        except ConnectionLost as gone:
            self.lose(now_s, gone)
            return False
        return not self._lines.waiting

    def send(self, message: Message, now_s: float) -> None:
        """Send a message, if there is a broker."""
        if self._lines is not None:
            try:
                self._lines.send(message)
            except ConnectionLost as gone:
                self.lose(now_s, gone)

    def lose(self, now_s: float, why: Exception) -> None:
        """Drop the connection. A broker that has gone is looked for again at once, unless it was
        found just now; one that sends nonsense after a while."""
        if self._lines is not None:
            self._explain(self._lines, why)
        self.close()
        if not isinstance(why, ConnectionLost):
            self._retry_s = now_s + limits.broker_retry_s

    def leave(self) -> None:
        """Send a farewell, and close, in the process that has connected."""
        if self._lines is not None and os.getpid() == self._pid:
            with contextlib.suppress(ConnectionLost):
                self._lines.send({"say": "leave"})
        self.close()

    def close(self) -> None:
        """Close the connection; the next `receive` makes another."""
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _connect(self, now_s: float) -> bool:
        self._retry_s = now_s + limits.broker_retry_s
        if self._call is None:
            return False
        try:
            self._lines = self._call()
        except WireError as wrong:
            self._log_once(f"the broker at {self._where} is not believed: {wrong}")
        if self._lines is None:
            return False
        self.send(self._hello(now_s), now_s)
        return self._lines is not None

    def _explain(self, lines: Lines, why: Exception) -> None:
        """Log the end of a connection, if a person can do something about it."""
        if isinstance(why, ConnectionLost):
            with contextlib.suppress(ConnectionLost, WireError):  # a refusal may be its last words
                self._log_refusals(lines.receive())
        if isinstance(lines, AuthenticatedLines) and lines.has_answered and not lines.is_proven:
            self._log_once(
                f"the broker at {self._where} has another key: use the same --key-file on both "
                "sides"
            )
        elif not isinstance(why, ConnectionLost):
            self._log_once(f"the broker at {self._where} is not believed: {why}")

    def _log_refusals(self, heard: list[Message]) -> None:
        for message in heard:
            if message["say"] == "refused":
                self._log_once(f"refused by the broker at {self._where}: {message.get('why')}")

    def _log_once(self, text: str) -> None:
        if text not in self._logged and len(self._logged) < 16:
            self._logged.add(text)
            log.warning("%s", text)


# -- where a broker is -----------------------------------------------------------------------------


def find_socket(environ: Mapping[str, str]) -> Path | None:
    """Return the path of this user's broker: $PENSTOCK_BROKER, or the usual place.

    None with PENSTOCK_BROKER=off.
    """
    chosen = environ.get("PENSTOCK_BROKER")
    if chosen:
        return None if chosen == "off" else Path(chosen)
    folder = environ.get("XDG_RUNTIME_DIR")
    if folder:
        return Path(folder, "penstock", "broker.sock")
    return Path("/tmp", f"penstock-{os.getuid()}", "broker.sock")


def find_call(path: str | None) -> tuple[Call | None, str]:
    """Return a function that connects to the broker at a path, or at the usual place, and the
    place.

    With PENSTOCK_BROKER=off the function is None, whatever the path.
    """
    usual = find_socket(os.environ)
    if usual is None:
        return None, ""
    place = usual if path is None else Path(path)
    is_usual = path is None and "PENSTOCK_BROKER" not in os.environ
    return call_by_path(place, is_usual=is_usual), str(place)


def call_by_network(address: Address, key: bytes) -> Call:
    """Return a function that connects to a broker of another host."""

    def call() -> Lines | None:
        try:
            return AuthenticatedLines(address.call(), key, caller=True)
        except OSError:
            return None

    return call


def call_by_path(path: Path, *, is_usual: bool) -> Call:
    """Return a function that connects to the broker of this host.

    The function raises WireError for a broker of a user other than this one and root, in the
    usual place, or if further users could have put the socket there.
    """

    def call() -> Lines | None:
        if not os.path.exists(path):
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(os.fspath(path))
        except OSError:  # nobody there, not for us, or too many just now
            connection.close()
            return None
        user = read_peer(connection).user
        if user not in (os.getuid(), 0):
            folder = None if is_usual else _find_open_folder(path, user)
            if is_usual or folder is not None:
                connection.close()
                where = (
                    f"and other users may write to {folder}" if folder else "in this user's place"
                )
                raise WireError(f"it is user {user}'s, {where}")
        return Lines(connection)

    return call


def _find_open_folder(path: Path, user: int) -> str | None:
    """Return a folder above a socket of `user` into which others could have put the socket, or
    None if only this user, root and `user` could.

    In a sticky folder such as /tmp nobody replaces a socket, but anybody may put it there first.
    """
    trusted = (os.getuid(), 0)
    for way in {os.path.abspath(path), os.path.realpath(path)}:
        child = Path(way)
        for folder in child.parents:
            try:
                mode, owner = folder.stat(), child.lstat().st_uid
            except OSError:
                return str(folder)
            is_kept = mode.st_mode & stat.S_ISVTX and owner in trusted
            if mode.st_uid not in (*trusted, user) or (mode.st_mode & stat.S_IWOTH and not is_kept):
                return str(folder)
            child = folder
    return None


# -- a broker's state, for people and programs -----------------------------------------------------


def watch_broker(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of the broker that serves at a path, now and then once a second.

    See `Ledger.state`. Raises UsageError if no broker serves there, or it does not serve this user;
    WorkerError when the broker has ended, or sends nothing for `limits.broker_answer_s`.
    """
    path = Path(check_path("path", path))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with contextlib.closing(Lines(connection, most=limits.broker_state_bytes)) as lines:
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            remedy = "start `penstock broker`, or name its --socket"
            raise UsageError(f"no broker serves at {path}: {remedy}") from None
        except OSError as error:
            what = f"the broker at {path} cannot be reached ({error})"
            raise UsageError(f"{what}: it serves its own user, or a group that it has") from None
        try:
            lines.send({"say": "watch"})
            while True:
                yield from _receive_states(lines, path)
        except ConnectionLost:
            raise WorkerError(f"the broker at {path} has ended") from None
        except WireError as wrong:
            what = f"the broker at {path} sent a line that is {wrong.why}"
            raise WorkerError(f"{what}: use the same penstock on both sides") from None


def _receive_states(lines: Lines, path: Path) -> Iterator[dict[str, Any]]:
    """Wait for the next messages, and yield the states among them."""
    until_s = time.monotonic() + limits.broker_answer_s
    heard: list[Message] = []
    while not heard:
        wait_s = until_s - time.monotonic()
        if wait_s <= 0 or not select.select([lines], [], [], wait_s)[0]:
            what = f"the broker at {path} has said nothing for {limits.broker_answer_s:g} s"
            raise WorkerError(f"{what}: look whether its process is stopped")
        heard = lines.receive()
    for message in heard:
        if message["say"] == "refused":
            raise UsageError(f"refused by the broker at {path}: {message.get('why')}")
        if message["say"] == "state":
            yield message
