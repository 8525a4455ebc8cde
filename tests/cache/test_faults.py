"""The cache when processes are killed, stopped or hang: no other loses a batch, or waits long."""

from __future__ import annotations

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from tests.cache.ranks import Rank, Taken, begin, ended
from tests.cache.test_cache import Gathering
from tests.slices import first, fraction

pytest.importorskip("zmq")

SAMPLES, WIDTH, BATCH = 2000, 100, 20
LOADER = {"global_batch_size": BATCH, "seed": 1, "assignment": "strided"}
LITTLE = {"readahead_bytes": 1}  # one step at a time: what is asked for now is not here yet
BOUNDS = {"peer_timeout_s": 4.0, "peer_heartbeat_s": 0.5, "peer_silent_s": 2.0}
WAIT_S = 2 * BOUNDS["peer_timeout_s"]
"""Longest wait for a batch: a peer's deadline, once, and a busy machine."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of these takes several reads, of which a rank with no bandwidth makes the first."""
    path = tmp_path_factory.mktemp("rows") / "large.npy"
    np.save(path, np.random.default_rng(9).integers(0, 256, (800, 1 << 15), np.uint8))
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(8).integers(0, 256, (SAMPLES, WIDTH), np.uint8))
    return path


def alone(path: Path, rank: int, epochs: int = 1) -> list[list[int]]:
    """The batches that a rank of two has to get: those of a loader without a cache, in a process
    without others."""
    with penstock.Loader(penstock.open(path), rank=rank, world_size=2, **LOADER) as loader:
        return [batch.ids.tolist() for _ in range(epochs) for batch in loader]


def ids(taken: list[Taken]) -> list[list[int]]:
    return [each.ids for each in taken]


def longest_s(taken: list[Taken]) -> float:
    return max(each.waited_s for each in taken)


def two(path: Path, hosts: list[str], *budgets: dict[str, Any], **cache: Any) -> Any:
    """Two ranks on these hosts."""
    return ended(
        [
            Rank(
                path,
                rank,
                2,
                cache={"ram_bytes": 1 << 20, "host": host, "listen": "127.0.0.1"} | cache,
                loader=LOADER,
                budget=budget,
                bounds=BOUNDS,
            )
            for rank, (host, budget) in enumerate(zip(hosts, budgets, strict=True))
        ]
    )


