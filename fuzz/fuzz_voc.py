"""Boxes of Pascal VOC: the list of a split, a document of XML, and its image."""

from __future__ import annotations

from fuzz.memory import examine, joined_parts, parted

_FILES = ("ImageSets/Main/train.txt", "Annotations/a.xml", "JPEGImages/a.jpg")


def seeds() -> list[bytes]:
    """A box with its flags, one without, and no box."""
    size = b"<size><width>9</width><height>8</height><depth>3</depth></size>"
    corners = b"<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3.5</xmax><ymax>4</ymax></bndbox>"
    flags = b"<pose>Left</pose><truncated>0</truncated><difficult>1</difficult>"
    documents = [
        b"<object><name>cat</name>" + flags + corners + b"</object>",
        b"<object><name>cat</name>" + corners + b"</object>",
        b"",
    ]
    return [
        joined_parts(b"a\n", b"<annotation>" + size + objects + b"</annotation>", b"x")
        for objects in documents
    ]


def one(data: bytes) -> None:
    """Index the data as a folder, and again with what lacks its document or image."""
    files = parted(data, _FILES)
    examine("voc", files, {"split": "train"})
    examine("voc", files, {"missing": "skip"})
