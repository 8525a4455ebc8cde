"""Where each structure breaks on the way to 10^12 samples, 10^6 shards and 10^5 ranks.

    python -m benchmarks.scale [FOLDER] [--shards 100_000] [--quick]

The shipped code runs at each power of ten that this machine holds: the order, a rank's plan by each
assignment, the placement, what ranks agree on, a rank's cache, saved indexes, shared work's commit,
the look at sources, and peers over ZeroMQ. The exchange of texts by which ranks find each other is
simulated, with the cost of a request to a store of torch.distributed as it was measured. At the end
a job of that size is planned for some ranks, and compared with what these ranks are due. Times are
of one processor and the least of several; memory is what Python and numpy allocate at most. Costs
beyond what was measured or simulated are extrapolated, and say so. The record is
benchmarks/results/scale.json; `python -m benchmarks.report` writes the tables and charts.
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from pathlib import Path

from ..record import Record, Row, table
from .agreement import measure_agreement
from .costs import powers
from .curves import TARGETS, Curve, write_size
from .exchange import count_calls, measure_request_ns, simulate_exchanges
from .indexes import measure_commit, measure_index, measure_pages, measure_sources
from .job import JobSize, make_index, simulate_job
from .orders import measure_order, measure_placement, measure_plans
from .peers import measure_peers
from .rendezvous import MessageCosts


def measure_all(record: Record, folder: Path, shards: int, quick: bool) -> list[Curve]:
    """Measure and simulate all curves, and plan the whole job."""
    samples = TARGETS["samples"]
    worlds = powers(0, 3 if quick else 5)
    said = partial(print, file=sys.stderr, flush=True)
    said("order, plans, placement")
    index = make_index(samples, 10**4 if quick else 10**6)
    curves = measure_order(quick) + measure_plans(index, worlds)
    curves += measure_placement(samples, powers(0, 3 if quick else 5))
    said("agreement and rendezvous")
    agreed, text_bytes = measure_agreement(index, worlds)
    request_ns = measure_request_ns(text_bytes, 2_000 if quick else 50_000)
    costs = MessageCosts(request_ns)
    simulated = [8, 64, 256] if quick else [8, 64, 256, 1000]
    exchanged, raw = simulate_exchanges(text_bytes, costs, simulated, worlds)
    raw["calls_of_16_ranks"] = dict(count_calls(16))
    record.raw["exchange"] = raw | {"text_bytes": text_bytes, "costs": costs._asdict()}
    curves += agreed + exchanged
    said("indexes")
    curves += measure_index(folder, powers(4, 5) if quick else [*powers(4, 7), 3 * 10**7])
    record.raw["pages"] = measure_pages(folder, 50, 1_000 if quick else 100_000)
    curves += measure_commit(folder, [size for size in powers(2, 5) if size <= shards])
    curves += measure_sources(folder, powers(3, 4 if quick else 6))
    curves += measure_peers([1, 4] if quick else [1, 10, 40])
    said("a whole job")
    simulate_job(JobSize(10**6, 100, 10), 1, 100, 0)  # what is kept for all plans is made
    size = JobSize(10**9, 1000, 1000) if quick else JobSize(samples, 10**6, TARGETS["ranks"])
    report = simulate_job(size, 64, 100, 3)
    smaller = simulate_job(JobSize(10**6, 100, 10), 10, 100, 1)
    record.raw["job"] = {
        "size": size._asdict(), "ranks": report.ranks, "rank_steps": report.rank_steps,
        "samples": report.samples, "whole_steps": report.whole_steps, "seconds": report.seconds,
        "peak_bytes": report.peak_bytes, "peak_bytes_of_10_ranks": smaller.peak_bytes,
    }  # fmt: skip
    return curves


def make_row(curve: Curve) -> Row:
    """Make the row of a curve: its cost at the target, against the limit."""
    cost = curve.cost(curve.target)
    broken = "never breaks"
    if math.isfinite(curve.breaks_at):
        broken = f"breaks at {write_size(curve.breaks_at)} {curve.over}"
    source, at = curve.tell_source(curve.target), f"{curve.target:,} {curve.over}"
    note = f"{curve.limit_of}, at {at}, {source}; {broken}; target is an upper limit"
    return Row(curve.name, cost, curve.unit, target=curve.limit, met=cost <= curve.limit, note=note)


def main() -> None:
    """Print the rows, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("bench-data/scale"))
    parser.add_argument("--shards", type=int, default=100_000, help="of the merged index")
    parser.add_argument("--quick", action="store_true", help="small sizes, and no record")
    options = parser.parse_args()
    shards = min(options.shards, 1000) if options.quick else options.shards
    record = Record("scale", 38, {"shards": shards, "quick": options.quick})
    options.folder.mkdir(parents=True, exist_ok=True)
    curves = measure_all(record, options.folder, shards, options.quick)
    record.raw["curves"] = {"all": [curve.describe() for curve in curves]}
    record.rows = [make_row(curve) for curve in curves]
    print(table(record.rows))
    if not options.quick:
        print(record.write())


if __name__ == "__main__":
    main()