def test_claims_of_a_killed_rank_are_taken_over(large: Path) -> None:
    """A rank dies while it reads; the other one of its host, which wants some of the same cache
    blocks, reads them and goes on."""
    cache_block, width = 2, 1 << 15
    dying, other = alone(large, 0), alone(large, 1)
    claimed = {sample // cache_block for sample in dying[0]}
    wanted = [{sample // cache_block for sample in step} for step in other]
    blocked = next(step for step, cache_blocks in enumerate(wanted) if cache_blocks & claimed)
    assert blocked > 0

    never = LITTLE | {"bytes_per_s": 1e-3}
    hosts = ["one", "one"]
    room = {"ram_bytes": 64 << 20, "cache_block_bytes": cache_block * width}
    with two(large, hosts, never, LITTLE, **room) as (victim, survivor):
        begin([victim, survivor])
        victim.tell("claim")
        assert victim.hear() == "claimed"
        survivor.tell("take", None)
        reading = survivor.batches()
        taken = [next(reading) for _ in range(blocked)]  # the next one waits for the other rank
        victim.send(signal.SIGKILL)
        taken += reading
        stats = survivor.stats()
    assert ids(taken) == other
    assert stats["slab_taken_over"] == len(claimed & set().union(*wanted))
    assert stats["loaded_bytes"] == cache_block * width * len(set().union(*wanted))
    assert stats["direct_bytes"] == 0
    assert longest_s(taken) < limits.busy_cache_block_s / 3


@pytest.mark.long
def test_a_killed_host_costs_reads(path: Path) -> None:
    """The killed host's samples are read from storage, without a wait for it."""
    with two(path, ["one", "two"], LITTLE, LITTLE, cache_block_bytes=1) as (victim, survivor):
        begin([victim, survivor])
        victim.take(10)
        taken = survivor.take(10)
        before = survivor.stats()
        assert before["peer_bytes"] > 0
        victim.send(signal.SIGKILL)
        taken += survivor.take()
        stats = survivor.stats()
        begin([survivor])
        again = survivor.take()
    assert ids(taken + again) == alone(path, 1, epochs=2)
    assert stats["fetches_gone"] > 0
    assert stats["direct_bytes"] > before["direct_bytes"] == 0
    total = stats["ram_bytes"] + stats["peer_bytes"] + stats["direct_bytes"]
    assert total == SAMPLES // 2 * WIDTH
    assert longest_s(taken + again) < BOUNDS["peer_silent_s"]


@pytest.mark.parametrize("how", first(1, ["stopped", "hangs"]))
def test_a_host_that_answers_no_more(how: str, path: Path) -> None:
    """Its process is stopped, or hangs where it lets no other thread of it run: one wait, no longer
    than a peer's deadline, and then its samples come from storage. When it goes on, from it."""
    with two(path, ["one", "two"], LITTLE, LITTLE, cache_block_bytes=1) as (still, other):
        begin([still, other])
        taken = other.take(10)
        if how == "stopped":
            still.send(signal.SIGSTOP)
        else:
            still.tell("hang")
            assert still.hear() == "hangs"
        taken += other.take()
        stats = other.stats()
        assert stats["direct_bytes"] > 0
        assert longest_s(taken) < WAIT_S
        assert sum(each.waited_s for each in taken) < WAIT_S
        if how == "stopped":
            still.send(signal.SIGCONT)
        else:
            still.send(signal.SIGUSR1)
            assert still.hear() == "goes on"
        epochs = 1
        while other.stats()["peer_bytes"] == stats["peer_bytes"]:
            begin([other])
            taken += other.take()
            epochs += 1
    assert ids(taken) == alone(path, 1, epochs)


def run_on(
    path: Path, hosts: list[int], state: dict[str, Any] | None, steps: int | None, assignment: str
) -> tuple[list[list[list[int]]], dict[str, Any]]:
    """So many steps, or all that are left, by threads as ranks: what each got, and where the run
    stands then."""
    world = len(hosts)
    gathering = Gathering(world)
    data = np.load(path)

    def rank(number: int) -> tuple[list[list[int]], dict[str, Any]]:
        cache = penstock.Cache(
            ram_bytes=SAMPLES * WIDTH // 4,
            cache_block_bytes=5 * WIDTH,
            host=str(hosts[number]),
            listen="127.0.0.1",
            gather=gathering.of(number),
        )
        options = LOADER | {"assignment": assignment, "rank": number, "world_size": world}
        with penstock.Loader(penstock.open(path), cache=cache, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found = []
            for batch in itertools.islice(loader, steps):
                assert (batch["data"] == data[batch.ids]).all()
                found.append(batch.ids.tolist())
            return found, loader.state_dict()

    with ThreadPoolExecutor(world) as threads:
        ranks = [each.result() for each in [threads.submit(rank, n) for n in range(world)]]
    shares, states = zip(*ranks, strict=True)
    assert all(each == states[0] for each in states)
    return list(shares), states[0]


@fraction(10)
@given(
    cuts=st.lists(st.integers(1, SAMPLES // BATCH - 1), min_size=3, max_size=3, unique=True),
    assignment=st.sampled_from(["local", "strided", "contiguous"]),
)
def test_a_run_goes_on_with_other_ranks(path: Path, cuts: list[int], assignment: str) -> None:
    """Stopped and gone on from its state on 4, 3, 8 ranks and 1, on other hosts each time: the
    global batches of a run that nothing happened to, in order where the assignment gives one."""
    with penstock.Loader(penstock.open(path), rank=0, world_size=1, **LOADER) as loader:
        expected = [batch.ids.tolist() for batch in loader]
    state = None
    found = []
    ends = [*sorted(cuts), None]
    for hosts, begins, end in zip(
        [[0, 0, 1, 1], [0, 1, 0], [0, 1, 2, 3] * 2, [0]], [0, *ends[:-1]], ends, strict=True
    ):
        shares, state = run_on(path, hosts, state, end and end - begins, assignment)
        for rows in zip(*shares, strict=True):
            together = [*itertools.chain(*rows)]
            if assignment == "strided":
                for rank, share in enumerate(rows):
                    together[rank :: len(rows)] = share
            found.append(together)
    if assignment == "local":
        found, expected = map(sorted, found), map(sorted, expected)
    assert list(found) == list(expected)
