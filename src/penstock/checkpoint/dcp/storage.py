"""Checkpoints of torch.distributed.checkpoint in a folder of penstock: sharded state, resharded by
DCP's planners, with penstock's commit, checksums, and loader state.

    storage = Storage("run/checkpoints")
    future = dcp.async_save(state, storage_writer=storage.writer(step, loader=loader))
    ...
    reader = Reader("run/checkpoints")
    dcp.load(state, storage_reader=reader); loader.load_state_dict(reader.loader)

What is raised while ranks work together comes as DCP's CheckpointException, which holds it by rank.

A chunk, as DCP calls a part of a tensor that one rank has, lies in one piece or several: of `shape`
bytes, from byte `offsets[-1]` of the chunk on, whose own offsets are the others. Chunks that
several ranks have are cut and dealt by size, so that each byte is written once, by ranks that write
about equally much.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

import torch

from ...budget import Budget
from ...errors import StorageError, UsageError
from .. import pytree, tensors
from ..array_leaves import Leaf, Memory
from ..background import Within
from ..flushing import Flush, lay_out_pieces
from ..manifest import CheckpointIndex, Piece, padded
from ..partition import Cut, dealt, piece_bytes
from ..repositories import full_path, open_repository
from ..repository import KEEP_MIN, Repository, RepositoryLock
from ..staging import Staged, Staging
from .metadata import BYTES, DCP, LOADER, content_of
from .reading import Reader

__all__ = ["Reader", "Storage", "Writer"]


_REST_BYTES = 1 << 20
"""Kept behind staged tensors for what is no tensor; where that is more, all is copied again."""


class _Share(NamedTuple):
    """What a rank writes, as the coordinator tells it: cuts of its plan's items. An item that is no
    tensor is not cut, and `stop` means nothing."""

    attempt: str
    number: int
    cuts: list[Cut]


class Storage:
    """The checkpoints of a job that saves with DCP.

    folder:  a folder or URL, see `penstock.checkpoint.Checkpoints`; shared by all ranks. The
             coordinator makes it and, until `close`, holds its lock.
    keep:    how many stay; the last two always do.
    budget:  bytes_per_s of each rank, and direct. Assign another for later saves.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 3, budget: Budget | None = None
    ) -> None:
        if type(keep) is not int or keep < KEEP_MIN:
            raise UsageError(f"keep={keep!r}: keep {KEEP_MIN} checkpoints or more")
        self.path = full_path(folder)
        self.keep = keep
        self.budget = budget or Budget()
        self._session = secrets.token_hex(4)
        self._tries = 0
        self._home: Repository | None = None
        self._lock: RepositoryLock | None = None
        self._last: Writer | None = None
        self._arenas: list[Staging] = []

    def writer(self, step: int, loader: Any = None, *, timeout_s: float | None = None) -> Writer:
        """What saves one step: the `storage_writer` of one `dcp.save` or `dcp.async_save`.

        loader:  its state is taken now, and committed with the rest: what has a `state_dict`, or
                 such a state; the coordinator's is kept.
        timeout_s:  StalledError where the save before takes longer; it is under way then.

        Waits until the save before is over. How that went is said by its future; RuntimeWarning
        where it was not committed.
        """
        if type(step) is not int or step < 0:
            raise UsageError(f"step is {step!r}: use an integer from 0 on")
        self._settle(timeout_s)
        self._last = Writer(self, step, loader)
        return self._last

    @property
    def bytes(self) -> int:
        """Memory that is kept for the next save."""
        return sum(arena.bytes for arena in self._arenas)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for what is under way, then let others write to the folder. May be called again.

        timeout_s:  StalledError where that takes longer; it is not closed then.
        """
        self._settle(timeout_s)
        while self._arenas:
            self._arenas.pop().close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle(self, timeout_s: float | None) -> None:
        if self._last is not None:
            self._last._settle(timeout_s)
            self._last = None

    def _coordinated(self) -> tuple[Repository, RepositoryLock]:
        """The home, made and locked by this process."""
        self._home = self._home or open_repository(self.path, make=True)
        if self._lock is None:
            where = f"process {os.getpid()} on {os.uname().nodename}"
            self._lock = self._home.lock(f"{where}, session {self._session}\n")
            self._home.collect()
        return self._home, self._lock

    def _shared(self) -> Repository:
        """The home, which the coordinator has made."""
        self._home = self._home or open_repository(self.path)
        return self._home

    def _attempt(self) -> str:
        self._tries += 1
        return f"{self._session}{self._tries:x}"

    def _arena(self) -> Staging:
        return self._arenas.pop() if self._arenas else Staging()

    def _free(self, arena: Staging) -> None:
        self._arenas.append(arena)


class Writer(StorageWriter, AsyncStager):
    """Saves one step: see `Storage.writer`. With `dcp.async_save` it stages, too, and the state may
    change once that returns."""

    def __init__(self, storage: Storage, step: int, loader: Any) -> None:
        self._storage = storage
        self._step = step
        parts = pytree.taken(loader.state_dict() if hasattr(loader, "state_dict") else loader)
        whole = [Cut(number, 0, block.bytes) for number, block in enumerate(parts.blocks)]
        self._loader = _Loader(parts, Staging().stage(parts.blocks, whole))
        self._coordinator = False
        self._used = False
        self._planned: list[int] = []
        self._attempted = ""
        self._place = ""
        self._staged = False
        self._committed = False
        self._arena: Staging | None = None
        self._places: dict[int, tuple[int, int]] = {}
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    # -- staging -----------------------------------------------------------------------------------

    @property
    def should_synchronize_after_execute(self) -> bool:
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy of the state on the CPU, made at the speed of memory."""
        blocks: list[pytree.ArrayBlock] = []
        numbers: dict[tuple[Any, ...], int] = {}
        of_tensor: list[int] = []

        def seen(tensor: torch.Tensor, path: str) -> None:
            leaf = tensors.leaf(_local(tensor), path)
            key = leaf.lowest, leaf.dtype, leaf.shape, leaf.strides, leaf.device
            if key not in numbers:
                numbers[key] = len(blocks)
                blocks.append(_block(leaf))
            of_tensor.append(numbers[key])

        _mapped(state_dict, "", seen, lambda value: value)
        arena = self._storage._arena()
        cuts = [Cut(number, 0, block.bytes) for number, block in enumerate(blocks)]
        arena.reserve(sum(padded(cut.bytes) for cut in cuts) + self._loader.bytes + _REST_BYTES)
        staged = arena.stage(blocks, cuts)
        parts = _parts(staged, cuts)
        self._places = {
            part.ctypes.data: (len(part), crc)
            for part, crc in zip(parts, staged.checksums, strict=True)
            if len(part)
        }
        order = iter(of_tensor)

        def copied(tensor: torch.Tensor, path: str) -> torch.Tensor:
            number = next(order)
            leaf = blocks[number].leaves[0]
            local = tensors.tensor(parts[number], leaf.dtype, leaf.shape, None, 0)
            if isinstance(tensor, DTensor):
                made: Any = DTensor
                return made(local, tensor._spec, requires_grad=False)  # type: ignore[no-any-return]
            return local

        self._arena, self._staged = arena, True
        found: dict[str, Any] = _mapped(state_dict, "", copied, copy.deepcopy)
        return found

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """Nothing: the memory is the storage's."""

    def __reduce__(self) -> Any:
        self._begun.set()
        raise UsageError(
            "penstock's writer belongs to its process: use async_checkpointer_type THREAD, which"
            " writes outside the GIL"
        )

    # -- saving, in the order of the calls ---------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            raise UsageError(
                f"checkpoint_id={checkpoint_id!r}: leave it out; the step is given to"
                " storage.writer(step)"
            )

    def storage_meta(self) -> None:
        """The first that DCP calls."""
        self._thread = threading.current_thread()
        self._begun.set()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._used:
            raise UsageError("this writer has saved: get one for each save by storage.writer(step)")
        self._used = True
        if not kwargs.get("use_collectives", True):
            raise UsageError("use_collectives=False: leave it out, as ranks commit together")
        self._coordinator = is_coordinator
        if is_coordinator:
            self._storage._coordinated()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Says what this rank has, before the planner removes what others have, too."""
        return dataclasses.replace(plan, storage_data=[item.index for item in plan.items])

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if not all(plan.usable for plan in plans):
            raise UsageError(
                "a planner with enable_plan_caching=True keeps old plans: leave it out"
            )
        holders: dict[MetadataIndex, list[int]] = {}
        for rank, plan in enumerate(plans):
            for index in plan.storage_data:
                holders.setdefault(index, []).append(rank)
        planned: dict[MetadataIndex, tuple[WriteItem, int]] = {}
        for rank, plan in enumerate(plans):
            for item in plan.items:
                planned.setdefault(item.index, (item, rank))
        items = [item for item, _ in planned.values()]
        sizes = [_item_bytes(item) for item in items]
        having = [holders.get(item.index, [rank]) for item, rank in planned.values()]
        largest = piece_bytes(sizes, len(plans))
        shares = dealt(sizes, having, len(plans), largest)
        self._attempted = self._storage._attempt()
        self._place = self._storage._shared().begin(self._step, self._attempted)
        extra = len(self._loader.parts.blocks)
        self._planned = [
            len(cuts) + (extra if rank == 0 else 0) for rank, cuts in enumerate(shares)
        ]
        return [
            dataclasses.replace(
                plan,
                items=[items[cut.block] for cut in cuts],
                storage_data=_Share(
                    self._attempted,
                    rank,
                    [cut._replace(block=place) for place, cut in enumerate(cuts)],
                ),
            )
            for rank, (plan, cuts) in enumerate(zip(plans, shares, strict=True))
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        share: _Share = plan.storage_data
        name = f"rank-{share.number}.shard"
        home = self._storage._shared()
        begun = home.begin(self._step, share.attempt)
        arena = self._storage._arena()
        try:
            pieces, staged = self._collected(plan.items, share, planner, name, arena)
            with Flush(self._storage.budget) as flush:
                shard = home.write(begun, name, staged.memory, pieces, flush)
        finally:
            self._storage._free(arena)
            self._release()
        future: Future[list[WriteResult]] = Future()
        done = WriteResult(MetadataIndex(name), shard.bytes, (share.number, len(pieces), shard))
        future.set_result([done])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The commit."""
        home, lock = self._storage._coordinated()
        said = sorted(each.storage_data for result in results for each in result)
        if [(number, count) for number, count, _ in said] != list(enumerate(self._planned)):
            raise StorageError(
                f"{self._place}: not all that was planned was written: save again: nothing was"
                " committed"
            )
        made = tuple(shard for _, _, shard in said)
        content = content_of(metadata) | {
            "loader": self._loader.parts.skeleton,
            "blocks": {block.name: block.bytes for block in self._loader.parts.blocks},
        }
        index = CheckpointIndex(self._step, self._attempted, len(made), DCP, made, content)
        home.commit(self._place, index, lock)
        self._place, self._committed = "", True
        home.thin(self._storage.keep)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def _collected(
        self,
        items: Sequence[WriteItem],
        share: _Share,
        planner: SavePlanner,
        file: str,
        arena: Staging,
    ) -> tuple[list[Piece], Staged]:
        """The shard of this rank, in memory, and its pieces: tensors first, then the rest."""
        of_tensors, rest = _Parts(file), _Parts(file)
        known: dict[MetadataIndex, int] = {}
        alive = []
        for item, cut in zip(items, share.cuts, strict=True):
            name = item.index.fqn
            value: Any = planner.resolve_data(item)
            if item.type is WriteItemType.BYTE_IO:
                data = np.frombuffer(value.getbuffer(), np.uint8)
                alive.append(data)
                rest.add_raw(name, data, BYTES)
                continue
            assert item.tensor_data is not None
            if item.index not in known:
                known[item.index] = len(of_tensors.blocks)
                of_tensors.blocks.append(_block(tensors.leaf(_local(value), name)))
            block = of_tensors.blocks[known[item.index]]
            if block.bytes != _item_bytes(item):
                raise UsageError(
                    f"{name} has {block.bytes:,} bytes, and {_item_bytes(item):,} were planned:"
                    " give the planner the state that is saved"
                )
            offsets = item.tensor_data.chunk.offsets
            of_tensors.add(known[item.index], cut, block.leaves[0].dtype, offsets)
        if self._coordinator:
            for each, data in self._loader.blocks():
                rest.add_raw(each.name, data, LOADER)
        if found := self._in_place(of_tensors, rest, arena):
            return found
        both = _Parts(file)
        both.extend(of_tensors)
        both.extend(rest)
        staged = arena.stage(both.blocks, both.cuts)
        return lay_out_pieces(both.pieces, staged.checksums), staged

    def _in_place(
        self, of_tensors: _Parts, rest: _Parts, arena: Staging
    ) -> tuple[list[Piece], Staged] | None:
        """What was staged, where that is what is written, with the rest behind it: no other copy
        is made. None where it is not: others write some of it, or tensors are tied."""
        found = [
            (of_tensors.blocks[cut.block].lowest + cut.start, piece)
            for cut, piece in zip(of_tensors.cuts, of_tensors.pieces, strict=True)
            if of_tensors.blocks[cut.block].dense
        ]
        found.sort(key=lambda each: each[0])
        lies = [
            (address, (piece.length, self._places.get(address, (0, 0))[1]))
            for address, piece in found
        ]
        if self._arena is None or not found or lies != sorted(self._places.items()):
            return None
        size = sum(padded(piece.length) for _, piece in found)
        behind = arena.stage(rest.blocks, rest.cuts)
        if size + len(behind.memory) > self._arena.bytes:
            return None
        memory = self._arena.reserve(size + len(behind.memory))
        memory[size:] = behind.memory
        checksums = [crc for _, (_, crc) in lies] + behind.checksums
        pieces = lay_out_pieces([piece for _, piece in found] + rest.pieces, checksums)
        return pieces, Staged(memory, checksums)

    def _settle(self, timeout_s: float | None) -> None:
        """Returns once the save is over, and nothing is left of it where it failed."""
        within = Within(timeout_s)
        if self._staged:
            self._begun.wait()
        thread = self._thread
        if thread not in (None, threading.current_thread(), threading.main_thread()):
            within.join(thread, self._step)
        if self._place:
            self._storage._shared().abandon(self._place)
            self._place = ""
        self._release()
        if self._staged and self._coordinator and not self._committed:
            warnings.warn(
                f"step {self._step} was not committed: the future of its async_save says why",
                RuntimeWarning,
                stacklevel=4,
            )

    def _release(self) -> None:
        arena, self._arena = self._arena, None
        if arena is not None:
            self._storage._free(arena)


