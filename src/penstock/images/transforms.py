"""Transforms of images: functions of a sample, which loaders apply to many rows at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import ImageTransform
from ..arguments import (
    check_fields,
    check_flag,
    check_kind,
    check_number,
    check_whole,
    choice,
    flag,
    fraction,
    instance,
)
from ..errors import UsageError
from ..index.table import Index
from ..loader.collate import Arrays, Leaves
from ..loader.decode import RowReader
from .gains import WORDS
from .other_formats import decode_by_pillow
from .positions import load_positions
from .rows import (
    ImageDecoder,
    WholeImageDecoder,
    check_problem,
    decode_whole,
    find_bfloat16,
    transform_pixels,
    view_dtype,
)
from .sources import check_names, choose_field, find_image, list_other_names

Layout = Literal["hwc", "chw"]
Type = Literal["uint8", "float16", "bfloat16", "float32"]
Scale = Literal["dct"]
PadMode = Literal["constant", "edge", "reflect", "symmetric"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's red, green and blue, where 1 is the brightest."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's red, green and blue, where 1 is the brightest."""

_size_max = 16_384
Size = int | Sequence[int]
Channels = Sequence[float] | float


@dataclass(frozen=True, slots=True)
class _Output:
    """Form of the images that a transform gives."""

    height: int
    width: int
    layout: Layout
    dtype: Type
    scale: tuple[float, float, float]
    offset: tuple[float, float, float]

    @property
    def shape(self) -> tuple[int, int, int]:
        if self.layout == "chw":
            return 3, self.height, self.width
        return self.height, self.width, 3


