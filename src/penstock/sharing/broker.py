"""Broker of a host: jobs connect, report and leave over a UNIX socket; the ledger divides the host.

A loop over sockets, and nothing else: no threads, no decisions. A process that ends, in whatever
way, closes its connection, and so leaves. Other hosts may connect over TCP, with a key. The storage
that is divided may itself be leased from the broker of another host.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import logging
import math
import os
import resource
import selectors
import socket
import stat
import struct
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import limits
from ..arguments import check_kind, check_path
from ..clock import Clock, SystemClock
from ..errors import UsageError
from ..own_files import open_own
from .address import Address, keep_awake
from .federation import Upstream
from .lease import Report
from .ledger import Ledger
from .wire import (
    VERSION,
    AuthenticatedLines,
    ConnectionLost,
    Lines,
    Message,
    WireError,
    WirePeer,
    read_peer,
)

log = logging.getLogger("penstock")

_PEER_GROUPS = 59
"""SO_PEERGROUPS, for which Python has no name."""
_path_bytes = 107
"""Longest path of a UNIX socket."""
_new = ".new"
"""Suffix of the socket's name while it is made."""
_elsewhere = -1
"""Owner of connections over the network, with the key: no user of this host."""


@dataclass(slots=True)
class _Caller:
    """A connection. It may have joined; it may watch."""

    number: int
    lines: Lines
    owner: int
    since_s: float
    host: str
    joined: bool = False
    watch_s: float | None = None


