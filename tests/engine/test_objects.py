"""Objects behind URLs: the same samples as from files, through whatever a service does."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import struct
import subprocess
import sys
import tarfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import zstandard

pytest.importorskip("obstore")
pytest.importorskip("moto")
import penstock
from penstock import limits
from penstock.budget import Budget
from penstock.engine import remote, threads
from penstock.engine.object_client import Bucket, compute_version, read_aws_profile
from penstock.engine.object_store import ObjectStore, parse_object_url
from penstock.engine.protocol import Completion, Failure
from penstock.engine.remote import RemoteEngine
from penstock.engine.store import Posix
from penstock.testing.suite import EngineRead, finish, random_bytes
from tests import warm
from tests.command import run
from tests.index.formats.writers import write_mds
from tests.interrupts import end_in_thread, interrupt
from tests.services import KEY, S3, SECRET, Fault, Proxy, environment, moto, object_server, served
from tests.slices import first, stride, thinned

Use = Callable[[int], None]


@pytest.fixture(scope="module")
def service() -> Iterator[int]:
    """The port of moto's S3."""
    with moto() as port:
        yield port


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Use:
    """Has s3:// mean the service at a port, and sidecars go to a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def use(port: int) -> None:
        for name, value in environment(port).items():
            monkeypatch.setenv(name, value)

    return use


@pytest.fixture
def s3(service: int, use: Use, request: pytest.FixtureRequest) -> S3:
    """A bucket of the test's own."""
    use(service)
    name = "-".join(re.findall("[a-z0-9]+", request.node.name.lower()))
    return S3(service, f"{name[:40].strip('-')}-{time.time_ns() % 1_000_000}")


def always(fault: Fault, times: int = 1 << 30) -> Callable[[str, str, int], Fault]:
    """The same fault for every ranged read, so many times for each object."""

    def rule(method: str, path: str, before: int) -> Fault:
        return fault if method == "GET" and "list-type" not in path and before < times else None

    return rule


def tree(folder: Path, count: int = 60, size: int = 5000) -> Path:
    """A folder of files in three classes, one of them empty of files."""
    for number in range(count):
        path = folder / f"class {number % 3}" / f"{number:03d}-ü.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random_bytes(size + number, number))
    return folder


def bytes_of(loader: penstock.Loader) -> list[tuple[list[int], list[bytes], list[int] | None]]:
    """Return ids, bytes and labels of the batches of an epoch."""
    batches = []
    for batch in loader:
        labels = batch["label"].tolist() if "label" in batch else None
        batches.append((batch.ids.tolist(), [row.tobytes() for row in batch["data"]], labels))
    return batches


@contextmanager
def engine_over(
    s3: S3, contents: dict[str, bytes], port: int, use: Use, **options: Any
) -> Iterator[RemoteEngine]:
    """An engine over objects, indexed as they are, that asks the service at a port."""
    for name, content in contents.items():
        s3.put(name, content)
    files = ObjectStore(f"s3://{s3.name}").stat(list(contents))
    use(port)
    engine = RemoteEngine(files, **options)
    try:
        yield engine
    finally:
        engine.close()


# -- the same samples as from files ----------------------------------------------------------------


@pytest.mark.long
def test_tree(s3: S3, tmp_path: Path) -> None:
    """A prefix of class folders gives the classes, labels, order and bytes of the same folder."""
    folder = tree(tmp_path / "data")
    (folder / ".hidden").write_bytes(b"not a sample")
    (folder / "class 1" / ".hidden").write_bytes(b"not a sample")
    s3.put_folder(folder, "train/")
    s3.put_marker("train/class 1")
    local, remote = penstock.open(folder), penstock.open(f"s3://{s3.name}/train")
    assert remote.fingerprint == local.fingerprint
    assert remote.classes == local.classes == ("class 0", "class 1", "class 2")
    assert [remote.index.key(i) for i in range(5)] == [local.index.key(i) for i in range(5)]
    assert remote[7] == local[7]
    for budget in (Budget(), Budget(requests=1), Budget(requests=7, readahead_bytes=40_000)):
        with (
            penstock.Loader(local, 8, seed=3) as near,
            penstock.Loader(remote, 8, seed=3, budget=budget) as far,
        ):
            assert bytes_of(far) == bytes_of(near)
            assert far.stats()["backend"] == "object"
            assert far.stats()["requests"] == 60


@pytest.mark.parametrize(
    "place", first(2, ["part-{0..2}.bin", "", "part-0.bin", "part-[01].bin", "*.bin"])
)
def test_records(s3: S3, tmp_path: Path, place: str) -> None:
    """Records in one object, below a prefix or of a pattern are those of the same files, merged
    into fewer requests."""
    for number in range(3):
        (tmp_path / f"part-{number}.bin").write_bytes(random_bytes(100 * 512, number))
    s3.put_folder(tmp_path, "deep/er/")
    local = penstock.open(str(tmp_path / place), record_bytes=512, index="memory")
    remote = penstock.open(f"s3://{s3.name}/deep/er/{place}", record_bytes=512)
    assert remote.fingerprint == local.fingerprint
    with penstock.Loader(local, 16) as near, penstock.Loader(remote, 16) as far:
        for here, there in zip(near, far, strict=True):
            np.testing.assert_array_equal(here["data"], there["data"])
        assert far.stats()["requests"] < len(remote) / 4
    assert remote.sidecar is not None
    assert "penstock" in remote.sidecar
    again = penstock.open(f"s3://{s3.name}/deep/er/{place}", record_bytes=512)
    assert again.sidecar == remote.sidecar


