"""Reader and writer of Thrift's compact protocol, as far as footers of Parquet need it.

A shape names the wanted values: {number of a field: shape of its value} for a struct, [shape] for a
list, `INT`, `BYTES` or `BOOL`. Fields that a shape does not name are skipped. Every length is
compared with the bytes that are left before it is used, and nesting is bounded. So time and memory
are in proportion to the bytes given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INT, BYTES, BOOL = "an integer", "bytes", "a boolean"
Shape = Any
"""`INT`, `BYTES`, `BOOL`, [Shape], or {int: Shape}; recursive: mypy has no type for both."""

_TRUE, _FALSE, _BYTE, _I16, I32, I64, _DOUBLE, STRING, LIST, _SET, _MAP, STRUCT = range(1, 13)
_NESTED_MAX = 32


class ThriftReader:
    """Reader of values from bytes; ValueError, with the place, if they are damaged."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, shape: Mapping[int, Shape], depth: int = 0) -> dict[int, Any]:
        """Read the fields of a struct that the shape names and that are there."""
        try:
            return self._struct(shape, depth)
        except IndexError:
            raise self._flaw("the data end too early") from None

    def _struct(self, shape: Mapping[int, Shape], depth: int) -> dict[int, Any]:
        if depth > _NESTED_MAX:
            raise self._flaw(f"more than {_NESTED_MAX} structs and lists in each other")
        fields: dict[int, Any] = {}
        number = 0
        data = self.data
        while head := data[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self._whole()
            if number in shape:
                fields[number] = self._value(head & 15, shape[number], depth)
            else:
                self._skip(head & 15, depth, inside=False)
        self.at += 1
        return fields

    def _value(self, kind: int, shape: Shape, depth: int) -> Any:
        if kind == STRUCT and isinstance(shape, Mapping):
            return self._struct(shape, depth + 1)
        if kind in (LIST, _SET) and isinstance(shape, list):
            kind, size = self._list()
            return [self._value(kind, shape[0], depth + 1) for _ in range(size)]
        if _I16 <= kind <= I64 and shape is INT:
            return self._whole()
        if kind == _BYTE and shape is INT:
            self.at += 1
            return (self.data[self.at - 1] ^ 0x80) - 0x80
        if kind == STRING and shape is BYTES:
            length = self._length()
            self.at += length
            return self.data[self.at - length : self.at]
        if kind in (_TRUE, _FALSE) and shape is BOOL:
            return kind == _TRUE
        wanted = shape if isinstance(shape, str) else type(shape).__name__
        raise self._flaw(f"type {kind} in the place of {wanted}")

    def _skip(self, kind: int, depth: int, inside: bool) -> None:
        """Skip a value; booleans of a struct are in their type, in a list they take a byte."""
        if kind in (_TRUE, _FALSE):
            self.at += inside
        elif kind == _BYTE:
            self.at += 1
        elif kind in (_I16, I32, I64):
            self._varint()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == STRING:
            length = self._length()
            self.at += length
        elif kind == STRUCT:
            self._struct({}, depth + 1)
        elif kind in (LIST, _SET):
            kind, size = self._list()
            self._over(size, [kind], depth)
        elif kind == _MAP:
            size = self._length()
            if size:
                self.at += 1
                kinds = self.data[self.at - 1]
                self._over(size, [kinds >> 4, kinds & 15], depth)
        else:
            raise self._flaw(f"a value of type {kind}")

    def _over(self, size: int, kinds: Sequence[int], depth: int) -> None:
        if depth > _NESTED_MAX:
            raise self._flaw(f"more than {_NESTED_MAX} structs and lists in each other")
        for _ in range(size):
            for kind in kinds:
                self._skip(kind, depth + 1, inside=True)

    def _list(self) -> tuple[int, int]:
        """Read the type and number of a list's elements; none is smaller than a byte."""
        head = self.data[self.at]
        self.at += 1
        size = head >> 4
        if size == 15:
            size = self._length()
        elif size > len(self.data) - self.at:
            raise self._flaw("the data end too early")
        return head & 15, size

    def _length(self) -> int:
        length = self._varint()
        if length > len(self.data) - self.at:
            raise self._flaw(f"a length of {length:,} leaves the data")
        return length

    def _whole(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        data, at = self.data, self.at
        byte = data[at]
        if byte < 0x80:
            self.at = at + 1
            return byte
        value, shift = byte & 0x7F, 7
        while byte >= 0x80:
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 70:
                raise self._flaw("an integer of more than 10 bytes")
        self.at = at + 1
        if value >= 1 << 64:
            raise self._flaw("an integer of more than 64 bits")
        return value

    def _flaw(self, what: str) -> ValueError:
        return ValueError(f"{what}, {self.at:,} bytes into it")


# -- writing ---------------------------------------------------------------------------------------


def pack_struct(fields: Sequence[tuple[int, int, Any]]) -> bytes:
    """Pack a struct of (number, type, value), in ascending order of numbers.

    A value of `STRING` is bytes, of `STRUCT` a packed struct, of `LIST` the type of its elements
    and these.
    """
    out = bytearray()
    before = 0
    for number, kind, value in fields:
        assert 0 < number - before < 16
        out += bytes([(number - before) << 4 | kind]) + _pack_value(kind, value)
        before = number
    return bytes(out) + b"\0"


def _pack_value(kind: int, value: Any) -> bytes:
    if kind in (I32, I64):
        return pack_varint(value << 1 ^ value >> 63)
    if kind == STRING:
        return pack_varint(len(value)) + bytes(value)
    if kind == LIST:
        inner, values = value
        assert len(values) < 1 << 31
        head = bytes([0xF0 | inner]) + pack_varint(len(values))
        return head + b"".join(_pack_value(inner, element) for element in values)
    assert kind == STRUCT
    return bytes(value)


def pack_varint(value: int) -> bytes:
    """Pack a whole number of 64 bits, seven of them a byte, as protocol buffers do too."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
