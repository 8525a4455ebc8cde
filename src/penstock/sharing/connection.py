"""Connection to a broker: there while a broker is, and never waited for."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from .. import limits
from .address import Address
from .wire import (
    AuthenticatedLines,
    ConnectionLost,
    LineEnd,
    Lines,
    Message,
    WireError,
    find_socket,
    read_peer,
)

log = logging.getLogger("penstock")

Call = Callable[[], LineEnd | None]
"""Function that makes a connection; None if nobody is there now."""


def call_by_path(path: Path, *, own: bool) -> Call:
    """Return a function that connects to the broker of this host.

    The function raises WireError for a broker of another user than this one and root, if `own`, or
    if further users could have put the socket there.
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
            folder = None if own else _find_open_folder(path, user)
            if own or folder is not None:
                connection.close()
                where = (
                    f"and other users may write to {folder}" if folder else "in this user's place"
                )
                raise WireError(f"it is user {user}'s, {where}")
        return Lines(connection)

    return call


def _find_open_folder(path: Path, user: int) -> str | None:
    """Return a folder on the way to a socket of `user` into which others could have put what is
    there now; None if only this user, root and `user` could.

    In a folder such as /tmp nobody exchanges what is there, but whoever comes first puts it there.
    """
    own = (os.getuid(), 0)
    for way in {os.path.abspath(path), os.path.realpath(path)}:
        child = Path(way)
        for folder in child.parents:
            try:
                mode, owner = folder.stat(), child.lstat().st_uid
            except OSError:
                return str(folder)
            kept = mode.st_mode & stat.S_ISVTX and owner in own
            if mode.st_uid not in (*own, user) or (mode.st_mode & stat.S_IWOTH and not kept):
                return str(folder)
            child = folder
    return None


def find_call(path: str | None) -> tuple[Call | None, str]:
    """Return a function that connects to the broker at a path, or at the usual place; and that
    place.

    With PENSTOCK_BROKER=off the function is None, whatever the path.
    """
    usual = find_socket(os.environ)
    if usual is None:
        return None, ""
    place = usual if path is None else Path(path)
    own = path is None and "PENSTOCK_BROKER" not in os.environ
    return call_by_path(place, own=own), str(place)


def call_by_network(address: Address, key: bytes) -> Call:
    """Return a function that connects to a broker of another host."""

    def call() -> Lines | None:
        try:
            return AuthenticatedLines(address.call(), key, caller=True)
        except OSError:
            return None

    return call


class Link:
    """Messages to a broker and from it. A broker is looked for every `limits.broker_retry_s`, and
    at once if a connection is lost that is older than that: it may have begun again.

    call:   None if no broker is to be looked for.
    hello:  makes the first message of every new connection; told the time.
    where:  place of the broker, for people.

    Not for several threads. In a process that was forked it makes a connection of its own.
    """

    def __init__(self, call: Call | None, hello: Callable[[float], Message], where: str) -> None:
        self._call = call
        self._hello = hello
        self._where = where
        self._lines: LineEnd | None = None
        self._pid = os.getpid()
        self._retry_s = -math.inf
        self._told: set[str] = set()

    def fileno(self) -> int | None:
        """Return the descriptor to wait on for messages; None without a broker."""
        return None if self._lines is None else self._lines.fileno()

    @property
    def is_connected(self) -> bool:
        """True if there is a broker, as far as is known."""
        return self._lines is not None

    def receive(self, now_s: float) -> list[Message] | None:
        """Return the messages that have come, without waiting; None without a broker."""
        if self._lines is None and now_s < self._retry_s:
            return None
        if os.getpid() != self._pid:
            self._note_fork()
        if self._lines is None and not self._connect(now_s):
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
        """Return whether all messages have been sent: else the broker does not read now."""
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
        """Give this broker up. One that has gone is looked for again at once, if it was not just
        now; one that is not believed after a while."""
        if self._lines is not None:
            self._explain(self._lines, why)
        self.close()
        if not isinstance(why, ConnectionLost):
            self._retry_s = now_s + limits.broker_retry_s

    def leave(self) -> None:
        """Tell the broker, and close, in the process that has connected."""
        if self._lines is not None and os.getpid() == self._pid:
            with contextlib.suppress(ConnectionLost):
                self._lines.send({"say": "leave"})
        self.close()

    def close(self) -> None:
        """Close the connection; it is made again when it is next asked for."""
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _connect(self, now_s: float) -> bool:
        if now_s < self._retry_s:
            return False
        self._retry_s = now_s + limits.broker_retry_s
        if self._call is None:
            return False
        try:
            self._lines = self._call()
        except WireError as wrong:
            self._tell(f"the broker at {self._where} is not believed: {wrong}")
        if self._lines is None:
            return False
        self.send(self._hello(now_s), now_s)
        return self._lines is not None

    def _explain(self, lines: LineEnd, why: Exception) -> None:
        """Log why the connection has ended, if a person can do something about it."""
        if isinstance(why, ConnectionLost):
            with contextlib.suppress(ConnectionLost, WireError):  # it may have said so
                self._log_refusals(lines.receive())
        if isinstance(lines, AuthenticatedLines) and lines.has_answered and not lines.is_proven:
            self._tell(
                f"the broker at {self._where} has another key: use the same --key-file on both "
                "sides"
            )
        elif not isinstance(why, ConnectionLost):
            self._tell(f"the broker at {self._where} is not believed: {why}")

    def _log_refusals(self, heard: list[Message]) -> None:
        for message in heard:
            if message["say"] == "refused":
                self._tell(f"refused by the broker at {self._where}: {message.get('why')}")

    def _tell(self, text: str) -> None:
        """Log a text once."""
        if text not in self._told and len(self._told) < 16:
            self._told.add(text)
            log.warning("%s", text)

    def _note_fork(self) -> None:
        """Leave the parent's connection to the parent."""
        self.close()  # of this process's copy alone
        self._pid, self._retry_s = os.getpid(), -math.inf
