"""Documents of JSON beside images: columns that have what Python's own parser finds."""

from __future__ import annotations

import json
import zlib
from itertools import pairwise

import numpy as np

from fuzz.memory import examine, joined_parts, parted
from penstock.errors import PenstockError
from penstock.index.formats.image_json import make_columns, parse_object

_DOCUMENTS = ("a/1.json", "a/2.json", "b.json")
TOKENS = (b'"label"', b'"caption"', b'"box"', b"null", b"[", b"]", b"{", b"}", b"1", b'"\\ud800"')


def seeds() -> list[bytes]:
    """Three documents."""
    documents = [
        {"label": 1, "caption": "a", "box": [[0, 1.5], [2, 3]], "sizes": [1, 2], "ok": True},
        {"label": 2, "caption": "b", "box": [], "sizes": [3], "ok": None, "more": {"x": 1}},
        {"label": 3, "caption": "\u00e9", "box": [[4, 5]], "sizes": [], "ok": False},
    ]
    return [joined_parts(*(json.dumps(document).encode() for document in documents))]


def one(data: bytes) -> None:
    """Read the documents as columns; index an eighth of all inputs as a folder."""
    files = parted(data, _DOCUMENTS)
    if zlib.crc32(data) % 8:
        _check_columns(list(files.values()))
    else:
        images = {name.replace(".json", ".jpg"): b"I" for name in files}
        examine("image_json", {**files, **images})


def _check_columns(texts: list[bytes]) -> None:
    """Compare the columns of documents with what Python's parser finds in each."""
    try:
        values = [parse_object(name, text) for name, text in zip(_DOCUMENTS, texts, strict=False)]
        classes, labels, attributes = make_columns(_DOCUMENTS.__getitem__, values)
    except PenstockError:
        return
    documents = [json.loads(text) for text in texts]
    if labels is not None:
        found = labels.tolist() if classes is None else [classes[label] for label in labels]
        assert found == [document["label"] for document in documents]
    names = [attribute.name for attribute in attributes] + ["label"] * (labels is not None)
    assert sorted(names) == sorted({key for document in documents for key in document})
    every = np.arange(len(documents))
    for attribute in attributes:
        assert attribute.count == len(documents)
        column = attribute.take(every)
        wanted = [document.get(attribute.name) for document in documents]
        if isinstance(column, tuple):
            rows, offsets = column
            column = [rows[first:last].tolist() for first, last in pairwise(offsets)]
        elif isinstance(column, np.ndarray):
            column = column.tolist()
        assert column == wanted, (attribute.name, column, wanted)
