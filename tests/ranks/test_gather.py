"""Ranks find each other by what started them, and through MPI only where it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.ranks.gather import exchange_values, find_gather, read_texts
from penstock.ranks.place import Place
from tests.slices import first

MPI_BEGUN = """
import json, os, sys
from penstock.errors import UsageError
from penstock.ranks.gather import find_gather
from penstock.ranks.place import Place, detect
try:
    find_gather(Place(*json.loads(sys.argv[1])), sys.modules, os.environ)
except UsageError as error:
    said = str(error)
print(json.dumps([said, [name for name in sys.modules if name.startswith("mpi4py")]]))
"""


@pytest.mark.parametrize(
    ("place", "environ"),
    first(
        1,
        [
            (Place(1, 2, "torchrun"), {"RANK": "1", "WORLD_SIZE": "2"}),
            (Place(0, 2, "arguments"), {}),
            (Place(1, 2, "Slurm"), {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}),
        ],
    ),
    ids=lambda value: value.source if isinstance(value, Place) else "",
)
def test_mpi_begins_where_it_was_started(place: Place, environ: dict[str, str]) -> None:
    """Other processes do not even load it, and are told what there is to do."""
    done = subprocess.run(
        [sys.executable, "-c", MPI_BEGUN, json.dumps([*_fields(place)])],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environ},
    )
    said, loaded = json.loads(done.stdout)
    assert "torch.distributed" in said
    assert "gather=" in said
    assert loaded == []


def _fields(place: Place) -> tuple[Any, ...]:
    return place.rank, place.world_size, place.source


def test_one_rank_needs_nobody() -> None:
    assert find_gather(Place(0, 1, "default"), {}, {})("x") == ["x"]


def test_a_group_of_more_ranks_than_share_the_data() -> None:
    """No process can know which of its ranks hold the same place: the user has to say it."""
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(UsageError, match=r"1 ranks in the group, not 2: .*readers="):
            find_gather(Place(0, 2, "arguments"), sys.modules, {})
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    "gather",
    [
        lambda text: [text],
        lambda text: [text, text, text],
        lambda text: ['{"rank": 1}', text],
    ],
    ids=["too few", "too many", "another order"],
)
def test_a_gather_that_is_none(gather: Any) -> None:
    with pytest.raises(UsageError, match="all ranks' texts, by rank"):
        exchange_values(gather, Place(0, 2, "arguments"), lambda: {"rank": 0})


class _Said(Exception):
    pass


def meet(secrets: list[str], failing: int, forged: int = -1) -> list[Any]:
    """Make ranks with these secrets meet; return the values, or the error, of each. `forged` is a
    rank whose text somebody else replaces by one of another rank."""
    world = len(secrets)
    texts = []

    def say(rank: int) -> dict[str, Any]:
        if rank == failing:
            raise ValueError("fails")
        return {"key": rank}

    def exchange(rank: int, gather: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_SECRET", secrets[rank])
            return exchange_values(gather, Place(rank, world, "arguments"), lambda: say(rank))

    def keep(text: str) -> list[str]:
        texts.append(text)
        raise _Said

    for rank in range(world):
        with pytest.raises(_Said):
            exchange(rank, keep)
    found: list[Any] = []
    for rank in range(world):
        own, seen = texts[rank], list(texts)
        if forged >= 0:
            seen[forged] = texts[(forged + 1) % world]
        seen[rank] = own
        try:
            found.append(exchange(rank, lambda _, seen=seen: list(seen)))
        except (UsageError, ValueError) as error:
            found.append(str(error))
    return found


@given(
    secrets=st.lists(st.sampled_from(["", "one", "two"]), min_size=2, max_size=4),
    failing=st.integers(-1, 3),
)
def test_ranks_know_each_other_by_their_secret(secrets: list[str], failing: int) -> None:
    """With one secret, or none, they get each other's values; else all of them are told."""
    world = len(secrets)
    for rank, found in enumerate(meet(secrets, failing)):
        if rank == failing:
            assert found == "fails"
        elif len(set(secrets)) > 1:
            assert "PENSTOCK_SECRET" in found or "cannot take part" in found
        elif failing < world and failing >= 0:
            assert found == f"rank {failing} cannot take part: fails"
        else:
            assert found == [{"key": each} for each in range(world)]


@pytest.mark.parametrize("forged", [0, 1, 2])
def test_nobody_speaks_for_another_rank(forged: int) -> None:
    """A text that was made with the secret, but by another rank, is refused."""
    for rank, found in enumerate(meet(["one"] * 3, -1, forged)):
        if rank != forged:
            assert f"rank {forged} fails authentication" in found


said = st.one_of(
    st.just('{"rank": 1}'),
    st.just('{"error": "no memory"}'),
    st.sampled_from(["", "[]", "7", "null", "{", "[" * 5000, None, b"{}", {}]),
)
"""What a gather may return for a rank: its values, its error, or what it did not say."""


@given(texts=st.lists(said, min_size=1, max_size=4), missing=st.integers(-1, 3))
def test_ranks_that_hold_the_same_texts_end_the_same_way(texts: list[Any], missing: int) -> None:
    """All have the same values, or all a UsageError: the same one, if no text is missing."""
    world = len(texts)
    whole = [text for rank, text in enumerate(texts) if rank != missing]
    ends: list[Any] = []
    for rank in range(world):
        try:
            ends.append(read_texts(whole, texts[rank], Place(rank, world, "arguments"), b""))
        except UsageError as error:
            ends.append(str(error))
    if missing in range(world):
        assert all("gather returned" in end for end in ends)
    else:
        assert all(end == ends[0] for end in ends)
        assert isinstance(ends[0], str) == any(text != '{"rank": 1}' for text in texts)
        failed = [rank for rank, text in enumerate(texts) if text == '{"error": "no memory"}']
        if len(failed) == world:
            assert ends[0] == "rank 0 cannot take part: no memory"


def test_a_gather_that_returns_no_list() -> None:
    with pytest.raises(UsageError, match="all ranks' texts"):
        exchange_values(lambda text: text, Place(0, 2, "arguments"), dict)  # type: ignore[arg-type,return-value]


def test_what_ranks_say_alike_is_kept_once() -> None:
    """Names and texts of 10^5 ranks are mostly the same: they are the same objects."""
    said = [json.dumps({"data": "fingerprint of data", "rank": rank}) for rank in range(3)]
    first_rank, *others = read_texts(said, said[0], Place(0, 3), b"")
    for values in others:
        assert values["data"] is first_rank["data"]
        assert all(ours is theirs for ours, theirs in zip(values, first_rank, strict=True))
    assert [values["rank"] for values in (first_rank, *others)] == [0, 1, 2]