def test_list_and_npy(s3: S3, tmp_path: Path) -> None:
    """An array is read by row, a list of URLs is one dataset, and a listing names objects."""
    array = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(tmp_path / "x.npy", array)
    s3.put("x.npy", (tmp_path / "x.npy").read_bytes())
    rows = penstock.open(f"s3://{s3.name}/x.npy")
    np.testing.assert_array_equal(rows[7]["data"], array[7])
    for name in ("b", "a"):
        s3.put(f"list/{name}.bin", name.encode() * 64)
    urls = [f"s3://{s3.name}/list/{name}.bin" for name in ("b", "a")]
    both = penstock.open(urls, record_bytes=64)
    assert [bytes(both[i]["data"]) for i in range(2)] == [b"b" * 64, b"a" * 64]
    s3.put("list/names.txt", b"a.bin 1\nb.bin 0\n")
    listed = penstock.open(f"s3://{s3.name}/list/names.txt")
    assert [listed[i]["label"] for i in range(2)] == [1, 0]


def archive(path: Path, members: Mapping[str, bytes]) -> None:
    """A tar archive."""
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def write_tar(folder: Path) -> None:
    """Two archives, with names that take a header of their own in the second."""
    for shard in range(2):
        members = {}
        for number in range(30):
            stem = "long/" * (30 * shard) + f"{shard}-{number:02d}-ü"
            members[f"{stem}.jpg"] = random_bytes(700 * number, number)
            members[f"{stem}.cls"] = b"%d" % (number % 7)
        archive(folder / f"train-{shard}.tar", members)


def write_lmdb(folder: Path) -> None:
    """Two environments of values in leaves and on pages of their own, in trees of two levels."""
    for name in ("a", "b"):
        with (
            lmdb.open(str(folder / name), map_size=1 << 24) as environment,
            environment.begin(write=True) as transaction,
        ):
            for number in range(600):
                size = 9000 if number % 50 == 0 else 40 + number % 5
                transaction.put(b"%s %05d" % (name.encode(), number), random_bytes(size, number))


def write_lines(folder: Path) -> None:
    """Two files of JSON lines, with both ends of lines and blank ones."""
    for shard in range(2):
        lines = [b'{"n": %d, "text": "%s"}' % (n, b"xyz" * n) for n in range(40)]
        (folder / f"{shard}.jsonl").write_bytes(b"\r\n\n".join(lines) + b"\n" * shard)


def write_frames(folder: Path) -> None:
    """The same lines in small frames of Zstandard, which end within lines, and members of gzip."""
    write_lines(folder)
    for shard, compress, ending in ((0, zstandard.compress, "zst"), (1, gzip.compress, "gz")):
        plain = folder / f"{shard}.jsonl"
        text = plain.read_bytes()
        cuts = range(0, len(text), 900)
        frames = b"".join(compress(text[cut : cut + 900]) for cut in cuts)
        (folder / f"{shard}.jsonl.{ending}").write_bytes(frames)
        plain.unlink()


def write_columns(folder: Path) -> None:
    """Three shards of MDS, with a column of bytes and one of integers."""
    columns: dict[str, tuple[str, int | None]] = {"image": ("bytes", None), "label": ("int", 8)}
    samples = [
        [random_bytes(900 + 13 * number, number), struct.pack("<q", number % 7)]
        for number in range(75)
    ]
    write_mds(folder, columns, [samples[first : first + 25] for first in (0, 25, 50)])


@pytest.mark.parametrize(
    ("write", "place", "format"),
    first(
        1,
        [
            (write_tar, "train-{0..1}.tar", "tar"),
            (write_lmdb, "a", "lmdb"),
            (write_columns, "", "mds"),
            (write_tar, "train-1.tar", "tar"),
            (write_tar, "", "tar"),
            (write_lmdb, "b/data.mdb", "lmdb"),
            (write_lmdb, "{a,b}", "lmdb"),
            (write_lmdb, "?", "lmdb"),
            (write_lines, "", "jsonl"),
        ],
    ),
)
def test_containers(
    s3: S3, tmp_path: Path, write: Callable[[Path], None], place: str, format: str
) -> None:
    """A container behind a URL has the samples, names, labels and batches of the same files on
    disk. Its saved index is used until an object is written to, and is made anew then."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    s3.put_folder(folder, "deep/er/")
    url = f"s3://{s3.name}/deep/er/{place}".rstrip("/")
    local, remote = penstock.open(folder / place, index="memory"), penstock.open(url)
    assert remote.index.format == local.index.format == format
    assert remote.fingerprint == local.fingerprint
    assert remote.fields == local.fields
    every = np.arange(len(local))
    assert remote.index.keys(every) == local.index.keys(every)
    assert [remote[i] for i in (0, 17, -1)] == [local[i] for i in (0, 17, -1)]
    for shuffle in ("none", "exact"):
        with (
            penstock.Loader(local, 16, seed=3, shuffle=shuffle) as near,
            penstock.Loader(remote, 16, seed=3, shuffle=shuffle) as far,
        ):
            assert rows_of(far) == rows_of(near)
            assert far.stats()["backend"] == "object"
            assert far.stats()["requests"] < len(remote)
    sidecar = Path(remote.sidecar or "")
    made_ns = sidecar.stat().st_mtime_ns
    assert penstock.open(url).fingerprint == remote.fingerprint
    assert sidecar.stat().st_mtime_ns == made_ns
    path, field = Path(local.index.files.path(0)), local.fields[0].name
    old = local[5][field]
    path.write_bytes(path.read_bytes().replace(old, old[::-1]))
    s3.put_folder(folder, "deep/er/")
    with pytest.raises(penstock.errors.ChangedError, match="written to"):
        remote[5]
    assert penstock.open(url)[5][field] == old[::-1]


@pytest.mark.long
@pytest.mark.parametrize("write", [write_lines, write_frames])
def test_fields_of_lines(s3: S3, tmp_path: Path, write: Callable[[Path], None]) -> None:
    """Fields are made of lines behind a URL as of those on disk, also of compressed ones; and a
    changed object is noticed, not mixed with what was indexed."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    s3.put_folder(folder, "lines/")
    local = penstock.open(folder, fields=["n", "text"], index="memory")
    remote = penstock.open(f"s3://{s3.name}/lines", fields=["n", "text"])
    assert list(remote) == list(local)
    with penstock.Loader(remote, 16, seed=3) as far, penstock.Loader(local, 16, seed=3) as near:
        for one, other in zip(far, near, strict=True):
            assert one == other
        path = min(folder.iterdir())
        path.write_bytes(path.read_bytes() + path.read_bytes())
        s3.put_folder(folder, "lines/")
        with pytest.raises(penstock.errors.ChangedError, match=re.escape(path.name)):
            list(far)
    # The first file ends without a newline, so that its last line and its first are one now.
    assert len(penstock.open(f"s3://{s3.name}/lines")) == 119


