"""Checkpoints in object stores: committed whole or not at all, whatever the service does."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("obstore")
pytest.importorskip("moto")
from penstock import limits
from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.loading import verify_checkpoint
from penstock.checkpoint.manifest import CheckpointIndex, ShardEntry, seal
from penstock.checkpoint.object_repository import Claim, Prefix
from penstock.checkpoint.retention import delete_old_after_commit
from penstock.checkpoint.shards import Flush
from penstock.errors import FormatError, MissingError, PenstockError, StorageError, UsageError
from tests import warm
from tests.checkpoint.rank_threads import run_job, save_unequal
from tests.command import run
from tests.services import S3, SECRET, Fault, Proxy, environment, moto
from tests.slices import first, fraction, scaled, thinned

SHORT_S = 4
"""A deadline for what fails, which nothing that works misses on a busy machine."""

LARGE = limits.object_part_bytes // 8 * 5 // 2
"""Elements of a state that is uploaded in parts."""


@pytest.fixture(scope="module")
def service() -> Iterator[int]:
    with moto() as port:
        yield port


class Place:
    """A prefix of a bucket of the test's own, and the objects in it."""

    def __init__(self, service: int, name: str, use: Callable[[int], None]) -> None:
        use(service)
        self.service, self.use = service, use
        self.bucket = S3(service, name)
        self.url = f"s3://{name}/run"

    def objects(self) -> dict[str, int]:
        """List the names below the prefix, and their sizes."""
        found = [each for part in self.bucket._store.list("run/") for each in part]
        return {each["path"].removeprefix("run/"): each["size"] for each in found}

    def read(self, name: str) -> bytes:
        return bytes(self.bucket._store.get(f"run/{name}").bytes())

    def put(self, name: str, data: bytes) -> None:
        self.bucket.put(f"run/{name}", data)

    def uploads(self) -> int:
        """List the uploads in parts that were begun, and neither finished nor given up."""
        connection = http.client.HTTPConnection("127.0.0.1", self.service)
        connection.request("GET", f"/{self.bucket.name}?uploads")
        said = connection.getresponse().read().decode()
        connection.close()
        return said.count("<Upload>")

    @contextmanager
    def through(self, rule: Callable[[str, str, int], Fault]) -> Iterator[Proxy]:
        """Send the requests of stores that are opened meanwhile through a proxy."""
        with Proxy(self.service, rule) as proxy:
            self.use(proxy.port)
            yield proxy
            self.use(self.service)


@pytest.fixture
def place(service: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Place:
    def use(port: int) -> None:
        for name, value in environment(port).items():
            monkeypatch.setenv(name, value)

    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")
    return Place(service, f"{name[:40].strip('-')}-{os.urandom(3).hex()}", use)


def state(step: int, size: int = 100) -> dict[str, Any]:
    return {"a": np.arange(size) + step, "n": step}


def equal(found: Any, step: int, size: int = 100) -> bool:
    return found["n"] == step and np.array_equal(found["a"], np.arange(size) + step)


def saved(url: str | Path, *steps: int, size: int = 100) -> None:
    with Checkpoints(url) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step, size), loader={"at": step})


# -- what works ------------------------------------------------------------------------------------


def test_ranks_that_differ(place: Place) -> None:
    """Nothing is committed of a state that differs between ranks; each rank's own value is."""
    assert run_job(place.url, 2, save_unequal) == [[2], [2]]
    assert len([name for name in place.objects() if name.endswith(".shard")]) == 2


@pytest.mark.parametrize("size", first(1, [100, 0, LARGE]))
def test_saves_and_loads(place: Place, size: int) -> None:
    with Checkpoints(place.url, keep=2) as checkpoints:
        assert checkpoints.latest() is None
        for step in range(4):
            checkpoints.save(step, state(step, size), loader={"at": step})
        saved = checkpoints.wait()
        assert saved is not None
        assert saved.path.startswith(f"{place.url}/step-3.")
        assert checkpoints.steps() == [2, 3]
        assert checkpoints.folder.leftovers() == []
    for step in (2, 3):
        found = load(place.url + "/", step)
        assert equal(found.state, step, size)
        assert found.loader == {"at": step}
    names = sorted(place.objects())
    # a claim; two of four checkpoints, and their shards
    assert [name for name in names if "/" not in name] == [
        "00000001.index",
        "00000004.index",
        "00000005.index",
    ]
    assert len(names) == 5
    assert place.uploads() == 0


