"""What a broker and its jobs say to each other: JSON objects, one a line, on a stream socket.

Neither side waits for the other, and nothing that came is believed: who says what is too long or
no object is told apart from who has gone. Over a network, who has not the key is neither heard nor
answered.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .. import limits

VERSION = 1
Message = dict[str, Any]
_PEER = struct.Struct("3i")
_read_bytes = 16 * 1024
_code_bytes = 2 * hashlib.sha256().digest_size
_caller, _called = b"caller", b"called"


class WireError(Exception):
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

    @property
    def proven(self) -> bool:
        """Whether the other side is who it should be: the kernel knows it of a UNIX socket."""
        return True

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
            raise WireError("oversized")
        return self._taken(whole)

    def send(self, message: Mapping[str, Any]) -> None:
        """Says something, now or as soon as there is room. Raises Gone where too much waits, or the
        other side has gone."""
        self._put(json.dumps(message, separators=(",", ":")).encode())
        self.flush()
        if self.waiting > limits.broker_waiting_bytes:
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

    def _put(self, line: bytes) -> None:
        """A line that is to be said."""
        self._unsent += line + b"\n"

    def _taken(self, lines: list[bytes]) -> list[Message]:
        """What lines say that have come."""
        return [_message(line) for line in lines]


class Sealed(Lines):
    """Lines between two who have a key in common, on a network that others reach, too.

    Each side begins with a nonce. Before every line after that stands its code: HMAC-SHA256, by the
    key, of both nonces, of which side says it, how many lines it has said before, and the line. So
    a line is Wrong("forged") that was made without the key, was changed, left out, put elsewhere,
    or said before, on this connection or another. Who listens can read what is said.

    caller:  this side has called the other.
    """

    def __init__(
        self,
        connection: socket.socket,
        key: bytes,
        *,
        caller: bool,
        most: int = limits.broker_line_bytes,
    ) -> None:
        super().__init__(connection, most=most + _code_bytes)
        self._key = key
        self._sides = (_caller, _called) if caller else (_called, _caller)
        self._nonces = [os.urandom(32).hex().encode(), b""]
        self._counts = [0, 0]
        self._held: list[bytes] = []
        super()._put(self._nonces[0])

    @property
    def proven(self) -> bool:
        """Whether the other side has shown that it has the key."""
        return self._counts[1] > 0

    @property
    def answered(self) -> bool:
        """Whether there is somebody at all who speaks this."""
        return bool(self._nonces[1])

    @property
    def waiting(self) -> int:
        return super().waiting + sum(map(len, self._held))

    def _put(self, line: bytes) -> None:
        """Sealed, or kept until the other's nonce is there."""
        if self._nonces[1]:
            super()._put(self._code(0, line) + line)
            self._counts[0] += 1
        else:
            self._held.append(line)

    def _taken(self, lines: list[bytes]) -> list[Message]:
        if lines and not self._nonces[1]:
            nonce = lines.pop(0)
            if len(nonce) != _code_bytes or nonce == self._nonces[0]:
                raise WireError("forged")
            self._nonces[1] = nonce
            held, self._held = self._held, []
            for line in held:
                self._put(line)
            self.flush()
        found = []
        for line in lines:
            code, line = line[:_code_bytes], line[_code_bytes:]
            if not hmac.compare_digest(code, self._code(1, line)):
                raise WireError("forged")
            self._counts[1] += 1
            found.append(_message(line))
        return found

    def _code(self, side: int, line: bytes) -> bytes:
        """Of the next line that this side says (0), or the other (1)."""
        nonces = self._nonces if self._sides[0] == _caller else self._nonces[::-1]
        count = self._counts[side].to_bytes(8, "big")
        whole = b"".join((*nonces, self._sides[side], count, line))
        return hmac.digest(self._key, whole, "sha256").hex().encode()


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("malformed") from None
    if not isinstance(message, dict) or not isinstance(message.get("say"), str):
        raise WireError("malformed")
    return message


class WirePeer(NamedTuple):
    """The process at the other end, as it was when it connected or began to listen."""

    pid: int
    user: int
    group: int


def peer_of(connection: socket.socket) -> WirePeer:
    """Who the kernel says is at the other end of a UNIX socket."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return WirePeer(*_PEER.unpack(found))


def find_socket(environ: Mapping[str, str]) -> Path | None:
    """Where the broker of this user is found, unless it is said elsewhere; None where none is to be
    looked for: PENSTOCK_BROKER=off."""
    given = environ.get("PENSTOCK_BROKER")
    if given:
        return None if given == "off" else Path(given)
    folder = environ.get("XDG_RUNTIME_DIR")
    if folder:
        return Path(folder, "penstock", "broker.sock")
    return Path("/tmp", f"penstock-{os.getuid()}", "broker.sock")
