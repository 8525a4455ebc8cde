"""Fields of JSON lines: values that are those of orjson, or a line that is named."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import orjson

from penstock.index.json_fields import KINDS, JsonFields, LineError, fits_type

_KEYS = {kind: kind[0] for kind in ("str", "int", "bool")}
_KEYS |= {"float": "f", "ints": "l", "any": "a", "bytes": "s"}
assert set(_KEYS) <= set(KINDS)
_LINES_MAX = 4
_ROUNDED = b'{"s": "", "i": 1, "b": true, "f": 9007199254740993, "l": [], "a": 0}'
"""A whole number that is a fraction by its field, and that no double holds: refused."""
_MASKED = JsonFields(_KEYS, {name: name for name in _KEYS}, {}, masked=True)
_STRICT = JsonFields(_KEYS, {name: name for name in _KEYS})
_STRINGS = JsonFields({"x": "s"}, {"x": "bytes"}, masked=True)
TOKENS = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"s":',
        b'"i":',
        b'"f":',
        b'"b":',
        b'"l":',
        b'"a":',
        b"\n",
    ),
    *(
        b"null",
        b"true",
        b"false",
        b'""',
        b'"x\\n"',
        b"\\u00e9",
        b"\\ud83d\\ude00",
        b"\\ud800",
        b"\xc3\xa9",
    ),
    *(b"\xed\xa0\x80", b"-", b"0", b"1.5", b"e9", b"9223372036854775807", b"9223372036854775808"),
)


def seeds() -> list[bytes]:
    """Lines with all fields, with none, and broken ones."""
    whole = (
        b'{"s": "\\u00e9\xc3\xa9", "i": -1, "b": true, "f": 1.5e3, "l": [1, 2], "a": {"x": [null]}}'
    )
    return [
        whole,
        whole + b"\n" + whole,
        b"{}",
        b"[1]\nnull",
        b'{"s": null}',
        b'{"i": 1e400}',
        _ROUNDED,
    ]


def one(data: bytes) -> None:
    """Parse the data as lines, with errors and without."""
    lines = data.split(
        b"\n", _LINES_MAX - 1
    )  # the last may hold newlines, which are blanks to JSON
    bounds = np.cumsum([0, *map(len, lines)], dtype=np.int64)
    text = np.frombuffer(b"".join(lines), np.uint8)
    masked = _MASKED.parse(text, bounds)
    broken = np.asarray(masked["broken"])
    assert len(broken) == len(lines)
    assert set(masked) == {*_KEYS, "broken"}
    for row, line in enumerate(lines):
        assert broken[row] == (not _is_whole(line)), line
        if not broken[row]:
            record = orjson.loads(line)
            assert masked["str"][row] == record["s"]
            assert masked["int"][row] == record["i"]
            assert np.float64(masked["float"][row]) == np.float64(record["f"])
            assert masked["any"][row] == record["a"]
    # An input has one of the other two checks: each is a parse, and takes as long.
    if zlib.crc32(data) % 2:
        _check_named(text, bounds, masked)
    else:
        # Written over a copy of the text, the strings are the same.
        strings = _STRINGS.parse(text.copy(), bounds)["x"]
        plain = _STRINGS.parse(text, bounds)["x"]
        assert all(np.array_equal(mine, other) for mine, other in zip(strings, plain, strict=True))


def _check_named(text: Any, bounds: Any, masked: dict[str, Any]) -> None:
    """Compare the line that a parse names with the first broken one, or what it found."""
    broken = np.asarray(masked["broken"])
    try:
        found = _STRICT.parse(text, bounds)
    except LineError as error:
        row = error.row
    else:
        row = len(broken)
        assert found["str"] == masked["str"]
    assert not broken[:row].any()
    assert row == len(broken) or broken[row]


def _is_whole(line: bytes) -> bool:
    """Return whether all fields have values that fit."""
    try:
        record = orjson.loads(line)
        if not isinstance(record, dict):
            return False
        values = [(kind, record.get(key)) for kind, key in _KEYS.items()]
        np.array([record.get("i"), *record.get("l", [])], np.int64)
        fraction = json.loads(line).get("f")  # exact, which orjson is not above 64 bits
        if isinstance(fraction, int) and int(float(fraction)) != fraction:
            return False
    except (ValueError, TypeError, OverflowError):
        return False
    return all(value is not None and fits_type(kind, value) for kind, value in values)
