"""Boxes, outlines, keypoints and captions of COCO: a document, and the images that it names."""

from __future__ import annotations

import json
from typing import Any

from fuzz.memory import examine, is_chosen, joined_parts, parted

_FILES = ("annotations/instances_val.json", "val/a.jpg", "val/b.jpg")
TOKENS = (
    *(b'"images":[', b'"annotations":[', b'"categories":[', b'"caption":"a"', b'"keypoints":['),
    *(b'"segmentation":{"counts":[6],"size":[2,3]}', b"[1,2,3,4]", b"NaN", b"1e999", b"\\ud800"),
    *(b"{", b"}", b"[", b"]", b",", b":", b"null", b"\xc3\xa9", b"\xed\xa0\x80"),
)


def seeds() -> list[bytes]:
    """Boxes with both kinds of outlines, keypoints, and captions."""
    images = [{"id": n, "file_name": f"{name}.jpg", "width": 9, "height": 8} for n, name in _IMAGES]
    box = {"id": 1, "image_id": 1, "category_id": 7, "bbox": [1, 2, 3, 4.5], "area": 9.0}
    polygon = {"iscrowd": 0, "segmentation": [[0, 0, 1, 0, 1, 1]]}
    crowd = {"id": 2, "iscrowd": 1, "segmentation": {"counts": [2, 3, 1], "size": [2, 3]}}
    points = {"iscrowd": 0, "keypoints": [1, 2, 2, 0, 0, 0], "num_keypoints": 1}
    kinds = {"id": 7, "name": "cat", "supercategory": "animal"}
    documents: list[dict[str, Any]] = [
        {"annotations": [box | polygon, box | crowd], "categories": [kinds]},
        {"annotations": [box | points], "categories": [kinds | {"keypoints": ["nose", "tail"]}]},
        {"annotations": [{"id": 1, "image_id": 2, "caption": "a c\u00e4t"}]},
        {"annotations": [], "categories": []},
    ]
    texts = (json.dumps({"images": images} | document) for document in documents)
    return [joined_parts(text.encode(), b"a", b"b") for text in texts]


_IMAGES = ((1, "a"), (2, "b"))


def one(data: bytes) -> None:
    """Index the data as a folder; half of all inputs without the images that are missing."""
    examine("coco", parted(data, _FILES), {"missing": "skip"} if is_chosen(data) else {})
