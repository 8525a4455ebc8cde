"""Timeline of steps: a file of Chrome's trace events for Perfetto.

Events are written when a batch is handed over, in one write, so that the file holds whole events at
any time. It is a JSON array without its end until the trace is closed; viewers accept that. Only
the reads of steps that were not handed over yet are kept in memory, `_reads_max` at most.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

from ..arguments import check_path, check_whole
from ..errors import UsageError
from ..meter import Requested, Span
from ..own_files import open_own

log = logging.getLogger("penstock")
_reads_max = 1024
_user = 1  # lanes: viewers sort them by these numbers
_first_thread = 10


class PerfettoTrace:
    """Writer of the steps of one loader to a trace file; see `penstock.loader.trace`.

    The file ends with `close`, with the interpreter, or with the last of `steps`. It is a context
    manager, and safe to use from several threads.
    """

    def __init__(self, path: str | os.PathLike[str], steps: int) -> None:
        check_whole("steps", steps)
        path = check_path("path", path)
        try:
            file = open_own(path, os.O_WRONLY | os.O_CREAT, 0o644, device=True)
            if os.path.isfile(path):
                os.ftruncate(file, 0)  # not before: it may have been another's file
        except OSError as error:
            raise UsageError(
                f"the trace cannot be written to {path}: {error.strerror}: give a file "
                "in a folder that exists and may be written"
            ) from None
        self.path = path
        self._left = steps
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._file = file
        self._finalizer = weakref.finalize(self, _end, file, self._pid)
        self._events: list[dict[str, Any]] = []
        self._lanes: dict[int, int] = {}  # by thread
        self._reads: dict[tuple[int, int], tuple[int, Requested]] = {}  # by epoch and step
        self._separator = b"[\n"
        self._name("process_name", 0, "penstock")
        self._name("thread_name", _user, "user")
        self._flush()

    @property
    def closed(self) -> bool:
        """True after `close`, and in a process that was forked from the writing one."""
        return not self._finalizer.alive or self._pid != os.getpid()

    def close(self) -> None:
        """End the file. May be called again."""
        with self._lock:
            if not self.closed:
                self._flush()
                self._finalizer()

    def __enter__(self) -> PerfettoTrace:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- events of a loader: see `penstock.meter.Timeline` ----------------------------------------

    def record_request(self, epoch: int, step: int, what: Requested) -> None:
        with self._lock:
            if len(self._reads) >= _reads_max:  # reads of epochs that were given up
                del self._reads[next(iter(self._reads))]
            self._reads[(epoch, step)] = time.perf_counter_ns(), what

    def record_arrival(self, epoch: int, step: int) -> None:
        with self._lock:
            began_ns, what = self._reads.pop((epoch, step), (0, None))
            if what is None:
                return
            # Reads overlap, so that each needs an event for its begin and one for its end.
            name, number = f"read of step {step}", f"{epoch}.{step}"
            both = {"cat": "read", "name": name, "id": number, "tid": _user}
            about = {"ticket": what.ticket, "bytes": what.bytes, "runs": what.runs, "epoch": epoch}
            self._add({"ph": "b", "ts": _us(began_ns), **both, "args": about})
            self._add({"ph": "e", "ts": _us(time.perf_counter_ns()), **both})

    def record_decoding(self, epoch: int, step: int, spans: Iterable[Span]) -> None:
        with self._lock:
            for span in spans:
                lane = self._lane(span.thread)
                about = {"epoch": epoch, "cpu_us": span.cpu_ns / 1e3}
                self._slice(f"decode step {step}", lane, span.began_ns, span.ended_ns, about)

    def record_batch(
        self, epoch: int, step: int, asked_ns: int, ready_ns: int, bytes_ns: int, decode_ns: int
    ) -> None:
        with self._lock:
            about = {"epoch": epoch, "bytes_us": bytes_ns / 1e3, "decode_us": decode_ns / 1e3}
            self._slice(f"wait for step {step}", _user, asked_ns, ready_ns, about)
            self._slice("plan ahead", _user, ready_ns, time.perf_counter_ns(), {})
            self._flush()
            self._left -= 1
            if self._left == 0:
                self.close()

    def record_compute(self, since_ns: int, until_ns: int) -> None:
        with self._lock:
            self._slice("compute", _user, since_ns, until_ns, {})

    # -- events ------------------------------------------------------------------------------------

    def _lane(self, thread: int) -> int:
        if thread not in self._lanes:
            lane = self._lanes[thread] = _first_thread + len(self._lanes)
            self._name("thread_name", lane, f"decode {lane - _first_thread}")
        return self._lanes[thread]

    def _name(self, what: str, lane: int, name: str) -> None:
        self._add({"ph": "M", "name": what, "tid": lane, "args": {"name": name}})

    def _slice(
        self, name: str, lane: int, began_ns: int, ended_ns: int, about: dict[str, Any]
    ) -> None:
        times = {"ts": _us(began_ns), "dur": _us(ended_ns - began_ns)}
        self._add({"ph": "X", "name": name, **times, "tid": lane, "args": about})

    def _add(self, event: dict[str, Any]) -> None:
        if not self.closed:
            self._events.append({**event, "pid": self._pid})

    def _flush(self) -> None:
        lines = [json.dumps(event, separators=(",", ":")).encode() for event in self._events]
        self._events.clear()
        if not lines or self.closed:
            return
        text = self._separator + b",\n".join(lines)
        self._separator = b",\n"
        try:
            written = os.write(self._file, text)
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:  # a trace is no reason for training to fail
            log.warning("the trace %s ends here: %s", self.path, error.strerror)
            self._finalizer.detach()
            os.close(self._file)


def _us(time_ns: int) -> float:
    return time_ns / 1e3


def _end(file: int, pid: int) -> None:
    if pid == os.getpid():  # in a forked process the file is still the parent's
        with contextlib.suppress(OSError):  # the disk is full: viewers do without the end
            os.write(file, b"\n]\n")
    os.close(file)
