"""Conditions of `select(where=...)`: refused, or what Python says of each row."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from penstock.dataset.predicate import Kind, Predicate
from penstock.errors import PenstockError

_CLASSES = ("cat", "dog")
_NUMBERS = np.array([0, 1, -7, 250, 3], np.int64)
_LABELS = np.array([0, 1, 1, 0, 1], np.int64)
_FRACTIONS = np.array([0.0, 0.5, -1e300, 2.0, 1e-9])
_TEXTS = np.array(["", "a", "cat", "\u00e9x", "ab"])
_LISTS = np.array([1, 2, 2, 250, 0, -7], np.int64), np.array([0, 1, 3, 3, 4, 6])
_COLUMNS: dict[str, Any] = {
    "n": _NUMBERS,
    "label": _LABELS,
    "f": _FRACTIONS,
    "t": _TEXTS,
    "l": _LISTS,
}
_KINDS: dict[str, Kind] = {
    "n": "number",
    "label": "number",
    "f": "number",
    "t": "text",
    "l": "list",
}
_ROWS: list[dict[str, Any]] = [
    {
        "n": int(_NUMBERS[row]),
        "f": float(_FRACTIONS[row]),
        "t": str(_TEXTS[row]),
        "l": _LISTS[0][_LISTS[1][row] : _LISTS[1][row + 1]].tolist(),
    }
    for row in range(len(_NUMBERS))
]
TOKENS = (
    *(b"n", b"label", b"f", b"t", b"l", b"'cat'", b"'a'", b"''", b"1", b"0", b"0.5", b"-", b"+"),
    *(b"*", b"/", b"//", b"%", b" == ", b" != ", b" < ", b" <= ", b" > ", b" >= ", b" in "),
    *(b" not in ", b" and ", b" or ", b"not ", b"(", b")", b"[", b"]", b",", b"True"),
    *(b".startswith(", b".endswith(", b"9223372036854775807", b"1e400", b"\\0", b"'\\ud800'"),
)


def seeds() -> list[bytes]:
    """Conditions with each part of the language."""
    return [
        b"n > 1 and f <= 0.5",
        b"label == 'cat' or not t.startswith('a')",
        b"0 < n < 250 and n in (1, 3, 250)",
        b"t in ['a', 'cat'] and 'a' in t",
        b"250 in l and 7 not in l",
        b"-n * 2 + 1 // 3 % 5 != f / 4",
        b"label != 1 and t.endswith('x')",
    ]


def one(data: bytes) -> None:
    """Parse and evaluate a condition."""
    try:
        text = data.decode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            condition = Predicate(text, _KINDS, _CLASSES)
            found = condition(_COLUMNS)
    except (PenstockError, UnicodeDecodeError):
        return
    assert isinstance(found, np.ndarray), text
    assert found.dtype == bool, text
    assert found.shape == (len(_NUMBERS),), text
    if "label" not in condition.names:  # a text stands for a class there
        code = compile(text.strip(), "condition", "eval")
        for row, values in enumerate(_ROWS):
            try:
                said = eval(code, {"__builtins__": {}}, values)
            except (ZeroDivisionError, OverflowError):
                continue
            assert bool(said) == found[row], (text, values, said)
