"""What a broker and its jobs say to each other: JSON objects, one a line, on a stream socket.

Neither side waits for the other, and nothing that came is believed: who says what is too long or
no object is told apart from who has gone.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import limits

VERSION = 1
Message = dict[str, Any]
_PEER = struct.Struct("3i")
_read_bytes = 16 * 1024


class Wrong(Exception):
    """A line that is not taken; `why` is the name of its counter."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Gone(Exception):
    """The other side has closed the connection, or does not read what it is sent."""


class Lines:
    """One end of a connection. It owns the socket, which it makes non-blocking.

    most:  bytes of the longest line that is taken.
    """

    def __init__(self, connection: socket.socket, *, most: int = limits.broker_line_bytes) -> None:
        connection.setblocking(False)
        self._socket = connection
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        self._come = poll.poll
        self._most = most
        self._room = bytearray(_read_bytes)
        self._begun = b""
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Bytes that have not gone yet."""
        return len(self._unsent)

    def receive(self) -> list[Message]:
        """What has come since, without waiting. Raises Wrong at a line that is none, Gone at the
        end."""
        if not self._come(0):  # a quarter of what trying to read would take
            return []
        try:
            count = self._socket.recv_into(self._room)
        except OSError as error:
            raise Gone(str(error)) from None
        if not count:
            raise Gone("closed")
        *whole, self._begun = (self._begun + self._room[:count]).split(b"\n")
        if max(map(len, (*whole, self._begun))) > self._most:
            raise Wrong("oversized")
        return [_message(line) for line in whole]

    def send(self, message: Mapping[str, Any]) -> None:
        """Says something, now or as soon as there is room. Raises Gone where too much waits, or the
        other side has gone."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()
        if len(self._unsent) > limits.broker_waiting_bytes:
            raise Gone("does not read")

    def flush(self) -> None:
        """Sends what waits, as far as there is room."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise Gone(str(error)) from None
            del self._unsent[:sent]

    def close(self) -> None:
        self._socket.close()


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise Wrong("malformed") from None
    if not isinstance(message, dict) or not isinstance(message.get("say"), str):
        raise Wrong("malformed")
    return message


class Peer(NamedTuple):
    """The process at the other end, as it was when it connected or began to listen."""

    pid: int
    user: int
    group: int


def peer_of(connection: socket.socket) -> Peer:
    """Who the kernel says is at the other end of a UNIX socket."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return Peer(*_PEER.unpack(found))


def socket_path(environ: Mapping[str, str]) -> Path | None:
    """Where the broker of this user is found, unless it is said elsewhere; None where none is to be
    looked for: PENSTOCK_BROKER=off."""
    given = environ.get("PENSTOCK_BROKER")
    if given:
        return None if given == "off" else Path(given)
    folder = environ.get("XDG_RUNTIME_DIR")
    if folder:
        return Path(folder, "penstock", "broker.sock")
    return Path("/tmp", f"penstock-{os.getuid()}", "broker.sock")
