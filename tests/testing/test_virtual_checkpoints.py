"""Checkpoints in the virtual cluster: it finds bugs, it repeats itself, and the shipped protocol
passes it; its storage does as real storage does."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.budget import Budget
from penstock.checkpoint import Flush, manifest
from penstock.checkpoint.object_repository import Prefix
from penstock.checkpoint.repository import remove_shards_folder
from penstock.checkpoint.retention import delete_old, list_old
from penstock.checkpoint.storage import CheckpointStorage, ObjectStorage
from penstock.engine.object_client import ObjectRefused
from penstock.engine.object_store import open_bucket
from penstock.errors import FormatError, PenstockError
from tests.mutations import Mutation, find_bug, make_protocol, read_mutations
from tests.services import S3, environment, moto
from tests.slices import first
from tests.virtual import (
    CheckpointFault,
    CheckpointFaultKind,
    CheckpointJob,
    CheckpointScenario,
    ScenarioError,
    VirtualBucket,
    VirtualFiles,
    draw_checkpoint_scenario,
    minimise,
    run_checkpoint_scenario,
)
from tests.virtual.__main__ import main
from tests.virtual.checkpoint_storage import Call, CalledStorage

SEEDS = range(1, 9)
EASY = [
    "repository: the name of a commit is not synced",
    "object_repository: a commit overwrites",
    "held_saves: tiers are not cleared",
]
"""Bugs that the first seeds find; the long test of the list looks for all of them."""


def shape(**changes: Any) -> CheckpointScenario:
    """One job of two ranks that saves three times to a folder, with changes."""
    scenario = CheckpointScenario(
        seed=1,
        is_folder=True,
        hosts=0,
        keep=2,
        jobs=(CheckpointJob(2, 3, 0),),
        delay_ns=10**6,
    )
    return replace(scenario, **changes)


def traced(scenario: CheckpointScenario) -> list[str]:
    lines: list[str] = []
    run_checkpoint_scenario(scenario, lines.append)
    return lines


def named(name: str) -> Mutation:
    (mutation,) = (each for each in read_mutations() if each.name == name)
    return mutation


def test_the_protocol_passes_fixed_seeds() -> None:
    """No oracle finds anything, in folders and in object stores, with tiers and without."""
    scenarios = [draw_checkpoint_scenario(seed) for seed in SEEDS]
    results = [run_checkpoint_scenario(scenario) for scenario in scenarios]
    assert {scenario.is_folder for scenario in scenarios} == {True, False}
    assert {bool(scenario.hosts) for scenario in scenarios} == {True, False}
    assert sum(result.failures for result in results) > 5
    assert sum(result.commits for result in results) > 30


def test_all_kinds_of_faults_are_drawn() -> None:
    scenarios = [draw_checkpoint_scenario(seed) for seed in range(300)]
    drawn = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert drawn == set(CheckpointFaultKind)
    assert any(not scenario.faults for scenario in scenarios)
    assert any(not scenario.has_conditions for scenario in scenarios)


def test_a_run_depends_on_its_scenario_alone() -> None:
    """The same scenario gives the same trace, call by call; another seed another one."""
    scenario = shape(hosts=1)
    trace = traced(scenario)
    assert trace == traced(scenario)
    assert trace != traced(replace(scenario, seed=2))
    assert any(": rename " in line for line in trace)


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize("hosts", [0, 2])
def test_calm_jobs_commit_all_saves(is_folder: bool, hosts: int) -> None:
    """While nothing fails, each save of each job is committed, once; ranks may be more or fewer."""
    jobs = (CheckpointJob(3, 2, 0), CheckpointJob(2, 3, 10**12))
    result = run_checkpoint_scenario(shape(is_folder=is_folder, hosts=hosts, jobs=jobs))
    assert result.commits == 2 + 3 + 2  # the last job, which cleans up, saves twice


@pytest.mark.parametrize("name", first(1, EASY))
def test_a_bug_is_found(name: str) -> None:
    assert find_bug(named(name), named(name).seeds) is not None


def test_a_failure_is_minimised() -> None:
    """Faults and saves that a failure does not need are left out."""
    broken = make_protocol(named("repository: leftovers are not removed"))

    def fails(scenario: CheckpointScenario) -> bool:
        try:
            run_checkpoint_scenario(scenario, parts=broken)
        except ScenarioError:
            return True
        return False

    kill = CheckpointFault(CheckpointFaultKind.KILL, 5, rank=0)
    stop = CheckpointFault(CheckpointFaultKind.STOP, 3, 10**6, rank=1)
    scenario = shape(faults=(stop, kill))
    assert fails(scenario)
    smallest = minimise(scenario, fails)
    assert smallest.faults == (kill,)
    assert smallest.jobs == (CheckpointJob(2, 1, 0),)
    assert not fails(replace(smallest, faults=()))
    run_checkpoint_scenario(smallest)


def test_a_seed_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints each call of a seed, and a search says how much it tried."""
    assert main(["checkpoint", "1"]) == 0
    assert "is committed" in capsys.readouterr().out
    assert main(["checkpoint", "--seconds", "0.1", "--first", "5"]) == 0
    assert " checkpoint scenarios from seed 5 on" in capsys.readouterr().out


