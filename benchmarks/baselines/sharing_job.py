"""A job that trains on a share of a host: a loader, and steps of a model that sleeps.

The driver (`benchmarks.share.host`) writes a line of JSON, and is answered with one, where it says
so. A running job looks for lines once a step, so that an answer comes at a step's boundary.

    {"budget": {...}}         adopt it (no answer)
    {"go": N or null}         begin, or go on: so many more steps, or until told otherwise (no
                              answer); after the last of N steps it says {"done": true}
    {"stop": true}            stand still until the next "go" (no answer)
    {"report": true}          -> a report: what was counted so far
    {"trace": true}           -> when each step came and how many samples it had, with the digest of
                              all ids so far
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import penstock
from benchmarks.share.work import KINDS
from penstock_bench.measurement import StepPace, sharpen_timers

counted = ("time_ns", "samples", "batches", "compute_ns", "own_ns", "stall_ns", "decode_cpu_ns")


class Lines:
    """Lines of standard input, which is looked at without waiting where `block` is false."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, *, block: bool) -> dict[str, Any] | None:
        """The next line; None where there is none yet. EOFError at the end of them."""
        while b"\n" not in self._rest:
            if not block and not select.select([0], [], [], 0)[0]:
                return None
            part = os.read(0, 65536)
            if not part:
                raise EOFError
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


class Training:
    """The loader, its model, and what the driver asks for."""

    def __init__(self, options: dict[str, Any]) -> None:
        kind = KINDS[options["kind"]]
        self._loader = penstock.Loader(
            kind.open(options["path"]),
            options["batch"],
            decode=kind.decode,
        )
        self._step_ns = int(options["step_ms"] * 1e6)
        self._pace = StepPace()
        self._lines = Lines()
        self._steps: list[tuple[int, int]] = []
        self._ids = hashlib.sha256()
        self._left: float = 0

    def run(self) -> None:
        """Until standard input ends."""
        batches = self._batches()
        while True:
            self._obey(block=self._left == 0)
            if self._left == 0:
                continue
            batch = next(batches)
            given_ns = self._pace.clock()
            ids = batch.ids if isinstance(batch, penstock.Batch) else batch["id"]
            self._ids.update(np.asarray(ids, np.int64).tobytes())
            self._steps.append((given_ns, len(ids)))
            self._pace.until(given_ns + self._step_ns)
            self._left -= 1
            if self._left == 0:
                self._loader.close()  # what it had is the others'
                self._say({"done": True})

    def _batches(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def _obey(self, block: bool) -> None:
        line = self._lines.take(block=block)
        while line is not None:
            if "budget" in line:
                self._loader.budget = penstock.Budget(**line["budget"])
            if "go" in line:
                self._left = float("inf") if line["go"] is None else line["go"]
            if "stop" in line:
                self._left = 0
            if "report" in line:
                self._say(self._report())
            if "trace" in line:
                self._say({"steps": self._steps, "ids": self._ids.hexdigest()})
            line = self._lines.take(block=self._left == 0)

    def _report(self) -> dict[str, Any]:
        counters = self._loader.counters()
        now = {name: getattr(counters, name) for name in counted}
        engine = {name: counters.engine.get(name, 0) for name in ("bytes", "tickets")}
        times = os.times()
        tasks = sorted(map(int, os.listdir("/proc/self/task")))
        return now | engine | {"process_s": times.user + times.system, "tasks": tasks}

    @staticmethod
    def _say(answer: dict[str, Any]) -> None:
        os.write(protocol, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    protocol = os.dup(1)  # libraries print
    os.dup2(2, 1)
    sharpen_timers()
    training = Training(json.loads(sys.argv[1]))
    os.write(protocol, b"{}\n")
    try:
        training.run()
    except EOFError:
        os._exit(0)
