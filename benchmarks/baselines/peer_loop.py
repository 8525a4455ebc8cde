"""Messages of 1 MiB by bare pyzmq: one process answers, the other asks, many in flight.

The sockets, their CURVE and their threads are those of `penstock.cache.zeromq`. A request is a
number, or with --record-bytes the numbers of records, which are put together for it and go to
places of their own. Nothing is checked, timed or counted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import zmq

from benchmarks.baselines.serve import Epochs, serve
from penstock import limits

MESSAGE_BYTES = 1 << 20
SOURCE_MESSAGES = 64
INFLIGHT = 32


def source() -> np.ndarray:
    """The data that is asked for, one message a row."""
    return np.random.default_rng(1).integers(0, 256, (SOURCE_MESSAGES, MESSAGE_BYTES), np.uint8)


def other_process(module: str, *words: str) -> tuple[subprocess.Popen[str], str]:
    """A process that answers until its standard input ends, and the first line that it prints."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def owner(public: str, secret: str, record_bytes: str) -> None:
    """Answers each number with its message, or the numbers of records with these."""
    context = zmq.Context(io_threads=limits.peer_io_threads)
    router = context.socket(zmq.ROUTER)
    router.curve_publickey, router.curve_secretkey = public.encode(), secret.encode()
    router.curve_server = True
    router.bind("tcp://127.0.0.1:*")
    print(router.get_string(zmq.LAST_ENDPOINT).rstrip("\0"), flush=True)
    rows = source().reshape(-1, int(record_bytes))
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while all(socket is router for socket, _ in poller.poll()):
        route, asked = router.recv_multipart()
        numbers = np.frombuffer(asked, np.int64) % len(rows)
        answer = rows[numbers[0]] if len(numbers) == 1 else np.take(rows, numbers, 0)
        router.send_multipart([route, asked, answer.data], copy=False)
    context.destroy(linger=0)


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """Batches in order, the next one asked for meanwhile."""
    server, client = zmq.curve_keypair(), zmq.curve_keypair()
    record_bytes = options.record_bytes or MESSAGE_BYTES
    words = "owner", server[0].decode(), server[1].decode(), str(record_bytes)
    child, address = other_process("benchmarks.baselines.peer_loop", *words)
    context = zmq.Context(io_threads=limits.peer_io_threads)
    dealer = context.socket(zmq.DEALER)
    dealer.curve_publickey, dealer.curve_secretkey = client
    dealer.curve_serverkey = server[0]
    dealer.connect(address)

    parts = MESSAGE_BYTES // record_bytes
    places = np.random.default_rng(2).permutation(parts)

    def epochs() -> Iterator[np.ndarray]:
        sent = got = 0
        for first in range(0, options.count, options.batch):
            rows = np.empty((options.batch, MESSAGE_BYTES), np.uint8)
            while got < first + options.batch:
                while sent < options.count and sent - got < INFLIGHT:
                    dealer.send((sent * parts + places).tobytes())
                    sent += 1
                _, message = dealer.recv_multipart(copy=False)
                records = np.frombuffer(message.buffer, np.uint8).reshape(parts, -1)
                rows[got - first].reshape(parts, -1)[places] = records
                got += 1
            yield rows

    return epochs, {"pyzmq": zmq.__version__, "owner": str(child.pid)}


if __name__ == "__main__":
    if sys.argv[1] == "owner":
        owner(*sys.argv[2:])
        os._exit(0)
    serve(make)
