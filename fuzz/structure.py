"""Mutations that keep an input's structure: values of JSON exchanged, tokens put between bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

PART = b"\n--8<--\n"
"""Bytes between two files of an input."""

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e300, 2**31, 2**53 + 1, 2**63, -(2**63), 10**40),
    *("", "a", "b", "A", "\u00e9", "\ud800", "\U0001f600", "a\0", "1", "../a", "/a", "a/", "."),
    *([], [[]], [1, 2], [1, "a", None], {}, {"a": {}}, float("nan"), float("inf")),
)


def mutate(
    data: bytes, tokens: Sequence[bytes], mutate_bytes: Callable[[bytes], bytes], random: Random
) -> bytes:
    """Return the data with one or a few changes, some of which a parser takes far.

    tokens:        words of the format, which are put in or written over others.
    mutate_bytes:  the mutation that knows no structure.
    """
    for _ in range(random.randint(1, 3)):
        kind = random.randrange(4)
        if kind == 0:
            data = mutate_bytes(data)
        elif kind == 1 and tokens:
            at, token = random.randint(0, len(data)), random.choice(tokens)
            data = data[:at] + token + data[at + random.choice((0, 0, 1, len(token))) :]
        else:
            data = _exchange(data, random) or mutate_bytes(data)
    return data


def _exchange(data: bytes, random: Random) -> bytes | None:
    """Exchange a value in a document of JSON: a part of the input, or a line of it."""
    separator = random.choice((PART, b"\n"))
    pieces = data.split(separator)
    numbers = list(range(len(pieces)))
    random.shuffle(numbers)
    for number in numbers[:8]:
        try:
            document = json.loads(pieces[number])
        except (ValueError, RecursionError):
            continue
        if not isinstance(document, (dict, list)) or not document:
            continue
        _exchange_value(document, random)
        text = json.dumps(document, ensure_ascii=random.random() < 0.5)
        pieces[number] = text.encode("utf-8", "surrogatepass")
        return separator.join(pieces)
    return None


def _exchange_value(document: Any, random: Random) -> None:
    nodes = [document]
    for node in nodes:
        inner = node.values() if isinstance(node, dict) else node
        nodes += [value for value in inner if isinstance(value, (dict, list)) and value]
    node = random.choice(nodes)
    key = random.choice(list(node) if isinstance(node, dict) else range(len(node)))
    match random.randrange(5):
        case 0:
            del node[key]
        case 1 if isinstance(node, list):
            node.insert(random.randint(0, len(node)), node[key])
        case 1:
            node[random.choice(list(node))] = node[key]
        case 2:
            other = random.choice(nodes)
            node[key] = json.loads(json.dumps(other))
        case _:
            node[key] = random.choice(_VALUES)
