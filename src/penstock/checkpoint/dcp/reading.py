"""Reading of a committed checkpoint for torch.distributed.checkpoint (see `storage`), and the
metadata that DCP has for a state, as JSON and back."""

from __future__ import annotations

import dataclasses
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

import torch

from ...errors import FormatError, MissingError, UsageError
from .. import pytree, shards, tensors
from ..loading import open_repository
from ..manifest import Memory, Piece, get_block_sizes, is_counts

DCP = "dcp"
"""The kind of an index with this content."""

BYTES, LOADER = "bytes", "loader"
"""Stand in the place of a dtype: for what is no tensor, and for a block of the loader's state."""

_READ_BYTES = 256 << 20
"""Bytes of chunks that are read before their tensors are filled."""

_Key = tuple[str, str, tuple[int, ...]]
"""Key of a chunk: dtype, name, offsets."""


class Reader(StorageReader):
    """The `storage_reader` of `dcp.load`: a committed checkpoint of DCP, by default the last.

    trusted:  values that are no tensors are pickled by DCP's planner. They are loaded as
              `torch.load(weights_only=True)` does. True lets them be anything, and loading runs any
              code that the writer of the checkpoint put there.

    step:    the step that was saved.
    loader:  the loader's `state_dict`, or None if none was saved.

    MissingError if there is no checkpoint. FormatError if any byte that is read was altered or cut:
    the message names the file and the piece.
    """

    def __init__(
        self, folder: str | os.PathLike[str], step: int | None = None, *, trusted: bool = False
    ) -> None:
        self._repository = open_repository(folder)
        self._entry = self._repository.entry(step)
        self._trusted = trusted
        self._dtypes: dict[str, torch.dtype] = {}
        self._shapes: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self._where = self._repository.index_path(self._entry)
        self.step = self._entry.step
        with self._name_previous_on_error():
            self._open()

    @contextmanager
    def _name_previous_on_error(self) -> Iterator[None]:
        try:
            yield
        except (FormatError, MissingError) as error:
            raise self._repository.name_previous(error, self._entry) from None

    def _open(self) -> None:
        self._index = self._repository.read_index(self._entry)
        if self._index.kind != DCP:
            what = f"{self._where} is of kind {self._index.kind!r}, not {DCP!r}"
            raise FormatError(f"{what}: use checkpoint.load")
        self._chunks = _group_chunks(
            piece
            for shard in self._index.shards
            for piece in self._repository.storage.check_shard(self._entry.path, shard)
        )
        self.loader = self._read_loader()

    def _read_loader(self) -> Any:
        sizes = get_block_sizes(self._index.content, self._where)
        keys = [(LOADER, name, ()) for name in sizes]
        memory = self._read({key: (0, sizes[key[1]], sizes[key[1]]) for key in keys})
        return pytree.rebuild_state(
            self._index.content.get("loader"),
            lambda name: memory[LOADER, name, ()][: sizes[name]],
            self._where,
        )

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            raise UsageError(f"checkpoint_id={checkpoint_id!r}: leave it out; Reader names it")

    def read_metadata(self, *args: Any, **others: Any) -> Metadata:
        return decode_metadata(self._index.content, self._where)

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
        names = sorted({plan.storage_data for plan in plans})
        if len(names) > 1:
            raise UsageError(f"ranks load {', '.join(names)}: pass one step to Reader")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        waiting: dict[_Key, list[ReadItem]] = {}
        ranges: dict[_Key, tuple[int, int, int]] = {}
        held_bytes = 0
        for item in sorted(plan.items, key=self._get_storage_order):
            key, whole = self._locate_chunk(item)
            if key not in ranges:
                if held_bytes > _READ_BYTES:
                    self._fill(waiting, ranges, planner)
                    waiting, ranges, held_bytes = {}, {}, 0
                held_bytes += whole[2]
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

    def _get_storage_order(self, item: ReadItem) -> tuple[str, int]:
        """Return the sort key of an item: the order in storage, with the items of a chunk
        together."""
        key, _ = self._locate_chunk(item)
        pieces = self._chunks.get(key)
        return (pieces[0].file, pieces[0].offset) if pieces else ("", 0)

    def _locate_chunk(self, item: ReadItem) -> tuple[_Key, tuple[int, int, int]]:
        """Return the chunk that an item is read from, the range of its bytes, and the chunk's
        size."""
        name = item.storage_index.fqn
        if item.type is LoadItemType.BYTE_IO:
            key: _Key = BYTES, name, ()
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
        key = (format_dtype(dtype), name, offsets)
        return key, (first * dtype.itemsize, stop * dtype.itemsize, size)

    def _fill(
        self,
        waiting: Mapping[_Key, Sequence[ReadItem]],
        ranges: Mapping[_Key, tuple[int, int, int]],
        planner: LoadPlanner,
    ) -> None:
        with self._name_previous_on_error():
            memory = self._read(ranges)
        for key, items in waiting.items():
            dtype, name, offsets = key
            for item in items:
                if item.type is LoadItemType.BYTE_IO:
                    data = memory[key][: ranges[key][2]].tobytes()
                    planner.load_bytes(item, io.BytesIO(self._make_harmless(name, data)))
                    continue
                chunk = tensors.view_tensor(
                    memory[key], dtype, self._shapes[name, offsets], None, 0
                )
                for axis, (start, length) in enumerate(
                    zip(item.storage_offsets, item.lengths, strict=True)
                ):
                    chunk = chunk.narrow(axis, start, length)
                target = planner.resolve_tensor(item).detach()
                if target.shape != chunk.shape:
                    shapes = f"shape {tuple(target.shape)}, and was saved with {tuple(chunk.shape)}"
                    raise UsageError(f"{name} has {shapes}: load into the same shape")
                target.copy_(chunk)
                planner.commit_tensor(item, target)

    def _read(self, ranges: Mapping[_Key, tuple[int, int, int]]) -> dict[_Key, Memory]:
        """Read chunks: the pieces that have a byte in [start, stop)."""
        memory, wanted = {}, {}
        for key, (start, stop, size) in ranges.items():
            pieces, at = self._chunks.get(key, ()), 0
            for piece in pieces:
                at += piece.length if piece.offsets[-1] == at else 0
            if at != size:
                missing = f"{at:,} of {size:,} bytes of {key[1]!r} at {key[2]}"
                raise FormatError(f"{self._where} has {missing}")
            memory[key] = shards.allocate_block(size)
            for piece in pieces:
                at = piece.offsets[-1]
                if at < stop and start < at + piece.length:
                    wanted[piece] = memory[key][at : at + piece.padded_bytes]
        self._repository.storage.read_pieces(self._entry.path, list(wanted), wanted.__getitem__)
        return memory

    def _make_harmless(self, name: str, data: bytes) -> bytes:
        """Pickle a value again, so that loading it runs no code."""
        if self._trusted:
            return data
        try:
            value = torch.load(io.BytesIO(data), weights_only=True)
        except Exception as error:
            why = f"{str(error).splitlines()[0]:.200}"
            what = f"{name!r} in {self._entry.path} is no tensor, and may run code ({why})"
            raise UsageError(f"{what}: use Reader(trusted=True) if you trust it") from None
        harmless = io.BytesIO()
        torch.save(value, harmless)
        return harmless.getvalue()


