"""HTTP server of the counters of loaders: for Prometheus by its own client, and for people."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from .. import limits
from ..clock import Clock, SystemClock
from ..errors import PenstockError, missing_library
from ..meter import Counters

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing_library("prometheus-client", "metrics", "serving metrics") from error


log = logging.getLogger("penstock")


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
_buckets = range(10, 43)
"""Buckets of stalls that are told: from 1 us to an hour."""


class CounterCollector(Collector):
    """Counters of loaders as metrics; the label `loader` is the name of each.

    read:  returns the current counters, by name.
    """

    def __init__(self, read: Callable[[], Mapping[str, Counters]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        counters = self._read()
        for field, text in _counts.items():
            values = {name: getattr(counted, field) for name, counted in counters.items()}
            yield _fill(CounterMetricFamily(f"penstock_{field}", text, labels=["loader"]), values)
        for field, text in _times.items():
            values = {
                name: getattr(counted, f"{field}_ns") * 1e-9 for name, counted in counters.items()
            }
            family = CounterMetricFamily(f"penstock_{field}_seconds", text, labels=["loader"])
            yield _fill(family, values)
        stalls = HistogramMetricFamily(
            "penstock_stall_seconds",
            "Waiting in next(), until a batch was ready.",
            labels=["loader"],
        )
        for name, counted in counters.items():
            sums = list(itertools.accumulate(counted.stalls))
            told = [(repr((1 << bucket) * 1e-9), float(sums[bucket])) for bucket in _buckets]
            told.append(("+Inf", float(sums[-1])))
            stalls.add_metric([name], told, counted.stall_ns * 1e-9)
        yield stalls
        for key in sorted({key for counted in counters.values() for key in counted.engine}):
            # Counters of a slab belong to all ranks of the host: they are no totals.
            kind = GaugeMetricFamily if key.startswith("slab_") else CounterMetricFamily
            unit, scale = (f"{key[:-3]}_seconds", 1e-9) if key.endswith("_ns") else (key, 1)
            text = f"Of the engine: {key.replace('_', ' ')}."
            read = {name: counted.engine for name, counted in counters.items()}
            values = {name: counts[key] * scale for name, counts in read.items() if key in counts}
            yield _fill(kind(f"penstock_engine_{unit}", text, labels=["loader"]), values)


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> CounterMetricFamily | GaugeMetricFamily:
    for name, value in values.items():
        family.add_metric([name], value)
    return family


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        del format, arguments  # standard error is the trainer's


class MetricsServer(WSGIServer):
    """Server of `limits.metrics_clients_max` clients at a time, each in its own thread and for
    at most `limits.metrics_client_s`.

    One client more ends the connection that is open longest: a client that asks nothing keeps no
    other out. `server_close` ends all of them and waits for their threads.
    """

    clock: Clock = SystemClock()
    timeout = 0.1
    request_queue_size = 128  # connections that are not accepted yet; beyond, they wait for 1 s

    def __init__(self, *arguments: Any) -> None:
        self._clients: dict[socket.socket, tuple[threading.Thread, int]] = {}  # deadlines in ns
        self._ending = threading.Lock()  # held while a socket is closed, or shut down by others
        self._stopped = False
        super().__init__(*arguments)
        self.socket.settimeout(1.0)  # a client that is gone before it is accepted holds up nothing

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(clients := list(self._clients.items())) >= limits.metrics_clients_max:
            oldest, (thread, _) = clients[0]
            self._disconnect(oldest)
            thread.join(limits.metrics_end_s)
            if thread.is_alive():  # at work for its client: the newcomer may ask again
                return self.shutdown_request(request)
        thread = threading.Thread(
            target=self._serve_client,
            args=(request, client_address),
            name="penstock-metrics-client",
            daemon=True,
        )
        deadline_ns = self.clock.now_ns() + int(limits.metrics_client_s * 1e9)
        self._clients[request] = thread, deadline_ns
        try:
            thread.start()
        except RuntimeError:  # no more threads can be had
            self._clients.pop(request)
            raise
        return None

    def _serve_client(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            with self._ending:
                self.shutdown_request(request)
                self._clients.pop(request, None)

    def service_actions(self) -> None:
        """End the clients whose time is over: called every 0.1 s."""
        for client, (_, deadline_ns) in list(self._clients.items()):
            if self.clock.now_ns() >= deadline_ns:
                self._disconnect(client)

    def _disconnect(self, client: socket.socket) -> None:
        """Let the client's thread read an end, and fail to write."""
        with self._ending, contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def serve_until_stopped(self) -> None:
        """Serve clients, then end their threads."""
        while not self._stopped:
            self.handle_request()
            self.service_actions()
        self.server_close()

    def stop(self) -> None:
        """Let `serve_until_stopped` return soon. Never waits: finalizers call it, in any thread."""
        self._stopped = True

    def server_close(self) -> None:
        super().server_close()
        clients = list(self._clients.items())
        for client, _ in clients:
            self._disconnect(client)
        for _, (thread, _) in clients:
            thread.join(limits.metrics_end_s)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the metrics, %s, got no answer", client_address, exc_info=True)


def make_metrics_server(
    host: str, port: int, list_loaders: Callable[[], Mapping[str, Any]]
) -> MetricsServer:
    """Bind a server of /metrics and /explain for the loaders that are listed at each request.

    Raises OSError or OverflowError if the port cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(
        CounterCollector(
            lambda: {name: loader.counters() for name, loader in list_loaders().items()}
        )
    )
    tell_metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path, status = environ["PATH_INFO"], "200 OK"
        try:
            if path in ("/", "/metrics"):
                return tell_metrics(environ, start_response)  # type: ignore[no-any-return]
            if path == "/explain":
                loaders = list_loaders().items()
                text = "\n".join(f"loader {name}: {loader.explain()}\n" for name, loader in loaders)
            else:
                status, text = "404 Not Found", "there are /metrics and /explain\n"
        except PenstockError as error:  # a loader is just being closed
            status, text = "503 Service Unavailable", f"{error}\n"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode()]

    return make_server(host, port, answer, MetricsServer, _QuietHandler)
