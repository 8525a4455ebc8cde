"""Transforms as functions: pixels against Pillow's, layouts, dtypes, bad input and wrong use."""

from __future__ import annotations

import builtins
import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import images, limits
from penstock._core import count_resample_kernels, resample
from penstock.errors import DecodeError, LimitError, UsageError
from tests.images import pictures
from tests.slices import stride

JPEG = pictures.encode(pictures.paint(97, 61, 1), quality=90)


@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(0, 99),
)
def test_resizing_is_exact_to_rounding(
    width: int, height: int, new_width: int, new_height: int, seed: int
) -> None:
    """All kernels give the same bits, within 0.6 levels of exact arithmetic."""
    pixels = pictures.paint(width, height, seed)
    outs = []
    for kernel in range(count_resample_kernels()):
        out = np.empty(new_height * new_width * 3, np.uint8)
        resample(pixels, new_height, new_width, kernel, out)
        outs.append(out.reshape(new_height, new_width, 3))
    assert all((out == outs[0]).all() for out in outs)
    across, down = weigh(width, new_width), weigh(height, new_height)
    exact = np.einsum("yh,hwc,xw->yxc", down, pixels.astype(float), across)
    assert np.abs(outs[0] - exact).max() <= 0.6


def weigh(sources: int, targets: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Weights of the triangle filter as Pillow defines them, (targets, sources)."""
    scale = sources / targets
    support = max(scale, 1.0)
    weights = np.zeros((targets, sources))
    for target in range(targets):
        centre = (target + 0.5) * scale
        first, end = max(0, int(centre - support + 0.5)), int(centre + support + 0.5)
        for source in range(first, min(sources, end)):
            weights[target, source] = max(0.0, 1 - abs(source + 0.5 - centre) / support)
    normal: np.ndarray[Any, np.dtype[np.float64]] = weights / weights.sum(1, keepdims=True)
    return normal


@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(0, 10_000),
    st.sampled_from(["4:4:4", "4:2:2", "4:2:0", "grey", "progressive", "restart", "PNG", "CMYK"]),
)
def test_a_random_crop_is_pillows(width: int, height: int, seed: int, kind: str) -> None:
    """Decoding, cropping and resizing give Pillow's pixels to within its rounding."""
    data = encode_kind(pictures.paint(width, height, seed), kind)
    crop = images.RandomResizedCrop(32, flip=0.5, flip_rows=0.3, boxes=True)
    made = crop({"data": data, "__rng__": penstock.rng(1, 2, seed)})
    left, top, w, h, flips, *size = made["crop"].tolist()
    assert size == [width, height]
    whole = pictures.decode(data)
    expected = pictures.resize(whole[top : top + h, left : left + w], 32, 32)
    expected = expected[:: -1 if flips & 2 else 1, :: -1 if flips & 1 else 1]
    difference = np.abs(expected - made["image"])
    assert difference.max() <= 1
    assert (images.Decode()(data) == whole).all()


def encode_kind(pixels: pictures.Pixels, kind: str) -> bytes:
    if kind == "PNG":
        return pictures.encode(pixels, "PNG", "RGBA")
    if kind == "CMYK":
        return pictures.encode(pixels, mode="CMYK")
    if kind == "grey":
        return pictures.encode(pixels, mode="L")
    options: dict[str, Any] = {"progressive": {"progressive": True}}.get(kind, {})
    if kind == "restart":
        options = {"restart_marker_blocks": 2}
    subsampling = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}.get(kind, 2)
    return pictures.encode(pixels, quality=85, subsampling=subsampling, **options)


