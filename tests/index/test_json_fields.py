"""Fields of JSON lines against orjson: any line, whole or broken, gives what orjson makes of it."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock._core import parse_json_lines
from penstock.index.json_fields import BROKEN, KINDS, JsonFields, LineError, fits_type

KEYS = {kind: kind[:2] if kind != "floats" else "é" for kind in KINDS}
SPACE = st.sampled_from([b"", b"", b"", b"", b" ", b"\t", b"\r", b"  \n", b"\x0c", b"\0"])
NUMBERS = st.one_of(
    st.integers(-(1 << 64), 1 << 65).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["0", "-0", "-0.0", "0.1", "1e5", "1E+5", "5e-324", "1e308", "1e309", "1e-400", "01", "-"]
        + ["1.", ".5", "1e", "9007199254740993", "9223372036854775807", "9223372036854775808"]
        + ["18446744073709551615", "18446744073709551616", "1" * 101, "0." + "0" * 400 + "1", "+1"]
        + ["NaN", "2.2250738585072011e-308", "123456789012345678e-30", "1" * 400]
    ),
).map(str.encode)
PIECES = st.one_of(
    st.text(max_size=40)
    .map(str.encode)
    .map(lambda text: text.replace(b'"', b"").replace(b"\\", b"")),
    st.sampled_from(
        [
            rb"\"",
            rb"\\",
            rb"\/",
            rb"\b",
            rb"\f",
            rb"\n",
            rb"\r",
            rb"\t",
            rb"\u00e9",
            rb"\uD83D\uDE00",
        ]
        + [rb"\u0000", rb"\ud800", rb"\udc00", rb"\ud83d\u0061", rb"\u12", rb"\x", b"\\", b"\x01"]
        + [b"\x7f", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3", b"a" * 70]
        + ["é".encode() * 40, "中文".encode() * 20, "😀".encode()]
    ),
)
STRINGS = st.lists(PIECES, max_size=4).map(lambda pieces: b'"' + b"".join(pieces) + b'"')
WORDS = st.sampled_from([b"null", b"true", b"false", b"tru", b"", b"[", b"[1,]", b"[" * 300])


def join(open_: bytes, parts: Sequence[bytes], close: bytes) -> bytes:
    return open_ + b",".join(parts) + close


def pad(value: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(SPACE, value, SPACE).map(b"".join)


def make_objects(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    names = [*(name.encode() for name in KEYS.values()), b"\\u0073\\u0074", b"other", b"\\u00e9"]
    keys = st.one_of(st.sampled_from([b'"%s"' % name for name in names]), STRINGS)
    members = st.tuples(pad(keys), pad(values)).map(b":".join)
    return st.lists(members, max_size=8).map(lambda parts: join(b"{", parts, b"}"))


def make_lists(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(pad(values), max_size=5).map(lambda parts: join(b"[", parts, b"]"))


PLAIN = st.one_of(NUMBERS, STRINGS, WORDS)
VALUES = st.one_of(
    PLAIN,
    make_lists(NUMBERS),
    st.recursive(
        PLAIN, lambda inner: st.one_of(make_lists(inner), make_objects(inner)), max_leaves=6
    ),
)
LINES = st.one_of(pad(make_objects(VALUES)), pad(VALUES))


@st.composite
def broken_lines(draw: st.DrawFn) -> bytes:
    """A line in which some bytes are others, or that is cut."""
    line = bytearray(draw(LINES))
    for _ in range(draw(st.integers(0, 2))):
        if line:
            line[draw(st.integers(0, len(line) - 1))] = draw(st.integers(0, 255))
    return bytes(line[: draw(st.integers(0, len(line)))] if draw(st.booleans()) else line)


def to_bits(value: Any) -> Any:
    """A value whose equality tells types, and zeros by their sign."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, list):
        return [to_bits(one) for one in value]
    if isinstance(value, dict):
        return {key: to_bits(one) for key, one in value.items()}
    return type(value), value


def expect(line: bytes, kind: str) -> Any:
    """The value that a field of this kind has by orjson; LookupError if the line is broken."""
    try:
        record = orjson.loads(line)
    except ValueError:
        raise LookupError from None
    value = record.get(KEYS[kind]) if isinstance(record, dict) else None
    if value is None or not fits_type(kind, value):
        raise LookupError
    if kind in ("int", "ints"):
        try:
            np.array(value, np.int64)
        except OverflowError:
            raise LookupError from None
    if kind not in ("float", "floats"):
        return value
    exact = json.loads(line)[KEYS[kind]]
    numbers = exact if isinstance(exact, list) else [exact]
    if any(isinstance(number, int) and int(float(number)) != number for number in numbers):
        raise LookupError  # a whole number that a double would round
    return list(map(float, value)) if kind == "floats" else float(value)


def split(text: Sequence[bytes]) -> tuple[Any, Any]:
    bounds = np.cumsum([0, *map(len, text)], dtype=np.int64)
    return np.frombuffer(b"".join(text), np.uint8), bounds


