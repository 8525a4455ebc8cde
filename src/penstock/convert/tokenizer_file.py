"""Tokenizer files of Hugging Face's `tokenizers`: identity, vocabulary, and the end of a document.

A tokenizer.json names its special tokens, and not what each is for: that is said by
tokenizer_config.json beside it, or by the token's usual name. For `tiktoken` the same byte-pair
encoding is derived from the file, and refused unless its merges are proved to be equal.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..arguments import Path, check_path, check_whole
from ..errors import MissingError, UsageError, import_library

Library = Literal["tokenizers", "tiktoken"]

FILE = "tokenizer.json"
_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
_BYTES_MAX = 1 << 30
_BYTE_LEVEL_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Regular expression by which the pre-tokenizer ByteLevel splits texts."""


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer as its file describes it.

    text:        of the file.
    digest:      128 bits of the text.
    vocabulary:  a number that all tokens are below.
    ids:         number of each token, added ones included.
    version:     of the library `tokenizers`.
    """

    path: str
    text: str
    digest: str
    vocabulary: int
    ids: Mapping[str, int]
    version: str

    @classmethod
    def load(cls, given: Path) -> TokenizerFile:
        """Load a tokenizer.json, or a folder's. UsageError or MissingError names the file."""
        path = os.path.abspath(check_path("tokenizer", given))
        if os.path.isdir(path):
            path = os.path.join(path, FILE)
        tokenizers = import_library("tokenizers", "text", "encoding text")
        try:
            with open(path, "rb") as file:
                data = file.read(_BYTES_MAX)
        except FileNotFoundError:
            # AutoTokenizer.from_pretrained(...).save_pretrained(folder) of transformers writes one.
            raise MissingError(f"there is no {path}: give a {FILE}, or its folder") from None
        except OSError as error:
            raise UsageError(f"tokenizer: {path} cannot be read: {error.strerror}") from None
        try:
            text = data.decode()
            described = json.loads(text)
            tokenizer = tokenizers.Tokenizer.from_str(text)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises no narrower one, and panics
            library = f"tokenizers {tokenizers.__version__}"
            raise UsageError(f"{path} is no {FILE} that {library} reads: {error}") from None
        if described["model"].get("dropout"):
            raise UsageError(f"tokenizer: {path} has a dropout, so tokens vary: set it to null")
        ids = tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise UsageError(f"tokenizer: {path} has no tokens: train it first")
        vocabulary = max(ids.values()) + 1
        if vocabulary > 1 << 31:
            raise UsageError(f"{path} has a token {vocabulary - 1:,}: use numbers below 2^31")
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        return cls(path, text, digest, vocabulary, ids, tokenizers.__version__)

    def find_token(self, name: str, given: str | int) -> int:
        """Find the number of a token that an argument names, or that it is."""
        if isinstance(given, bool) or not isinstance(given, str | int):
            raise UsageError(f"{name} is {given!r}: give a token, or its number")
        if isinstance(given, int):
            return check_whole(name, given, 0, self.vocabulary - 1)
        if given in self.ids:
            return self.ids[given]
        shown = ", ".join(map(repr, self._list_specials()[:20])) or "none"
        raise UsageError(f"{name} is {given!r}: give a token of {self.path}, such as {shown}")

    def find_end(self) -> int:
        """Find the token that ends a document: by the configuration beside the file, or else by a
        usual name that only one special token has. UsageError if there is none."""
        for name in _CONFIGS:
            path = os.path.join(os.path.dirname(self.path), name)
            try:
                with open(path, "rb") as file:
                    token = json.loads(file.read(_BYTES_MAX)).get("eos_token")
            except (OSError, ValueError, AttributeError):
                continue
            if isinstance(token, dict):
                token = token.get("content")
            if isinstance(token, str) and token in self.ids:
                return self.ids[token]
        specials = self._list_specials()
        usual = [name for name in _END_NAMES if name in specials]
        if len(usual) == 1:
            return self.ids[usual[0]]
        shown = ", ".join(map(repr, specials[:20])) or "none"
        what = f"{self.path} has no known end of a document among {shown}"
        raise UsageError(f"{what}: name it by eos= (--eos TOKEN), or give eos=False (--no-eos)")

    def _list_specials(self) -> list[str]:
        added = json.loads(self.text).get("added_tokens") or ()
        return [str(one["content"]) for one in added if one.get("special")]

    def describe_for(self, library: Library) -> dict[str, Any]:
        """Return what `token_worker.make_encoder` needs of the tokenizer for a library."""
        if library == "tokenizers":
            return {"engine": library, "json": self.text}
        import_library("tiktoken", "text", "encoding with tiktoken")
        try:
            pattern, ranks, specials = derive_ranks(json.loads(self.text))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"not for tiktoken: {error}: leave engine= (--engine) out") from None
        return {"engine": library, "pattern": pattern, "ranks": ranks, "specials": specials}


