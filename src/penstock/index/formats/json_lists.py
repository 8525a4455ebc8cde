"""The lists of a large document of JSON, parsed element by element.

A parsed document takes several times the memory of its text. `JsonLists` reads the text in pieces
and notes where the lists of the outermost object begin; `parse` then hands out the elements of one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ... import limits
from ...errors import FormatError
from .image_annotations import show

_NO_BLANK = re.compile(r"[^ \t\n\r]")
_decode = json.JSONDecoder().raw_decode


class JsonLists:
    """The lists of the object that a document of JSON is.

    keys:    of the object, in the sequence of the file.
    others:  the values that are no lists, as an error's message shows them.

    fetch(offset, length) returns bytes of the file, fewer at its end. FormatError, with the place,
    if the text is no JSON in UTF-8, no object, or has a key twice, of which one would be lost.
    """

    def __init__(self, path: str, fetch: Callable[[int, int], bytes]) -> None:
        self._path, self._fetch = path, fetch
        self.keys: list[str] = []
        self.others: dict[str, str] = {}
        self._begins: dict[str, int] = {}
        text = _Text(path, fetch, 0)
        if text.peek() == "\ufeff":
            text.at += 1
        if text.peek() != "{":
            text.refuse("it is no object")
        for _ in text.walk("}"):
            key = text.parse()
            if not isinstance(key, str):
                text.refuse(f"{key!r:.80} stands where a key belongs")
            if key in self.keys:
                text.refuse(f"the key {key!r:.80} comes a second time: leave one of them")
            self.keys.append(key)
            text.want(":")
            if text.peek() == "[":
                self._begins[key] = text.offset()
                for _ in text.walk("]"):
                    text.parse()
            else:
                self.others[key] = show(text.parse())
        if text.peek():
            text.refuse("more comes after the object")

    def __contains__(self, key: str) -> bool:
        """True if the value of a key is a list."""
        return key in self._begins

    def parse(self, key: str) -> Iterator[Any]:
        """Parse the elements of a list."""
        text = _Text(self._path, self._fetch, self._begins[key])
        for _ in text.walk("]"):
            yield text.parse()


class _Text:
    """A part of the text, from `at` on what is still to be parsed."""

    def __init__(self, path: str, fetch: Callable[[int, int], bytes], offset: int) -> None:
        self._path, self._fetch, self._read = path, fetch, offset
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_whole = False
        self.text, self.at = "", 0

    def offset(self) -> int:
        """Return the byte of the file at which `at` is."""
        pending = len(self._decoder.getstate()[0])
        return self._read - pending - len(self.text[self.at :].encode())

    def refuse(self, reason: str) -> NoReturn:
        raise FormatError(f"{self._path}: at byte {self.offset():,} of the JSON: {reason}")

    def peek(self) -> str:
        """Return the next character that is no blank; "" at the end."""
        while True:
            found = _NO_BLANK.search(self.text, self.at)
            self.at = len(self.text) if found is None else found.start()
            if self.at < len(self.text) or not self._extend():
                return self.text[self.at : self.at + 1]

    def want(self, character: str) -> None:
        if self.peek() != character:
            self.refuse(f"{self.peek()!r} stands where {character!r} belongs")
        self.at += 1

    def walk(self, end: str) -> Iterator[None]:
        """Step over the brackets and commas of an object or list; its parts are the caller's."""
        self.peek()
        self.at += 1
        if self.peek() == end:
            self.at += 1
            return
        while True:
            yield
            if self.peek() == end:
                self.at += 1
                return
            self.want(",")

    def parse(self) -> Any:
        """Parse the value at `at`. One that ends near the text's end may go on: more is read."""
        self.peek()
        while True:
            try:
                value, end = _decode(self.text, self.at)
                if end + 2 < len(self.text) or not self._extend():  # "1." and "1e+" may go on, too
                    self.at = end
                    return value
            except RecursionError:
                self.refuse("a value is nested too deeply")
            except ValueError as error:
                if not self._extend():
                    self.at = getattr(error, "pos", self.at)
                    self.refuse(getattr(error, "msg", str(error)))

    def _extend(self) -> bool:
        """Read more: as much again as is there, since what is there is parsed again."""
        if self._is_whole:
            return False
        self.text, self.at = self.text[self.at :], 0
        length = max(limits.annotation_piece_bytes, len(self.text))
        data = self._fetch(self._read, length)
        self._is_whole = len(data) < length
        try:
            self.text += self._decoder.decode(data, self._is_whole)
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._path}: no JSON in UTF-8 ({error.reason})") from None
        self._read += len(data)
        return True
