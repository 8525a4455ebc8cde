"""Images: functions of a sample that decode, crop and resize it, in the core where they can.

A transform is a `decode` for loaders. `penstock.Loader` hands it the rows of a step, which it
writes straight into the batch, without a Python call for each sample; called with a sample, or with
the bytes of an image, it is an ordinary function with the same pixels.

`transforms` are the functions, `translation` makes them of torchvision's, `rows` decodes the rows
of a step, `sources` finds the field that
has the images, `positions` is an index of where the rows of each JPEG begin, `gains` measures what
would make decoding cheaper, and `other_formats` decodes by Pillow what the core does not. The
folder knows nothing of orders and of how bytes are
read: the random numbers of a sample come from its seed, epoch and number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .positions import find_positions as find_positions
    from .transforms import IMAGENET_MEAN as IMAGENET_MEAN
    from .transforms import IMAGENET_STD as IMAGENET_STD
    from .transforms import CenterCrop as CenterCrop
    from .transforms import Decode as Decode
    from .transforms import RandomCrop as RandomCrop
    from .transforms import RandomResizedCrop as RandomResizedCrop
    from .transforms import Resize as Resize
    from .translation import from_torchvision as from_torchvision
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "positions": "find_positions",
            "transforms": "CenterCrop Decode IMAGENET_MEAN IMAGENET_STD RandomCrop "
            "RandomResizedCrop Resize",
            "translation": "from_torchvision",
        },
    )
