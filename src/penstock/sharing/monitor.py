"""State of a broker, for people and programs that watch it."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from .. import limits
from ..arguments import check_path
from ..errors import UsageError, WorkerError
from .wire import ConnectionLost, Lines, Message, WireError


def watch_broker(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of the broker that serves at a path, now and then once a second.

    See `Ledger.state`. Raises UsageError if no broker serves there, or it does not serve this user;
    WorkerError when the broker has ended, or sends nothing for `limits.broker_answer_s`.
    """
    path = Path(check_path("path", path))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with closing(Lines(connection, most=limits.broker_state_bytes)) as lines:
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            raise UsageError(
                f"no broker serves at {path}: start one with `penstock broker`, or say with "
                "--socket where it is"
            ) from None
        except OSError as error:
            raise UsageError(
                f"the broker at {path} cannot be reached ({error}): it serves its own user, or a "
                "group that it was given"
            ) from None
        try:
            lines.send({"say": "watch"})
            while True:
                yield from _receive_states(lines, path)
        except ConnectionLost:
            raise WorkerError(f"the broker at {path} has ended") from None
        except WireError as wrong:
            raise WorkerError(
                f"the broker at {path} sent a line that is {wrong.why}: use the same penstock on "
                "both sides"
            ) from None


def _receive_states(lines: Lines, path: Path) -> Iterator[dict[str, Any]]:
    """Wait for the next messages, and yield the states among them."""
    until_s = time.monotonic() + limits.broker_answer_s
    heard: list[Message] = []
    while not heard:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([lines], [], [], left_s)[0]:
            raise WorkerError(
                f"the broker at {path} has said nothing for {limits.broker_answer_s:g} s: look "
                "whether its process is stopped"
            )
        heard = lines.receive()
    for message in heard:
        if message["say"] == "refused":
            raise UsageError(f"refused by the broker at {path}: {message.get('why')}")
        if message["say"] == "state":
            yield message
