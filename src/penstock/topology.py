"""Topology: the rank of this process, and the number of ranks.

Detection order: explicit arguments, an initialised torch.distributed group, the first complete
pair of environment variables that a launcher sets, else (0, 1). Pure: the environment and the
loaded modules are arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import UsageError

_launchers = (
    ("torchrun", ("RANK",), ("WORLD_SIZE",)),
    # Before Slurm: what mpiexec starts in an allocation inherits the task of mpiexec itself.
    ("Open MPI", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("MPICH", ("PMI_RANK",), ("PMI_SIZE",)),
    ("MVAPICH2", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    ("Slurm", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Data-parallel coordinates: 0 <= rank < world_size.

    source:    origin of the values, in words.
    conflict:  the launcher whose variables disagree with the process group, which has priority.
    """

    rank: int
    world_size: int
    source: str
    conflict: str | None = None


def detect(
    rank: int | None,
    world_size: int | None,
    environ: Mapping[str, str],
    modules: Mapping[str, Any],
) -> Place:
    """Detect the place of this process. Raises UsageError if the sources contradict themselves."""
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise UsageError(
                f"rank={rank}, world_size={world_size}: give both or neither "
                "(neither takes them from torch.distributed or the launcher)"
            )
        return _check_place(rank, world_size, "arguments")
    launched = _detect_launcher(environ)
    group = _detect_torch(modules)
    if group is None:
        return launched or Place(0, 1, "default")
    if launched and (launched.rank, launched.world_size) != (group.rank, group.world_size):
        conflict = f"{launched.source} says rank {launched.rank} of {launched.world_size}"
        return Place(group.rank, group.world_size, group.source, conflict)
    return group


def _detect_torch(modules: Mapping[str, Any]) -> Place | None:
    distributed = modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _check_place(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _detect_launcher(environ: Mapping[str, str]) -> Place | None:
    for launcher, rank_names, world_names in _launchers:
        rank = _find_variable(environ, rank_names)
        world = _find_variable(environ, world_names)
        if rank is not None and world is not None:
            return _check_place(_parse_number(rank), _parse_number(world), launcher)
        # An interactive Slurm allocation shows its task count to a plain process: no rank, no job.
        if launcher == "torchrun" and world is not None and _parse_number(world) > 1:
            raise UsageError(
                f"WORLD_SIZE={world[1]} is set but RANK is not: start with torchrun, set both, or "
                "pass rank= and world_size="
            )
        if launcher == "torchrun" and rank is not None and _parse_number(rank) > 0:
            raise UsageError(
                f"RANK={rank[1]} is set but WORLD_SIZE is not: start with torchrun, set both, or "
                "pass rank= and world_size="
            )
    return None


def _find_variable(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    return next(((name, environ[name]) for name in names if name in environ), None)


def _parse_number(variable: tuple[str, str]) -> int:
    try:
        return int(variable[1])
    except ValueError:
        raise UsageError(f"{variable[0]}={variable[1]!r} is not a number") from None


def _check_place(rank: int, world_size: int, source: str) -> Place:
    for name, value in (("rank", rank), ("world_size", world_size)):
        is_array = getattr(value, "shape", ()) != ()
        if isinstance(value, bool) or is_array or not hasattr(value, "__index__"):
            raise UsageError(f"{name} is {value!r} (from {source}): use an integer")
    rank, world_size = operator.index(rank), operator.index(world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(
            f"rank {rank} of world size {world_size} (from {source}) is not possible: "
            "use a rank in 0..world_size-1"
        )
    return Place(rank, world_size, source)