@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from([16, 24, None]))
def test_a_centre_crop_is_that_of_the_resized_image(
    width: int, height: int, shorter: int | None
) -> None:
    """A centre crop has the pixels of torchvision's Resize, then CenterCrop."""
    pixels = pictures.paint(width, height, width)
    data = pictures.encode(pixels, "PNG")
    made = images.CenterCrop((14, 10), shorter)(data)
    if shorter is None:
        if width < 10 or height < 14:
            return  # enlarged: the next test
        resized = pixels.astype(np.int64)
    else:
        size = (
            (shorter, shorter * height // width)
            if width <= height
            else (shorter * width // height, shorter)
        )
        resized = pictures.resize(pixels, *size)
    top, left = round((resized.shape[0] - 14) / 2), round((resized.shape[1] - 10) / 2)
    assert np.abs(resized[top : top + 14, left : left + 10] - made).max() <= 1


def test_small_images_are_enlarged() -> None:
    """An image of one pixel fills any result with its colour."""
    data = pictures.encode(np.full((1, 1, 3), 77, np.uint8), "PNG")
    for transform in (
        images.Resize(5),
        images.CenterCrop(5),
        images.CenterCrop(5, 7),
        images.RandomResizedCrop(5),
    ):
        assert (transform({"data": data, "__rng__": penstock.rng(0, 0, 0)})["image"] == 77).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_layouts_and_dtypes_show_the_same_image(dtype: Any) -> None:
    """Floating-point images are the uint8 one, normalised in float32 and rounded once."""
    mean, std = images.IMAGENET_MEAN, images.IMAGENET_STD
    plain = images.Resize((30, 45))(JPEG)
    assert plain.shape == (30, 45, 3)
    assert plain.dtype == np.uint8
    planar = images.Resize((30, 45), layout="chw")(JPEG)
    assert (planar == plain.transpose(2, 0, 1)).all()
    made = images.Resize((30, 45), layout="chw", dtype=dtype, mean=mean, std=std)(JPEG)
    scale = (1 / (255 * np.array(std))).astype(np.float32)[:, None, None]
    offset = (-np.array(mean) / np.array(std)).astype(np.float32)[:, None, None]
    assert (made == (planar.astype(np.float32) * scale + offset).astype(dtype)).all()
    unit = images.Resize((30, 45), dtype=dtype)(JPEG)
    assert np.abs(unit.astype(float) - plain / 255).max() < 1e-3


def test_mirrored_images_are_mirrored() -> None:
    """flip=1 mirrors the columns, flip_rows=1 the rows."""
    plain = images.Resize(20)(JPEG)
    rng = penstock.rng(0, 0, 0)
    assert (images.Resize(20, flip=1)(JPEG, rng) == plain[:, ::-1]).all()
    assert (images.Resize(20, flip_rows=1)(JPEG, rng) == plain[::-1]).all()


def test_a_generator_gives_one_crop_after_another() -> None:
    """Each call takes 44 words of the generator that it is given."""
    crop = images.RandomResizedCrop(16)
    rng = penstock.rng(1, 2, 3)
    first, second = crop(JPEG, rng), crop(JPEG, rng)
    assert (first != second).any()
    again = penstock.rng(1, 2, 3)
    assert (crop({"data": JPEG}, again)["image"] == first).all()
    again.bit_generator.random_raw(0)
    assert (crop(JPEG, again) == second).all()


def test_transforms_can_be_copied() -> None:
    """Worker processes get transforms by pickle."""
    crop = images.RandomResizedCrop(16, area=(0.3, 0.6))
    expected = crop(JPEG, penstock.rng(1, 2, 3))
    for other in (pickle.loads(pickle.dumps(crop)), copy.deepcopy(crop)):
        assert (other(JPEG, penstock.rng(1, 2, 3)) == expected).all()


@stride(61)
@pytest.mark.parametrize("kind", ["4:4:4", "4:2:0", "grey", "restart", "progressive", "PNG"])
def test_truncations_give_the_error_or_the_same_pixels(kind: str, stride: int) -> None:
    """A file cut anywhere is a DecodeError, or no pixel depends on what is missing."""
    data = encode_kind(pictures.paint(47, 31, 1), kind)
    whole, errors = images.Resize(16)(data), 0
    for end in range(0, len(data), stride):
        try:
            assert (images.Resize(16)(data[:end]) == whole).all()
        except DecodeError:
            errors += 1
    assert errors >= (len(data) - 24) // stride


def test_damage_says_where_it_is() -> None:
    """The error of a JPEG that ends early has the byte and the row of blocks."""
    with pytest.raises(DecodeError, match=r"damaged at byte [\d,]+, in row \d+ of its blocks"):
        images.Decode()(JPEG[: len(JPEG) * 2 // 3])


def test_an_image_of_too_many_pixels_is_refused_by_its_header(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A header that claims 65,535 x 65,535 pixels is refused before memory is taken."""
    start = JPEG.index(b"\xff\xc0") + 5
    huge = JPEG[:start] + b"\xff\xff\xff\xff" + JPEG[start + 4 :]
    png = pictures.encode(np.zeros((1, 1, 3), np.uint8), "PNG")
    monkeypatch.setattr(limits, "image_pixels_max", 1000)
    for transform in (images.Resize(8), images.Decode()):
        with pytest.raises(LimitError, match="image_pixels_max"):
            transform(huge)
        transform(png)


def test_an_image_without_pixels_is_refused() -> None:
    """A width of 0 is damage, as it is for Pillow."""
    start = JPEG.index(b"\xff\xc0") + 7
    with pytest.raises(DecodeError):
        images.Resize(8)(JPEG[:start] + b"\0\0" + JPEG[start + 2 :])


def test_bfloat16_without_ml_dtypes_is_told_when_the_loader_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy has no bfloat16 then; tensors have it."""
    (tmp_path / "a.jpg").write_bytes(pictures.encode(pictures.paint(20, 20)))
    dataset = penstock.open(tmp_path, index="memory")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    transform = images.Resize(8, dtype="bfloat16")
    with pytest.raises(UsageError, match="pip install ml_dtypes"):
        penstock.Loader(dataset, 1, decode=transform)
    torch = pytest.importorskip("torch")
    (batch,) = penstock.torch.DataLoader(dataset, 1, decode=transform)
    assert batch["image"].dtype == torch.bfloat16


def test_without_pillow_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PNG needs Pillow; baseline JPEG does not."""
    png = pictures.encode(pictures.paint(9, 9), "PNG")
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("PIL"):
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r"pip install pillow \(or"):
        images.Resize(8)(png)
    assert images.Resize(8)(JPEG).shape == (8, 8, 3)


def test_rotation_is_obeyed_on_request() -> None:
    """EXIF rotation is ignored, as torchvision does, unless rotate=True."""
    exif = pictures.Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    data = pictures.encode(pictures.paint(40, 20), exif=exif, quality=95)
    assert images.Decode()(data).shape == (20, 40, 3)
    turned = images.Decode(rotate=True)(data)
    assert (turned == np.rot90(images.Decode()(data), -1)).all()
    assert images.Resize(8, rotate=True)(data).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: images.Resize(0), "size is 0"),
        (lambda: images.Resize((3, 4, 5)), "size is"),
        (lambda: images.Resize("224"), "size is '224'"),
        (lambda: images.RandomResizedCrop(8, area=(0.5, 1.1)), "area is 1.1"),
        (lambda: images.RandomResizedCrop(8, area=(0.9, 0.5)), "least first"),
        (lambda: images.RandomResizedCrop(8, ratio=(0, 1)), "ratio is 0"),
        (lambda: images.RandomResizedCrop(8, flip=2), "flip is 2"),
        (lambda: images.RandomResizedCrop(8, flip=float("nan")), "flip is nan"),
        (lambda: images.Resize(8, dtype="float16", std=0), "std is 0"),
        (lambda: images.Resize(8, dtype="float16", mean=(1, 2)), "mean is"),
        (lambda: images.Resize(8, mean=0.5), "mean and std need a floating-point"),
        (lambda: images.Resize(8, dtype="int8"), "dtype is 'int8'"),  # type: ignore[arg-type]
        (lambda: images.Resize(8, layout="nchw"), "layout is"),  # type: ignore[arg-type]
        (lambda: images.CenterCrop(224, 200), "resize is 200"),
        (lambda: images.RandomResizedCrop(8)(JPEG), "give rng"),
        (lambda: images.Resize(8)({"text": "a"}), "no field of bytes"),
        (lambda: images.Resize(8)(3), "give an image.s bytes"),
    ],
)
def test_wrong_use_is_told_at_once(make: Any, message: str) -> None:
    """Values that cannot be are refused when the transform is made."""
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(("side", "new"), [(5000, 1), (700, 1), (2500, 9)])
@pytest.mark.parametrize("level", [0, 1, 101, 254, 255])
def test_a_plain_image_keeps_its_colour_however_far_it_is_reduced(
    side: int, new: int, level: int
) -> None:
    """Roundings of thousands of pixels neither add up nor wrap: white does not become black."""
    for rows, columns, new_rows, new_columns in ((side, 3, new, 3), (3, side, 3, new)):
        pixels = np.full((rows, columns, 3), level, np.uint8)
        for kernel in range(count_resample_kernels()):
            out = np.empty(new_rows * new_columns * 3, np.uint8)
            resample(pixels, new_rows, new_columns, kernel, out)
            assert (out == level).all()


def test_generators_with_words_of_32_bits_draw_as_well() -> None:
    """Crops of the Mersenne Twister differ, as those of other generators do."""
    transform = images.RandomResizedCrop(8, flip=0.5, boxes=True)
    rng = np.random.Generator(np.random.MT19937(0))
    found = np.array([transform({"data": JPEG}, rng)["crop"] for _ in range(20)])
    assert len({tuple(row) for row in found[:, :4].tolist()}) > 10
    assert set(found[:, 4].tolist()) == {0, 1}


@pytest.mark.parametrize("name", ["image", "crop"])
def test_no_other_field_takes_the_place_of_pixels(name: str) -> None:
    """A sample whose fields have the names of results is refused."""
    sample = {"data": JPEG, name: 7, "__rng__": penstock.rng(0, 0, 0)}
    with pytest.raises(UsageError, match=f"have a field '{name}' beside"):
        images.RandomResizedCrop(8, boxes=True)(sample)
    if name == "image":
        with pytest.raises(UsageError, match="have a field 'image' beside"):
            images.Decode()(sample)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float16", "std": 1e-5}, "too large for float16"),
        ({"dtype": "float16", "mean": -70000, "std": 1}, "too large for float16"),
        ({"dtype": "float32", "mean": np.zeros((3, 1))}, "use a number"),
    ],
)
def test_values_that_become_infinite_are_refused(arguments: Any, message: str) -> None:
    """A mean or standard deviation that cannot be is told when the transform is made."""
    with pytest.raises(UsageError, match=message):
        images.Resize(8, **arguments)
    images.Resize(8, dtype="float32", mean=np.array(0.5))
    with pytest.raises(UsageError, match="give \\(least, most\\)"):
        images.RandomResizedCrop(8, np.array(0.5))
