"""Tokens, made by many, as one pair of .bin and .idx: each task encodes some of the documents."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from .. import limits
from ..arguments import check_path
from ..convert.encoder_processes import EncodedTexts
from ..convert.token_worker import TextError
from ..convert.tokenization import prepare_tokenization
from ..dataset.dataset import Dataset
from ..errors import UsageError
from .dataset_work import DatasetWork
from .work_plan import Sections, read_part


class TokenWork(DatasetWork):
    """The tokens of a data set's texts: units are its documents."""

    noun = "documents"

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `tokenize`."""
        if "tokenizer" not in settings:
            raise UsageError("tokenizer is not given: name the tokenizer.json (--tokenizer)")
        settings.setdefault("destination", os.path.join(folder, "tokens"))
        for name in ("tokenizer", "destination"):
            settings[name] = os.path.abspath(check_path(name, settings[name]))
        options = {"workers": 1, **settings}  # tasks share the cores
        destination, tokenizer = options.pop("destination"), options.pop("tokenizer")
        self._run = prepare_tokenization(dataset, destination, tokenizer, **options)

    def divide(self) -> tuple[int, int]:
        """Documents, so many that they have about as many bytes a task."""
        source = self._run.source
        mean = max(1.0, source.index.mean_bytes)
        return len(source), max(1, int(limits.task_text_bytes / mean))

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
            for task in range(int(np.searchsorted(bounds, start, "right")) - 1, len(parts)):
                header, arrays = read_part(parts[task])
                skipped = max(0, start - int(bounds[task]))
                counts = arrays["counts"]
                cut = int(counts[:skipped].sum()) * self._run.dtype.itemsize
                tokens = arrays["tokens"][cut:].tobytes()
                yield EncodedTexts(tokens, counts[skipped:], header["broken"])

        self._run.encoded = read
        made = self._run.execute()
        return f"{made.tokens:,} tokens of {made.documents:,} documents: {made.path}.bin and .idx"