class _Parts:
    """Blocks, what of them is written, and as which pieces of a file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.blocks: list[pytree.ArrayBlock] = []
        self.cuts: list[Cut] = []
        self.pieces: list[Piece] = []

    def add(self, number: int, cut: Cut, dtype: str, offsets: Sequence[int]) -> None:
        self.cuts.append(cut._replace(block=number))
        name, where = self.blocks[number].name, (*offsets, cut.start)
        self.pieces.append(Piece(name, dtype, (cut.bytes,), where, self._file, 0, cut.bytes, 0))

    def add_raw(self, name: str, data: Memory, dtype: str) -> None:
        self.blocks.append(pytree.ArrayBlock(name, len(data), data.ctypes.data, "cpu", (), True))
        self.add(len(self.blocks) - 1, Cut(0, 0, len(data)), dtype, ())

    def extend(self, other: _Parts) -> None:
        self.cuts += [cut._replace(block=cut.block + len(self.blocks)) for cut in other.cuts]
        self.blocks += other.blocks
        self.pieces += other.pieces


class _Loader(NamedTuple):
    """A loader's state, and the memory that its blocks were copied to."""

    parts: pytree.Taken
    staged: Staged

    @property
    def bytes(self) -> int:
        return len(self.staged.memory)

    def blocks(self) -> list[tuple[pytree.ArrayBlock, Memory]]:
        cuts = [Cut(number, 0, block.bytes) for number, block in enumerate(self.parts.blocks)]
        return list(zip(self.parts.blocks, _parts(self.staged, cuts), strict=True))