def _group_chunks(pieces: Iterable[Piece]) -> dict[_Key, list[Piece]]:
    """Group pieces by chunk, in order."""
    chunks: dict[_Key, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.offsets):
        chunks.setdefault((piece.dtype, piece.name, piece.offsets[:-1]), []).append(piece)
    return chunks


# -- metadata --------------------------------------------------------------------------------------


def format_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def encode_metadata(metadata: Metadata) -> dict[str, Any]:
    """Encode DCP's metadata of a state as the content of an index."""
    return {
        "tensors": {
            name: None
            if isinstance(tensor, BytesStorageMetadata)
            else {
                "dtype": format_dtype(tensor.properties.dtype),
                "shape": list(tensor.size),
                "requires_grad": tensor.properties.requires_grad,
                "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in tensor.chunks],
            }
            for name, tensor in metadata.state_dict_metadata.items()
        },
        "paths": _encode_paths(metadata.planner_data),
        "version": metadata.version,
    }


def _encode_paths(planned: Any) -> dict[str, list[str | int]] | None:
    """Encode the paths at which the planner found each name in a nested state."""
    if planned is None:
        return None
    paths = isinstance(planned, Mapping) and all(
        isinstance(path, tuple) and all(type(key) in (str, int) for key in path)
        for path in planned.values()
    )
    if not paths:
        kind = type(planned).__name__
        raise UsageError(f"the planner's {kind} has keys other than texts: use DefaultSavePlanner")
    return {name: list(path) for name, path in planned.items()}


def decode_metadata(content: Mapping[str, Any], where: str) -> Metadata:
    """Decode DCP's metadata of a state; FormatError if the content describes none."""
    try:
        states = {name: _decode_tensor(tensor) for name, tensor in content["tensors"].items()}
        planned = content["paths"]
        paths = None if planned is None else {name: _decode_path(p) for name, p in planned.items()}
        return Metadata(states, planner_data=paths, version=content["version"])
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        what = f"{where} is a state of another version of penstock ({error!r})"
        raise FormatError(f"{what}: load it with that") from None


def _decode_path(path: Any) -> tuple[str | int, ...]:
    if type(path) is not list or not all(type(key) in (str, int) for key in path):
        raise ValueError(f"{path!r:.80} is no path in a state")
    return tuple(path)


def _decode_tensor(known: Mapping[str, Any] | None) -> BytesStorageMetadata | TensorStorageMetadata:
    if known is None:
        return BytesStorageMetadata()
    dtype = getattr(torch, known["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {known['dtype']!r}")
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype, requires_grad=bool(known["requires_grad"])),
        _decode_size(known["shape"]),
        [ChunkStorageMetadata(_decode_size(o), _decode_size(s)) for o, s in known["chunks"]],
    )


def _decode_size(numbers: Any) -> torch.Size:
    if not is_counts(numbers):
        raise ValueError(f"{numbers!r:.80} is no list of whole numbers from 0 on")
    return torch.Size(numbers)