@pytest.mark.parametrize(("more", "requests"), [(-4096, 1), (4096, 2)])
def test_gaps(s3: S3, tmp_path: Path, more: int, requests: int) -> None:
    """Gaps between wanted bytes are read up to the limit, and skipped beyond it."""
    between = random_bytes(limits.object_gap_bytes + more, 1)
    members = {"a.wanted": b"one", "a.other": between, "b.wanted": b"two"}
    archive(tmp_path / "x.tar", members)
    s3.put_folder(tmp_path)
    remote = penstock.open(f"s3://{s3.name}/x.tar", fields=["wanted"])
    with penstock.Loader(remote, 2, shuffle="none") as loader:
        (batch,) = loader
        assert [bytes(row) for row in batch["wanted"]] == [b"one", b"two"]
        assert loader.stats()["requests"] == requests


def rows_of(loader: penstock.Loader) -> list[tuple[list[int], dict[str, list[bytes]]]]:
    """The samples of each batch, and the bytes of each field's rows."""
    return [
        (batch.ids.tolist(), {name: [bytes(row) for row in batch[name]] for name in batch})
        for batch in loader
    ]


@pytest.mark.long
@pytest.mark.wide
def test_resume(s3: S3, tmp_path: Path) -> None:
    """A run that stops after any step continues with the very next batch, on another world too."""
    s3.put_folder(tree(tmp_path / "data", 50))
    remote = penstock.open(f"s3://{s3.name}/")
    with penstock.Loader(remote, 8, seed=5) as loader:
        whole = bytes_of(loader)
    for stop in thinned(range(len(whole))):
        with penstock.Loader(remote, 8, seed=5) as first:
            iterator = iter(first)
            for _ in range(stop):
                next(iterator)
            state = first.state_dict()
        with penstock.Loader(remote, 8, seed=5) as second:
            second.load_state_dict(state)
            assert bytes_of(second) == whole[stop:]
        halves = []
        for rank in range(2):
            with penstock.Loader(
                remote, 4, seed=5, rank=rank, world_size=2, global_batch_size=None
            ) as half:
                half.load_state_dict(state)
                halves.append([ids for ids, _, _ in bytes_of(half)])
        dealt = [sorted(a + b) for a, b in zip(*halves, strict=True)]
        assert dealt == [sorted(ids) for ids, _, _ in whole[stop:]]


def test_matches_as_a_file_system(s3: S3, tmp_path: Path) -> None:
    """Patterns stand for the same names below a prefix and below a folder."""
    for name in ("a.bin", "b.txt", "x/a.bin", "x/y/c.bin", "x/y/[d].bin", "xy/a.bin", "x/.h.bin"):
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / name).write_bytes(b".")
    s3.put_folder(tmp_path)
    near, far = Posix(str(tmp_path / "p")), ObjectStore(f"s3://{s3.name}/p")
    for pattern in (
        *("*", "*.bin", "x*/a.bin", "**/*.bin", "x/**/*.bin", "x/**", "?.txt", "[!a].txt"),
        *("[a-b].*", "x/y/[[]d].bin", "{a,z}.bin", "{x,xy}/*.bin", "nothing*", "*/*/*"),
    ):
        assert far.match(pattern) == near.match(pattern), pattern


def test_parse(s3: S3) -> None:
    """Formats get ranges of each object in order of the files, and never those of two versions."""
    for number in range(5):
        s3.put(f"{number}", bytes([number]) * (100 + number))
    store = ObjectStore(f"s3://{s3.name}")
    files = store.stat(["3", "0", "4"])
    seen: list[int] = []
    parsed = store.parse(
        files,
        lambda number, source: (number, source.size, source.read(98, 50)),
        seen.append,
    )
    assert parsed == [(0, 103, b"\3" * 5), (1, 100, b"\0" * 2), (2, 104, b"\4" * 6)]
    assert seen[-1] == 3
    s3.put("0", b"x" * 100)
    for parse in (lambda _, source: source.read(0, 1), lambda _, __: None):
        with pytest.raises(penstock.errors.ChangedError, match="written to"):
            store.parse(files, parse)


