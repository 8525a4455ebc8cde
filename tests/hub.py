"""A hub on the loopback that answers as the Hugging Face hub does, and its second host for bytes.

The hub has the API (revisions, listings in pages), gives small files itself, and leads to the
second host with a signed address for the others. What it was asked is in `log`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

LARGE_BYTES = 64
"""Files from this size on are at the second host."""


class Asked(NamedTuple):
    """A request: "hub" or "bytes", its path with the query, and its headers in lower case."""

    host: str
    path: str
    headers: Mapping[str, str]


class Refusal(NamedTuple):
    """An answer in place of the right one."""

    status: int
    headers: Mapping[str, str] = {}


class Hub:
    """One repository of a hub, of any name.

    commits:  files by name, of each commit.
    refs:     commit of each branch.
    refuse:   called with each request; a refusal that it returns is the answer.
    alter:    called with status, headers and body of each answer, and returns these.
    """

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, str] = {}
        self.log: list[Asked] = []
        self.refuse: Callable[[Asked], Refusal | None] = lambda _: None
        self.alter: Callable[[Asked, int, dict[str, str], bytes], Any] = (
            lambda _, status, headers, body: (status, headers, body)
        )
        self.signature = 0
        self.page = 2
        self.url = self.bytes_url = ""

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Make a commit of these files, to which the branch moves."""
        name = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.refs[branch] = name
        return name

    def count(self, host: str, part: str = "") -> int:
        """Count the requests to a host whose path has this part."""
        return sum(asked.host == host and part in asked.path for asked in self.log)

    def answer(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        """Answer a request by status, headers and body."""
        refusal = self.refuse(asked)
        if refusal is not None:
            return refusal.status, dict(refusal.headers), b""
        parts = urlsplit(asked.path)
        path = unquote(parts.path)
        if asked.host == "bytes":
            return self._give_signed(asked, path, parse_qs(parts.query))
        if match := re.fullmatch(r"/api/datasets/(.+)/revision/([^/]+)", parts.path):
            revision = unquote(match[2])
            commit = self.refs.get(revision, revision)
            if commit not in self.commits:
                return 404, {"X-Error-Code": "RevisionNotFound"}, b""
            return 200, {}, json.dumps({"id": match[1], "sha": commit}).encode()
        if match := re.fullmatch(r"/api/datasets/(.+)/tree/([^/]+)", path):
            return self._list(match[1], match[2], int(parse_qs(parts.query).get("page", ["0"])[0]))
        if match := re.fullmatch(r"/datasets/(.+?)/resolve/([^/]+)/(.+)", path):
            return self._resolve(asked, match[2], match[3])
        return 404, {}, b""

    def _list(self, repository: str, commit: str, page: int) -> tuple[int, dict[str, str], bytes]:
        if commit not in self.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        entries: list[dict[str, Any]] = [{"type": "directory", "path": "data", "oid": "0"}]
        for name, data in sorted(self.commits[commit].items()):
            entry = {"type": "file", "path": name, "size": len(data), "oid": git_hash(data)}
            if len(data) >= LARGE_BYTES:
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
            entries.append(entry)
        part = entries[page * self.page : (page + 1) * self.page]
        url = f"{self.url}/api/datasets/{repository}/tree/{commit}?recursive=1&page={page + 1}"
        more = (page + 1) * self.page < len(entries)
        return 200, {"Link": f'<{url}>; rel="next"'} if more else {}, json.dumps(part).encode()

    def _resolve(self, asked: Asked, commit: str, name: str) -> tuple[int, dict[str, str], bytes]:
        data = self.commits.get(commit, {}).get(name)
        if data is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        headers = {"X-Repo-Commit": commit}
        if len(data) < LARGE_BYTES:
            return self._give(asked, data, headers | {"ETag": f'"{git_hash(data)}"'})
        headers |= {
            "X-Linked-Etag": f'"{sha256(data)}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"{self.bytes_url}/{sha256(data)}?signature={self.signature}",
        }
        return 302, headers, b""

    def _give_signed(
        self, asked: Asked, path: str, query: Mapping[str, list[str]]
    ) -> tuple[int, dict[str, str], bytes]:
        if "authorization" in asked.headers:
            return 400, {}, b""  # as S3 does with two ways of authorization
        if query.get("signature") != [str(self.signature)]:
            return 403, {}, b""
        every = (data for files in self.commits.values() for data in files.values())
        data = next(data for data in every if sha256(data) == path[1:])
        return self._give(asked, data, {"ETag": f'"cdn-{sha256(data)[:8]}"'})

    def _give(
        self, asked: Asked, data: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("range", ""))
        if match is None:
            return 200, headers, data
        start, stop = int(match[1]), min(int(match[2]) + 1, len(data))
        if start >= len(data):
            return 416, {"Content-Range": f"bytes */{len(data)}"}, b""
        said = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        return 206, headers | said, data[start:stop]


@functools.lru_cache
def sha256(data: bytes) -> str:
    """Return the hash by which the hub names large files."""
    return hashlib.sha256(data).hexdigest()


def git_hash(data: bytes) -> str:
    """Return the hash by which git names a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _make_handler(hub: Hub, host: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the receipt of its headers

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(host, self.path, headers)
            hub.log.append(asked)
            status, answered, body = hub.alter(asked, *hub.answer(asked))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **answered}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextlib.contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve a hub, and its second host, while the block runs."""
    hub = Hub()
    servers = []
    for host in ("hub", "bytes"):
        server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(hub, host))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
    # Two names of one machine: to a client they are two hosts.
    hub.url = f"http://127.0.0.1:{servers[0].server_port}"
    hub.bytes_url = f"http://localhost:{servers[1].server_port}"
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def write_cache(
    folder: Path, repository: str, commit: str, files: Mapping[str, bytes], tree: bool = True
) -> Path:
    """Write a snapshot as the hub's library does, and return its folder."""
    root = folder / "--".join(["datasets", *repository.split("/")])
    snapshot = root / "snapshots" / commit
    for name, data in files.items():
        blob = root / "blobs" / sha256(data)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (2 + name.count("/"))
        link.symlink_to(f"{up}blobs/{blob.name}")
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(commit)
    if tree:
        (root / "trees").mkdir(exist_ok=True)
        listed = {name: {"size": len(data), "blob_id": "0"} for name, data in files.items()}
        (root / "trees" / f"{commit}.json").write_text(
            json.dumps({"format_version": 1, "files": listed})
        )
    return snapshot