def test_a_bucket_without_a_prefix(place: Place) -> None:
    url = f"s3://{place.bucket.name}"
    saved(url, 1)
    assert load(url).step == 1


ACTS = st.one_of(st.integers(0, 5), st.sampled_from(["open", "fail"]))


@settings(fraction(5), suppress_health_check=list(HealthCheck))
@given(st.lists(ACTS, min_size=1, max_size=8), st.integers(2, 4))
def test_is_what_a_folder_is(
    place: Place, tmp_path_factory: pytest.TempPathFactory, acts: list[Any], keep: int
) -> None:
    """Saves of any steps, some that fail, and jobs that begin anew commit the same as in a
    folder."""
    url, folder = f"{place.url}/{os.urandom(4).hex()}", tmp_path_factory.mktemp("oracle")
    homes = [Checkpoints(each, keep=keep) for each in (url, folder)]
    for act in acts:
        for number, checkpoints in enumerate(homes):
            if act == "open":
                checkpoints.close()
                homes[number] = Checkpoints((url, folder)[number], keep=keep)
            elif act == "fail":
                with pytest.raises(UsageError):
                    checkpoints.save(9, {"x": object()})
            else:
                checkpoints.save(act, state(act))
                checkpoints.wait()
        ours, theirs = homes
        assert ours.steps() == theirs.steps()
        assert ours.folder.leftovers() == []
        if theirs.steps():
            assert equal(ours.load().state, theirs.load().state["n"])
    for checkpoints in homes:
        checkpoints.close()


