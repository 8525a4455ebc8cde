"""Datasets of the hub: from a hub on the loopback, which answers as the real one, and its cache."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.engine.hub import (
    HubBucket,
    choose_data,
    find_commit,
    parse_hub_url,
    read_endpoint,
)
from penstock.engine.object_client import ObjectRefused
from penstock.errors import (
    ChangedError,
    FormatError,
    MissingError,
    PenstockError,
    SidecarError,
    StateError,
    StorageError,
    UsageError,
)
from tests.command import run
from tests.hub import Asked, Hub, Refusal, serve_hub, write_cache

URL = "hf://datasets/org/name"


def lines(name: str, count: int) -> bytes:
    """JSON lines, each with a text of its own."""
    return b"".join(b'{"text": "%s %d"}\n' % (name.encode(), i) for i in range(count))


FILES = {
    "README.md": b"# Text\n",
    ".gitattributes": b"*.jsonl\n",
    "data/a.jsonl": lines("a", 40),
    "data/b.jsonl": lines("b", 3),
    "data/c.jsonl": lines("c", 30),
}
COUNT = 73


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one commit, which the environment names; no token, and an empty cache."""
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # The library reads these from the environment once, when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(limits, "object_pause_s", 0.001)
    with serve_hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        served.commit(FILES)
        yield served


def read_texts(dataset: penstock.Dataset) -> list[str]:
    """All texts, read by a loader of shuffled batches."""
    with penstock.Loader(
        dataset, batch_size=8, seed=1, decode=lambda s: json.loads(s["data"])["text"]
    ) as loader:
        return sorted(text for batch in loader for text in batch)


EXPECTED = sorted(f"{name} {i}" for name, n in (("a", 40), ("b", 3), ("c", 30)) for i in range(n))


def test_url_of_a_folder(hub: Hub) -> None:
    """A branch is resolved once; every sample comes once; an address is asked for once a file."""
    dataset = penstock.open(f"{URL}@main/data")
    assert len(dataset) == COUNT
    assert dataset.path == f"{URL}@{hub.refs['main']}/data"
    assert dataset.commit == hub.refs["main"]
    assert read_texts(dataset) == EXPECTED
    assert hub.count("hub", "/revision/") == 1
    # One engine reads the index's bytes, another the samples: they share the addresses.
    assert hub.count("hub", "/resolve/") - hub.count("hub", "b.jsonl") <= 2 * 2
    assert hub.count("bytes") > 4


@pytest.mark.parametrize("path", ["data/a.jsonl", "data/{a,b,c}.jsonl", "data/*.jsonl", ""])
def test_url_of_files(hub: Hub, path: str) -> None:
    """A file, patterns, and a repository whose documents are no data."""
    dataset = penstock.open(f"{URL}/{path}" if path else URL)
    assert len(dataset) == (40 if path == "data/a.jsonl" else COUNT)
    assert json.loads(dataset[39]["data"]) == {"text": "a 39"}


def test_parquet(hub: Hub) -> None:
    """A repository as the hub converts it: Parquet of one split, beside a card."""
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({"x": list(range(100)), "text": [f"t{i}" for i in range(100)]}), out)
    files = {"README.md": b"#", "data/train-00000-of-00001.parquet": out.getvalue()}
    hub.commit(files, "refs/convert/parquet")
    dataset = penstock.open(f"{URL}@refs/convert/parquet")
    assert len(dataset) == 100
    with penstock.Loader(dataset, batch_size=32, seed=0) as loader:
        found = np.concatenate([batch["x"] for batch in loader])
    assert sorted(found.tolist()) == list(range(100))
    hub.commit(files | {"data/test-00000-of-00001.parquet": b""}, "both")
    with pytest.raises(UsageError, match=r"the splits test \(.*, train \("):
        penstock.open(f"{URL}@both")
    assert len(penstock.open(f"{URL}@both", split="train")) == 100


def test_copies_have_one_identity(hub: Hub, tmp_path: Path) -> None:
    """Fingerprint and state of a copy on disk are those of the hub; a state goes both ways."""
    copy = tmp_path / "copy"
    for name in ("a", "b", "c"):
        copy.mkdir(exist_ok=True)
        (copy / f"{name}.jsonl").write_bytes(FILES[f"data/{name}.jsonl"])
    remote, local = penstock.open(f"{URL}/data"), penstock.open(copy)
    assert remote.fingerprint == local.fingerprint
    assert local.commit == ""
    with penstock.Loader(remote, batch_size=8, seed=3) as one:
        next(iter(one))
        state = one.state_dict()
    for dataset in (local, remote):
        with penstock.Loader(dataset, batch_size=8, seed=3) as other:
            other.load_state_dict(state)
            assert other.state_dict()["step"] == 1


