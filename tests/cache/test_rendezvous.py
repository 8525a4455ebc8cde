"""Ranks find each other by what started them, and through MPI only where it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from penstock.cache.rendezvous import exchange_values, find_gather
from penstock.errors import UsageError
from penstock.topology import Place
from tests.slices import first

MPI_BEGUN = """
import json, os, sys
from penstock.errors import UsageError
from penstock.cache.rendezvous import find_gather
from penstock.topology import Place, detect
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
        with pytest.raises(UsageError, match=r"has 1 ranks, the loader 2 .*gather="):
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
    with pytest.raises(UsageError, match="in order of rank"):
        exchange_values(gather, Place(0, 2, "arguments"), lambda: {"rank": 0})
