"""Connections between brokers and jobs: JSON objects, one a line, on a UNIX or TCP socket.

Neither side waits for the other, and every received line is checked: a line that is too long or no
object raises WireError, a closed connection ConnectionLost. Over a network both sides need the same
key; connections without the key are dropped without a reply (`AuthenticatedLines`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .. import limits
from ..arguments import check_path
from ..errors import UsageError

VERSION = 1
Message = dict[str, Any]
_PEER = struct.Struct("3i")
_read_bytes = 16 * 1024
_code_bytes = 2 * hashlib.sha256().digest_size
_caller, _called = b"caller", b"called"
_key_bytes_min = 16
_key_bytes_max = 4096
_dead_s = 10
"""Seconds after which TCP reports a host that has vanished."""


class WireError(Exception):
    """A line that is rejected; `why` is the name of its counter."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class ConnectionLost(Exception):
    """The other side has closed the connection, or does not read the lines that it is sent."""


class Lines:
    """One end of a connection; owns the socket, and makes it non-blocking.

    most:  largest bytes of a line.
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
        """True once the other side is known; the kernel vouches for a UNIX socket."""
        return True

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Bytes to send."""
        return len(self._unsent)

    def receive(self) -> list[Message]:
        """Return the messages that have arrived, without waiting.

        Raises WireError for a rejected line, and ConnectionLost at the end of the connection.
        """
        if not self._come(0):  # takes a quarter of the time of a read in vain
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

        Raises ConnectionLost if too many bytes wait, or the other side has gone.
        """
        self._put(json.dumps(message, separators=(",", ":")).encode())
        self.flush()
        if self.waiting > limits.broker_waiting_bytes:
            raise ConnectionLost("does not read")

    def flush(self) -> None:
        """Send waiting bytes until the socket is full."""
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
        self._unsent += line + b"\n"

    def _parse_lines(self, lines: list[bytes]) -> list[Message]:
        return [parse_message(line) for line in lines]


class AuthenticatedLines(Lines):
    """Lines authenticated by a key that both sides have, for networks.

    Each side sends a nonce first. Every later line starts with its code: HMAC-SHA256, by the key,
    of both nonces, the sending side, the number of lines it has sent before, and the line. So
    WireError("forged") is raised for a line that was made without the key, changed, left out,
    moved, or sent before, on this connection or another. Lines are not encrypted.

    caller:  True on the side that has connected.
    """

    def __init__(self, connection: socket.socket, key: bytes, *, caller: bool) -> None:
        super().__init__(connection, most=limits.broker_line_bytes + _code_bytes)
        self._key = key
        self._sides = (_caller, _called) if caller else (_called, _caller)
        self._nonces = [os.urandom(32).hex().encode(), b""]
        self._counts = [0, 0]
        self._unsigned: list[bytes] = []
        super()._put(self._nonces[0])

    @property
    def is_proven(self) -> bool:
        """True once the other side has shown that it has the key."""
        return self._counts[1] > 0

    @property
    def has_answered(self) -> bool:
        """True once the other side has sent its nonce."""
        return bool(self._nonces[1])

    @property
    def waiting(self) -> int:
        return super().waiting + sum(map(len, self._unsigned))

    def _put(self, line: bytes) -> None:
        """Queue the line with its code, or keep it until the other side's nonce is known."""
        if self._nonces[1]:
            super()._put(self._compute_code(0, line) + line)
            self._counts[0] += 1
        else:
            self._unsigned.append(line)

    def _parse_lines(self, lines: list[bytes]) -> list[Message]:
        if lines and not self._nonces[1]:
            nonce = lines.pop(0)
            if len(nonce) != _code_bytes or nonce == self._nonces[0]:
                raise WireError("forged")
            self._nonces[1] = nonce
            lines_before, self._unsigned = self._unsigned, []
            for line in lines_before:
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
        """Return the code of the next line from this side (0) or the other (1)."""
        nonces = self._nonces if self._sides[0] == _caller else self._nonces[::-1]
        count = self._counts[side].to_bytes(8, "big")
        whole = b"".join((*nonces, self._sides[side], count, line))
        return hmac.digest(self._key, whole, "sha256").hex().encode()


def parse_message(line: bytes) -> Message:
    """Return the message in a line; raise WireError for any other line."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("malformed") from None
    if not isinstance(message, dict) or not isinstance(message.get("say"), str):
        raise WireError("malformed")
    return message


class WirePeer(NamedTuple):
    """Process at the other end, at the time when it connected or started to listen, as the kernel
    knows it."""

    pid: int
    user: int
    group: int


def read_peer(connection: socket.socket) -> WirePeer:
    """Return the process at the other end of a UNIX socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return WirePeer(*_PEER.unpack(raw))


# -- addresses and keys, for TCP ------------------------------------------------------------------


@dataclass(slots=True)
class Address:
    """Address of a broker, tcp://host:port; looked up once, so that nothing waits for names later.

    Raises UsageError for another text, or an unknown name.
    """

    text: str
    places: list[tuple[int, Any]] = field(init=False)
    """Socket addresses, each with its kind; the first is tried next."""

    def __post_init__(self) -> None:
        try:
            url = urlsplit(self.text)
            host, port = url.hostname, url.port
            is_address = url.scheme == "tcp" and not (url.path or url.query or url.fragment)
        except (ValueError, AttributeError, TypeError):  # no text
            is_address = False
        if not (is_address and host and port is not None):
            raise UsageError(f"address {self.text!r}: use tcp://host:7077 or tcp://[fd00::1]:7077")
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(f"address {self.text!r} is not found ({error}): correct it") from None
        self.places = [(family, place) for family, _, _, _, place in entries]

    def call(self) -> socket.socket:
        """Start a connection without waiting; each call tries the next of several addresses.

        Raises OSError if it fails at once.
        """
        family, place = self.places[0]
        self.places.append(self.places.pop(0))
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            keep_awake(connection)
            connection.connect(place)
        except BlockingIOError:
            pass
        except OSError:
            connection.close()
            raise
        return connection

    def listen(self) -> socket.socket:
        """Listen at the address; raise UsageError if that fails."""
        family, place = self.places[0]
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # restart at once
            if family == socket.AF_INET6:  # [::] accepts IPv4 as well
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(place)
            listener.listen(128)
        except OSError as error:
            listener.close()
            what = f"cannot listen at {self.text} ({error})"
            raise UsageError(f"{what}: use this host's address and a free port") from None
        return listener


def keep_awake(connection: socket.socket) -> None:
    """Send lines at once, and notice a vanished host within some 10 s."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _dead_s // 2),
        (socket.TCP_KEEPINTVL, 2),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, _dead_s * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def read_key(path: Path) -> bytes:
    """Read a key from a file, without white space around it.

    Raises UsageError for a short key, or a file that everybody can read.
    """
    path = Path(check_path("key file", path))
    how = f"make it with `(umask 077; openssl rand -hex 32 > {path})`"
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(_key_bytes_max + 1).strip()
    except OSError as error:
        raise UsageError(f"key file {str(path)!r} cannot be read ({error}): {how}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        what = f"key file {str(path)!r} is open to everybody ({stat.S_IMODE(mode):04o})"
        raise UsageError(f"{what}: chmod 600, and use a new key")
    if not _key_bytes_min <= len(key) <= _key_bytes_max:
        sizes = f"{len(key)} bytes: use {_key_bytes_min} to {_key_bytes_max}"
        raise UsageError(f"key file {str(path)!r} holds {sizes}; {how}")
    return key
