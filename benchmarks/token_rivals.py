"""Tokens of JSON lines by shared work here, and by libraries that do the same: datatrove, LitData.

Each has two worker processes, which it starts itself, and the same two files, tokenizer.json and
documents; what it writes is read back, and has to be the same tokens in the same order. A first run
finds the faster setting of each rival: threads within `tokenizers` besides its processes, or none.
datatrove writes a file a worker, LitData chunks; ours writes one pair of files, synced.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.tasks import distribute, make_engine, plan_work

from .pairing import count_turns, divide_pairs

Tokens = npt.NDArray[np.uint16]
BATCH = 1000
"""Documents that a rival encodes at a time: less memory, and no slower, than its default."""
CHUNK_TOKENS = 1 << 24


def run_ours(engine: str, data: Path, tokenizer: Path, folder: Path, workers: int) -> None:
    """Plan, work and commit."""
    plan = plan_work(
        "tokenize", data, folder / "work", tokenizer=str(tokenizer), eos=False, engine=engine
    )
    failed = distribute(plan, make_engine("local", workers))
    assert not failed, failed
    plan.commit()


def read_ours(folder: Path) -> Tokens:
    return np.fromfile(folder / "work" / "tokens.bin", np.uint16)


def run_datatrove(data: Path, tokenizer: Path, folder: Path, workers: int) -> None:
    """Its local executor: each worker reads files of its own, and writes a file of tokens."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    steps = [
        JsonlReader(str(data), add_file_path=False),
        DocumentTokenizer(
            str(folder / "tokens"), str(tokenizer), batch_size=BATCH, shuffle_documents=False
        ),
    ]
    logs = str(folder / "logs")
    LocalPipelineExecutor(steps, tasks=workers, workers=workers, logging_dir=logs).run()


def read_datatrove(folder: Path) -> Tokens:
    files = sorted((folder / "tokens").glob("*.ds"))
    return np.concatenate([np.fromfile(file, np.uint16) for file in files])


def _encode_file(tokenizer: str, path: str) -> Iterator[Any]:
    """Tensors of the tokens of each document of a file."""
    import tokenizers

    import torch

    encoder = tokenizers.Tokenizer.from_file(tokenizer)
    with open(path, "rb") as lines:
        while texts := [json.loads(line)["text"] for line in islice(lines, BATCH)]:
            for encoded in encoder.encode_batch_fast(texts, add_special_tokens=False):
                yield torch.tensor(encoded.ids, dtype=torch.uint16)


def run_litdata(data: Path, tokenizer: Path, folder: Path, workers: int) -> None:
    """`litdata.optimize` as its documentation tokenizes: a file an input, tensors of tokens."""
    from litdata import optimize
    from litdata.streaming.item_loader import TokensLoader

    optimize(
        partial(_encode_file, str(tokenizer)),
        [str(path) for path in sorted(data.iterdir())],
        str(folder / "tokens"),
        chunk_size=CHUNK_TOKENS,
        num_workers=workers,
        item_loader=TokensLoader(),
        reorder_files=False,
        verbose=False,
    )


def read_litdata(folder: Path) -> Tokens:
    index = json.loads((folder / "tokens" / "index.json").read_text())
    names = [chunk["filename"] for chunk in index["chunks"]]
    tokens = []
    for name in sorted(names, key=lambda name: [int(n) for n in name[:-4].split("-")[1:]]):
        chunk = (folder / "tokens" / name).read_bytes()
        count = int(np.frombuffer(chunk, np.uint32, 1)[0])
        tokens.append(np.frombuffer(chunk, np.uint16, offset=4 * (count + 2)))
    return np.concatenate(tokens)


Run = Callable[[Path, Path, Path, int], None]
CONTENDERS: dict[str, tuple[Run, Callable[[Path], Tokens]]] = {
    "penstock": (partial(run_ours, "tokenizers"), read_ours),
    "penstock, tiktoken": (partial(run_ours, "tiktoken"), read_ours),
    "datatrove": (run_datatrove, read_datatrove),
    "litData.optimize": (run_litdata, read_litdata),
}
"""Functions that make the tokens, and that read them back."""


def time_tokens(
    name: str, data: Path, tokenizer: Path, folder: Path, workers: int, threads: bool
) -> tuple[float, str]:
    """Seconds of a contender, and a digest of the tokens that it wrote."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["TOKENIZERS_PARALLELISM"] = str(threads).lower()
    run, read = CONTENDERS[name]
    started = time.perf_counter()
    run(data, tokenizer, folder, workers)
    return time.perf_counter() - started, hashlib.sha256(read(folder)).hexdigest()


def race_tokens(
    data: Path, tokenizer: Path, folder: Path, workers: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of the contenders, which take turns; and what is to be said of each."""
    run = partial(time_tokens, data=data, tokenizer=tokenizer, folder=folder, workers=workers)
    digests, threads, notes = set(), {}, {}
    seconds: dict[str, list[float]] = {}
    for name in CONTENDERS:  # ours goes first, when no file is in memory yet
        # Rivals were slower without threads of `tokenizers` in each record.
        threaded = not name.startswith("penstock")
        try:
            taken, digest = run(name, threads=threaded)
        except ImportError as error:
            notes[name] = f"not measured: {error}"
            continue
        digests.add(digest)
        seconds[name], threads[name] = [taken], threaded
        notes[name] = f"{workers} workers, threads {'on' if threads[name] else 'off'}"
    assert len(digests) == 1, "tokens differ"
    rivals = [name for name in seconds if not name.startswith("penstock")]
    for turn in count_turns(
        rounds - 1, lambda: [divide_pairs(seconds["penstock"], seconds[name]) for name in rivals]
    ):
        for name in list(threads) if turn % 2 else reversed(list(threads)):
            seconds[name].append(run(name, threads=threads[name])[0])
    return seconds, notes
