"""Who decides what the jobs of a host get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from penstock.allocation import Objective, Resources, allocate, even_share
from penstock.throughput import JobProfile, Share

from .host import UNLIMITED, Host

PROFILE_S, SETTLE_S = 1.5, 1.0
"""A job is profiled for so long, after so long."""
JOIN_S = 8.0
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


class Managed(Mode, Protocol):
    """`environment` is for jobs, from their start on."""

    environment: Mapping[str, str]


class Allocated:
    """What the allocator makes of profiles that are measured with even shares, each time anew."""

    environment: Mapping[str, str] = {}

    def __init__(self, resources: Resources, objective: Objective) -> None:
        self.name = f"broker, {objective}"
        self._resources, self._objective = resources, objective

    @contextmanager
    def over(self, host: Host) -> Iterator[None]:
        host.share(even_shares(len(host.running), self._resources))
        profiles = [each.profile for each in host.windows(PROFILE_S, SETTLE_S)]
        host.share(allocated(profiles, self._resources, self._objective))
        yield


def allocated(
    profiles: Sequence[JobProfile | None], resources: Resources, objective: Objective
) -> list[Share]:
    return list(allocate(profiles, resources, objective).shares)


def managed(resources: Resources, objective: Objective = "utilisation") -> Managed:
    return Allocated(resources, objective)
