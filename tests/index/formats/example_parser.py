"""Parser of tf.Example in Python, to compare the compiled one with: named lists of values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import FormatError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Value = list[bytes] | npt.NDArray[np.float32] | npt.NDArray[np.int64]
"""Values of a feature: byte strings, floats or integers, any number of them."""


class _Tag(NamedTuple):
    """One field of a message; `value` is its varint, `data` its bytes."""

    number: int
    wire: int
    value: int
    data: memoryview
    at: int


def parse_example(data: Buffer) -> dict[str, Value]:
    """Parse the features of a tf.Example by name; FormatError if the bytes are not one.

    For a tf.SequenceExample, these are the features of its context.
    """
    whole = memoryview(data).cast("B")
    parsed: dict[str, Value] = {}
    for features in _iterate_messages(whole, 1, 0):
        for entry in _iterate_messages(features.data, 1, features.at):
            key, feature = None, None
            for tag in _iterate_tags(entry.data, entry.at):
                if tag.number == 1 and tag.wire == 2:
                    key = _decode_text(tag)
                elif tag.number == 2 and tag.wire == 2:
                    feature = tag
            if key is not None and feature is not None:
                parsed[key] = _parse_values(feature)
    return parsed


def _decode_text(tag: _Tag) -> str:
    try:
        return str(tag.data, "utf-8")
    except UnicodeDecodeError:
        raise _damaged_error(tag.at, "the name of a feature is not UTF-8") from None


def _parse_values(feature: _Tag) -> Value:
    values: Value = []
    for tag in _iterate_tags(feature.data, feature.at):
        if tag.wire != 2:
            continue
        if tag.number == 1:
            values = [bytes(item.data) for item in _iterate_items(tag, (2,))]
        elif tag.number == 2:
            parts = [bytes(item.data) for item in _iterate_items(tag, (2, 5))]
            if any(len(part) % 4 for part in parts):
                raise _damaged_error(tag.at, "packed floats are truncated")
            values = np.frombuffer(b"".join(parts), "<f4").astype(np.float32, copy=False)
        elif tag.number == 3:
            values = np.array(list(_iterate_integers(tag)), np.uint64).view(np.int64)
    return values


def _iterate_items(listed: _Tag, wires: tuple[int, ...]) -> Iterator[_Tag]:
    for tag in _iterate_tags(listed.data, listed.at):
        if tag.number != 1:
            continue
        if tag.wire not in wires:
            raise _damaged_error(tag.at, "a list holds values of another type")
        yield tag


def _iterate_integers(listed: _Tag) -> Iterator[int]:
    for tag in _iterate_items(listed, (0, 2)):
        if tag.wire == 0:
            yield tag.value
        at = 0
        while at < len(tag.data):
            value, at = _decode_varint(tag.data, at, tag.at)
            yield value


def _iterate_messages(data: memoryview, number: int, base: int) -> Iterator[_Tag]:
    return (tag for tag in _iterate_tags(data, base) if tag.number == number and tag.wire == 2)


def _iterate_tags(data: memoryview, base: int) -> Iterator[_Tag]:
    at = 0
    while at < len(data):
        start = at
        key, at = _decode_varint(data, at, base)
        number, wire, value, length = key >> 3, key & 7, 0, 0
        if number == 0:
            raise _damaged_error(base + start, "a field has the number 0")
        if wire == 0:
            value, at = _decode_varint(data, at, base)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        elif wire == 2:
            length, at = _decode_varint(data, at, base)
        else:
            raise _damaged_error(base + start, "a field has a type that tf.Example does not have")
        if length > len(data) - at:
            raise _damaged_error(base + start, "a value runs over the end of its message")
        yield _Tag(number, wire, value, data[at : at + length], base + at)
        at += length


def _decode_varint(data: memoryview, at: int, base: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        if i == 9 and byte > 1:
            break
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise _damaged_error(base + at, "a number runs over the end of its message")


def _damaged_error(at: int, what: str) -> FormatError:
    return FormatError(f"not a tf.Example: at byte {at:,} of the record: {what}")