@dataclass(eq=False, repr=False)
class _SizedTransform:
    """Function of a sample that gives an image of one size; loaders apply it to many at a time."""

    size: Size
    _: KW_ONLY
    flip_rows: float = dataclasses.field(default=0.0, metadata=fraction())
    layout: Layout = dataclasses.field(default="hwc", metadata=choice(Layout))
    dtype: Type = dataclasses.field(default="uint8", metadata=choice(Type))
    mean: Channels | None = None
    std: Channels | None = None
    field: str | None = dataclasses.field(default=None, metadata=instance(str, "a field's name"))
    rotate: bool = dataclasses.field(default=False, metadata=flag())
    scale: Scale | None = dataclasses.field(default=None, metadata=choice(Scale))

    boxes = False
    flip = 0.0
    flips_first = (False, False)
    """Whether images are flipped before they are cropped: left to right, upside down."""

    def __post_init__(self) -> None:
        name = self.name
        height, width = _check_size(name, self.size)
        check_fields(self, f"{name}: ")
        factor, offset = _make_scale(name, self.dtype, self.mean, self.std)
        self.output = _Output(height, width, self.layout, self.dtype, factor, offset)

    @property
    def name(self) -> str:
        return type(self).__name__

    def __call__(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        """Return the image of an encoded one; given a sample, the sample with it as "image".

        sample:  the bytes of an image, or a mapping with one, as loaders hand it to `decode`.
        rng:     generator of which the crop takes 44 words of 64 bits; by default the sample's
                 "__rng__". With `penstock.rng(seed, epoch, id)` the pixels are the loader's.

        Raises DecodeError for damage, LimitError above `limits.image_pixels_max`.
        """
        if not isinstance(sample, Mapping):
            return self._make_image(sample, rng, "an image")[0]
        name = find_image(sample, self.field)
        if rng is None and self.is_random:
            rng = _get_rng(self.name, sample)
        where = f"sample {sample['__key__']!r}" if "__key__" in sample else "a sample"
        pixels, crop = self._make_image(sample[name], rng, where)
        result = {"image": pixels}
        if self.boxes:
            result["crop"] = np.array(crop, np.int32)
        others = list_others(sample, name)
        check_names(others, result)
        return result | others

    @property
    def is_random(self) -> bool:
        """Whether the pixels depend on random numbers."""
        return self.flip > 0 or self.flip_rows > 0

    @property
    def copy_side(self) -> int | None:
        """Shorter side of copies that are large enough for these images: 256 for 224."""
        return -(-max(self.output.height, self.output.width) * 8 // 7)

    def open_data(self, index: Index, path: str | None, leaves: Leaves) -> RowReader:
        """Return the decoder of this data, for loaders; UsageError if it has no field of images."""
        field = choose_field(index, self.field)
        if self.output.dtype == "bfloat16" and isinstance(leaves, Arrays):
            find_bfloat16()
        check_names(list_other_names(index, field), ("image", "crop") if self.boxes else ("image",))
        positions = None if path is None else load_positions(index, field, path)
        output = self.output
        return ImageDecoder(
            field,
            self._native,
            positions,
            output.shape,
            output.dtype,
            self.rotate,
            self.boxes,
            path,
            self.copy_side,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_native"}

    def __repr__(self) -> str:
        output = self.output
        return (
            f"{self.name}({output.height} x {output.width}, layout={output.layout!r}, "
            f"dtype={output.dtype!r})"
        )

    @cached_property
    def _native(self) -> ImageTransform:
        return self._make_native("whole")

    def _make_native(
        self,
        kind: str,
        shorter: int = 0,
        area: Sequence[float] = (1.0, 1.0),
        ratio: Sequence[float] = (1.0, 1.0),
        **window: Any,
    ) -> ImageTransform:
        output = self.output
        if any(self.flips_first):
            window["flips_first"] = self.flips_first
        return ImageTransform(
            kind,
            output.height,
            output.width,
            shorter,
            list(area),
            list(ratio),
            self.flip,
            self.flip_rows,
            output.layout == "chw",
            output.dtype,
            list(output.scale),
            list(output.offset),
            limits.image_pixels_max,
            self.scale == "dct",
            **window,
        )

    def _make_image(
        self, data: Any, rng: np.random.Generator | None, where: str
    ) -> tuple[npt.NDArray[Any], Sequence[int]]:
        """Decode the bytes of one image. Returns its pixels and its crop."""
        values = _view_bytes(self.name, data)
        words = self._draw_words(rng)
        out = np.empty(self._native.row_bytes, np.uint8)
        crop: Sequence[int] | None = None
        why = "its rotation is to be obeyed"
        if not self.rotate:
            problem, crop = self._native.transform_file(values, words, out)
            check_problem(problem, where)
            if problem[1]:  # the core does not decode it
                crop, why = None, problem[4]
        if crop is None:
            pixels = decode_by_pillow(values.data, where, why, self.rotate)
            crop = transform_pixels(self._native, pixels, words, out, where)
        dtype = (
            find_bfloat16() if self.output.dtype == "bfloat16" else view_dtype(self.output.dtype)
        )
        return out.view(dtype).reshape(self.output.shape), crop

    def _draw_words(self, rng: np.random.Generator | None) -> npt.NDArray[np.uint64]:
        if not self.is_random:
            return np.zeros(WORDS, np.uint64)
        if rng is None:
            raise UsageError(f"{self.name} draws random numbers: give rng, as penstock.rng(...)")
        check_kind(f"{self.name}: rng", rng, np.random.Generator, "a numpy.random.Generator")
        # Not the generator's raw words: the Mersenne Twister's have 32 bits.
        return rng.integers(0, 2**64 - 1, WORDS, np.uint64, endpoint=True)


@dataclass(eq=False, repr=False)
class RandomResizedCrop(_SizedTransform):
    """Random crop of an image, resized: torchvision's rule, with antialiasing.

    size:    height and width of the result; a number for both.
    area:    part of the image's area that the crop has, drawn uniformly.
    ratio:   its width by its height, drawn uniformly in the logarithm. Ten tries; then the largest
             crop in the middle.
    flip, flip_rows:  probability of a mirrored image, left to right and upside down.
    layout:  "hwc" or "chw".
    dtype:   "uint8", "float16", "bfloat16" or "float32".
    mean, std:  of floating-point images: each value is (level / 255 - mean) / std, by channel; by
             default level / 255.
    boxes:   batches have "crop" too, int32 (B, 7): left, top, width and height of the crop, 1 if
             mirrored (2 upside down, 3 both), and width and height of the image.
    field:   field of the samples that has the images, if it is not evident.
    rotate:  obey the rotation in EXIF data. The image is then decoded whole, by Pillow.
    scale:   "dct" for large images: those that the core decodes are shrunken by 2, 4 or 8 while
             they are decoded, while the crop's sides stay twice the result's. Other
             pixels: by some 0.2 levels in the mean.

    All random numbers come from `penstock.rng(seed, epoch, sample)`: docs/images/crops.md.
    """

    area: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    flip: float = dataclasses.field(default=0.0, metadata=fraction())
    boxes: bool = dataclasses.field(default=False, kw_only=True, metadata=flag())

    def __post_init__(self) -> None:
        super().__post_init__()
        self.area = _check_range(f"{self.name}: area", self.area, 1.0)
        self.ratio = _check_range(f"{self.name}: ratio", self.ratio, 1000.0)

    @property
    def is_random(self) -> bool:
        return True

    @cached_property
    def _native(self) -> ImageTransform:
        return self._make_native("random", 0, self.area, self.ratio)


@dataclass(eq=False, repr=False)
class CenterCrop(_SizedTransform):
    """Middle of an image whose shorter side was resized: what models are evaluated on.

    size:    height and width of the result; a number for both.
    resize:  length that the shorter side gets first, at least `size`. Without it the image keeps
             its size; a smaller one is enlarged as far as the result needs.

    The other arguments are as in `RandomResizedCrop`. Only the pixels that the result shows are
    decoded and resized.
    """

    resize: int | None = None
    flip: float = dataclasses.field(default=0.0, kw_only=True, metadata=fraction())

    def __post_init__(self) -> None:
        super().__post_init__()
        least = max(self.output.height, self.output.width)
        if self.resize is not None:
            check_whole(f"{self.name}: resize", self.resize, least, _size_max)

    @property
    def copy_side(self) -> int | None:
        return self.resize  # of an image that keeps its size no copy shows the same

    @cached_property
    def _native(self) -> ImageTransform:
        return self._make_native("centre", self.resize or 0)


@dataclass(eq=False, repr=False)
class Resize(_SizedTransform):
    """Whole image, resized to one size whatever its shape, with antialiasing.

    size:    height and width of the result; a number for both (torchvision takes one number for
             the shorter side, which gives images of many sizes: see `CenterCrop`).

    The other arguments are as in `RandomResizedCrop`.
    """

    flip: float = dataclasses.field(default=0.0, kw_only=True, metadata=fraction())


@dataclass(eq=False, repr=False)
class RandomCrop(_SizedTransform):
    """Random window of an image at its own size, or resized first: torchvision's rule.

        RandomCrop(32, padding=4, flip=0.5)  # CIFAR
        RandomCrop(224, 256)  # of images whose shorter side was resized to 256

    size:    height and width of the window; a number for both.
    resize:  length that the shorter side of the image gets first, or its (height, width).
    padding: pixels beside the image, after `resize`: a number, (left and right, top and bottom) or
             (left, top, right, bottom).
    pad_small:  pad smaller images on both sides by what is missing. Without it they are a
             DecodeError.
    fill:    level of padded pixels, or one for each of red, green and blue.
    padding_mode:  "constant" is `fill`; "edge", "reflect" and "symmetric" repeat pixels.

    The other arguments are as in `RandomResizedCrop`.
    """

    resize: Size | None = None
    padding: Size = dataclasses.field(default=0, kw_only=True)
    pad_small: bool = dataclasses.field(default=False, kw_only=True, metadata=flag())
    fill: Channels = dataclasses.field(default=0, kw_only=True)
    padding_mode: PadMode = dataclasses.field(
        default="constant", kw_only=True, metadata=choice(PadMode)
    )
    flip: float = dataclasses.field(default=0.0, kw_only=True, metadata=fraction())

    is_drawn = True
    longest = 0
    """Length that the longer side may have after `resize`; 0 for any."""
    cut: tuple[int, int] = (0, 0)
    """Size of a window that is cut out first and then resized to `size`; (0, 0) for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.resize, Sequence):
            self.resize = _check_size(self.name, self.resize, "resize")
        elif self.resize is not None:
            self.resize = check_whole(f"{self.name}: resize", self.resize, 1, _size_max)
        self.padding = check_padding(f"{self.name}: padding", self.padding)
        levels = _check_channels(f"{self.name}: fill", self.fill)
        if not all(0 <= level <= 255 and level % 1 == 0 for level in levels):
            raise UsageError(f"{self.name}: fill is {self.fill!r:.100}: use levels from 0 to 255")
        output = self.output
        self.fill_values = [
            level * scale + offset
            for level, scale, offset in zip(levels, output.scale, output.offset, strict=True)
        ]

    @property
    def is_random(self) -> bool:
        return self.is_drawn or super().is_random

    @property
    def copy_side(self) -> int | None:
        return self.resize if isinstance(self.resize, int) else None

    @cached_property
    def _native(self) -> ImageTransform:
        shorter, resized = 0, (0, 0)
        if isinstance(self.resize, Sequence):
            resized = (self.resize[0], self.resize[1])
        else:
            shorter = self.resize or 0
        return self._make_native(
            "window",
            shorter,
            is_drawn=self.is_drawn,
            resized=resized,
            longest=self.longest,
            cut=self.cut,
            padding=self.padding,
            pads_small=self.pad_small,
            mode=self.padding_mode,
            fill=self.fill_values,
        )


class CentredWindow(RandomCrop):
    """Middle of an image as torchvision's CenterCrop cuts it out: smaller images are padded."""

    is_drawn = False


class Decode:
    """Whole image as it is: uint8 (height, width, 3), red, green and blue.

    Images of a batch differ in size: `batch["image"]` is `Ragged` of pixels, uint8 (n, 3), and
    `batch["size"]` int32 (B, 2) has height and width, so that image i is
    `batch["image"][i].reshape(*batch["size"][i], 3)`.

    field, rotate:  see `RandomResizedCrop`.
    """

    def __init__(self, *, field: str | None = None, rotate: bool = False) -> None:
        if field is not None:
            check_kind("Decode: field", field, str, "the name of a field")
        self.field = field
        self.rotate = check_flag("Decode: rotate", rotate)

    def __call__(self, sample: Any) -> Any:
        """Return the pixels of an encoded image; given a sample, the sample with them as "image".

        Raises DecodeError for damage, LimitError above `limits.image_pixels_max`.
        """
        if not isinstance(sample, Mapping):
            return decode_whole(_view_bytes("Decode", sample), "an image", self.rotate)
        name = find_image(sample, self.field)
        where = f"sample {sample['__key__']!r}" if "__key__" in sample else "a sample"
        others = list_others(sample, name)
        check_names(others, ("image",))
        pixels = decode_whole(_view_bytes("Decode", sample[name]), where, self.rotate)
        return {"image": pixels} | others

    def open_data(self, index: Index, path: str | None, leaves: Leaves) -> RowReader:
        """Return the decoder of this data, for loaders; UsageError if it has no field of images."""
        del path, leaves  # all rows of blocks are decoded: positions would not help
        field = choose_field(index, self.field)
        check_names(list_other_names(index, field), ("image", "size"))
        return WholeImageDecoder(field, self.rotate)

    def __repr__(self) -> str:
        return "Decode()"


def list_others(sample: Mapping[str, Any], image: str) -> dict[str, Any]:
    """Return the fields of a sample that batches have beside its image."""
    hidden = ("__key__", "__id__", "__epoch__", image)
    return {name: value for name, value in sample.items() if name not in hidden}


def _get_rng(name: str, sample: Mapping[str, Any]) -> np.random.Generator:
    try:
        rng: np.random.Generator = sample["__rng__"]
    except KeyError:
        raise UsageError(f"{name} draws random numbers: give rng, as penstock.rng(...)") from None
    return rng


def _view_bytes(name: str, data: Any) -> npt.NDArray[np.uint8]:
    try:
        return np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError):
        raise UsageError(f"{name} got {type(data).__name__}: give an image's bytes") from None


# -- checks of arguments ---------------------------------------------------------------------------


def _check_size(name: str, size: Any, what: str = "size") -> tuple[int, int]:
    sides = size if isinstance(size, Sequence) and not isinstance(size, str) else (size, size)
    if len(sides) != 2:
        raise UsageError(f"{name}: {what} is {size!r:.100}: give a number, or (height, width)")
    height, width = (check_whole(f"{name}: {what}", side, 1, _size_max) for side in sides)
    return height, width


def check_padding(name: str, value: Any) -> tuple[int, int, int, int]:
    """Return padding as (left, top, right, bottom), from the forms that torchvision takes."""
    sides = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if len(sides) not in (1, 2, 4):
        raise UsageError(f"{name} is {value!r:.100}: give 1, 2 or 4 numbers, as in torchvision")
    left, top, right, bottom = (
        check_whole(name, side, 0, _size_max) for side in (*sides, *sides, *sides, *sides)[:4]
    )
    return left, top, right, bottom


def _check_range(name: str, value: Any, most: float) -> tuple[float, float]:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(value, Sequence) or len(value) != 2:
        raise UsageError(f"{name} is {value!r:.100}: give (least, most)")
    low, high = (check_number(name, bound, 1e-6 if most == 1 else 1e-3, most) for bound in value)
    if low > high:
        raise UsageError(f"{name} is {value!r:.100}: give (least, most), least first")
    return low, high


def _check_channels(name: str, value: Any) -> tuple[float, float, float]:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    values = value if isinstance(value, Sequence) else (value,) * 3
    if isinstance(values, str) or len(values) != 3:
        raise UsageError(f"{name} is {value!r:.100}: give a number for each of red, green, blue")
    red, green, blue = (check_number(name, one, -1e6, 1e6) for one in values)
    return red, green, blue


def _make_scale(
    name: str, dtype: str, mean: Any, std: Any
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return scale and offset for which level * scale + offset is the normalised value."""
    if dtype == "uint8":
        if mean is not None or std is not None:
            raise UsageError(f"{name}: mean and std need a floating-point dtype, such as 'float16'")
        return (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)
    means = _check_channels(f"{name}: mean", 0.0 if mean is None else mean)
    stds = _check_channels(f"{name}: std", 1.0 if std is None else std)
    if min(stds) < 1e-6:
        raise UsageError(f"{name}: std is {std!r:.100}: use numbers above 0")
    scale = tuple(1 / (255 * std) for std in stds)
    offset = tuple(-mean / std for mean, std in zip(means, stds, strict=True))
    largest = max(
        max(mean, 1 - mean, abs(mean)) / std for mean, std in zip(means, stds, strict=True)
    )
    if dtype == "float16" and largest > float(np.finfo(np.float16).max):
        raise UsageError(f"{name}: values reach {largest:g}, too large for float16: use 'float32'")
    return (scale[0], scale[1], scale[2]), (offset[0], offset[1], offset[2])