@pytest.mark.long
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_worker_processes(s3: S3, tmp_path: Path, start: str) -> None:
    """Worker processes that are not forked read objects by themselves."""
    import penstock.torch.loader

    s3.put_folder(tree(tmp_path / "data", 12))
    remote = penstock.open(f"s3://{s3.name}")
    loader = penstock.torch.DataLoader(
        remote,
        batch_size=5,
        num_workers=1,
        workers="processes",
        multiprocessing_context=start,
        timeout=100,
    )
    rows = [label for batch in loader for label in batch["label"].tolist()]
    assert rows == [remote[number]["label"] for number in range(12)]


def test_forked_worker_processes(s3: S3, tmp_path: Path) -> None:
    """Forked worker processes are an error that says what to do, and no hang."""
    import penstock.torch.loader

    s3.put_folder(tree(tmp_path / "data", 12))
    loader = penstock.torch.DataLoader(
        penstock.open(f"s3://{s3.name}"),
        batch_size=5,
        num_workers=1,
        workers="processes",
        multiprocessing_context="fork",
        timeout=100,
    )
    with pytest.raises(penstock.PenstockError, match="spawn"):
        list(loader)


# -- changes ---------------------------------------------------------------------------------------


def test_changes_are_noticed_at_open(s3: S3, tmp_path: Path) -> None:
    """A saved index is used while nothing changed, and made anew when a file is added, removed or
    written to."""
    url = f"s3://{s3.name}/data"
    s3.put_folder(tree(tmp_path / "data", 12), "data/")
    first = penstock.open(url)
    sidecar = Path(first.sidecar or "")
    written = sidecar.stat().st_mtime_ns
    assert len(penstock.open(url)) == 12
    assert sidecar.stat().st_mtime_ns == written
    s3.put("data/class 2/new.bin", b"new")
    assert len(penstock.open(url)) == 13
    s3.put("data/class 2/new.bin", b"other")
    assert penstock.open(url)[12]["data"] in (b"other", penstock.open(url)[12]["data"])
    again = penstock.open(url)
    found = [again[i]["data"] for i in range(13)]
    assert max(map(len, found)) > 5
    assert b"other" in found
    s3.delete("data/class 2/new.bin")
    assert penstock.open(url).fingerprint == first.fingerprint


def test_changes_while_reading(s3: S3, tmp_path: Path) -> None:
    """A sample whose object was written to, or is gone, is an error that names it, not bytes."""
    s3.put_folder(tree(tmp_path / "data", 9), "data/")
    remote = penstock.open(f"s3://{s3.name}/data")
    name = remote.index.key(4)
    s3.put(f"data/{name}", random_bytes(int(remote.index.files.size[4]), 99))  # of the same size
    with pytest.raises(penstock.errors.ChangedError, match="written to"):
        remote[4]
    with (
        penstock.Loader(remote, 9) as loader,
        pytest.raises(penstock.errors.ChangedError) as caught,
    ):
        list(loader)
    assert name in str(caught.value)
    s3.delete(f"data/{name}")
    with pytest.raises(penstock.PenstockError, match="does not exist"):
        remote[4]
    with penstock.Loader(remote, 9) as loader, pytest.raises(penstock.errors.MissingError):
        list(loader)


def test_command_line(s3: S3, tmp_path: Path) -> None:
    """The command line describes and verifies data behind a URL."""
    s3.put_folder(tree(tmp_path / "data", 9), "data/")
    assert "tree" in run("inspect", f"s3://{s3.name}/data", "--verify").stdout


# -- faults ----------------------------------------------------------------------------------------

contents = {f"part {n}": random_bytes(30_000, n) for n in range(5)}
runs = [[(n, 5, 9000), (n, 20_000, 100)] for n in range(5)] + [
    [(n, 10_000, 20_000)] for n in (0, 3)
]


@pytest.mark.parametrize("fault", first(3, ["503", "reset", "short", "500", "stall"]))
def test_passing_faults(s3: S3, use: Use, fault: Fault) -> None:
    """Temporary failures are retried, and every byte arrives once and right."""
    with (
        Proxy(s3.port, always(fault, 2)) as proxy,
        engine_over(s3, contents, proxy.port, use, stall_s=1.0) as engine,
    ):
        reading = EngineRead(list(contents.values()), runs, 3)
        ticket = engine.submit(reading.requests, reading.buffers)
        reading.assert_done(finish(engine, [ticket])[ticket])
        assert engine.counters()["retries"] == 10
        assert engine.counters()["requests"] == len(runs) + 10