# -- what it found ---------------------------------------------------------------------------------


def open_prefix(
    bucket: VirtualBucket,
    damaged: int = 0,
    damage: Callable[[bytes], bytes] = lambda data: b"?" + data[1:],
) -> Prefix:
    """Open the repository in a bucket; the first reads of so many objects are damaged."""

    def perform(call: Call) -> Any:
        nonlocal damaged
        outcome = getattr(bucket, call.name)(*call.args)
        if call.name == "fetch_objects" and damaged:
            damaged -= 1
            outcome = [data and damage(data) for data in outcome]
        return outcome

    storage: Any = CalledStorage(perform)
    return Prefix("s3://bucket/run", "run/", storage)


def commit_steps(bucket: VirtualBucket, *steps: int) -> list[str]:
    """Commit checkpoints of a job, without shards. Returns their paths."""
    prefix = open_prefix(bucket)
    lock = prefix.lock(b"a job")
    paths = []
    for number, step in enumerate(steps, 1):
        index = manifest.CheckpointIndex(step, f"{number:09x}", 1, manifest.STATE, (), {})
        path = prefix.start_attempt(step, index.attempt)
        paths.append(prefix.commit(path, index, lock).path)
    return paths


def test_a_damaged_claim_is_no_checkpoint_that_is_kept() -> None:
    """A claim whose bytes are damaged looks like a damaged checkpoint, and was counted as one of
    the checkpoints to keep: one that could be loaded was removed for it."""
    bucket = VirtualBucket()
    paths = commit_steps(bucket, 1, 2)
    commit_steps(bucket)
    bucket.put_object("run/00000004.index", b"damaged", False)
    paths += commit_steps(bucket, 3)
    prefix = open_prefix(bucket)
    delete_old(prefix, 2, paths[-1])
    left = [entry.step for entry in prefix.entries()]
    assert left == [2, -1, 3]


def test_an_index_that_was_damaged_on_its_way_is_read_again() -> None:
    """A job remembered the damage, as long as it lived."""
    bucket = VirtualBucket()
    commit_steps(bucket, 1, 2)
    prefix = open_prefix(bucket, damaged=1)
    assert {entry.step for entry in prefix.entries()} == {-1}
    assert [entry.step for entry in prefix.entries()] == [1, 2]


def test_a_job_that_was_replaced_while_it_began_is_told() -> None:
    """A job that is stopped before it locks its tiers, until its successor has committed, holds
    nothing there: it would follow what the successor has committed."""
    jobs = (
        CheckpointJob(3, 1, 0),
        CheckpointJob(1, 1, 48_401_336),
        CheckpointJob(1, 1, 126_595_470, uses_tiers=False),
    )
    stop = CheckpointFault(CheckpointFaultKind.STOP, 5, 165_077_360, job=1)
    lines: list[str] = []
    run_checkpoint_scenario(
        shape(seed=1145, is_folder=False, hosts=1, jobs=jobs, faults=(stop,)), lines.append
    )
    commits = [line.split()[2] for line in lines if line.endswith(" is committed")]
    assert commits == ["000000021", "000000031", "000000032"]
    assert any("job 1" in line and "another job has taken it over" in line for line in lines)


