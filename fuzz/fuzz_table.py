"""Tables with a file on each row."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.memory import examine, joined_parts, parted

_FILES = ("table", "a", "b")
TOKENS = (
    *(
        b",",
        b"\t",
        b"\n",
        b"\r\n",
        b'"',
        b'""',
        b"a",
        b"b",
        b"f",
        b"../a",
        b"/a",
        b"007",
        b"-0",
        b"1e400",
    ),
    *(
        b"9223372036854775808",
        b"nan",
        b"null",
        b"true",
        b"\xef\xbb\xbf",
        b"\xc3\xa9",
        b"\xff",
        b"\0",
    ),
    *(b'{"f":"a"}', b"[", b"]", b"{", b"}", b"PAR1"),
)


def seeds() -> list[bytes]:
    """A table of each form, and two files."""
    rows = [{"f": "a", "n": 1, "t": "x", "label": "q"}, {"f": "b", "n": 2.5, "t": "", "label": "r"}]
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), out, store_schema=False)
    tables = [
        b'f,n,t,label\na,1,"x, y",q\nb,,,r\n',
        b"f\tn\na\t007\nb\t-1e9\n",
        json.dumps(rows).encode(),
        "\n".join(map(json.dumps, rows)).encode(),
        out.getvalue().to_pybytes(),
    ]
    return [joined_parts(table, b"1", b"22") for table in tables]


def one(data: bytes) -> None:
    """Index the table, whose files may be gone."""
    examine("table", parted(data, _FILES), {"files": "f"}, name="table")
