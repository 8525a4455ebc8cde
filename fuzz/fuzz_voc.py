"""Boxes of Pascal VOC: the list of a split, a document of XML, and its image."""

from __future__ import annotations

from fuzz.memory import examine, is_chosen, joined_parts, parted

_FILES = ("ImageSets/Main/train.txt", "Annotations/a.xml", "JPEGImages/a.jpg")
TOKENS = (
    *(
        b"<object>",
        b"</object>",
        b"<name>cat</name>",
        b"<bndbox>",
        b"</bndbox>",
        b"<xmin>1e9</xmin>",
    ),
    *(
        b"<ymax>-1</ymax>",
        b"<difficult>2</difficult>",
        b"<size>",
        b"<width>",
        b"<!-- -->",
        b"<![CDATA[",
    ),
    *(
        b"]]>",
        b"<?xml version='1.0' encoding='utf-16'?>",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
        b"&b;",
    ),
    *(b"&#0;", b"&#233;", b"nan", b"inf", b"\xd9\xa1", b"a 1\n", b"a\n", b"../a\n", b"<a>" * 70),
)


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
    """Index a split; half of all inputs as a folder, with what lacks its document or image."""
    options = {"missing": "skip"} if is_chosen(data) else {"split": "train"}
    examine("voc", parted(data, _FILES), options)