def test_a_commit_without_an_answer_is_not_made_again() -> None:
    """An index that was put late, without an answer, was put once more, under the next number, when
    its save was drained again."""
    bucket = VirtualBucket()
    is_cut = False

    def perform(call: Call) -> Any:
        if is_cut and call.name == "put_object":
            raise ObjectRefused(errno.ETIMEDOUT, "no answer")
        return getattr(bucket, call.name)(*call.args)

    storage: Any = CalledStorage(perform)
    lock = Prefix("s3://bucket/run", "run/", storage).lock(b"job")
    data, key = manifest.seal("checkpoint", {"step": 1}), "run/00000002.index"
    is_cut = True
    with pytest.raises(PenstockError, match="no answer"):
        lock.append(data)
    is_cut = False
    bucket.put_object(key, data, True)
    assert lock.append(data) == 2
    assert [key for key, (held, _) in bucket.objects.items() if held == data] == [key]


def test_an_index_that_is_read_damaged_is_not_taken_for_another_jobs() -> None:
    """A put without an answer was looked up, and damaged on its way: the job took itself for
    replaced, and removed the shards of what it had committed."""
    for seed in (1677, 2418):
        run_checkpoint_scenario(draw_checkpoint_scenario(seed))


def test_an_index_that_was_written_late_is_no_checkpoint() -> None:
    """A put without an answer was performed after retention had removed its number: an old
    checkpoint without shards was there again."""
    bucket = VirtualBucket()
    prefix = open_prefix(bucket)
    paths = commit_steps(bucket, 1, 2, 3)
    late = bucket.objects["run/00000002.index"][0]
    put_shards(bucket, paths)
    delete_old(prefix, 2)
    left = [entry.path for entry in prefix.entries()]
    assert left == paths[1:]
    bucket.put_object("run/00000002.index", late, False)
    assert [entry.path for entry in prefix.entries()] == left
    assert prefix.leftovers() == ["s3://bucket/run/00000002.index"]
    lock = prefix.lock(b"another job")
    prefix.delete_leftovers(lock)
    assert prefix.leftovers() == []
    assert "run/00000002.index" not in bucket.objects


def test_the_last_checkpoint_without_its_shards_is_listed() -> None:
    """It was not removed: whoever loads it is told what is missing."""
    bucket = VirtualBucket()
    paths = commit_steps(bucket, 1, 2, 3)
    put_shards(bucket, paths[:2])
    prefix = open_prefix(bucket)
    assert [entry.path for entry in prefix.entries()] == paths


def put_shards(bucket: VirtualBucket, paths: list[str]) -> None:
    for path in paths:
        key = path.removeprefix("s3://bucket/") + "/rank-0.shard"
        bucket.put_object(key, b"", False)


@pytest.mark.parametrize("seed", [4319, 4772])
def test_leftovers_are_compared_with_whole_indexes(seed: int) -> None:
    """The beginning of an index was damaged on its way and named another attempt: the shards of a
    checkpoint were removed as leftovers."""
    run_checkpoint_scenario(draw_checkpoint_scenario(seed))


def test_retention_removes_the_shards_that_a_whole_index_names() -> None:
    """The beginning of an index was damaged on its way and named another checkpoint: retention of
    the one removed the shards of the other."""
    run_checkpoint_scenario(draw_checkpoint_scenario(5002934))
    bucket = VirtualBucket()
    prefix, paths = list_one_as_another(bucket)
    delete_old(prefix, 2)
    objects = [f"{path.removeprefix('s3://bucket/')}/rank-0.shard" for path in paths]
    assert [each for each in objects if each in bucket.objects] == objects
    assert prefix.leftovers() == paths[:1]