@pytest.mark.parametrize(
    ("fault", "code"),
    first(
        4,
        [
            ("503", errno.ETIMEDOUT),
            ("403", errno.EACCES),
            ("etag", errno.ESTALE),
            ("no-range", errno.ENOTSUP),
            ("404", errno.ENOENT),
            ("reset", errno.ETIMEDOUT),
            ("short", errno.ETIMEDOUT),
            ("stall", errno.ETIMEDOUT),
        ],
    ),
)
def test_lasting_faults(s3: S3, use: Use, fault: Fault, code: int) -> None:
    """Lasting failures are reported for their extents by name, in time; the others arrive."""

    def rule(method: str, path: str, before: int) -> Fault:
        return fault if method == "GET" and path.endswith("part%202") else None

    with (
        Proxy(s3.port, rule) as proxy,
        engine_over(s3, contents, proxy.port, use, stall_s=0.5, deadline_s=1.0) as engine,
    ):
        good = [run for run in runs if run[0][0] != 2]
        reading = EngineRead(list(contents.values()), good)
        bad = EngineRead(list(contents.values()), [[(2, 5, 9000), (2, 20_000, 100)]])
        tickets = [
            engine.submit(submission.requests, submission.buffers) for submission in (reading, bad)
        ]
        done = finish(engine, tickets)
        reading.assert_done(done[tickets[0]])
        assert done[tickets[1]].failures == (Failure(0, code, 0), Failure(1, code, 0))


def test_loader_through_faults(s3: S3, use: Use, tmp_path: Path) -> None:
    """A service that refuses, breaks off and stalls in turn gives the same batches, each once."""
    folder = tree(tmp_path / "data", 40)
    s3.put_folder(folder)
    faults: list[Fault] = ["503", "reset", "short", None]

    def rule(method: str, path: str, before: int) -> Fault:
        return faults[(sum(path.encode()) + before) % 4] if path.endswith(".bin") else None

    with Proxy(s3.port, rule) as proxy:
        use(proxy.port)
        remote = penstock.open(f"s3://{s3.name}")
        with (
            penstock.Loader(penstock.open(folder), 7) as near,
            penstock.Loader(remote, 7) as far,
        ):
            assert bytes_of(far) == bytes_of(near)
            assert far.stats()["retries"] > 20


def test_opening_through_faults(s3: S3, use: Use, tmp_path: Path) -> None:
    """Listing and asking for objects go on after what passes, too."""
    s3.put_folder(tree(tmp_path / "data", 9))
    with Proxy(s3.port, lambda _, __, before: "503" if before < 2 else None) as proxy:
        use(proxy.port)
        assert len(penstock.open(f"s3://{s3.name}")) == 9
        assert min(proxy.asked.values()) == 3


def test_close_does_not_wait_for_a_stall(s3: S3, use: Use) -> None:
    """Closing while answers stall returns soon, and nothing is written to the buffers after it."""
    with (
        Proxy(s3.port, always("stall")) as proxy,
        engine_over(s3, contents, proxy.port, use, stall_s=200.0) as engine,
    ):
        reading = EngineRead(list(contents.values()), runs)
        engine.submit(reading.requests, reading.buffers)
        assert engine.poll(100_000_000) == []
        started = time.monotonic()
        engine.close()
        assert time.monotonic() - started < 100
        proxy.release.set()
        reading.assert_untouched()


class Slow(np.ndarray[Any, Any]):
    """A buffer in memory that is slow to write to: a write waits for what the test decides."""

    written_to: threading.Event
    go_on: threading.Event

    def __setitem__(self, at: Any, values: Any) -> None:
        self.written_to.set()
        assert self.go_on.wait(60)
        super().__setitem__(at, values)


def test_close_waits_for_the_last_copy(s3: S3, use: Use) -> None:
    """Closing returns once a copy that had begun has ended, also where its ticket ends with it."""
    with engine_over(s3, contents, s3.port, use, budget=Budget(requests=1)) as engine:
        first, last = (EngineRead(list(contents.values()), [[(n, 0, 9000)]]) for n in range(2))
        slow = last.buffers[0] = last.buffers[0].view(Slow)
        slow.written_to, slow.go_on = threading.Event(), threading.Event()
        # Nobody polls: the engine alone holds the first buffer, until closing drops it. It does so
        # with the lock that the end of the copy takes as well, and then waits for that.
        weakref.finalize(first.buffers[0], slow.go_on.set)
        for reading in (first, last):
            engine.submit(reading.requests, reading.buffers)
        del first, reading
        assert slow.written_to.wait(60)
        assert not slow.go_on.is_set()
        closing = threading.Thread(target=engine.close, daemon=True)
        closing.start()
        closing.join(240)
        assert not closing.is_alive(), "closing waits for a copy that has ended"
        assert contents["part 1"][:9000] in slow.tobytes()


@stride(5)
def test_an_interrupted_close_closes_when_called_again(s3: S3, use: Use, stride: int) -> None:
    """Wherever it comes, with a request that waits and a copy under way that ends later."""
    place, interrupted = 0, True
    while interrupted:
        with engine_over(s3, contents, s3.port, use, budget=Budget(requests=1)) as engine:
            reading = EngineRead(list(contents.values()), [[(n, 0, 9000)] for n in range(2)])
            slow = reading.buffers[0] = reading.buffers[0].view(Slow)
            slow.written_to, slow.go_on = threading.Event(), threading.Event()
            engine.submit(reading.requests, reading.buffers)
            assert slow.written_to.wait(60)
            going_on = threading.Timer(0.01, slow.go_on.set)
            going_on.start()
            interrupted = interrupt(place, (remote, threads, threading), engine.close)
            end_in_thread(engine.close, place)
            going_on.join()
        place += stride
    assert place > 10


