"""Reader processes that read one after the other or together what their nodes see of a storage.

Each process carries out lines, so that starting it is outside the clock:

    open PATH  -> {}                                     look at the data; nothing else is read
       or      -> {"said"}                               and wait for what all said: a list, a line
    read       -> {"samples", "sum", "begin", "end"}     one pass; times are CLOCK_MONOTONIC seconds
    close      -> {}                                     let go of the file and all memory of it

`baselines/read_loop.py` and `floors/random_floor.cpp` are the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .contender import ANSWER_S, EXIT_S, ROOT, ContenderError

WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class Way:
    """A way to read: a command that each of `processes` runs, with --rank and --world appended."""

    label: str
    command: tuple[str, ...]
    processes: int = 1


def python(module: str, label: str, processes: int = 1, **options: object) -> Way:
    """A way whose processes run a module of `baselines`."""
    words = [
        word
        for name, value in options.items()
        for word in ("--" + name.replace("_", "-"), str(value))
    ]
    start = (sys.executable, "-m", f"benchmarks.baselines.{module}", *words)
    return Way(label, start, processes)


@dataclass(frozen=True, slots=True)
class Pass:
    """The delivery of all processes of a fleet together, from the first start to the last end."""

    samples: int
    total: int
    seconds: float
    answers: Sequence[Mapping[str, Any]] = ()

    @property
    def rate_per_s(self) -> float:
        return self.samples / self.seconds


class Fleet:
    """The running processes of a way."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._children: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(way.processes):
                self._children.append(
                    subprocess.Popen(
                        [*way.command, "--rank", str(rank), "--world", str(way.processes)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=self._errors,
                        cwd=ROOT,
                        start_new_session=True,
                    )
                )
            self._answers()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self, paths: Sequence[str], opened: Callable[[], None]) -> Pass:
        """One pass: process k reads the file at paths[k], or all the one there is.

        `opened` is called between opening and reading.
        """
        self.open(paths)
        opened()
        try:
            return self.pass_()
        finally:
            self.let_go()

    def open(self, paths: Sequence[str]) -> None:
        """Have all processes open their files, and tell each other what they say meanwhile."""
        count = len(self._children)
        paths = [*paths] * count if len(paths) == 1 else paths
        answers = self._ask([f"open {path}" for path in paths])
        while "said" in answers[0]:
            answers = self._ask([json.dumps([answer["said"] for answer in answers])] * count)

    def pass_(self) -> Pass:
        """One pass over what is open."""
        answers = self._ask(["read"] * len(self._children))
        seconds = max(a["end"] for a in answers) - min(a["begin"] for a in answers)
        samples = sum(a["samples"] for a in answers)
        return Pass(samples, sum(a["sum"] for a in answers) % WORD, seconds, answers)

    def let_go(self) -> None:
        """Close the files."""
        self._ask(["close"] * len(self._children))

    def close(self) -> None:
        """End all processes, kindly first; idempotent."""
        for child in self._children:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(EXIT_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
        self._errors.close()

    def _ask(self, lines: list[str]) -> list[dict[str, Any]]:
        for child, line in zip(self._children, lines, strict=True):
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the answer will say why
                os.write(child.stdin.fileno(), line.encode() + b"\n")
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        return [self._answer(child) for child in self._children]

    def _answer(self, child: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert child.stdout is not None
        ready, _, _ = select.select([child.stdout], [], [], ANSWER_S)
        line = child.stdout.readline() if ready else b""
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words(ready)}
        if "error" in answer:
            raise ContenderError(f"{self.way.label}: {answer['error']}")
        return answer

    def _last_words(self, ready: list[Any]) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-3:]
        return f"{'ended' if ready else f'no answer in {ANSWER_S} s'}: {' | '.join(said)}"
