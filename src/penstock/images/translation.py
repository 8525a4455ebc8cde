"""Translation of torchvision's transforms into those of the core.

torchvision is not imported: its operations are recognised by module and name, and read by their
attributes. An operation, or an option, that the core lacks is a UsageError. What passes has the
geometry of torchvision's pipeline on images that Pillow decoded, in every case, and its random
numbers are equal in distribution.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from ..arguments import check_number
from ..errors import UsageError
from .transforms import (
    CenterCrop,
    CentredWindow,
    PadMode,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Type,
    check_padding,
)

_remedy = "keep the transform in a decode= of yours"
_dtypes = ("uint8", "float16", "bfloat16", "float32")
_dtype_remedy = f"use one of {', '.join(_dtypes)}"
_bilinear = ("bilinear", 2)  # the mode, and Pillow's number of it
_crops = ("RandomResizedCrop", "CenterCrop", "RandomCrop")


def from_torchvision(transform: Any) -> RandomResizedCrop | CenterCrop | RandomCrop | Resize:
    """Return the transform of the core that does what a transform of torchvision does.

        DataLoader(penstock.open(root), decode=from_torchvision(transform), ...)

    transform:  a `Compose` (v1 or v2), a list of operations, one of them, or the transforms of a
                classification model's weights. One crop or resize, flips, and conversions to a
                tensor: RandomResizedCrop; Resize((h, w)); CenterCrop or RandomCrop, with Resize
                before or behind it, and Pad; RandomHorizontalFlip, RandomVerticalFlip; ToTensor,
                PILToTensor, ToImage; ToDtype, ConvertImageDtype, Normalize.

    Images have the layout "chw", and dtype, mean and std of the transform. Its randomness comes
    from the seed, epoch and sample, not from torch's generator. Pixels differ by rounding: in the
    mean by less than half a level.

    Raises UsageError, which names the operation or the option that the core lacks.
    """
    operations = list(_list_operations(transform))
    if not operations:
        raise UsageError(f"from_torchvision: the transform is empty: {_remedy}")
    translation = _Translation()
    if not any(operation.name in _converters for operation in operations):
        translation.dtype = "uint8"  # a tensor, as decode_image gives it
    for operation in operations:
        translation.add(operation)
    return translation.build()


@dataclass(frozen=True)
class _Operation:
    """Operation of torchvision.

    values:  object that has its options as attributes.
    is_v2:   its module is one of torchvision.transforms.v2.
    """

    name: str
    values: Any
    is_v2: bool


def _list_operations(transform: Any) -> Iterator[_Operation]:
    """List the operations of a transform in their sequence."""
    kind = type(transform)
    if isinstance(transform, list | tuple):
        for operation in transform:
            yield from _list_operations(operation)
    elif kind.__module__ == "torch.nn.modules.container" and kind.__name__ == "Sequential":
        yield from _list_operations(list(transform))
    elif not kind.__module__.startswith("torchvision.transforms."):
        name = getattr(transform, "__qualname__", kind.__qualname__)
        raise _build_error(f"{name} is no operation of torchvision")
    elif kind.__name__ == "Compose":
        yield from _list_operations(list(transform.transforms))
    elif kind.__name__ == "ImageClassification":  # what the weights of a model bring along
        normal = SimpleNamespace(mean=transform.mean, std=transform.std)
        resize = SimpleNamespace(**vars(transform), size=transform.resize_size, max_size=None)
        yield _Operation("Resize", resize, False)
        yield _Operation("CenterCrop", SimpleNamespace(size=transform.crop_size), False)
        yield _Operation("PILToTensor", None, False)
        yield _Operation("ConvertImageDtype", SimpleNamespace(dtype="float32"), False)
        yield _Operation("Normalize", normal, False)
    else:
        yield _Operation(kind.__name__, transform, ".v2." in kind.__module__)


def _build_error(what: str, remedy: str = _remedy) -> UsageError:
    return UsageError(f"from_torchvision: {what}: {remedy}")


class _Translation:
    """State of an image behind the operations that were read, from which the transform is built.

    dtype:  of the tensor; "" for an image of Pillow.
    mean, std:  a value is (level / 255 - mean) / std.
    flips:  probability of a mirrored image, left to right and upside down, before the crop and
            behind it.
    """

    def __init__(self) -> None:
        self.dtype = ""
        self.mean, self.std = [0.0] * 3, [1.0] * 3
        self.flips = [[0.0, 0.0], [0.0, 0.0]]
        self._crop: _Operation | None = None
        self._size: tuple[int, ...] | None = None  # of a Resize: (), (shorter,) or (height, width)
        self._longest = 0
        self._is_cut = False  # cropped before it is resized
        self._is_placed = False  # cropped or padded: what is flipped before is flipped first
        self._padding = [0, 0, 0, 0]
        self._pad_mode = "constant"
        self._fill: tuple[float, ...] | None = None  # of padded pixels, where 1 is the brightest
        self._pads_small = False

    def add(self, operation: _Operation) -> None:
        """Read the next operation."""
        read = _readers.get(operation.name)
        if read is None:
            raise _build_error(f"{operation.name} is not in the core")
        read(self, operation)

    # -- geometry ----------------------------------------------------------------------

    def read_resize(self, operation: _Operation) -> None:
        self._check_filter(operation)
        if self._crop is not None and self._crop.name == "RandomResizedCrop":
            raise _build_error("Resize behind RandomResizedCrop resizes twice")
        if self._size is not None:
            raise _build_error("Resize behind Resize resizes twice")
        is_centred = self._crop is not None and self._crop.name == "CenterCrop"
        if any(self._padding) or (self._pads_small and not is_centred):
            raise _build_error("Resize behind padding is not in the core")
        size, longest = operation.values.size, operation.values.max_size
        self._size = () if size is None else _list_sides(size)
        self._longest = int(longest or 0)
        least = 0 if not self._size else self._size[0] + 1 if len(self._size) == 1 else 1 << 62
        if longest is not None and longest < least:
            remedy = "give max_size= above a size= of one number"
            raise _build_error(f"Resize(size={size!r}, max_size={longest!r}) is no size", remedy)
        self._is_cut = self._crop is not None

    def read_random_resized_crop(self, operation: _Operation) -> None:
        self._check_filter(operation)
        if self._size is not None or any(self._padding):
            before = "Resize" if self._size is not None else "Pad"
            raise _build_error(f"RandomResizedCrop behind {before} is not in the core")
        self._take_crop(operation)

    def read_crop(self, operation: _Operation) -> None:
        self._take_crop(operation)
        if operation.name == "CenterCrop":
            # Smaller images are padded with 0: not in the core if others were padded otherwise.
            fill, padded = self._convert_fill(0), any(self._padding)
            if padded and any(self.flips[1]):
                raise _build_error("CenterCrop behind a flip behind Pad is not in the core")
            self._pads_small = not padded or (self._pad_mode == "constant" and self._fill == fill)
            self._fill = self._fill if padded else fill
            return
        values = operation.values
        padding = values.padding
        if padding is not None and operation.is_v2:
            left, right, top, bottom = padding
            padding = (left, top, right, bottom)
        pads_small = bool(values.pad_if_needed)
        if padding is not None or pads_small:
            self._add_padding("RandomCrop", padding or 0, values, pads_small)
        self._pads_small = pads_small

    def read_pad(self, operation: _Operation) -> None:
        if self._crop is not None:
            raise _build_error(f"Pad behind {self._crop.name} is not in the core")
        self._add_padding("Pad", operation.values.padding, operation.values, False)
        self._is_placed = any(self._padding)

    def read_flip(self, operation: _Operation) -> None:
        axis = int(operation.name == "RandomVerticalFlip")
        chance = check_number(f"from_torchvision: {operation.name}: p", operation.values.p, 0, 1)
        flips = self.flips[int(self._is_placed)]
        flips[axis] += chance - 2 * flips[axis] * chance  # twice mirrored is not mirrored

    def _take_crop(self, operation: _Operation) -> None:
        if self._crop is not None:
            raise _build_error(f"{operation.name} behind {self._crop.name}: the core crops once")
        self._crop = operation
        self._is_placed = True

    def _check_filter(self, operation: _Operation) -> None:
        name, values = operation.name, operation.values
        mode = getattr(values.interpolation, "value", values.interpolation)
        if mode not in _bilinear:
            raise _build_error(f"{name}(interpolation={mode!r}) is not bilinear")
        # Pillow's images are antialiased if nothing was chosen; tensors then are not.
        chosen = getattr(values, "antialias", None)
        if chosen is not True and (chosen is False or self.dtype):
            what = f"{name}(antialias={chosen!r}) is not in the core"
            raise _build_error(what, f"give antialias=True, or {_remedy}")

    def _add_padding(self, name: str, padding: Any, values: Any, pads_small: bool) -> None:
        mode, fill = values.padding_mode, self._convert_fill(values.fill)
        sides = check_padding(f"from_torchvision: {name}: padding", padding)
        if not any(sides) and not pads_small:
            return  # what pads nothing has no mode, which others would take
        is_first = not any(self._padding)
        if not is_first and (mode, self._pad_mode, fill) != ("constant", "constant", self._fill):
            raise _build_error(f"{name} behind Pad pads twice, differently")
        if any([*sides, *self._padding]) and pads_small and mode in ("reflect", "symmetric"):
            raise _build_error(f"{name}(pad_if_needed=True) pads twice, which {mode!r} repeats")
        self._padding = [one + other for one, other in zip(self._padding, sides, strict=True)]
        self._pad_mode, self._fill = mode, fill

    def _convert_fill(self, fill: Any) -> tuple[float, ...]:
        """Return a fill as its level / 255: its unit is that of the values so far."""
        values = (0,) if fill is None else fill if isinstance(fill, Sequence) else (fill,)
        if isinstance(fill, Mapping) or len(values) not in (1, 3):
            raise _build_error(f"fill={fill!r:.60} is not in the core", "give one number")
        limits = (0, 255) if self.dtype in ("", "uint8") else (-1e6, 1e6)
        values = [check_number("from_torchvision: fill", value, *limits) for value in values]
        if self.dtype in ("", "uint8"):
            if any(value % 1 for value in values):
                raise _build_error(f"fill={fill!r:.60} is no level", "give a whole number")
            return tuple(value / 255 for value in (*values, *values, *values)[:3])
        colours = zip((*values, *values, *values)[:3], self.mean, self.std, strict=True)
        return tuple(value * std + mean for value, mean, std in colours)

    # -- values ------------------------------------------------------------------------

    def read_converter(self, operation: _Operation) -> None:
        if self.dtype and operation.name == "ToImage":
            return  # of a tensor: the same values
        if self.dtype:
            raise _build_error(f"{operation.name} takes no tensor", "leave the second one out")
        self.dtype = "uint8"
        if operation.name == "ToTensor":
            torch = sys.modules.get("torch")
            default = "float32" if torch is None else torch.get_default_dtype()
            self._convert(operation.name, default, True)

    def read_dtype(self, operation: _Operation) -> None:
        if not self.dtype:
            what = f"{operation.name} before {', '.join(_converters)} has no effect"
            raise _build_error(what, "put it behind")
        if isinstance(operation.values.dtype, Mapping):
            raise _build_error("ToDtype(dtype={...}) is not in the core", "give one dtype")
        scales = operation.name == "ConvertImageDtype" or bool(operation.values.scale)
        self._convert(operation.name, operation.values.dtype, scales)

    def _convert(self, name: str, dtype: Any, scales: bool) -> None:
        dtype = str(dtype).removeprefix("torch.")
        if dtype not in _dtypes:
            raise _build_error(f"{name}: {dtype:.24} is not in the core", _dtype_remedy)
        if dtype == "uint8" != self.dtype:
            is_level = all(0 <= value <= 1 for value in self._fill or ())
            if not scales or (self.mean, self.std) != ([0.0] * 3, [1.0] * 3) or not is_level:
                raise _build_error(f"{name}: values of {self.dtype} are no levels of uint8")
        elif self.dtype == "uint8" != dtype and not scales:
            self.std = [1 / 255] * 3  # levels as they are
        self.dtype = dtype

    def read_normalize(self, operation: _Operation) -> None:
        if self.dtype in ("", "uint8"):
            remedy = "put ToTensor or ToDtype(torch.float32, scale=True) before it"
            raise _build_error("Normalize takes floating-point tensors", remedy)
        means, stds = (
            _list_channels(name, getattr(operation.values, name)) for name in ("mean", "std")
        )
        self.mean = [
            mean + std * more for mean, std, more in zip(self.mean, self.std, means, strict=True)
        ]
        self.std = [std * more for std, more in zip(self.std, stds, strict=True)]

    # -- the transform -----------------------------------------------------------------

    def build(self) -> RandomResizedCrop | CenterCrop | RandomCrop | Resize:
        """Return the transform of all operations."""
        if not self._is_placed:  # of a whole image: mirrored before or behind is the same
            self.flips.reverse()
        first, last = self.flips
        for axis, name in enumerate(("RandomHorizontalFlip", "RandomVerticalFlip")):
            if first[axis] and last[axis]:
                raise _build_error(f"{name} before the crop and behind it: leave one out")
        options: dict[str, Any] = {"layout": "chw", "dtype": cast(Type, self.dtype)}
        options |= {"flip": first[0] or last[0], "flip_rows": first[1] or last[1]}
        if self.dtype != "uint8":
            options |= {"mean": self.mean, "std": self.std}
        made = self._build_geometry(options)
        made.flips_first = (first[0] > 0, first[1] > 0)
        if isinstance(made, RandomCrop) and self._fill is not None:
            made.fill_values = [
                (value - mean) / std
                for value, mean, std in zip(self._fill, self.mean, self.std, strict=True)
            ]
            if self.dtype == "uint8":
                made.fill_values = [int(255.999 * value) for value in self._fill]
        return made

    def _build_geometry(
        self, options: dict[str, Any]
    ) -> RandomResizedCrop | CenterCrop | RandomCrop | Resize:
        crop, size = self._crop, self._size
        if crop is None and (size is None or len(size) != 2):
            raise _build_error(
                "images of many sizes make no batch", "add a CenterCrop, or Resize((height, width))"
            )
        padded: dict[str, Any] = {
            "padding": self._padding,
            "pad_small": self._pads_small,
            "padding_mode": cast(PadMode, self._pad_mode),
        }
        if crop is None:
            assert size is not None
            left, top, right, bottom = self._padding
            if not any(self._padding):
                return Resize(size, **options)
            whole = size[0] + top + bottom, size[1] + left + right
            return CentredWindow(whole, size, **padded, **options)
        window = _list_sides(crop.values.size, 2)
        if crop.name == "RandomResizedCrop":
            area, ratio = crop.values.scale, crop.values.ratio
            return RandomResizedCrop(window, area, ratio, **options)
        kind = RandomCrop if crop.name == "RandomCrop" else CentredWindow
        if self._is_cut:
            made = kind(_resize(window, size or (), self._longest), **options)
            made.cut = (window[0], window[1])
            return made
        is_plain = size is not None and len(size) == 1 and not (self._longest or any(self._padding))
        if is_plain and kind is CentredWindow and size is not None and max(window) <= size[0]:
            return CenterCrop(window, size[0], **options)
        resize = None if not size else size[0] if len(size) == 1 else size
        made = kind(window, resize, **padded, **options)
        made.longest = self._longest
        return made


_converters = ("ToTensor", "PILToTensor", "ToImage")
_readers: dict[str, Callable[[_Translation, _Operation], None]] = {
    "RandomResizedCrop": _Translation.read_random_resized_crop,
    "Resize": _Translation.read_resize,
    "CenterCrop": _Translation.read_crop,
    "RandomCrop": _Translation.read_crop,
    "Pad": _Translation.read_pad,
    "RandomHorizontalFlip": _Translation.read_flip,
    "RandomVerticalFlip": _Translation.read_flip,
    "ToDtype": _Translation.read_dtype,
    "ConvertImageDtype": _Translation.read_dtype,
    "Normalize": _Translation.read_normalize,
    "Identity": lambda translation, operation: None,
    "ToPureTensor": lambda translation, operation: None,
} | dict.fromkeys(_converters, _Translation.read_converter)


def _list_sides(size: Any, count: int = 1) -> tuple[int, ...]:
    """Return a size of torchvision as its numbers: one number is `count` of them."""
    sides = tuple(size) if isinstance(size, Sequence) else (size,)
    return sides * count if len(sides) == 1 else sides


def _resize(size: Sequence[int], to: tuple[int, ...], longest: int) -> tuple[int, int]:
    """Return the size that torchvision's Resize gives an image of this size."""
    if len(to) == 2:
        return to[0], to[1]
    shorter, longer = sorted(size)
    if to:
        shorter, longer = to[0], to[0] * longer // shorter
    if longest and (not to or longer > longest):
        shorter, longer = longest * shorter // longer, longest
    return (longer, shorter) if size[1] <= size[0] else (shorter, longer)


def _list_channels(name: str, value: Any) -> list[float]:
    """Return a number for each of red, green and blue."""
    values = value.tolist() if hasattr(value, "tolist") else value
    values = list(values) if isinstance(values, Sequence) else [values]
    if len(values) not in (1, 3):
        raise _build_error(f"Normalize: {name} has {len(values)} numbers", "images have 3 channels")
    numbers = [check_number(f"from_torchvision: Normalize: {name}", one, -1e6) for one in values]
    return numbers * 3 if len(numbers) == 1 else numbers
