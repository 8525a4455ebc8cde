"""python -m benchmarks.tokenizing [--quick]: `penstock.convert.tokenize` against its library.

Documents with the lengths of the web's, of words by Zipf's law, as JSON lines; a byte-level BPE of
32,000 tokens that is trained on them. Against `encode_batch_fast` of `tokenizers` on all texts at
once, in memory, with its own threads on the same cores: no parsing, no tokens written. The two
take turns. Every run of ours has 0.4 s of processors to load the tokenizer, here and in each
process; with tiktoken 0.5 s more to prove that it is equal, and 1,000 documents are compared. One
row is of the time that passes, where what else runs on the machine counts, and one of processor
time, of all processes. Record: benchmarks/results/tokenizing.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

import penstock

from .__main__ import finish
from .contender import ROOT
from .pairing import count_turns
from .record import Record
from .text import TOKEN_BYTES, WEB_MEDIAN, WEB_SIGMA, make_row

VOCABULARY = 32_000
WORDS = 300_000
TRAINED_ON = 700
"""Documents that the tokenizer is trained on: 4 MB."""
TARGET = 0.9
END = "<|endoftext|>"


def draw_texts(size: int) -> list[str]:
    """Texts of about so many bytes together: words of letters, drawn by Zipf's law."""
    draw = np.random.default_rng(1)
    lengths = draw.integers(2, 12, WORDS)
    words = ["".join(map(chr, draw.integers(97, 123, n))) for n in lengths]
    until = np.cumsum(1 / np.arange(1, WORDS + 1))
    texts: list[str] = []
    while size > 0:
        wanted = TOKEN_BYTES * draw.lognormal(np.log(WEB_MEDIAN), WEB_SIGMA)
        count = max(1, min(int(wanted / 6), 100_000))
        chosen = np.searchsorted(until, until[-1] * draw.random(count), side="right")
        texts.append(" ".join(words[i] for i in chosen))
        size -= len(texts[-1])
    return texts


def train(path: Path, texts: list[str]) -> Path:
    """The trained tokenizer.json, made if it is not there."""
    if not path.exists():
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        made.train_from_iterator(texts, trainer)
        made.save(str(path))
    return path


def time_run(run: Callable[[], int], tokens: int) -> tuple[float, float]:
    """Seconds that pass and seconds of processors, of a run that has to make so many tokens."""

    def processor_s() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    began_s, began_cpu_s = time.perf_counter(), processor_s()
    found = run()
    seconds = time.perf_counter() - began_s, processor_s() - began_cpu_s
    assert found == tokens, f"{found:,} tokens, not {tokens:,}"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenizing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few pairs")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(options.data).resolve() / "tokenizing"
    folder.mkdir(parents=True, exist_ok=True)
    size, rounds = (4_000_000, 3) if options.quick else (20_000_000, 5)
    record = Record(
        "tokenizing-quick" if options.quick else "tokenizing", options.seed, vars(options)
    )
    texts = draw_texts(size)
    path = folder / f"zipf-{size}.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = train(folder / f"bpe-{VOCABULARY}.json", texts[:TRAINED_ON])
    library = tokenizers.Tokenizer.from_file(str(tokenizer))
    source = penstock.open(path, index="memory")
    cores = len(os.sched_getaffinity(0))

    def run_library() -> int:
        return sum(map(len, library.encode_batch_fast(texts, add_special_tokens=False)))

    def run_ours(engine: str) -> int:
        done = penstock.convert.tokenize(
            source, folder / "out", tokenizer, eos=False, force=True, workers=cores, engine=engine
        )
        return done.tokens

    tokens = run_library()
    for engine, pairs_count in (("tokenizers", rounds), ("tiktoken", 2)):
        pairs: list[list[tuple[float, float]]] = []
        for turn in count_turns(
            pairs_count,
            lambda: [[theirs[0] / ours[0] for ours, theirs in pairs]],  # noqa: B023
        ):
            sides = [lambda: run_ours(engine), run_library]  # noqa: B023
            times = [time_run(side, tokens) for side in (sides if turn % 2 else sides[::-1])]
            pairs.append(times if turn % 2 else times[::-1])
        name = "tokenize" if engine == "tokenizers" else "tokenize with tiktoken"
        for number, kind in enumerate(("time", "processor time")):
            seconds = [[side[number] for side in pair] for pair in pairs]
            note = f"encode_batch_fast on {cores} cores; of {kind}; target {TARGET}"
            row = make_row(
                f"{name} / {kind}", seconds, tokens, "tokens/s", TARGET, options.seed, note
            )
            record.rows.append(row)
            record.raw[row.name] = {"seconds": seconds, "tokens": tokens, "documents": len(texts)}
    finish(record)


if __name__ == "__main__":
    main()
