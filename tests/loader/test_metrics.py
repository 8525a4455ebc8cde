"""Metrics as Prometheus reads them, and traces as Perfetto does; of loaders that run."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import socket
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest, parser

import penstock
from penstock import limits
from penstock.errors import UsageError
from penstock.loader import metrics
from penstock.loader.metrics import PerfettoTrace
from penstock.loader.prometheus import CounterCollector
from penstock.meter import STALL_BUCKETS, Counters, Requested, Span
from tests import warm
from tests.jumping_clock import JumpingClock

RECORD = 512


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    np.arange(64 * RECORD, dtype=np.uint8).tofile(tmp_path / "records.bin")
    return penstock.open(tmp_path / "records.bin", record_bytes=RECORD, index="memory")


@pytest.fixture
def loader(records: penstock.Dataset) -> Iterator[penstock.Loader]:
    with penstock.Loader(records, 8, decode=lambda sample: len(sample["data"])) as loader:
        yield loader


def asked(url: str) -> str:
    with urllib.request.urlopen(url, timeout=240) as answer:
        return str(answer.read().decode())


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Values by name and loader; with `le` in the name of a bucket."""
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            name = sample.name + (f" {labels['le']}" if "le" in labels else "")
            assert (name, labels["loader"]) not in found
            found[(name, labels["loader"])] = sample.value
    return found


def text_of(counters: dict[str, Counters]) -> str:
    """Counters as Prometheus is told them."""
    return generate_latest(CounterCollector(lambda: counters)).decode()


# -- metrics -------------------------------------------------------------------------------------


def test_counters_are_served(loader: penstock.Loader) -> None:
    """Over HTTP, for as long as the endpoint is open; what is asked for is as it stands then."""
    endpoint = metrics.serve(loader)
    before = parsed(asked(endpoint.url))
    assert before[("penstock_batches_total", "0")] == 0
    batches = len(list(loader))
    now = parsed(asked(endpoint.url))
    counted = loader.counters()
    assert now[("penstock_batches_total", "0")] == batches == 8
    assert now[("penstock_samples_total", "0")] == 64
    assert now[("penstock_stall_seconds_count", "0")] == 8
    assert now[("penstock_stall_seconds_sum", "0")] == pytest.approx(counted.stall_ns * 1e-9)
    assert now[("penstock_decode_busy_seconds_total", "0")] > 0
    assert now[("penstock_engine_bytes_total", "0")] == 64 * RECORD
    said = asked(endpoint.url.replace("/metrics", "/explain"))
    assert said.startswith("loader 0: Bound by ")
    with pytest.raises(HTTPError, match="404"):
        asked(endpoint.url + "s")
    endpoint.close()
    assert endpoint.closed
    with pytest.raises(OSError):
        asked(endpoint.url)


def test_several_loaders_at_one_port(records: penstock.Dataset) -> None:
    """They are told apart by their names, leave when they are gone, and a port is one endpoint."""
    train, valid = penstock.Loader(records, 8), penstock.Loader(records, 16)
    endpoint = metrics.serve(train, name="train")
    assert metrics.serve(valid, endpoint.port) is endpoint
    list(valid)
    found = parsed(asked(endpoint.url))
    assert found[("penstock_batches_total", "train")] == 0
    assert found[("penstock_batches_total", "0")] == 4
    metrics.serve(valid, endpoint.port, name='va"l\\id\n')
    assert ("penstock_batches_total", 'va"l\\id\n') in parsed(asked(endpoint.url))
    with pytest.raises(UsageError, match="another loader named 'train'"):
        metrics.serve(valid, endpoint.port, name="train")
    train.close()
    del train
    gc.collect()
    assert {loader for _, loader in parsed(asked(endpoint.url))} <= {'va"l\\id\n'}
    endpoint.close()


def test_a_port_that_cannot_be_had(loader: penstock.Loader, monkeypatch: Any, caplog: Any) -> None:
    """Asked for in code it is an error; in the environment, a warning, and training goes on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port}: .*choose another port"):
            metrics.serve(loader, port)
        monkeypatch.setenv("PENSTOCK_METRICS_PORT", str(port))
        assert len(list(loader)) == 8
        assert f"PENSTOCK_METRICS_PORT={port}: no metrics are served" in caplog.text
    with pytest.raises(UsageError, match="choose another port"):
        metrics.serve(loader, 1 << 20)


def count_held() -> tuple[int, int]:
    """Descriptors of this process, and its threads."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def connect(endpoint: metrics.Endpoint, sent: bytes) -> socket.socket:
    client = socket.create_connection((endpoint.host, endpoint.port), timeout=240)
    client.sendall(sent)
    return client


