"""Encoding on all cores: processes that each encode a chunk of texts at a time.

Processes, because a library that runs out of memory or panics then ends a process of its own, with
an error that names the documents; because no thread of a library is left that a later fork of
this process would have to warn of; and because its lists of Python integers are made on all cores.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..engine.threads import ThreadPool
from ..errors import DataError, WorkerError
from ..extent import Int
from . import token_worker
from .token_worker import TextError


class EncodedTexts(NamedTuple):
    """Tokens of a chunk of texts, end to end, their number in each, and how many were broken."""

    tokens: bytes
    counts: Int
    broken: int


class EncoderProcesses:
    """Processes that encode; one is started when a chunk finds no idle one, up to `count`."""

    def __init__(self, settings: Mapping[str, Any], count: int) -> None:
        self._settings = pickle.dumps(dict(settings))
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPool(count, "penstock-encode")
        self._closed = False

    def submit(self, texts: Sequence[bytes | None]) -> Future[EncodedTexts]:
        """Encode the texts in some process. The result may raise TextError, or WorkerError."""
        return self._threads.submit(self._encode, texts)

    def close(self) -> None:
        """End the processes, also those that work."""
        self._closed = True
        for process in self._all:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            with contextlib.suppress(OSError):
                process.communicate()

    def _encode(self, texts: Sequence[bytes | None]) -> EncodedTexts:
        try:
            process, settings = self._idle.get_nowait(), b""
        except queue.Empty:
            process, settings = self._start(), self._settings
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(settings + pickle.dumps(texts, pickle.HIGHEST_PROTOCOL))
            process.stdin.flush()
            reply = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise _describe_end(process, texts) from None
        finally:
            self._idle.put(process)
        if len(reply) == 2:
            raise TextError(*reply)
        tokens, counts, broken = reply
        return EncodedTexts(tokens, np.frombuffer(counts, np.int64), broken)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", os.path.abspath(token_worker.__file__)],  # -P: not its folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},  # the processes share the cores
        )
        self._all.append(process)  # before the look: either close() or this kills it
        if self._closed:
            process.kill()
        return process


def _describe_end(process: subprocess.Popen[bytes], texts: Sequence[bytes | None]) -> WorkerError:
    code = process.wait()
    largest = max(len(text or b"") for text in texts)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    what = f"process {process.pid}, which encoded {len(texts):,} texts of up to {largest:,} bytes"
    remedy = "run it again, perhaps with fewer workers: it goes on after what is finished"
    return WorkerError(f"{what}, {how}: {remedy}")


def encode_texts_ahead(
    settings: Mapping[str, Any], count: int, texts: Iterator[bytes | None]
) -> Generator[EncodedTexts, None, None]:
    """Encode texts in `count` processes, and yield their tokens in the texts' order.

    TextError has the number of the text among those whose tokens were not yielded. If reading a
    text raises DataError, the tokens of all chunks before its own are yielded first.
    """
    processes = EncoderProcesses(settings, count)
    pending: deque[tuple[int, Future[EncodedTexts]]] = deque()
    chunks = _cut_chunks(texts)
    failure: DataError | None = None
    ahead_bytes = 0
    try:
        while True:
            try:
                chunk = next(chunks, None)
            except DataError as error:
                chunk, failure = None, error
            size = sum(len(text or b"") for text in chunk or ())
            while pending and (
                chunk is None
                or ahead_bytes + size > limits.encoded_ahead_bytes_max
                or pending[0][1].done()
            ):
                ahead_bytes -= pending[0][0]
                yield pending.popleft()[1].result()
            if chunk is None:
                break
            pending.append((size, processes.submit(chunk)))
            ahead_bytes += size
        if failure is not None:
            raise failure
    finally:
        processes.close()


def _cut_chunks(texts: Iterable[bytes | None]) -> Iterator[list[bytes | None]]:
    """Yield as many texts at a time as one process encodes."""
    chunk: list[bytes | None] = []
    size = 0
    for text in texts:
        more = len(text or b"")
        full = len(chunk) >= limits.encoded_documents_max
        if chunk and (full or size + more > limits.encoded_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += more
    if chunk:
        yield chunk
