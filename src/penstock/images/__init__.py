"""Images: functions of a sample that decode, crop and resize it, in the core where they can.

A transform is a `decode` for loaders. `penstock.Loader` hands it the rows of a step, which it
writes straight into the batch, without a Python call for each sample; called with a sample, or with
the bytes of an image, it is an ordinary function with the same pixels.

`transforms` are the functions, `rows` decodes the rows of a step, `sources` finds the field that
has the images, `positions` is an index of where the rows of each JPEG begin, `gains` measures what
would make decoding cheaper, and `other_formats` decodes by Pillow what the core does not. The
folder knows nothing of orders and of how bytes are
read: the random numbers of a sample come from its seed, epoch and number.
"""

from __future__ import annotations

from .other_formats import make_smaller_copy
from .positions import (
    PositionReport,
    SavedPositions,
    check_positions,
    describe_positions,
    find_positions,
)
from .sources import choose_field
from .transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    Decode,
    RandomResizedCrop,
    Resize,
)

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "Decode",
    "PositionReport",
    "RandomResizedCrop",
    "Resize",
    "SavedPositions",
    "check_positions",
    "choose_field",
    "describe_positions",
    "find_positions",
    "make_smaller_copy",
]