def is_ended(client: socket.socket) -> bool:
    """True when the other side has hung up, for which this waits."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: ", b"POST / HTTP/1.1\r\n"])
def test_idle_clients_are_bounded(loader: penstock.Loader, sent: bytes) -> None:
    """Clients that never finish their request take so many threads and descriptors and no more,
    keep nobody out, and are gone with the endpoint."""
    before = count_held()
    endpoint = metrics.serve(loader)
    clients = []
    for _ in range(4 * limits.metrics_clients_max):
        clients.append(connect(endpoint, sent))
        if len(clients) % limits.metrics_clients_max == 0:
            assert "penstock_batches_total" in asked(endpoint.url)
            descriptors, threads = count_held()
            # two descriptors are the listening socket and its selector; one thread is the server's
            assert descriptors - before[0] - len(clients) <= limits.metrics_clients_max + 2
            assert threads - before[1] <= limits.metrics_clients_max + 1
    assert all(is_ended(client) for client in clients[: -limits.metrics_clients_max])
    endpoint.close()
    assert all(is_ended(client) for client in clients)
    for client in clients:
        client.close()
    while count_held() != before:  # a thread that has hung up by itself may still be ending
        threading.Event().wait(0.01)


def test_a_client_has_its_time(loader: penstock.Loader) -> None:
    """One that asks nothing, or reads no answer, is disconnected; a new one is served meanwhile."""
    endpoint = metrics.serve(loader)
    endpoint._server.clock = clock = JumpingClock()
    with connect(endpoint, b"GET /metrics HTTP/1.1\r\n") as early:
        asked(endpoint.url)  # accepted in order: the early client has its deadline now
        clock.wait_until_ns(int(limits.metrics_client_s * 1e9) - 1)
        with connect(endpoint, b"") as late:
            asked(endpoint.url)
            clock.wait_until_ns(clock.now_ns() + 1)
            assert is_ended(early)
            late.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert late.recv(12) == b"HTTP/1.0 200"
    endpoint.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("face", "host"), [("loader", ""), ("cached", "127.0.0.2"), ("processes", "")]
)
def test_the_environment_asks(
    records: penstock.Dataset, tmp_path: Path, face: str, host: str
) -> None:
    """An unchanged script serves its loaders at the port plus its LOCAL_RANK, and ends."""
    with socket.socket() as free:
        free.bind((host or "127.0.0.1", 0))
        port = free.getsockname()[1]
    script = f"""
        import urllib.request, penstock
        data = penstock.open({str(tmp_path / "records.bin")!r}, record_bytes=512, index="memory")
        if {face!r} == "loader":
            loader = penstock.Loader(data, 8)
        elif {face!r} == "cached":
            loader = penstock.Loader(data, 8, cache=penstock.Cache(ram_bytes=1 << 20))
        else:
            from penstock.torch.loader import DataLoader
            loader = DataLoader([1] * 16, 2, num_workers=1)
        steps = sum(1 for _ in loader)
        url = "http://{host or "127.0.0.1"}:{port}/metrics"
        print(urllib.request.urlopen(url).read().decode())
    """
    environment = os.environ | {"PENSTOCK_METRICS_PORT": str(port - 3), "LOCAL_RANK": "3"}
    if host:
        environment["PENSTOCK_METRICS_HOST"] = host
    done = warm.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert parsed(done.stdout)[("penstock_batches_total", "0")] == 8


@given(
    st.lists(st.integers(0, 10**6), min_size=STALL_BUCKETS, max_size=STALL_BUCKETS),
    st.dictionaries(st.sampled_from(["bytes", "busy_ns", "slab_ready"]), st.integers(0, 2**63)),
    st.text(max_size=5),
)
def test_any_counters_can_be_read(stalls: list[int], engine: dict[str, int], name: str) -> None:
    """Names, labels and values come back; buckets count up to the number of batches."""
    counted = Counters(stalls=tuple(stalls), batches=sum(stalls), compute_ns=7, engine=engine)
    found = parsed(text_of({name: counted}))
    assert found[("penstock_compute_seconds_total", name)] == pytest.approx(7e-9)
    buckets = [value for (each, _), value in found.items() if each.startswith("penstock_stall_sec")]
    below = [value for (each, _), value in found.items() if "_bucket " in each]
    assert below == sorted(below)
    assert below[-1] == sum(stalls)
    assert len(buckets) == len(below) + 2
    for key, value in engine.items():
        unit = {"busy_ns": "busy_seconds_total", "slab_ready": "slab_ready"}.get(
            key, f"{key}_total"
        )
        scale = 1e-9 if key == "busy_ns" else 1
        assert found[(f"penstock_engine_{unit}", name)] == pytest.approx(value * scale)


def test_each_metric_is_told_once() -> None:
    """HELP and TYPE stand before the samples of a family, and are not repeated."""
    lines = text_of({"a": Counters(engine={"bytes": 1}), "b": Counters()}).splitlines()
    told = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(told) == len(set(told)) == sum(line.startswith("# HELP") for line in lines)
    assert "{" not in text_of({})


def test_each_metric_as_dashboards_know_it() -> None:
    """Name, type, labels and help of each, in the text format."""
    counted = Counters(
        stalls=(1,) * STALL_BUCKETS,
        batches=STALL_BUCKETS,
        samples=7,
        engine={"bytes": 3, "busy_ns": 2_000_000_000, "slab_ready": 4},
    )
    assert text_of({"train": counted}) == (Path(__file__).parent / "metrics.txt").read_text()


def test_without_prometheus_client(records: penstock.Dataset, tmp_path: Path) -> None:
    """Asked for in code it is an error that says what to install; in the environment, a warning,
    and training goes on."""
    script = f"""
        import sys
        sys.modules["prometheus_client"] = None
        import penstock, penstock.loader
        data = penstock.open({str(tmp_path / "records.bin")!r}, record_bytes=512, index="memory")
        loader = penstock.Loader(data, 8)
        assert len(list(loader)) == 8
        try:
            penstock.loader.serve(loader)
        except ValueError as error:
            print(error)
    """
    done = warm.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | {"PENSTOCK_METRICS_PORT": "9100"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    needs = (
        "serving metrics needs prometheus-client: pip install prometheus-client "
        "(or 'penstock[metrics]')"
    )
    assert done.returncode == 0
    assert done.stdout == f"{needs}\n"
    assert f"PENSTOCK_METRICS_PORT=9100: no metrics are served: {needs}" in done.stderr


# -- traces --------------------------------------------------------------------------------------


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, with what viewers ask of each checked."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    for event in events:
        assert event["ph"] in "MXbe"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] in "be":
            assert event["id"]
            assert event["cat"] == "read"
        if event["ph"] != "M":
            assert event["ts"] > 0
    return events


def named(events: list[dict[str, Any]], start: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"].startswith(start)]


def test_steps_on_a_timeline(loader: penstock.Loader, tmp_path: Path) -> None:
    """Each step waits, computes, is read and decoded; nothing overlaps in a lane."""
    path = tmp_path / "run.json"
    with metrics.trace(loader, path):
        assert len(list(loader)) == 8
    assert loader.meter.timeline is not None
    assert len(list(loader)) == 8  # which is not traced any more
    events = events_of(path)
    assert [each["name"] for each in named(events, "wait")] == [
        f"wait for step {step}" for step in range(8)
    ]
    assert len(named(events, "compute")) == 8
    reads = named(events, "read")
    assert sorted(each["ph"] for each in reads) == ["b"] * 8 + ["e"] * 8
    assert sum(each["args"]["bytes"] for each in reads if each["ph"] == "b") == 64 * RECORD
    decoded = {each["name"] for each in named(events, "decode step")}
    assert decoded == {f"decode step {step}" for step in range(8)}
    lanes: dict[int, list[tuple[float, float]]] = {}
    for each in events:
        if each["ph"] == "X":
            lanes.setdefault(each["tid"], []).append((each["ts"], each["ts"] + each["dur"]))
    for slices in lanes.values():
        slices.sort()
        for (_, end), (start, _) in itertools.pairwise(slices):
            assert end <= start + 1e-3  # rounded to nanoseconds
    threads = {each["tid"] for each in events if each["name"] == "thread_name"}
    assert threads == set(lanes)


def test_a_trace_of_a_killed_run(records: penstock.Dataset, tmp_path: Path) -> None:
    """Holds whole events of all steps but the last: with the bracket that viewers do without, it
    is JSON."""
    script = f"""
        import os, signal, penstock, penstock.loader.metrics
        data = penstock.open({str(tmp_path / "records.bin")!r}, record_bytes=512, index="memory")
        loader = penstock.Loader(data, 8)
        trace = penstock.loader.trace(loader, {str(tmp_path / "run.json")!r})
        for batch in loader:
            if batch.step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    done = warm.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    (tmp_path / "whole.json").write_text((tmp_path / "run.json").read_text() + "]")
    events = events_of(tmp_path / "whole.json")
    assert len(named(events, "wait")) == 6