def test_pickled_datasets_keep_the_commit(hub: Hub) -> None:
    """Another process reads the commit that was opened, though the branch has moved."""
    dataset = penstock.open(f"{URL}/data")
    sent = pickle.dumps(dataset)
    hub.commit(FILES | {"data/a.jsonl": lines("z", 40)})
    again = pickle.loads(sent)
    assert again.commit == dataset.commit
    assert read_texts(again) == EXPECTED


def test_moved_revision_at_resume(hub: Hub) -> None:
    """Resuming on a branch that has moved is an error that names both commits; and the commit of
    the state can be opened, and goes on."""
    dataset = penstock.open(f"{URL}/data")
    with penstock.Loader(dataset, batch_size=8, seed=3) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    first = hub.refs["main"]
    second = hub.commit(FILES | {"data/a.jsonl": lines("z", 40)})  # of the same sizes
    moved = penstock.open(f"{URL}/data")
    assert moved.fingerprint == dataset.fingerprint
    assert moved.index.version != dataset.index.version
    with (
        penstock.Loader(moved, batch_size=8, seed=3) as loader,
        pytest.raises(StateError) as caught,
    ):
        loader.load_state_dict(state)
    assert first in str(caught.value)
    assert second in str(caught.value)
    with penstock.Loader(penstock.open(f"{URL}@{first}/data"), batch_size=8, seed=3) as loader:
        loader.load_state_dict(state)


def test_moved_revision_of_a_selection(hub: Hub, tmp_path: Path) -> None:
    """A saved selection is of the samples of one commit, though another has as many of the same
    sizes; the commit of the selection can be opened."""
    path = tmp_path / "some.selection"
    penstock.open(f"{URL}/data").select([1, 2]).save_selection(path)
    assert len(penstock.open(f"{URL}/data").select(saved=path)) == 2
    first = hub.refs["main"]
    second = hub.commit(FILES | {"data/a.jsonl": lines("z", 40)})
    with pytest.raises(SidecarError, match=f"of commit {first}.* of {second} now"):
        penstock.open(f"{URL}/data").select(saved=path)
    assert len(penstock.open(f"{URL}@{first}/data").select(saved=path)) == 2


def test_commands_take_branches(hub: Hub) -> None:
    """The command line finds the commit of a branch as `open` does."""
    assert f"{URL}@{hub.refs['main']}/data: jsonl, 73 " in run("index", f"{URL}@main/data").stdout
    assert "73 samples" in run("lengths", f"{URL}/data", "--by", "bytes").stdout
    assert "fresh" in run("inspect", f"{URL}@main/data").stdout
    assert len(penstock.open(f"{URL}/data").lengths) == COUNT


def test_saved_index_of_a_commit(hub: Hub) -> None:
    """A commit that was opened before is not indexed again; a branch that has moved is."""
    penstock.open(f"{URL}/data")
    hub.log.clear()
    penstock.open(f"{URL}/data")
    assert hub.count("bytes") <= 2  # the format is found by the first bytes of files
    hub.commit(FILES | {"data/a.jsonl": lines("z", 40)})
    assert json.loads(penstock.open(f"{URL}/data")[0]["data"]) == {"text": "z 0"}


