"""python -m benchmarks.share [--quick]: real jobs that share two cores and one storage.

Jobs are processes that train: they read through an emulated storage whose bandwidth all share, and
decode what they read; their models' steps are slept. `Budget` holds each to its share of processor
time and bytes/s.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import emulation
from benchmarks.__main__ import finish
from benchmarks.contender import ROOT
from benchmarks.corpus import Corpora, Sizes
from benchmarks.record import Record
from penstock.allocation import Resources

from . import predictions
from .host import Site

CORES, BYTES_PER_S = 1.6, 120e6
"""What is shared; the rest of two cores is for the storage's daemon, the threads of loaders that
read, and the steps."""
SPARE = 1.05
"""The storage gives so much more than is shared, or its queue would be what is measured."""
READ_NS = 500_000


@contextmanager
def emulated(folder: Path, resources: Resources, seed: int) -> Iterator[Site]:
    with (
        emulation.Shared(
            read_ns=READ_NS,
            meta_ns=READ_NS,
            bytes_per_s=SPARE * resources.bytes_per_s,
            calibrate=True,
        ) as storage,
        closing(Site(Corpora(folder, Sizes.quick(), seed), resources, storage)) as site,
    ):
        yield site


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.share", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--cores", type=float, default=CORES, help="of the host, to be shared")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if missing := emulation.usable():
        parser.exit(1, f"storage cannot be emulated here: {missing}\n")
    record = Record("share" + "-quick" * options.quick, options.seed, vars(options))
    resources = Resources(cores=options.cores, bytes_per_s=BYTES_PER_S)
    with emulated(Path(options.data).resolve(), resources, options.seed) as site:
        site.warm(predictions.JOBS)
        points = predictions.measure(site, 1 if options.quick else 4, options.seed)
        record.raw["predictions"] = points
        record.rows += predictions.rows(points)
    finish(record)


if __name__ == "__main__":
    main()
