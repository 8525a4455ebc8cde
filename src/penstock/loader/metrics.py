"""Metrics of running loaders for Prometheus, and traces of their steps for Perfetto, on request.

`serve` answers "how do my loaders do, now and over days?" for a monitoring system; `trace` answers
"where did the time of this very step go?" for a person who looks at a timeline.

    penstock.loader.serve(loader, port=9100)       # http://127.0.0.1:9100/metrics
    with penstock.loader.trace(loader, "run.json"):  # load it in ui.perfetto.dev
        ...

PENSTOCK_METRICS_PORT=9100 in the environment serves every loader of an unchanged program; each rank
of a host adds its LOCAL_RANK to the port. None of this costs anything until it is requested.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from ..errors import PenstockError, UsageError
from ..meter import Counters, Meter
from .decode import end_with_interpreter
from .perfetto import PerfettoTrace

__all__ = ["Endpoint", "format_metrics", "serve", "trace"]

log = logging.getLogger("penstock")
_variable = "PENSTOCK_METRICS_PORT"
_content_type = "text/plain; version=0.0.4; charset=utf-8"


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
    until the endpoint is closed or the interpreter ends. A request costs the loader nothing, and
    its trainer some 50 us of the GIL. Raises UsageError if the port cannot be had.
    """
    with _lock:
        endpoint = _endpoints.get((host, port)) if port else None
        if endpoint is None or endpoint.closed:
            endpoint = Endpoint(host, port)
            _endpoints[(host, endpoint.port)] = endpoint
    endpoint.add(loader, name)
    return endpoint


def serve_if_configured(loader: Observed) -> None:
    """Serve a loader if PENSTOCK_METRICS_PORT is set; a port that cannot be had is only logged."""
    asked = os.environ.get(_variable)
    if not asked:
        return
    try:
        port = int(asked) + int(os.environ.get("LOCAL_RANK", 0))
        serve(loader, port)
    except (ValueError, UsageError) as error:
        log.warning("%s=%s: no metrics are served: %s", _variable, asked, error)


class Endpoint:
    """HTTP server in a thread of its own, for the loaders that were passed to `serve`."""

    def __init__(self, host: str, port: int) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # 15 ms

        loaders: dict[str, weakref.ref[Observed]] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    status, kind, text = _answer(self.path, _list_alive(loaders))
                except PenstockError as error:  # a loader is just being closed
                    status, kind, text = 503, "text/plain", f"{error}\n"
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                del format, arguments  # standard error is the trainer's

        try:
            server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"metrics cannot be served at {host}:{port}: {error}: choose another port, or 0 "
                "for any that is free"
            ) from None
        self._loaders = loaders
        self._pid = os.getpid()
        self._server = server
        self.host: str = host
        self.port: int = server.server_address[1]
        self._thread = threading.Thread(
            target=functools.partial(server.serve_forever, poll_interval=0.1),
            name="penstock-metrics",
            daemon=True,
        )
        end_with_interpreter(self._thread, server.shutdown)
        self._thread.start()

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
            raise UsageError(
                f"{self.url} serves another loader named {name!r}: choose another name"
            )
        self._loaders[name] = weakref.ref(loader)

    def close(self) -> None:
        """End the server, and free its port."""
        if not self.closed:
            self._server.shutdown()
            self._server.server_close()


_lock = threading.Lock()
_endpoints: dict[tuple[str, int], Endpoint] = {}


def _list_alive(loaders: Mapping[str, weakref.ref[Observed]]) -> dict[str, Observed]:
    living = {name: reference() for name, reference in list(loaders.items())}
    return {name: loader for name, loader in living.items() if loader is not None}


def _answer(path: str, loaders: Mapping[str, Observed]) -> tuple[int, str, str]:
    path = path.partition("?")[0]
    if path in ("/", "/metrics"):
        counters = {name: loader.counters() for name, loader in loaders.items()}
        return 200, _content_type, format_metrics(counters)
    if path == "/explain":
        texts = [f"loader {name}: {loader.explain()}\n" for name, loader in loaders.items()]
        return 200, "text/plain; charset=utf-8", "\n".join(texts)
    return 404, "text/plain", "there are /metrics and /explain\n"


