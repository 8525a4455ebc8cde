"""python -m benchmarks.tiers [--quick]: what a hit in the RAM tier of a node costs.

Records of 4 KiB and of 100 kB lie in the slab that the ranks of a host share, one in each slot, and
are gathered into batches in random order, by one thread. The floor copies the same records from a
map whose pages are there, by one memcpy each: 0.8 of its rate is wanted. Record:
benchmarks/results/tiers.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import __main__ as command
from .contender import ROOT
from .corpus import Corpora, Sizes, make_warm
from .race import Effort, run_race
from .record import Record
from .suite import Race, Reference, baseline, floor

RATIO = 0.8
CORPUS_BYTES = (
    800_000_000  # beyond the processor's caches, where they are not those of a large server
)
SHAPES = {4096: 256, 100_000: 64}
"""Bytes of a record, and records of a batch."""


def race(record_bytes: int, corpus_bytes: int, folder: Path, seed: int) -> Race:
    """One size of records."""
    corpora = Corpora(folder, Sizes(records=corpus_bytes // record_bytes), seed)
    shape = {"record_bytes": record_bytes, "batch": SHAPES[record_bytes], "seed": seed}

    def path() -> Path:
        return corpora.records(record_bytes)

    return Race(
        f"tier {record_bytes} B",
        path,
        make_warm,
        lambda: baseline("tier_gather", "1 thread", path=path(), **shape),
        (
            Reference(
                "floor",
                "floor: bare memcpy, 1 thread",
                lambda: [floor("records", "mmap x1", path=path(), mode="mmap", threads=1, **shape)],
                RATIO,
            ),
        ),
    )


def races(options: argparse.Namespace) -> list[Race]:
    """All sizes, with the data in the folder `options.data`; less of it where `options.quick`."""
    corpus_bytes = CORPUS_BYTES // 4 if options.quick else CORPUS_BYTES
    folder = Path(options.data).resolve()
    return [race(record_bytes, corpus_bytes, folder, options.seed) for record_bytes in SHAPES]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few pairs")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    record = Record("tiers-quick" if options.quick else "tiers", options.seed, vars(options))
    command.build_floors()
    effort = Effort.quick() if options.quick else Effort.full()
    for each in races(options):
        result = run_race(each, effort, frozenset(), options.seed)
        record.rows += result.rows
        record.raw[each.name] = result.raw
    command.finish(record)


if __name__ == "__main__":
    main()