# -- tiktoken --------------------------------------------------------------------------------------


def derive_ranks(described: Mapping[str, Any]) -> tuple[str, dict[bytes, int], dict[str, int]]:
    """Derive the pattern, the ranks of byte strings and the special tokens of the encoding.
    ValueError, KeyError or TypeError if tiktoken would give other tokens, or might.

    tokenizers merges pairs that its list names, the first of the list before others; tiktoken any
    pair that makes a token, the lowest token before others. Both give the same if the list is in
    order of the tokens that it makes, and if each token, encoded by ranks alone, is made of the
    very pair that the list has for it: a pair that makes a token is within the token's own bytes,
    where merges do not depend on what is around them, so that no other pair of it ever arises.
    """
    model = described["model"]
    unsupported = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    added = described.get("added_tokens") or ()
    specials = {token["content"]: int(token["id"]) for token in added}
    for is_unlike, reason in (
        (any(model.get(name) for name in unsupported), f"its model has one of {unsupported}"),
        (model.get("type") != "BPE" or model.get("byte_fallback"), "it is no byte-level BPE"),
        (described.get("normalizer") is not None, "it normalizes texts"),
        (any(map(_is_unlike_special, added)), "its added tokens are not only plain special ones"),
    ):
        if is_unlike:
            raise ValueError(reason)
    pattern = _find_pattern(described.get("pre_tokenizer") or {})
    # The character of a byte is itself if it is visible, else the next one above 255.
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = (byte for byte in range(256) if byte not in visible)
    alphabet = {chr(byte): byte for byte in visible}
    alphabet |= {chr(256 + number): byte for number, byte in enumerate(hidden)}
    ranks = {
        bytes(alphabet[character] for character in token): int(rank)
        for token, rank in model["vocab"].items()
        if token not in specials
    }
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise ValueError("not every byte is a token")
    _check_merges(model["merges"], ranks, alphabet)
    return pattern, ranks, specials


def _is_unlike_special(token: Mapping[str, Any]) -> bool:
    return not token.get("special") or any(map(token.get, ("lstrip", "rstrip", "single_word")))


def _find_pattern(splitter: Mapping[str, Any]) -> str:
    """Find the regular expression by which texts are split."""
    steps = splitter["pretokenizers"] if splitter.get("type") == "Sequence" else [splitter]
    match steps:
        case [{"type": "ByteLevel", "add_prefix_space": False, **rest}]:
            if rest.get("use_regex", True):
                return _BYTE_LEVEL_PATTERN
        case [
            {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": pattern}, **first},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            if not first.get("invert"):
                return str(pattern)
    raise ValueError("it splits texts in a way of its own")


def _check_merges(merges: Any, ranks: Mapping[bytes, int], alphabet: Mapping[str, int]) -> None:
    """Raise ValueError unless merging by ranks alone makes the pairs of the list, see
    `derive_ranks`."""
    before, made = -1, 0
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        left, right = (bytes(alphabet[character] for character in half) for half in pair)
        rank = ranks[left + right]
        if rank <= before:
            raise ValueError(f"merge {made:,} makes token {rank:,}, the merge before {before:,}")
        if _split_last(left + right, ranks) != [left, right]:
            raise ValueError(f"token {rank:,} has several ways to be made")
        before, made = rank, made + 1
    if made + 256 != len(ranks):
        raise ValueError(f"{len(ranks):,} tokens are made by {made:,} merges of 256 bytes")


def _split_last(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Merge the bytes of a token, the lowest rank first, until two parts are left or no more can
    be merged."""
    pieces = [token[at : at + 1] for at in range(len(token))]
    while len(pieces) > 2:
        pairs = [(ranks.get(pieces[i] + pieces[i + 1]), i) for i in range(len(pieces) - 1)]
        known = [(rank, at) for rank, at in pairs if rank is not None]
        if not known:
            break
        _, at = min(known)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces
