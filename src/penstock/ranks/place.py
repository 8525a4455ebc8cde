"""Place of this process: its share of each global batch, and the number of shares.

A `Place` comes from the caller (a `Place`, rank and world size, the mesh of torch, the sharding of
JAX), or is detected: an initialised torch.distributed, an initialised jax.distributed, the first
complete pair of environment variables that a launcher sets, else (0, 1).

Pure: the environment and the loaded modules are arguments. Neither torch nor JAX is imported: a
mesh and a sharding are known by the module of their type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..arguments import check_kind, check_whole
from ..errors import UsageError

_launchers = (
    ("torchrun", ("RANK",), ("WORLD_SIZE",)),
    # Before Slurm: processes of mpiexec in an allocation inherit the Slurm task of mpiexec.
    ("Open MPI", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("MPICH", ("PMI_RANK",), ("PMI_SIZE",)),
    ("MVAPICH2", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    ("Slurm", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)
_data_axes = ("dp_replicate", "dp_shard", "dp", "data", "batch")
"""Names of the axes that split the batch, in the libraries that make meshes."""
_jax_hosts = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
"""Variables that list the hosts of a job of JAX."""


@dataclass(frozen=True, slots=True)
class Place:
    """Data coordinate of this process: 0 <= rank < world_size.

    rank:       number of this process's share of each global batch. Processes with one rank, such
                as tensor-parallel peers, get equal batches.
    world_size: number of shares.
    source:     origin of the values, in words.
    conflict:   a launcher whose variables disagree with the process group; the group wins.
    readers:    process-group ranks of all processes that iterate a loader. By default each share
                has one process, with the share's number. Leave out processes that read nothing,
                such as the middle stages of a pipeline.

    Raises UsageError if the values are impossible.
    """

    rank: int
    world_size: int
    source: str = "arguments"
    conflict: str | None = None
    readers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        size = check_whole(f"world_size (from {self.source})", self.world_size)
        rank = check_whole(f"rank (from {self.source})", self.rank, 0, size - 1)
        object.__setattr__(self, "world_size", size)
        object.__setattr__(self, "rank", rank)
        if self.readers is None:
            return
        given: Any = check_kind("readers", self.readers, Iterable, "the ranks that read")  # type: ignore[type-abstract]
        readers = {check_whole("a rank of readers", reader, 0) for reader in given}
        if len(readers) < size:
            raise UsageError(
                f"readers has {len(readers)} ranks for {size} shares: name all of them"
            )
        object.__setattr__(self, "readers", tuple(sorted(readers)))


def choose_place(
    place: Any,
    data_axes: str | Iterable[str] | None,
    rank: int | None,
    world_size: int | None,
) -> Place | None:
    """Return the place that a caller gives in one of these ways; None if it has to be detected.

    place:      a `Place`, a torch DeviceMesh, or a jax Sharding.
    data_axes:  names of the axes of a mesh that split the batch; None takes the usual names.

    Raises UsageError if a mesh or a sharding does not say which share this process gets.
    """
    is_mesh = hasattr(place, "mesh_dim_names")  # torch's
    if data_axes is not None and not is_mesh:
        raise UsageError(f"data_axes is {data_axes!r} and place no mesh: give a mesh, or no axes")
    if place is None:
        if rank is None and world_size is None:
            return None
        if rank is None or world_size is None:
            raise UsageError(f"rank={rank}, world_size={world_size}: give both or neither")
        return Place(rank, world_size)
    if rank is not None or world_size is not None:
        raise UsageError(f"place, rank={rank} and world_size={world_size} are given: use place=")
    if is_mesh:
        return _place_in_mesh(place, data_axes)
    if isinstance(place, Place):
        return place
    if hasattr(place, "devices_indices_map"):
        return _place_in_sharding(place)
    raise UsageError(f"place is a {type(place).__name__}: give a Place, DeviceMesh or jax Sharding")


def detect(
    rank: int | None,
    world_size: int | None,
    environ: Mapping[str, str],
    modules: Mapping[str, Any],
) -> Place:
    """Detect the place of this process. Raises UsageError if the sources contradict themselves."""
    given = choose_place(None, None, rank, world_size)
    if given is not None:
        return given
    group = _detect_torch(modules) or _detect_jax(modules)
    if group is None:
        return _detect_launcher(environ) or Place(0, 1, "default")
    try:
        launched = _detect_launcher(environ)
    except UsageError:  # variables that make no sense, beside a group that does
        return group
    if launched and (launched.rank, launched.world_size) != (group.rank, group.world_size):
        conflict = f"{launched.source} says rank {launched.rank} of {launched.world_size}"
        return Place(group.rank, group.world_size, group.source, conflict)
    return group


def find_reader(place: Place, environ: Mapping[str, str], modules: Mapping[str, Any]) -> Place:
    """Return the number of this process among the processes that read, as a place among them.

    Hosts, caches and brokers count processes; batches count data coordinates. Raises UsageError if
    this process is not among the readers.
    """
    if place.readers is None or len(place.readers) == 1:
        return place
    process = detect(None, None, environ, modules)
    if process.rank not in place.readers:
        raise UsageError(f"readers {_abbreviate(place.readers)} lacks rank {process.rank}: name it")
    return Place(place.readers.index(process.rank), len(place.readers), process.source)


def suspect_processes(environ: Mapping[str, str], modules: Mapping[str, Any]) -> str | None:
    """Return the variable by which JAX would find other processes, None if there is none."""
    if "jax" not in modules:
        return None
    hints = {name: environ[name] for name in _jax_hosts if "," in environ.get(name, "")}
    if "JAX_COORDINATOR_ADDRESS" in environ:
        hints["JAX_COORDINATOR_ADDRESS"] = environ["JAX_COORDINATOR_ADDRESS"]
    return next((f"{name}={value}" for name, value in hints.items()), None)


# -- meshes ----------------------------------------------------------------------------------------


def _place_in_mesh(mesh: Any, data_axes: str | Iterable[str] | None) -> Place:
    """Return the place in a torch DeviceMesh: coordinates of its data axes, in its order."""
    names, shape = mesh.mesh_dim_names, tuple(mesh.shape)
    if not names:
        raise UsageError(f"the mesh of shape {shape} has no names: make it with mesh_dim_names=")
    axes = _choose_axes(names, data_axes)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise UsageError(f"this process is outside {mesh}: give a mesh with this process")
    sizes = [size if name in axes else 1 for name, size in zip(names, shape, strict=True)]
    rank = 0
    for number, size in zip(coordinate, sizes, strict=True):
        rank = rank * size + (number if size > 1 else 0)
    readers = mesh.mesh.flatten().tolist()
    return Place(rank, math.prod(sizes), f"mesh axes {', '.join(axes) or 'none'}", None, readers)


def _choose_axes(names: Sequence[str], data_axes: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the axes that split the batch, in the order of the mesh."""
    has = f"the mesh has the axes {', '.join(names)}"
    if data_axes is not None:
        wanted = (data_axes,) if isinstance(data_axes, str) else tuple(data_axes)
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise UsageError(f"data_axes names {unknown[0]!r}, and {has}: name some of these")
        return tuple(name for name in names if name in wanted)
    axes = tuple(name for name in names if name in _data_axes)
    if "fsdp" in names or not axes:  # fsdp may include context parallelism: its ranks share samples
        raise UsageError(f"{has}: name those that split the batch in data_axes=, () for none")
    return axes


