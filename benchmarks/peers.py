"""python -m benchmarks.peers [--quick]: samples from another process, against a bare loop.

Messages of 1 MiB over TCP on the loopback, encrypted by CURVE, 32 in flight: penstock's peer
against pyzmq with the same sockets. A fetch asks for eight keys of 1 MiB, as much as a loader asks
for at once; for one of them; and for 16 keys of 64 KiB and 256 of 4 KiB, which go to places of
their own, as those of a bare loop do, and for information beside one that moves whole messages.
Then the same between two ranks of MPI, against a bare loop of Get, where mpi4py and mpiexec are
there. CPU time is that of both processes, where mpiexec lets them be seen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from penstock import limits

from . import __main__ as command
from .baselines.peer_loop import MESSAGE_BYTES
from .contender import Candidate
from .mpi import launch
from .race import Effort, run_race
from .record import Record
from .suite import Race, Reference, baseline, words

BATCH = 32
FLIGHT = "32 in flight"
RATIO = 0.85


SHAPES: dict[str, dict[str, int]] = {
    "1m": {"record_bytes": MESSAGE_BYTES, "fetch_bytes": limits.peer_fetch_bytes},
    "1m-single": {"record_bytes": MESSAGE_BYTES, "fetch_bytes": MESSAGE_BYTES},
    "64k": {"record_bytes": 65_536, "fetch_bytes": MESSAGE_BYTES},
    "4k": {"record_bytes": 4096, "fetch_bytes": MESSAGE_BYTES},
}
"""Bytes of a key, and of a fetch."""


def list_floors(
    what: str, fetches: dict[str, int], bare: Callable[[dict[str, int]], Candidate]
) -> tuple[Reference, ...]:
    """Bare loops: of the same keys, and of whole messages."""
    size = {"record_bytes": fetches["record_bytes"]}
    same = Reference("floor", f"floor: {what}, the same keys", lambda: [bare(size)], RATIO)
    whole = Reference("floor", f"floor: {what}", lambda: [bare({})])
    return (
        (same, whole) if size["record_bytes"] < MESSAGE_BYTES else (replace(whole, target=RATIO),)
    )


def race(name: str, fetches: dict[str, int], count: int) -> Race:
    """Fetches over ZeroMQ."""
    shape = {"path": "/", "batch": BATCH, "count": count}
    return Race(
        name,
        lambda: Path("/"),
        lambda _: None,
        lambda: baseline("peer_fetches", "default", **fetches, **shape),
        list_floors(
            "bare pyzmq", fetches, lambda size: baseline("peer_loop", FLIGHT, **size, **shape)
        ),
    )


def mpi_race(name: str, fetches: dict[str, int], count: int) -> Race:
    """The same by MPI."""
    shape = {"batch": BATCH, "count": count}
    return Race(
        name,
        lambda: Path("/"),
        lambda _: None,
        lambda: ranks("peer_fetches", "mpi", "default", **fetches, **shape),
        list_floors(
            "bare MPI Get", fetches, lambda size: ranks("mpi_loop", "", FLIGHT, **size, **shape)
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
    found = [race(f"peers{name}", fetches, count) for name, fetches in SHAPES.items()]
    if launch():
        found += [mpi_race(f"mpi{name}", fetches, count) for name, fetches in SHAPES.items()]
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
