"""Jobs that save to an object store and are killed, and checks of the objects that are left.

A process that has used the client of object stores cannot be forked. So each use of it here, by a
job or by a check, is in a process of its own.

    python -m tests.checkpoint.crashes_objects boundaries RANKS VICTIM | random RANKS KILLS
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from penstock.checkpoint import Checkpoints
from penstock.checkpoint.object_repository import Prefix
from tests.checkpoint.crashes import job, judged, state_of
from tests.services import environment, moto

SAVES = 2
"""Saves after one that is there already: the second removes it."""


def apart(work: Callable[[], Any]) -> Any:
    """Run a function in a forked process, and return its result as JSON has it."""
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(heard)
            with os.fdopen(told, "w") as file:
                json.dump(work(), file)
            code = 0
        finally:
            os._exit(code)
    os.close(told)
    with os.fdopen(heard) as file:
        said = file.read()
    assert os.waitpid(pid, 0)[1] == 0, "it failed"
    return json.loads(said)


def begin(url: str) -> None:
    """Save a checkpoint of step 0."""
    with Checkpoints(url, rank=0, world_size=1) as checkpoints:
        checkpoints.save(0, state_of(0), loader={"at": 0})


def every_boundary(bucket: str, ranks: int, victim: int) -> dict[str, Any]:
    """Kill a rank at each boundary of a job that finds a checkpoint of step 0."""
    wrong, at = [], 0
    while True:
        url = f"{bucket}/{at}"
        apart(lambda url=url: begin(url))
        started = job(url, ranks, victim=victim, at=at, saves=SAVES)
        dead = [each.end() for each in started]
        least = max(each.committed for each in started)
        wrong += [
            [at, *each]
            for each in apart(lambda url=url, least=least: judged(url, least, least + 1, 99))
        ]
        if not any(dead):
            return {"boundaries": at, "wrong": wrong, "committed": least}
        at += 1


def uploads() -> int:
    """List objects of which only parts were sent: the service shows them only on request."""
    address = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(address)) as connection:
        connection.request("GET", "/bucket?uploads")
        return connection.getresponse().read().count(b"<Upload>")


def at_any_time(url: str, ranks: int, kills: int) -> dict[str, Any]:
    """Kill one rank, or all, at a random time of a job that uploads most of the time."""
    draw = random.Random(kills)
    wrong, cut_off, last = [], 0, 0
    half = 0
    apart(lambda: begin(url))
    for kill in range(kills):
        started = job(url, ranks, first=last + 1, size=2_500_000, saves=10_000, rate=40e6)
        victims = started if draw.random() < 0.5 else [draw.choice(started)]
        for each in started:  # "ready"
            select.select([each._heard], [], [])
        select.select([], [], [], draw.uniform(0, 1))
        for each in victims:
            os.kill(each.pid, signal.SIGKILL)
        for each in started:
            each.end()
        least = last + max(each.committed for each in started)
        now = uploads()
        cut_off += now > half or bool(apart(lambda: Prefix.open(url).leftovers()))
        half = now
        found = apart(lambda least=least: judged(url, least, least + 1, least + 2))
        wrong += [[kill, *each] for each in found]
        last = least + 2
    return {"kills": kills, "cut off": cut_off, "wrong": wrong}


if __name__ == "__main__":
    with moto() as port:
        os.environ.update(environment(port))
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", "/bucket")
        assert connection.getresponse().status == 200
        connection.close()
        what, *numbers = sys.argv[1:]
        work = every_boundary if what == "boundaries" else at_any_time
        print(json.dumps(work("s3://bucket/run", *map(int, numbers))))