def test_a_checkpoint_that_was_listed_damaged_is_not_removed_for_that() -> None:
    """The older of the two that are kept was listed damaged, and the other counted as the first to
    keep."""
    run_checkpoint_scenario(draw_checkpoint_scenario(9153956))
    bucket = VirtualBucket()
    paths = commit_steps(bucket, 1, 2)

    def damage(data: bytes) -> bytes:
        return b"?" + data if b'"step":1' in data else data

    prefix = open_prefix(bucket, 1, damage)
    assert list_old(prefix, 2) == ()
    assert [entry.path for entry in prefix.entries()] == paths
    paths += commit_steps(bucket, 3)
    prefix = open_prefix(bucket, 1, damage)
    removable = list_old(prefix, 2)
    assert [(entry.sequence, entry.step) for entry in removable] == [(2, -1)]


def test_a_checkpoint_that_was_listed_as_another_is_not_loaded() -> None:
    """The shards of the other would be read. It is listed anew, and is loaded then."""
    bucket = VirtualBucket()
    prefix, paths = list_one_as_another(bucket)
    damaged = prefix.entries()[0]
    with pytest.raises(FormatError, match=r"00000002\.index.*damaged on its way; list"):
        prefix.read_index(damaged)
    again = prefix.entries()[0]
    assert again.path == paths[0]
    assert prefix.read_index(again).step == 1


def list_one_as_another(bucket: VirtualBucket) -> tuple[Prefix, list[str]]:
    """Commit three checkpoints of one step, and list the first as the third, as damage on its way
    may make it. Returns the repository that listed them, and their paths."""
    paths = commit_steps(bucket, 1, 1, 1)
    put_shards(bucket, paths)
    prefix = open_prefix(bucket, 1, lambda data: data.replace(b"000001", b"000003"))
    entries = prefix.entries()
    assert [entry.path for entry in entries] == [paths[2], *paths[1:]]
    return prefix, paths


@pytest.mark.parametrize("seed", [1003265, 2004966])
def test_a_damaged_index_may_be_that_of_a_held_save(seed: int) -> None:
    """The last index was damaged on its way when a job looked whether a save that it holds had been
    committed: it had, without an answer, and was committed a second time."""
    run_checkpoint_scenario(draw_checkpoint_scenario(seed))


def test_a_job_that_was_replaced_before_it_began_leaves_the_tiers() -> None:
    """A job was stopped between its claim and the locks of its tiers, until another had taken the
    repository over, held saves and ended: it cleared the tiers of what that one held."""
    run_checkpoint_scenario(draw_checkpoint_scenario(3051381))


def test_a_claim_that_is_listed_damaged_is_not_the_last_checkpoint() -> None:
    """The beginning of a claim was damaged on its way, and it looked like a checkpoint whose index
    is lost: any save that was held, also one that had been committed, would have been committed."""
    bucket = VirtualBucket()
    paths = commit_steps(bucket, 1, 2)
    prefix = open_prefix(bucket)
    prefix.lock(b"the next job")
    last = open_prefix(bucket, damaged=1).find_last_attempt()
    assert last.path == paths[-1]
    assert last.attempt == f"{2:09x}"
    assert not last.is_lost


def test_an_index_is_lost_if_it_is_damaged_the_same_way_each_time() -> None:
    """Damage on the way to a reader differs from read to read; damage at rest does not."""
    bucket = VirtualBucket()
    commit_steps(bucket, 1, 2)
    key = "run/00000003.index"
    whole = bucket.objects[key][0]
    bucket.put_object(key, whole[:-3] + b"!!!", False)
    prefix = open_prefix(bucket)
    assert prefix.find_last_attempt().is_lost
    bucket.put_object(key, whole, False)
    assert open_prefix(bucket, damaged=2).find_last_attempt().attempt == f"{2:09x}"


@pytest.mark.parametrize("seed", [535, 2191, 4059754, 8007184, 11017260])
def test_seeds_that_found_something(seed: int) -> None:
    """535 and 2191: an index that was put after its removal. 4059754: ranks that lost each other
    while a save became held. 8007184 and 11017260: a whole checkpoint that came
    late was taken for a fault."""
    run_checkpoint_scenario(draw_checkpoint_scenario(seed))


