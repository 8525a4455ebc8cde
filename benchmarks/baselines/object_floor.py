"""The floor for objects: a bare loop that keeps requests in flight on plain sockets.

One thread, one connection for each request in flight; bodies are received where they belong, in
random order, and nothing is checked but lengths. No library is in the way, and none helps.
"""

from __future__ import annotations

import argparse
import selectors
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import numpy as np

from benchmarks.baselines.serve import Epochs, serve
from benchmarks.object_server import OBJECT_BYTES, key_of


class Request:
    """One connection, and the row that it is receiving."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.socket = socket.create_connection(server)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.head = b""
        self.got = -1

    def ask(self, row: memoryview, path: str) -> None:
        self.row, self.head, self.got = row, b"", -1
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-{len(row) - 1}\r\n\r\n"
        self.socket.send(head.encode())

    def receive(self) -> bool:
        """Take what is there; whether the row is whole."""
        try:
            if self.got < 0:
                self.head += self.socket.recv(512)
                end = self.head.find(b"\r\n\r\n")
                if end < 0:
                    return False
                body = self.head[end + 4 :]
                self.row[: len(body)] = body
                self.got = len(body)
            while self.got < len(self.row):
                self.got += self.socket.recv_into(self.row[self.got :])
        except BlockingIOError:
            return False
        return True


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """Rows of a few batches are in flight at once, so that batches have no gaps between them."""
    url = urlsplit(options.path)
    assert url.hostname is not None
    assert url.port is not None
    requests = [Request((url.hostname, url.port)) for _ in range(options.workers)]
    selector = selectors.DefaultSelector()
    for request in requests:
        selector.register(request.socket, selectors.EVENT_READ, request)
    random = np.random.default_rng(options.seed)
    ahead = 2 + -(-options.workers // options.batch)
    buffers = np.zeros((ahead, options.batch, OBJECT_BYTES), np.uint8)

    def epochs() -> Iterator[np.ndarray]:
        order = random.permutation(options.count).tolist()
        idle = list(requests)
        owner: dict[Request, int] = {}
        left: dict[int, int] = {}
        asked = yielded = 0
        batches = -(-len(order) // options.batch)
        while yielded < batches:
            limit = min(len(order), (yielded + ahead - 1) * options.batch)
            while idle and asked < limit:
                batch, row = divmod(asked, options.batch)
                left.setdefault(batch, min(options.batch, len(order) - batch * options.batch))
                request = idle.pop()
                owner[request] = batch
                path = f"{url.path}/{key_of(order[asked])}"
                request.ask(memoryview(buffers[batch % ahead, row]), path)
                asked += 1
            for key, _ in selector.select():
                if key.data.receive():
                    idle.append(key.data)
                    left[owner[key.data]] -= 1
            while left.get(yielded) == 0:
                rows = min(options.batch, len(order) - yielded * options.batch)
                yielded += 1
                yield buffers[(yielded - 1) % ahead, :rows]

    return epochs, {"requests": str(options.workers)}


if __name__ == "__main__":
    serve(make)