class Broker:
    """A ledger that is served on a UNIX socket, from when the broker is made; `serve` answers.

    path:      of the socket. Its folder is made if there is none, for the users alone who may join.
               Beside it lies a lock file, held by the broker that serves there: the socket of a
               dead one is taken over.
    group:     a name or number, whose members may join as well; else this user and root alone.
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
        self._ledger = check_kind("ledger", ledger, Ledger, "a penstock.sharing.Ledger")
        if upstream is not None:
            check_kind("upstream", upstream, Upstream, "a penstock.sharing.Upstream")
        if listen is not None:
            how = "a penstock.sharing.Address and the key, of read_key"
            if len(check_kind("listen", listen, tuple, how)) != 2:
                raise UsageError(f"listen has {len(listen)} parts: give {how}")
            check_kind("listen[0]", listen[0], Address, how)
            check_kind("listen[1]", listen[1], bytes, how)
        self._upstream = upstream
        self._clock = SystemClock() if clock is None else clock
        self._group = None if group is None else find_group(group)
        self._counts: Counter[str] = Counter()
        self._callers: dict[int, _Caller] = {}
        self._strangers: set[int] = set()
        self._next = 0
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(limits.broker_members_max, max(1, files - 32))
        self._stopped = False
        with contextlib.ExitStack() as undo:
            _enter(path, self._group)
            undo.enter_context(_lock_socket(path))
            self._listener = undo.enter_context(_open_listener(path, self._group))
            self._wake, self._woken = socket.socketpair()
            undo.callback(self._wake.close)
            undo.callback(self._woken.close)
            self._selector = undo.enter_context(selectors.DefaultSelector())
            # Not methods of this one: then nothing that the finalizer has would keep it.
            self._selector.register(self._listener, selectors.EVENT_READ, Broker._accept)
            self._selector.register(self._woken, selectors.EVENT_READ)
            if listen is not None:
                address, self._key = listen
                self._outer = undo.enter_context(address.listen())
                self._selector.register(self._outer, selectors.EVENT_READ, Broker._accept_network)
            self._finalizer = weakref.finalize(self, _close, undo.pop_all(), os.getpid())
            self._finalizer.atexit = False

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections, and remove the socket."""
        for caller in list(self._callers.values()):
            self._drop(caller)
        if self._upstream is not None:
            self._upstream.close()
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
            # Time passes for those who are here alone.
            timeout = limits.broker_tick_s if self._callers or self._upstream else None
            for key, events in self._selector.select(timeout):
                if isinstance(key.data, _Caller):
                    self._attend(key.data, events)
                elif key.data is not None:
                    key.data(self)
            self._tell(self._now_s())
            self._clock.wait_until_ns(self._clock.now_ns() + limits.broker_nap_ns)

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
        why = None
        if len(self._callers) >= self._most:
            why = f"there are {self._most} connections already"
            self._counts["crowded"] += 1
        elif not self._is_admitted(connection, peer):
            why = f"user {peer.user} is not admitted: this broker serves user {os.getuid()}" + (
                "" if self._group is None else f" and group {self._group}"
            )
            self._counts["strangers"] += 1
            if peer.user not in self._strangers:  # they may try every other second
                self._strangers.add(peer.user)
                log.warning("user %d (process %d) was refused", peer.user, peer.pid)
        if why is not None:
            with contextlib.suppress(ConnectionLost):
                lines.send({"say": "refused", "why": why})
            lines.close()
            return
        self._admit(lines, peer.user)

    def _accept_network(self) -> None:
        """Accept connections over the network, which have yet to show the key.

        Beyond `limits.broker_unproven_max` of them the oldest of the host that has most is ended:
        whoever connects and says nothing keeps no other out.
        """
        for _ in range(limits.broker_unproven_max):  # then others have their turn
            try:
                connection, place = self._outer.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("a connection was not made: %s", error)
                return
            with contextlib.suppress(OSError):  # it has gone again, which is noticed later
                keep_awake(connection)
            strangers = [each for each in self._callers.values() if not each.lines.is_proven]
            if len(strangers) >= limits.broker_unproven_max or len(self._callers) >= self._most:
                self._counts["crowded"] += 1
                if not strangers:
                    connection.close()
                    continue
                ((crowd, _),) = Counter(each.host for each in strangers).most_common(1)
                self._lose(next(each for each in strangers if each.host == crowd))
            lines = AuthenticatedLines(connection, self._key, caller=False)
            self._admit(lines, _elsewhere, place[0])

    def _admit(self, lines: Lines, owner: int, host: str = "") -> None:
        caller = _Caller(self._next, lines, owner, self._now_s(), host)
        self._next += 1
        self._callers[caller.number] = caller
        self._selector.register(lines, selectors.EVENT_READ, caller)

    def _is_admitted(self, connection: socket.socket, peer: WirePeer) -> bool:
        """True if the kernel says that it is this user, root, or a member of the group."""
        if peer.user in (os.getuid(), 0):
            return True
        return self._group is not None and self._group in (peer.group, *_read_groups(connection))

    def _attend(self, caller: _Caller, events: int) -> None:
        """Read the messages of a connection, and send those that it now has room for."""
        try:
            if events & selectors.EVENT_WRITE:
                self._send(caller, None)
            if events & selectors.EVENT_READ:
                for message in caller.lines.receive():
                    if caller.number in self._callers:
                        self._hear(caller, message)
        except WireError as wrong:
            self._refuse(caller, wrong.why, f"a line was {wrong.why}")
            self._drop(caller)
        except ConnectionLost:
            self._lose(caller)

    def _lose(self, caller: _Caller) -> None:
        """Drop a connection that has gone, or did not show the key in time."""
        if not caller.lines.is_proven:
            self._counts["strangers"] += 1
        self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        """Drop a connection; its share goes to the others."""
        if self._callers.pop(caller.number, None) is None:
            return
        if caller.joined:
            self._ledger.leave(caller.number)
        self._ledger.transfers.leave(caller.number, self._now_s())
        self._selector.unregister(caller.lines)
        caller.lines.close()

    # -- what is said ------------------------------------------------------------------------------

    def _hear(self, caller: _Caller, message: Message) -> None:
        say, now_s = message["say"], self._now_s()
        try:
            if say == "join":
                self._join(caller, message, now_s)
            elif say == "report" and caller.joined:
                self._ledger.report(caller.number, now_s, Report.of(message))
            elif say == "leave" and caller.joined:
                caller.joined = False
                self._ledger.leave(caller.number)
            elif say == "transfer":
                self._transfer(caller, message, now_s)
            elif say == "moved":
                key, moved = (
                    _read_transfer_key(caller, message),
                    _read_number(message, "bytes", least=0.0),
                )
                self._ledger.transfers.moved(key, now_s, moved)
            elif say == "transferred":
                self._ledger.transfers.end(_read_transfer_key(caller, message), now_s)
            elif say == "watch":
                caller.watch_s = now_s
            else:
                raise WireError("unexpected")
        except UsageError as error:
            self._refuse(caller, "absurd", str(error))

    def _transfer(self, caller: _Caller, message: Message, now_s: float) -> None:
        """Begin a transfer. Its caller need not have joined: checkpoints have connections of their
        own."""
        job = message.get("job")
        if not isinstance(job, str):
            raise UsageError(f"transfer.job is {job!r:.100}: use str")
        could = message.get("bytes_per_s")
        self._ledger.transfers.begin(
            _read_transfer_key(caller, message),
            now_s,
            owner=caller.owner,
            job=job,
            bytes=_read_number(message, "bytes"),
            could=math.inf if could is None else _read_number(message, "bytes_per_s"),
        )

    def _join(self, caller: _Caller, message: Message, now_s: float) -> None:
        if caller.joined:
            raise WireError("unexpected")
        if message.get("version") != VERSION:
            raise UsageError(
                f"version is {message.get('version')!r:.100}: this broker speaks {VERSION}; use "
                "the same penstock on both sides"
            )
        values: dict[str, Any] = {}
        for name, kind in (("job", str), ("rank", int), ("pid", int), ("name", str)):
            values[name] = message.get(name)
            if type(values[name]) is not kind:
                raise UsageError(f"join.{name} is {values[name]!r:.100}: use {kind.__name__}")
        self._ledger.join(caller.number, now_s, owner=caller.owner, **values)
        caller.joined = True

    def _refuse(self, caller: _Caller, counter: str, why: str) -> None:
        self._counts[counter] += 1
        self._send(caller, {"say": "refused", "why": why[:1000]})

    def _send(self, caller: _Caller, message: Message | None) -> None:
        """Send a message, or go on with bytes that wait. Never raises: a connection that has gone
        is dropped."""
        if caller.number not in self._callers:
            return
        waited = caller.lines.waiting > 0
        try:
            if message is None:
                caller.lines.flush()
            else:
                caller.lines.send(message)
        except ConnectionLost:
            self._drop(caller)
            return
        if (caller.lines.waiting > 0) != waited:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if not waited else 0)
            self._selector.modify(caller.lines, events, caller)

    def _tell(self, now_s: float) -> None:
        """Send new leases and grants to their holders, and the state to those who watch."""
        for caller in list(self._callers.values()):
            if not caller.lines.is_proven and now_s - caller.since_s > limits.broker_proof_s:
                self._lose(caller)
        if self._upstream is not None:
            self._upstream.step(self._ledger, now_s)
        for number, lease in self._ledger.tick(now_s).items():
            self._send(self._callers[number], {"say": "lease", **lease.message()})
        for (number, which), granted in self._ledger.grants(now_s).items():
            if number in self._callers:  # else an earlier one did not reach it
                message = {"say": "grant", "id": which, **granted.message()}
                self._send(self._callers[number], message)
        watching = [
            caller
            for caller in self._callers.values()
            if caller.watch_s is not None and caller.watch_s <= now_s
        ]
        if watching:
            state = {"say": "state", **self.state(now_s)}
            for caller in watching:
                caller.watch_s = now_s + 1.0
                self._send(caller, state)

    def state(self, now_s: float) -> dict[str, Any]:
        """Return the ledger's state, counts of refusals, and this process's processor time, for
        JSON."""
        upstream = None if self._upstream is None else self._upstream.state()
        return {
            **self._ledger.state(now_s),
            "refused": dict(self._counts),
            "upstream": upstream,
            "pid": os.getpid(),
            "cpu_s": time.process_time(),
        }


