"""Jobs that arrive and leave: when the last one is done, by who divides the host among those there.

Processes are started before the clock, and begin to train when they arrive; where a job's last step
is done it leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.pairing import bootstrap_interval
from benchmarks.race import say
from benchmarks.record import Row
from penstock.sharing.allocation import Objective, Resources

from .host import Host, Running, Site
from .modes import even_shares, served
from .work import Job

POLL_S = 0.01
SHORTER = 0.9
OBJECTIVE: Objective = "utilisation"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job, when it arrives, and how many steps it does."""

    at_s: float
    job: Job
    steps: int


TRACE = (
    Arrival(0, Job("language", "tokens", 8, 100), 200),
    Arrival(0, Job("classifier", "photos", 32, 80), 130),
    Arrival(3, Job("volumes", "volumes", 4, 40), 450),
    Arrival(6, Job("self-supervised", "views", 8, 100), 90),
    Arrival(10, Job("speech", "speech", 8, 80), 110),
    Arrival(14, Job("fine-tuning", "photos", 16, 60), 120),
)
"""A morning on a workstation, in a few dozen seconds."""


def even(present: Sequence[Running], resources: Resources) -> None:
    """The same for each who is there."""
    for each in present:
        each.share(even_shares(len(present), resources)[0])


def run(
    host: Host, trace: Sequence[Arrival], divide: Callable[[Sequence[Running]], None]
) -> dict[str, float]:
    """Seconds from the first arrival until each job was done.

    divide:  is called with those present when somebody comes or goes.
    """
    coming = sorted(zip(trace, host.running, strict=True), key=lambda pair: pair[0].at_s)
    present: list[Running] = []
    done: dict[str, float] = {}
    start_s = time.monotonic()
    while coming or present:
        now_s = time.monotonic()
        arrived = [pair for pair in coming if pair[0].at_s <= now_s - start_s]
        left = [each for each in present if each.done]
        for each in left:
            done[each.job.name] = now_s - start_s
            say(f"    {now_s - start_s:.1f} s: {each.job.name} is done")
        if arrived or left:
            coming = coming[len(arrived) :]
            present = [each for each in present if each not in left]
            present += [running for _, running in arrived]
            divide(present)
            for arrival, running in arrived:
                say(f"    {now_s - start_s:.1f} s: {arrival.job.name} begins")
                running.tell(go=arrival.steps)
        time.sleep(POLL_S)
    return done


def measure(site: Site, turns: int, scale: float) -> tuple[list[Row], dict[str, Any]]:
    """Both ways, in turns; `scale` shortens the trace."""
    trace = [
        Arrival(scale * each.at_s, each.job, max(10, int(scale * each.steps))) for each in TRACE
    ]
    jobs = [each.job for each in trace]
    site.warm(jobs)
    found: dict[str, list[dict[str, float]]] = {"broker": [], "even": []}
    for turn in range(turns):
        for name in [*found][:: -1 if turn % 2 else 1]:
            say(f"  {name}: {len(jobs)} jobs arrive")
            with site.start(jobs) as host:
                if name == "even":
                    done = run(host, trace, lambda present: even(present, site.resources))
                else:
                    with served(site.socket, site.resources, OBJECTIVE):
                        done = run(host, trace, lambda present: None)
            found[name].append(done)
    return rows_of(found), {"trace": [str(each) for each in trace], "done": found}


def rows_of(found: dict[str, list[dict[str, float]]]) -> list[Row]:
    ours, theirs = ([max(turn.values()) for turn in turns] for turns in found.values())
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = bootstrap_interval(ratios, 0) if len(ratios) > 1 else (None, None)
    ratio = median(ratios)
    note = f"{len(TRACE)} jobs that arrive and leave; target is an upper limit"
    rows = [
        Row(
            "makespan, broker / even",
            *(median(ours), "s", median(theirs), ratio, SHORTER, ratio <= SHORTER, low, high),
            note=note,
        )
    ]
    ours, theirs = ([sum(turn.values()) / len(turn) for turn in turns] for turns in found.values())
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    name = "mean time at which jobs end, broker / even"
    return [*rows, Row(name, median(ours), "s", median(theirs), ratio)]
