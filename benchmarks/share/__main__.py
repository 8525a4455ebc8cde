"""python -m benchmarks.share [predictions mixes arrivals changes elsewhere] [--quick]

Real jobs that share this machine's two cores and one storage. Jobs are processes that train: they
read through an emulated storage whose bandwidth all share, and decode what they read; the steps of
their models are slept. Either each has the same share (`Budget`), or a broker leases them theirs
(`penstock broker`, which loaders find by themselves), or nothing is limited, or each has a share
that was found by search. Record: results/share.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import emulation
from benchmarks.__main__ import finish
from benchmarks.contender import ROOT
from benchmarks.corpus import Corpora, Sizes
from benchmarks.race import say
from benchmarks.record import Record, Row
from penstock.sharing.allocation import Resources

from . import arrivals, changes, elsewhere, mixes, predictions
from .host import Site

CORES, BYTES_PER_S = 1.5, 120e6
"""The resources shared; the rest of two cores is for the storage's daemon, the threads of loaders
that read, and the steps."""
SPARE = 1.05
"""The storage gives so much more than is shared, or its queue would be what is measured."""
READ_NS = 500_000
PARTS = ("predictions", "changes", "mixes", "arrivals", "elsewhere")


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


Found = tuple[list[Row], Any]


def parts(site: Site, seed: int, quick: bool) -> dict[str, Callable[[], list[Found]]]:
    """Rows and what was measured for them, part by part."""

    def of_mix(mix: mixes.Mix) -> Found:
        return mixes.measure(site, mix, mixes.effort_of(mix, quick), seed)

    study = 100 if quick else 500
    return {
        "predictions": lambda: [predictions.measure(site, 1 if quick else 3, seed)],
        "changes": lambda: [changes.measure(site)],
        "mixes": lambda: [of_mix(mix) for mix in (mixes.MIXES[:1] if quick else mixes.MIXES)],
        "arrivals": lambda: [arrivals.measure(site, *((1, 0.4) if quick else (2, 0.4)))],
        "elsewhere": lambda: [
            (elsewhere.schedule_rows(), None),
            elsewhere.overhead_rows(),
            elsewhere.study_rows(study, seed),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.share", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--cores", type=float, default=CORES, help="of the host, to be shared")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if unknown := {*options.parts} - {*PARTS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if missing := emulation.usable():
        parser.exit(1, f"storage cannot be emulated here: {missing}\n")
    name = "share" + "-quick" * options.quick + "-partial" * bool(options.parts)
    record = Record(name, options.seed, vars(options))
    resources = Resources(cores=options.cores, bytes_per_s=BYTES_PER_S)
    record.configuration["resources"] = asdict(resources)
    with emulated(Path(options.data).resolve(), resources, options.seed) as site:
        for part, measure in parts(site, options.seed, options.quick).items():
            if part in (options.parts or PARTS):
                say(f"{part}: ...")
                found = measure()
                record.rows += [row for rows, _ in found for row in rows]
                record.raw[part] = {"runs": [raw for _, raw in found]}
                record.write()  # a run that is cut short keeps what it has
    finish(record)


if __name__ == "__main__":
    main()
