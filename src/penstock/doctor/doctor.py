"""Examination of some data on this machine before a run.

It lists limits of the machine, the settings a loader would choose, and the resource that would
bind. `examine` opens the data, measures, and changes nothing. Its results are values, to be
printed or written as JSON.
"""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from importlib import metadata
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import __version__, limits
from ..arguments import check_path, suggest_path
from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.sample import Decode, choose_gap
from ..engine.host import Machine, Mount, find_mount, read_machine, readahead_bytes
from ..engine.open import is_url, open_engine
from ..engine.page_cache import Residency, measure_residency
from ..engine.protocol import ReadMethod
from ..engine.read_method import LOCAL, compute_open_files_max, find_file_system, probe_io_uring
from ..engine.store import Posix, build_storage_error
from ..errors import MissingError, UsageError
from ..index.read_cost import summarize_cost
from ..loader.auto_shuffle import choose_shuffle, record_choice
from ..loader.batch import choose_readahead
from ..order.shuffling import Blocking
from ..plan.cache_blocks import CacheBlockChoice, choose_cache_block
from .ceilings import (
    DecodingCeiling,
    StorageCeiling,
    estimate_demand,
    find_decode,
    measure_copy_rate,
    measure_decoding,
    measure_opening,
    measure_storage,
    measure_unpacking,
    measure_writing,
    read_link_speed,
)
from .chunking import fit_arrays
from .films import examine_films
from .roofline import (
    DataProfile,
    Demand,
    Resource,
    Roofline,
    Supply,
    computing_supply,
    estimate_roofline,
)

Level = Literal["good", "note", "warning"]


class Finding(NamedTuple):
    """One property of the machine or the data, and its meaning; a warning says what to do."""

    level: Level
    about: str
    says: str


