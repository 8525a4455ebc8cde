"""Several ranks that save one state: every byte is written once, and all or nothing is committed,
whatever one rank does."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.repository import Folder
from penstock.checkpoint.staging import choose_piece_bytes, divide_blocks
from tests import warm
from tests.checkpoint import ranks as checkpoint_ranks

torch = pytest.importorskip("torch")

SIZES = st.lists(st.integers(0, 1000), max_size=30)


@given(SIZES, st.integers(1, 9), st.integers(1, 300))
def test_every_byte_is_dealt_once(sizes: list[int], ranks: int, piece_bytes: int) -> None:
    """Ranks write about equally much: no rank has more than one piece more than any other."""
    dealt = divide_blocks(sizes, ranks, piece_bytes)
    assert len(dealt) == ranks
    cuts = sorted(cut for each in dealt for cut in each)
    covered = [(block, at) for block, start, stop in cuts for at in range(start, stop)]
    assert covered == [(block, at) for block, size in enumerate(sizes) for at in range(size)]
    assert all(cut.bytes <= piece_bytes for cut in cuts)
    loads = [sum(cut.bytes for cut in each) for each in dealt]
    assert max(loads) - min(loads) <= max((cut.bytes for cut in cuts), default=0)


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=30), st.integers(1, 64))
def test_pieces_are_neither_small_nor_unfair(sizes: list[int], ranks: int) -> None:
    piece = choose_piece_bytes(sizes, ranks)
    assert 8 << 20 <= piece <= 64 << 20
    assert piece % 64 == 0
    assert ranks == 1 or piece <= max(8 << 20, sum(sizes) / ranks / 8 + 64)


@functools.cache
def crew() -> subprocess.Popen[str]:
    return warm.Popen(
        [sys.executable, checkpoint_ranks.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module", autouse=True)
def _crew_ends() -> Iterator[None]:
    yield
    if crew.cache_info().currsize:
        crew().communicate()
        crew.cache_clear()  # the module may begin again, after tests of others


def ranks(scenario: str, folder: Path, count: int) -> list[Any]:
    """Run a scenario and return the reports of its ranks."""
    stdin, stdout = crew().stdin, crew().stdout
    assert stdin is not None
    assert stdout is not None
    print(json.dumps([scenario, str(folder), count]), file=stdin, flush=True)
    found: list[Any] = json.loads(stdout.readline())
    return found


def test_written_once_by_four(tmp_path: Path) -> None:
    """The bytes of all shards are those of one copy, spread evenly; one process loads them."""
    folder = tmp_path / "x"
    said = ranks("replicated", folder, 4)
    assert all(same for _, same in said)
    written = [size for size, _ in said]
    tensors = [value for name, value in checkpoint_ranks.wide().items() if name != "n"]
    one = sum(tensor.nbytes for tensor in tensors)
    assert one <= sum(written) <= one * 1.01
    assert max(written) <= min(written) * 1.1
    found = load(folder)
    for name, value in checkpoint_ranks.wide().items():
        assert name == "n" or torch.equal(found.state[name], value)
    assert Folder(folder).read_index(Folder(folder).entry()).ranks == 4


def test_ranks_that_differ(tmp_path: Path) -> None:
    said = ranks("other_shapes", tmp_path / "x", 3)
    assert all("states of different shape at step 1" in each for each, _ in said)
    assert all(steps == [2] for _, steps in said)


def test_a_rank_that_cannot(tmp_path: Path) -> None:
    """The error of a rank is raised on all, and names the rank."""
    alone, other = ranks("unsupported", tmp_path / "x", 2)
    assert alone[0].startswith("rank 1: state.w is of type builtins.builtin_function_or_method")
    assert other[0].startswith("state.w is of type")
    assert alone[1] == other[1] == [2]


def test_all_skip_or_none(tmp_path: Path) -> None:
    said = ranks("skipped", tmp_path / "x", 2)
    assert said == [[[True, False, True], 1, [1, 3]]] * 2


def test_advice_for_all(tmp_path: Path) -> None:
    """All ranks save equally often, as the slowest one can."""
    one, two = ranks("advised", tmp_path / "x", 2)
    assert "no save has been committed yet" in one[0]
    assert one[1] == two[1]
    costs = one[1]["costs"]
    assert costs["blocked_s"] == max(one[2], two[2])
    assert costs["commit_s"] == max(one[3], two[3])
    assert costs["step_s"] == 2.0
    assert one[1]["failures"] == {"mtbf_s": 3600.0, "nodes": 2, "restart_s": 0.0}


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The others get an error soon, and nothing is committed."""
    said = ranks("lost", tmp_path / "x", 3)
    assert said[1] == "ended with 9"
    for kind, text, steps in (said[0], said[2]):
        assert kind == "WorkerError"
        assert "restart the job from the last checkpoint" in text
        assert steps == []
    assert [path.name for path in (tmp_path / "x").iterdir()] == [".lock"]


def test_a_folder_in_use(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "x"):
        said = ranks("second", tmp_path / "x", 2)
    assert all("written by another job" in each for each in said)


@pytest.mark.long
def test_tiers_of_several_hosts(tmp_path: Path) -> None:
    """The slowest drain holds no rank up; ranks of a host share its tiers."""
    said = ranks("hosts", tmp_path / "x", 4)
    assert [each[:5] for each in said] == [[[0, 1, 2], [], 2, [0, 1, 2], True]] * 4
    assert sum(each[5] for each in said) < 17 << 20
    assert {path.name for path in tmp_path.glob("tier-*/*")} == {".lock"}


@pytest.mark.long
def test_a_home_that_fails_for_all(tmp_path: Path) -> None:
    """Each error is raised once, at the same call of all ranks, and no held save is lost."""
    said = ranks("homeless", tmp_path / "x", 3)
    assert said[0] == said[1] == said[2]
    failures, held, steps = said[0]
    assert {kind for _, kind in failures} == {"StorageError"}
    assert len(held) > 2
    assert steps == [*held, 9][-3:]


@pytest.mark.long
def test_held_on_some_tiers_and_home(tmp_path: Path) -> None:
    """Held saves are committed by a job of another number of ranks, from where their shards lie."""
    home = tmp_path / "x"
    said = ranks("partly", home, 3)
    assert said[0] == "ended with 9"
    assert said[1:] == [["WorkerError", str(home)], ["WorkerError", str(tmp_path / "tier-2")]]
    assert load(home).step == 1
    with Checkpoints(home, local=[tmp_path / f"tier-{rank}" for rank in range(3)]) as checkpoints:
        assert checkpoints.steps() == [1, 2]
        found = checkpoints.load()
    wanted = checkpoint_ranks.large(2)
    assert all(torch.equal(found.state[name], wanted[name]) for name in wanted)


@pytest.mark.long
def test_ranks_that_name_other_tiers(tmp_path: Path) -> None:
    for told in ranks("unlike", tmp_path / "x", 2):
        assert f"{tmp_path / 'a'} is written by another job" in told
