"""Fields of JSON lines: values that fit their types, or a line that is named."""

from __future__ import annotations

import numpy as np

from penstock.index.json_fields import KINDS, JsonFields, LineError

_KEYS = {kind: kind[0] for kind in ("str", "int", "bool")} | {"float": "f", "ints": "l", "any": "a"}


def seeds() -> list[bytes]:
    """Lines with all fields, with none, and broken ones."""
    whole = (
        b'{"s": "\\u00e9\xc3\xa9", "i": -1, "b": true, "f": 1.5e3, "l": [1, 2], "a": {"x": [null]}}'
    )
    return [whole, whole + b"\n" + whole, b"{}", b"[1]\nnull", b'{"s": null}', b'{"i": 1e400}']


def one(data: bytes) -> None:
    """Parse the data as lines, with errors and without."""
    lines = data.split(b"\n")
    bounds = [0]
    for line in lines:
        bounds.append(bounds[-1] + len(line))
    text = memoryview(b"".join(lines))
    kinds = {name: name for name in _KEYS}
    assert set(kinds) <= set(KINDS)
    masked = JsonFields(_KEYS, kinds, {}, masked=True).parse(text, bounds)
    broken = np.asarray(masked["broken"])
    assert len(broken) == len(lines)
    assert set(masked) == {*_KEYS, "broken"}
    try:
        found = JsonFields(_KEYS, kinds).parse(text, bounds)
    except LineError as error:
        row = error.row
    else:
        row = len(broken)
        assert found["str"] == masked["str"]
    # The first broken line is the one that is named.
    assert not broken[:row].any()
    assert row == len(broken) or broken[row]
