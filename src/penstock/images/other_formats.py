"""Images that Pillow reads or writes: those that the core does not decode (PNG, WebP, progressive
JPEG, CMYK and others), and smaller copies."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import DecodeError, LimitError, missing_library

Pixels = npt.NDArray[np.uint8]


def decode_by_pillow(data: bytes | memoryview, where: str, why: str, rotate: bool) -> Pixels:
    """Decode an image to RGB, (height, width, 3).

    where:   the sample, for messages.
    why:     reason why the core does not decode it, for the message if Pillow is missing.
    rotate:  obey the rotation of its EXIF data.

    Raises DecodeError for what Pillow refuses, LimitError above `limits.image_pixels_max`, and
    UsageError without Pillow.
    """
    with _open_image(data, where, why) as image:
        upright = image
        if rotate:
            upright = _import_pillow(where, why)[1].exif_transpose(image)
        return np.array(upright.convert("RGB"))


def read_size_by_pillow(
    data: bytes | memoryview, where: str, why: str, rotate: bool
) -> tuple[int, int]:
    """Return height and width of what `decode_by_pillow` gives, from the header alone."""
    with _open_image(data, where, why) as image:
        turns = rotate and image.format != "TIFF"  # whose size Pillow gives as it is shown
        is_turned = turns and image.getexif().get(_orientation, 1) in (5, 6, 7, 8)
        return (image.width, image.height) if is_turned else (image.height, image.width)


_orientation = 0x0112  # tag of EXIF data


def _import_pillow(where: str, why: str) -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise missing_library("pillow", "images", f"{where}: decoding this image ({why})") from None
    return Image, ImageOps


@contextlib.contextmanager
def _open_image(data: bytes | memoryview, where: str, why: str) -> Iterator[Any]:
    """Open an image of an allowed size; errors of Pillow are as in `decode_by_pillow`."""
    pillow, _ = _import_pillow(where, why)
    try:
        with pillow.open(io.BytesIO(data)) as image:
            check_pixels(image.width, image.height, where)
            yield image
    except (DecodeError, LimitError):
        raise
    except MemoryError:
        raise LimitError(f"{where}: no memory to decode the image: make it smaller") from None
    except Exception as error:
        said = f"{why}; Pillow: {type(error).__name__}: {error}"
        raise DecodeError(f"{where}: the image cannot be decoded ({said}): restore it") from None


def check_pixels(width: int, height: int, where: str) -> None:
    """Raise an error for an image without pixels, or with too many."""
    if width < 1 or height < 1:
        raise DecodeError(f"{where}: the image is {width} x {height}: leave the sample out")
    if width * height > limits.image_pixels_max:
        raise build_size_error(where, f"{width:,} x {height:,} pixels")


def build_size_error(where: str, size: str) -> LimitError:
    """Build the error for an image of too many pixels."""
    most = f"limits.image_pixels_max = {limits.image_pixels_max:,}"
    return LimitError(f"{where}: the image has {size}, more than {most}: write a smaller copy")


def make_smaller_copy(data: bytes | memoryview, side: int) -> bytes | None:
    """Return an image in its own format whose shorter side is `side`, at quality 90.

    None for an image that is no larger, for one that has other than 8 bits a channel or a palette
    (a smaller copy would lose levels, or mix numbers of classes), and for one that Pillow cannot
    read or write. Rotation in EXIF data stays what it is. UsageError without Pillow, LimitError
    without memory.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise missing_library("pillow", "images", "resizing") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            check_pixels(image.width, image.height, "an image")
            shorter = min(image.size)
            if shorter <= side:
                return None
            width, height = (max(side, round(length * side / shorter)) for length in image.size)
            kind = image.format
            image.draft("RGB", (2 * width, 2 * height))  # JPEG: decoded near its new size
            image.load()
            exif = image.info.get("exif", b"")  # a PNG may have it behind the pixels
            if image.mode[0] in "1IFP":
                return None
            whole = image.convert(image.mode if image.mode in ("L", "LA", "RGBA") else "RGB")
        file = io.BytesIO()
        copy = whole.resize((width, height), Image.Resampling.BILINEAR)
        copy.save(file, kind, quality=90, exif=exif)
    except MemoryError:
        raise LimitError("no memory to resize an image: convert where there is more") from None
    except Exception:
        return None
    return file.getvalue()
