"""Process that encodes texts: run as a script, by the path of this file, by `EncoderProcesses`.

Only the standard library and the tokenizer's library are imported, so that a process starts soon
and forks nothing. It is single-threaded: with a process for each core the library's own threads
would only compete. It ends when its standard input ends, as by the death of its parent.

    parent -> worker   a pickle of the settings of `make_encoder`; then one for each request: texts
                       in UTF-8, None where there is no text
    worker -> parent   a pickle for each request, see `encode_texts`
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Encoder = Callable[[list[str]], list[list[int]]]


class TextError(ValueError):
    """Error for a text that cannot be encoded: its number in the request, and why."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


def make_encoder(settings: Mapping[str, Any]) -> Encoder:
    """Make the function that gives each text's tokens, without those that a template adds.

    settings:  engine ("tokenizers" or "tiktoken"); special ("text": special tokens in a text are
               encoded as other text; or "tokens"); for tokenizers `json`, the text of
               tokenizer.json; for tiktoken `pattern`, `ranks` and `specials`.
    """
    as_tokens = settings["special"] == "tokens"
    if settings["engine"] == "tiktoken":
        import tiktoken

        encoding = tiktoken.Encoding(
            "penstock",
            pat_str=settings["pattern"],
            mergeable_ranks=settings["ranks"],
            special_tokens=settings["specials"],
        )

        def encode(text: str) -> list[int]:
            if as_tokens:
                tokens = encoding.encode(text, allowed_special="all")
            else:
                tokens = encoding.encode_ordinary(text)
            if encoding.decode_bytes(tokens) != text.encode():  # what no match covers is left out
                raise ValueError("tiktoken leaves out a part of it: use engine='tokenizers'")
            return tokens

        return lambda texts: [encode(text) for text in texts]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(settings["json"])
    tokenizer.no_truncation()  # files of models carry such settings for their inputs
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not as_tokens
    if settings.get("one_by_one"):
        return lambda texts: [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    return lambda texts: [
        encoded.ids for encoded in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ]


def decode_text(number: int, text: bytes | None, masked: bool) -> str | None:
    """Decode a text; None if there is none or, with `masked`, if it is no UTF-8."""
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError as error:
        if masked:
            return None
        wrong = f"{text[error.start : error.end]!r} at byte {error.start:,}"  # type: ignore[index]
        reason = f"is no UTF-8: {wrong}: mend it, or give broken='mask' (--broken mask)"
        raise TextError(number, reason) from None


def encode_texts(
    encode: Encoder, settings: Mapping[str, Any], texts: Sequence[bytes | None]
) -> tuple[bytes, bytes, int]:
    """Encode the texts of a request; TextError names the first that cannot be.

    Returns the tokens end to end, their number in each text (int64), and how many texts were
    missing or broken: these are empty.
    """
    decoded = [decode_text(i, text, settings["masked"]) for i, text in enumerate(texts)]
    try:
        encoded = encode([text or "" for text in decoded])
    except BaseException:  # a panic of the library is no Exception
        for number, text in enumerate(decoded):
            try:
                encode([text or ""])
            except BaseException as error:
                reason = f"cannot be encoded ({type(error).__name__}: {error}): mend the text"
                raise TextError(number, reason) from None
        raise
    tokens = array(settings["typecode"])
    counts = array("q")
    for ids in encoded:
        before = len(tokens)
        tokens.extend(settings["before"])
        tokens.extend(ids)
        tokens.extend(settings["after"])
        counts.append(len(tokens) - before)
    return tokens.tobytes(), counts.tobytes(), decoded.count(None)


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the parent ends this process
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        settings = pickle.load(source)
        encode = make_encoder(settings)
        while True:
            reply: Any
            try:
                reply = encode_texts(encode, settings, pickle.load(source))
            except TextError as error:
                reply = (error.number, error.reason)
            sink.write(pickle.dumps(reply, pickle.HIGHEST_PROTOCOL))
            sink.flush()
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        os._exit(0)  # the parent has ended, and nothing here is worth keeping


if __name__ == "__main__":
    main()