class Setting(NamedTuple):
    """A setting that penstock chooses by default, with the reason."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """The job that will use the data.

    step_s: compute time for one batch; None if not known.
    ranks:  on this host; workers: processes of each, 0 for threads.
    """

    batch_size: int = 256
    ranks: int = 1
    workers: int = 0
    readahead_bytes: int = limits.readahead_bytes_default
    step_s: float | None = None
    decode: Decode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All findings about some data on this machine.

    first: roofline of an epoch that reads storage.
    later: roofline of the epochs after it, if the page cache holds the data by then.
    extras: what to install for this data, such as "pillow".
    """

    path: str
    dataset: Dataset | None
    machine: Machine
    mount: Mount | None
    cached: Residency | None = None
    latency_ns: float | None = None
    demand: Demand | None = None
    supplies: Mapping[Resource, Supply]
    written: Supply | None = None
    link: Supply | None = None
    settings: tuple[Setting, ...] = ()
    findings: tuple[Finding, ...] = ()
    first: Roofline | None = None
    later: Roofline | None = None
    extras: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the examination as JSON values."""
        data = self.dataset
        values = {item.name: _to_json(getattr(self, item.name)) for item in fields(self)}
        del values["dataset"]
        return values | {
            "format": None if data is None else data.index.format,
            "samples": 0 if data is None else len(data),
            "files": 0 if data is None else len(data.index.files),
            "bytes": 0 if data is None else data.index.total_bytes,
            "mean_bytes": 0.0 if data is None else data.index.mean_bytes,
        }


def _to_json(value: Any) -> Any:
    if hasattr(value, "as_json"):
        return value.as_json()
    if is_dataclass(value) and not isinstance(value, Dataset):
        return asdict(value)  # type: ignore[arg-type]
    if hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, tuple):
        return list(map(_to_json, value))
    if isinstance(value, Mapping):
        return {name: _to_json(item) for name, item in value.items()}
    return value


Seen = Callable[[int, int], object]
"""Function called with the number of finished measurements, and of all."""


def is_empty(path: str) -> bool:
    """True if a path is a folder that holds no data yet. StorageError if it cannot be listed."""
    return not is_url(path) and os.path.isdir(path) and not Posix(path).some(1)


def examine_folder(path: str, *, write: bool = False) -> Examination:
    """Examine a folder that data will be put in.

    write:  also measure how fast it can be written to.
    """
    path = check_path("path", path)
    if not os.path.isdir(path):
        near = suggest_path(path)
        raise MissingError(f"{path} is not a folder{near}: check the path, and that it is mounted")
    machine, mount = read_machine(), find_mount(path)
    findings = [*_examine_machine(machine, PlannedJob(), 0.0), *_examine_place(path, mount)]
    findings.append(_examine_room(path))
    return Examination(
        path=path,
        dataset=None,
        machine=machine,
        mount=mount,
        supplies={"copy": measure_copy_rate()},
        written=measure_writing(path) if write else None,
        link=read_link_speed(),
        findings=tuple(findings),
    )


def examine_host() -> list[Finding]:
    """Examine this machine alone: versions, processors, memory, and what the kernel allows."""
    versions = (
        f"penstock {__version__}, Python {platform.python_version()}, numpy {np.__version__}, "
        f"{' '.join(platform.libc_ver())}, Linux {platform.release()} on {platform.machine()}"
    )
    return [
        Finding("good", "versions", versions),
        *_examine_machine(read_machine(), PlannedJob(), 0.0),
    ]


def examine(
    dataset: Dataset,
    job: PlannedJob,
    *,
    budget: Budget | None = None,
    write: bool = False,
    seen: Seen = lambda done, total: None,
) -> Examination:
    """Examine data that was opened; takes 2 to 3 s.

    write:  also measure how fast its folder can be written to.

    Raises the error of a read that fails, and UsageError if the decode function fails.
    """
    steps = 5
    seen(0, steps)
    index, budget = dataset.index, budget or Budget()
    files, is_local = index.files, not is_url(index.files.root)
    machine = read_machine()
    mount = find_mount(files.path(0) if len(files) else files.root) if is_local else None
    engine = open_engine(files, budget, index.mean_bytes)
    choice = engine.choice
    engine.close()
    cached = measure_residency(files) if is_local else None
    seen(1, steps)
    read = measure_storage(dataset, budget)
    seen(2, steps)
    supplies: dict[Resource, Supply] = {"copy": measure_copy_rate()}
    if read is not None:
        supplies |= {"bandwidth": read.bandwidth, "iops": read.iops}
    opens = measure_opening(files)
    if opens is not None:
        supplies["metadata"] = opens
    seen(3, steps)
    decoded, refusal = _measure_decoding(dataset, job)
    demand = estimate_demand(dataset, choice, decoded.decoded_bytes if decoded else 0.0)
    if decoded is not None:
        supplies["decode"] = _limit_to_quota(decoded.all_cores, machine)
    if job.step_s is not None:
        supplies["compute"] = computing_supply(job.step_s, job.batch_size, job.ranks)
    seen(4, steps)
    first, later = _estimate_epochs(dataset, machine, supplies, demand)
    folder = files.root if os.path.isdir(files.root) else os.path.dirname(files.root)
    examination = Examination(
        path=dataset.path,
        dataset=dataset,
        machine=machine,
        mount=mount,
        cached=cached,
        latency_ns=None if read is None else read.latency_ns,
        demand=demand,
        supplies=supplies,
        written=measure_writing(folder) if write and is_local else None,
        link=read_link_speed(),
        settings=tuple(_list_settings(dataset, job, budget, choice, machine, read)),
        findings=(*_list_findings(dataset, job, machine, mount, cached, read), *refusal),
        first=first,
        later=later,
        extras=tuple(_find_missing_extras(dataset)),
    )
    seen(5, steps)
    return examination


def _measure_decoding(
    dataset: Dataset, job: PlannedJob
) -> tuple[DecodingCeiling | None, list[Finding]]:
    """Measure the job's decode, or what the samples need by themselves: images, audio, compressed
    chunks. The findings say what could not be measured."""
    if job.decode is not None:
        return measure_decoding(dataset, job.decode), []
    if len(dataset) == 0:
        return None, []
    unpacked = measure_unpacking(dataset)
    ceiling = None if unpacked is None else DecodingCeiling(unpacked, 0.0)
    kind, decode = find_decode(dataset)
    try:
        if decode is not None:
            ceiling = measure_decoding(dataset, decode)
            supply = ceiling.all_cores
            rate, how = supply.per_s, f"{supply.how}; --decode times yours"
            if unpacked is not None:
                rate, how = 1 / (1 / rate + 1 / unpacked.per_s), f"{unpacked.how}; {how}"
            ceiling = ceiling._replace(all_cores=Supply(rate, how))
        elif kind:
            raise UsageError(f"no library here decodes {kind}: pip install soundfile")
    except UsageError as error:
        says = f"it was not measured ({error}), and may bind: time yours by --decode"
        return ceiling, [Finding("warning", "decoding", says)]
    return ceiling, []


def _limit_to_quota(supply: Supply, machine: Machine) -> Supply:
    """Reduce a rate to the CPU quota: a short measurement may use the time of a whole period."""
    share = machine.usable_cores / machine.cores
    if share == 1:
        return supply
    quota = f"of {machine.usable_cores:g} of {machine.cores} cores, which is the quota"
    return Supply(supply.per_s * share, f"{supply.how}; {quota}")


def _estimate_epochs(
    dataset: Dataset, machine: Machine, supplies: Mapping[Resource, Supply], demand: Demand
) -> tuple[Roofline | None, Roofline | None]:
    index = dataset.index
    if index.count == 0 or index.total_bytes == 0:
        return None, None
    data = DataProfile(
        total_bytes=index.total_bytes,
        memory_bytes=machine.room_bytes,
        own_files=len(index.files) >= index.count,
    )
    first = estimate_roofline(supplies, demand, data=data)
    if index.total_bytes > machine.room_bytes:
        return first, None
    return first, estimate_roofline(supplies, demand.cached(1.0), data=data)


# -- what a loader would choose --------------------------------------------------------------------


def _list_settings(
    dataset: Dataset,
    job: PlannedJob,
    budget: Budget,
    choice: ReadMethod,
    machine: Machine,
    read: StorageCeiling | None,
) -> Iterator[Setting]:
    index = dataset.index
    how = choice.backend + (" with O_DIRECT" if choice.direct else "")
    reasons = "; ".join(
        f"{name}: {reason}" for name, reason in choice.reasons.items() if name != choice.backend
    )
    yield Setting("backend", how, choice.reasons.get(choice.backend, reasons) or reasons)
    yield Setting("reading threads", str(choice.threads), "Budget.threads sets another number")
    blocking, shuffle = _describe_shuffle(dataset, job, budget, read)
    yield Setting("shuffle='auto'", shuffle, blocking.reason)
    ahead, steps = choose_readahead(choice, budget, job.batch_size * index.mean_bytes)
    why = "reading is copying" if choice.cached else "Budget.readahead_bytes"
    yield Setting("read-ahead", f"{ahead / 1e6:,.0f} MB, {steps} steps", why)
    yield Setting("decode_threads", str(machine.cores), "one for each core")
    cache_block = _choose_cache_block(dataset, choice, read)
    yield _advise_cache(dataset, machine)
    yield Setting("samples per cache block", f"{cache_block.samples:,}", cache_block.reason)


def _describe_shuffle(
    dataset: Dataset, job: PlannedJob, budget: Budget, read: StorageCeiling | None
) -> tuple[Blocking, str]:
    probed = None if read is None else read.probed
    blocking, _ = choose_shuffle(
        dataset, budget, job.batch_size, job.ranks, job.batch_size * job.ranks, probed
    )
    if blocking.shuffle != "blocked":
        return blocking, blocking.shuffle
    quality = record_choice(len(dataset), blocking, None)["quality"]
    return blocking, f"blocked, {blocking.block} x {blocking.group} (quality {quality:.3f})"


def _choose_cache_block(
    dataset: Dataset, choice: ReadMethod, read: StorageCeiling | None
) -> CacheBlockChoice:
    index = dataset.index
    if choose_gap(index, replace(choice, backend="pread")) is None:
        return CacheBlockChoice(1, "each sample is a file of its own")
    if index.mean_bytes >= limits.cache_block_bytes_max:
        return CacheBlockChoice(1, "samples are large")
    if read is None:
        return CacheBlockChoice(1, "there are no bytes to read")
    return choose_cache_block(index.count, index.mean_bytes, summarize_cost(read.probed))


def _advise_cache(dataset: Dataset, machine: Machine) -> Setting:
    total, room = dataset.index.total_bytes, machine.room_bytes
    size = f"{total / 1e9:,.3g} GB"
    if total <= room:
        return Setting("cache", "none", f"the page cache has room for all of it ({size})")
    hosts = math.ceil(total / max(1, room))
    return Setting(
        "cache",
        f"Cache(ram_bytes={int(room * 0.8):,})",
        f"it is {size}, and {room / 1e9:,.3g} GB of memory are free: {hosts:,} such hosts hold it",
    )


# -- limits that bite ------------------------------------------------------------------------------


def _list_findings(
    dataset: Dataset,
    job: PlannedJob,
    machine: Machine,
    mount: Mount | None,
    cached: Residency | None,
    read: StorageCeiling | None,
) -> Iterator[Finding]:
    batch_bytes = dataset.index.mean_bytes * job.batch_size
    yield from _examine_machine(machine, job, batch_bytes)
    yield _calculate_memory(machine, job, batch_bytes)
    yield from _examine_place(dataset.index.files.root, mount)
    yield _examine_files(dataset, machine)
    yield _examine_memory(dataset, machine, cached)
    is_one = dataset.index.format == "zarr" or len(dataset.index.files) == 1
    for fit in fit_arrays(dataset):
        level: Level = "good" if fit.better is None else "warning"
        yield Finding(level, f"chunks of {fit.name}", fit.describe(dataset.path if is_one else ""))
    for note in examine_films(dataset):
        yield Finding("warning" if note.is_bad else "note", f"films: {note.about}", note.says)
    if read is not None and not read.cold and not is_url(dataset.index.files.root):
        says = "it could not be dropped from the page cache, so that storage was not measured"
        if mount is not None and mount.file_system in ("tmpfs", "ramfs"):
            says = f"it lies in memory ({mount.file_system}): there is no storage to measure"
        yield Finding("note", "storage", says)
    if dataset.sidecar is None:
        says = (
            f"it is not saved, so every open rebuilds it: run `penstock index {dataset.path}` once"
        )
        yield Finding("note", "index", says)
    for extra, ending in _find_missing_extras(dataset).items():
        says = f"no library that decodes {ending} is installed: pip install {extra}"
        yield Finding("warning", "decoder", says)


def _examine_machine(machine: Machine, job: PlannedJob, batch_bytes: float) -> Iterator[Finding]:
    if machine.cpu_quota is not None and machine.cpu_quota < machine.cores:
        threads = max(1, math.floor(machine.cpu_quota))
        yield Finding(
            "warning",
            "processors",
            f"the control group allows the time of {machine.cpu_quota:g} of {machine.cores} "
            f"cores, so threads on all of them are stopped now and then: decode_threads="
            f"{threads}, or raise the quota",
        )
    else:
        yield Finding("good", "processors", f"{machine.cores} cores, no quota")
    kernels = ", ".join(f"{what} {which}" for what, which in machine.kernels.items())
    yield Finding("good", "kernels", kernels)
    memory = f"{machine.memory_bytes / 1e9:,.3g} GB, {machine.room_bytes / 1e9:,.3g} of them free"
    limit = machine.memory_limit_bytes
    if limit is not None and limit < machine.memory_bytes:
        memory += f"; the control group is limited to {limit / 1e9:,.3g}, cached files included"
        yield Finding("note", "memory", memory)
    else:
        yield Finding("good", "memory", memory)
    yield _examine_shm(machine, job, batch_bytes)
    refusal = probe_io_uring()
    if refusal:
        yield Finding(
            "warning",
            "io_uring",
            f"the kernel refuses it ({os.strerror(refusal)}), so files are read by threads: "
            f"allow io_uring_setup (containers: a seccomp profile; sysctl "
            f"kernel.io_uring_disabled=0)",
        )
    else:
        yield Finding("good", "io_uring", "allowed")


def _calculate_memory(machine: Machine, job: PlannedJob, batch_bytes: float) -> Finding:
    """The most that the loaders of the job hold, with the formula (docs/limits/memory.md)."""
    loaders = max(1, job.workers)
    step = batch_bytes * 9 / 8  # as memory is dealt
    steps = loaders * (1 if job.readahead_bytes >= 2 * step * loaders else 2)
    total = job.readahead_bytes + steps * step
    formula = f"readahead_bytes {job.readahead_bytes / 1e6:,.4g} + {steps} x step {step / 1e6:,.3g}"
    if job.workers:
        lent = 2 * job.workers + 4  # prefetch_factor of each, and those that the program keeps
        total += lent * batch_bytes
        formula += f" + {lent} x batch in shared memory {batch_bytes / 1e6:,.3g}"
    total *= job.ranks
    says = f"{total / 1e6:,.4g} MB at most = {job.ranks} ranks x ({formula}), of stored samples"
    says += "; decoded ones count where they are larger, and Cache.ram_bytes comes on top"
    level: Level = "good" if total <= machine.room_bytes else "warning"
    return Finding(level, "loaders' memory", says)


def _examine_shm(machine: Machine, job: PlannedJob, batch_bytes: float) -> Finding:
    free = machine.shm_bytes
    if free is None:
        return Finding("note", "/dev/shm", "it is not there: worker processes cannot share memory")
    # Worker processes hold some batches each; half the cores are a usual number of them.
    wanted = job.ranks * max(1, machine.cores // 2) * limits.lent_slots_max * batch_bytes
    says = f"{free / 1e9:,.3g} GB free"
    if free < wanted:
        return Finding(
            "warning",
            "/dev/shm",
            f"{says}: too little for worker processes, {max(1, machine.cores // 2)} of which would "
            f"hold {wanted / 1e9:,.3g} GB of batches there: decode in threads, or make it larger "
            f"(docker run --shm-size)",
        )
    return Finding("good", "/dev/shm", says)


def _examine_place(path: str, mount: Mount | None) -> Iterator[Finding]:
    if is_url(path):
        yield Finding("note", "storage", "an object store: requests in flight decide the speed")
        return
    if mount is None:
        yield Finding("note", "file system", "the file system cannot be determined")
        return
    ahead = readahead_bytes(mount)
    kind = mount.file_system
    if find_file_system(path) in LOCAL:
        yield Finding("good", "file system", f"{kind}, of this machine")
    else:
        yield Finding(
            "note",
            "file system",
            f"{kind}, not known to be local: reads are assumed to wait, so "
            f"{limits.remote_threads} are in flight",
        )
    if ahead is not None:
        says = (
            f"{ahead / 1024:,.0f} KiB: for sequential reads of other programs; penstock asks for "
            f"the bytes it wants"
        )
        yield Finding("good", "kernel read-ahead", says)


def _examine_files(dataset: Dataset, machine: Machine) -> Finding:
    files, kept = len(dataset.index.files), compute_open_files_max()
    says = f"the data has {files:,}, and {kept:,} are kept open at most"
    if is_url(dataset.index.files.root):
        return Finding("good", "files", f"{files:,} objects")
    if files <= kept:
        return Finding("good", "open files", says)
    if kept < limits.open_files_max and machine.open_files is not None:
        wanted = 4 * min(files, limits.open_files_max)
        return Finding(
            "warning",
            "open files",
            f"{says}, a quarter of the limit of {machine.open_files:,}: each is opened for each "
            f"read: `ulimit -n {wanted}`",
        )
    return Finding("note", "open files", f"{says}: each is opened for each read")


def _examine_memory(dataset: Dataset, machine: Machine, cached: Residency | None) -> Finding:
    total, room = dataset.index.total_bytes, machine.room_bytes
    now = "" if cached is None else f"; {cached.fraction:.0%} is cached now"
    if cached is not None and cached.files < cached.of_files:
        now += f" (of {cached.files:,} files that were looked at)"
    if total <= room:
        says = (
            f"{total / 1e9:,.3g} GB fit into free memory: later epochs need not read storage{now}"
        )
        return Finding("good", "page cache", says)
    times = total / max(1, room)
    says = (
        f"{total / 1e9:,.3g} GB are {times:,.1f} times the free memory, so that every epoch reads "
        f"storage: several hosts can keep it between them (penstock.Cache){now}"
    )
    return Finding("note", "page cache", says)


_WANTED = (
    ((".jpg", ".jpeg"), ("simplejpeg", "PIL", "cv2", "turbojpeg"), "simplejpeg pillow"),
    ((".png", ".webp", ".tif", ".tiff"), ("PIL", "cv2"), "pillow"),
)
"""Endings of samples, libraries of which any one decodes them, and the packages that do."""


def _find_missing_extras(dataset: Dataset) -> dict[str, str]:
    """The packages that decode samples like the first one, for which no library is installed, and
    the ending of each."""
    if len(dataset) == 0:
        return {}
    names = [dataset.index.key(0), *(f".{field.name}" for field in dataset.fields)]
    for endings, libraries, extra in _WANTED:
        if not any(name.lower().endswith(endings) for name in names):
            continue
        if not any(importlib.util.find_spec(library) for library in libraries):
            return {extra: endings[0]}
    return {}


def _examine_room(path: str) -> Finding:
    try:
        status = os.statvfs(path)
    except OSError as error:
        raise build_storage_error(error.errno or 0, path) from None
    free = status.f_bavail * status.f_frsize
    says = f"{free / 1e9:,.3g} GB free"
    if not os.access(path, os.W_OK):
        return Finding(
            "warning",
            "room",
            f"{says}, but not writable by this user: chmod it, or use another folder",
        )
    return Finding("good", "room", says)


# -- extras: what each is for, and which of their packages are not installed -----------------------

PURPOSES = {
    "cli": "look at data, index it, convert it: the other commands of penstock",
    "images": "decode JPEG, PNG, WebP and TIFF",
    "clips": "decode clips of MP4 and MOV",
    "text": "JSON lines, tokens",
    "parquet": "Parquet, compressed Arrow",
    "hdf5": "HDF5",
    "zarr": "compressed Zarr",
    "zstd": "compressed JSON lines, LitData",
    "lmdb": "write LMDB",
    "cloud": "read s3://, gs://, az:// and https://",
    "hub": "read hf://",
    "torch": "train with PyTorch",
    "gpu": "shuffle on a GPU",
    "jax": "train with JAX",
    "keras": "train with Keras",
    "grain": "penstock under Grain",
    "torchdata": "penstock under torchdata.nodes",
    "ray": "train with Ray, load Ray Data",
    "dask": "index and tokenize on Dask",
    "cluster": "share a cache among hosts",
    "mpi": "run under mpiexec",
    "metrics": "serve counters to Prometheus",
    "bench": "run DLIO and MLPerf Storage workloads",
    "sim": "simulate a cluster, plan one",
}
"""Purpose of each extra, in the order in which they are shown."""

_REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+).*\bextra\s*==\s*["']([a-z0-9-]+)["']""")


class Extra(NamedTuple):
    """An extra, its purpose, and the names of its packages that are not installed."""

    name: str
    purpose: str
    missing: tuple[str, ...]


def list_extras() -> list[Extra]:
    """The extras that have a purpose, as the installed penstock names their packages.

    Empty if penstock is not installed but only on the path. Packages of an extra in an extra are
    looked for too.
    """
    try:
        requirements = metadata.requires("penstock") or []
    except metadata.PackageNotFoundError:
        return []
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        if match := _REQUIREMENT.match(requirement):
            extras = re.match(r"penstock\[([a-z0-9,-]+)\]", requirement)
            wanted = [f"[{extra}]" for extra in extras[1].split(",")] if extras else [match[1]]
            packages.setdefault(match[2], []).extend(wanted)
    return [
        Extra(name, purpose, tuple(sorted(filter(_is_missing, _expand(name, packages)))))
        for name, purpose in PURPOSES.items()
        if name in packages
    ]


def _expand(name: str, packages: dict[str, list[str]]) -> set[str]:
    names: set[str] = set()
    for package in packages.get(name, ()):
        names |= _expand(package[1:-1], packages) if package.startswith("[") else {package}
    return names


def _is_missing(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return True
    return False
