"""Answers of a hub: listings page by page, commits, the files that are data; and its URLs."""

from __future__ import annotations

import contextlib
import json

from fuzz.memory import joined_parts
from fuzz.structure import PART
from penstock.engine.hub import (
    HubAnswer,
    HubClient,
    HubFile,
    HubLocation,
    choose_data,
    list_files,
    parse_hub_url,
    resolve_commit,
)
from penstock.engine.object_answer import ObjectRefused
from penstock.errors import PenstockError

_HOST = "https://hub.invalid"
_COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENS = (
    *(b"hf://datasets/", b"@", b"/", b"..", b"%2F", b"refs/pr/1", b"main", b"*", b"\0"),
    *(b'"type"', b'"file"', b'"directory"', b'"path"', b'"size"', b'"oid"', b'"lfs"', b'"sha"'),
    *(b"train-0", b"test/", b".parquet", b"README.md", b"; rel=next", b"<", b">", b"/next"),
    _HOST.encode(),
)


class _Client(HubClient):
    """A hub whose answers are given; a page that is not there is refused."""

    def __init__(self, pages: list[bytes]) -> None:
        super().__init__(_HOST, "secret")
        self._pages, self._asked = pages, 0

    def get(self, url: str, start: int = -1, stop: int = 0) -> HubAnswer:
        assert self.is_hub(url), url  # the token goes to no other
        if self._asked == len(self._pages):
            return HubAnswer(404, {}, b"")
        head, _, body = self._pages[self._asked].partition(b"\n")
        self._asked += 1
        return HubAnswer(200, {"link": head.decode("latin-1")} if head else {}, body)


def seeds() -> list[bytes]:
    """A URL, the answer with a commit, and two pages of a listing."""
    url = f"hf://datasets/org/name@{_COMMIT}/data/train-0.parquet".encode()
    files = [
        {"type": "file", "path": "data/train-0.parquet", "size": 5, "oid": "a"},
        {"type": "directory", "path": "data"},
        {"type": "file", "path": "README.md", "size": 7, "oid": "b", "lfs": {"size": 9}},
    ]
    pages = [
        f"<{_HOST}/next>; rel=next\n".encode() + json.dumps(files[:2]).encode(),
        b"\n" + json.dumps(files[2:]).encode(),
    ]
    commit = b"\n" + json.dumps({"sha": _COMMIT}).encode()
    return [
        joined_parts(url, commit, *pages),
        joined_parts(b"hf://datasets/name@refs%2Fpr%2F1", commit, pages[1]),
    ]


def one(data: bytes) -> None:
    """Parse the URL, and read the answers."""
    text, *pages = data.split(PART)
    _parse(text)
    where = HubLocation("org/name", _COMMIT, "")
    if pages:
        with contextlib.suppress(ObjectRefused):
            assert len(resolve_commit(_Client(pages[:1]), where)) == 40
    try:
        files = list_files(_Client(pages[1:]), where)
    except ObjectRefused:
        return
    for name, file in files.items():
        assert isinstance(file, HubFile)
        assert file.size >= 0
        assert ".." not in name.split("/")
        assert not name.startswith("/")
    with contextlib.suppress(PenstockError):
        chosen = choose_data("place", list(files))
        assert set(chosen) <= set(files)


def _parse(text: bytes) -> None:
    """Parse a URL, whose parts make one that means the same."""
    try:
        where = parse_hub_url(text.decode())
    except (PenstockError, UnicodeDecodeError):
        return
    assert where.path == where.path.strip("/")
    assert ".." not in where.path.split("/")
    assert ".." not in where.repository.split("/")
    again = parse_hub_url(where.url)
    assert again == where, (where, again)