def test_an_interrupted_submit_leaves_the_engine_able_to_read(s3: S3, use: Use) -> None:
    """Wherever it comes in the engine itself; not in the pool of threads, which is Python's."""
    place, interrupted = 0, True
    while interrupted:
        with engine_over(s3, contents, s3.port, use, budget=Budget(requests=1)) as engine:
            lost, kept = (EngineRead(list(contents.values()), [[(n, 0, 9000)]]) for n in range(2))

            def submit(reading: EngineRead = lost, engine: RemoteEngine = engine) -> int:
                return engine.submit(reading.requests, reading.buffers)

            interrupted = interrupt(place, (remote, threads), submit)
            ticket = submit(kept)
            reports: dict[int, Completion] = {}
            deadline_s = time.monotonic() + 240
            while ticket not in reports:
                assert time.monotonic() < deadline_s, f"place {place}"
                reports |= {report.ticket: report for report in engine.poll(100_000_000)}
            kept.assert_done(reports[ticket])
        place += 1
    assert place > 10


def test_requests_in_flight(s3: S3, use: Use) -> None:
    """The budget's number of requests is in flight at once, and no more; it may change."""
    reading = EngineRead([contents["part 0"]], [[(0, 100 * n, 100)] for n in range(24)])
    with (
        Proxy(s3.port, always(None), meet=6) as proxy,  # answers once six have come
        engine_over(
            s3, {"one": contents["part 0"]}, proxy.port, use, budget=Budget(requests=6)
        ) as engine,
    ):
        ticket = engine.submit(reading.requests, reading.buffers)
        reading.assert_done(finish(engine, [ticket])[ticket])
        assert proxy.peak == 6
        engine.adopt(Budget(requests=12))
        again = EngineRead([contents["part 0"]], [[(0, 100 * n, 100)] for n in range(24)])
        ticket = engine.submit(again.requests, again.buffers)
        again.assert_done(finish(engine, [ticket])[ticket])
        assert proxy.peak <= 12
        assert engine.choice.threads == 12


