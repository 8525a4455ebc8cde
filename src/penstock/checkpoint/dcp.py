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

import contextlib
import copy
import dataclasses
import io
import math
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from ..budget import Budget
from ..errors import FormatError, StorageError, UsageError
from ..writers import sync_folder
from . import shards, tensors, tree
from .division import Cut, dealt, piece_bytes
from .flushing import Flush, laid_out
from .folder import INDEX, KEEP_MIN, Folder, Lock
from .leaves import Leaf, Memory
from .manifest import Index, Piece
from .staging import Staged, Staging

DCP = "dcp"
"""The kind of index whose content is DCP's metadata."""

_BYTES, _LOADER = "bytes", "loader"
"""Where pieces have a dtype: what is no tensor, and a block of the loader's state."""

_READ_BYTES = 256 << 20
"""Chunks that are read before their tensors are filled."""


class _Share(NamedTuple):
    """What a rank writes, as the coordinator tells it: cuts of its plan's items. An item that is no
    tensor is not cut, and `stop` means nothing."""

    attempt: str
    number: int
    cuts: list[Cut]


class Storage:
    """A folder of checkpoints, for a job that saves with DCP.

    folder:  shared by all ranks; the coordinator makes it and, until `close`, holds its lock: one
             job at a time writes to it.
    keep:    how many stay; the last two always do.
    budget:  bytes_per_s of each rank, and direct. Assign another for later saves.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 3, budget: Budget | None = None
    ) -> None:
        if type(keep) is not int or keep < KEEP_MIN:
            raise UsageError(f"keep={keep!r}: keep {KEEP_MIN} checkpoints or more")
        self.path = os.path.abspath(os.fspath(folder))
        self.keep = keep
        self.budget = budget or Budget()
        self._session = secrets.token_hex(4)
        self._tries = 0
        self._lock: Lock | None = None
        self._last: Writer | None = None
        self._arenas: list[Staging] = []

    def writer(self, step: int, loader: Any = None) -> Writer:
        """What saves one step: the `storage_writer` of one `dcp.save` or `dcp.async_save`.

        loader:  its state is taken now, and committed with the rest: what has a `state_dict`, or
                 such a state; the coordinator's is kept.

        Waits until the save before is over. How that went is said by its future; RuntimeWarning
        where it was not committed.
        """
        if type(step) is not int or step < 0:
            raise UsageError(f"step is {step!r}: use an integer from 0 on")
        self._settle()
        self._last = Writer(self, step, loader)
        return self._last

    def close(self) -> None:
        """Wait for what is under way, then let others write to the folder. May be called again."""
        self._settle()
        while self._arenas:
            self._arenas.pop().close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle(self) -> None:
        if self._last is not None:
            self._last._settle()
            self._last = None

    def _coordinated(self) -> tuple[Folder, Lock]:
        """The folder, made and locked by this process."""
        folder = Folder(self.path, make=True)
        if self._lock is None:
            where = f"process {os.getpid()} on {os.uname().nodename}"
            self._lock = folder.lock(f"{where}, session {self._session}\n")
            folder.collect()
        return folder, self._lock

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
        parts = tree.taken(loader.state_dict() if hasattr(loader, "state_dict") else loader)
        whole = [Cut(number, 0, block.bytes) for number, block in enumerate(parts.blocks)]
        self._loader = _Loader(parts, Staging().stage(parts.blocks, whole))
        self._coordinator = False
        self._used = False
        self._planned: list[int] = []
        self._attempted = ""
        self._path = ""
        self._staged = False
        self._committed = False
        self._arena: Staging | None = None
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    # -- staging -----------------------------------------------------------------------------------

    @property
    def should_synchronize_after_execute(self) -> bool:
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy of the state on the CPU, made at the speed of memory."""
        blocks: list[tree.Block] = []
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
        parts = _parts(arena.stage(blocks, cuts), cuts)
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
        items = [item for plan in plans for item in plan.items]
        first = [rank for rank, plan in enumerate(plans) for _ in plan.items]
        sizes = [_item_bytes(item) for item in items]
        having = [
            holders.get(item.index) or [rank] for item, rank in zip(items, first, strict=True)
        ]
        largest = piece_bytes(sizes, len(plans))
        shares = dealt(sizes, having, len(plans), largest)
        self._attempted = self._storage._attempt()
        self._path = os.path.join(
            self._storage.path, f"step-{self._step}.{self._attempted}.incomplete"
        )
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
        path = Folder(self._storage.path).begin(self._step, share.attempt)
        arena = self._storage._arena()
        try:
            pieces, staged = self._collected(plan.items, share, planner, name, arena)
            flush = Flush(self._storage.budget)
            shard = flush.write(os.path.join(path, name), staged.memory, pieces)
            sync_folder(path)
        except BaseException:
            with contextlib.suppress(OSError):  # room for others; the coordinator does the rest
                os.unlink(os.path.join(path, name))
            with contextlib.suppress(OSError):
                os.rmdir(path)
            raise
        finally:
            self._storage._free(arena)
            self._release()
        future: Future[list[WriteResult]] = Future()
        done = WriteResult(MetadataIndex(name), shard.bytes, (share.number, len(pieces), shard))
        future.set_result([done])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The commit."""
        folder, lock = self._storage._coordinated()
        said = sorted(each.storage_data for result in results for each in result)
        if [(number, count) for number, count, _ in said] != list(enumerate(self._planned)):
            raise StorageError(
                f"{self._path}: not all that was planned was written: save again: nothing was"
                " committed"
            )
        made = tuple(shard for _, _, shard in said)
        content = _content(metadata) | {
            "loader": self._loader.parts.skeleton,
            "blocks": {block.name: block.bytes for block in self._loader.parts.blocks},
        }
        index = Index(self._step, self._attempted, len(made), DCP, made, content)
        folder.commit(self._path, index, lock)
        self._path, self._committed = "", True
        folder.thin(self._storage.keep)

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
        """The shard of this rank, in memory, and its pieces."""
        blocks, cuts, pieces = list[tree.Block](), list[Cut](), list[Piece]()
        known: dict[MetadataIndex, int] = {}
        alive = []

        def add(number: int, cut: Cut, dtype: str, offsets: Sequence[int]) -> None:
            cuts.append(cut._replace(block=number))
            where = (*offsets, cut.start)
            name = blocks[number].name
            pieces.append(Piece(name, dtype, (cut.bytes,), where, file, 0, cut.bytes, 0))

        for item, cut in zip(items, share.cuts, strict=True):
            name = item.index.fqn
            value: Any = planner.resolve_data(item)
            if item.type is WriteItemType.BYTE_IO:
                data = np.frombuffer(value.getbuffer(), np.uint8)
                alive.append(data)
                blocks.append(_raw(name, data))
                add(len(blocks) - 1, Cut(0, 0, len(data)), _BYTES, ())
                continue
            assert item.tensor_data is not None
            if item.index not in known:
                known[item.index] = len(blocks)
                blocks.append(_block(tensors.leaf(_local(value), name)))
            number = known[item.index]
            if blocks[number].bytes != _item_bytes(item):
                raise UsageError(
                    f"{name} has {blocks[number].bytes:,} bytes, and {_item_bytes(item):,} were"
                    " planned: give the planner the state that is saved"
                )
            add(number, cut, blocks[number].leaves[0].dtype, item.tensor_data.chunk.offsets)
        if self._coordinator:
            for block, data in self._loader.blocks():
                blocks.append(_raw(block.name, data))
                add(len(blocks) - 1, Cut(0, 0, len(data)), _LOADER, ())
        staged = arena.stage(blocks, cuts)
        return laid_out(pieces, staged.checksums), staged

    def _settle(self) -> None:
        """Returns once the save is over, and nothing is left of it where it failed."""
        if self._staged:
            self._begun.wait()
        thread = self._thread
        if thread not in (None, threading.current_thread(), threading.main_thread()):
            thread.join()
        if self._path:
            Folder(self._storage.path).abandon(self._path)
            self._path = ""
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


class Reader(StorageReader):
    """The `storage_reader` of `dcp.load`: a committed checkpoint of DCP, by default the last.

    trusted:  values that are no tensors are pickled by DCP's planner. They are loaded as
              `torch.load(weights_only=True)` does; True lets them be anything, which runs what
              whoever wrote them put there.

    step:    that was saved.
    loader:  the loader's `state_dict`, or None where none was saved.

    MissingError where there is none; FormatError where any byte of what is read was altered or cut:
    the message names file and piece.
    """

    def __init__(
        self, folder: str | os.PathLike[str], step: int | None = None, *, trusted: bool = False
    ) -> None:
        place = Folder(folder)
        self._entry = place.entry(step)
        self._where = os.path.join(self._entry.path, INDEX)
        self._index = place.index(self._entry)
        if self._index.kind != DCP:
            raise FormatError(
                f"{self._where} is of kind {self._index.kind!r}, not {DCP!r}: load it by"
                " penstock.checkpoint.load"
            )
        self._trusted = trusted
        self._chunks = _chunks(
            piece
            for shard in self._index.shards
            for piece in shards.pieces(self._entry.path, shard)
        )
        self._dtypes: dict[str, torch.dtype] = {}
        self._shapes: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self.step = self._entry.step
        self.loader = self._loader()

    def _loader(self) -> Any:
        sizes: dict[str, int] = self._index.content["blocks"]
        keys = [(_LOADER, name, ()) for name in sizes]
        found = self._read({key: (0, sizes[key[1]], sizes[key[1]]) for key in keys})
        skeleton = self._index.content["loader"]
        return tree.rebuilt(
            skeleton, lambda name: found[_LOADER, name, ()][: sizes[name]], self._where
        )

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            raise UsageError(
                f"checkpoint_id={checkpoint_id!r}: leave it out; Reader(folder, step) says which"
            )

    def read_metadata(self, *args: Any, **others: Any) -> Metadata:
        return _metadata(self._index.content, self._where)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **others: Any
    ) -> None:
        self._dtypes = {}
        self._shapes = {}
        for name, known in metadata.state_dict_metadata.items():
            if isinstance(known, TensorStorageMetadata):
                self._dtypes[name] = known.properties.dtype
                for chunk in known.chunks:
                    self._shapes[name, tuple(chunk.offsets)] = tuple(chunk.sizes)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=os.path.basename(self._entry.path))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        found = sorted({plan.storage_data for plan in plans})
        if len(found) > 1:
            raise UsageError(
                f"the ranks load different checkpoints: {', '.join(found)}: give Reader the step"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        waiting: dict[_Key, list[ReadItem]] = {}
        ranges: dict[_Key, tuple[int, int, int]] = {}
        held = 0
        for item in sorted(plan.items, key=self._order):
            key, whole = self._chunk_of(item)
            if key not in ranges:
                if held > _READ_BYTES:
                    self._fill(waiting, ranges, planner)
                    waiting, ranges, held = {}, {}, 0
                held += whole[2]
                ranges[key] = whole
            else:
                start, stop, size = ranges[key]
                ranges[key] = min(start, whole[0]), max(stop, whole[1]), size
            waiting.setdefault(key, []).append(item)
        self._fill(waiting, ranges, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def _order(self, item: ReadItem) -> tuple[str, int]:
        """Items as they lie in storage, those of one chunk together."""
        key, _ = self._chunk_of(item)
        pieces = self._chunks.get(key)
        return (pieces[0].file, pieces[0].offset) if pieces else ("", 0)

    def _chunk_of(self, item: ReadItem) -> tuple[_Key, tuple[int, int, int]]:
        """The chunk that an item is read from, the range of its bytes, and how many it has."""
        name = item.storage_index.fqn
        if item.type is LoadItemType.BYTE_IO:
            key: _Key = _BYTES, name, ()
            size = sum(piece.length for piece in self._chunks.get(key, ()))
            return key, (0, size, size)
        assert item.storage_index.offset is not None
        offsets = tuple(item.storage_index.offset)
        shape, dtype = self._shapes[name, offsets], self._dtypes[name]
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        first = sum(o * s for o, s in zip(item.storage_offsets, steps, strict=True))
        reach = sum((n - 1) * s for n, s in zip(item.lengths, steps, strict=True))
        stop = 0 if 0 in item.lengths else first + reach + 1
        size = math.prod(shape) * dtype.itemsize
        key = (_dtype_name(dtype), name, offsets)
        return key, (first * dtype.itemsize, stop * dtype.itemsize, size)

    def _fill(
        self,
        waiting: Mapping[_Key, Sequence[ReadItem]],
        ranges: Mapping[_Key, tuple[int, int, int]],
        planner: LoadPlanner,
    ) -> None:
        memory = self._read(ranges)
        for key, items in waiting.items():
            dtype, name, offsets = key
            for item in items:
                if item.type is LoadItemType.BYTE_IO:
                    data = memory[key][: ranges[key][2]].tobytes()
                    planner.load_bytes(item, io.BytesIO(self._harmless(name, data)))
                    continue
                chunk = tensors.tensor(memory[key], dtype, self._shapes[name, offsets], None, 0)
                for axis, (start, length) in enumerate(
                    zip(item.storage_offsets, item.lengths, strict=True)
                ):
                    chunk = chunk.narrow(axis, start, length)
                target = planner.resolve_tensor(item).detach()
                if target.shape != chunk.shape:
                    raise UsageError(
                        f"{name} is loaded into a tensor of shape {tuple(target.shape)} from"
                        f" {tuple(chunk.shape)}: make it as it was saved"
                    )
                target.copy_(chunk)
                planner.commit_tensor(item, target)

    def _read(self, ranges: Mapping[_Key, tuple[int, int, int]]) -> dict[_Key, Memory]:
        """Chunks, of which those pieces are read that have a byte in [start, stop)."""
        memory, wanted = {}, {}
        for key, (start, stop, size) in ranges.items():
            memory[key] = shards.block_memory(size)
            at = 0
            for piece in self._chunks.get(key, ()):
                if piece.offsets[-1] != at:
                    break
                if at < stop and start < at + piece.length:
                    wanted[piece] = memory[key][at : at + piece.padded]
                at += piece.length
            if at != size:
                raise FormatError(
                    f"{self._where}: {at:,} of the {size:,} bytes of {key[1]!r} at {key[2]} are"
                    " there: load another checkpoint"
                )
        shards.read(self._entry.path, wanted, lambda piece: wanted[piece])
        return memory

    def _harmless(self, name: str, data: bytes) -> bytes:
        """The pickle of a value that runs no code when it is loaded: one that we made of it."""
        if self._trusted:
            return data
        try:
            value = torch.load(io.BytesIO(data), weights_only=True)
        except Exception as error:
            raise UsageError(
                f"{name!r} in {self._entry.path} is no tensor, and not such that loading it runs no"
                f" code ({str(error).splitlines()[0]:.200}): save numbers, strings, lists and"
                " dicts, or, where you trust who wrote it, use Reader(trusted=True)"
            ) from None
        again = io.BytesIO()
        torch.save(value, again)
        return again.getvalue()


_Key = tuple[str, str, tuple[int, ...]]
"""Of a chunk: dtype, name, offsets."""


class _Loader(NamedTuple):
    """A loader's state, and the memory that its blocks were copied to."""

    parts: tree.Taken
    staged: Staged

    def blocks(self) -> list[tuple[tree.Block, Memory]]:
        cuts = [Cut(number, 0, block.bytes) for number, block in enumerate(self.parts.blocks)]
        return list(zip(self.parts.blocks, _parts(self.staged, cuts), strict=True))


