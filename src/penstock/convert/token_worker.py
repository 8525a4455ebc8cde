"""Process that encodes texts: run as a script, by the path of this file, by `EncoderProcesses`.

Only the standard library and the tokenizer's library are imported, so that a process starts soon
and forks nothing. It is single-threaded: with a process for each core the library's own threads
would only compete. It ends when its standard input ends, as by the death of its parent.

    parent -> worker   once: the length of a pickle (int64), the pickle, see `make_encoder`
                       each request: number of texts n and bytes of all (int64), n lengths
                       (int64; -1: no text), the texts in UTF-8
    worker -> parent   done: 0, broken texts, bytes of tokens (int64), n numbers of tokens
                       (int64), the tokens
                       failed: 1, the number of the text, bytes of the reason (int64), the reason
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from array import array
from collections.abc import Callable, Mapping
from typing import IO, Any

ONE = struct.Struct("<q")
REQUEST = struct.Struct("<qq")
REPLY = struct.Struct("<qqq")
DONE, FAILED = 0, 1

Encoder = Callable[[list[str]], list[list[int]]]


class TextError(ValueError):
    """Error for a text that cannot be encoded: its number in the request, and why."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def make_encoder(told: Mapping[str, Any]) -> Encoder:
    """Make the function that gives each text's tokens, without those that a template adds.

    told:  engine ("tokenizers" or "tiktoken"); special ("text": special tokens in a text are
           encoded as other text; or "tokens"); for tokenizers `json`, the text of tokenizer.json;
           for tiktoken `pattern`, `ranks` and `specials`.
    """
    as_tokens = told["special"] == "tokens"
    if told["engine"] == "tiktoken":
        import tiktoken

        encoding = tiktoken.Encoding(
            "penstock",
            pat_str=told["pattern"],
            mergeable_ranks=told["ranks"],
            special_tokens=told["specials"],
        )

        def encode(text: str) -> list[int]:
            tokens = (
                encoding.encode(text, allowed_special="all")
                if as_tokens
                else encoding.encode_ordinary(text)
            )
            if encoding.decode_bytes(tokens) != text.encode():  # what no match covers is left out
                raise ValueError("tiktoken leaves out a part of it: use engine='tokenizers'")
            return tokens

        return lambda texts: [encode(text) for text in texts]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(told["json"])
    tokenizer.no_truncation()  # files of models carry such settings for their inputs
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not as_tokens
    if told.get("one_by_one"):
        return lambda texts: [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    return lambda texts: [
        one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ]


def decode_texts(lengths: array[int], data: bytes, masked: bool) -> tuple[list[str], int]:
    """Decode the texts. Returns them with the number of those that are none: no text, or, if
    `masked`, broken UTF-8. These are empty. Else broken UTF-8 is a TextError."""
    texts, broken, at = [], 0, 0
    for number, length in enumerate(lengths):
        text = ""
        if length < 0:
            broken += 1
        else:
            try:
                text = data[at : at + length].decode()
            except UnicodeDecodeError as error:
                if not masked:
                    wrong = f"{data[at + error.start : at + error.end]!r} at byte {error.start:,}"
                    reason = f"is no UTF-8: {wrong}: mend it, or give broken='mask'"
                    raise TextError(number, reason) from None
                broken += 1
            at += length
        texts.append(text)
    return texts, broken


def encode_texts(encode: Encoder, texts: list[str]) -> list[list[int]]:
    """Encode the texts; TextError names the first that cannot be."""
    try:
        return encode(texts)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a panic of the library is no Exception
        for number, text in enumerate(texts):
            try:
                encode([text])
            except BaseException as error:
                reason = f"cannot be encoded ({type(error).__name__}: {error}): mend the text"
                raise TextError(number, reason) from None
        raise


def answer(encode: Encoder, told: Mapping[str, Any], lengths: array[int], data: bytes) -> bytes:
    """Encode the texts of a request; the reply."""
    try:
        texts, broken = decode_texts(lengths, data, told["masked"])
        tokens = array(told["typecode"])
        counts = array("q")
        for ids in encode_texts(encode, texts):
            before = len(tokens)
            tokens.extend(told["before"])
            tokens.extend(ids)
            tokens.extend(told["after"])
            counts.append(len(tokens) - before)
    except TextError as error:
        reason = str(error).encode("utf-8", "backslashreplace")
        return REPLY.pack(FAILED, error.number, len(reason)) + reason
    size = len(tokens) * tokens.itemsize
    return REPLY.pack(DONE, broken, size) + counts.tobytes() + tokens.tobytes()


def read_exactly(source: IO[bytes], size: int) -> bytes:
    """Read so many bytes; EOFError if there are fewer."""
    data = source.read(size)
    if len(data) < size:
        raise EOFError
    return data


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the parent ends this process
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        (size,) = ONE.unpack(read_exactly(source, ONE.size))
        told = pickle.loads(read_exactly(source, size))
        encode = make_encoder(told)
        while True:
            count, size = REQUEST.unpack(read_exactly(source, REQUEST.size))
            lengths = array("q", read_exactly(source, 8 * count))
            sink.write(answer(encode, told, lengths, read_exactly(source, size)))
            sink.flush()
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent has ended, and nothing here is worth keeping


if __name__ == "__main__":
    main()
