"""Operations with the names and attributes that torchvision's have, and what they do, by Pillow.

They are written from torchvision's documentation, for environments without it. `load` gives them,
or torchvision's own where it can be imported.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.images.pictures import Image

Values = npt.NDArray[Any]


class Operation:
    """Operation of torchvision; options are attributes of the same names."""

    def __init__(self, apply: Callable[[Any], Any], **options: Any) -> None:
        self.apply = apply
        vars(self).update(options)

    def __call__(self, image: Any) -> Any:
        return self.apply(image)


def name_class(name: str, module: str = "transforms.transforms") -> type[Operation]:
    """Return a class of operations that has the name and module of one of torchvision's."""
    return type(name, (Operation,), {"__module__": f"torchvision.{module}"})


def _pair(size: Any) -> tuple[int, int]:
    sides = (size,) if isinstance(size, int) else tuple(size)
    return (sides * 2)[:2]


def _sides(padding: Any) -> list[int]:
    return (list(padding) if isinstance(padding, Sequence) else [padding]) * (
        4 if isinstance(padding, int) else 4 // len(padding)
    )


def _pad(image: Any, sides: Sequence[int], fill: Any, mode: str) -> Any:
    left, top, right, bottom = sides
    if isinstance(image, np.ndarray):  # a tensor (3, height, width)
        return np.pad(image, ((0, 0), (top, bottom), (left, right)), constant_values=fill)
    pixels = np.array(image)
    widths = ((top, bottom), (left, right))
    if mode != "constant":
        return Image.fromarray(np.pad(pixels, (*widths, (0, 0)), mode))
    fills = fill if isinstance(fill, Sequence) else (fill,) * 3
    planes = [np.pad(pixels[..., i], widths, constant_values=fills[i]) for i in range(3)]
    return Image.fromarray(np.stack(planes, 2))


def _measure(image: Any) -> tuple[int, int]:
    return image.shape[1:] if isinstance(image, np.ndarray) else (image.height, image.width)


def _cut(image: Any, top: int, left: int, height: int, width: int) -> Any:
    if isinstance(image, np.ndarray):
        return image[:, top : top + height, left : left + width]
    return image.crop((left, top, left + width, top + height))


def make_resize(size: Any, max_size: int | None = None, **options: Any) -> Operation:
    def apply(image: Any) -> Any:
        height, width = _measure(image)
        if isinstance(size, Sequence) and len(size) == 2:
            return image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        shorter, longer = min(height, width), max(height, width)
        if size is None:
            shorter, longer = int((max_size or 0) * shorter / longer), max_size or 0
        else:
            wanted = _pair(size)[0]
            shorter, longer = wanted, int(wanted * longer / shorter)
            if max_size is not None and longer > max_size:
                shorter, longer = int(max_size * shorter / longer), max_size
        to = (shorter, longer) if width <= height else (longer, shorter)
        return image.resize(to, Image.Resampling.BILINEAR)

    options = {"interpolation": "bilinear", "antialias": True} | options
    return name_class("Resize")(apply, size=size, max_size=max_size, **options)


def make_center_crop(size: Any) -> Operation:
    def apply(image: Any) -> Any:
        height, width = _pair(size)
        missing = [
            max(0, one - has) for one, has in zip((height, width), _measure(image), strict=True)
        ]
        sides = (missing[1] // 2, missing[0] // 2, (missing[1] + 1) // 2, (missing[0] + 1) // 2)
        image = _pad(image, sides, 0, "constant")
        rows, columns = _measure(image)
        return _cut(image, round((rows - height) / 2), round((columns - width) / 2), height, width)

    return name_class("CenterCrop")(apply, size=_pair(size))


def make_pad(padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Operation:
    def apply(image: Any) -> Any:
        return _pad(image, _sides(padding), fill, padding_mode)

    options = {"padding": padding, "fill": fill, "padding_mode": padding_mode}
    return name_class("Pad")(apply, **options)


def make_random_crop(size: Any, padding: Any = None, **options: Any) -> Operation:
    def apply(image: Any) -> Any:
        raise AssertionError("the tests list its windows")

    options = {"pad_if_needed": False, "fill": 0, "padding_mode": "constant"} | options
    return name_class("RandomCrop")(apply, size=_pair(size), padding=padding, **options)


def make_flip(name: str, p: float = 0.5) -> Operation:
    def apply(image: Any) -> Any:
        assert p == 1, "the tests draw nothing"
        if isinstance(image, np.ndarray):
            return np.flip(image, 2 if name == "RandomHorizontalFlip" else 1)
        turn = "FLIP_LEFT_RIGHT" if name == "RandomHorizontalFlip" else "FLIP_TOP_BOTTOM"
        return image.transpose(getattr(Image.Transpose, turn))

    return name_class(name)(apply, p=p)


def _to_tensor(image: Any) -> Values:
    return np.array(image).transpose(2, 0, 1).astype(np.float32) / np.float32(255)


def make_normalize(mean: Sequence[float], std: Sequence[float]) -> Operation:
    def apply(image: Any) -> Any:
        means, stds = (np.array(one, np.float32).reshape(-1, 1, 1) for one in (mean, std))
        return (image - means) / stds

    return name_class("Normalize")(apply, mean=mean, std=std, inplace=False)


def make_compose(operations: list[Any]) -> Operation:
    def apply(image: Any) -> Any:
        for operation in operations:
            image = operation(image)
        return image

    return name_class("Compose")(apply, transforms=operations)


def _fail(image: Any) -> Any:
    raise AssertionError("not to be applied")


STANDINS = types.SimpleNamespace(
    Compose=make_compose,
    Resize=make_resize,
    CenterCrop=make_center_crop,
    Pad=make_pad,
    RandomCrop=make_random_crop,
    RandomHorizontalFlip=lambda p=0.5: make_flip("RandomHorizontalFlip", p),
    RandomVerticalFlip=lambda p=0.5: make_flip("RandomVerticalFlip", p),
    ToTensor=lambda: name_class("ToTensor")(_to_tensor),
    PILToTensor=lambda: name_class("PILToTensor")(lambda image: np.array(image).transpose(2, 0, 1)),
    Normalize=make_normalize,
    RandomResizedCrop=lambda size, **options: name_class("RandomResizedCrop")(
        _fail,
        size=_pair(size),
        **{
            "scale": (0.08, 1.0),
            "ratio": (3 / 4, 4 / 3),
            "interpolation": "bilinear",
            "antialias": True,
        }
        | options,
    ),
    ConvertImageDtype=lambda dtype: name_class("ConvertImageDtype")(_fail, dtype=dtype),
    ToDtype=lambda dtype, scale=False: name_class("ToDtype", "transforms.v2._misc")(
        _fail, dtype=dtype, scale=scale
    ),
    ToImage=lambda: name_class("ToImage", "transforms.v2._type_conversion")(_fail),
    ColorJitter=lambda value: name_class("ColorJitter")(_fail, brightness=value),
    Lambda=lambda function: name_class("Lambda")(function, lambd=function),
)
"""Operations of torchvision by name; each is called with torchvision's arguments."""


def load(library: str) -> Any:
    """Return the operations: "stand-in" for those above, or torchvision's "v1" or "v2"."""
    if library == "stand-in":
        return STANDINS
    from benchmarks.torchvision_module import load_torchvision

    torchvision = load_torchvision()
    return torchvision.transforms.v2 if library == "v2" else torchvision.transforms