def _parts(staged: Staged, cuts: Sequence[Cut]) -> list[Memory]:
    """What was staged, cut by cut."""
    places = laid_out(
        [Piece("", "", (), (), "", 0, cut.bytes, 0) for cut in cuts], staged.checksums
    )
    return [staged.memory[each.offset : each.offset + each.length] for each in places]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _block(leaf: Leaf) -> tree.Block:
    dense = leaf.value.is_contiguous()
    return tree.Block(leaf.path, leaf.bytes, leaf.lowest, leaf.device, (leaf,), dense)


def _raw(name: str, data: Memory) -> tree.Block:
    return tree.Block(name, len(data), data.ctypes.data, "cpu", (), True)


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


def _chunks(pieces: Iterable[Piece]) -> dict[_Key, list[Piece]]:
    """The pieces of each chunk, in order."""
    found: dict[_Key, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.offsets):
        found.setdefault((piece.dtype, piece.name, piece.offsets[:-1]), []).append(piece)
    return found


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- DCP's metadata as JSON ------------------------------------------------------------------------


def _content(metadata: Metadata) -> dict[str, Any]:
    """What an index says of a state of DCP."""
    return {
        "tensors": {
            name: None
            if isinstance(each, BytesStorageMetadata)
            else {
                "dtype": _dtype_name(each.properties.dtype),
                "shape": list(each.size),
                "requires_grad": each.properties.requires_grad,
                "chunks": [[list(c.offsets), list(c.sizes)] for c in each.chunks],
            }
            for name, each in metadata.state_dict_metadata.items()
        },
        "paths": _paths(metadata.planner_data),
        "version": metadata.version,
    }


