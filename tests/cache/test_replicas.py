"""Copies of what other hosts keep: the bytes, the room, and loaders that use them."""

from __future__ import annotations

import itertools
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.cache import agreement
from penstock.cache.key_index import Addressed
from penstock.cache.replicas import ReplicaLayout, Replicas
from penstock.cache.shared_memory import alignment_default
from penstock.errors import UsageError
from penstock.order.order import Order
from penstock.plan.cache_blocks import required_bytes, sample_key_lengths, samples_per_block
from penstock.plan.placement import Placement
from penstock.plan.replica_policy import Uses
from penstock.plan.steps import Steps
from tests.cache.ranks import Rank, begin, ended
from tests.cache.test_cache import expected, global_batches, run, total
from tests.plan.test_replica_policy import dealt, hits_of
from tests.slices import first, thinned


def replicas_of(layout: ReplicaLayout, ranks: int, fields: int = 1) -> list[Replicas]:
    """The replicas of all ranks of a node."""
    memories = [np.zeros(layout.bytes, np.uint8) for _ in range(ranks)]
    return [Replicas(layout, memories, rank, fields) for rank in range(ranks)]


@given(
    sizes=st.one_of(
        st.lists(st.integers(0, 2000), min_size=12, max_size=40),
        st.integers(12, 40).map(lambda n: [300] * n),
    ),
    room=st.integers(0, 40_000),
    fields=st.integers(1, 2),
    ranks=st.integers(1, 3),
    epochs=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    lost=st.integers(0, 5),
)
def test_what_is_found_is_what_was_offered(sizes, room, fields, ranks, epochs, seed, lost):
    """Byte by byte, whoever offered it, within the room; in epochs of any sequence, also where some
    were left early."""
    sizes = sizes[: len(sizes) // fields * fields]
    length = np.array(sizes, np.int64)
    content = [np.random.default_rng([seed, key]).bytes(size) for key, size in enumerate(sizes)]
    samples = len(sizes) // fields
    layout = ReplicaLayout.of(room, length)
    if not layout.pages:
        return
    assert layout.bytes <= room
    steps = Steps(samples, 4, ranks + 1)
    node = replicas_of(layout, ranks, fields)
    order = Order(samples, seed)
    for epoch in epochs:
        uses = Uses(order, steps, tuple(range(ranks)), epoch)
        for step, rank in itertools.product(range(len(steps) - lost), range(ranks)):
            some = order.at_epoch(epoch).samples(steps.positions(step, step + 1, rank)[0])
            keys = np.repeat(some * np.uint64(fields), fields)
            keys += np.tile(np.arange(fields, dtype=np.uint64), len(some))
            if not len(keys):
                continue
            lengths = length[keys.astype(np.int64)]
            at = np.cumsum(lengths) - lengths
            true = np.frombuffer(b"".join(content[k] for k in keys.tolist()), np.uint8)
            out = np.zeros(len(true), np.uint8)
            found = node[rank].take(keys, lengths, out, at, uses)
            missing = np.setdiff1d(np.arange(len(keys)), found)
            for row, k in enumerate(keys.tolist()):
                part = out[at[row] : at[row] + lengths[row]].tobytes()
                assert part == (content[k] if row in found else bytes(len(part)))
            node[rank].offer(keys[missing], lengths[missing], true, at[missing], uses)


@pytest.mark.wide
def test_what_changes_while_it_is_copied_is_not_found():
    """One rank copies without end from the replica buffer of another, which overwrites it all the
    time: every copy is whole, of its key."""
    layout = ReplicaLayout.of(20_000, np.full(9, 4096))
    one, two = replicas_of(layout, 2)
    assert 2 <= layout.pages <= 4
    count = 64
    keys, length, at = (
        np.arange(count, dtype=np.uint64),
        np.full(count, 4096),
        np.arange(count) * 4096,
    )
    source = np.repeat(np.arange(1, count + 1, dtype=np.uint8), 4096)
    order, steps = Order(count, 1), Steps(count, 8, 2)
    ended = threading.Event()

    def overwrite() -> int:
        for epoch in thinned(range(600)):
            uses = Uses(order, steps, (0, 1), epoch)
            for some in np.split(order.at_epoch(epoch).samples(np.arange(count)), 8):
                rows = some.astype(np.int64)
                one.take(some, length[rows], np.empty_like(source), at[rows], uses)
                one.offer(some, length[rows], source, at[rows], uses)
        ended.set()
        return 0

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(overwrite)
        found = 0
        uses = Uses(order, steps, (0, 1), 0)
        while not ended.is_set():
            out = np.zeros_like(source)
            rows = two.take(keys, length, out, at, uses)
            assert (out.reshape(count, -1)[rows] == (rows + 1)[:, None]).all()
            found += len(rows)
        writing.result()
    assert found


@pytest.mark.long
@pytest.mark.parametrize("jump", first(1, [1, 0, 30]))
def test_after_epochs_that_were_passed_over_copies_are_of_use(jump):
    """They are kept for their next uses, not for those that never came: then less would be found
    than by who begins without any."""
    count, epochs = 2400, 8
    order, steps = Order(count, 2), Steps(count, 60, 12)

    def found_in(replicas: Replicas, epochs: list[int], part: float = 1.0) -> int:
        found = 0
        for epoch in epochs:
            samples = order.at_epoch(epoch).samples(dealt(steps, 0))
            for keys in np.array_split(samples[: int(len(samples) * part)], len(steps)):
                length, at = np.full(len(keys), 64), np.arange(len(keys)) * 64
                buffer, uses = np.zeros(64 * len(keys), np.uint8), Uses(order, steps, (0,), epoch)
                rows = replicas.take(keys, length, buffer, at, uses)
                left = np.setdiff1d(np.arange(len(keys)), rows)
                replicas.offer(keys[left], length[left], buffer, at[left], uses)
                found += len(rows)
        return found

    layout = ReplicaLayout.of(50_000, np.full(10, 64))
    assert 450 < layout.pages < 510
    (fresh,), (before,) = replicas_of(layout, 1), replicas_of(layout, 1)
    found_in(before, [0, 1, 2])
    found_in(before, [3], 0.5)  # left early
    later = list(range(4 + jump, 4 + jump + epochs))
    assert found_in(before, later) >= 1.3 * found_in(fresh, later)


@pytest.mark.parametrize(("mean", "filled"), [(3_000, 0.75), (50_000, 0.92)])
def test_little_room_is_lost(mean, filled):
    """A replica buffer that is offered more than it holds."""
    length = np.random.default_rng(4).gamma(4, mean / 4, 1000).astype(np.int64) + 1
    room = int(length.sum() / 2)
    (replicas,) = replicas_of(ReplicaLayout.of(room, length), 1)
    order = Order(1000, 3)
    uses = Uses(order, Steps(1000, 50, 2), (0,), 0)
    source = np.zeros(int(length.max()) * 50, np.uint8)
    for keys in np.split(np.arange(1000, dtype=np.uint64), 20):
        lengths = length[keys.astype(np.int64)]
        replicas.offer(keys, lengths, source, np.cumsum(lengths) - lengths, uses)
    keys = np.arange(1000, dtype=np.uint64)
    out = np.zeros(int(length.sum()), np.uint8)
    found = replicas.take(keys, length, out, np.cumsum(length) - length, uses)
    assert filled * room <= length[found].sum() <= room


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "x.npy"
    np.save(path, np.random.default_rng(6).integers(0, 256, (2000, 300), np.uint8))
    return path


def memory(dataset: penstock.Dataset, hosts: list[int], copies: int, cache_block: int = 1) -> int:
    """The memory of a host for its share and so many copies for each of its ranks."""
    share = -(-dataset.index.count // cache_block // len(set(hosts))) + 1
    ranks = max(hosts.count(host) for host in hosts)
    room = int(dataset.index.mean_bytes * copies * ranks)
    return (
        required_bytes(Addressed(dataset.index), cache_block, share, alignment_default)
        + room
        + alignment_default
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("hosts", "assignment"),
    [
        ([0, 1], "contiguous"),
        pytest.param([0, 0, 1, 1, 1], "strided", marks=pytest.mark.long),
        pytest.param([0, 1, 2, 3], "contiguous", marks=pytest.mark.long),
        pytest.param([0, 1, 2, 3], "strided", marks=pytest.mark.long),
    ],
)
def test_batches_are_the_same_and_less_comes_from_peers(hosts, assignment, records):
    """About as much less as the best policy could do."""
    dataset = penstock.open(records)
    data = np.load(records)
    copies, epochs = 250, 6

    def check(batch: penstock.Batch) -> None:
        assert (batch["data"] == data[batch.ids]).all()

    options = {"global_batch_size": 60, "seed": 3, "assignment": assignment, "epochs": epochs}
    options |= {"cache_block_bytes": 1, "check": check}
    ram_bytes = memory(dataset, hosts, copies)
    plain = run(dataset, hosts, ram_bytes, **options)
    told = run(dataset, hosts, ram_bytes, replicas=True, **options)
    assert [each.steps for each in told] == [each.steps for each in plain]
    del options["epochs"], options["cache_block_bytes"], options["check"], options["assignment"]
    assert global_batches(told)[:2] == expected(dataset, **options)
    for name in ("loaded_bytes", "ram_bytes"):
        assert total(told, name) == total(plain, name)
    assert total(told, "direct_bytes") == total(plain, "replica_bytes") == 0
    both = total(told, "replica_bytes") + total(told, "peer_bytes")
    assert both == total(plain, "peer_bytes")
    steps = Steps(len(data), 60, len(hosts), assignment=assignment)
    best = sum(most(dataset, hosts, host, steps, ram_bytes, epochs) for host in sorted(set(hosts)))
    found = total(told, "replica_bytes") / data.shape[1]
    # Who reads ahead finds a copy before it is overwritten by what came before, or misses one.
    assert found == pytest.approx(best, rel=0.03)


def most(
    dataset: penstock.Dataset,
    hosts: list[int],
    host: int,
    steps: Steps,
    ram_bytes: int,
    epochs: int,
) -> int:
    """The most that a host could find among its copies: the run known, fetches taking no time."""
    ranks = tuple(hosts.count(each) for each in range(len(set(hosts))))
    count = dataset.index.count
    placement = Placement(count, (count,) * len(ranks), None, ranks, seed=agreement._seed)
    stream = []
    for epoch in range(epochs):
        for step in range(len(steps)):
            dealt = [
                steps.positions(step, step + 1, rank)[0]
                for rank, each in enumerate(hosts)
                if each == host
            ]
            samples = Order(count, 3, epoch).samples(np.concatenate(dealt))
            stream.append(samples[placement.owners(samples) != host].tolist())
    share = placement.shares[host]
    room = ram_bytes - required_bytes(Addressed(dataset.index), 1, share, alignment_default)
    layout = ReplicaLayout.of(room // ranks[host], sample_key_lengths(Addressed(dataset.index)))
    return hits_of(stream, ranks[host] * layout.pages)


@pytest.mark.long
@given(
    hosts=st.sampled_from([[0], [0, 1], [0, 1, 1], [0, 1, 2]]),
    copies=st.integers(0, 200),
    cache_block_bytes=st.sampled_from([None, 1, 5000]),
    last=st.sampled_from([{}, {"drop_last": True}, {"pad": True}]),
    batch=st.integers(4, 60),
)
def test_budgets_change_no_batch(hosts, copies, cache_block_bytes, last, batch, files):
    dataset = penstock.open(files)

    def check(found: penstock.Batch) -> None:
        for row, key in enumerate(dataset.index.keys(found.ids)):
            assert bytes(found["data"][row]) == (files / key).read_bytes()

    index = dataset.index
    cache_block = (
        1
        if cache_block_bytes is None
        else samples_per_block(cache_block_bytes, index.count, index.mean_bytes)
    )
    ram_bytes = memory(dataset, hosts, copies, cache_block)
    told = run(
        dataset,
        hosts,
        ram_bytes,
        cache_block_bytes=cache_block_bytes,
        assignment="strided",
        replicas=True,
        check=check,
        global_batch_size=batch,
        epochs=3,
        **last,
    )
    steps = Steps(dataset.index.count, batch, len(hosts), **last)
    for rank, each in enumerate(told):
        assert [len(ids) for ids in each.steps[0]] == [
            steps.rows(step, rank) for step in range(len(steps))
        ]
    seen = {sample for each in told for ids in each.steps[0] for sample in ids}
    assert last.get("drop_last") or len(seen) == dataset.index.count


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of all lengths, also none, each a file of its own."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(5)
    for number, size in enumerate([0, 1, 70_000, *random.integers(0, 3000, 150).tolist()]):
        (folder / f"{number:03}.bin").write_bytes(random.bytes(size))
    return folder


@pytest.mark.long
def test_copies_of_a_rank_that_was_killed_stay(records):
    """Ranks in processes of their own, which compare every batch with the data."""
    dataset, hosts = penstock.open(records), [0, 0, 1, 1]
    ram_bytes = memory(dataset, hosts, 500)
    ranks = [
        Rank(
            records,
            number,
            len(hosts),
            cache={
                "ram_bytes": ram_bytes,
                "cache_block_bytes": 1,
                "replicas": True,
                "host": str(host),
                "listen": "127.0.0.1",
            },
            loader={"batch_size": 25, "assignment": "strided"},
        )
        for number, host in enumerate(hosts)
    ]
    with ended(ranks):
        for epoch in range(4):
            left = ranks if epoch < 2 else ranks[1:]
            begin(left)
            for each in left:
                each.tell("take", None)
            assert [len(list(each.batches())) for each in left] == [20] * len(left)
            if epoch == 1:
                found = [each.stats()["replica_bytes"] for each in ranks[1:]]
                ranks[0].send(signal.SIGKILL)
        later = [each.stats()["replica_bytes"] for each in ranks[1:]]
    share = dataset.index.total_bytes / 4 / 2  # of a rank, of what the other host keeps
    # Of that, half was used by its host in the first epoch, and three quarters in two. Without the
    # replica buffer of who was killed it would be half of this.
    assert min(found) > 0.4 * share
    assert min(np.subtract(later, found)) > 1.3 * share


def test_what_cannot_be_known_is_refused(records):
    """On one host as well, so that it is noticed before there are many."""
    dataset = penstock.open(records)
    replicating = penstock.Cache(ram_bytes=1 << 21, replicas=True)
    mixture = penstock.mix([(dataset, 1.0), (dataset, 2.0)])
    for asked, assignment in ((dataset, "local"), (mixture, "strided")):
        options = {"cache": replicating, "rank": 0, "world_size": 1, "assignment": assignment}
        with (
            penstock.Loader(asked, 5, **options) as loader,
            pytest.raises(UsageError, match="Cache.replicas: .*leave it out"),
        ):
            next(iter(loader))
    with pytest.raises(UsageError, match="use True or False"):
        penstock.Cache(ram_bytes=1, replicas=1)


def test_lengths_looked_at_are_of_all_fields(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros((10, 3), np.uint8), b=np.zeros((10, 70), np.uint8))
    source = Addressed(penstock.open(tmp_path / "x.npz").index)
    assert sample_key_lengths(source).tolist() == [3] * 10 + [70] * 10
