"""Jobs that save checkpoints and are killed, at a given boundary or at any time; and checks of the
files that are left.

A process is forked for each rank of each job, from one that has imported everything and has no
threads. Ranks exchange messages by sockets, so that each notices when another is gone.

    python -m tests.checkpoint.crashes boundaries RANKS VICTIM LOCAL | random RANKS KILLS LOCAL
    python -m tests.checkpoint.crashes recovery RANKS VICTIM

With LOCAL 1, each rank has a tier of its own, as if it were on a host of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from penstock import limits
from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, LocalTier, background, load
from penstock.errors import PenstockError
from tests import warm

SAVES = 3
KEEP = 2


def state_of(step: int, size: int = 5000) -> dict[str, Any]:
    """Make a state of some pages, with shared memory and an end that fills no page; another one for
    each step."""
    weights = np.random.default_rng(step).random(size)
    odd = np.full(33, step % 256, np.uint8)
    return {"weights": weights, "half": weights[size // 2 :], "odd": odd, "n": step}


def equal(state: Any, step: int) -> bool:
    wanted = state_of(step, len(state["weights"]))
    return state.keys() == wanted.keys() and all(
        np.array_equal(state[name], wanted[name]) for name in wanted
    )


Mesh = list[list[socket.socket | None]]
"""The links of each rank to each other rank."""


class Rank:
    """A forked process that saves steps from `first` on, and reports how many it knows of."""

    def __init__(
        self,
        folder: Path | str,
        rank: int,
        meshes: list[Mesh],
        first: int,
        at: int | str | None,
        size: int,
        saves: int,
        rate: float | None,
        local: bool,
    ) -> None:
        done, pipe_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(done)
                for links in meshes:
                    for other, row in enumerate(links):
                        for link in row if other != rank else ():
                            if link is not None:
                                link.close()
                mine = [[link for link in links[rank] if link is not None] for links in meshes]
                _save(folder, rank, mine, first, at, size, saves, rate, local, pipe_end)
            finally:
                os._exit(1)
        os.close(pipe_end)
        self._heard = done
        self.said: list[str] = []

    def end(self) -> bool:
        """Wait for the process; True if it was killed."""
        with os.fdopen(self._heard) as heard:
            self.said = heard.read().split()
        status = os.waitpid(self.pid, 0)[1]
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return True
        assert status == 0, "a rank failed by itself"
        return False

    @property
    def committed(self) -> int:
        """Saves that the rank knows of; with tiers they may only be held."""
        return self.said.count("committed")


def job(
    folder: Path | str,
    ranks: int,
    *,
    first: int = 1,
    victim: int | None = 0,
    at: int | str | None = None,
    size: int = 5000,
    saves: int = SAVES,
    rate: float | None = None,
    local: bool = False,
) -> list[Rank]:
    """Begin the ranks of a job, one of which dies at a boundary, or all of them.

    at:  the number of the boundary, or a part of its name.
    """
    meshes: list[Mesh] = [[[None] * ranks for _ in range(ranks)] for _ in range(3)]
    for links in meshes:
        for a in range(ranks):
            for b in range(a):
                links[a][b], links[b][a] = socket.socketpair()
    started = [
        Rank(
            folder,
            rank,
            meshes,
            first,
            at if victim in (rank, None) else None,
            size,
            saves,
            rate,
            local,
        )
        for rank in range(ranks)
    ]
    for row in [row for links in meshes for row in links]:
        for link in row:
            if link is not None:
                link.close()
    return started


def _gather(rank: int, links: list[socket.socket]) -> Callable[[str], list[str]]:
    def gather(text: str) -> list[str]:
        data = text.encode()
        for link in links:
            link.sendall(struct.pack("<I", len(data)) + data)
        found = []
        for link in links:
            size = struct.unpack("<I", _receive(link, 4))[0]
            found.append(_receive(link, size).decode())
        return [*found[:rank], text, *found[rank:]]

    return gather


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            raise ConnectionError("a rank is gone")
        data += more
    return data


def _save(
    folder: Path | str,
    rank: int,
    links: list[list[socket.socket]],
    first: int,
    at: int | str | None,
    size: int,
    saves: int,
    rate: float | None,
    local: bool,
    pipe_end: int,
) -> NoReturn:
    passed = itertools.count()

    def watcher(what: str) -> None:
        if next(passed) == at or (isinstance(at, str) and at in what):
            os.kill(os.getpid(), signal.SIGKILL)

    background.watcher = watcher
    limits.checkpoint_first_rank_bytes = 0  # all ranks write, and compare what they have
    try:
        with Checkpoints(
            folder,
            keep=KEEP,
            budget=Budget(bytes_per_s=rate),
            rank=rank,
            world_size=len(links[0]) + 1,
            gather=(_gather(rank, links[0]), _gather(rank, links[1]), _gather(rank, links[2])),
            local=tiers(folder, [rank]) if local else None,
        ) as checkpoints:
            os.write(pipe_end, b"ready\n")
            for step in range(first, first + saves):
                checkpoints.save(step, state_of(step, size), loader={"at": step})
                checkpoints.wait(until="held")  # or committed, where there are no tiers
                os.write(pipe_end, b"committed\n")
    except (PenstockError, OSError):
        if not links[0]:  # only a rank that lost another may fail
            raise
        os.write(pipe_end, b"lost\n")
    os.write(pipe_end, b"%d\n" % next(passed))
    os._exit(0)


def tiers(folder: Path, ranks: Iterable[int]) -> list[LocalTier]:
    """Return the tiers of ranks. They lie in the folder of the checkpoints, which ignores them. 10
    MB hold two large states."""
    return [LocalTier(folder / f"tier-{rank}", 10_000_000) for rank in ranks]


def held(folder: Path) -> list[str]:
    """List the files on tiers."""
    return sorted(path.name for path in folder.glob("tier-*/*.held"))


def judged(folder: Path | str, least: int, most: int, then: int, ranks: int = 0) -> list[Any]:
    """Return the fault of the files that are left, if there is one. The last committed checkpoint
    has to load, and a job has to go on. That job has the tiers of so many ranks, and has to commit
    the saves held on them."""
    wrong: list[Any] = []
    local = tiers(Path(folder), range(ranks)) or None
    if local is not None:
        Checkpoints(folder, rank=0, world_size=1, local=local).close()
    last_checkpoint = load(folder)
    if not least <= last_checkpoint.step <= most:
        wrong.append([f"step {last_checkpoint.step} is not in {least}..{most}"])
    if not equal(last_checkpoint.state, last_checkpoint.step) or last_checkpoint.loader != {
        "at": last_checkpoint.step
    }:
        wrong.append(["step", last_checkpoint.step, "is another's"])
    with Checkpoints(folder, rank=0, world_size=1, local=local) as checkpoints:
        checkpoints.save(then, state_of(then), loader={"at": then})
        checkpoints.wait()
        left = checkpoints.folder.leftovers() + (held(Path(folder)) if ranks else [])
        steps = checkpoints.steps()
        if left or checkpoints.load().step != then or steps != sorted(set(steps)):
            wrong.append(["afterwards", left, steps])
    return wrong


def every_boundary(folder: Path, ranks: int, victim: int, local: int) -> dict[str, Any]:
    """Kill a rank at each boundary of a job that finds a checkpoint of step 0 and leftovers."""
    hosts = ranks if local else 0
    wrong, at = [], 0
    while True:
        place = folder / str(at)
        with Checkpoints(place, rank=0, world_size=1) as checkpoints:
            checkpoints.save(0, state_of(0), loader={"at": 0})
        for each in job(place, 1, at=9) if at % 4 == 0 else ():  # leaves something
            each.end()
        started = job(place, ranks, victim=victim, at=at, local=bool(local))
        dead = [each.end() for each in started]
        least = max(each.committed for each in started)
        wrong += [[at, *each] for each in judged(place, least, least + 1, 99, hosts)]
        if dead != [rank == victim for rank in range(ranks)]:
            if any(dead) or least != SAVES:
                wrong.append([at, dead, [each.said for each in started]])
            return {"boundaries": at, "wrong": wrong}
        if not all("lost" in each.said for each in started if each is not started[victim]):
            finished = [each.committed == SAVES for each in started]
            if not any(finished):
                wrong.append([at, "unnoticed", [each.said for each in started]])
        shutil.rmtree(place)
        at += 1


def every_boundary_of_recovery(folder: Path, ranks: int, victim: int) -> dict[str, Any]:
    """Kill a rank at each boundary of a job that only commits held saves."""
    wrong, at = [], 0
    while True:
        place = folder / str(at)
        for each in job(place, ranks, victim=None, at=".incomplete", local=True):  # the first held
            each.end()
        before = held(place)
        dead = [each.end() for each in job(place, ranks, victim=victim, at=at, saves=0, local=True)]
        wrong += [[at, *each] for each in judged(place, 1, 2, 99, ranks)]
        if len(before) < ranks:
            wrong.append([at, before])
        if not any(dead):
            return {"boundaries": at, "wrong": wrong}
        shutil.rmtree(place)
        at += 1


def at_any_time(folder: Path, ranks: int, kills: int, local: int) -> dict[str, Any]:
    """Kill one rank, or all, at a random time of a job that writes most of the time."""
    hosts = ranks if local else 0
    draw = random.Random(kills)
    wrong, seen, last = [], [], 0
    with Checkpoints(folder, rank=0, world_size=1) as checkpoints:
        checkpoints.save(0, state_of(0), loader={"at": 0})
    for kill in range(kills):
        started = job(
            folder, ranks, first=last + 1, size=500_000, saves=10_000, rate=20e6, local=bool(local)
        )
        victims = started if draw.random() < 0.5 else [draw.choice(started)]
        for each in started:  # "ready"
            select.select([each._heard], [], [])
        select.select([], [], [], draw.uniform(0, 0.3))
        for each in victims:
            os.kill(each.pid, signal.SIGKILL)
        for each in started:
            each.end()
        least = last + max(each.committed for each in started)
        left = [path.suffix for path in folder.iterdir()]
        seen.append(bool(held(folder)) if local else ".incomplete" in left)
        then = least + 2
        wrong += [[kill, *each] for each in judged(folder, least, then - 1, then, hosts)]
        last = then
    return {"kills": kills, "cut off": sum(seen), "wrong": wrong}


def run(*words: object) -> dict[str, Any]:
    """Run one of these in a process of its own, in memory if possible: the files that a kill leaves
    do not depend on the device, and syncing a device takes long."""
    done = warm.run(
        [sys.executable, __file__, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


if __name__ == "__main__":
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        what, *numbers = sys.argv[1:]
        work = {
            "boundaries": every_boundary,
            "recovery": every_boundary_of_recovery,
            "random": at_any_time,
        }[what]
        print(json.dumps(work(Path(scratch), *map(int, numbers))))