def pick(column: Any, row: int) -> Any:
    """The value of a row as orjson would give it."""
    if isinstance(column, list):
        return column[row]
    if isinstance(column, tuple):
        values, offsets = column
        part = values[offsets[row] : offsets[row + 1]]
        return part.tobytes().decode() if values.dtype == np.uint8 else part.tolist()
    return column[row].item()


@given(lines=st.lists(st.one_of(LINES, broken_lines()), max_size=6), kind=st.sampled_from([*KINDS]))
@example(lines=[b'{"in":1,"in":null}', b'{"in":[1],"in":2}', b'{"in":2,"\\u0069n":3}'], kind="int")
@example(lines=[b'{"fl":9007199254740993}', b'{"fl":9007199254740992}'], kind="float")
@example(lines=[b'{"fl":18446744073709551617}', b'{"fl":1e20}', b'{"fl":-1e15}'], kind="float")
@example(lines=[b'{"\\u00e9":[0.5,-9007199254740993]}', b'{"\\u00e9":[1e19]}'], kind="floats")
@example(lines=[b'{"bo":true', b'{"bo":true}}', b'{"bo":true}\n'], kind="bool")
def test_values_are_those_of_orjson(lines: list[bytes], kind: str) -> None:
    """A line has the value that orjson finds, or is broken if there is none that fits."""
    parser = JsonFields({"x": KEYS[kind]}, {"x": kind}, masked=True)
    found = parser.parse(*split(lines))
    broken = np.asarray(found[BROKEN])
    assert len(broken) == len(lines)
    for row, line in enumerate(lines):
        try:
            wanted = expect(line, kind)
        except LookupError:
            assert broken[row], line
            continue
        assert not broken[row], line
        assert to_bits(pick(found["x"], row)) == to_bits(wanted), line
    strict = JsonFields({"x": KEYS[kind]}, {"x": kind})
    if not broken.any():
        assert set(strict.parse(*split(lines))) == {"x"}
        return
    with pytest.raises(LineError) as caught:
        strict.parse(*split(lines))
    assert caught.value.row == int(np.argmax(broken))


@given(lines=st.lists(LINES, max_size=6))
def test_what_the_core_takes_is_json(lines: list[bytes]) -> None:
    """The core leaves over every line that is no object by orjson, whichever fields are wanted; and
    none that is one, but for very deep ones and numbers near the ends of a double."""
    left_over, _, _ = parse_json_lines(*split(lines), [], [])
    for row, line in enumerate(lines):
        try:
            is_object = isinstance(orjson.loads(line), dict)
        except ValueError:
            is_object = False
        if row not in left_over:
            assert is_object, line
        elif is_object:
            assert b"[" * 200 in line or any(rare in line for rare in (b"e", b"E", b"1" * 101)), (
                line
            )


@given(
    lines=st.lists(st.fixed_dictionaries({}, optional={"a": st.integers(-300, 300) | st.none()})),
    integers=st.sampled_from(["int64", "int8", "uint8"]),
)
def test_defaults_and_narrow_integers(lines: list[dict[str, Any]], integers: str) -> None:
    """Missing values are the default; those beyond the dtype are broken."""
    text = split([orjson.dumps(line) for line in lines])
    parser = JsonFields(
        {"x": "a", "y": "a"}, {"x": "int", "y": "int"}, {"x": 7, "y": 8}, True, integers
    )
    found = parser.parse(*text)
    fit = np.iinfo(integers)
    for row, line in enumerate(lines):
        value = line.get("a")
        is_broken = value is not None and not fit.min <= value <= fit.max
        assert found[BROKEN][row] == is_broken  # type: ignore[index]
        wanted = (0, 0) if is_broken else (7, 8) if value is None else (value, value)
        assert (pick(found["x"], row), pick(found["y"], row)) == wanted


@given(
    lines=st.lists(st.sampled_from([b'{"a":"x\\n\xc3\xa9"}', b'{"a":""}', b'{"a":1}', b"{}", b"{"]))
    | st.lists(st.sampled_from([b'{"a":"x\\n\xc3\xa9"}', b'{"b":[1],"a":"yyy"}']), min_size=30),
    masked=st.booleans(),
)
def test_strings_over_their_text(lines: list[bytes], masked: bool) -> None:
    """Strings that are written over the text are those that are copied from it, and the same line
    is broken, wherever it stands."""
    parser = JsonFields({"x": "a"}, {"x": "bytes"}, {}, masked)
    text, bounds = split(lines)
    found = []
    for own in (text, text.copy()):
        try:
            columns = parser.parse(own, bounds)
            rows = [pick(columns["x"], row) for row in range(len(lines))]
            found.append((rows, np.asarray(columns.get(BROKEN, [])).tolist()))
        except LineError as error:
            found.append((error.row, str(error)))
    assert found[0] == found[1]


def test_bounds_are_checked() -> None:
    text = np.zeros(4, np.uint8)
    for wrong in ([0, 5], [-1, 2], [3, 1]):
        with pytest.raises(IndexError, match="leaves the text"):
            parse_json_lines(text, np.array(wrong), ["a"], ["int"])
