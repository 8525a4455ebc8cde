"""Tokens, made by many, as one pair of .bin and .idx: each task encodes some of the documents."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from .. import limits
from ..arguments import check_path
from ..convert.encoder_processes import EncodedTexts
from ..convert.manifest import describe_source
from ..convert.token_worker import TextError
from ..convert.tokenization import Tokenization, prepare_tokenization
from ..dataset.dataset import open as open_dataset
from ..dataset.sources import pin_paths
from ..engine.store import Progress
from ..errors import UsageError
from .work_plan import Sections, Tasks, WorkPlan, read_part

_INDEX = "index.penstock"


class TokenWork:
    """The tokens of a data set's texts: units are its documents."""

    def __init__(self, plan: WorkPlan) -> None:
        self._plan = plan
        index = os.path.join(plan.folder, _INDEX)
        self._run = _prepare(plan.about, plan.folder, index)
        stamp = describe_source(self._run.source)["stamp"]
        if stamp != plan.kept["stamp"]:
            raise UsageError(f"{index} is of another plan: plan the work again")

    @staticmethod
    def plan(
        paths: list[str],
        folder: str,
        options: dict[str, Any],
        settings: dict[str, Any],
        before: WorkPlan | None,
        progress: Progress | None,
    ) -> Tasks:
        """Index the data, and divide its documents."""
        source = pin_paths(paths)
        for name in ("tokenizer", "destination"):
            if name in settings:
                settings[name] = os.path.abspath(check_path(name, settings[name]))
        about = {"source": source, "options": options, "settings": settings}
        run = _prepare(about, folder, "auto", progress)
        index = run.source.index
        os.makedirs(folder, exist_ok=True)
        index.save(os.path.join(folder, _INDEX))
        size = max(1, int(limits.task_text_bytes / max(1.0, index.mean_bytes)))
        firsts = range(0, len(run.source), size)
        bounds = np.array([*firsts, len(run.source)], np.int64)
        described = describe_source(run.source)
        about_run = repr((run.manifest.source, run.manifest.options)).encode()
        spans = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        states = [about_run + repr(span).encode() for span in spans]
        labels = [f"documents {first:,} to {stop - 1:,}" for first, stop in spans]
        return Tasks(source, bounds, states, labels, {"stamp": described["stamp"]}, {})

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

        def read(start: int) -> Generator[EncodedTexts, None, None]:
            bounds = self._plan.sections["bounds"]
            for task in range(int(np.searchsorted(bounds, start, "right")) - 1, len(parts)):
                header, sections = read_part(parts[task])
                yield EncodedTexts(
                    sections["tokens"].tobytes(), sections["counts"], header["broken"]
                )

        self._run.encoded = read
        made = self._run.execute()
        return f"{made.tokens:,} tokens of {made.documents:,} documents: {made.path}.bin and .idx"


def _prepare(
    about: dict[str, Any], folder: str, index: str, progress: Progress | None = None
) -> Tokenization:
    settings = dict(about["settings"])
    if "tokenizer" not in settings:
        raise UsageError("tokenizer is not given: name the tokenizer.json (--tokenizer)")
    destination = settings.pop("destination", os.path.join(folder, "tokens"))
    source = about["source"]
    data = open_dataset(source, index=index, progress=progress, **about["options"])
    settings = {"workers": 1, **settings}  # tasks share the cores
    return prepare_tokenization(data, destination, settings.pop("tokenizer"), **settings)
