"""Broker of a host: jobs connect, report and leave over a UNIX socket; the ledger divides the host.

A loop over sockets, and nothing else: no threads, and no decisions: `broker_session` decides.
A process that ends, in whatever way, closes its connection, and so leaves. Other hosts may connect
over TCP, with a key. The storage that is divided may itself be leased from the broker of another
host.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import logging
import os
import resource
import selectors
import socket
import stat
import struct
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import limits
from ..arguments import check_kind, check_path
from ..clock import Clock, SystemClock
from ..errors import UsageError
from ..own_files import open_own
from .broker_session import BrokerSession, EndConnection, SendMessage
from .connection import (
    Address,
    AuthenticatedLines,
    ConnectionLost,
    Lines,
    Message,
    WireError,
    keep_awake,
    read_peer,
)
from .federation import Upstream
from .ledger import Ledger

log = logging.getLogger("penstock")

_PEER_GROUPS = 59
"""SO_PEERGROUPS, for which Python has no name."""
_path_bytes = 107
"""Longest path of a UNIX socket."""
_new = ".new"
"""Suffix of the socket's name while it is made."""


class Broker:
    """A ledger that is served on a UNIX socket, from when the broker is made; `serve` answers.

    path:      of the socket. Its folder is made if there is none, for the users alone who may join.
               Beside it is a lock file, held by the broker that serves there: the socket of a
               dead broker is taken over.
    group:     a name or number: its members may join as well; else this user and root alone.
    listen:    address at which other hosts that have the key may join over a network, and that key.
    upstream:  broker that the bandwidth of storage is leased from.

    Raises UsageError if another broker serves, the socket cannot be made, or its folder is one in
    which another user could put another socket.
    """

    def __init__(
        self,
        path: Path,
        ledger: Ledger,
        *,
        group: str | None = None,
        listen: tuple[Address, bytes] | None = None,
        upstream: Upstream | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = path = Path(check_path("path", path))
        check_kind("ledger", ledger, Ledger, "a penstock.sharing.Ledger")
        if upstream is not None:
            check_kind("upstream", upstream, Upstream, "a penstock.sharing.Upstream")
        if listen is not None:
            how = "a penstock.sharing.Address and the key, of read_key"
            if len(check_kind("listen", listen, tuple, how)) != 2:
                raise UsageError(f"listen is {listen!r:.60}: give {how}")
            address, self._key = listen
            check_kind("listen[0]", address, Address, how)
            check_kind("listen[1]", self._key, bytes, how)
        self._clock = SystemClock() if clock is None else clock
        self._group = None if group is None else find_group(group)
        self._lines: dict[int, Lines] = {}
        self._strangers: set[int] = set()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._session = BrokerSession(
            ledger,
            None if upstream is None else upstream.share,
            min(limits.broker_members_max, max(1, files - 32)),
            lambda: {"pid": os.getpid(), "cpu_s": time.process_time()},
        )
        self._stopped = False
        with contextlib.ExitStack() as undo:
            with _refuse_path(path):
                _enter(path, self._group)
                _lock_socket(path, undo)
                self._listener = _open_listener(path, self._group, undo)
            self._wake, self._woken = socket.socketpair()
            undo.callback(self._wake.close)
            undo.callback(self._woken.close)
            self._selector = undo.enter_context(selectors.DefaultSelector())
            # Not methods of this one: then nothing that the finalizer has would keep it.
            self._selector.register(self._listener, selectors.EVENT_READ, Broker._accept)
            self._selector.register(self._woken, selectors.EVENT_READ)
            if listen is not None:
                self._outer = undo.enter_context(address.listen())
                self._selector.register(self._outer, selectors.EVENT_READ, Broker._accept_network)
            self._finalizer = weakref.finalize(self, _close, undo.pop_all(), os.getpid())
            self._finalizer.atexit = False

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections, and remove the socket."""
        self._session.end(self._now_s())
        self._perform()
        self._finalizer()

    def stop(self) -> None:
        """Let `serve` return; from any thread or signal handler."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def serve(self) -> None:
        """Answer until stopped.

        Many messages are answered at a time, a few times a second, so that no member takes the
        processor by talking.
        """
        while not self._stopped:
            for key, events in self._selector.select(self._session.wait_s):
                if isinstance(key.data, int):
                    self._attend(key.data, events)
                elif key.data is not None:
                    key.data(self)
                self._perform()
            self._session.tick(self._now_s())
            self._perform()
            self._clock.wait_until_ns(self._clock.now_ns() + limits.broker_nap_ns)

    def state(self, now_s: float) -> dict[str, Any]:
        """Return the ledger's state, counts of refusals, and this process's processor time, for
        JSON."""
        return self._session.state(now_s)

    def _now_s(self) -> float:
        return self._clock.now_ns() * 1e-9

    # -- who calls ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept all connections that wait."""
        with contextlib.suppress(OSError):  # nobody else, or one that has gone again
            while True:
                connection, _ = self._listener.accept()
                self._meet(connection)

    def _meet(self, connection: socket.socket) -> None:
        """Admit a connection, or tell it why not."""
        peer = read_peer(connection)
        lines = Lines(connection)
        why_not = None
        is_admitted = peer.user in (os.getuid(), 0) or (
            self._group is not None and self._group in (peer.group, *_read_groups(connection))
        )
        if not is_admitted:
            why_not = f"user {peer.user} is not admitted: this broker serves user {os.getuid()}" + (
                "" if self._group is None else f" and group {self._group}"
            )
            if peer.user not in self._strangers:  # they may try every other second
                self._strangers.add(peer.user)
                log.warning("user %d (process %d) was refused", peer.user, peer.pid)
        met = self._session.meet(self._now_s(), peer.user, why_not)
        if isinstance(met, int):
            self._register(met, lines)
            return
        with contextlib.suppress(ConnectionLost):
            lines.send({"say": "refused", "why": met})
        lines.close()

    def _accept_network(self) -> None:
        """Accept connections over the network; they have yet to show the key."""
        for _ in range(limits.broker_unproven_max):  # then others have their turn
            try:
                connection, place = self._outer.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("a connection was not made: %s", error)
                return
            with contextlib.suppress(OSError):  # it has gone again; noticed later
                keep_awake(connection)
            met = self._session.meet_stranger(self._now_s(), place[0])
            if met is None:
                connection.close()
            else:
                self._register(met, AuthenticatedLines(connection, self._key, caller=False))
            self._perform()

    def _register(self, number: int, lines: Lines) -> None:
        self._lines[number] = lines
        self._selector.register(lines, selectors.EVENT_READ, number)

    # -- what is said ------------------------------------------------------------------------------

    def _attend(self, number: int, events: int) -> None:
        """Read the messages of a connection, and send those that it now has room for."""
        if events & selectors.EVENT_WRITE:
            self._send(number, None)
        lines = self._lines.get(number)
        if lines is None or not events & selectors.EVENT_READ:
            return
        try:
            messages = lines.receive()
        except WireError as wrong:
            self._session.reject(number, wrong.why, self._now_s())
            return
        except ConnectionLost:
            self._session.lose(number, self._now_s())
            return
        if lines.is_proven:
            self._session.prove(number)
        for message in messages:
            self._session.hear(number, message, self._now_s())

    def _perform(self) -> None:
        """Perform the actions of the session."""
        actions = self._session.actions
        while actions:
            match actions.popleft():
                case SendMessage(number, message):
                    self._send(number, message)
                case EndConnection(number):
                    lines = self._lines.pop(number)
                    self._selector.unregister(lines)
                    lines.close()

    def _send(self, number: int, message: Message | None) -> None:
        """Send a message, or go on with bytes that wait. Never raises: a connection that has gone
        is lost."""
        lines = self._lines.get(number)
        if lines is None:
            return
        waited = lines.waiting > 0
        try:
            if message is None:
                lines.flush()
            else:
                lines.send(message)
        except ConnectionLost:
            self._session.lose(number, self._now_s())
            return
        if (lines.waiting > 0) != waited:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if not waited else 0)
            self._selector.modify(lines, events, number)