def test_a_trace_ends_with_its_program(records: penstock.Dataset, tmp_path: Path) -> None:
    """Closed or not, and also what a child process was given by fork, which does not write."""
    script = f"""
        import os, penstock, penstock.loader.metrics
        data = penstock.open({str(tmp_path / "records.bin")!r}, record_bytes=512, index="memory")
        loader = penstock.Loader(data, 8)
        trace = penstock.loader.trace(loader, {str(tmp_path / "run.json")!r})
        if os.fork() == 0:
            raise SystemExit
        os.wait()
        list(loader)
    """
    warm.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120, check=True, lean=True)
    assert len(named(events_of(tmp_path / "run.json"), "wait")) == 8


def test_no_trace_is_announced_that_is_not_written(
    loader: penstock.Loader, tmp_path: Path, caplog: Any
) -> None:
    """DLIO announces a trace and writes none where its tracer is missing. Here what cannot be
    written is an error at once, and a file is there from the beginning; a disk that fills up is
    said, and ends the trace, not the run."""
    with pytest.raises(UsageError, match=r"none/run\.json: No such file or directory: give a file"):
        metrics.trace(loader, tmp_path / "none" / "run.json")
    assert loader.meter.timeline is None
    with pytest.raises(UsageError, match="steps is 0"):
        metrics.trace(loader, tmp_path / "run.json", steps=0)
    assert not (tmp_path / "run.json").exists()
    trace = metrics.trace(loader, tmp_path / "run.json")
    assert (tmp_path / "run.json").stat().st_size > 0
    trace.close()
    trace.close()
    full = metrics.trace(loader, "/dev/full")
    assert len(list(loader)) == 8
    assert full.closed
    assert caplog.text.count("the trace /dev/full ends here: No space left on device") == 1


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_trace_is_written_through_no_link(
    loader: penstock.Loader, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    """Who may write to the folder cannot have another file of this user's overwritten."""
    (tmp_path / "other").write_text("kept")
    make(tmp_path / "other", tmp_path / "run.json")
    with pytest.raises(UsageError, match=r"run\.json is .* nothing is written to it"):
        metrics.trace(loader, tmp_path / "run.json")
    assert (tmp_path / "other").read_text() == "kept"


def test_a_trace_has_an_end(loader: penstock.Loader, tmp_path: Path) -> None:
    """After so many steps the file is closed; another trace takes the place of the first."""
    first = metrics.trace(loader, tmp_path / "first.json", steps=3)
    list(loader)
    assert first.closed
    assert len(named(events_of(tmp_path / "first.json"), "wait")) == 3
    second = metrics.trace(loader, tmp_path / "second.json")
    third = metrics.trace(loader, tmp_path / "third.json")
    assert (second.closed, third.closed) == (True, False)
    third.close()


def test_memory_of_a_trace_is_bounded(tmp_path: Path) -> None:
    """Reads of walks that were given up do not gather."""
    with PerfettoTrace(tmp_path / "run.json", 10) as trace:
        for step in range(5000):
            trace.record_request(0, step, Requested(step, 1, 1))
        trace.record_arrival(0, 0)
        trace.record_arrival(0, 4999)
        trace.record_decoding(0, 4999, [Span(5, 10, 20, 5)])
        assert len(trace._reads) <= 1024
    assert {each["name"] for each in named(events_of(tmp_path / "run.json"), "read")} == {
        "read of step 4999"
    }


def test_workers_are_traced(tmp_path: Path) -> None:
    """The trace of workers that load whole batches is what the user sees: waiting and computing."""
    from penstock.torch.loader import DataLoader

    loader = DataLoader([1] * 16, 4, num_workers=1, workers="threads")
    with metrics.trace(loader, tmp_path / "run.json"):
        assert len(list(loader)) == 4
    loader.close()
    assert len(named(events_of(tmp_path / "run.json"), "wait")) == 4