def test_tokens_stay_at_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token, of the environment or its file, goes to the hub's host with each request there, and
    never to the other; it is in no text."""
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_from_file\n")
    for token in ("hf_from_file", "hf_from_environment"):
        if token == "hf_from_environment":
            monkeypatch.setenv("HF_TOKEN", token)
        hub.log.clear()
        dataset = penstock.open(f"{URL}/data", index="memory")
        assert read_texts(dataset) == EXPECTED
        sent = {(asked.host, asked.headers.get("authorization")) for asked in hub.log}
        assert sent == {("hub", f"Bearer {token}"), ("bytes", None)}
        assert token not in repr(dataset) + json.dumps(list(vars(dataset)), default=repr)


def test_signed_addresses_are_renewed(hub: Hub) -> None:
    """When the address of a file expires while it is read, the hub is asked for another."""
    dataset = penstock.open(f"{URL}/data")
    with penstock.Loader(dataset, batch_size=8, seed=1, decode=lambda s: s["data"]) as loader:
        got = []
        for step, batch in enumerate(loader):
            got += batch
            if step == 2:
                hub.signature += 1
        got += [text for batch in loader for text in batch]
    assert len(got) == 2 * COUNT
    assert len(set(got)) == COUNT


def test_too_many_requests(hub: Hub) -> None:
    """429 is asked again, not before the hub said, and bounded: an hour is not waited for."""
    refused: list[Asked] = []

    def refuse(asked: Asked) -> Refusal | None:
        if len(refused) < 3:
            refused.append(asked)
            return Refusal(429, {"Retry-After": "0"})
        return None

    hub.refuse = refuse
    assert len(penstock.open(f"{URL}/data")) == COUNT
    assert len(refused) == 3
    hub.refuse = lambda _: Refusal(429, {"Retry-After": "3600"})
    with pytest.raises(StorageError, match=r"429, ask again after 3600 s.* a token raises"):
        penstock.open(f"{URL}/data")


@pytest.mark.parametrize(
    ("status", "code", "error", "said"),
    [
        (401, "", StorageError, "give a token that may read it"),
        (403, "GatedRepo", StorageError, "its terms have to be accepted first"),
        (404, "RepoNotFound", MissingError, "404 RepoNotFound"),
        (404, "RevisionNotFound", MissingError, "check the names of repository, revision"),
        (500, "", StorageError, "is the hub up"),
        (418, "", StorageError, "418"),
        (302, "", StorageError, "no connection"),
    ],
)
def test_refusals(
    hub: Hub,
    status: int,
    code: str,
    error: type[PenstockError],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each refusal is an error that names the URL and what to do; nothing is waited for in vain."""
    monkeypatch.setattr(limits, "object_listing_deadline_s", 0.05)
    hub.refuse = lambda _: Refusal(
        status, {"X-Error-Code": code, "Location": "http://localhost:9/elsewhere"}
    )
    with pytest.raises(error) as caught:
        penstock.open(f"{URL}@main/data")
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{URL}@main/data cannot be read")


def test_a_hub_that_hangs(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that never comes ends with the time for answers, not never."""
    monkeypatch.setattr(limits, "object_listing_deadline_s", 0.05)
    release = threading.Event()

    def refuse(_: Asked) -> None:
        release.wait(30)

    hub.refuse = refuse
    for ask in (
        HubBucket(f"{URL}@main", stall_s=0.05).find_commit,
        HubBucket(f"{URL}@{hub.refs['main']}", stall_s=0.05).files,
    ):
        with pytest.raises(ObjectRefused, match="no answer in time") as caught:
            ask()
        assert caught.value.again
    release.set()


LIES = {
    "a longer size": lambda s, h, b: (s, h | {"Content-Range": "bytes 0-9/5000"}, b),
    "another range": lambda s, h, b: (s, h | {"Content-Range": "bytes 7-9/600"}, b),
    "no range": lambda s, h, b: (200, {}, b"x" * 600),
    "more bytes": lambda s, h, b: (s, h, b + b"x" * 100),
    "another commit": lambda s, h, b: (s, h | {"X-Repo-Commit": "0" * 40}, b),
    "another etag": lambda s, h, b: (s, h | {"X-Linked-Etag": '"' + "0" * 64 + '"'}, b),
    "another linked size": lambda s, h, b: (s, h | {"X-Linked-Size": "5"}, b),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_hub_that_lies(hub: Hub, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that contradicts the listing is an error, while reading and while indexing, and
    never other bytes."""
    monkeypatch.setattr(limits, "object_listing_deadline_s", 0.05)
    dataset = penstock.open(f"{URL}/data/a.jsonl")
    expected = dataset[5]["data"]
    host = "hub" if "commit" in lie or "linked" in lie or "etag" in lie else "bytes"
    hub.signature += 1  # addresses have to be asked for

    def alter(asked: Asked, status: int, headers: dict[str, str], body: bytes) -> object:
        if asked.host == host and "/api/" not in asked.path:
            return LIES[lie](status, headers, body)
        return status, headers, body

    hub.alter = alter  # type: ignore[assignment]
    with pytest.raises((ChangedError, StorageError)):
        assert dataset[5]["data"] == expected
        raise AssertionError("it was believed")
    with pytest.raises((ChangedError, StorageError)):
        penstock.open(f"{URL}/data/a.jsonl", index="memory")


# -- listings --------------------------------------------------------------------------------------

ENTRY = {"type": "file", "path": "a.bin", "size": 3, "oid": "0" * 40}


def ask_listing(hub: Hub, body: bytes, link: str = "") -> dict[str, object]:
    """List a commit of which the hub says this."""
    headers = {"Link": link} if link else {}
    hub.alter = lambda *_: (200, headers, body)
    return dict(HubBucket(f"{URL}@{hub.refs['main']}").files())


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../a"},
        {"path": "/etc/passwd"},
        {"path": ""},
        {"path": 3},
        {"size": -1},
        {"size": 1 << 70},
        {"size": "3"},
        {"oid": None},
        {"type": None, "path": None},
        {"lfs": {"oid": 3, "size": 3, "pointerSize": 1}},
        {"lfs": {"oid": "x", "size": None, "pointerSize": 1}},
        {"lfs": 5},
    ],
)
def test_hostile_listings(hub: Hub, change: dict[str, object]) -> None:
    """Names that lead elsewhere, sizes that are none: refused."""
    assert ask_listing(hub, json.dumps([ENTRY]).encode()) != {}
    with pytest.raises(ObjectRefused, match="the hub lists|not understood"):
        ask_listing(hub, json.dumps([ENTRY | change]).encode())