def test_an_index_goes_before_its_shards_whoever_removes_them() -> None:
    """A job was killed when it had removed an index and not synced that; the next one removed the
    shards, and a power cut brought the index back."""
    run_checkpoint_scenario(draw_checkpoint_scenario(6015580))
    files = VirtualFiles()
    files.make_folders("/r/step-1.1")
    for name in ("index", "rank-0.shard"):
        files.write_file(f"/r/step-1.1/{name}", b"data")
    files.sync_folder("/r/step-1.1", "")
    files.remove_file("/r/step-1.1/index")

    class KilledError(Exception):
        pass

    def perform(call: Call) -> Any:
        if call.name == "remove_file":
            raise KilledError
        return getattr(files, call.name)(*call.args)

    storage: Any = CalledStorage(perform)
    with pytest.raises(KilledError):
        remove_shards_folder(storage, "/r/step-1.1")
    files.cut_power(random.Random(0))
    assert list(files.list_paths("/r/step-1.1")) == ["/r/step-1.1/rank-0.shard"]


@pytest.mark.parametrize("seed", [5892, 14199])
def test_names_are_synced_before_copies_are_removed(seed: int) -> None:
    """5892: a checkpoint whose name could not be synced was found, and the held copy removed.
    14199: a shard that went straight to the repository lay in a folder whose name was not synced,
    when callers were told that the save is held. The power cut took both."""
    run_checkpoint_scenario(draw_checkpoint_scenario(seed))


@pytest.mark.parametrize("seed", [7643, 8507])
def test_a_claim_of_a_removed_number_takes_nothing_over(seed: int) -> None:
    """A job that stops between its look at the last number and its claim learns that it has not
    the repository."""
    run_checkpoint_scenario(draw_checkpoint_scenario(seed))


# -- modelled storage does as real storage ---------------------------------------------------------


def draw_call(draw: random.Random, root: str) -> Call:
    folders = [root, f"{root}/a", f"{root}/b"]
    files = [f"{folder}/{name}" for folder in folders for name in ("rank-0.shard", "index", "x")]
    folder, path = draw.choice(folders), draw.choice(files)
    memory = np.frombuffer(draw.randbytes(64), np.uint8)
    pieces = [manifest.Piece("p", "uint8", (64,), (0,), "rank-0.shard", 0, 64, 0)]
    flush = Flush(Budget(direct="off"), shared=False)
    choices = [
        Call("make_folder", (draw.choice(folders[1:]),)),
        Call("list_folder", (folder,)),
        Call("find_path", (draw.choice([path, folder]),)),
        Call("has_name", (draw.choice([path, folder]),)),
        Call("is_link", (path,)),
        Call("check_own_folder", (folder,)),
        Call("measure_file", (path,)),
        Call("read_file", (path,)),
        Call("write_file", (path, draw.randbytes(9))),
        Call("write_shard", (path, (memory, pieces), flush)),
        Call("write_shard", (path, draw.choice(files), flush)),
        Call("rename", (f"{folder}/x", f"{folder}/index")),
        Call("rename", (f"{root}/a", f"{root}/b")),
        Call("remove_file", (path,)),
        Call("remove_folder", (draw.choice(folders[1:]),)),
        Call("sync_folder", (folder, "try again")),
        Call("find_whole_shards", (folder,)),
    ]
    return draw.choice(choices)


def outcome_of(call: Any) -> Any:
    """Return a result, or the type of an error; errors of the system by their code."""
    try:
        return call()
    except OSError as error:
        return type(error).__name__, error.errno


@pytest.mark.parametrize("seed", range(6))
def test_virtual_files_do_as_files_do(seed: int, tmp_path: Path) -> None:
    """Random calls have the same outcomes on files and on virtual files."""
    draw, files, root = random.Random(seed), VirtualFiles(), str(tmp_path)
    storage = CheckpointStorage()
    files.make_folders(root)
    for _ in range(150):
        name, args = draw_call(draw, root)
        real = outcome_of(lambda name=name, args=args: getattr(storage, name)(*args))
        virtual = outcome_of(lambda name=name, args=args: getattr(files, name)(*args))
        assert virtual == real, (name, args)