# -- the socket ------------------------------------------------------------------------------------


def _close(undo: contextlib.ExitStack, owner: int) -> None:
    """Close what a broker has, and remove its socket; a forked child has neither."""
    if os.getpid() == owner:
        undo.close()


def _read_transfer_key(caller: _Caller, message: Message) -> tuple[int, int]:
    """Return the key of the transfer that a message is about."""
    which = message.get("id")
    if type(which) is not int or not 0 <= which < 1 << 53:
        raise UsageError(f"id is {which!r:.100}: use a whole number, 0 or more")
    return caller.number, which


def _read_number(message: Message, name: str, least: float = 1.0) -> float:
    value = message.get(name)
    most = limits.allocation_number_max
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise UsageError(f"{message['say']}.{name} is {value!r:.100}: use {least:g} or more")
    return float(value)  # type: ignore[arg-type]


def find_group(name: str) -> int:
    """Return the number of a group, by its name or number."""
    check_kind("group", name, str, "its name, or its number as a text")
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise UsageError(
            f"group {name!r} is not known: use a name that `getent group` lists"
        ) from None


def _read_groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the further groups of the other side; none if there are more than Python takes,
    256."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _PEER_GROUPS, 1024)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _enter(path: Path, group: int | None) -> None:
    """Make the folder if there is none, and check who can do what in it."""
    if len(os.fsencode(path)) > _path_bytes - len(_new):
        raise UsageError(f"socket {str(path)!r} is too long: use {_path_bytes - len(_new)} bytes")
    folder = path.parent
    try:
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
            if group is not None:
                os.chown(folder, -1, group)
                folder.chmod(0o710)
        status = folder.stat()
        if status.st_uid not in (os.getuid(), 0) or (
            status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        ):
            raise UsageError(
                f"{folder} is another user's, or others may write there (user {status.st_uid}, "
                f"mode {status.st_mode & 0o7777:o}): use a folder of your own"
            )
        for parent in (folder, *folder.absolute().parents) if group is not None else ():
            status = parent.stat()
            if not status.st_mode & (stat.S_IXGRP if status.st_gid == group else stat.S_IXOTH):
                raise UsageError(
                    f"group {group} cannot enter {parent} (mode {status.st_mode & 0o7777:o}): serve"
                    " in a folder that it can enter"
                )
    except OSError as error:
        raise UsageError(f"{folder} cannot be used ({error}): use another folder") from None


@contextlib.contextmanager
def _lock_socket(path: Path) -> Iterator[None]:
    """Hold the right to serve at the path, while this process lives."""
    with contextlib.ExitStack() as undo:
        try:
            file = open_own(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            undo.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 20, 0).decode("ascii", "replace") or "unknown"
            raise UsageError(
                f"a broker serves at {path} already (process {holder}): end it first, or serve at "
                "another path"
            ) from None
        except OSError as error:
            raise UsageError(
                f"socket {str(path)!r} cannot be made ({error}): use another path"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield


@contextlib.contextmanager
def _open_listener(path: Path, group: int | None) -> Iterator[socket.socket]:
    """Make the socket, which appears at its path once it has its mode."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    new = f"{path}{_new}"
    with listener:
        try:
            if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
                raise UsageError(f"{path} is there and no socket: use another path")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            listener.bind(new)
            os.chmod(new, 0o600)
            if group is not None:
                os.chown(new, -1, group)
                os.chmod(new, 0o660)
            listener.listen(128)
            os.replace(new, path)
        except OSError as error:
            raise UsageError(
                f"socket {str(path)!r} cannot be made ({error}): use another path, or a group that "
                "you belong to"
            ) from None
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
