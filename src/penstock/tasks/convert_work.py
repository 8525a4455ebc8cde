"""Shards and tokens, written by many hosts as `convert` and `tokenize` write them on one."""

from __future__ import annotations

import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import limits
from ..convert.conversion import ShardsConversion, convert, prepare_conversion
from ..convert.manifest import mismatch_error
from ..convert.token_files import BIN, PLACED, TokenWriter, join_sums, sum_file
from ..convert.tokenization import prepare_tokenization, tokenize
from ..dataset.dataset import Dataset
from ..dataset.lengths import count_bytes
from ..engine.atomic_file import storage_errors
from ..errors import MissingError, UsageError
from ..extent import Int
from ..index.layout import Chunked
from .dataset_work import DatasetWork, divide_evenly, list_settings
from .work_plan import Sections, read_part


class ShardWork(DatasetWork):
    """A data set in another container: units are its shards."""

    noun = "shards"
    settings = list_settings(convert, "shard_bytes")

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `convert`."""
        settings.setdefault("destination", os.path.join(folder, "shards"))
        for name in ("to", "shards"):
            if settings.get(name) is None:
                raise UsageError(f"{name} is not given: say what to write (--to, --shards)")
        conversion = prepare_conversion(dataset, **settings)
        assert isinstance(conversion, ShardsConversion)  # LMDB takes no shards=
        self._conversion = conversion

    def begin(self) -> None:
        """Take the destination for the shards."""
        self._conversion.begin()

    def divide(self) -> Int:
        """Shards, one a task."""
        return divide_evenly(int(self._conversion.options["shards"]), 1)

    def describe(self) -> Any:
        """The options of the conversion."""
        return self._conversion.options

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        entry = self._conversion.write_alone(first)
        return {"entry": entry}, {"bounds": np.array([entry["first"], entry["end"]])}

    def commit(self, parts: Sequence[str], share: Callable[..., None]) -> str:
        """Note in the destination that its shards are whole."""
        entries = [read_part(path)[0]["entry"] for path in parts]
        for path, entry in zip(parts, entries, strict=True):
            shard = os.path.join(self._conversion.path, entry["name"])
            if not os.path.isfile(shard) or os.path.getsize(shard) != entry["bytes"]:
                os.unlink(path)  # it has to be written again
                raise MissingError(f"{shard} is not as it was written: run `penstock work` again")
        made = self._conversion.run(entries)
        return f"{made.samples:,} samples in {len(made.files):,} shards: {made.call}"


class TokenWork(DatasetWork):
    """The tokens of a data set's texts: units are its documents."""

    noun = "documents"
    settings = list_settings(tokenize, "verify")

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `tokenize`."""
        if "tokenizer" not in settings:
            raise UsageError("tokenizer is not given: name the tokenizer.json (--tokenizer)")
        settings.setdefault("destination", os.path.join(folder, "tokens"))
        settings.setdefault("workers", 1)  # tasks share the cores
        self._run = prepare_tokenization(dataset, **settings)

    def divide(self) -> Int:
        """Documents of about as many bytes a task, where the index says; fewer if all are few."""
        index, count = self._run.source.index, len(self._run.source)
        mean, most = max(1.0, index.mean_bytes), limits.task_text_bytes
        size = int(np.clip(mean * count / limits.tasks_usual, most // 16, most))
        if any(isinstance(layout, Chunked) for layout in index.layouts):
            return divide_evenly(count, max(1, int(size / mean)))
        ends, total = [0], 0
        for first in range(0, count, limits.selection_chunk_samples):
            last = min(first + limits.selection_chunk_samples, count)
            ids = np.asarray(self._run.source.ids(np.arange(first, last, dtype=np.uint64)))
            sums = total + np.cumsum(count_bytes(index, ids.view(np.int64)))
            tasks = np.append(total, sums) // size
            ends += (np.flatnonzero(np.diff(tasks)) + first + 1).tolist()
            total = int(sums[-1])
        return np.unique([*ends, count])

    def describe(self) -> Any:
        """The tokenizer by its digest, and the library by its version."""
        return self._run.manifest.options

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        done = list(self._run.encode(first, stop))
        tokens = np.frombuffer(b"".join(texts.tokens for texts in done), np.uint8)
        counts = np.concatenate([texts.counts for texts in done])
        broken = sum(texts.broken for texts in done)
        return {"broken": broken}, {"counts": counts, "tokens": tokens}  # to the end of the file

    def commit(self, parts: Sequence[str], share: Callable[..., None]) -> str:
        """Write the files of `tokenize`: tokens are copied to their places by many."""

        def place(writer: TokenWriter) -> None:
            # Of a name of its own: a worker who is late finds no file, rather than another's.
            path = os.path.join(writer.folder, f"{PLACED}{secrets.token_hex(8)}")
            pieces: list[tuple[str, str, int]] = []
            with storage_errors(path), open(path, "xb"):
                for part in parts:
                    header, arrays = read_part(part, False)
                    (*_, counts_crc32), (*_, size, crc32) = header["sections"]
                    if zlib.crc32(arrays["counts"].data) != counts_crc32:
                        read_part(part)  # raises the error of damage
                    pieces.append((part, path, writer.state["bytes"]))
                    crc32 = join_sums(writer.state["crc32"], crc32, size)
                    counts, broken = arrays["counts"], header["broken"]
                    writer.append_placed(size, crc32, counts, self._run.around, broken)
                share(place_tokens, pieces)
                os.replace(path, os.path.join(writer.folder, BIN))

        self._run.place = place
        made = self._run.execute()
        return f"{made.tokens:,} tokens of {made.documents:,} documents: {made.path}.bin and .idx"


def place_tokens(part: str, path: str, at: int) -> None:
    """Copy the tokens of a part to their place in a file, and read them back."""
    *_, size, crc32 = read_part(part, False)[0]["sections"][-1]
    with open(part, "rb") as source, storage_errors(path), open(path, "r+b") as target:
        source.seek(-size, os.SEEK_END)
        target.seek(at)
        shutil.copyfileobj(source, target, limits.MIB)
        target.flush()
        os.fsync(target.fileno())
    if sum_file(path, at, size) != (size, crc32):
        read_part(part)  # raises the error, if it is the part's
        raise mismatch_error(path, f"the tokens of {part} differ")
