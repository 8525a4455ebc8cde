"""Tokenizers for tests, made on the spot: byte-level BPE trained on a text, and one of words."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"


def train(path: Path, texts: list[str], size: int = 400) -> Path:
    """Train a byte-level BPE of that many tokens on the texts; its tokenizer.json."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # no threads that later forks would lack
    try:
        made.train_from_iterator(texts, trainer)
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before
    made.save(str(path))
    return path


def save_words(path: Path, count: int) -> Path:
    """Save a tokenizer of so many words: w0, w1, ..., and no special tokens."""
    words = tokenizers.Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, "w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(path))
    return path


def draw_texts(seed: int, count: int, words: int = 40) -> list[str]:
    """Draw texts of up to so many words, some of them not of ASCII."""
    draw = random.Random(seed)
    known = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 7))) for _ in range(200)]
    known += ["naïve", "“so”", "1999", "don't", "\n\n", "   ", "日本語", "🙂", "."]
    return [" ".join(draw.choices(known, k=draw.randint(1, words))) for _ in range(count)]


def write_lines(path: Path, texts: list[Any], **more: Any) -> Path:
    """Write JSON lines with these texts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": i, "text": text, **more}) for i, text in enumerate(texts)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
