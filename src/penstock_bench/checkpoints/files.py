"""Checkpoint files: the contents of their tensors, and the writers that save and load them.

Contents are random bytes that follow from seed, file and step, or ones. No two tensors and no two
steps are alike, so nothing compresses them or writes them once. Writers are torch.save, numpy,
penstock, or a writer of the user's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import importlib.util
import os
import pickle
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from penstock.budget import Budget
from penstock.checkpoint import Flush, Folder, Piece, Staging, lay_out_pieces, shards
from penstock.engine import storage_errors
from penstock.errors import FormatError, MissingError, StorageError, UsageError, say_install

from .shapes import DTYPE_BYTES, Bytes, File, State, Tensor

# -- contents --------------------------------------------------------------------------------------

Words = npt.NDArray[np.uint64]

_BLOCK_WORDS = 1 << 20
"""Words drawn at a time, so that drawing does not double the memory of the tensor."""


class CheckpointContents:
    """The tensors of one rank's files, in memory, at one step after the other.

    If not `randomized`, all are ones at every step, and tensors of one type share memory.
    """

    def __init__(self, files: Sequence[File], seed: int, randomized: bool) -> None:
        self._seed, self._randomized = seed, randomized
        self._mark = np.uint64(0)
        self._ones: dict[str, Words] = {}
        self._random: dict[tuple[str, Tensor], Words] = {}
        if randomized:
            for file in files:
                for tensor in file.tensors:
                    self._random[file.name, tensor] = _draw_words(seed, file, tensor)
        else:
            self._ones = {tensor.dtype: _make_ones(tensor) for tensor in _find_longest(files)}

    @staticmethod
    def bytes(files: Sequence[File], randomized: bool) -> int:
        """Memory that these files need."""
        if randomized:
            return sum(file.bytes for file in files)
        return sum(tensor.bytes for tensor in _find_longest(files))

    def turn_to(self, epoch: int, step: int) -> None:
        """Change the tensors to this step's."""
        mark = _draw_mark(self._seed, epoch, step)
        with np.errstate(over="ignore"):
            change = mark - self._mark
        for words in self._random.values():
            words += change
        self._mark = mark

    def of(self, file: File) -> State:
        """The tensors of a file, without a copy."""
        words = {
            tensor: self._random[file.name, tensor]
            if self._randomized
            else self._ones[tensor.dtype]
            for tensor in file.tensors
        }
        return {tensor: content.view(np.uint8)[: tensor.bytes] for tensor, content in words.items()}


def make_content(
    file: File, tensor: Tensor, epoch: int, step: int, seed: int, randomized: bool
) -> Bytes:
    """Make one tensor again, as `CheckpointContents` gives it."""
    words = _make_ones(tensor)
    if randomized:
        words = _draw_words(seed, file, tensor)
        words += _draw_mark(seed, epoch, step)
    return words.view(np.uint8)[: tensor.bytes]


def _find_longest(files: Sequence[File]) -> list[Tensor]:
    """The longest tensor of each type."""
    longest: dict[str, Tensor] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.dtype not in longest or longest[tensor.dtype].elements < tensor.elements:
                longest[tensor.dtype] = tensor
    return list(longest.values())


