"""Annotated images pass the suite of formats; each is written byte by byte here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.testing import FormatSuite, Written

from .annotated import make_coco, make_voc, write_pairs, write_voc


def name_images(folder: Path, counts: Sequence[int]) -> list[str]:
    """Names of images: a sub-folder for each count."""
    names = []
    for number, count in enumerate(counts):
        (folder / f"{number}").mkdir(parents=True, exist_ok=True)
        names += [f"{number}/{i:02}.jpg" for i in range(count)]
    return names


class TestCoco(FormatSuite):
    """COCO: a file of JSON, and images in sub-folders."""

    framed = False

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        names = name_images(folder / "images", counts)
        boxes = random.integers(0, 4, len(names)).tolist()
        (folder / "annotations").mkdir()
        document = make_coco(names, boxes)
        (folder / "annotations" / "instances_all.json").write_text(json.dumps(document))
        values = [random.bytes(int(n)) for n in random.integers(0, 60, len(names))]
        for name, value in zip(names, values, strict=True):
            (folder / "images" / name).write_bytes(value)
        rows = [np.array([[i, k, 1.5, 2] for k in range(n)], "f4") for i, n in enumerate(boxes)]
        return Written(
            folder,
            {
                "image": values,
                "boxes": [row.reshape(-1, 4) for row in rows],
                "labels": [np.arange(n, dtype=np.int64) % 2 for n in boxes],
                "image_id": [np.array(100 + i) for i in range(len(names))],
            },
            {"fields": ["boxes", "labels", "image_id"]},
            keys=[f"images/{name}" for name in names],
        )


class TestVoc(FormatSuite):
    """Pascal VOC without lists of splits."""

    framed = several = False

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        objects = {
            f"{i:03}": [("cat" if k % 2 else "ant", (i, k, i + 5, k + 3)) for k in range(i % 3)]
            for i in range(sum(counts))
        }
        write_voc(folder, {name: make_voc(one) for name, one in objects.items()})
        (folder / "ImageSets" / "Main").rmdir()
        rows = [[[i, k, 5, 3] for k in range(i % 3)] for i in range(len(objects))]
        return Written(
            folder,
            {
                "image": [name.encode() for name in objects],
                "boxes": [np.array(row, "f4").reshape(-1, 4) for row in rows],
                "labels": [np.arange(len(row), dtype=np.int64) for row in rows],
            },
            {"fields": ["boxes", "labels"]},
        )


class TestImageJson(FormatSuite):
    """A document of JSON beside each image."""

    framed = several = False

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        names = [f"{i:03}" for i in range(sum(counts))]
        write_pairs(
            folder,
            {
                name: {"score": i / 4, "points": [[i, i + 1]] * (i % 3 + 1), "label": i % 5}
                for i, name in enumerate(names)
            },
        )
        return Written(
            folder,
            {
                "image": [name.encode() for name in names],
                "score": [np.array(i / 4) for i in range(len(names))],
                "points": [np.array([[i, i + 1]] * (i % 3 + 1)) for i in range(len(names))],
            },
            labels=[i % 5 for i in range(len(names))],
            keys=[f"{name}.jpg" for name in names],
        )
