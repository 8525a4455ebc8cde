"""Decode in threads: a folder of images with class sub-folders, as uint8 arrays and labels."""

import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

import penstock
from penstock import images

resize = images.Resize(32)  # as `decode=` it gives images and labels without a call for each sample


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample has its bytes, its label and its key; what is returned here is collated."""
    pixels = resize(sample["data"])
    return {"image": pixels, "label": sample["label"], "name": sample["__key__"]}


with tempfile.TemporaryDirectory() as folder:
    for number, name in enumerate(["blue", "green", "red"] * 4):
        path = Path(folder) / name / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (40 + number, 30), name).save(path)

    dataset = penstock.open(folder, extensions=["png"])
    print(f"{len(dataset)} images, classes {', '.join(dataset.classes or ())}")
    with penstock.Loader(dataset, batch_size=4, seed=3, decode=decode) as loader:
        for batch in loader:
            print(batch["image"].shape, batch["image"].dtype, batch["label"], batch["name"])
