"""Images with documents of JSON beside them, and pairs of image and text in tar archives."""

from __future__ import annotations

import io
import json
import tarfile

from fuzz.memory import examine, joined_parts, parted
from fuzz.structure import PART

_DOCUMENTS = ("a/1.json", "a/2.json", "b.json")
_ENDINGS = ("1.jpg", "1.txt", "1.json", "2.png", "2.txt", "2.json")
TOKENS = (b'"label"', b'"caption"', b'"box"', b"null", b"[", b"]", b"{", b"}", b"1", b'"\\ud800"')


def seeds() -> list[bytes]:
    """Three documents; and the members of a tar archive."""
    documents = [
        {"label": 1, "caption": "a", "box": [[0, 1.5], [2, 3]], "sizes": [1, 2], "ok": True},
        {"label": 2, "caption": "b", "box": [], "sizes": [3], "ok": None, "more": {"x": 1}},
        {"label": 3, "caption": "\u00e9", "box": [[4, 5]], "sizes": [], "ok": False},
    ]
    texts = [json.dumps(document).encode() for document in documents]
    return [
        joined_parts(b"folder", *texts),
        joined_parts(b"tar", b"I", b"a text", texts[0], b"J", b"another", texts[1]),
    ]


def one(data: bytes) -> None:
    """Index the documents as a folder, or the members as an archive."""
    kind, _, rest = data.partition(PART)
    if kind == b"tar":
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as out:
            for name, content in parted(rest, _ENDINGS).items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                out.addfile(member, io.BytesIO(content))
        examine("clip", {"d.tar": archive.getvalue()}, name="d.tar")
        return
    files = parted(rest, _DOCUMENTS)
    images = {name.replace(".json", ".jpg"): b"I" for name in files}
    examine("image_json", {**files, **images})