def test_bytes_in_flight(s3: S3, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers on their way are bounded in bytes too, and all arrive in the end."""
    monkeypatch.setattr(limits, "object_inflight_bytes", 25_000)
    with (
        Proxy(s3.port, always(None)) as proxy,
        engine_over(s3, contents, proxy.port, use) as engine,
    ):
        reading = EngineRead(list(contents.values()), [[(n % 5, 0, 10_000)] for n in range(40)])
        ticket = engine.submit(reading.requests, reading.buffers)
        reading.assert_done(finish(engine, [ticket])[ticket])
        assert 1 <= proxy.peak <= 2


def test_bandwidth(s3: S3, use: Use) -> None:
    """Requests are not asked for faster than the budget's rate."""
    budget = Budget(bytes_per_s=100_000)
    with engine_over(s3, contents, s3.port, use, budget=budget) as engine:
        reading = EngineRead(list(contents.values()), [[(n, 0, 10_000)] for n in range(5)])
        started = time.monotonic()
        ticket = engine.submit(reading.requests, reading.buffers)
        reading.assert_done(finish(engine, [ticket])[ticket])
        assert time.monotonic() - started >= 0.4


def test_long_extent_is_asked_for_in_parts(s3: S3, use: Use) -> None:
    """An extent above the longest run is several requests, of which the first failure counts."""
    size = 2 * limits.run_bytes_max + 100

    def rule(method: str, path: str, before: int) -> Fault:
        return "etag" if method == "GET" and before >= 1 else None

    with (
        Proxy(s3.port, rule) as proxy,
        engine_over(
            s3, {"long": random_bytes(size, 1)}, proxy.port, use, budget=Budget(requests=1)
        ) as engine,
    ):
        reading = EngineRead([random_bytes(size, 1)], [[(0, 0, size)]])
        ticket = engine.submit(reading.requests, reading.buffers)
        (failure,) = finish(engine, [ticket])[ticket].failures
        assert failure == Failure(0, errno.ESTALE, limits.run_bytes_max)


def test_after_fork(s3: S3) -> None:
    """A forked child is told why it cannot read, instead of waiting for ever."""
    s3.put("x.bin", b"x" * 64)
    remote = penstock.open(f"s3://{s3.name}/x.bin", record_bytes=64)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            remote[0]
        except penstock.errors.ForkError as error:
            code = 0 if "spawn" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_program_ends_with_work_in_flight(s3: S3, use: Use) -> None:
    """A program that ends without closing anything ends, and cleanly."""
    s3.put("x.bin", random_bytes(64_000, 1))
    code = (
        "import penstock\n"
        f"data = penstock.open('s3://{s3.name}/x.bin', record_bytes=64, index='memory')\n"
        "loader = penstock.Loader(data, 4, shuffle='none')\n"
        "print(len(next(iter(loader)).ids))\n"
    )
    done = warm.run(
        [sys.executable, "-c", code],
        env=os.environ | _path(),
        capture_output=True,
        timeout=240,
        lean=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"4\n", b"")


def _path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


# -- HTTP ------------------------------------------------------------------------------------------


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL of a server of its files; write to it before the first use."""
    (tmp_path / "web" / "site").mkdir(parents=True)
    for name in ("a b.bin", "c.bin", "d%20e.bin"):
        (tmp_path / "web" / "site" / name).write_bytes(random_bytes(6400, len(name)))
    (tmp_path / "web" / "site" / "empty").write_bytes(b"")
    with object_server("--folder", str(tmp_path / "web"), "--delay-ms", "0") as port:
        yield tmp_path / "web", f"http://127.0.0.1:{port}/site"


def test_http(web: tuple[Path, str], use: Use) -> None:
    """A file of a web server is read in ranges, by the bytes of its URL."""
    folder, url = web
    remote = penstock.open(f"{url}/a%20b.bin", record_bytes=64)
    local = penstock.open(folder / "site" / "a b.bin", record_bytes=64, index="memory")
    assert remote.fingerprint == local.fingerprint
    with penstock.Loader(local, 9) as near, penstock.Loader(remote, 9) as far:
        for here, there in zip(near, far, strict=True):
            np.testing.assert_array_equal(here["data"], there["data"])
    both = penstock.open([f"{url}/a%20b.bin", f"{url}/c.bin"], record_bytes=64)
    assert len(both) == 200
    odd = penstock.open(f"{url}/d%2520e.bin", record_bytes=64)
    assert odd[0]["data"].tobytes() == (folder / "site" / "d%20e.bin").read_bytes()[:64]
    assert len(penstock.open(odd.path, record_bytes=64)) == 100


def test_http_refuses_what_it_cannot(web: tuple[Path, str], use: Use) -> None:
    """Listing the folder of a web server, or a file that is not there, is a named error."""
    _, url = web
    with pytest.raises(penstock.errors.UsageError, match="name files"):
        penstock.open(f"{url}/")
    with pytest.raises(penstock.errors.UsageError, match="name files"):
        penstock.open(f"{url}/*.bin", record_bytes=64)
    with pytest.raises(penstock.errors.MissingError):
        penstock.open(f"{url}/nothing.bin", record_bytes=64)
    files = ObjectStore(url).stat(["empty"])
    assert files.size.tolist() == [0]


def test_http_without_ranges(tmp_path: Path, use: Use) -> None:
    """A server that always sends whole files is refused by that name."""
    (tmp_path / "x.bin").write_bytes(b"x" * 640)
    code = (
        "import http.server, os, sys, threading\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "handler = http.server.SimpleHTTPRequestHandler\n"
        "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "print(server.server_address[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with (
        served([sys.executable, "-c", code]) as port,
        pytest.raises(penstock.errors.StorageError, match="ranges"),
    ):
        penstock.open(f"http://127.0.0.1:{port}/x.bin", record_bytes=64)


# -- secrets ---------------------------------------------------------------------------------------


def test_secrets_of_a_url_stay_inside(web: tuple[Path, str], use: Use, tmp_path: Path) -> None:
    """User, password and signature of a URL are used, and are in no path, sidecar or error."""
    _, url = web
    secret = url.replace("://", "://user:pass1234@") + "/c.bin?X-Amz-Signature=abcd1234"
    with Proxy(int(url.rpartition(":")[2].split("/")[0]), lambda *_: None) as proxy:
        secret = secret.replace(url.split("/")[2], f"127.0.0.1:{proxy.port}")
        remote = penstock.open(secret, record_bytes=64)
        assert len(remote[3]["data"]) == 64
        assert all("X-Amz-Signature=abcd1234" in path for _, path in proxy.asked)
    texts = [remote.path, repr(remote), remote.index.files.root, remote.index.where(3)]
    texts += [path.read_bytes().decode("latin1") for path in (tmp_path / "cache").rglob("*.*")]
    assert len(texts) == 5
    # The server is gone: an error of the connection, whose text in the library has the whole URL.
    deadline = limits.object_listing_deadline_s
    try:
        limits.object_listing_deadline_s = 0.2
        with pytest.raises(penstock.errors.StorageError) as caught:
            remote[3]
    finally:
        limits.object_listing_deadline_s = deadline
    texts += ["".join(traceback.format_exception(caught.value))]
    for text in texts:
        assert "pass1234" not in text
        assert "abcd1234" not in text
        assert "user" not in text


@pytest.mark.parametrize("fault", ["403", "503", "404", "short"])
def test_errors_hold_no_keys(
    s3: S3, use: Use, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service's text is not repeated, because it may contain keys; its status and code are."""
    monkeypatch.setattr(limits, "object_listing_deadline_s", 0.2)
    s3.put("x.bin", b"x" * 64)
    with Proxy(s3.port, lambda *_: fault) as proxy:
        use(proxy.port)
        with pytest.raises(penstock.PenstockError) as caught:
            penstock.open(f"s3://{s3.name}/x.bin", record_bytes=64)
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert fault == "short" or str(fault) in text
    assert SECRET not in text
    assert KEY not in text
    assert s3.name in text


def test_credentials_in_other_urls_are_refused() -> None:
    """Keys before the name of a bucket are not used, not saved and not shown."""
    with pytest.raises(penstock.errors.UsageError) as caught:
        penstock.open("s3://AKIA123:hidden456@bucket/x")
    assert "hidden456" not in str(caught.value)


# -- places ----------------------------------------------------------------------------------------


def test_missing_obstore(tmp_path: Path) -> None:
    """Without obstore the error says what to install."""
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "import penstock\n"
        "try: penstock.open('s3://bucket/x')\n"
        "except penstock.errors.UsageError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | _path(), capture_output=True, text=True
    )
    assert "needs obstore: pip install obstore (or 'penstock[cloud]')" in done.stdout, done.stderr


