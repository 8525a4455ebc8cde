"""The cost of an index: Order against numpy's shuffle and against moving eight bytes.

    python benchmarks/order.py

One thread, processor time, best of interleaved repetitions: a busy machine slows all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.order.order import Order

COUNT = 2**27 + 1
INDICES = 1 << 24  # mapped by each contender in one measurement, ...
CHUNK = 1 << 16  # ... this many a call
REPEAT = 2


def _seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def measure(repeat: int = REPEAT) -> dict[str, list[float]]:
    """Nanoseconds an index of each contender, one value a repetition."""
    order = Order(COUNT, seed=1)
    # Whoever plans has just computed the positions: they are in the cache, here as there.
    chunks = np.arange(16 * CHUNK, dtype=np.uint64).reshape(16, CHUNK)
    source, target = np.ones(INDICES, np.uint64), np.zeros(INDICES, np.uint64)
    calls = INDICES // CHUNK
    contenders: dict[str, Callable[[], object]] = {
        "samples": lambda: [order.samples(chunks[i % 16]).size for i in range(calls)],
        "positions": lambda: [order.positions(chunks[i % 16]).size for i in range(calls)],
        "run": lambda: [order.run(i * CHUNK, CHUNK).size for i in range(calls)],
        "copy": lambda: np.copyto(target, source),
    }
    raw: dict[str, list[float]] = {name: [] for name in [*contenders, "permutation"]}
    generator = np.random.default_rng(1)
    for _ in range(repeat):
        for name, call in [*contenders.items()] * 6:
            raw[name].append(_seconds(call) / INDICES * 1e9)
        raw["permutation"].append(_seconds(lambda: generator.permutation(COUNT)) / COUNT * 1e9)
    return raw


def rows() -> list[dict[str, Any]]:
    """One row a target; `floor` is copying eight bytes."""
    raw = measure()
    best = {name: min(values) for name, values in raw.items()}
    floor = best["copy"]

    def row(name: str, value: float, unit: str, target: float | None, *used: str) -> dict[str, Any]:
        # Costs and slow-downs have a target from above, speed-ups from below.
        met = target is None or (value >= target if unit == "times faster" else value <= target)
        return {
            "name": name,
            "value": value,
            "unit": unit,
            "floor": floor if unit == "ns/index" else None,
            "target": target,
            "met": met,
            "raw": {key: raw[key] for key in used},
        }

    speed_up = best["permutation"] / best["samples"]
    inverse = best["positions"] / best["samples"]
    return [
        row("Order.samples, 2^27+1", best["samples"], "ns/index", None, "samples", "copy"),
        row("Order.positions, 2^27+1", best["positions"], "ns/index", None, "positions", "copy"),
        row("Order.run, 2^27+1", best["run"], "ns/index", None, "run", "copy"),
        row("numpy permutation, 2^27+1", best["permutation"], "ns/index", None, "permutation"),
        row(
            "samples against numpy permutation",
            speed_up,
            "times faster",
            14.0,
            "samples",
            "permutation",
        ),
        row("positions against samples", inverse, "ratio", 1.2, "samples", "positions"),
        row("samples against copy", best["samples"] / floor, "ratio", 5.0, "samples", "copy"),
    ]


def main() -> None:
    print(f"{'':40}{'value':>9} {'unit':14}{'floor':>8}{'target':>8}  met")
    for row in rows():
        floor = "" if row["floor"] is None else f"{row['floor']:.2f}"
        target = "" if row["target"] is None else f"{row['target']:g}"
        met = "" if row["target"] is None else "yes" if row["met"] else "NO"
        print(f"{row['name']:40}{row['value']:9.2f} {row['unit']:14}{floor:>8}{target:>8}  {met}")


if __name__ == "__main__":
    main()
