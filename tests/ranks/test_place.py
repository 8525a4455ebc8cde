"""Rank and world size: from arguments, torch.distributed or the launcher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.ranks.place import Place, choose_place, detect, find_reader, suspect_processes


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


def coordinated(rank: int, world: int, initialised: bool = True) -> dict[str, Any]:
    """Loaded modules in which jax.distributed is in this state."""
    return {
        "jax": SimpleNamespace(
            distributed=SimpleNamespace(is_initialized=lambda: initialised),
            process_index=lambda: rank,
            process_count=lambda: world,
        )
    }


def test_processes_of_jax() -> None:
    """Where jax.distributed is initialised it is asked, after torch and before the environment."""
    environ = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    found = detect(None, None, environ, coordinated(3, 4))
    assert found == Place(3, 4, "jax.distributed", "Slurm says rank 1 of 2")
    assert detect(None, None, environ, coordinated(0, 1, False)) == Place(1, 2, "Slurm")
    both = group(0, 2) | coordinated(3, 4)
    assert detect(None, None, {}, both) == Place(0, 2, "torch.distributed")


@pytest.mark.parametrize(
    "environ",
    [{"WORLD_SIZE": "2"}, {"RANK": "1"}, {"RANK": "x", "WORLD_SIZE": "2"}],
    ids=["no rank", "no world", "no number"],
)
def test_group_is_asked_before_half_an_environment(environ: dict[str, str]) -> None:
    """A launcher that sets WORLD_SIZE alone, as Lightning's own does, has made a group by then."""
    assert detect(None, None, environ, group(1, 2)) == Place(1, 2, "torch.distributed")
    assert detect(None, None, environ, coordinated(1, 2)) == Place(1, 2, "jax.distributed")


def test_hints_at_other_processes_of_jax() -> None:
    """Variables of JAX that tell of others hint at them, in processes that have loaded it."""
    for environ, hint in (
        ({"JAX_COORDINATOR_ADDRESS": "h:1"}, "JAX_COORDINATOR_ADDRESS=h:1"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_WORKER_HOSTNAMES=a,b"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        ({}, None),
    ):
        assert suspect_processes(environ, coordinated(0, 1, False)) == hint
        assert suspect_processes(environ, {}) is None


def test_processes_that_read() -> None:
    """Readers are numbered by their ranks in the group; without any, each share is one process."""
    place = Place(1, 2, readers=[7, 4, 5, 6])
    assert place.readers == (4, 5, 6, 7)
    assert find_reader(place, {}, group(6, 8)) == Place(2, 4, "torch.distributed")
    assert find_reader(Place(1, 2), {}, group(6, 8)) == Place(1, 2)
    with pytest.raises(UsageError, match="4, 5, 6, 7 lacks rank 3: name"):
        find_reader(place, {}, group(3, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Place(0, 2), None, 0, 2), "rank=0 and world_size=2 are given: use place="),
        ((Place(0, 2), None, None, 2), "world_size=2 are given: use place="),
        ((Place(0, 2), ("dp",), None, None), "place no mesh"),
        ((None, ("dp",), None, None), "place no mesh"),
        (((0, 2), None, None, None), "place is a tuple: give a Place"),
    ],
)
def test_places_that_are_none(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_place(*arguments)


@pytest.mark.parametrize("readers", [[0], [0, 0], [-1, 1], "01", 2, [0.0, 1.0]])
def test_readers_that_are_none(readers: Any) -> None:
    """Fewer processes than shares, or values that are no ranks, are refused."""
    with pytest.raises(UsageError, match="readers"):
        Place(0, 2, readers=readers)


class Sharding:
    """A sharding of rows among devices, as JAX shows it: the process and rows of each device."""

    def __init__(self, own: int, devices: list[tuple[int, Rows]]) -> None:
        self.device_set = {SimpleDevice(number, *each) for number, each in enumerate(devices)}
        self.addressable_devices = {each for each in self.device_set if each.process_index == own}

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[SimpleDevice, tuple[Rows]]:
        return {each: (each.rows,) for each in self.device_set}


class SimpleDevice(NamedTuple):
    number: int
    process_index: int
    rows: Any


class Rows(NamedTuple):
    """An interval of rows, which `indices` gives as that of a slice does."""

    start: int
    stop: int

    def indices(self, count: int) -> tuple[int, int, int]:
        return self.start, self.stop, 1


@given(
    parts=st.integers(1, 6),
    processes=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=5),
)
def test_coordinates_of_a_sharding(parts: int, processes: list[list[int]]) -> None:
    """Processes with equal rows have one coordinate, in the order of the rows; shares that overlap
    or differ in size are refused, with the rows of all."""
    devices = [
        (process, Rows(4 * (part % parts), 4 * (part % parts) + 4))
        for process, held in enumerate(processes)
        for part in held
    ]
    rows = [frozenset(part % parts for part in held) for held in processes]
    shares = sorted(set(rows), key=min)
    is_fair = len({len(share) for share in shares}) == 1 and (
        sum(map(len, shares)) == len(frozenset.union(*shares))
    )
    for process, own in enumerate(rows):
        sharding = Sharding(process, devices)
        if is_fair:
            place = choose_place(sharding, None, None, None)
            assert place == Place(
                shares.index(own), len(shares), "sharding", None, range(len(processes))
            )
        else:
            with pytest.raises(UsageError, match=r"rows \{0: "):
                choose_place(sharding, None, None, None)
    with pytest.raises(UsageError, match="no device of this process"):
        choose_place(Sharding(len(processes), devices), None, None, None)


def test_group_that_is_not_initialised_says_nothing() -> None:
    """torch.distributed without a group leaves the environment to decide."""
    assert detect(None, None, {"RANK": "1", "WORLD_SIZE": "2"}, group(0, 1, False)).rank == 1


@pytest.mark.parametrize(
    ("rank", "world", "environ", "message"),
    [
        (None, None, {"WORLD_SIZE": "4"}, "RANK is not"),
        (None, None, {"RANK": "4"}, "WORLD_SIZE is not"),
        (None, None, {"RANK": "2", "WORLD_SIZE": "2"}, "torchrun.* is 2: .* 0 to 1"),
        (None, None, {"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        (0, None, {}, "both or neither"),
        (-1, 2, {}, "rank .* is -1"),
        (0, 0, {}, "world_size .* is 0"),
        (0.0, 1, {}, "whole number"),
        (True, 2, {}, "whole number"),
    ],
)
def test_contradictions(rank: Any, world: Any, environ: dict[str, str], message: str) -> None:
    """Half a pair, or a rank outside its world, is an error that prints what was found."""
    with pytest.raises(UsageError, match=message):
        detect(rank, world, environ, {})