def draw_object_call(draw: random.Random, source: str) -> Call:
    keys = [f"run/{folder}{name}" for folder in ("", "a/", "b/") for name in ("1", "2", "3")]
    key = draw.choice(keys)
    memory = np.frombuffer(draw.randbytes(64), np.uint8)
    pieces = [manifest.Piece("p", "uint8", (64,), (0,), "1", 0, 64, 0)]
    flush = Flush(Budget(direct="off"), shared=False)
    choices = [
        Call("put_object", (key, draw.randbytes(9), draw.random() < 0.5)),
        Call("put_object", (key, draw.randbytes(draw.choice((0, 300))), False)),
        Call("delete_objects", (draw.sample(keys, 3),)),
        Call("upload_shard", (f"run/{draw.choice('ab')}/1", "url", (memory, pieces), flush)),
        Call("upload_shard", (key, "url", source, flush)),
        Call("list_objects", (draw.choice(["run/", "run/a/", "run/c/"]),)),
        Call("fetch_objects", (draw.sample(keys, 3), draw.choice((4, 1 << 62)))),
    ]
    return draw.choice(choices)


def describe_listing(outcome: Any) -> Any:
    """Leave out of a listing what only a service knows: when an object was written."""
    if isinstance(outcome, tuple) and isinstance(outcome[0], list):
        return sorted(outcome[0]), sorted((info.name, info.size) for info in outcome[1])
    return outcome


@pytest.mark.parametrize("seed", range(2))
def test_a_virtual_bucket_does_as_a_service_does(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random calls have the same outcomes on objects of an S3 service and on virtual objects."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    source = tmp_path / "file"
    source.write_bytes(bytes(range(200)))
    with moto() as port:
        for name, value in environment(port).items():
            monkeypatch.setenv(name, value)
        S3(port, "compared")
        bucket, virtual = open_bucket("s3://compared", 5), VirtualBucket()
        storage = ObjectStorage(bucket, "s3://compared", "")
        draw = random.Random(seed)
        for _ in range(120):
            name, args = draw_object_call(draw, str(source))
            outcomes = []
            for place in (storage, virtual):
                try:
                    outcomes.append(describe_listing(getattr(place, name)(*args)))
                except ObjectRefused as error:
                    outcomes.append(("refused", error.code))
            assert outcomes[0] == outcomes[1], (name, args)


def test_a_power_cut_takes_what_was_not_synced() -> None:
    """Contents and names that were synced stay, others may go; lies about it are found out."""
    kept = set()
    for seed in range(20):
        files = VirtualFiles()
        files.make_folders("/a")
        files.write_file("/a/synced", b"data")
        files.sync_folder("/a", "")
        files.write_file("/a/data", b"data", sync=False)
        files.write_file("/a/name", b"data")
        files.is_lying = True
        files.sync_folder("/a", "")
        files.cut_power(random.Random(seed))
        assert files.read_file("/a/synced") == b"data"
        names = files.list_folder("/a")
        kept.add((*names, files.read_file("/a/data") if "data" in names else b""))
    assert len(kept) > 4
    assert ("synced", b"") in kept


@pytest.mark.parametrize("seed", [13, 15, 21])
def test_a_held_save_outlives_a_tier_that_cannot_be_read(seed: int) -> None:
    """The job after a kill cannot list or read a tier for a moment: what is held there was taken
    for gone, and removed."""
    begin_ns = 10**11
    kill = CheckpointFault(CheckpointFaultKind.KILL, 18 + seed, rank=0)
    fail = CheckpointFault(CheckpointFaultKind.FAIL, begin_ns, 2 * 10**7, extra=seed * 7919 % 1000)
    jobs = (CheckpointJob(1, 3, 0), CheckpointJob(1, 1, begin_ns))
    run_checkpoint_scenario(shape(seed=seed, hosts=1, jobs=jobs, faults=(kill, fail)))
