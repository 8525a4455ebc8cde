"""Lines between a broker and its jobs: whole, in order, bounded."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.sharing.connection import ConnectionLost, Lines, WireError

values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
messages = st.dictionaries(st.text(max_size=9), values, max_size=4).map(
    lambda found: {**found, "say": "something"}
)


@contextmanager
def pair(most: int = limits.broker_line_bytes) -> Iterator[tuple[Lines, socket.socket]]:
    """One end, and what is at the other."""
    here, there = socket.socketpair()
    lines = Lines(here, most=most)
    try:
        yield lines, there
    finally:
        lines.close()
        there.close()


@given(st.lists(messages, max_size=20), st.lists(st.integers(1, 50), min_size=1))
def test_what_is_said_comes_however_it_is_cut(said: list[dict[str, Any]], cuts: list[int]) -> None:
    heard: list[dict[str, Any]] = []
    with pair() as (lines, there):
        sender = Lines(there)
        for message in said:
            sender.send(message)
            heard += lines.receive()
    assert heard == said
    text = b"".join(json.dumps(message).encode() + b"\n" for message in said)
    heard, place = [], 0
    with pair() as (lines, there):
        while place < len(text):
            cut = cuts[place % len(cuts)]
            there.sendall(text[place : place + cut])
            heard += lines.receive()
            place += cut
        assert lines.receive() == []
    assert heard == said


@given(st.integers(-3, 3), st.booleans())
def test_a_line_may_be_so_long(more: int, ended: bool) -> None:
    """Also before its end has come."""
    most = 100
    start, end = b'{"say":"x","y":"', b'"}'
    line = start + b"y" * (most + more - len(start) - len(end)) + end
    with pair(most) as (lines, there):
        there.sendall(line + (b"\n" if ended else b""))
        if more > 0:
            with pytest.raises(WireError) as raised:
                lines.receive()
            assert raised.value.why == "oversized"
        else:
            assert len(lines.receive()) == int(ended)


@given(st.binary(max_size=300))
def test_nonsense_is_told_from_the_end(garbage: bytes) -> None:
    """Anything is messages, Wrong, or not ended yet; then the end comes."""
    with pair() as (lines, there):
        there.sendall(garbage)
        why = "malformed"
        try:
            for message in lines.receive() if garbage else ():
                assert isinstance(message["say"], str)
        except WireError as wrong:
            why = wrong.why
        assert why == "malformed"
        there.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionLost):
            lines.receive()


def test_who_does_not_read_is_gone_in_the_end() -> None:
    """The bytes that wait are bounded; a late reader gets all of them."""
    message = {"say": "something", "more": "x" * 3000}
    with pair() as (lines, there):
        sent = 0
        while not lines.waiting:
            lines.send(message)
            sent += 1
        other = Lines(there)
        heard = 0
        while heard < sent:
            heard += len(other.receive())
            lines.flush()
        assert lines.waiting == 0
        with pytest.raises(ConnectionLost):
            while True:
                lines.send(message)
                assert lines.waiting <= limits.broker_waiting_bytes
