"""Counters of running loaders for Prometheus, and traces of their steps for Perfetto: on request.

    penstock.loader.serve(loader, port=9100)       # http://127.0.0.1:9100/metrics
    with penstock.loader.trace(loader, "run.json"):  # load it in ui.perfetto.dev
        ...

PENSTOCK_METRICS_PORT=9100 in the environment serves every loader of an unchanged program; each rank
of a host adds its LOCAL_RANK to the port. Nothing of this costs anything while it is not asked for.
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
    """A loader, of penstock or of penstock.torch.loader."""

    @property
    def meter(self) -> Meter: ...
    def counters(self) -> Counters: ...
    def explain(self) -> Any: ...


def trace(loader: Observed, path: str | os.PathLike[str], *, steps: int = 100_000) -> PerfettoTrace:
    """Write the next `steps` steps of a loader to a file for Perfetto or chrome://tracing, about
    700 bytes each, until it is closed.

    Waiting and computing of the user, reads by ticket, and what each decode thread was at. Every
    step is written when its batch is handed over, so that a file of a run that was killed can be
    loaded too. Instead of an earlier trace of this loader, which is closed. UsageError where the
    file cannot be written.
    """
    if loader.meter.timeline is not None:
        loader.meter.timeline.close()
    loader.meter.timeline = found = PerfettoTrace(path, steps)
    return found


def serve(
    loader: Observed, port: int = 0, host: str = "127.0.0.1", *, name: str | None = None
) -> Endpoint:
    """Serve the counters of a loader by HTTP: /metrics for Prometheus, /explain for people.

    Several loaders may be served at one port: the label `loader` is their `name`, by default a
    number. Port 0 is any that is free, see `Endpoint.port`. A loader is served for as long as it
    lives, and until the endpoint is closed or the interpreter ends; asking costs the loader
    nothing, and its trainer some 50 us of the GIL. UsageError where the port cannot be had.
    """
    with _lock:
        found = _endpoints.get((host, port)) if port else None
        if found is None or found.closed:
            found = Endpoint(host, port)
            _endpoints[(host, found.port)] = found
    found.add(loader, name)
    return found


def serve_if_configured(loader: Observed) -> None:
    """`serve`, where the environment asks for it. A port that cannot be had is no reason to fail:
    it is logged."""
    asked = os.environ.get(_variable)
    if not asked:
        return
    try:
        port = int(asked) + int(os.environ.get("LOCAL_RANK", 0))
        serve(loader, port)
    except (ValueError, UsageError) as error:
        log.warning("%s=%s: no metrics are served: %s", _variable, asked, error)


class Endpoint:
    """An HTTP server in a thread of its own, for the loaders that were given to `serve`."""

    def __init__(self, host: str, port: int) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # 15 ms

        loaders: dict[str, weakref.ref[Observed]] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    status, kind, text = _answer(self.path, _list_alive(loaders))
                except PenstockError as error:  # it is just being closed
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
        """Also in a process that was forked from the one that serves."""
        return self._pid != os.getpid() or not self._thread.is_alive()

    def add(self, loader: Observed, name: str | None = None) -> None:
        """Serve another loader here; the same one again only gets another name."""
        for known, each in list(self._loaders.items()):
            served = each()
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
    found = {name: each() for name, each in list(loaders.items())}
    return {name: each for name, each in found.items() if each is not None}


def _answer(path: str, loaders: Mapping[str, Observed]) -> tuple[int, str, str]:
    path = path.partition("?")[0]
    if path in ("/", "/metrics"):
        counters = {name: each.counters() for name, each in loaders.items()}
        return 200, _content_type, format_metrics(counters)
    if path == "/explain":
        said = [f"loader {name}: {each.explain()}\n" for name, each in loaders.items()]
        return 200, "text/plain; charset=utf-8", "\n".join(said)
    return 404, "text/plain", "there are /metrics and /explain\n"


# -- the text that Prometheus reads ----------------------------------------------------------------


class _Family(NamedTuple):
    """Metrics of one name: `samples` are labels and values."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, float | int]]


def format_metrics(counters: Mapping[str, Counters]) -> str:
    """The counters of loaders, by name, in Prometheus's text format 0.0.4."""
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
    samples = [each for label, counted in rows for each in _list_buckets(name, label, counted)]
    yield _Family(name, "histogram", "Waiting in next(), until a batch was ready.", samples)
    keys = sorted({key for _, counted in rows for key in counted.engine})
    for key in keys:
        found = [(label, counted.engine[key]) for label, counted in rows if key in counted.engine]
        yield _make_engine_family(key, found)


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
    """Cumulative, over the buckets that can hold what people wait: 1 us to an hour."""
    seen = 0
    for bucket, count in enumerate(counted.stalls):
        seen += count
        if 10 <= bucket <= 42:
            yield f'{name}_bucket{{{label},le="{(1 << bucket) * 1e-9!r}"}}', seen
    yield f'{name}_bucket{{{label},le="+Inf"}}', sum(counted.stalls)
    yield f"{name}_sum{{{label}}}", counted.stall_ns * 1e-9
    yield f"{name}_count{{{label}}}", sum(counted.stalls)


def _make_engine_family(key: str, found: list[tuple[str, int]]) -> _Family:
    """A counter of an engine: what it is called there, nanoseconds as seconds. Those of a slab are
    of all ranks of the host, and are no totals of this one."""
    shared = key.startswith("slab_")
    seconds = key.endswith("_ns")
    unit = f"{key[:-3]}_seconds" if seconds else key
    name = f"penstock_engine_{unit}" + ("" if shared else "_total")
    kind, scale = ("gauge" if shared else "counter"), (1e-9 if seconds else 1)
    samples = [(f"{name}{{{label}}}", value * scale) for label, value in found]
    return _Family(name, kind, f"Of the engine: {key.replace('_', ' ')}.", samples)


def _escape_label(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
