"""JPEG and PNG: a grey image of the size of a sample, one a file."""

from __future__ import annotations

import zlib

import numpy as np

from penstock.engine import AtomicFile, storage_errors
from penstock.index import missing_library

from ..file_draft import Draft

_PNG = {"compress_level": 1, "compress_type": zlib.Z_RLE}
"""Noise has no matches to look for; so it is ten times faster, and no larger."""


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise missing_library("pillow", "images", "writing images") from None
    sample = next(draft.groups())[0]
    image = Image.fromarray(np.atleast_2d(sample))
    options = _PNG if draft.data.format == "png" else {}
    with storage_errors(part.path):
        image.save(part.file, draft.data.format, **options)