def _draw_words(seed: int, file: File, tensor: Tensor) -> Words:
    name = f"{seed}/{file.name}/{tensor.name}"
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest())
    bits = np.random.SFC64(key)
    words = np.empty(-(-tensor.bytes // 8), np.uint64)
    for first in range(0, len(words), _BLOCK_WORDS):
        block = words[first : first + _BLOCK_WORDS]
        block[:] = bits.random_raw(len(block))
    return words


def _draw_mark(seed: int, epoch: int, step: int) -> np.uint64:
    """The number that a step adds to every word."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{step}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest))


def _make_ones(tensor: Tensor) -> Words:
    if tensor.dtype == "bf16":
        one = np.float32(1).tobytes()[2:]
    else:
        kind = "f" if tensor.dtype.startswith("fp") else "i"
        one = np.ones(1, f"<{kind}{DTYPE_BYTES[tensor.dtype]}").tobytes()
    words = np.empty(-(-tensor.bytes // 8), np.uint64)
    words[:] = np.frombuffer(one * (8 // len(one)), np.uint64)
    return words


# -- writers ---------------------------------------------------------------------------------------

_DAMAGED = (
    RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile
)  # fmt: skip
"""Errors that torch and numpy raise for an archive that is cut or altered."""


class CheckpointWriter(Protocol):
    """Writes one file at a time; used by one thread.

    name:    in records.
    suffix:  of its files.
    """

    name: str
    suffix: str

    def save(self, path: str, state: State, fsync: bool) -> None:
        """Save a file. It is whole when this returns, and on the device if `fsync`; its folder is
        not synced. If this fails (StorageError), no new file is left under any name."""

    def load(self, path: str) -> State:
        """Load a file into memory; FormatError if the file is damaged."""


class TorchWriter:
    """torch.save of a dict of tensors, read back with weights_only."""

    name = "torch"
    suffix = ".pt"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._dtypes = {
            "int8": torch.int8, "uint8": torch.uint8, "fp16": torch.float16,
            "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
        }  # fmt: skip
        self._names = {dtype: name for name, dtype in self._dtypes.items()}

    def save(self, path: str, state: State, fsync: bool) -> None:
        tensors = {
            tensor.name: self._torch.frombuffer(content, dtype=self._dtypes[tensor.dtype])
            for tensor, content in state.items()
        }
        with open_new_file(path, fsync) as file:
            try:
                self._torch.save(tensors, file)
            except RuntimeError as error:
                # torch raises this while it closes an archive that could not be written.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

    def load(self, path: str) -> State:
        with translate_errors(path):
            loaded = self._torch.load(path, map_location="cpu", weights_only=True)
            return {
                Tensor(name, self._names[value.dtype], value.numel()): cast(
                    Bytes, value.view(self._torch.uint8).numpy()
                )
                for name, value in loaded.items()
            }


_DTYPES = {"int8": "i1", "uint8": "u1", "fp16": "<f2", "bf16": "V2", "fp32": "<f4", "fp64": "<f8"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


class NumpyWriter:
    """An uncompressed .npz, if torch is not installed; bf16 is two bytes without a type."""

    name = "numpy"
    suffix = ".npz"

    def save(self, path: str, state: State, fsync: bool) -> None:
        arrays: dict[str, Any] = {
            tensor.name: content.view(_DTYPES[tensor.dtype]) for tensor, content in state.items()
        }
        with open_new_file(path, fsync) as file:
            np.savez(file, **arrays)

    def load(self, path: str) -> State:
        with translate_errors(path), np.load(path, allow_pickle=False) as archive:
            return {
                Tensor(name, _NAMES[value.dtype], value.size): value.view(np.uint8)
                for name, value in archive.items()
            }


class PenstockWriter:
    """A shard of `penstock.checkpoint` for each file: staged, written past the page cache if it is
    synced anyway, and checked byte by byte when it is loaded."""

    name = "penstock"
    suffix = ".shard"

    def __init__(self) -> None:
        self._staging = Staging()

    def save(self, path: str, state: State, fsync: bool) -> None:
        staged = self._staging.collect(list(state.values()))
        pieces = [
            Piece(tensor.name, tensor.dtype, (tensor.elements,), (0,), "", 0, len(content), 0)
            for tensor, content in state.items()
        ]
        budget = Budget(direct="auto" if fsync else "off")
        with stage_name(path) as temporary, Flush(budget) as flush:
            pieces = lay_out_pieces(pieces, staged.checksums)
            storage = Folder(os.path.dirname(path)).storage
            storage.write_shard(temporary, (staged.memory, pieces), flush, sync=fsync)

    def load(self, path: str) -> State:
        with translate_errors(path):
            place = Folder(os.path.dirname(path))
            pieces, _ = place.storage.read_manifest(path)
            memory = {piece: shards.allocate_block(piece.length) for piece in pieces}
            place.storage.read_pieces(place.path, pieces, memory.__getitem__)
        return {
            Tensor(piece.name, piece.dtype, piece.shape[0]): memory[piece][: piece.length]
            for piece in pieces
        }


def make_writer(name: str) -> CheckpointWriter:
    """Make a writer by its name: "torch", "numpy", "penstock", a callable without arguments as
    "module:name", or "auto": torch if it is installed, else numpy. UsageError if there is no such
    writer."""
    if name == "auto":
        name = "torch" if importlib.util.find_spec("torch") else "numpy"
    ours = {"torch": TorchWriter, "numpy": NumpyWriter, "penstock": PenstockWriter}
    module, _, attribute = name.partition(":")
    if name not in ours and not attribute:
        raise UsageError(
            f"there is no checkpoint writer {name!r}: choose auto, torch, numpy, penstock, or "
            f"give your own as module:name"
        )
    try:
        make: Any = ours.get(name) or getattr(importlib.import_module(module), attribute)
        made = cast(CheckpointWriter, make())
    except (ImportError, AttributeError) as error:
        remedy = "is the module on PYTHONPATH?" if attribute else say_install(name, name)
        raise UsageError(f"the checkpoint writer {name} is not there: {error}: {remedy}") from None
    lacking = [needed for needed in ("name", "suffix", "save", "load") if not hasattr(made, needed)]
    if lacking:
        raise UsageError(
            f"the checkpoint writer {name} has no {', '.join(lacking)}: see CheckpointWriter"
        )
    return made


@contextlib.contextmanager
def open_new_file(path: str, fsync: bool) -> Iterator[IO[bytes]]:
    """A file that gets its name once it is whole; it is removed after an error."""
    with stage_name(path) as temporary, open(temporary, "xb") as file:
        yield file
        if fsync:
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def stage_name(path: str) -> Iterator[str]:
    """A temporary path, renamed to `path` at the end and removed after an error."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.part")
    try:
        with storage_errors(path, "run it again"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # of a run that was killed
            yield temporary
            os.replace(temporary, path)
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Raise our errors for a file that libraries find missing, damaged or unreadable."""
    try:
        yield
    except FileNotFoundError:
        raise MissingError(f"{path} is not there: save the checkpoint again") from None
    except (OSError, *_DAMAGED) as error:
        # torch seeks to before the start of a file that is too short
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            code = error.errno or errno.EIO
            failed = StorageError(
                f"{path} cannot be read: {os.strerror(code)}: check the folder and its file system"
            )
            failed.errno = code
            raise failed from None
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise FormatError(
            f"{path}, {os.path.getsize(path):,} bytes, cannot be loaded: {said}: it was cut or "
            f"altered; save the checkpoint again"
        ) from None
