"""penstock.order.shuffle against numpy's two ways, on the CPU.

    python -m benchmarks.shuffling

Contenders take turns in one process, memory touched before; ratios are taken turn by turn, and
their median is told. `in place through indices` is x[:] = x[generator.permutation(n)].
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock

from .pairing import bootstrap_interval, count_turns, divide_pairs
from .record import Record, Row, table

_processor = ", processors"


def measure(x: npt.NDArray[Any], turns: int, threads: int) -> dict[str, list[float]]:
    """Nanoseconds an element of each contender, a value a turn; and of processors, all threads."""
    generator = np.random.default_rng(1)
    out = np.ones_like(x)
    indices = generator.permutation(len(x))

    def through_indices() -> None:
        x[:] = x[generator.permutation(len(x))]

    contenders: dict[str, Callable[[], object]] = {
        "penstock.order.shuffle": lambda: penstock.order.shuffle(x, 1, out=out, threads=threads),
        "penstock.order.shuffle in place": lambda: penstock.order.shuffle(
            x, 1, out=x, threads=threads
        ),
        "numpy in place through indices": through_indices,
        "numpy take, indices ready": lambda: np.take(x, indices, out=out, mode="clip"),
        "numpy Generator.shuffle": lambda: generator.shuffle(x),
    }
    raw: dict[str, list[float]] = {name: [] for name in contenders}
    raw |= {f"{name}{_processor}": [] for name in contenders}
    for turn in count_turns(turns, lambda: [divide_pairs(raw[a], raw[b]) for a, b, _ in COMPARED]):
        names = list(contenders)
        for name in names if turn % 2 == 0 else reversed(names):
            began, used = time.perf_counter(), time.process_time()
            contenders[name]()
            raw[name].append((time.perf_counter() - began) / len(x) * 1e9)
            raw[name + _processor].append((time.process_time() - used) / len(x) * 1e9)
    return raw


COMPARED = (
    ("penstock.order.shuffle in place", "numpy in place through indices", 2.0),
    ("penstock.order.shuffle in place", "numpy Generator.shuffle", 3.0),
    ("penstock.order.shuffle", "numpy take, indices ready", None),
)
"""Whose ratio is taken, to whom, and what is wanted of it."""


def rows(raw: dict[str, list[float]]) -> list[Row]:
    """Lines of the table: what an element costs, and how many times as fast penstock is."""
    found = [Row(name, statistics.median(taken), "ns/element") for name, taken in raw.items()]
    for own, other, target in COMPARED:
        for kind in ("", _processor):
            pairs = zip(raw[own + kind], raw[other + kind], strict=True)
            ratios = [theirs / ours for ours, theirs in pairs]
            ratio = statistics.median(ratios)
            low, high = bootstrap_interval(ratios, 1)
            asked = None if kind else target
            met = None if asked is None else ratio >= asked
            name = f"{own} against {other}{kind}"
            found.append(Row(name, ratio, "times", None, ratio, asked, met, low, high))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bits", type=int, default=25, help="2^bits elements of 8 bytes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    record = Record("shuffling", 1, vars(options))
    raw = measure(np.arange(1 << options.bits, dtype=np.uint64), options.turns, options.threads)
    record.raw["ns_per_element"] = raw
    record.rows += rows(raw)
    print(table(record.rows))
    print(record.write())


if __name__ == "__main__":
    main()
