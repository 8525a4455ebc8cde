"""Checkpoints of torch.distributed.checkpoint (DCP) in a repository of penstock: sharded state,
resharded by DCP's planners, with penstock's commit, checksums, and loader state.

    storage = Storage("run/checkpoints")
    future = dcp.async_save(state, storage_writer=storage.writer(step, loader=loader))
    ...
    reader = Reader("run/checkpoints")
    dcp.load(state, storage_reader=reader); loader.load_state_dict(reader.loader)

DCP raises errors of ranks that work together as a CheckpointException with the errors by rank.

A chunk (in DCP's terms a part of a tensor that one rank has) is stored in one piece or several. A
piece has `shape` bytes and starts at byte `offsets[-1]` of the chunk; the offsets before the last
are the chunk's. Chunks that several ranks have are cut and divided by size, so that each byte
is written once, by ranks that write about equally much. They are compared first (`comparison`).
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

import torch

from ... import limits
from ...arguments import check_number, check_whole
from ...budget import Budget
from ...errors import StorageError, UsageError
from .. import pytree, tensors
from ..background import JoinDeadline
from ..comparison import build_values_error, sum_samples
from ..loading import open_repository, resolve_path
from ..manifest import Attempt, CheckpointIndex, Memory, Piece, pad_length
from ..repository import (
    Repository,
    WriteLock,
    describe_writer,
    lock_repository,
    make_session,
)
from ..retention import KEEP_MIN, delete_old_after_commit
from ..shards import Flush, lay_out_pieces
from ..staging import Cut, Staged, Staging, choose_piece_bytes, divide_blocks
from ..storage import AGAIN
from .reading import BYTES, DCP, LOADER, encode_metadata

_REST_BYTES = 1 << 20
"""Bytes kept behind staged tensors for values that are no tensors; if those take more, all is
copied again."""


class _PlannedShare(NamedTuple):
    """The share of a rank, as the coordinator plans it: cuts of its plan's items. An item that is
    no tensor is not cut, and its `stop` means nothing.

    ranks:     the number of ranks that save.
    compared:  numbers of the items of the rank's local plan that other ranks have, too.
    """

    attempt: str
    number: int
    cuts: list[Cut]
    ranks: int
    compared: list[int]


class Storage:
    """The checkpoints of a job that saves with DCP.

    folder:  a folder or URL, see `penstock.checkpoint.Checkpoints`; shared by all ranks. The
             coordinator makes it and, until `close`, holds its lock.
    keep:    how many checkpoints stay; the last two always do.
    budget:  bytes_per_s of each rank, and direct. Assign another for later saves.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 3, budget: Budget | None = None
    ) -> None:
        keep = check_whole("keep", keep, KEEP_MIN)
        self.path = resolve_path(folder)
        self.keep = keep
        self.budget = budget or Budget()
        self._session = make_session()
        self._tries = 0
        self._repository: Repository | None = None
        self._lock: WriteLock | None = None
        self._last: Writer | None = None
        self._arenas: list[Staging] = []

    def writer(self, step: int, loader: Any = None, *, timeout_s: float | None = None) -> Writer:
        """Make the writer of one step: the `storage_writer` of one `dcp.save` or `dcp.async_save`.

        loader:     its state is copied now, and committed with the rest: an object with
                    `state_dict`, or such a state; the coordinator's is kept.
        timeout_s:  StalledError if the save before takes longer; it is still under way then.

        Waits until the save before is over. Its future has the outcome; RuntimeWarning if it was
        not committed.
        """
        step = check_whole("step", step, 0)
        self._wait_until_over(timeout_s)
        self._last = Writer(self, step, loader)
        return self._last

    @property
    def bytes(self) -> int:
        """Bytes of memory that are kept for the next save."""
        return sum(arena.bytes for arena in self._arenas)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the save under way, then let others write to the folder. May be called again.

        timeout_s:  StalledError if that takes longer; the storage is not closed then.
        """
        self._wait_until_over(timeout_s)
        while self._arenas:
            self._arenas.pop().close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_until_over(self, timeout_s: float | None) -> None:
        if self._last is not None:
            self._last._wait_until_over(timeout_s)
            self._last = None

    def _lock_repository(self) -> tuple[Repository, WriteLock]:
        """Open the repository, made and locked by this process."""
        self._repository = self._repository or open_repository(self.path, make=True)
        if self._lock is None:
            writer = describe_writer(self._session)
            self._lock = lock_repository(self._repository, writer, clear=True)
        return self._repository, self._lock

    def _open_shared(self) -> Repository:
        """Open the repository that the coordinator has made."""
        self._repository = self._repository or open_repository(self.path)
        return self._repository

    def _name_attempt(self) -> str:
        self._tries += 1
        return Attempt(self._session, self._tries).name

    def _take_arena(self) -> Staging:
        return self._arenas.pop() if self._arenas else Staging()

    def _return_arena(self, arena: Staging) -> None:
        self._arenas.append(arena)


class Writer(StorageWriter, AsyncStager):
    """The writer of one step: see `Storage.writer`. With `dcp.async_save` it stages too, and the
    state may change once that returns."""

    def __init__(self, storage: Storage, step: int, loader: Any) -> None:
        self._storage = storage
        self._step = step
        self._loader = pytree.split_state(
            loader.state_dict() if hasattr(loader, "state_dict") else loader
        )
        cuts = _cut_whole(self._loader.blocks)
        self._loader_memory = Staging().stage(self._loader.blocks, cuts).split(cuts)
        self._coordinator = False
        self._used = False
        self._planned: list[int] = []
        self._own_items: list[WriteItem] = []
        self._compared: list[list[str]] = []  # by rank
        self._attempt = ""
        self._attempt_path = ""
        self._staged = False
        self._committed = False
        self._staging: Staging | None = None
        self._places: dict[int, tuple[int, int]] = {}
        self._thread_known = threading.Event()
        self._thread: threading.Thread | None = None

    # -- staging -----------------------------------------------------------------------------------

    @property
    def should_synchronize_after_execute(self) -> bool:
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy the state to the CPU, at the speed of memory."""
        blocks: list[pytree.ArrayBlock] = []
        numbers: dict[tuple[Any, ...], int] = {}
        of_tensor: list[int] = []

        def add_block(tensor: torch.Tensor, path: str) -> None:
            block = _make_block(tensor, path)
            leaf = block.leaves[0]
            key = leaf.lowest, leaf.dtype, leaf.shape, leaf.strides, leaf.device
            if key not in numbers:
                numbers[key] = len(blocks)
                blocks.append(block)
            of_tensor.append(numbers[key])

        _map_state(state_dict, "", add_block, lambda value: value)
        arena = self._storage._take_arena()
        cuts, loader_cuts = _cut_whole(blocks), _cut_whole(self._loader.blocks)
        room = sum(cut.padded_bytes for cut in loader_cuts) + _REST_BYTES
        staged = arena.stage(blocks, cuts, room=room)
        copies = staged.split(cuts)
        self._places = {
            staged_copy.ctypes.data: (len(staged_copy), crc)
            for staged_copy, crc in zip(copies, staged.checksums, strict=True)
            if len(staged_copy)
        }
        order = iter(of_tensor)

        def take_copy(tensor: torch.Tensor, path: str) -> torch.Tensor:
            number = next(order)
            leaf = blocks[number].leaves[0]
            local = tensors.view_tensor(copies[number], leaf.dtype, leaf.shape, None, 0)
            if isinstance(tensor, DTensor):
                make_dtensor: Any = DTensor
                return make_dtensor(local, tensor._spec, requires_grad=False)  # type: ignore[no-any-return]
            return local

        self._staging, self._staged = arena, True
        copied_state: dict[str, Any] = _map_state(state_dict, "", take_copy, copy.deepcopy)
        return copied_state

    def synchronize_staging(self) -> None:
        """Do nothing: staging is complete when `stage` returns."""

    def close(self) -> None:
        """Do nothing: the memory belongs to the storage."""

    def __reduce__(self) -> Any:
        self._thread_known.set()
        raise UsageError("penstock's writer is its process's: use async_checkpointer_type THREAD")

    # -- saving, in the order of the calls ---------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            raise UsageError(f"checkpoint_id={checkpoint_id!r}: leave it out; give the step")

    def storage_meta(self) -> None:
        """Note the thread that saves. DCP calls this first."""
        self._thread = threading.current_thread()
        self._thread_known.set()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._used:
            raise UsageError("this writer has saved: get one for each save by storage.writer(step)")
        self._used = True
        if not kwargs.get("use_collectives", True):
            raise UsageError("use_collectives=False: leave it out, because ranks commit together")
        self._coordinator = is_coordinator
        if is_coordinator:
            self._storage._lock_repository()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """List the items of this rank, before the planner removes those that other ranks have,
        too."""
        self._own_items = list(plan.items)
        return dataclasses.replace(plan, storage_data=[item.index for item in plan.items])

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if not all(plan.usable for plan in plans):
            raise UsageError("a planner keeps old plans (enable_plan_caching=True): leave it out")
        holders: dict[MetadataIndex, list[int]] = {}
        for rank, plan in enumerate(plans):
            for index in plan.storage_data:
                holders.setdefault(index, []).append(rank)
        planned: dict[MetadataIndex, tuple[WriteItem, int]] = {}
        for rank, plan in enumerate(plans):
            for item in plan.items:
                planned.setdefault(item.index, (item, rank))
        items = [item for item, _ in planned.values()]
        sizes = [_count_item_bytes(item) for item in items]
        item_holders = [holders.get(item.index, [rank]) for item, rank in planned.values()]
        largest, small = choose_piece_bytes(sizes, len(plans)), limits.checkpoint_first_rank_bytes
        shares = divide_blocks(sizes, len(plans), largest, small, item_holders)
        shared = {
            item.index
            for item, size, ranks in zip(items, sizes, item_holders, strict=True)
            if size >= small and len(ranks) > 1
        }
        compared = [
            [number for number, index in enumerate(plan.storage_data) if index in shared]
            for plan in plans
        ]
        self._compared = [
            [_describe_chunk(plan.storage_data[number]) for number in numbers]
            for plan, numbers in zip(plans, compared, strict=True)
        ]
        self._attempt = self._storage._name_attempt()
        self._attempt_path = self._storage._open_shared().start_attempt(self._step, self._attempt)
        extra = len(self._loader.blocks)
        self._planned = [
            len(cuts) + (extra if rank == 0 else 0) for rank, cuts in enumerate(shares)
        ]
        return [
            dataclasses.replace(
                plan,
                items=[items[cut.block] for cut in cuts],
                storage_data=_PlannedShare(
                    self._attempt,
                    rank,
                    [cut._replace(block=place) for place, cut in enumerate(cuts)],
                    len(plans),
                    compared[rank],
                ),
            )
            for rank, (plan, cuts) in enumerate(zip(plans, shares, strict=True))
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        share: _PlannedShare = plan.storage_data
        name = f"rank-{share.number}.shard"
        repository = self._storage._open_shared()
        attempt_path = repository.start_attempt(self._step, share.attempt)
        arena = self._storage._take_arena()
        try:
            pieces, staged = self._collect_shard(plan.items, share, planner, name, arena)
            sums = self._sum_items(share, planner)
            with Flush(self._storage.budget) as flush:
                content = staged.memory, pieces
                shard = repository.write_shard(attempt_path, name, content, flush)
        finally:
            self._storage._return_arena(arena)
            self._return_staging()
        future: Future[list[WriteResult]] = Future()
        result = WriteResult(
            MetadataIndex(name), shard.bytes, (share.number, len(pieces), shard, sums)
        )
        future.set_result([result])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit the save. UsageError if ranks have different values of one tensor."""
        repository, lock = self._storage._lock_repository()
        rows = sorted(write_result.storage_data for result in results for write_result in result)
        if [row[:2] for row in rows] != list(enumerate(self._planned)):
            raise StorageError(f"{self._attempt_path} lacks planned pieces: {AGAIN}")
        self._check_equal([sums for *_, sums in rows])
        entries = tuple(shard for _, _, shard, _ in rows)
        content = encode_metadata(metadata) | {
            "loader": self._loader.skeleton,
            "blocks": {block.name: block.bytes for block in self._loader.blocks},
        }
        index = CheckpointIndex(self._step, self._attempt, len(entries), DCP, entries, content)
        entry = repository.commit(self._attempt_path, index, lock)
        self._attempt_path, self._committed = "", True
        delete_old_after_commit(repository, self._storage.keep, entry.path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def _sum_items(self, share: _PlannedShare, planner: SavePlanner) -> list[tuple[Any, ...]]:
        """Sum the items that are compared: all of an item that was staged, samples of others."""
        items = [self._own_items[number] for number in share.compared]
        blocks = [_make_block(planner.resolve_data(item), item.index.fqn) for item in items]
        staged = [self._places.get(block.lowest) for block in blocks]
        samples = sum_samples(blocks, share.ranks, Attempt.parse(share.attempt))
        return [
            (block.leaves[0].dtype, block.leaves[0].shape, place or (0, sample))
            for block, place, sample in zip(blocks, staged, samples, strict=True)
        ]

    def _check_equal(self, rank_sums: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        holders: dict[str, dict[int, tuple[Any, ...]]] = {}
        for rank, sums in enumerate(rank_sums):
            for chunk, row in zip(self._compared[rank], sums, strict=True):
                holders.setdefault(chunk, {})[rank] = row
        for chunk, rows in holders.items():
            first = next(iter(rows))
            others = [rank for rank, row in rows.items() if row != rows[first]]
            if others:
                raise build_values_error(self._step, chunk, first, others)

    def _collect_shard(
        self,
        items: Sequence[WriteItem],
        share: _PlannedShare,
        planner: SavePlanner,
        file: str,
        arena: Staging,
    ) -> tuple[list[Piece], Staged]:
        """Collect the shard of this rank in memory, and its pieces: tensors first, then the
        rest."""
        of_tensors, rest = _ShardLayout(file), _ShardLayout(file)
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
                of_tensors.blocks.append(_make_block(value, name))
            block = of_tensors.blocks[known[item.index]]
            if block.bytes != _count_item_bytes(item):
                sizes = f"{block.bytes:,} bytes, not the {_count_item_bytes(item):,} planned"
                raise UsageError(f"{name} has {sizes}: give the planner the state that is saved")
            offsets = item.tensor_data.chunk.offsets
            of_tensors.add(known[item.index], cut, block.leaves[0].dtype, offsets)
        if self._coordinator:
            for block, data in zip(self._loader.blocks, self._loader_memory, strict=True):
                rest.add_raw(block.name, data, LOADER)
        if in_place := self._reuse_staged(of_tensors, rest, arena):
            return in_place
        of_tensors.extend(rest)
        staged = arena.stage(of_tensors.blocks, of_tensors.cuts)
        return lay_out_pieces(of_tensors.pieces, staged.checksums), staged

    def _reuse_staged(
        self, of_tensors: _ShardLayout, rest: _ShardLayout, arena: Staging
    ) -> tuple[list[Piece], Staged] | None:
        """Reuse the staged memory as the shard, with the rest behind it, so that no other copy is
        made. None if the shard differs from it: other ranks write some of it, or tensors are
        tied."""
        placed = [
            (of_tensors.blocks[cut.block].lowest + cut.start, piece)
            for cut, piece in zip(of_tensors.cuts, of_tensors.pieces, strict=True)
            if of_tensors.blocks[cut.block].dense
        ]
        placed.sort(key=lambda pair: pair[0])
        written = [
            (address, (piece.length, self._places.get(address, (0, 0))[1]))
            for address, piece in placed
        ]
        if self._staging is None or not placed or written != sorted(self._places.items()):
            return None
        size = sum(pad_length(piece.length) for _, piece in placed)
        behind = arena.stage(rest.blocks, rest.cuts)
        if size + len(behind.memory) > self._staging.bytes:
            return None
        memory = self._staging.reserve(size + len(behind.memory))
        memory[size:] = behind.memory
        checksums = [crc for _, (_, crc) in written] + behind.checksums
        pieces = lay_out_pieces([piece for _, piece in placed] + rest.pieces, checksums)
        return pieces, Staged(memory, checksums)

    def _wait_until_over(self, timeout_s: float | None) -> None:
        """Return once the save is over. If it failed, its shards have been removed."""
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, infinite=True)
        within = JoinDeadline(timeout_s)
        if self._staged:
            self._thread_known.wait()
        thread = self._thread
        if thread not in (None, threading.current_thread(), threading.main_thread()):
            within.join(thread, self._step)
        if self._attempt_path:
            self._storage._open_shared().abandon(self._attempt_path)
            self._attempt_path = ""
        self._return_staging()
        if self._staged and self._coordinator and not self._committed:
            text = f"step {self._step} was not committed: the future of its async_save says why"
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _return_staging(self) -> None:
        arena, self._staging = self._staging, None
        if arena is not None:
            self._storage._return_arena(arena)


class _ShardLayout:
    """Blocks, the cuts of them that are written, and the pieces of a file that these become."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.blocks: list[pytree.ArrayBlock] = []
        self.cuts: list[Cut] = []
        self.pieces: list[Piece] = []

    def add(self, number: int, cut: Cut, dtype: str, offsets: Sequence[int]) -> None:
        self.cuts.append(cut._replace(block=number))
        start = (*offsets, cut.start)
        piece = Piece(
            self.blocks[number].name, dtype, (cut.bytes,), start, self._file, 0, cut.bytes, 0
        )
        self.pieces.append(piece)

    def add_raw(self, name: str, data: Memory, dtype: str) -> None:
        self.blocks.append(pytree.ArrayBlock(name, len(data), data.ctypes.data, "cpu", (), True))
        self.add(len(self.blocks) - 1, Cut(0, 0, len(data)), dtype, ())

    def extend(self, other: _ShardLayout) -> None:
        self.cuts += [cut._replace(block=cut.block + len(self.blocks)) for cut in other.cuts]
        self.blocks += other.blocks
        self.pieces += other.pieces


def _describe_chunk(index: MetadataIndex) -> str:
    """Describe a chunk in one way on all ranks."""
    offset = tuple(index.offset or ())
    return f"{index.fqn} at {offset}" if any(offset) else index.fqn


def _cut_whole(blocks: Sequence[pytree.ArrayBlock]) -> list[Cut]:
    return [Cut(number, 0, block.bytes) for number, block in enumerate(blocks)]


def _get_local_tensor(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local


def _make_block(tensor: Any, name: str) -> pytree.ArrayBlock:
    """Describe this rank's part of a tensor as a block."""
    leaf = pytree.make_leaf(_get_local_tensor(tensor), name)
    return pytree.ArrayBlock(leaf.path, leaf.bytes, leaf.lowest, leaf.device, (leaf,), leaf.packed)


def _map_state(
    value: Any,
    path: str,
    tensor: Callable[[torch.Tensor, str], Any],
    other: Callable[[Any], Any],
) -> Any:
    """Rebuild a nested state: `tensor` replaces its tensors, and `other` the values that are
    neither tensors nor containers."""
    if isinstance(value, torch.Tensor):
        return tensor(value, path)
    if isinstance(value, Mapping):
        return {
            key: _map_state(child, f"{path}.{key}", tensor, other) for key, child in value.items()
        }
    if type(value) in (list, tuple):
        children = [
            _map_state(child, f"{path}.{i}", tensor, other) for i, child in enumerate(value)
        ]
        return type(value)(children)
    return other(value)


def _count_item_bytes(item: WriteItem) -> int:
    """Count the bytes of an item; 1 for an item that is no tensor, because DCP does not know its
    size."""
    if item.tensor_data is None:
        return 1
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
