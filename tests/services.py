"""Object services on the loopback: moto, the benchmark's server, and a proxy that breaks things."""

from __future__ import annotations

import http.client
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests import ROOT, warm

KEY, SECRET = "AKIATESTKEYTESTKEY", "testsecrettestsecrettestsecret"

# S3 alone: moto's own server searches for the service of each request, which takes as long again.
# A write on the condition that the object does not exist is one action in S3. In moto another
# thread can write between the look and the write, so that both are told that they were first.
_moto = """
import sys, threading
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
WSGIRequestHandler.log_request = lambda *request: None
app, alone = create_backend_app("s3"), threading.Lock()
def serve(environ, start_response):
    if "HTTP_IF_NONE_MATCH" not in environ:
        return app(environ, start_response)
    with alone:
        return app(environ, start_response)
server = make_server("127.0.0.1", 0, serve, threaded=True)
print(server.port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


@contextmanager
def served(command: list[str]) -> Iterator[int]:
    """The port of a server that prints it, and ends with its input."""
    server = warm.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.stdin.close()
        server.stdout.close()
        try:
            server.wait(240)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def moto() -> Any:
    """A process of moto's S3."""
    return served([sys.executable, "-c", _moto])


def object_server(*arguments: str) -> Any:
    """A process of the benchmark's server."""
    return served([sys.executable, "-m", "benchmarks.object_server", *arguments])


def environment(port: int) -> dict[str, str]:
    """The variables that make s3:// mean a service on the loopback."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


class S3:
    """A bucket of a service, to write to."""

    def __init__(self, port: int, name: str) -> None:
        from obstore.store import S3Store

        self.port, self.name = port, name
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()
        self._store = S3Store(
            name,
            endpoint=f"http://127.0.0.1:{port}",
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._store.put(key, data, use_multipart=False)

    def put_marker(self, folder: str) -> None:
        """Write the empty object "folder/" that some tools write for a folder."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/{self.name}/{quote(folder)}/", b"")
        assert connection.getresponse().status == 200
        connection.close()

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._store.delete(key)

    def put_folder(self, folder: Path, prefix: str = "") -> None:
        """Write all files below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(prefix + path.relative_to(folder).as_posix(), path.read_bytes())


Fault = str | None
"""The fate of a request: None, "503", "403", "404", "500", "501" (to what has a condition),
"reset", "lost" (it is done, and not answered), "short", "stall", "etag", "no-range",
"no-condition"."""

Rule = Callable[[str, str, int], Fault]
"""The fault for a request: its method, its path, and how often that was asked for before."""


class Proxy(socketserver.ThreadingTCPServer):
    """Passes requests on to a service, and answers some of them badly.

    asked:    how often each (method, path) was asked for.
    peak:     most requests that were there at once.
    release:  set at the end; ends what stalls.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, upstream: int, rule: Rule, meet: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.port = int(self.server_address[1])
        self.upstream, self.rule = upstream, rule
        self.asked: dict[tuple[str, str], int] = {}
        self.release = threading.Event()
        self.lock = threading.Lock()
        self.open: set[socket.socket] = set()
        self.now = self.peak = 0
        self.meeting = threading.Barrier(meet) if meet else None

    def __enter__(self) -> Proxy:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.shutdown()
        self.server_close()
        with self.lock:
            for connection in self.open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away while they are answered: that is what is tested."""


class _Connection(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        with self.server.lock:
            self.server.open.add(self.connection)
        self.up = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        while (line := self.rfile.readline()).strip():
            method, path, _ = line.decode().split(" ", 2)
            headers = {}
            while (field := self.rfile.readline()).strip():
                name, _, value = field.decode().partition(":")
                headers[name.strip().lower()] = value.strip()
            body = self.rfile.read(int(headers.get("content-length", 0)))
            if not self._answer(method, path, headers, body):
                return

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bool:
        """Answer one request; whether the connection goes on."""
        server = self.server
        with server.lock:
            before = server.asked.get((method, path), 0)
            server.asked[method, path] = before + 1
            server.now += 1
            self.here = 1
            server.peak = max(server.peak, server.now)
        try:
            if server.meeting is not None and method == "GET":
                server.meeting.wait(60)
            fault = server.rule(method, path, before)
            return self._pass_on(method, path, headers, body, fault)
        finally:
            self._leave()

    def _leave(self) -> None:
        """The request is as good as answered: the client may send the next."""
        with self.server.lock:
            self.server.now -= self.here
            self.here = 0

    def _pass_on(
        self, method: str, path: str, headers: dict[str, str], body: bytes, fault: Fault
    ) -> bool:
        if fault == "501" and "if-none-match" not in headers:
            fault = None
        if fault in ("500", "501", "503", "403", "404"):
            said = f"<Error><Code>SlowDown</Code><Message>{SECRET}</Message></Error>".encode()
            self._send(int(fault), {"content-length": str(len(said))}, said)
            return True
        if fault == "no-range":
            headers.pop("range", None)
        if fault == "no-condition":
            headers.pop("if-none-match", None)
        if fault != "reset":
            self.up.request(method, path, body, headers)
            got = self.up.getresponse()
            data = got.read()
        if fault in ("reset", "lost"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return False
        fields = {name.lower(): value for name, value in got.getheaders()}
        fields.setdefault("content-length", str(len(data)))
        for name in ("transfer-encoding", "connection"):
            fields.pop(name, None)
        if fault == "etag":
            fields["etag"] = '"0123456789"'
        if fault in ("short", "stall"):
            self._send(got.status, fields, data[: len(data) // 2])
            if fault == "stall":
                self.server.release.wait(60)
            return False
        self._send(got.status, fields, data)
        return True

    def _send(self, status: int, fields: Mapping[str, str], data: bytes) -> None:
        self._leave()
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.wfile.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + data)
        self.wfile.flush()
