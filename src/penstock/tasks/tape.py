"""A store that remembers what it was asked: a plan lists the data once, and its tasks replay that.

An index is made by one call of its format: it lists the files, parses each, and puts together what
it found. `Tape` cuts that call in three. The plan asks the store until the first files are to be
parsed, and stops there. A task replays the answers, parses its share, and stops. The commit replays
the answers and the parsed files, and goes on to the end. So whatever a format decides over all its
files, it decides once and over all of them, and the index has the same bytes.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..engine.store import Listing, Parse, Progress, Store
from ..errors import UsageError
from ..extent import Files, take_files

T = TypeVar("T")

_PLAIN = {
    "numpy": {"_frombuffer", "_reconstruct", "ndarray", "dtype", "scalar"},
    "builtins": {"set", "frozenset", "slice", "complex", "bytearray", "range"},
}
_OURS = ("penstock.index.", "penstock.extent", "penstock.engine.store")


class Stopped(BaseException):
    """Stop of an index's making where files are parsed: `value` is what it was made for.
    BaseException: no format may take it for a fault of a file."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


class Tape(Store):
    """A store that is asked through the answers that it gave before.

    answers:  what was asked before, and what it said; more is added.
    share:    what to do with the first files to be parsed: given them and a function that parses
              some of them, by number, it returns all results, or stops.
    """

    def __init__(
        self,
        store: Store,
        answers: dict[tuple[Any, ...], Any],
        share: Callable[[Files, Callable[[Sequence[int]], list[Any]]], list[Any]],
    ) -> None:
        self.root, self.store, self._answers, self._share = store.root, store, answers, share
        self._shared = False

    def _ask(self, question: tuple[Any, ...], ask: Callable[[], T]) -> T:
        if question not in self._answers:
            self._answers[question] = ask()
        answer: T = self._answers[question]
        return answer

    def scan(self, extensions: Sequence[str] = (), progress: Progress | None = None) -> Listing:
        return self._ask(("scan", *extensions), lambda: self.store.scan(extensions, progress))

    def some(self, count: int) -> list[str]:
        return self._ask(("some", count), lambda: self.store.some(count))

    def match(self, pattern: str) -> list[str]:
        return self._ask(("match", pattern), lambda: self.store.match(pattern))

    def probe(
        self, files: Files, progress: Progress | None = None
    ) -> tuple[Files, npt.NDArray[np.int32]]:
        columns = (files.names, files.ends, files.size < 0)
        question = ("probe", *(column.tobytes() for column in columns))
        return self._ask(question, lambda: self.store.probe(files, progress))

    def folders(self, names: Sequence[str]) -> Files:
        return self._ask(("folders", *names), lambda: self.store.folders(names))

    def read(self, name: str, offset: int, length: int) -> bytes:
        question = ("read", name, offset, length)
        return self._ask(question, lambda: self.store.read(name, offset, length))

    def parse(self, files: Files, parse: Parse[T], progress: Progress | None = None) -> list[T]:
        if self._shared:
            return self.store.parse(files, parse, progress)
        self._shared = True

        def parse_some(numbers: Sequence[int]) -> list[T]:
            some = take_files(files, np.asarray(numbers, np.int64))
            return self.store.parse(some, lambda n, file: parse(numbers[n], file), progress)

        return self._share(files, parse_some)


class _Reader(pickle.Unpickler):
    """Reader of what formats make of files: tables and arrays, and nothing that acts."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _PLAIN.get(module.split(".")[0], ()):
            return super().find_class(module, name)
        if f"{module}.".startswith(_OURS):
            found = getattr(importlib.import_module(module), name, None)
            is_table = isinstance(found, type) and issubclass(found, tuple)
            if is_table or dataclasses.is_dataclass(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name}")


def pack(value: Any) -> npt.NDArray[np.uint8]:
    """Pack answers, or results of parsing, as bytes of a file."""
    return np.frombuffer(pickle.dumps(value, protocol=5), np.uint8)


def unpack(data: npt.NDArray[np.uint8], path: str) -> Any:
    """Unpack what `pack` packed; UsageError, by the file's path, if it is anything else."""
    try:
        return _Reader(io.BytesIO(data.data)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read ({error!r:.100}): plan the work anew") from None
