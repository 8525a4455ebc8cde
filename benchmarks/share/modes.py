"""The modes: each decides in its way what the jobs of a host get."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from benchmarks.contender import ContenderError
from penstock.sharing.allocation import Objective, Resources, even_share
from penstock.sharing.job_state import Share

from .host import UNLIMITED, Host

JOIN_S = 5.0
"""Until jobs have found a broker that was started, and it has measured them."""
START_S = 20.0


class Mode(Protocol):
    """Holds jobs that run to what it decides."""

    name: str

    def over(self, host: Host) -> AbstractContextManager[None]:
        """Within, jobs have what it decided; it has had its time to decide."""
        ...


class Static:
    """Shares that stay as they are."""

    def __init__(self, name: str, shares: Sequence[Share]) -> None:
        self.name, self.shares = name, list(shares)

    @contextmanager
    def over(self, host: Host) -> Iterator[None]:
        host.share(self.shares)
        yield


class Unmanaged:
    """No limits: what the kernel and the storage give."""

    name = "unmanaged"

    @contextmanager
    def over(self, host: Host) -> Iterator[None]:
        host.hold([UNLIMITED] * len(host.running))
        yield


def even_shares(count: int, resources: Resources) -> list[Share]:
    return [even_share([None] * count, resources)] * count


def even(count: int, resources: Resources) -> Static:
    return Static("even", even_shares(count, resources))


class Brokered:
    """`penstock broker`, which the loaders find by themselves; a new one each time."""

    def __init__(self, resources: Resources, objective: Objective = "utilisation") -> None:
        self.name = f"broker, {objective}"
        self._resources, self._objective = resources, objective

    @contextmanager
    def over(self, host: Host) -> Iterator[None]:
        host.hold([UNLIMITED] * len(host.running))
        with served(host.socket, self._resources, self._objective):
            time.sleep(JOIN_S)
            yield


@contextmanager
def served(socket: Path, resources: Resources, objective: Objective) -> Iterator[int]:
    """A broker's process, by its number, while it serves."""
    words = {
        "--cores": resources.cores,
        "--bytes-per-s": resources.bytes_per_s,
        "--objective": objective,
        "--socket": socket,
    }
    command = [sys.executable, "-m", "penstock", "broker"]
    command += [str(word) for pair in words.items() for word in pair]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            end_s = time.monotonic() + START_S
            while not socket.exists():
                if child.poll() is not None or time.monotonic() > end_s:
                    said.seek(0)
                    raise ContenderError(f"broker: {said.read().decode(errors='replace')[-500:]}")
                time.sleep(0.01)
            yield child.pid
        finally:
            child.terminate()
            child.wait()
