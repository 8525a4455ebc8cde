"""Wire between a broker and its jobs: JSON objects, one a line, on a stream socket.

Neither side waits for the other, and every received line is checked: a line that is too long or no
object is an error of its own, apart from a connection that has closed. Over a network, connections
without the key are dropped without a reply.
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
from typing import Any, NamedTuple, Protocol

from .. import limits

VERSION = 1
Message = dict[str, Any]
_PEER = struct.Struct("3i")
_read_bytes = 16 * 1024
_code_bytes = 2 * hashlib.sha256().digest_size
_caller, _called = b"caller", b"called"


class WireError(Exception):
    """A line that is rejected; `why` is the name of its counter."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class ConnectionLost(Exception):
    """The other side has closed the connection, or does not read the lines that it is sent."""


class LineEnd(Protocol):
    """One end of a connection: lines come whole and in order, or not at all."""

    @property
    def waiting(self) -> int: ...

    def fileno(self) -> int: ...

    def receive(self) -> list[Message]: ...

    def send(self, message: Mapping[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


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
    def is_proven(self) -> bool:
        """True if the other side is who it should be: the kernel knows it of a UNIX socket."""
        return True

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Bytes that have not been sent yet."""
        return len(self._unsent)

    def receive(self) -> list[Message]:
        """Return the messages that have come, without waiting.

        Raises WireError at a line that is rejected, and ConnectionLost at the end of the
        connection.
        """
        if not self._come(0):  # a quarter of what trying to read would take
            return []
        try:
            count = self._socket.recv_into(self._room)
        except OSError as error:
            raise ConnectionLost(str(error)) from None
        if not count:
            raise ConnectionLost("closed")
        *whole, self._begun = (self._begun + self._room[:count]).split(b"\n")
        if max(map(len, (*whole, self._begun))) > self._most:
            raise WireError("oversized")
        return self._parse_lines(whole)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, now or as soon as there is room.

        Raises ConnectionLost if too much waits, or the other side has gone.
        """
        self._put(json.dumps(message, separators=(",", ":")).encode())
        self.flush()
        if self.waiting > limits.broker_waiting_bytes:
            raise ConnectionLost("does not read")

    def flush(self) -> None:
        """Send the bytes that wait, as far as there is room."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionLost(str(error)) from None
            del self._unsent[:sent]

    def close(self) -> None:
        self._socket.close()

    def _put(self, line: bytes) -> None:
        """Queue a line to be sent."""
        self._unsent += line + b"\n"

    def _parse_lines(self, lines: list[bytes]) -> list[Message]:
        """Return the messages in lines that have come."""
        return [parse_message(line) for line in lines]


class AuthenticatedLines(Lines):
    """Lines that are authenticated by a key that both sides have, on a network that others reach
    too.

    Each side begins with a nonce. Every line after that begins with its code: HMAC-SHA256, by the
    key, of both nonces, the side that sends it, the number of lines which that side has sent
    before, and the line. So WireError("forged") is raised for a line that was made without the key,
    changed, left out, moved, or sent before, on this connection or another. Lines are not
    encrypted: others on the network can read them.

    caller:  True if this side has called the other.
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
    def is_proven(self) -> bool:
        """True if the other side has shown that it has the key."""
        return self._counts[1] > 0

    @property
    def has_answered(self) -> bool:
        """True if the other side speaks this protocol at all."""
        return bool(self._nonces[1])

    @property
    def waiting(self) -> int:
        return super().waiting + sum(map(len, self._held))

    def _put(self, line: bytes) -> None:
        """Queue the line with its code, or keep it until the other side's nonce is there."""
        if self._nonces[1]:
            super()._put(self._compute_code(0, line) + line)
            self._counts[0] += 1
        else:
            self._held.append(line)

    def _parse_lines(self, lines: list[bytes]) -> list[Message]:
        if lines and not self._nonces[1]:
            nonce = lines.pop(0)
            if len(nonce) != _code_bytes or nonce == self._nonces[0]:
                raise WireError("forged")
            self._nonces[1] = nonce
            held, self._held = self._held, []
            for line in held:
                self._put(line)
            self.flush()
        messages = []
        for line in lines:
            code, line = line[:_code_bytes], line[_code_bytes:]
            if not hmac.compare_digest(code, self._compute_code(1, line)):
                raise WireError("forged")
            self._counts[1] += 1
            messages.append(parse_message(line))
        return messages

    def _compute_code(self, side: int, line: bytes) -> bytes:
        """Return the code of the next line that this side sends (0), or the other (1)."""
        nonces = self._nonces if self._sides[0] == _caller else self._nonces[::-1]
        count = self._counts[side].to_bytes(8, "big")
        whole = b"".join((*nonces, self._sides[side], count, line))
        return hmac.digest(self._key, whole, "sha256").hex().encode()


def parse_message(line: bytes) -> Message:
    """Return the message in a line; raise WireError if it is none."""
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


def read_peer(connection: socket.socket) -> WirePeer:
    """Return the process that the kernel names at the other end of a UNIX socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return WirePeer(*_PEER.unpack(raw))


def find_socket(environ: Mapping[str, str]) -> Path | None:
    """Return the path at which the broker of this user is found; None if none is to be looked for.

    $PENSTOCK_BROKER is another path, or "off" for none.
    """
    chosen = environ.get("PENSTOCK_BROKER")
    if chosen:
        return None if chosen == "off" else Path(chosen)
    folder = environ.get("XDG_RUNTIME_DIR")
    if folder:
        return Path(folder, "penstock", "broker.sock")
    return Path("/tmp", f"penstock-{os.getuid()}", "broker.sock")
