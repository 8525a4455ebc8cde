"""python -m tests.virtual [KIND] SEED | --seconds 60 [--first 1]

KIND is cache, job, checkpoint or broker.
With a seed: replay its scenario, with a trace of all actions. With seconds: run scenarios from the
first seed on for so long, on all cores; at the first failure print its seed and a minimised
schedule.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tests.virtual.search import KINDS, replay, search


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    kind = words.pop(0) if words[:1] and words[0] in KINDS else "cache"
    parser = argparse.ArgumentParser(prog="python -m tests.virtual", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed, with a trace")
    parser.add_argument("--seconds", type=float, default=60, help="search for so long")
    parser.add_argument("--first", type=int, default=1, help="first seed of a search")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=int, default=cores, help="of a search: all cores")
    options = parser.parse_args(words)
    if options.seed is not None:
        return replay(kind, options.seed)
    return search(kind, options.first, options.seconds, options.processes)


if __name__ == "__main__":
    sys.exit(main())
