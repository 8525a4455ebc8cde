"""One contender: a child process that runs an epoch whenever it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ANSWER_S = 180
EXIT_S = 10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ContenderError(Exception):
    """A contender did not start, did not answer, or answered something else than its peers."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The start of a contender, and the label under which it is recorded.

    environment:  of its processes; None for this one's.
    """

    label: str
    command: tuple[str, ...]
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """A block of epochs: wall time seen by the contender, CPU time of all its processes."""

    samples: int
    seconds: float
    cpu_seconds: float
    touch: int

    @property
    def rate_per_s(self) -> float:
        return self.samples / self.seconds

    @property
    def cpu_us_per_sample(self) -> float:
        return 1e6 * self.cpu_seconds / self.samples


class Contender:
    """A running candidate. Its session holds all its processes, so none can escape or hide."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._child = subprocess.Popen(
            candidate.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=candidate.environment,
            start_new_session=True,
        )
        self._idle_since: tuple[float, float] | None = None
        self.idle_cpu_seconds = 0.0
        self.idle_seconds = 0.0
        try:
            self.about: dict[str, str] = self._answer()["ready"]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def verify(self) -> tuple[int, int]:
        """One untimed epoch over every byte: samples and sum. It is the warm-up as well."""
        answer = self._ask("verify")
        return answer["samples"], answer["sum"]

    def measure(self, epochs: int) -> Measurement:
        """A block of timed epochs."""
        before = self._cpu_seconds()
        self._note_idle(before)
        answer = self._ask(f"epoch {epochs}")
        after = self._cpu_seconds()
        self._idle_since = (time.monotonic(), after)
        return Measurement(answer["samples"], answer["seconds"], after - before, answer["touch"])

    def close(self) -> None:
        """Ends the process, kindly first; idempotent."""
        assert self._child.stdin is not None
        if not self._child.stdin.closed:
            with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                self._child.stdin.close()
                self._child.wait(EXIT_S)
            # Workers that outlive their parent share its process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            assert self._child.stdout is not None
            self._child.stdout.close()
            self._errors.close()

    def _note_idle(self, cpu_seconds: float) -> None:
        if self._idle_since is not None:
            self.idle_seconds += time.monotonic() - self._idle_since[0]
            self.idle_cpu_seconds += cpu_seconds - self._idle_since[1]

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer will say why
            os.write(self._child.stdin.fileno(), line.encode() + b"\n")
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        file = self._child.stdout.fileno()
        deadline = time.monotonic() + ANSWER_S
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([file], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ContenderError(f"no answer within {ANSWER_S} s")
            part = os.read(file, 65536)
            if not part:
                raise ContenderError(self._last_words())
            line += part
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing on standard error"

    def _cpu_seconds(self) -> float:
        return sum(map(process_cpu_seconds, session_processes(self._child.pid)))


def session_processes(session: int) -> list[int]:
    """The live processes of a session."""
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(int(name))
            if fields and int(fields[3]) == session:
                members.append(int(name))
    return members


def stat_fields(process: int) -> list[str]:
    """/proc/PID/stat from the state on; empty when the process is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def process_cpu_seconds(process: int) -> float:
    """CPU time of a process to the nanosecond, plus (in ticks) that of children it has reaped."""
    fields = stat_fields(process)
    if not fields:
        return 0.0
    reaped = (int(fields[13]) + int(fields[14])) / TICKS_PER_S
    try:
        # The clock of another process, as clock_getcpuclockid(3) spells it.
        return reaped + time.clock_gettime((~process << 3) | 2)
    except OSError:
        return reaped
