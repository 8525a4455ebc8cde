"""Listings of a hub, the files in them that are data, and its URLs."""

from __future__ import annotations

import contextlib
import json

from fuzz.memory import joined_parts
from fuzz.structure import PART
from penstock.engine.hub import HubFile, add_file, choose_data, parse_hub_url
from penstock.engine.object_client import ObjectRefused
from penstock.errors import PenstockError

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENS = (
    *(b"hf://datasets/", b"@", b"/", b"..", b"%2F", b"refs/pr/1", b"main", b"*", b"\0"),
    *(b'"type"', b'"file"', b'"directory"', b'"path"', b'"size"', b'"oid"', b'"lfs"', b'"sha"'),
    *(b"train-0", b"test/", b".parquet", b"README.md"),
)


def seeds() -> list[bytes]:
    """URLs, each with two pages of a listing."""
    url = f"hf://datasets/org/name@{_COMMIT}/data/train-0.parquet".encode()
    files = [
        {"type": "file", "path": "data/train-0.parquet", "size": 5, "oid": "a"},
        {
            "type": "file",
            "path": "README.md",
            "size": 7,
            "oid": "b",
            "lfs": {"size": 9, "oid": "c"},
        },
    ]
    pages = [json.dumps(files[:1]).encode(), json.dumps(files[1:]).encode()]
    return [
        joined_parts(url, *pages),
        joined_parts(b"hf://datasets/name@refs%2Fpr%2F1", pages[1]),
    ]


def one(data: bytes) -> None:
    """Parse the URL, and read the listing."""
    text, *pages = data.split(PART)
    _parse(text)
    files: dict[str, HubFile] = {}
    for page in pages:
        try:
            for entry in json.loads(page):
                add_file(files, entry)
        except (ObjectRefused, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            break  # as the client translates them
    for name in files:
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
