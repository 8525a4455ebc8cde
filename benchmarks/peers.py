"""python -m benchmarks.peers [--quick]: samples from another process, against a bare loop.

Messages of 1 MiB over TCP on the loopback, encrypted by CURVE, 32 in flight: penstock's peer
against pyzmq with the same sockets. A fetch asks for eight keys of 1 MiB, as a loader does, for one
of them, for 16 keys of 64 KiB, or for 256 of 4 KiB; the bare loop moves the same keys. Short ones
come together, and each goes to a place of its own. The same between two ranks of MPI, against a
bare loop of Get, if mpi4py and mpiexec are there. CPU time is that of both processes, if mpiexec
lets them be seen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
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


def race(
    name: str,
    fetches: dict[str, int],
    count: int,
    ours: Callable[..., Candidate],
    rival: str,
    bare: Callable[..., Candidate],
) -> Race:
    """Fetches of some shape, against a bare loop that moves the same keys."""
    size = fetches["record_bytes"]
    shape = {"batch": BATCH, "count": count, "record_bytes": size}
    title = f"floor: {rival}" + ", the same keys" * (size < MESSAGE_BYTES)
    return Race(
        name,
        lambda: Path("/"),
        lambda _: None,
        lambda: ours("default", path="/", **shape | fetches),
        (Reference("floor", title, lambda: [bare(FLIGHT, path="/", **shape)], RATIO),),
    )


def ranks(module: str, word: str, label: str, **options: object) -> Candidate:
    """A contender in Python, of two ranks of MPI."""
    start = (*launch(), "-n", "2", sys.executable, "-m", f"benchmarks.baselines.{module}")
    return Candidate(label, (*start, *word.split(), *words(options)))


def messages_of(options: argparse.Namespace) -> int:
    return 128 if options.quick else 256


def races(options: argparse.Namespace) -> list[Race]:
    """The races of this benchmark, also for `benchmarks.cluster`."""
    count = messages_of(options)
    ways = {
        "peers": (partial(baseline, "peer_fetches"), "bare pyzmq", partial(baseline, "peer_loop"))
    }
    if launch():
        ours, bare = partial(ranks, "peer_fetches", "mpi"), partial(ranks, "mpi_loop", "")
        ways["mpi"] = ours, "bare MPI Get", bare
    return [
        race(f"{way}{name}", fetches, count, *contenders)
        for way, contenders in ways.items()
        for name, fetches in SHAPES.items()
    ]


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