@pytest.mark.parametrize("link", ["http://[", "//[x", "https://a]"])
def test_addresses_that_are_none(hub: Hub, link: str) -> None:
    """A page that leads to no URL, and an endpoint that is none, are refused."""
    with pytest.raises((ObjectRefused, UsageError)):
        ask_listing(hub, b"[]", f"<{link}>; rel=next")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UsageError, match="HF_ENDPOINT"):
        patch.setenv("HF_ENDPOINT", link.replace("//[x", "http://[x"))
        read_endpoint()


def test_listings_that_do_not_end(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is its own next, or leads to another host, is refused."""
    monkeypatch.setattr(limits, "hub_pages_max", 3)
    body = b"[]"
    with pytest.raises(ObjectRefused, match="over 3 pages"):
        ask_listing(hub, body, f'<{hub.url}/next>; rel="next"')
    with pytest.raises(ObjectRefused, match="another host"):
        ask_listing(hub, body, '<http://elsewhere/next>; rel="next"')
    with pytest.raises(ObjectRefused, match="no new name"):
        ask_listing(hub, json.dumps([ENTRY, ENTRY]).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["type", "path", "size", "oid", "lfs"]), JSON).map(
            lambda change: ENTRY | change
        )
        | JSON,
        max_size=4,
    )
    | st.binary(max_size=30)
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_listing(hub: Hub, entries: list[object] | bytes) -> None:
    """Whatever a hub lists: files with names inside and sizes, or an error of ours."""
    body = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    try:
        found = ask_listing(hub, body)
    except ObjectRefused:
        return
    for name in found:
        assert not name.startswith("/")
        assert ".." not in name.split("/")


# -- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        (URL, ("org/name", "", "")),
        (f"{URL}/a/b.txt", ("org/name", "", "a/b.txt")),
        (f"{URL}/a/b@2.txt", ("org/name", "", "a/b@2.txt")),
        (f"{URL}@v1.0/a", ("org/name", "v1.0", "a")),
        (f"{URL}@refs/pr/7/a", ("org/name", "refs/pr/7", "a")),
        (f"{URL}@refs/convert/parquet", ("org/name", "refs/convert/parquet", "")),
        (f"{URL}@refs%2Fpr%2F7/a", ("org/name", "refs/pr/7", "a")),
        ("hf://datasets/squad@main/a", ("squad", "main", "a")),
    ],
)
def test_parts_of_urls(url: str, parts: tuple[str, str, str]) -> None:
    """A URL has repository, revision and path, and is written again so that it has the same."""
    assert parse_hub_url(url) == parts
    assert parse_hub_url(parse_hub_url(url).url) == parts


@pytest.mark.parametrize(
    "url",
    [
        "hf://org/name",
        "hf://models/org/name",
        "hf://datasets/",
        "hf://datasets/../x",
        f"{URL}@/a",
        f"{URL}/../../a",
        f"{URL}@main/a/../../b",
        "hf://datasets/a b/c",
    ],
)
def test_wrong_urls(url: str) -> None:
    """Other URLs are refused with the form to use."""
    with pytest.raises(UsageError, match="ORG/NAME@REVISION/PATH"):
        parse_hub_url(url)


def test_documents_are_no_data() -> None:
    """Documents beside data are left out; several kinds of data are refused."""
    both = ["README.md", "data/train-00000.parquet", "data/test-00000.parquet"]
    assert choose_data(URL, both) == sorted(both[1:])
    assert choose_data(URL, ["train/cat/1.jpg", "train/dog/2.jpg", ".gitattributes"]) == []
    with pytest.raises(UsageError, match="README.md beside the data"):
        choose_data(URL, ["README.md", "a.jpg", "b.png"])


# -- the local cache -------------------------------------------------------------------------------


def test_snapshots_are_read_where_they_lie(hub: Hub, tmp_path: Path) -> None:
    """A URL whose files the cache has is read there, with no request for bytes, and so is the
    snapshot itself; both have the commit."""
    commit = hub.refs["main"]
    snapshot = write_cache(tmp_path / "hf" / "hub", "org/name", commit, FILES)
    for place in (f"{URL}/data", str(snapshot / "data"), str(snapshot), URL):
        dataset = penstock.open(place, index="memory")
        assert dataset.commit == commit
        assert read_texts(dataset) == EXPECTED
    assert hub.count("hub", "/resolve/") + hub.count("hub", "/tree/") == 0
    (hub_read,) = {asked.path for asked in hub.log}
    assert "/revision/" in hub_read


@pytest.mark.parametrize("tree", [True, False])
def test_snapshots_with_holes_are_not_taken(hub: Hub, tmp_path: Path, tree: bool) -> None:
    """A snapshot that lacks a file, or has it cut, is not the data: the hub is read."""
    snapshot = write_cache(tmp_path / "hf" / "hub", "org/name", hub.refs["main"], FILES, tree)
    (snapshot / "data" / "b.jsonl").unlink()
    assert len(penstock.open(f"{URL}/data")) == COUNT
    assert penstock.open(f"{URL}/data/a.jsonl").path == str(snapshot / "data" / "a.jsonl")
    (snapshot / "data" / "b.jsonl").write_bytes(b'{"text": "cut"}\n')
    dataset = penstock.open(f"{URL}/data", index="memory")
    assert dataset.path.startswith("hf://")
    assert read_texts(dataset) == EXPECTED


def test_offline(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline the cache's own revision counts; without a listing a warning says what is unknown;
    what the cache does not have is an error."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set"):
        penstock.open(f"{URL}/data")
    commit = hub.refs["main"]
    write_cache(tmp_path / "hf" / "hub", "org/name", commit, FILES, tree=False)
    with pytest.warns(RuntimeWarning, match="without the hub's listing"):
        dataset = penstock.open(f"{URL}/data", index="memory")
    assert read_texts(dataset) == EXPECTED
    with pytest.raises(UsageError, match="no snapshot 1111"):
        penstock.open(f"{URL}@{'1' * 40}/data")
    assert hub.log == []


def test_links_of_a_snapshot_lead_to_its_blobs_only(hub: Hub, tmp_path: Path) -> None:
    """Shards that an index.json names may be links to the cache's blobs, and to nothing else."""
    columns = np.arange(3, dtype="<i4")
    shard = b"".join(part.tobytes() for part in (np.uint32([3, 20, 24, 28, 32]), columns))
    info = {
        "version": 2,
        "shards": [
            {
                "column_encodings": ["int32"],
                "column_names": ["x"],
                "column_sizes": [4],
                "compression": None,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}},
                "samples": 3,
                "size_limit": 1 << 20,
                "version": 2,
                "zip_data": None,
            }
        ],
    }
    files = {"index.json": json.dumps(info).encode(), "shard.00000.mds": shard}
    snapshot = write_cache(tmp_path / "hf" / "hub", "org/name", "a" * 40, files)
    dataset = penstock.open(snapshot, index="memory")
    assert [int(sample["x"]) for sample in dataset] == [0, 1, 2]
    outside = tmp_path / "secret"
    outside.write_bytes(shard)
    (snapshot / "shard.00000.mds").unlink()
    (snapshot / "shard.00000.mds").symlink_to(outside)
    with pytest.raises(FormatError, match="out of the data set"):
        penstock.open(snapshot, index="memory")


def test_commits_of_places() -> None:
    """A commit is found in a pinned URL and in a snapshot's path, and in nothing else."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert find_commit(f"{URL}@{commit}/data") == commit
    assert find_commit(f"/x/datasets--a--b/snapshots/{commit}") == commit
    assert find_commit(f"{URL}@main/data") == ""
    assert find_commit(f"/x/snapshots/{commit}") == ""
    assert find_commit(f"s3://bucket/datasets--a--b/snapshots/{commit}") == ""
