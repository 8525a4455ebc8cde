"""Checkpoints of a workload: saved, loaded and timed, as DLIO names and divides them.

A checkpoint is the folder `global_epoch<e>_step<s>` below `checkpoint.checkpoint_folder`, with the
files that `shapes` lists. Contents differ from file to file and from step to step, so
that no storage can write them only once. They can be made again from the seed, and `verify`
compares with that.

Every rank makes `WorkloadCheckpoints` and calls its methods at the same time as the others. An
error of one rank is raised on all.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from penstock import errors
from penstock.engine import read_machine, storage_errors, sync_folder
from penstock.engine.page_cache import evict
from penstock.errors import (
    ChangedError,
    LimitError,
    MissingError,
    PenstockError,
    StateError,
    StorageError,
    UsageError,
    WorkerError,
)

from ..measurement import read_io
from ..ranks import Crew, gather_everywhere
from ..workload.sections import CheckpointSpec, DlioWorkload
from .files import CheckpointContents, CheckpointWriter, make_content, make_writer
from .shapes import (
    File,
    State,
    Totals,
    count_parameters,
    count_totals,
    list_files_by_rank,
)

GIB = 1 << 30

_OURS = re.compile(
    r"\.?(model_states-\d+|((layer_\d+-)?model_\d+|zero_pp_rank_\d+_mp_rank_\d+)"
    r"_(model|optim)_states)\.\w+(\.part)?"
)
"""Names of files that a checkpoint of the benchmark may hold, unfinished ones included."""

_HEADER_BYTES = 4096
_TENSOR_BYTES = 512
"""Upper bounds of the bytes that a writer adds to a file, and to each tensor."""


class WorkloadCheckpoints:
    """Saves and loads the checkpoints of one rank.

    crew:     the ranks. Those of one host share its memory and page cache.
    writer:   a name for `make_writer`, or a CheckpointWriter.
    scale:    of the elements of each tensor, above 0 and up to 1, to try a large model on a small
              machine; records state it.
    verify:   loaded bytes are compared with what was saved, outside of the time measured.

    UsageError if the ranks cannot hold the model, nothing would be written, or the storage is no
    file system.
    """

    def __init__(
        self,
        workload: DlioWorkload,
        crew: Crew,
        *,
        writer: str | CheckpointWriter = "auto",
        scale: float = 1.0,
        verify: bool = False,
    ) -> None:
        if not 0 < scale <= 1:
            raise UsageError(f"scale={scale}: a part of each tensor, above 0 and up to 1")
        if workload.storage.storage_type not in ("local_fs", "parallel_fs"):
            raise UsageError(
                f"storage.storage_type={workload.storage.storage_type}: checkpoints are written "
                f"to file systems: set storage_type=local_fs and checkpoint.checkpoint_folder"
            )
        classname = workload.checkpoint.checkpoint_mechanism_classname
        if classname and writer == "auto":
            raise UsageError(
                f"checkpoint.checkpoint_mechanism_classname={classname} is a class of DLIO's "
                f"and does not run here: leave it out, or say which writer stands for it"
            )
        self.settings: CheckpointSpec = workload.checkpoint
        self._crew = crew
        self.scale = scale
        self.verify = verify
        if isinstance(writer, str) and writer != "auto":
            writer = make_writer(writer)
        self._writer = writer
        self.totals = count_totals(workload.model, self.settings, crew.ranks, scale)
        if not self.totals.bytes:
            raise UsageError(
                "a checkpoint of this workload is empty: set model.num_layers with "
                "model.type=transformer, or model.model_size_bytes"
            )
        self.root = self.settings.checkpoint_folder
        self._files = list(list_files_by_rank(workload.model, self.settings, crew.ranks, scale))
        self._workload = workload
        self._seed = workload.train.seed
        self._contents: CheckpointContents | None = None
        self._hosts = self._gather(crew.host)
        # As in DLIO, by as many ranks as a host has: 0 where there is one host.
        shift = max(map(self._hosts.count, self._hosts)) if self.settings.recovery_rank_shift else 0
        self.loads_rank = (crew.rank + shift) % crew.ranks
        """The rank whose files this one loads."""

    @cached_property
    def writer(self) -> CheckpointWriter:
        """The writer. If nobody asked for one, it is made at the first checkpoint: importing torch
        takes longer than starting to train."""
        return make_writer(self._writer) if isinstance(self._writer, str) else self._writer

    def folder(self, epoch: int, step: int) -> str:
        """The folder of this checkpoint."""
        return os.path.join(self.root, f"global_epoch{epoch}_step{step}")

    def paths(self, epoch: int, step: int, rank: int | None = None) -> list[str]:
        """The files that a rank, by default this one, writes into a checkpoint."""
        files = self._files[self._crew.rank if rank is None else rank]
        return [self._path(file, epoch, step) for file in files]

    def describe(self) -> dict[str, Any]:
        """Values for records: writer, layout and sizes in bytes, over all ranks."""
        cut, ranks = self._workload.model.parallelism, self._crew.ranks
        whole = count_totals(self._workload.model, self.settings, ranks)
        return {
            "writer": self.writer.name,
            "folder": self.root,
            "fsync": self.settings.fsync,
            "rank_sync": self.settings.rank_sync,
            "scale": self.scale,
            "ranks": ranks,
            "hosts": len(set(self._hosts)),
            "mode": self.settings.mode,
            "tensor": cut.tensor,
            "pipeline": cut.pipeline,
            "zero_stage": cut.zero_stage,
            "parameters": count_parameters(self._workload.model),
            "files": self.totals.files,
            "bytes": self.totals.bytes,
            "model_bytes": self.totals.model_bytes,
            "optimizer_bytes": self.totals.optimizer_bytes,
            "unscaled_bytes": whole.bytes,
        }

    # -- saving ------------------------------------------------------------------------------------

    def take(self, epoch: int, step: int) -> dict[str, Any]:
        """Save a checkpoint; with `checkpoint.fsync` it is on the device afterwards.

        An earlier one is replaced, unless it holds files that no checkpoint holds (UsageError).
        StorageError if it cannot be written; a shortage of room is found before writing, and an
        unfinished checkpoint is removed. LimitError if memory cannot hold the tensors.

        Returns {"step", "seconds" (of the slowest rank, and of none but writing and syncing),
        "bytes" (of tensors, all ranks), "rank_seconds" [by rank]}.
        """
        folder = self.folder(epoch, step)
        self.clear(epoch, [step])
        self.require_room(1)
        mine = self._files[self._crew.rank]
        if self._contents is None:
            self._require_memory(CheckpointContents.bytes(mine, self.settings.randomize_tensor))
            self._contents = CheckpointContents(mine, self._seed, self.settings.randomize_tensor)
        self._contents.turn_to(epoch, step)
        states = [(self._path(file, epoch, step), self._contents.of(file)) for file in mine]
        fsync = self.settings.fsync

        def write() -> None:
            with storage_errors(folder, "run it again"):
                os.makedirs(folder, exist_ok=True)
            for path, state in states:
                self.writer.save(path, state, fsync)
            if fsync and states:
                sync_folder(folder)
            if fsync and self._crew.rank == 0:
                sync_folder(self.root)

        try:
            seconds = self._time_together(write)
        except PenstockError:
            with contextlib.suppress(PenstockError):
                self._remove([folder])  # all ranks have stopped writing
            raise
        return self._make_figures(step, seconds)

    def clear(self, epoch: int, steps: Iterable[int]) -> None:
        """Remove earlier checkpoints of these steps, as `take` does."""
        folders = [self.folder(epoch, step) for step in steps]
        self._do_together(lambda: self._remove(folders))

    def require_room(self, count: int) -> None:
        """Raise StorageError if the file system has no room for `count` more checkpoints."""

        def made() -> list[int]:
            with storage_errors(self.root, "run it again"):
                os.makedirs(self.root, exist_ok=True)
                status = os.statvfs(self.root)
            size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
            mine = self._files[self._crew.rank]
            heads = sum(_HEADER_BYTES + _TENSOR_BYTES * len(file.tensors) for file in mine)
            return [status.f_fsid, size, free, count * (sum(f.bytes for f in mine) + heads)]

        answers = self._do_together(made)
        # Ranks that see the same file system share its room, be they of one host or of many.
        here = [answer for answer in answers if answer[:2] == answers[self._crew.rank][:2]]
        free, wanted = min(answer[2] for answer in here), sum(answer[3] for answer in here)

        def enough() -> None:
            if wanted > free:
                what = f"{count} checkpoints need" if count > 1 else "a checkpoint needs"
                raise StorageError(
                    f"{self.root}: {what} {wanted:,} bytes and {free:,} are free: make room there, "
                    f"set checkpoint.checkpoint_folder elsewhere, or try --scale below {self.scale}"
                )

        self._do_together(enough)

    # -- loading -----------------------------------------------------------------------------------

    def load(self, epoch: int, step: int) -> dict[str, Any]:
        """Load a checkpoint into memory, from storage: the page cache is told to forget it first.

        Names, types and lengths of all tensors are checked (StateError); with `verify` every byte
        is compared with the saved one (ChangedError). MissingError if there is no checkpoint,
        StateError if another number of ranks saved it or it is unfinished, FormatError if a file
        is damaged.

        Returns what `take` does, and "device_bytes": the bytes that these processes read from
        devices, None if the system does not give them; "verified": True, or None if not asked for.
        """
        self._contents = None  # memory for what is loaded; a later take makes it again
        mine = self._files[self.loads_rank]
        self._do_together(lambda: self._require_files(epoch, step))
        self._require_memory(sum(file.bytes for file in mine))
        paths = self.paths(epoch, step, self.loads_rank)
        self._do_together(lambda: evict(paths))
        loaded: list[State] = []
        before = read_io()
        seconds = self._time_together(lambda: loaded.extend(map(self.writer.load, paths)))
        after = read_io()
        read = after["read_bytes"] - before["read_bytes"] if before and after else None

        def compare() -> None:
            for path, file, state in zip(paths, mine, loaded, strict=True):
                self._compare(path, file, state, epoch, step)

        self._do_together(compare)
        reads = self._gather(read)
        return {
            **self._make_figures(step, seconds),
            "device_bytes": None if None in reads else sum(reads),
            "verified": True if self.verify else None,
        }

    def is_missing(self, epoch: int, step: int) -> bool:
        """True if there is no such checkpoint at all, as the first rank sees it."""
        return bool(self._gather(not os.path.isdir(self.folder(epoch, step)))[0])

    def _require_files(self, epoch: int, step: int) -> None:
        folder = self.folder(epoch, step)
        if self._crew.rank:
            return
        try:
            names = set(os.listdir(folder))
        except FileNotFoundError:
            raise MissingError(
                f"{folder} is not there: write checkpoints first "
                f"(checkpoint.num_checkpoints_write), or correct checkpoint.checkpoint_folder"
            ) from None
        except OSError as error:
            raise StorageError(f"{folder} cannot be listed: {error.strerror}") from None
        wanted = {file.name + self.writer.suffix for files in self._files for file in files}
        odd = sorted(wanted - names) or sorted(names - wanted)
        if odd:
            of = "missing" if odd[0] in wanted else "one too many"
            raise StateError(
                f"{folder} holds {len(names)} files and {self._crew.ranks} ranks save "
                f"{len(wanted)}: {odd[0]} is {of}: it was saved by another number of ranks, of "
                f"another model or by another writer, or not to its end: save it again"
            )

    def _compare(self, path: str, file: File, state: State, epoch: int, step: int) -> None:
        by_name = {tensor.name: (tensor, content) for tensor, content in state.items()}
        for tensor in file.tensors:
            saved, content = by_name.pop(tensor.name, (None, None))
            if saved != tensor or content is None:
                has = (
                    "missing" if saved is None else f"{saved.elements:,} elements of {saved.dtype}"
                )
                raise StateError(
                    f"{path}: tensor {tensor.name!r} is {has} and should be {tensor.elements:,} "
                    f"elements of {tensor.dtype}: it is of another model, or of another scale than "
                    f"{self.scale}: save it again"
                )
            if not self.verify:
                continue
            random = self.settings.randomize_tensor
            made = make_content(file, tensor, epoch, step, self._seed, random)
            if not np.array_equal(content, made):
                at = int(np.argmax(content != made))
                raise ChangedError(
                    f"{path}: tensor {tensor.name!r} differs from what was saved from its byte "
                    f"{at:,} on: {content[at]} instead of {made[at]}: storage or writer altered "
                    f"it, or it was saved with another train.seed than {self._seed}: save it again"
                )
        if by_name:
            raise StateError(f"{path} holds a tensor too many, {min(by_name)!r}: save it again")

    # -- ranks -------------------------------------------------------------------------------------

    def _gather(self, value: Any) -> list[Any]:
        return gather_everywhere(self._crew, value)

    def _path(self, file: File, epoch: int, step: int) -> str:
        return os.path.join(self.folder(epoch, step), file.name + self.writer.suffix)

    def _make_figures(self, step: int, seconds: list[float]) -> dict[str, Any]:
        size = self.totals.bytes
        return {"step": step, "seconds": max(seconds), "bytes": size, "rank_seconds": seconds}

    def _time_together(self, work: Callable[[], object]) -> list[float]:
        """Do this on all ranks at once; return the seconds that it took on each."""
        self._crew.barrier()
        began = time.perf_counter()

        def timed() -> float:
            try:
                work()
            finally:
                if self.settings.rank_sync:
                    self._crew.barrier()
            return time.perf_counter() - began

        return self._do_together(timed)

    def _do_together(self, work: Callable[[], Any]) -> list[Any]:
        """Do this on each rank and return all results, by rank; an error of any rank is raised on
        all."""
        value, failed = None, None
        try:
            value = work()
        except Exception as error:
            failed = error
        said = None if failed is None else [type(failed).__name__, str(failed)]
        outcomes = self._gather([value, said])
        if failed is not None:
            raise failed
        for rank, (_, reason) in enumerate(outcomes):
            if reason is not None:
                raise getattr(errors, reason[0], WorkerError)(f"rank {rank}: {reason[1]}")
        return [result for result, _ in outcomes]

    def _require_memory(self, wanted: int) -> None:
        """Raise LimitError if the ranks of a host need more memory than it has."""
        host = self._hosts[self._crew.rank]
        asked = self._gather([wanted, read_machine().available_bytes])
        here = [need for need, name in zip(asked, self._hosts, strict=True) if name == host]
        total = sum(need[0] for need in here)
        available = min((need[1] for need in here if need[1] is not None), default=None)

        def enough() -> None:
            if available is not None and total > available:
                raise LimitError(
                    f"{host}: the tensors of a checkpoint take {total:,} bytes of memory in "
                    f"{len(here)} ranks and {available:,} are available: use more hosts, "
                    f"checkpoint.mode=subset with model.parallelism.data=N, or --scale below "
                    f"{self.scale}"
                )

        self._do_together(enough)

    def _remove(self, folders: Iterable[str]) -> None:
        """Remove earlier checkpoints, by the first rank; files of anything else are left."""
        for folder in folders if self._crew.rank == 0 else ():
            with storage_errors(folder, "run it again"), contextlib.suppress(FileNotFoundError):
                names = os.listdir(folder)
                foreign = sorted(name for name in names if not _OURS.fullmatch(name))
                if foreign:
                    raise UsageError(
                        f"{folder} is to be replaced and holds {foreign[0]!r}, which is not of a "
                        f"checkpoint: move it away, or set checkpoint.checkpoint_folder elsewhere"
                    )
                for name in names:
                    os.unlink(os.path.join(folder, name))
                os.rmdir(folder)


def run_checkpoints(
    workload: DlioWorkload,
    crew: Crew,
    *,
    writer: str | CheckpointWriter = "auto",
    scale: float = 1.0,
    verify: bool = False,
    compat: bool = False,
) -> dict[str, Any]:
    """Run checkpoints alone: `num_checkpoints_write` are saved as steps 0, 1, ... of epoch 1,
    then `num_checkpoints_read` of these loaded, `time_between_checkpoints` apart.

    compat: times are the first rank's, sizes and pauses as in DLIO (its default of -1 is a
            pause of 1 s); otherwise times are the slowest rank's.

    Returns, on every rank, {"checkpoints": what was done and how long each took, "dlio": DLIO's
    metrics}; the other parameters and all errors are as in `WorkloadCheckpoints`.
    """
    checkpoints = WorkloadCheckpoints(workload, crew, writer=writer, scale=scale, verify=verify)
    settings = workload.checkpoint
    writes, reads = max(0, settings.num_checkpoints_write), max(0, settings.num_checkpoints_read)
    if not writes + reads:
        raise UsageError(
            "no checkpoints are asked for: set checkpoint.num_checkpoints_write or _read"
        )
    for step in range(writes, reads):
        if checkpoints.is_missing(1, step):
            raise MissingError(
                f"{checkpoints.folder(1, step)} is not there and is the one to be read after "
                f"{step}: checkpoint.num_checkpoints_read={reads}, num_checkpoints_write={writes}: "
                f"read fewer or write more"
            )
    if writes:
        checkpoints.clear(1, range(writes))
        checkpoints.require_room(writes)
    pause = settings.time_between_checkpoints
    pause = abs(pause) if compat else max(0.0, pause)
    done: dict[str, list[dict[str, Any]]] = {"saves": [], "loads": []}
    for what, act, count in (
        ("saves", checkpoints.take, writes),
        ("loads", checkpoints.load, reads),
    ):
        for step in range(count):
            if step:
                time.sleep(pause)
            done[what].append(act(1, step))
    return {
        "checkpoints": {**checkpoints.describe(), **done},
        "dlio": dlio_metrics(checkpoints.totals, done["saves"], done["loads"], compat=compat),
    }


def dlio_metrics(
    size: Totals,
    saves: Sequence[Mapping[str, Any]],
    loads: Sequence[Mapping[str, Any]],
    *,
    compat: bool = False,
) -> dict[str, float]:
    """Compute DLIO's fields from the results of `take` and `load`, in GiB and seconds.

    Deviations are of the population. Work that was not done has no field.
    """
    taken = size.counted_bytes if compat else size.bytes
    fields: dict[str, float] = {"checkpoint_size_GB": taken / GIB} if saves or loads else {}
    for name, done in (("save", saves), ("load", loads)):
        if not done:
            continue
        seconds = np.array(
            [result["rank_seconds"][0] if compat else result["seconds"] for result in done]
        )
        for quantity, unit, values in (
            ("io", "GB_per_second", taken / GIB / seconds),
            ("duration", "seconds", seconds),
        ):
            fields[f"{name}_checkpoint_{quantity}_mean_{unit}"] = float(values.mean())
            fields[f"{name}_checkpoint_{quantity}_stdev_{unit}"] = float(values.std())
    return fields
