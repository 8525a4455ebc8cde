"""JSONL: lines against Python's own split, fields against json, and broken lines."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.dataset import Ragged
from penstock.index.formats.jsonl import sniff

FormatError, UsageError = penstock.errors.FormatError, penstock.errors.UsageError
BLANKS = b" \t\r"


def opened(path: Path, *lines: bytes | dict[str, Any], **options: Any) -> penstock.Dataset:
    """The data set of these lines."""
    path.write_bytes(
        b"".join(
            (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines
        )
    )
    return penstock.open(path, format="jsonl", index="memory", **options)


def batches(dataset: penstock.Dataset, size: int = 2, **options: Any) -> list[Any]:
    """All batches in storage order."""
    with penstock.Loader(dataset, size, shuffle="none", rank=0, world_size=1, **options) as loader:
        return list(loader)


# -- lines -----------------------------------------------------------------------------------------

CONTENT = st.lists(
    st.sampled_from([b"{}", b'{"a": "\xc3\xa9"}', b"\n", b"\r\n", b"\r", b" ", b"\t", b"1", b"[]"]),
    max_size=30,
).map(b"".join)


@given(contents=st.lists(CONTENT, min_size=1, max_size=3), mark=st.booleans())
def test_lines(contents: list[bytes], mark: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The samples are Python's lines of the bytes, without ends and blank lines, file by file."""
    folder = tmp_path_factory.mktemp("jsonl")
    wanted = []
    for number, content in enumerate(contents):
        content += b"\n{}"  # an end that is whole, and a line in each file
        (folder / f"{number}.jsonl").write_bytes(b"\xef\xbb\xbf" * mark + content)
        lines = (line.removesuffix(b"\r") for line in content.split(b"\n"))
        wanted += [line for line in lines if line.strip(BLANKS)]
    try:
        dataset = penstock.open(folder, format="jsonl", index="memory")
    except FormatError as error:
        assert "one JSON document" in str(error)  # noqa: PT017
        return
    assert [sample["data"] for sample in dataset] == wanted
    with penstock.Loader(dataset, 4, rank=0, world_size=1) as loader:
        read = {int(n): bytes(row) for b in loader for n, row in zip(b.ids, b["data"], strict=True)}
    assert [read[number] for number in range(len(dataset))] == wanted


PIECED = st.lists(
    st.sampled_from([b"{}", b'{"a": 12345678}', b"\n", b"\r\n", b" ", b"\xef\xbb\xbf", b"[]"]),
    max_size=40,
).map(b"".join)


@example(content=b'{}\n\xef\xbb\xbf{"a": 1}\n{}', piece=3)
@given(content=PIECED, piece=st.integers(1, 40))
def test_pieces(content: bytes, piece: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A large file whose lines are found piece by piece has the index of one read at once,
    wherever the pieces begin."""
    path = tmp_path_factory.mktemp("jsonl") / "x.jsonl"
    path.write_bytes(content)
    found: list[Any] = []
    for size in (1 << 30, piece):
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(limits, "parsed_piece_bytes", size)
            try:
                index = penstock.open(path, format="jsonl", index="memory").index
                places = index.extents(np.arange(len(index)))
                found.append((index.fingerprint, places.offset.tolist(), places.length.tolist()))
            except FormatError as error:
                found.append(re.sub(r"line \d+:|the last line:", "line:", str(error)))
    assert found[0] == found[1]


def test_a_compressed_file_is_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines are found by whoever has its beginning."""
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"a": %d}\n' % i for i in range(3000))))
    expected = penstock.open(path, index="memory").fingerprint
    monkeypatch.setattr(limits, "parsed_piece_bytes", 1000)
    assert penstock.open(path, index="memory").fingerprint == expected


def test_sniff() -> None:
    """A name is enough for lines; without one, two objects on two lines; a document is none."""
    whole = b'{"a": 1}\n{"a": 2}\n'
    for head in (whole, b"\xef\xbb\xbf" + whole, b"\n\r\n" + whole, b'{"a": 1}', b"cut short"):
        assert sniff(head, "x.JSONL")
    assert sniff(whole, "x.json")
    assert sniff(whole, "rows")
    for head in (b'{"a": 1}\n', b'{"a": 1', b"1\n2\n", b'{"a": 1}\n1', b'{"a": }\n{}'):
        assert not sniff(head, "rows"), head
    for head in (b"{\n", b"[\n", b'[{"a": 1}]', b"\x1f\x8b\x08", b"a\0b"):
        assert not sniff(head, "x.jsonl"), head


