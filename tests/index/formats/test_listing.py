"""Text files with a path on each line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import FormatError, MissingError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A few files to name."""
    for name in ("a.jpg", "b c.jpg", "d,e.jpg", "sub/f.jpg"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path


def opened(
    folder: Path, text: str | bytes, name: str = "list.txt", **options: Any
) -> penstock.Dataset:
    """The data set of a listing with the given text."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return penstock.open(path, index="memory", **options)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("a.jpg\nsub/f.jpg\n", [None, None]),
        ("a.jpg\t3\nsub/f.jpg\t-1", [3, -1]),
        ("a.jpg 3\nsub/f.jpg   4\n", [3, 4]),
        ("a.jpg,3\r\nsub/f.jpg, 4\r\n", [3, 4]),
        ("\n# comment\n  \na.jpg 3\n# another\nsub/f.jpg 4\n", [3, 4]),
        (b"\xef\xbb\xbfa.jpg 3\nsub/f.jpg 4", [3, 4]),
    ],
)
def test_paths_and_integer_labels(folder, text, labels):
    """Tab, comma or white space part path and label; blank lines and comments do not count."""
    dataset = opened(folder, text)
    assert [sample["__key__"] for sample in dataset] == ["a.jpg", "sub/f.jpg"]
    assert [sample.get("label") for sample in dataset] == labels
    assert dataset[1]["data"] == b"sub/f.jpg"
    assert dataset.classes is None
    assert dataset.index.format == "listing"


def test_paths_may_hold_spaces_and_commas(folder):
    """The first line is read in the way in which its file exists."""
    assert opened(folder, "b c.jpg\nd,e.jpg")[1]["data"] == b"d,e.jpg"
    dataset = opened(folder, "b c.jpg 7\nd,e.jpg 8")
    assert [sample["label"] for sample in dataset] == [7, 8]
    dataset = opened(folder, "d,e.jpg,7\nb c.jpg,8")
    assert [sample["__key__"] for sample in dataset] == ["d,e.jpg", "b c.jpg"]


def test_names_as_labels_become_classes(folder):
    """Names are numbered in sorted order."""
    dataset = opened(folder, "a.jpg\tzebra\nsub/f.jpg\tant\nb c.jpg\tzebra\n")
    assert dataset.classes == ("ant", "zebra")
    assert [sample["label"] for sample in dataset] == [1, 0, 1]


def test_order_and_repetition_are_the_lists(folder):
    """A file named twice is two samples."""
    dataset = opened(folder, "sub/f.jpg\na.jpg\nsub/f.jpg\n")
    assert [sample["__key__"] for sample in dataset] == ["sub/f.jpg", "a.jpg", "sub/f.jpg"]


def test_paths_may_be_absolute(folder, tmp_path_factory):
    """Absolute paths are taken as they are, below the list's folder; elsewhere on request."""
    dataset = opened(folder, f"{folder}/a.jpg\n{folder}/../{folder.name}/sub/f.jpg\n", "names")
    assert [sample["__key__"] for sample in dataset] == ["a.jpg", "sub/f.jpg"]
    elsewhere = tmp_path_factory.mktemp("lists")
    dataset = opened(elsewhere, f"{folder}/a.jpg\n{folder}/sub/f.jpg\n", "names", outside=True)
    assert dataset[0]["data"] == b"a.jpg"


_PARTS = st.sampled_from(["..", ".", "", "sub", "inner", "a", "..a", "a.."])


@given(parts=st.lists(_PARTS, min_size=1, max_size=6), absolute=st.booleans(), first=st.booleans())
def test_a_list_names_files_of_its_own_folder(parts, absolute, first, tmp_path_factory):
    """However a line is written: it is refused exactly if what it leads to lies elsewhere, though
    the file is there, and the error names the line."""
    top = tmp_path_factory.mktemp("lists")
    folder = top / "sub" / "inner"
    name = ("/" if absolute else "") + "/".join([*parts, "f"])
    meant = Path(os.path.normpath(folder / name if not absolute else f"{top}{name}"))
    text = f"{top}{name}" if absolute else name
    if not meant.is_relative_to(top):
        return
    for path in (folder / "own", meant):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"secret")
    for made in parts:  # the way there exists, as the kernel goes it
        (folder / made).mkdir(exist_ok=True)
    lines = [text, "own"] if first else ["own", text]
    if not os.path.exists(folder / text):
        return
    if meant.is_relative_to(folder):
        assert len(opened(folder, "\n".join(lines))) == 2
    else:
        number = 1 if first else 2
        with pytest.raises(FormatError, match=rf"list\.txt, line {number}: .* is not below"):
            opened(folder, "\n".join(lines))
        assert len(opened(folder, "\n".join(lines), outside=True)) == 2


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", FormatError, r"list\.txt"),
        ("# only\n\n", FormatError, "names no files"),
        ("a.jpg\ngone.jpg\n", MissingError, r"list\.txt, line 2: .*gone\.jpg does not exist"),
        ("gone.jpg 3\n", MissingError, r"line 1: no file 'gone\.jpg 3': a list"),
        ("prose " * 200, MissingError, r"line 1: no file 'prose [a-z ]{40,52}\.\.\.': a list"),
        ("a.jpg 3\nsub/f.jpg\n", FormatError, "no label, unlike the first line"),
        ("a.jpg\t3\nsub/f.jpg\t\n", FormatError, "line 2: no label"),
        ("a.jpg\nsub\n", FormatError, "line 2: .*sub is not a regular file"),
        ("a.jpg 1\na.jpg 99999999999999999999\n", FormatError, "does not fit"),
    ],
)
def test_a_wrong_line_is_named(folder, text, error, message):
    """Errors name the list and the line, and say what to do."""
    with pytest.raises(error, match=message):
        opened(folder, text)


def test_outside_is_yes_or_no(folder):
    with pytest.raises(UsageError, match="outside is 1: use False or True"):
        opened(folder, "a.jpg", outside=1)
    assert opened(folder, "a.jpg", outside=False).index.options == {}


def test_a_listing_is_indexed_anew_when_it_changes(folder):
    """The saved index holds as long as the list is as it was."""
    path = folder / "list.txt"
    path.write_text("a.jpg\n")
    assert len(penstock.open(path)) == 1
    path.write_text("a.jpg\nsub/f.jpg\n")
    assert len(penstock.open(path)) == 2


@pytest.mark.parametrize("header", ["path,label", "filename,class", "file\tlabel"])
def test_a_header_is_named_as_one(tmp_path, header):
    """The first words say which line is in the way, and why; what they advise works."""
    (tmp_path / "1.jpg").write_bytes(b"x")
    text = f"{header}\n1.jpg,7\n"
    with pytest.raises(MissingError, match=r"line 1: .* names no file, and line 2 does: put # be"):
        opened(tmp_path, text, "list.csv")
    assert opened(tmp_path, f"#{text}", "list.csv")[0]["label"] == 7
