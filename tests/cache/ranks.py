"""Ranks in processes of their own, led step by step: tests start them, stop them and kill them.

A rank does what it reads from its input and writes what came of it; its launcher is the test, which
also hands on what the ranks tell each other. It compares every batch with the data itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests import warm


class Taken(NamedTuple):
    """A batch as its rank got it: the samples, and how long `next` took."""

    ids: list[int]
    waited_s: float


class Rank:
    """The test's end of a rank. What is not given of the loader is as its defaults are.

    truth:    where the same data can be read to compare; by default `path` itself.
    bounds:   other values of `penstock.limits`, which tests need not wait for.
    command:  what starts Python, such as a way into a namespace.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        world_size: int,
        *,
        cache: Mapping[str, Any],
        loader: Mapping[str, Any],
        budget: Mapping[str, Any] | None = None,
        bounds: Mapping[str, float] | None = None,
        truth: Path | None = None,
        command: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        told = {
            "path": str(path),
            "truth": str(truth or path),
            "cache": dict(cache),
            "loader": {"rank": rank, "world_size": world_size, **loader},
            "budget": dict(budget or {}),
            "bounds": dict(bounds or {}),
        }
        self.process = warm.Popen(
            [*command, sys.executable, __file__, json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environ or {})},
        )

    def tell(self, *words: Any) -> None:
        """Do something. Nothing waits for it to be done."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """The next thing that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"rank ended with {self.process.wait(240)}"
        return json.loads(line)

    def batches(self) -> Iterator[Taken]:
        """The batches that it takes after `tell("take", count)`, one by one."""
        while (said := self.hear()) is not None:
            yield Taken(*said)

    def take(self, count: int | None = None) -> list[Taken]:
        """So many batches, or all that are left of the epoch."""
        self.tell("take", count)
        return list(self.batches())

    def stats(self) -> dict[str, Any]:
        self.tell("stats")
        found: dict[str, Any] = self.hear()
        return found

    def state(self) -> dict[str, Any]:
        """The state that it stands at."""
        self.tell("state")
        found: dict[str, Any] = self.hear()
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(240)


def begin(ranks: Sequence[Rank]) -> None:
    """Begin an epoch on all of them, which at first use tells each of the others."""
    for each in ranks:
        each.tell("begin")
    while True:
        said = [each.hear() for each in ranks]
        if said == ["begun"] * len(ranks):
            return
        for each in ranks:
            each.tell(*said)


@contextmanager
def ended(ranks: Sequence[Rank]) -> Iterator[Sequence[Rank]]:
    """No process is left, whatever happens."""
    try:
        yield ranks
    finally:
        for each in ranks:
            each.process.kill()
        for each in ranks:
            with each.process:
                each.process.wait(240)


# -- the process ---------------------------------------------------------------------------------


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def _hear() -> Any:
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return json.loads(line)


def _gather(text: str) -> list[str]:
    _say(text)
    found: list[str] = _hear()
    return found


def main() -> None:
    import numpy as np

    import penstock

    told = json.loads(sys.argv[1])
    for name, value in told["bounds"].items():
        assert hasattr(penstock.limits, name)
        setattr(penstock.limits, name, value)
    data = np.load(told["truth"], mmap_mode="r")
    loader = penstock.Loader(
        penstock.open(told["path"], index="memory"),
        cache=penstock.Cache(**told["cache"], gather=_gather),
        budget=penstock.Budget(**told["budget"]),
        **told["loader"],
    )
    with loader:
        while True:
            word, *values = _hear()
            if word == "begin":
                reading = iter(loader).begin()
                _say("begun")
            elif word == "take":
                (count,) = values
                while count is None or count > 0:
                    since = time.monotonic()
                    batch = next(reading, None)
                    waited_s = time.monotonic() - since
                    if batch is None:
                        break
                    assert (batch["data"] == data[batch.ids]).all()
                    _say([batch.ids.tolist(), waited_s])
                    count = None if count is None else count - 1
                _say(None)
            elif word == "claim":  # until cache blocks are claimed, and on their way
                while not loader.stats().get("loaded_bytes"):
                    os.sched_yield()
                _say("claimed")
            elif word == "hang":  # in a library that never lets other Python code run
                signal.signal(signal.SIGUSR1, lambda *_: None)
                _say("hangs")
                ctypes.PyDLL(None).pause()  # PyDLL: until a signal comes
                _say("goes on")
            elif word == "stats":
                _say(loader.stats())
            elif word == "state":
                _say(loader.state_dict())
            elif word == "load":  # before an epoch begins
                loader.load_state_dict(*values)


if __name__ == "__main__":
    main()
