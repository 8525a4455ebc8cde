"""python -m benchmarks.peers [--quick]: samples from another process, against a bare loop.

Messages of 1 MiB over TCP on the loopback, encrypted by CURVE, 32 in flight: penstock's peer
against pyzmq with the same sockets. Once a message is one key; once, for information, 256 keys of
4 KiB that go to places of their own. Then the same between two ranks of MPI, against a bare loop of
Get, where mpi4py and mpiexec are there. CPU time is that of both processes, where mpiexec lets
them be seen.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import __main__ as command
from .baselines.peer_loop import MESSAGE_BYTES
from .contender import Candidate
from .mpi import launch
from .race import Effort, run_race
from .record import Record
from .suite import Race, Reference, baseline, words

BATCH = 32
RATIO = 0.8


def race(name: str, record_bytes: int, count: int, target: float | None) -> Race:
    """Fetches of 1 MiB, of so many bytes a key."""
    shape = {"path": "/", "batch": BATCH, "count": count}
    return Race(
        name,
        lambda: Path("/"),
        lambda _: None,
        lambda: baseline("peer_fetches", "default", record_bytes=record_bytes, **shape),
        (
            Reference(
                "floor",
                "floor: bare pyzmq",
                lambda: [baseline("peer_loop", "32 in flight", **shape)],
                target,
            ),
        ),
    )


def mpi_race(name: str, record_bytes: int, count: int, target: float | None) -> Race:
    """The same by MPI."""
    shape = {"batch": BATCH, "count": count}
    return Race(
        name,
        lambda: Path("/"),
        lambda _: None,
        lambda: ranks("peer_fetches", "mpi", "default", record_bytes=record_bytes, **shape),
        (
            Reference(
                "floor",
                "floor: bare MPI Get",
                lambda: [ranks("mpi_loop", "", "32 in flight", **shape)],
                target,
            ),
        ),
    )


def ranks(module: str, word: str, label: str, **options: object) -> Candidate:
    """A contender in Python, of two ranks."""
    start = (*launch(), "-n", "2", sys.executable, "-m", f"benchmarks.baselines.{module}")
    return Candidate(label, (*start, *word.split(), *words({"path": "/", **options})))


def messages_of(options: argparse.Namespace) -> int:
    return 128 if options.quick else 512


def races(options: argparse.Namespace) -> list[Race]:
    """The races of this benchmark, also for `benchmarks.cluster`."""
    count = messages_of(options)
    found = [race("peers1m", MESSAGE_BYTES, count, RATIO), race("peers4k", 4096, count, None)]
    if launch():
        found += [
            mpi_race("mpi1m", MESSAGE_BYTES, count, RATIO),
            mpi_race("mpi4k", 4096, count, None),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer messages and pairs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    name = "peers" + ("-quick" if options.quick else "")
    record = Record(name, options.seed, {**vars(options), "count": messages_of(options)})
    effort = Effort.quick() if options.quick else Effort.full()
    for each in races(options):
        result = run_race(each, effort, frozenset(), options.seed)
        record.rows += result.rows
        record.raw[each.name] = result.raw
    command.finish(record)


if __name__ == "__main__":
    main()
