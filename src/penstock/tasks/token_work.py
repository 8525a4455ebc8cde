"""Tokens, made by many, as one pair of .bin and .idx: each task encodes some of the documents."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from .. import limits
from ..convert.encoder_processes import EncodedTexts
from ..convert.token_worker import TextError
from ..convert.tokenization import prepare_tokenization
from ..dataset.dataset import Dataset
from ..dataset.lengths import count_bytes
from ..errors import UsageError
from ..extent import Int
from ..index.layout import Chunked
from .dataset_work import DatasetWork, divide_evenly
from .work_plan import Sections, read_part


class TokenWork(DatasetWork):
    """The tokens of a data set's texts: units are its documents."""

    noun = "documents"

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `tokenize`."""
        if "tokenizer" not in settings:
            raise UsageError("tokenizer is not given: name the tokenizer.json (--tokenizer)")
        settings.setdefault("destination", os.path.join(folder, "tokens"))
        options = {"workers": 1, **settings}  # tasks share the cores
        destination, tokenizer = options.pop("destination"), options.pop("tokenizer")
        self._run = prepare_tokenization(dataset, destination, tokenizer, **options)

    def divide(self) -> Int:
        """Documents, so many that they have about as many bytes a task, where the index says."""
        index, count = self._run.source.index, len(self._run.source)
        if any(isinstance(layout, Chunked) for layout in index.layouts):
            size = int(limits.task_text_bytes / max(1.0, index.mean_bytes))
            return divide_evenly(count, max(1, size))
        ends, at = [0], 0
        for first in range(0, count, limits.selection_chunk_samples):
            last = min(first + limits.selection_chunk_samples, count)
            numbers = np.arange(first, last, dtype=np.uint64)
            ids = np.asarray(self._run.source.ids(numbers)).view(np.int64)
            total = at + np.cumsum(count_bytes(index, ids))
            before = np.concatenate([[at], total[:-1]])
            full = np.flatnonzero(
                total // limits.task_text_bytes != before // limits.task_text_bytes
            )
            ends += (full + first + 1).tolist()
            at = int(total[-1])
        return np.array([*ends, *([count] if ends[-1] < count else [])], np.int64)

    def describe(self) -> Any:
        """The tokenizer by its digest, and the library by its version."""
        return self._run.manifest.options

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        """Encode documents."""
        done: list[EncodedTexts] = []
        encoded = self._run.encode(first, stop)
        try:
            while (texts := next(encoded, None)) is not None:
                done.append(texts)
        except TextError as error:
            document = first + sum(len(texts.counts) for texts in done) + error.number
            raise self._run.locate(document, error.reason) from None
        tokens = np.frombuffer(b"".join(texts.tokens for texts in done), np.uint8)
        counts = np.concatenate([texts.counts for texts in done])
        broken = sum(texts.broken for texts in done)
        return {"broken": broken}, {"tokens": tokens, "counts": counts}

    def commit(self, parts: Sequence[str]) -> str:
        """Write the tokens of all parts, one after the other, as `tokenize` does."""
        bounds = self.plan_made.sections["bounds"]

        def read(start: int) -> Generator[EncodedTexts, None, None]:
            first = int(np.searchsorted(bounds, start))
            if start < bounds[first]:  # of a run that encoded some of a task's documents itself
                yield from self._run.encode(start, int(bounds[first]))
            for task in range(first, len(parts)):
                header, arrays = read_part(parts[task])
                tokens = arrays["tokens"].tobytes()
                yield EncodedTexts(tokens, arrays["counts"], header["broken"])

        self._run.encoded = read
        made = self._run.execute()
        return f"{made.tokens:,} tokens of {made.documents:,} documents: {made.path}.bin and .idx"