def _parts(staged: Staged, cuts: Sequence[Cut]) -> list[Memory]:
    """What was staged, cut by cut."""
    places = lay_out_pieces(
        [Piece("", "", (), (), "", 0, cut.bytes, 0) for cut in cuts], staged.checksums
    )
    return [staged.memory[each.offset : each.offset + each.length] for each in places]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _block(leaf: Leaf) -> pytree.ArrayBlock:
    dense = leaf.value.is_contiguous()
    return pytree.ArrayBlock(leaf.path, leaf.bytes, leaf.lowest, leaf.device, (leaf,), dense)


def _mapped(
    value: Any,
    path: str,
    tensor: Callable[[torch.Tensor, str], Any],
    other: Callable[[Any], Any],
) -> Any:
    """A state with its tensors replaced, and what is neither them nor a container."""
    if isinstance(value, torch.Tensor):
        return tensor(value, path)
    if isinstance(value, Mapping):
        return {key: _mapped(each, f"{path}.{key}", tensor, other) for key, each in value.items()}
    if type(value) in (list, tuple):
        found = [_mapped(each, f"{path}.{i}", tensor, other) for i, each in enumerate(value)]
        return type(value)(found)
    return other(value)


def _item_bytes(item: WriteItem) -> int:
    """Of what is written; 1 where DCP does not know it, of what is no tensor."""
    if item.tensor_data is None:
        return 1
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