# -- the socket ------------------------------------------------------------------------------------


def _close(undo: contextlib.ExitStack, owner: int) -> None:
    """Close what a broker has, and remove its socket; a forked child has neither."""
    if os.getpid() == owner:
        undo.close()


def find_group(name: str) -> int:
    """Return the number of a group, by its name or number."""
    check_kind("group", name, str, "its name, or its number as a text")
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise UsageError(f"group {name!r} is not known: give one of `getent group`") from None


def _read_groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the further groups of the other side; none if there are more than Python takes,
    256."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _PEER_GROUPS, 1024)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


@contextlib.contextmanager
def _refuse_path(path: Path) -> Iterator[None]:
    """Turn errors of the system about the socket's path into a UsageError."""
    try:
        yield
    except OSError as error:
        what = f"socket {str(path)!r} cannot be made ({error})"
        raise UsageError(f"{what}: use another path, or a group that you belong to") from None


def _enter(path: Path, group: int | None) -> None:
    """Make the folder if there is none, and check who can do what in it."""
    if len(os.fsencode(path)) > _path_bytes - len(_new):
        raise UsageError(f"socket {str(path)!r} is too long: use {_path_bytes - len(_new)} bytes")
    folder = path.parent
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True)
        if group is not None:
            os.chown(folder, -1, group)
            folder.chmod(0o710)
    status = folder.stat()
    is_open = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if status.st_uid not in (os.getuid(), 0) or is_open:
        whose = f"user {status.st_uid}, mode {status.st_mode & 0o7777:o}"
        raise UsageError(f"others may write to {folder} ({whose}): use a folder of your own")
    for parent in (folder, *folder.absolute().parents) if group is not None else ():
        status = parent.stat()
        if not status.st_mode & (stat.S_IXGRP if status.st_gid == group else stat.S_IXOTH):
            mode = f"mode {status.st_mode & 0o7777:o}"
            raise UsageError(f"group {group} cannot enter {parent} ({mode}): serve where it can")


def _lock_socket(path: Path, undo: contextlib.ExitStack) -> None:
    """Hold the right to serve at the path, while this process lives."""
    file = open_own(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    undo.callback(os.close, file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 20, 0).decode("ascii", "replace") or "unknown"
        what = f"a broker serves at {path} already (process {holder})"
        raise UsageError(f"{what}: end it first, or serve at another path") from None
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)


def _open_listener(path: Path, group: int | None, undo: contextlib.ExitStack) -> socket.socket:
    """Make the socket; it appears at its path once it has its mode."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    undo.enter_context(listener)
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise UsageError(f"{path} is there and no socket: use another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
        if caller.connect_ex(str(path)) in (0, errno.EAGAIN):  # its lock was removed, as old files
            what = f"a broker serves at {path} already"
            raise UsageError(f"{what}: end it first, or serve at another path")
    new = Path(f"{path}{_new}")
    new.unlink(missing_ok=True)
    listener.bind(str(new))
    new.chmod(0o600)
    if group is not None:
        os.chown(new, -1, group)
        new.chmod(0o660)
    listener.listen(128)
    new.replace(path)
    undo.callback(_remove, path, path.stat().st_ino)
    return listener


def _remove(path: Path, inode: int) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:  # not that of a broker which came after
            path.unlink()