def _paths(planned: Any) -> dict[str, list[str | int]] | None:
    """Where in a nested state the planner found each name."""
    if planned is None:
        return None
    paths = isinstance(planned, Mapping) and all(
        isinstance(path, tuple) and all(type(each) in (str, int) for each in path)
        for path in planned.values()
    )
    if not paths:
        raise UsageError(
            f"the planner's data ({type(planned).__name__}) are not those of DefaultSavePlanner:"
            " use that, or one that is made of it; keys of the state are strings and integers"
        )
    return {name: list(path) for name, path in planned.items()}


def _metadata(content: Mapping[str, Any], where: str) -> Metadata:
    try:
        states = {name: _state(each) for name, each in content["tensors"].items()}
        planned = content["paths"]
        paths = None if planned is None else {name: tuple(p) for name, p in planned.items()}
        return Metadata(states, planner_data=paths, version=content["version"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{where} describes no state of DCP that this penstock knows ({error!r}): load it with"
            " the one that wrote it"
        ) from None


def _state(known: Mapping[str, Any] | None) -> BytesStorageMetadata | TensorStorageMetadata:
    if known is None:
        return BytesStorageMetadata()
    dtype = getattr(torch, known["dtype"])
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype, requires_grad=known["requires_grad"]),
        torch.Size(known["shape"]),
        [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in known["chunks"]],
    )