def test_wide_text(tmp_path: Path) -> None:
    """UTF-16 is refused with what to do, not read as lines."""
    path = tmp_path / "x.jsonl"
    path.write_bytes('{"a": 1}\n'.encode("utf-16"))
    with pytest.raises(FormatError, match="iconv"):
        penstock.open(path, format="jsonl", index="memory")


@pytest.mark.long
def test_a_line_of_two_gib(tmp_path: Path) -> None:
    """A line is as long as its file: it is found without being held in memory, and refused by
    what has to parse it."""
    path, size = tmp_path / "x.jsonl", (2 << 30) + 5
    with path.open("wb") as file:
        file.write(b"x")
        file.seek(size - 1)
        file.write(b"y\n{}\n")
    dataset = penstock.open(path, format="jsonl", index="memory")
    extents = dataset.index.extents(np.arange(2))
    assert extents.length.tolist() == [size, 2]
    assert dataset[1]["data"] == b"{}"
    with pytest.raises(UsageError, match=r"the first line has 2,147,483,653 bytes.*types="):
        penstock.open(path, format="jsonl", index="memory", fields=["a"])


def test_change_is_noticed(tmp_path: Path) -> None:
    """A saved index of lines is not used for a file that was written to since."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    os.utime(path, ns=(10**18, 10**18))
    first = penstock.open(path)
    assert first.sidecar == f"{path}.penstock"
    with path.open("ab") as file:
        file.write(b'{"a": 2}\n')
    with pytest.raises(penstock.errors.ChangedError, match="x.jsonl"):
        first[0]
    assert len(penstock.open(path)) == 2


# -- fields ----------------------------------------------------------------------------------------

VALUES = {
    "str": st.text(max_size=5),
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "ints": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4),
    "floats": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4),
    "any": st.one_of(st.text(max_size=3), st.dictionaries(st.text(max_size=2), st.integers(0, 9))),
}
RECORDS = st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=9)


@given(records=RECORDS, names=st.permutations(sorted(VALUES)), count=st.integers(1, 7))
def test_fields(
    records: list[dict[str, Any]],
    names: list[str],
    count: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """By number, in batches and in decode, fields have the values of the objects, whichever are
    chosen; and again when the data set was pickled."""
    chosen = names[:count]
    path = tmp_path_factory.mktemp("jsonl") / "x.jsonl"
    dataset = opened(path, *records, fields=chosen, types={name: name for name in chosen})
    assert [part.name for part in dataset.fields] == chosen
    again = pickle.loads(pickle.dumps(dataset))
    with_decode = batches(again, decode=lambda s: s, collate=list)
    samples = [sample for batch in with_decode for sample in batch]
    plain = {name: [row for batch in batches(dataset) for row in batch[name]] for name in chosen}
    for number, record in enumerate(records):
        for name in chosen:
            kind = type(record[name]) if name != "floats" else list
            for value in (dataset[number][name], samples[number][name], plain[name][number]):
                value = value.tolist() if isinstance(value, np.ndarray) else value
                assert value == record[name]
                assert isinstance(value, kind | np.generic)


def test_types_are_those_of_the_first_lines(tmp_path: Path) -> None:
    """Whole numbers and fractions are fractions; lists of numbers are ragged; other mixtures are
    taken as they are."""
    lines = [{"a": 1, "b": [1], "c": 1, "d": "x"}, {"a": 0.5, "b": [], "c": "1", "d": "y"}]
    dataset = opened(tmp_path / "x.jsonl", *lines, fields=["a", "b", "c", "d"])
    (batch,) = batches(dataset)
    assert batch["a"].tolist() == [1.0, 0.5]
    assert isinstance(batch["b"], Ragged)
    assert [row.tolist() for row in batch["b"]] == [[1], []]
    assert batch["c"] == [1, "1"]
    assert batch["d"] == ["x", "y"]
    narrow = penstock.open(tmp_path / "x.jsonl", fields="b", as_dtype="int32", index="memory")
    assert batches(narrow)[0]["b"].values.dtype == np.int32
    narrow = penstock.open(tmp_path / "x.jsonl", fields="b", as_dtype="int8", index="memory")
    assert narrow[0]["b"].tolist() == [1]
    with pytest.raises(UsageError, match="no field of integers, but d"):
        penstock.open(tmp_path / "x.jsonl", fields="d", as_dtype="int8", index="memory")


GOOD = {"text": "a", "n": 1}
BROKEN_LINES: list[tuple[bytes, str]] = [
    (b'{"text": "\xff", "n": 1}', r"no JSON \(.*it begins with"),
    (b'{"text": "a", "n": 1', "no JSON"),
    (b"[1, 2]", "no object, but a list"),
    (b'"text"', "no object, but a string"),
    (b"null", "no object"),
    (b'{"n": 1}', r"it has no field 'text', but 'n': .*defaults=\{'text': \.\.\.\}"),
    (b'{"text": "a", "n": null}', "field 'n' is null"),
    (b'{"text": 1, "n": 1}', "field 'text' has 1, a whole number, and is 'str'"),
    (b'{"text": "a", "n": "1"}', "field 'n' has '1', a string, and is 'int'"),
    (b'{"text": "a", "n": true}', "field 'n' has True, a boolean"),
    (b'{"text": "a", "n": 9223372036854775808}', "which does not fit int64"),
    (
        b'{"text": "a", "n": 18446744073709551617}',
        "field 'n' has 18446744073709551617, which does not fit int64",
    ),
    (b"[" * 5000, "no JSON"),
]


@pytest.mark.parametrize(("line", "reason"), BROKEN_LINES)
@pytest.mark.parametrize("route", ["number", "batch", "decode"])
def test_broken_lines(line: bytes, reason: str, route: str, tmp_path: Path) -> None:
    """A line that is broken is an error with file, byte, line, reason and remedy, at its step
    alone; masked, it has empty values and a mark."""
    path = tmp_path / "x.jsonl"
    options: dict[str, Any] = {"fields": ["text", "n"], "types": {"text": "str", "n": "int"}}
    dataset = opened(path, *[GOOD] * 3, b"", line, *[GOOD] * 2, **options)
    place = rf"sample 3: .*x\.jsonl at byte \d+ \({len(line):,} bytes\): line 4 \(blank.*{reason}"
    with pytest.raises(FormatError, match=place) as caught:
        if route == "number":
            dataset[3]
        elif route == "batch":
            batches(dataset)
        else:
            batches(dataset, decode=lambda sample: sample["text"])
    assert "broken='mask'" in str(caught.value)
    if route == "batch":
        loader = penstock.Loader(dataset, 2, shuffle="none", rank=0, world_size=1)
        iterator, steps = iter(loader), []
        for _ in range(3):
            try:
                steps.append(next(iterator)["n"].tolist())
            except FormatError:
                steps.append([])
        assert steps == [[1, 1], [], [1, 1]]
    masked = penstock.open(path, format="jsonl", index="memory", broken="mask", **options)
    assert len(masked) == len(dataset)
    found = [
        (batch["text"][row], batch["n"][row], batch["broken"][row])
        for batch in batches(masked)
        for row in range(len(batch.ids))
    ]
    assert found == [("a", 1, False)] * 3 + [(None, 0, True)] + [("a", 1, False)] * 2
    assert (masked[3]["text"], masked[3]["n"], masked[3]["broken"]) == (None, 0, True)


def test_kinds_say_where_they_are_from(tmp_path: Path) -> None:
    """A value of another type names the file and lines that decided the type, or types=; of files
    one after the other, the first decides."""
    for name, lines in (("a", '{"n": 1}\n\n{"n": 2}\n'), ("b", '{"n": 3}\n{"n": 0.5}\n')):
        (tmp_path / f"{name}.jsonl").write_text(lines)
    dataset = penstock.open(tmp_path, format="jsonl", index="memory", fields="n")
    first = r"field 'n' has 0\.5, a fraction, and is 'int' by the first 2 lines of .*a\.jsonl: mend"
    with pytest.raises(FormatError, match=rf"sample 3: .*b\.jsonl at byte 9.*line 2 .*{first}"):
        dataset[3]
    typed = penstock.open(tmp_path, index="memory", fields="n", types={"n": "int"})
    with pytest.raises(FormatError, match=r"is 'int' by types=: mend"):
        typed[3]
    again = pickle.loads(pickle.dumps(dataset))
    with pytest.raises(FormatError, match=first):
        again[3]


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n", b"\n\n", b"\r\n \r\n"])
def test_concatenated_files(ending: bytes, tmp_path: Path) -> None:
    """Files that were joined by `cat` have the lines of both; if the first had no newline at its
    end, or the second a byte order mark, the line where they meet is broken and says so."""
    dataset = opened(
        tmp_path / "x.jsonl", b'{"n": 1}' + ending + b'{"n": 2}', fields="n", types={"n": "int"}
    )
    if ending:
        assert [sample["n"] for sample in dataset] == [1, 2]
    else:
        with pytest.raises(
            FormatError, match=r"line 1 .*no JSON \(unexpected content after document"
        ):
            dataset[0]
    lines = b'{"n": 1}', b'\xef\xbb\xbf{"n": 2}'
    marked = opened(tmp_path / "y.jsonl", *lines, fields="n", types={"n": "int"})
    assert marked[0]["n"] == 1
    with pytest.raises(FormatError, match=r"line 2 .*byte order mark.*where files were joined"):
        marked[1]


def test_strings_as_bytes(tmp_path: Path) -> None:
    """Kind "bytes" gives strings as UTF-8, ragged in batches and bytes elsewhere, also where some
    lines are broken or have the default."""
    lines = [
        b'{"t": "\\u00e9\xc3\xa9"}',
        b'{"t": ""}',
        b'{"t": null}',
        b'{"t": 1}',
        b'{"t": "x\\n"}',
    ]
    wanted = ["éé".encode(), b"", b"none", b"", b"x\n"]
    options: dict[str, Any] = {"types": {"t": "bytes"}, "defaults": {"t": "none"}, "broken": "mask"}
    dataset = opened(tmp_path / "x.jsonl", *lines, fields="t", **options)
    (batch,) = batches(dataset, 5)
    assert isinstance(batch["t"], Ragged)
    assert [row.tobytes() for row in batch["t"]] == wanted
    assert batch["broken"].tolist() == [False, False, False, True, False]
    assert [sample["t"] for sample in dataset] == wanted
    (decoded,) = batches(dataset, 5, decode=lambda sample: sample["t"], collate=list)
    assert decoded == wanted
    whole = opened(tmp_path / "y.jsonl", *lines[:2], lines[4], fields="t", types={"t": "bytes"})
    first, second = batches(whole, 2)
    assert first["t"].offsets.tolist() == [0, 4, 4]
    assert first["t"].values.tobytes() + second["t"].values.tobytes() == wanted[0] + wanted[4]


def test_defaults(tmp_path: Path) -> None:
    """A value that is missing or null gets the default, whose type is then the field's."""
    lines = [{"a": 1}, {"a": None, "b": [2]}, {"b": None}]
    dataset = opened(
        tmp_path / "x.jsonl", *lines, fields=["a", "b"], defaults={"a": -1.0, "b": [7, 8]}
    )
    (batch,) = batches(dataset, 3)
    assert batch["a"].tolist() == [1.0, -1.0, -1.0]
    assert [row.tolist() for row in batch["b"]] == [[7, 8], [2], [7, 8]]
    with pytest.raises(UsageError, match=r"defaults has 'x' for 'a', which is 'int'"):
        opened(tmp_path / "x.jsonl", *lines, fields="a", types={"a": "int"}, defaults={"a": "x"})
    nothing = opened(tmp_path / "x.jsonl", {"t": "x"}, {}, fields="t", defaults={"t": None})
    assert batches(nothing)[0]["t"] == ["x", None]


