"""Metrics of running loaders for Prometheus, and traces of their steps for Perfetto, on request.

`serve` answers "how do my loaders do, now and over days?" for a monitoring system; `trace` answers
"where did the time of this very step go?" for a person who looks at a timeline.

    penstock.loader.serve(loader, port=9100)       # http://127.0.0.1:9100/metrics
    with penstock.loader.trace(loader, "run.json"):  # load it in ui.perfetto.dev
        ...

PENSTOCK_METRICS_PORT=9100 in the environment serves every loader of an unchanged program, to other
hosts with PENSTOCK_METRICS_HOST=0.0.0.0; each rank of a host adds its LOCAL_RANK to the port.
Serving needs prometheus-client (`penstock[metrics]`). None of this costs anything until requested.

A trace is a JSON array of events of Chrome, without its end until it is closed; viewers accept
that. Events are written when a batch is handed over, in one write, so that the file holds whole
events at any time. Only the reads of steps that were not handed over yet are kept in memory.
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
from typing import Any, Protocol

from ..arguments import check_kind, check_path, check_whole
from ..engine.threads import make_turn, start_threads
from ..errors import UsageError
from ..meter import Counters, Meter, Requested, Span
from ..own_files import open_own
from .decode import end_with_interpreter

__all__ = ["Endpoint", "serve", "trace"]

log = logging.getLogger("penstock")
_variable = "PENSTOCK_METRICS_PORT"


class Observed(Protocol):
    """A loader, of penstock or of penstock.torch."""

    @property
    def meter(self) -> Meter: ...
    def counters(self) -> Counters: ...
    def explain(self) -> Any: ...


def trace(loader: Observed, path: str | os.PathLike[str], *, steps: int = 100_000) -> PerfettoTrace:
    """Write the next `steps` steps of a loader to a file for Perfetto or chrome://tracing, about
    700 bytes each, until it is closed.

    The file shows the user's waiting and computing, reads by ticket, and the work of each decode
    thread. Every step is written when its batch is handed over, so that the file of a killed run
    can be loaded too. An earlier trace of this loader is closed. Raises UsageError if the file
    cannot be written.
    """
    _check_loader(loader)
    if loader.meter.timeline is not None:
        loader.meter.timeline.close()
    loader.meter.timeline = timeline = PerfettoTrace(path, steps)
    return timeline


def serve(
    loader: Observed, port: int = 0, host: str = "127.0.0.1", *, name: str | None = None
) -> Endpoint:
    """Serve the counters of a loader by HTTP: /metrics for Prometheus, /explain for people.

    Several loaders may be served at one port: the label `loader` is their `name`, by default a
    number. Port 0 is any free port, see `Endpoint.port`. A loader is served as long as it lives,
    until the endpoint is closed or the interpreter ends; the port is free again once nobody refers
    to the endpoint and all its loaders are gone. A request costs the loader nothing, and
    its trainer some 0.5 ms of the GIL for each loader. At most `limits.metrics_clients_max` clients
    are connected, each for `limits.metrics_client_s`. Raises UsageError if the port cannot be had,
    or prometheus-client is not installed.
    """
    _check_loader(loader)
    check_whole("port", port, 0)
    check_kind("host", host, str, "an address of this machine")
    if name is not None:
        check_kind("name", name, str, "a text")
    with _lock:
        endpoint = _endpoints.get((host, port)) if port else None
        if endpoint is None or endpoint.closed:
            endpoint = Endpoint(host, port)
            _endpoints[(host, endpoint.port)] = endpoint
    endpoint.add(loader, name)
    return endpoint


def serve_if_configured(loader: Observed) -> None:
    """Serve a loader as the environment asks; what prevents it is only logged."""
    asked = os.environ.get(_variable)
    if not asked:
        return
    try:
        port = int(asked) + int(os.environ.get("LOCAL_RANK", 0))
        serve(loader, port, os.environ.get("PENSTOCK_METRICS_HOST", "127.0.0.1"))
    except (ValueError, UsageError) as error:
        log.warning("%s=%s: no metrics are served: %s", _variable, asked, error)


class Endpoint:
    """HTTP server in its own thread, for the loaders that were passed to `serve`."""

    def __init__(self, host: str, port: int) -> None:
        from .prometheus import make_metrics_server  # prometheus-client is an extra

        loaders: dict[str, weakref.ref[Observed]] = {}
        try:
            server = make_metrics_server(host, port, lambda: _list_alive(loaders))
        except (OSError, OverflowError) as error:
            what = f"metrics cannot be served at {host}:{port}: {error}"
            raise UsageError(f"{what}: choose another port, or 0") from None
        self._loaders = loaders
        self._pid = os.getpid()
        self._server = server
        self.host: str = host
        self.port: int = server.server_port
        self._thread = threading.Thread(
            target=server.serve_until_stopped, name="penstock-metrics", daemon=True
        )
        self._finalizer = weakref.finalize(self, server.stop)
        self._finalizer.atexit = False
        end_with_interpreter(self._thread, server.stop)
        start_threads([self._thread], server.server_close)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/metrics"

    @property
    def closed(self) -> bool:
        """True after `close`, and in a process that was forked from the serving one."""
        return self._pid != os.getpid() or not self._thread.is_alive()

    def add(self, loader: Observed, name: str | None = None) -> None:
        """Serve another loader here; a loader that is served already gets the new name."""
        for known, reference in list(self._loaders.items()):
            served = reference()
            if served is None or served is loader:
                del self._loaders[known]
            if served is loader:
                name = name or known
        if name is None:
            name = next(
                str(i) for i in range(len(self._loaders) + 1) if str(i) not in self._loaders
            )
        if name in self._loaders:
            raise UsageError(f"{self.url} has another loader named {name!r}: choose another name")
        self._loaders[name] = weakref.ref(loader)
        weakref.finalize(loader, self._forget, name).atexit = False  # keeps this one till then

    def _forget(self, name: str) -> None:
        """Leave a loader out that is gone; the name may be another one's by now."""
        reference = self._loaders.get(name)
        if reference is not None and reference() is None:
            self._loaders.pop(name, None)

    def close(self) -> None:
        """End the server and its clients' connections, and free its port."""
        if not self.closed:
            self._finalizer()
            self._thread.join()
            with _lock:
                _endpoints.pop((self.host, self.port), None)


_lock = make_turn()
_endpoints: weakref.WeakValueDictionary[tuple[str, int], Endpoint] = weakref.WeakValueDictionary()


def _check_loader(loader: object) -> None:
    if not hasattr(loader, "meter"):
        raise UsageError(f"loader is {loader!r:.100}: give a loader of penstock")


def _list_alive(loaders: dict[str, weakref.ref[Observed]]) -> dict[str, Observed]:
    living = {name: reference() for name, reference in list(loaders.items())}
    return {name: loader for name, loader in living.items() if loader is not None}


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
            what = f"the trace cannot be written to {path}: {error.strerror}"
            raise UsageError(f"{what}: give a file in a folder that exists") from None
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