# -- shardings -------------------------------------------------------------------------------------

Intervals = tuple[tuple[int, int], ...]
"""Rows, as ascending disjoint intervals."""


def _place_in_sharding(sharding: Any) -> Place:
    """Return the place in a jax Sharding of arrays whose first axis is the batch.

    The rows of a process are those of its devices. Processes of equal rows have one coordinate.
    """
    rows = _find_rows(sharding, len(sharding.device_set))
    processes = {device.process_index for device in sharding.addressable_devices}
    if not processes:
        raise UsageError(f"no device of this process is in {sharding}: iterate on others")
    shares = sorted(set(rows.values()))
    intervals = sorted(interval for share in shares for interval in share)
    sizes = {sum(end - start for start, end in share) for share in shares}
    overlaps = any(end > start for (_, end), (start, _) in pairwise(intervals))
    if overlaps or len(sizes) > 1:
        said = dict(sorted(rows.items()))
        raise UsageError(
            f"processes have rows {said}: give them equal or the same ones by {sharding}"
        )
    (process,) = processes
    return Place(shares.index(rows[process]), len(shares), "sharding", None, list(rows))


def check_division(sharding: Any, batch: int) -> None:
    """Check that a jax Sharding divides a global batch evenly. Raises UsageError."""
    try:
        _find_rows(sharding, batch)
    except ValueError as error:
        raise UsageError(
            f"{batch} samples are not divided evenly by {sharding} ({error}): change batch_size"
        ) from None


def _find_rows(sharding: Any, batch: int) -> dict[int, Intervals]:
    """Return each process's rows of a batch under a jax Sharding."""
    others = len(getattr(sharding, "spec", ())) - 1  # axes behind the batch
    shape = batch, *[len(sharding.device_set)] * others
    rows: dict[int, set[tuple[int, int]]] = {}
    for device, (first, *_) in sharding.devices_indices_map(shape).items():
        start, stop, _ = first.indices(batch)
        rows.setdefault(device.process_index, set()).add((start, stop))
    return {process: _join_intervals(sorted(pairs)) for process, pairs in rows.items()}


def _join_intervals(intervals: Iterable[tuple[int, int]]) -> Intervals:
    joined: list[tuple[int, int]] = []
    for start, end in intervals:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(joined)


# -- detection -------------------------------------------------------------------------------------


def _detect_torch(modules: Mapping[str, Any]) -> Place | None:
    distributed = modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Place(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _detect_jax(modules: Mapping[str, Any]) -> Place | None:
    jax = modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return None
    return Place(jax.process_index(), jax.process_count(), "jax.distributed")


def _detect_launcher(environ: Mapping[str, str]) -> Place | None:
    for launcher, rank_names, world_names in _launchers:
        rank = _find_variable(environ, rank_names)
        world = _find_variable(environ, world_names)
        if rank is not None and world is not None:
            return Place(_parse_number(rank), _parse_number(world), launcher)
        # Only torchrun: an interactive Slurm allocation has a task count and no rank.
        if launcher == "torchrun":
            _check_half(world, "RANK", 1)
            _check_half(rank, "WORLD_SIZE", 0)
    return None


def _check_half(variable: tuple[str, str] | None, other: str, most: int) -> None:
    if variable is not None and _parse_number(variable) > most:
        raise UsageError(f"{variable[0]}={variable[1]} is set but {other} is not: set both")


def _find_variable(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    return next(((name, environ[name]) for name in names if name in environ), None)


def _parse_number(variable: tuple[str, str]) -> int:
    try:
        return int(variable[1])
    except ValueError:
        raise UsageError(f"{variable[0]}={variable[1]!r} is not a number") from None


def _abbreviate(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, ... ({len(ranks)} in all)" if len(ranks) > 8 else shown
