"""An object server for measuring: GET, HEAD and ListObjectsV2 of S3, each answer after a delay.

It speaks as much of S3 as reading needs (ranges, etags, listings in pages; signatures are not
looked at), and plain HTTP with ranges by the same paths. Every object has the same size; its bytes
are a function of its number, so that nothing is stored and answers cost the server next to nothing.
The delay is counted from the arrival of a request, on a timer, so that any number of requests wait
at once.

    python -m benchmarks.object_server --count 4000 --delay-ms 20

prints its port, and serves until its input ends. `--folder` serves the files of a folder beside
them: each directory below it is a bucket.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np

PAGE = 1000
BUCKET = "bench"


OBJECT_BYTES = 100_000


def key_of(number: int) -> str:
    """The name of a made object."""
    return f"data/{number:07d}"


class Made:
    """Objects "data/0000000", ... of one size, whose bytes follow from their number."""

    def __init__(self, count: int, size: int = OBJECT_BYTES) -> None:
        self.count, self.size = count, size
        self._keys = [key_of(number) for number in range(count)]
        self._pattern = memoryview(np.random.default_rng(1).bytes(size + 4096))

    def keys(self, bucket: str) -> list[str]:
        return self._keys if bucket == BUCKET else []

    def find(self, bucket: str, key: str) -> tuple[memoryview, str] | None:
        text = key.removeprefix("data/")
        if bucket != BUCKET or not text.isdigit() or int(text) >= self.count:
            return None
        return self.content(int(text)), f'"{int(text):032x}"'

    def content(self, number: int) -> memoryview:
        """The bytes of an object; those of neighbours differ."""
        start = number * 61 % 4096
        return self._pattern[start : start + self.size]


class Folder:
    """The files of a folder, held in memory: its directories are the buckets."""

    def __init__(self, root: str) -> None:
        self._objects: dict[str, dict[str, tuple[memoryview, str]]] = {}
        for bucket in os.listdir(root):
            held = self._objects.setdefault(bucket, {})
            for folder, _, names in os.walk(os.path.join(root, bucket)):
                for name in names:
                    path = os.path.join(folder, name)
                    with open(path, "rb") as file:
                        data = file.read()
                    key = os.path.relpath(path, os.path.join(root, bucket))
                    held[key] = memoryview(data), f'"{hashlib.md5(data).hexdigest()}"'

    def keys(self, bucket: str) -> list[str]:
        return sorted(self._objects.get(bucket, {}))

    def find(self, bucket: str, key: str) -> tuple[memoryview, str] | None:
        return self._objects.get(bucket, {}).get(key)


class Both:
    """Made objects, and beside them the files of a folder."""

    def __init__(self, made: Made, folder: Folder) -> None:
        self._made, self._folder = made, folder

    def keys(self, bucket: str) -> list[str]:
        return self._made.keys(bucket) or self._folder.keys(bucket)

    def find(self, bucket: str, key: str) -> tuple[memoryview, str] | None:
        return self._made.find(bucket, key) or self._folder.find(bucket, key)


Objects = Made | Folder | Both


class Connection(asyncio.Protocol):
    """One client: requests are answered in order, each `delay_s` after it came."""

    def __init__(self, objects: Objects, delay_s: float) -> None:
        self._objects = objects
        self._delay_s = delay_s
        self._received = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=1 << 24)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head, self._received = self._received[:end], self._received[end + 4 :]
            if self._delay_s:
                self._loop.call_later(self._delay_s, self._answer, head)
            else:
                self._answer(head)

    def _answer(self, head: bytes) -> None:
        if self._transport.is_closing():
            return
        lines = head.split(b"\r\n")
        method, target, _ = lines[0].decode().split(" ", 2)
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        url = urlsplit(target)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if not key:
            self._send(200, _listing(self._objects, bucket, url.query), b"", method)
            return
        found = self._objects.find(bucket, key)
        if found is None:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", b"", method)
            return
        data, etag = found
        extra = b"ETag: %s\r\nLast-Modified: Mon, 02 Nov 2026 10:00:00 GMT\r\n" % etag.encode()
        extra += b"Accept-Ranges: bytes\r\n"
        asked = fields.get(b"range")
        if asked is None:
            self._send(200, data, extra, method)
            return
        first, _, last = asked.removeprefix(b"bytes=").partition(b"-")
        size = len(data)
        start = int(first) if first else max(0, size - int(last))
        stop = min(size, int(last) + 1) if first and last else size
        if start >= size:
            self._send(416, b"", b"Content-Range: bytes */%d\r\n" % size, method)
            return
        extra += b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, size)
        self._send(206, data[start:stop], extra, method)

    def _send(self, status: int, body: bytes | memoryview, extra: bytes, method: str) -> None:
        head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), extra)
        self._transport.write(head)
        if method != "HEAD":
            self._transport.write(body)


def _listing(objects: Objects, bucket: str, query: str) -> bytes:
    """A page of ListObjectsV2; the continuation token is the number of the next key."""
    asked = {name: values[0] for name, values in parse_qs(query).items()}
    prefix = asked.get("prefix", "")
    matching = [key for key in objects.keys(bucket) if key.startswith(prefix)]
    first = int(asked.get("continuation-token", "0"))
    page = matching[first : first + min(PAGE, int(asked.get("max-keys", PAGE)))]
    more = first + len(page) < len(matching)
    rows, prefixes = [], {}
    delimiter = asked.get("delimiter", "")
    for key in page:
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            prefixes[prefix + rest.split(delimiter, 1)[0] + delimiter] = None
            continue
        rows.append(key)
    contents = []
    for key in rows:
        data, etag = objects.find(bucket, key) or (b"", "")
        contents.append(
            f"<Contents><Key>{escape(key)}</Key><ETag>{escape(etag)}</ETag><Size>{len(data)}</Size>"
            "<LastModified>2026-11-02T10:00:00.000Z</LastModified></Contents>"
        )
    common = "".join(
        f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in prefixes
    )
    token = f"<NextContinuationToken>{first + len(page)}</NextContinuationToken>" if more else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
        f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
        f"<KeyCount>{len(page)}</KeyCount><MaxKeys>{PAGE}</MaxKeys>"
        f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{token}"
        f"{''.join(contents)}{common}</ListBucketResult>"
    ).encode()


async def serve(objects: Objects, delay_s: float) -> None:
    """Serve on a free port of the loopback, which is printed, until the input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(objects, delay_s), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """Serve as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--folder")
    given = parser.parse_args()
    objects: Objects = Made(given.count)
    if given.folder:
        objects = Both(objects, Folder(given.folder))
    asyncio.run(serve(objects, given.delay_ms / 1000))


if __name__ == "__main__":
    main()
