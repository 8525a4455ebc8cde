"""Rank and world size: from arguments, torch.distributed or the launcher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.topology import Place, detect


def group(rank: int, world: int, initialised: bool = True) -> dict[str, Any]:
    """Loaded modules in which torch.distributed is in this state."""
    return {
        "torch.distributed": SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: initialised,
            get_rank=lambda: rank,
            get_world_size=lambda: world,
        )
    }


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, Place(0, 1, "default")),
        ({"RANK": "3", "WORLD_SIZE": "4"}, Place(3, 4, "torchrun")),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, Place(1, 2, "Slurm")),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Place(1, 2, "Slurm")),
        ({"SLURM_NTASKS": "8"}, Place(0, 1, "default")),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            Place(0, 2, "Open MPI"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Place(1, 2, "MPICH")),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, Place(1, 2, "MVAPICH2")),
        (  # mpiexec in an allocation
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "PMI_RANK": "3", "PMI_SIZE": "8"},
            Place(3, 8, "MPICH"),
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
            | {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"},
            Place(5, 8, "Open MPI"),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "6"},
            Place(1, 2, "torchrun"),
        ),
    ],
)
def test_launchers(environ: dict[str, str], place: Place) -> None:
    """The first complete pair of variables counts; an interactive Slurm allocation is no job."""
    assert detect(None, None, environ, {}) == place


def test_arguments_win() -> None:
    """Explicit coordinates are believed over everything else."""
    found = detect(0, 3, {"RANK": "1", "WORLD_SIZE": "2"}, group(1, 2))
    assert found == Place(0, 3, "arguments")


def test_group_wins_over_the_environment_and_says_so() -> None:
    """An initialised process group is believed, and a launcher that disagrees is named."""
    found = detect(None, None, {"RANK": "1", "WORLD_SIZE": "2"}, group(3, 4))
    assert (found.rank, found.world_size) == (3, 4)
    assert found.conflict == "torchrun says rank 1 of 2"
    assert detect(None, None, {"RANK": "3", "WORLD_SIZE": "4"}, group(3, 4)).conflict is None


def test_group_that_is_not_initialised_says_nothing() -> None:
    """torch.distributed without a group leaves the environment to decide."""
    assert detect(None, None, {"RANK": "1", "WORLD_SIZE": "2"}, group(0, 1, False)).rank == 1


@pytest.mark.parametrize(
    ("rank", "world", "environ", "message"),
    [
        (None, None, {"WORLD_SIZE": "4"}, "RANK is not"),
        (None, None, {"RANK": "4"}, "WORLD_SIZE is not"),
        (None, None, {"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of world size 2"),
        (None, None, {"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        (0, None, {}, "both or neither"),
        (-1, 2, {}, "rank -1"),
        (0, 0, {}, "world size 0"),
        (0.0, 1, {}, "integer"),
        (True, 2, {}, "integer"),
    ],
)
def test_contradictions(rank: Any, world: Any, environ: dict[str, str], message: str) -> None:
    """Half a pair, or a rank outside its world, is an error that prints what was found."""
    with pytest.raises(UsageError, match=message):
        detect(rank, world, environ, {})