def test_a_file_is_put_as_it_is(place: Place, tmp_path: Path) -> None:
    home = Prefix.open(place.url)
    begun = home.start_attempt(3, "abc")
    for size in (0, 1, limits.object_part_bytes, 5 * limits.object_part_bytes // 2 + 1):
        data = np.random.default_rng(size).bytes(size)
        (tmp_path / "file").write_bytes(data)
        with Flush(Budget()) as flush:
            home.write_shard(begun, "rank-0.shard", str(tmp_path / "file"), flush)
        assert place.read("step-3.abc/rank-0.shard") == data
    assert home.leftovers() == [begun]
    with Flush(Budget()) as flush, pytest.raises(MissingError, match="nowhere"):
        home.write_shard(begun, "rank-1.shard", str(tmp_path / "nowhere"), flush)
    home.abandon(begun)
    assert place.objects() == {}


@pytest.mark.long
def test_many_jobs_one_after_the_other(place: Place) -> None:
    """Each job claims a number; not all claims stay."""
    for step in range(limits.checkpoint_claims + 4):
        saved(place.url, step)
    names = [name for name in place.objects() if "/" not in name]
    assert len(names) == limits.checkpoint_claims + 3
    assert Prefix.open(place.url).entry().step == limits.checkpoint_claims + 3


def test_through_dcp(place: Place) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from penstock.checkpoint.dcp import Reader, Storage

    with Storage(place.url, keep=2) as storage:
        for step in range(3):
            model = {"w": torch.full((1000,), float(step)), "n": step}
            writer = storage.writer(step, loader={"at": step})
            dcp.async_save(model, storage_writer=writer).result()
        with pytest.raises(dcp.api.CheckpointException, match="step|unsupported|pickle"):
            dcp.save({"x": (lambda: 0)}, storage_writer=storage.writer(7))
    found = {"w": torch.zeros(1000), "n": -1}
    reader = Reader(place.url)
    dcp.load(found, storage_reader=reader)
    assert found["n"] == 2
    assert torch.equal(found["w"], torch.full((1000,), 2.0))
    assert reader.loader == {"at": 2}
    assert [entry.step for entry in Prefix.open(place.url).entries()] == [1, 2]
    assert Prefix.open(place.url).leftovers() == []


@pytest.mark.long
def test_through_dcp_by_two_ranks(place: Place) -> None:
    pytest.importorskip("torch")
    script = Path(__file__).with_name("dcp_programs_objects.py")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = warm.run(
        [sys.executable, str(script), place.url, str(port)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    home = Prefix.open(place.url)
    assert [entry.step for entry in home.entries()] == [1, 2]
    shards = home.read_index(home.entry()).shards
    assert len(shards) == 2
    assert min(shard.bytes for shard in shards) > 8 << 20  # written once, by both
    assert home.leftovers() == []


@pytest.mark.long
def test_by_the_command(place: Place) -> None:
    saved(place.url, 10, 20, 30, size=1000)
    place.put("step-40.abc/rank-0.shard", b"x")
    lines = run("checkpoint", "list", place.url).stdout.splitlines()
    assert [line.split()[0] for line in lines if "KiB" in line] == ["10", "20", "30"]
    assert "step-40.abc: on its way, or left by a job that was killed" in lines
    assert run("checkpoint", "verify", place.url).stdout.count("whole") == 3
    said = run("checkpoint", "prune", place.url, "--keep", 2).stdout
    assert "step-10" in said
    assert "step-40.abc stays: a job may be writing it" in said
    said = run("checkpoint", "prune", place.url, "--keep", 2, "--leftovers").stdout
    assert said.strip() == "step-40.abc is removed"
    found = json.loads(run("checkpoint", "list", place.url, "--json").stdout)
    assert [row["step"] for row in found["checkpoints"]] == [20, 30]
    assert found["leftovers"] == []
    assert all(row["committed"] > 1e9 for row in found["checkpoints"])
    place.put("00000004.index", b"x")
    assert "1 of 2 checkpoints are damaged" in run("checkpoint", "verify", place.url, code=1).stderr


# -- two jobs --------------------------------------------------------------------------------------


def test_the_job_before_commits_nothing_more(place: Place) -> None:
    with Checkpoints(place.url) as before, Checkpoints(place.url) as after:
        before.save(1, state(1))
        with pytest.raises(UsageError, match="another job has taken it over"):
            before.wait()
        after.save(2, state(2))
        after.wait()
        before.save(3, state(3))
        with pytest.raises(UsageError, match="nothing was committed"):
            before.wait()
        assert after.steps() == [2]
        assert after.folder.leftovers() == []


def test_taken_over_at_the_last_moment(place: Place) -> None:
    """Another job begins, and removes the shards of the first as leftovers, while the first has
    checked that it may commit and its request to do so is on the way: nothing is committed."""
    others: list[Checkpoints] = []

    def rule(method: str, path: str, before: int) -> Fault:
        if method == "PUT" and "00000002.index" in path:
            place.use(place.service)
            others.append(Checkpoints(place.url))
        return None

    with place.through(rule):
        before = Checkpoints(place.url)
        before.save(1, state(1))
        with pytest.raises(UsageError, match="another job has taken it over"):
            before.wait()
        before.close()
    (after,) = others
    assert after.steps() == []
    after.save(2, state(2))
    after.close()
    assert [entry.step for entry in Prefix.open(place.url).entries()] == [2]
    assert equal(load(place.url).state, 2)


def test_committed_at_the_last_moment(place: Place) -> None:
    """The first job commits after the other one has read which number is next: the other takes the
    number after that, and removes nothing that was committed."""
    before = Checkpoints(place.url)

    def rule(method: str, path: str, asked: int) -> Fault:
        if method == "PUT" and "00000002.index" in path and not asked:
            before.save(1, state(1))
            before.wait()
        return None

    with place.through(rule):
        after = Checkpoints(place.url)
        assert after.steps() == [1]
        assert equal(after.load().state, 1)
        after.save(2, state(2))
        after.close()
    before.close()
    assert Prefix.open(place.url).leftovers() == []


def test_collected_after_another_job_began(place: Place) -> None:
    """A job that is slow to remove leftovers does not take for them what a job makes that has begun
    since: that one commits it."""
    later: list[Any] = []
    attempt = f"{place.url}/step-1.0b0b0b0b1"

    def rule(method: str, path: str, before: int) -> Fault:
        if method == "GET" and "delimiter" in path and before == 1:  # for leftovers
            place.use(place.service)
            job = Prefix.open(place.url)
            later[:] = [job, job.lock(b"0b0b0b0b")]
            place.put("step-1.0b0b0b0b1/rank-0.shard", b"under way")
        return None

    with place.through(rule):
        slow = Checkpoints(place.url)
        assert len(later) == 2
        job, lock = later
        assert place.read("step-1.0b0b0b0b1/rank-0.shard") == b"under way"
        shards = (ShardEntry("rank-0.shard", len(b"under way"), 0),)
        job.commit(attempt, CheckpointIndex(1, "0b0b0b0b1", 1, "other", shards, {}), lock)
        slow.save(2, state(2))
        with pytest.raises(UsageError, match="another job has taken it over"):
            slow.close()


def test_thinned_after_another_job_began(place: Place) -> None:
    """A job that is slow to remove old checkpoints removes none of a job that keeps more."""
    with Checkpoints(place.url, keep=2) as before:
        before.save(1, state(1))
        saved = before.wait()
        assert saved is not None
        with Checkpoints(place.url, keep=10) as after:
            for step in (2, 3, 4):
                after.save(step, state(step))
                after.wait()
            delete_old_after_commit(before.folder, 2, saved.path)
            assert after.steps() == [1, 2, 3, 4]


def test_requests_that_are_late(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commits have no answer, and the first turns out to be done: the job goes on after it,
    as nobody has taken over."""
    monkeypatch.setattr(limits, "object_deadline_s", 0.5)
    sent: list[bytes] = []

    def rule(method: str, path: str, before: int) -> Fault:
        return "reset" if method == "PUT" and "00000002.index" in path else None

    with place.through(rule):
        lock = Prefix.open(place.url).lock(b"0b0b0b0b")
        assert isinstance(lock, Claim)
        for number in (1, 2):
            sent.append(seal("claim", {"try": number}))
            with pytest.raises(StorageError):
                lock.append(sent[-1])
        place.put("00000002.index", sent[0])
        lock.check()
        assert lock.append(b"the next") == 3


@pytest.mark.parametrize(("jobs", "times"), first(1, [(2, 4), (2, 10), (4, 10)]))
def test_jobs_that_contend(place: Place, jobs: int, times: int) -> None:
    """Jobs take over from each other all the time: the checkpoints that saves report exist,
    whole."""

    def contend(job: int) -> set[int]:
        committed = set()
        for step in range(job * 100, job * 100 + times):
            with (
                Checkpoints(place.url, keep=1000) as checkpoints,
                contextlib.suppress(UsageError),
            ):
                for each in (step, step + 1000):
                    checkpoints.save(each, state(each))
                    checkpoints.wait()
                    committed.add(each)
        return committed

    with ThreadPoolExecutor(jobs) as threads:
        committed = set().union(*threads.map(contend, range(jobs)))
    home = Prefix.open(place.url)
    assert sorted(committed) == sorted(entry.step for entry in home.entries())
    assert 0 < len(committed) < 2 * jobs * times
    for entry in home.entries():
        verify_checkpoint(home, entry)


@pytest.mark.parametrize("how", ["501", "no-condition"])
def test_a_service_without_conditions(place: Place, how: Fault) -> None:
    """The warning comes once; a job that was replaced is noticed before its commit."""

    def rule(method: str, path: str, before: int) -> Fault:
        return how if method == "PUT" else None

    with place.through(rule):
        with pytest.warns(RuntimeWarning, match="If-None-Match"):
            before = Checkpoints(place.url)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            before.save(1, state(1))
            before.wait()
        with pytest.warns(RuntimeWarning, match="If-None-Match"):
            after = Checkpoints(place.url)
        before.save(2, state(2))
        with pytest.raises(UsageError, match="another job has taken it over"):
            before.wait()
        after.save(3, state(3))
        after.wait()
        assert after.steps() == [1, 3]
        before.close()
        after.close()


@pytest.mark.parametrize(
    ("ranks", "victim", "least"), first(0, [(1, 0, 15), (2, 1, 10), (2, 0, 20)], extra=2)
)
@pytest.mark.long
def test_killed_at_every_boundary(ranks: int, victim: int, least: int) -> None:
    """A kill at each request that writes or removes, and each message, of two saves leaves a good
    checkpoint. A rank that is alone sends no messages."""
    found = crashes("boundaries", ranks, victim)
    assert found["wrong"] == []
    assert found["committed"] == 2
    assert found["boundaries"] > least


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ranks", "kills"),
    first(0, [(2, scaled(100)), (1, scaled(100))], extra=1),
)
def test_killed_at_any_time(ranks: int, kills: int) -> None:
    """A kill of one rank or all, at random times of a job that uploads most of the time, leaves a
    good checkpoint."""
    found = crashes("random", ranks, kills)
    assert found["wrong"] == []
    assert found["cut off"] > 0


def crashes(*words: object) -> Any:
    """Run a crash campaign in a process of its own, because it forks."""
    script = Path(__file__).with_name("crashes_objects.py")
    command = [sys.executable, str(script), *map(str, words)]
    done = warm.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- what a service does ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", first(1, ["lost", "503", "500", "reset"]))
@pytest.mark.parametrize("size", first(1, [100, LARGE]))
def test_asked_again(place: Place, fault: Fault, size: int) -> None:
    """Each request that writes or removes is refused, or its answer lost, the first time: it is
    sent again."""

    def rule(method: str, path: str, before: int) -> Fault:
        return fault if method != "GET" and before == 0 else None

    with place.through(rule) as proxy, Checkpoints(place.url, keep=2) as checkpoints:
        for step in range(3):
            checkpoints.save(step, state(step, size))
            checkpoints.wait()
        assert checkpoints.steps() == [1, 2]
        assert max(proxy.asked.values()) > 1
    assert equal(load(place.url).state, 2, size)
    assert Prefix.open(place.url).leftovers() == []


@pytest.mark.parametrize(
    ("size", "what", "fault"),
    first(
        1,
        [(100, "shard", "reset"), (100, "index", "503"), (100, "shard", "403")]
        + [(100, what, fault) for what, fault in (("shard", "503"), ("index", "reset"))]
        + [(100, "index", "403"), (LARGE, "shard", "403")]
        + [(LARGE, "index", fault) for fault in ("503", "reset", "403")]
        + [(LARGE, "shard", fault) for fault in ("503", "reset")],
    ),
)
def test_refused_for_good(
    place: Place, monkeypatch: pytest.MonkeyPatch, size: int, what: str, fault: Fault
) -> None:
    """Nothing is committed, no secret is in the error, and the next save succeeds."""
    monkeypatch.setattr(limits, "object_deadline_s", SHORT_S)
    failing = False

    def rule(method: str, path: str, before: int) -> Fault:
        return fault if failing and method != "GET" and f".{what}" in path else None

    with place.through(rule), Checkpoints(place.url) as checkpoints:
        checkpoints.save(1, state(1, size))
        checkpoints.wait()
        failing = True
        checkpoints.save(2, state(2, size))
        with pytest.raises(StorageError) as caught:
            checkpoints.wait()
        assert caught.value.errno == (errno.EACCES if fault == "403" else errno.ETIMEDOUT)
        assert "save again" in str(caught.value)
        assert place.url in str(caught.value)
        assert SECRET not in str(caught.value)
        assert checkpoints.steps() == [1]
        failing = False
        checkpoints.save(3, state(3, size))
        checkpoints.wait()
        assert checkpoints.steps() == [1, 3]
        assert equal(checkpoints.load().state, 3, size)
        if fault != "503" or what != "shard" or size == 100:
            assert place.uploads() == 0
    saved(place.url, 4)
    assert Prefix.open(place.url).leftovers() == []


def test_committed_without_an_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job gets an error; the checkpoint exists, and the next one comes after it."""
    monkeypatch.setattr(limits, "object_deadline_s", SHORT_S)

    def rule(method: str, path: str, before: int) -> Fault:
        if "00000003.index" not in path:
            return None
        return "lost" if method == "PUT" else "reset" if before < 30 else None

    with place.through(rule), Checkpoints(place.url) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.wait()
        checkpoints.save(2, state(2))
        with pytest.raises(StorageError, match="save again"):
            checkpoints.wait()
    with Checkpoints(place.url) as checkpoints:
        assert checkpoints.steps() == [1, 2]
        assert equal(checkpoints.load().state, 2)


def test_the_next_save_finds_what_was_not_answered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "object_deadline_s", SHORT_S)
    silent = True

    def rule(method: str, path: str, before: int) -> Fault:
        if not silent or "00000002.index" not in path:
            return None
        return "lost" if method == "PUT" and before == 0 else "reset"

    with place.through(rule), Checkpoints(place.url) as checkpoints:
        checkpoints.save(1, state(1))
        with pytest.raises(StorageError):
            checkpoints.wait()
        silent = False
        checkpoints.save(2, state(2))
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2]
        assert equal(checkpoints.load(1).state, 1)
        assert equal(checkpoints.load(2).state, 2)
        assert checkpoints.folder.leftovers() == []


def test_given_up_while_it_is_sent(place: Place) -> None:
    """A save that is given up leaves nothing, not even parts."""
    seen: list[str] = []
    holding: list[Checkpoints] = []

    def rule(method: str, path: str, before: int) -> Fault:
        if "partNumber" in path:
            seen.append(path)
        return None

    with place.through(rule), Checkpoints(place.url) as checkpoints:
        holding.append(checkpoints)
        checkpoints.budget = Budget(bytes_per_s=20 << 20)
        checkpoints.save(1, state(1, 4 * LARGE))
        while not seen:
            os.sched_yield()
        checkpoints.abandon()
        assert checkpoints.wait() is None
        assert checkpoints.steps() == []
    assert [name for name in place.objects() if "/" in name] == []
    assert place.uploads() == 0


def test_wrong_places(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="s3://no-such-bucket-here/run"):
        Checkpoints("s3://no-such-bucket-here/run")
    with pytest.raises(MissingError, match="there is no checkpoint in"):
        load(place.url)
    with pytest.raises(UsageError, match="is only read from"):
        Checkpoints("http://127.0.0.1/run")
    with pytest.raises(UsageError, match="ftp"):
        load("ftp://server/run")
    with place.through(lambda method, path, before: "403"):
        with pytest.raises(StorageError, match="check the credentials") as caught:
            Checkpoints(place.url)
        assert SECRET not in str(caught.value)
        with pytest.raises(StorageError, match="cannot be read"):
            load(place.url)
    monkeypatch.setattr(limits, "object_deadline_s", SHORT_S)
    place.use(1)
    with pytest.raises(StorageError, match="no connection"):
        load(place.url)


def test_in_a_forked_process(place: Place) -> None:
    """The client raises a clear error in a forked process, in which it has no threads."""
    code = """
import os, sys
from penstock.checkpoint import Checkpoints
from penstock.errors import ForkError
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(1, {"n": 1})
checkpoints.wait()
if os.fork() == 0:
    for act in (lambda: checkpoints.save(2, {"n": 2}), lambda: Checkpoints(sys.argv[1])):
        try:
            act()
        except ForkError:
            continue
        os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    warm.run([sys.executable, "-c", code, place.url], check=True, timeout=240)


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.wide
@pytest.mark.parametrize(
    ("what", "how"),
    first(1, [("shard", "altered"), ("index", "cut"), ("shard", "cut"), ("index", "altered")]),
)
def test_damage_at_every_byte(place: Place, what: str, how: str) -> None:
    """No byte may be altered or missing: loading names the object, and the checkpoint before. (Of a
    shard each seventh byte: it has the format of a folder's, of which each byte is tried.)"""
    saved(place.url, 4, 5, size=3)
    home = Prefix.open(place.url)
    entry = home.entry()
    (name,) = (
        name
        for name in place.objects()
        if name == "00000003.index" or (what == "shard" and name.startswith("step-5."))
        if name.endswith(what)
    )
    whole = place.read(name)
    damaged = [whole + b"\0"]
    for at in thinned(range(0, len(whole), 7 if what == "shard" or how == "cut" else 1)):
        if how == "cut":
            damaged.append(whole[:at])
        else:
            damaged.append(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
    for data in damaged:
        place.put(name, data)
        with pytest.raises(FormatError, match=name) as caught:
            load(place.url)
        assert "The checkpoint before it is of step 4" in str(caught.value)
    with pytest.raises(FormatError, match=name):
        verify_checkpoint(home, entry)
    with pytest.warns(RuntimeWarning, match="loading step 4"):
        assert equal(load(place.url, fall_back=True).state, 4, 3)
    place.put(name, whole)
    assert equal(load(place.url).state, 5, 3)


def test_nothing_is_collected_beside_a_damaged_index(place: Place) -> None:
    """Nothing is collected while a damaged index hides which shards it names."""
    saved(place.url, 4, 5)
    whole = place.read("00000003.index")
    place.put("00000003.index", b"x" + whole)
    shards = [name for name in place.objects() if "/" in name]
    with Checkpoints(place.url) as checkpoints:
        assert checkpoints.steps() == [4, -1]
        checkpoints.save(6, state(6))
        checkpoints.wait()
    assert set(shards) < set(place.objects())
    place.put("00000003.index", whole)
    assert equal(load(place.url, 5).state, 5)


@pytest.mark.parametrize("what", ["index", "shard"])
def test_an_object_that_is_gone(place: Place, what: str) -> None:
    saved(place.url, 4, 5)
    entry = Prefix.open(place.url).entry()
    if what == "index":
        place.bucket.delete("run/00000003.index")
        assert load(place.url).step == 4
        with pytest.raises(MissingError, match="no checkpoint of step 5: it has 4"):
            load(place.url, 5)
        with pytest.raises(MissingError, match="00000003.index is not there"):
            Prefix.open(place.url).read_index(entry)
        return
    place.bucket.delete(f"run/{entry.path.removeprefix(place.url + '/')}/rank-0.shard")
    with pytest.raises(MissingError, match=r"rank-0\.shard is not there.* of step 4"):
        load(place.url)
    with pytest.warns(RuntimeWarning, match="loading step 4"):
        assert equal(load(place.url, fall_back=True).state, 4)


def test_the_objects_of_others_stay(place: Place) -> None:
    saved(place.url, 1)
    (shard,) = (name for name in place.objects() if "/" in name)
    note = shard.replace("rank-0.shard", "note.txt")
    for name in (note, "notes/step-1.txt", "readme"):
        place.put(name, b"mine")
    saved(place.url, 2, 3, 4)
    assert {note, "notes/step-1.txt", "readme"} < set(place.objects())
    assert load(place.url).step == 4


def test_removed_while_the_job_runs(place: Place) -> None:
    """If somebody removes all of it, the job gets an error, and makes no half checkpoint."""
    with Checkpoints(place.url) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.wait()
        for name in place.objects():
            place.bucket.delete(f"run/{name}")
        checkpoints.save(2, state(2))
        with pytest.raises(PenstockError, match="was removed|removed it"):
            checkpoints.wait()
    assert load_or_none(place.url) is None


def load_or_none(url: str) -> Any:
    with Checkpoints(url) as checkpoints:
        return checkpoints.latest()