# -- text for Prometheus ----------------------------------------------------------------


class _Family(NamedTuple):
    """Metric of one name; `samples` are its labels and values."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, float | int]]


def format_metrics(counters: Mapping[str, Counters]) -> str:
    """Return the counters of loaders, by name, in Prometheus's text format 0.0.4."""
    lines = []
    for family in _list_families(counters):
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{name} {value!r}" for name, value in family.samples]
    return "\n".join(lines) + "\n" if lines else "\n"


def _list_families(counters: Mapping[str, Counters]) -> Iterable[_Family]:
    rows = [(f'loader="{_escape_label(name)}"', counted) for name, counted in counters.items()]
    for field, text in _counts.items():
        name = f"penstock_{field}_total"
        samples = [(f"{name}{{{label}}}", getattr(counted, field)) for label, counted in rows]
        yield _Family(name, "counter", text, samples)
    for field, text in _times.items():
        name = f"penstock_{field}_seconds_total"
        samples = [
            (f"{name}{{{label}}}", getattr(counted, f"{field}_ns") * 1e-9)
            for label, counted in rows
        ]
        yield _Family(name, "counter", text, samples)
    name = "penstock_stall_seconds"
    samples = [one for label, counted in rows for one in _list_buckets(name, label, counted)]
    yield _Family(name, "histogram", "Waiting in next(), until a batch was ready.", samples)
    keys = sorted({key for _, counted in rows for key in counted.engine})
    for key in keys:
        values = [(label, counted.engine[key]) for label, counted in rows if key in counted.engine]
        yield _make_engine_family(key, values)


_counts = {
    "epochs": "Walks through an epoch that were begun.",
    "batches": "Batches handed over.",
    "samples": "Samples handed over.",
    "failed": "Batches that raised.",
}
_times = {
    "compute": "Between batches: the user's step.",
    "bytes": "Waiting for bytes, but for first batches.",
    "decode": "Waiting for decoding, but for first batches.",
    "own": "Planning and asking for what comes later, but for first batches.",
    "first_stall": "Waiting for first batches.",
    "first_batch": "From the beginning of a walk to its first batch.",
    "decode_busy": "Time of threads in decoding.",
    "decode_cpu": "Time of processors in decoding.",
}


def _list_buckets(name: str, label: str, counted: Counters) -> Iterable[tuple[str, float | int]]:
    """Generate cumulative counts of stalls, for the buckets from 1 us to an hour."""
    seen = 0
    for bucket, count in enumerate(counted.stalls):
        seen += count
        if 10 <= bucket <= 42:
            yield f'{name}_bucket{{{label},le="{(1 << bucket) * 1e-9!r}"}}', seen
    yield f'{name}_bucket{{{label},le="+Inf"}}', sum(counted.stalls)
    yield f"{name}_sum{{{label}}}", counted.stall_ns * 1e-9
    yield f"{name}_count{{{label}}}", sum(counted.stalls)


def _make_engine_family(key: str, values: list[tuple[str, int]]) -> _Family:
    """Return the metric of an engine's counter: its name there, with nanoseconds as seconds.

    Counters of a slab belong to all ranks of the host, so that they are gauges and no totals.
    """
    shared = key.startswith("slab_")
    seconds = key.endswith("_ns")
    unit = f"{key[:-3]}_seconds" if seconds else key
    name = f"penstock_engine_{unit}" + ("" if shared else "_total")
    kind, scale = ("gauge" if shared else "counter"), (1e-9 if seconds else 1)
    samples = [(f"{name}{{{label}}}", value * scale) for label, value in values]
    return _Family(name, kind, f"Of the engine: {key.replace('_', ' ')}.", samples)


def _escape_label(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
