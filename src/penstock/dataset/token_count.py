"""Numbers of tokens in texts, by the tokenizer.json of Hugging Face's library tokenizers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..arguments import Path, check_path
from ..engine import store as stores
from ..errors import DataError, MissingError, UsageError
from ..index import missing_library


@dataclass(frozen=True)
class TokenCounter:
    """Function that counts the tokens of a sample's text. It may be pickled.

    text:        of the tokenizer's file.
    field_name:  field of the sample that holds its text, a str or UTF-8.
    """

    path: str
    text: str = field(repr=False)
    field_name: str
    _made: list[Any] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, field_name: str) -> TokenCounter:
        """Read a tokenizer.json, or that of a folder. UsageError if it is none; MissingError or
        StorageError."""
        path = os.path.abspath(check_path("tokenizer", path))
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            raise MissingError(
                f"tokenizer: there is no {path}: give a tokenizer.json, or the folder that holds it"
            ) from None
        except OSError as error:
            raise stores.build_storage_error(error.errno or 5, path) from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is no tokenizer.json: it is not UTF-8") from None
        counter = cls(path, text, field_name)
        counter._make()
        return counter

    @property
    def identity(self) -> str:
        """Identity of tokenizer, the library's version, and field."""
        digest = hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()
        return f"{digest}/{_import_library().__version__}/{self.field_name}"

    def __call__(self, sample: Mapping[str, Any]) -> int:
        text = sample[self.field_name]
        if not isinstance(text, str):
            try:
                text = bytes(text).decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"the text in {self.field_name!r} is no UTF-8 at byte {error.start}: repair or "
                    "leave out the sample, or count by a function of yours (--by module:function)"
                ) from None
        return len(self._make().encode(text, add_special_tokens=False))

    def _make(self) -> Any:
        """Return the tokenizer, made at first use."""
        if not self._made:
            try:
                made = _import_library().Tokenizer.from_str(self.text)
            except Exception as error:  # the library raises Exception itself
                raise UsageError(f"{self.path} is no tokenizer.json: {error}") from None
            made.no_truncation()  # files of models carry such settings for their inputs
            made.no_padding()
            made.encode_special_tokens = True  # in texts they are text, as `tokenize` has them
            self._made.append(made)
        return self._made[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenCounter, (self.path, self.text, self.field_name)


def _import_library() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise missing_library("tokenizers", "text", "counting tokens") from None
    return tokenizers