def test_masked_values(tmp_path: Path) -> None:
    """Every type has an empty value for broken lines."""
    types = {name: name for name in VALUES}
    dataset = opened(tmp_path / "x.jsonl", b"{}", fields=list(types), types=types, broken="mask")
    sample = dataset[0]
    assert math.isnan(sample["float"])
    assert [sample[name] for name in ("str", "int", "bool", "any")] == [None, 0, False, None]
    assert len(sample["ints"]) == len(sample["floats"]) == 0
    with pytest.raises(FormatError, match="the first lines lack the fields"):
        opened(tmp_path / "x.jsonl", b"{}", fields="a", broken="mask")


def test_one_index_serves_all_choices(tmp_path: Path) -> None:
    """Fields are no part of the saved index, nor of the data's identity."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1, "b": 2}\n' * 9)
    os.utime(path, ns=(10**18, 10**18))
    first = penstock.open(path, fields="a")
    assert first.sidecar is not None
    written_ns = os.stat(first.sidecar).st_mtime_ns
    second = penstock.open(path, fields={"x": "b"})
    assert second.fingerprint == first.fingerprint == penstock.open(path).fingerprint
    assert os.stat(first.sidecar).st_mtime_ns == written_ns
    assert pickle.loads(pickle.dumps(second))[0]["x"] == 2
    loader = penstock.Loader(first, 2, rank=0, world_size=1)
    next(iter(loader))
    other = penstock.Loader(second, 2, rank=0, world_size=1)
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == 4


def test_mixtures(tmp_path: Path) -> None:
    """Data sets of the same fields mix; names are changed by rename=; others are refused."""
    one = opened(tmp_path / "a.jsonl", *[{"text": "a"}] * 4, fields="text")
    two = opened(tmp_path / "b.jsonl", *[{"text": "b"}] * 4, fields="text")
    both = [(one, 1), (two, 1)]
    texts = [text for batch in batches(penstock.mix(both)) for text in batch["text"]]
    assert sorted(set(texts)) == ["a", "b"]
    renamed = penstock.mix(both, rename=[{"text": "t"}, {"text": "t"}])
    assert set(batches(renamed)[0]) == {"t", "source", "pass"}
    other = opened(tmp_path / "c.jsonl", {"x": "c"}, fields={"text": "x"})
    with pytest.raises(UsageError, match="open all alike"):
        penstock.mix([(one, 1), (other, 1)])
    with pytest.raises(UsageError, match="no field 'data', but text"):
        penstock.mix(both, rename=[{"data": "t"}, {"data": "t"}])


def test_mixtures_of_unlike_fields(tmp_path: Path) -> None:
    """With a decode= of its own each data set has its own fields of lines, or whole lines; a broken
    line is named."""
    one = opened(
        tmp_path / "a.jsonl",
        *[{"t": "a", "n": n, "l": [n]} for n in range(4)],
        fields=["t", "n", "l"],
    )
    two = opened(tmp_path / "b.jsonl", *[{"x": "b"}] * 4, fields={"y": "x"}, types={"y": "bytes"})
    raw = opened(tmp_path / "c.jsonl", *[{"z": 1}] * 4)
    decodes = [
        lambda s: f"{s['t']}{s['n']}{s['l'].tolist()}",
        lambda s: s["y"].decode(),
        lambda s: str(json.loads(s["data"])["z"]),
    ]
    mixed = penstock.mix([(one, 1), (two, 1), (raw, 1)], decode=decodes)
    found = [value for batch in batches(mixed, 4, collate=list) for value in batch]
    assert {"a1[1]", "b", "1"} <= set(found) <= {f"a{n}[{n}]" for n in range(4)} | {"b", "1"}
    assert [mixed[i].get("n", mixed[i].get("y")) for i in range(8)] == [0, 1, 2, 3, *[b"b"] * 4]
    names = penstock.mix(
        [(one, 1), (two, 1)], rename=[{"t": "u", "l": None}, None], decode=[dict, dict]
    )
    assert set(names[0]) >= {"u", "n"}
    assert "l" not in names[0]
    bad = opened(tmp_path / "d.jsonl", {"t": "a"}, {"t": 1}, fields="t", types={"t": "str"})
    broken = penstock.mix([(bad, 1), (two, 1)], decode=[lambda s: s["t"], lambda s: s["y"]])
    with pytest.raises(FormatError, match=r"d\.jsonl#1.*field 't' has 1, a whole number"):
        batches(broken, 2, collate=list)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": {"a": "int"}}, "name them by fields="),
        ({"fields": []}, "fields is"),
        ({"fields": ["a", "a"]}, "name each once"),
        ({"fields": 3}, "fields is 3"),
        ({"fields": "a", "broken": "skip"}, "use 'raise' or 'mask'"),
        ({"fields": "a", "defaults": {"b": 1}}, "give a dict by field"),
        ({"fields": "broken", "broken": "mask"}, "marks broken lines"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """An option that cannot be meant is a UsageError that says what can."""
    with pytest.raises(UsageError, match=message):
        opened(tmp_path / "x.jsonl", {"a": 1}, **options)


def test_defaults_do_not_decide_alone(tmp_path: Path) -> None:
    """A kind is that of the lines and the default together, which must fit the type."""
    dataset = opened(
        tmp_path / "a.jsonl",
        *({"a": 1.5, "b": [0.5]}, {"a": None, "b": None}),
        fields=["a", "b"],
        defaults={"a": 0, "b": []},
        broken="mask",
    )
    (batch,) = batches(dataset)
    assert batch["a"].tolist() == [1.5, 0.0]
    assert [row.tolist() for row in batch["b"]] == [[0.5], []]
    assert not batch["broken"].any()
    for wrong in ({"defaults": {"a": -1}, "as_dtype": "uint8"}, {"defaults": {"a": 2**70}}):
        with pytest.raises(penstock.errors.UsageError, match=r"defaults has .* does not fit"):
            opened(tmp_path / "b.jsonl", {"a": 1}, fields=["a"], **wrong)


def test_samples_do_not_share_a_default(tmp_path: Path) -> None:
    dataset = opened(
        tmp_path / "a.jsonl", {}, {}, {"a": {}}, fields=["a"], defaults={"a": {"q": []}}
    )
    first = batches(dataset, 3)[0]["a"]
    missing = [value for value in first if value]
    missing[0]["q"].append(1)
    assert missing[1] == {"q": []}
    assert sorted(map(len, batches(dataset, 3)[0]["a"])) == [0, 1, 1]
    assert all(not value.get("q") for value in batches(dataset, 3)[0]["a"])