def test_locations() -> None:
    """URLs are taken apart into the bucket and the key, in clear."""
    assert parse_object_url("s3://b/x/y z") == ("s3://b", "x/y z")
    assert parse_object_url("GS://b") == ("gs://b", "")
    assert parse_object_url("https://h:1/a%20b?x=1").url == "https://h:1/a%20b"
    assert parse_object_url("https://h:1/a%20b?x=1").key == "a b"
    assert parse_object_url("https://h/a%25b-{0..3}.bin").url == "https://h/a%25b-{0..3}.bin"
    for wrong in ("ftp://h/x", "s3://", "s3:///x", "http:///x"):
        with pytest.raises(penstock.errors.UsageError):
            parse_object_url(wrong)


def test_other_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """gs:// and az:// open; an account that is missing, or no server there, is a named error."""
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    Bucket("gs://bucket")
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(penstock.errors.UsageError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        Bucket("az://container")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    Bucket("az://container")


def test_nothing_there(s3: S3) -> None:
    """A key, prefix, pattern or bucket that is not there is missing, by its URL."""
    s3.put("x/y.bin", b"x" * 64)
    for url in (f"s3://{s3.name}/z", f"s3://{s3.name}/x/", "s3://no-such-bucket-here/x"):
        if url.endswith("/x/"):
            assert len(penstock.open(url)) == 1
            continue
        with pytest.raises(penstock.errors.MissingError, match=url):
            penstock.open(url)
    with pytest.raises(penstock.errors.MissingError, match="matches no files"):
        penstock.open(f"s3://{s3.name}/x/*.tar", record_bytes=64)


@pytest.mark.long
def test_many_names_are_listed(s3: S3, use: Use) -> None:
    """Many files of a folder are described by its listing, not one by one."""
    names = [f"d/{n:03d}" for n in range(150)]
    for name in names:
        s3.put(name, name.encode())
    with Proxy(s3.port, always(None)) as proxy:
        use(proxy.port)
        files = ObjectStore(f"s3://{s3.name}").stat(names)
        assert len(proxy.asked) == 1
        few = ObjectStore(f"s3://{s3.name}").stat(names[:5])
    assert files.size[:5].tolist() == few.size.tolist() == [5] * 5
    assert files.mtime_ns[:5].tolist() == few.mtime_ns.tolist()


def test_versions() -> None:
    """An etag is the same however it is quoted; a time stands in where there is none."""
    assert (
        compute_version('"abc"', "x")
        == compute_version("abc", "y")
        == compute_version('W/"abc"', "")
    )
    assert compute_version(None, "x") != compute_version(None, "y")
    assert 0 <= compute_version("abc", "") < 1 << 63


def test_aws_profile(tmp_path: Path) -> None:
    """Keys, region and endpoint come from ~/.aws as far as the environment does not say them."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = B\n[other]\nregion = eu\n"
    )
    (tmp_path / "config").write_text("[default]\nregion = us\nendpoint_url = http://e\n")
    files = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }
    keys = {"access_key_id": "A", "secret_access_key": "B", "region": "us", "endpoint": "http://e"}
    assert read_aws_profile(files) == keys
    assert read_aws_profile(files | {"AWS_PROFILE": "other"}) == {"region": "eu"}
    environment = files | {"AWS_ACCESS_KEY_ID": "C", "AWS_REGION": "x"}
    assert read_aws_profile(environment) == {"endpoint": "http://e"}
    (tmp_path / "config").write_text("no section\n")
    with pytest.raises(penstock.errors.UsageError, match="AWS settings"):
        read_aws_profile(files)


@pytest.mark.parametrize("format", ["jsonl", "tree", "tar", "parquet", "npz"])
def test_splits_in_a_bucket_are_asked_for(s3: S3, tmp_path: Path, format: str) -> None:
    """As in a folder: by folders and by names; a split has its own samples alone."""
    for split, count in (("train", 3), ("validation", 2)):
        for style in (f"by-folder/{split}/part", f"by-name/{split}-00000"):
            place = write_split(tmp_path / style, format, split, count)
            if place.is_dir():
                s3.put_folder(place, f"{style}/")
            else:
                s3.put(place.relative_to(tmp_path).as_posix(), place.read_bytes())
    for style in ("by-folder", "by-name"):
        url = f"s3://{s3.name}/{style}"
        more = {"fields": ["text"]} if format == "jsonl" else {}
        with pytest.raises(
            penstock.errors.UsageError, match=r"train .*, val .*: give split='train'"
        ):
            penstock.open(url, index="memory", **more)
        for split, count in (("train", 3), ("validation", 2), ("", 5)):
            npz = {"sample": "row"} if format == "npz" else {}
            split = split.replace("validation", "val")
            assert len(penstock.open(url, index="memory", split=split, **more, **npz)) == count


def write_split(path: Path, format: str, split: str, count: int) -> Path:
    """Write so many samples as a file, or a folder, of that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"{split} {number}" for number in range(count)]
    if format == "tree":
        path.mkdir()
        for text in texts:
            (path / f"{text}.jpg").write_text(text)
        return path
    path = path.with_name(f"{path.name}.{format}")
    if format == "jsonl":
        path.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    elif format == "parquet":
        parquet.write_table(pa.table({"text": texts}), path)
    elif format == "npz":
        np.savez(path, x=np.arange(count))
    else:
        with tarfile.open(path, "w") as archive:
            for text in texts:
                info = tarfile.TarInfo(f"{text}.txt")
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
    return path
