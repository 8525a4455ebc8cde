"""HTTP server of the counters of loaders: for Prometheus by its own client, and for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..errors import PenstockError
from ..index import missing_library
from ..meter import Counters

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import ThreadingWSGIServer
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing_library("prometheus-client", "metrics", "serving metrics") from error


class CountedLoader(Protocol):
    """A loader whose counters can be read and explained."""

    def counters(self) -> Counters: ...
    def explain(self) -> Any: ...


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

    read:  returns the counters as they stand, by name.
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
            stalls.add_metric([name], _list_buckets(counted.stalls), counted.stall_ns * 1e-9)
        yield stalls
        for key in sorted({key for counted in counters.values() for key in counted.engine}):
            yield _make_engine_family(key, counters)


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> CounterMetricFamily | GaugeMetricFamily:
    for name, value in values.items():
        family.add_metric([name], value)
    return family


def _list_buckets(stalls: tuple[int, ...]) -> list[tuple[str, float]]:
    """Return the cumulative counts of stalls, by the upper bound of each bucket in seconds."""
    told = [(repr((1 << bucket) * 1e-9), float(sum(stalls[: bucket + 1]))) for bucket in _buckets]
    return [*told, ("+Inf", float(sum(stalls)))]


def _make_engine_family(
    key: str, counters: Mapping[str, Counters]
) -> CounterMetricFamily | GaugeMetricFamily:
    """Return the metric of an engine's counter: its name there, with nanoseconds as seconds.

    Counters of a slab belong to all ranks of the host, so that they are gauges and no totals.
    """
    is_time = key.endswith("_ns")
    kind = GaugeMetricFamily if key.startswith("slab_") else CounterMetricFamily
    unit = f"{key[:-3]}_seconds" if is_time else key
    family = kind(
        f"penstock_engine_{unit}", f"Of the engine: {key.replace('_', ' ')}.", labels=["loader"]
    )
    scale = 1e-9 if is_time else 1
    read = {name: counted.engine for name, counted in counters.items()}
    return _fill(family, {name: each[key] * scale for name, each in read.items() if key in each})


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        del format, arguments  # standard error is the trainer's


def make_metrics_server(
    host: str, port: int, list_loaders: Callable[[], Mapping[str, CountedLoader]]
) -> WSGIServer:
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

    return make_server(host, port, answer, ThreadingWSGIServer, _QuietHandler)
