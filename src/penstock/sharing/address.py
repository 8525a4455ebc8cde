"""Address at which other hosts find a broker: tcp://host:port, and the key that they have in
common."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..arguments import check_path
from ..errors import UsageError

_key_bytes_min = 16
_key_bytes_max = 4096
_dead_s = 10


@dataclass(slots=True)
class Address:
    """A host and a port, looked up when it is made: nothing waits for names later.

    Raises UsageError if the text is no address, or the name is not known.
    """

    text: str
    places: list[tuple[int, Any]] = field(init=False)
    """Family and address of each, as sockets know them; the first is the one to be tried next."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.text)
            host, port = parts.hostname, parts.port
        except (ValueError, AttributeError, TypeError):  # no text
            host = port = None
        else:
            if parts.scheme != "tcp" or parts.path or parts.query or parts.fragment:
                host = None
        if not host or port is None:
            raise UsageError(
                f"address {self.text!r} is none: use such as tcp://storage-1:7077 or "
                "tcp://[fd00::1]:7077"
            )
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(f"address {self.text!r} is not found ({error}): correct it") from None
        self.places = [(family, place) for family, _, _, _, place in entries]

    def call(self) -> socket.socket:
        """Begin a connection: never waits.

        Of several addresses, each call tries the next. Raises OSError if it fails at once.
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
        """Make a socket that listens there; raise UsageError if that is not possible."""
        family, place = self.places[0]
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # [::] is for callers by IPv4, too
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(place)
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise UsageError(
                f"nothing can be served at {self.text} ({error}): use an address of this host, and "
                "a port that is free"
            ) from None
        return listener


def keep_awake(connection: socket.socket) -> None:
    """Send lines at once, and notice within some 10 s that a host has vanished."""
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
    """Return the key in a file, without white space around it.

    Raises UsageError if the key is short, or everybody could read it.
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
        raise UsageError(
            f"key file {str(path)!r} is open to everybody (mode {stat.S_IMODE(mode):04o}): chmod "
            "600, and use a new key"
        )
    if not _key_bytes_min <= len(key) <= _key_bytes_max:
        raise UsageError(
            f"key file {str(path)!r} holds {len(key)} bytes: use {_key_bytes_min} to "
            f"{_key_bytes_max}; {how}"
        )
    return key
