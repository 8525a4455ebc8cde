"""torchvision's transforms in the core: the same geometry in every case, or an error."""

from __future__ import annotations

import importlib.util
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock
from penstock import images
from penstock.errors import DecodeError, UsageError
from tests.images import pictures, torchvision_operations

LIBRARIES = ["stand-in"]
if importlib.util.find_spec("torchvision"):
    LIBRARIES += ["v1", "v2"]

SIZES = [(60, 97), (97, 60), (51, 50), (30, 110), (112, 29), (36, 36), (27, 26)]
MEAN, STD = images.IMAGENET_MEAN, images.IMAGENET_STD
HORIZONTAL, VERTICAL = "RandomHorizontalFlip", "RandomVerticalFlip"

PIPELINES: dict[str, list[tuple[Any, ...]]] = {
    "one size": [("Resize", (40, 52)), ("ToTensor",), ("Normalize", MEAN, STD)],
    "of one number": [("Resize", 41), ("CenterCrop", 36), ("ToTensor",)],
    "all of the shorter side": [("Resize", 37), ("CenterCrop", 37), ("PILToTensor",)],
    "more than the shorter side": [("Resize", 31), ("CenterCrop", (40, 33)), ("ToTensor",)],
    "two sizes": [("Resize", (45, 51)), ("CenterCrop", 36), ("ToTensor",)],
    "middle": [("CenterCrop", (29, 44)), ("PILToTensor",)],
    "middle of a tensor": [("ToTensor",), ("Normalize", MEAN, STD), ("CenterCrop", 45)],
    "flipped first": [(HORIZONTAL, 1.0), (VERTICAL, 1.0), ("CenterCrop", 35), ("ToTensor",)],
    "flipped last": [("CenterCrop", 35), (HORIZONTAL, 1.0), (VERTICAL, 1.0), ("ToTensor",)],
    "flipped between": [("Resize", 41), (HORIZONTAL, 1.0), ("CenterCrop", 36), ("ToTensor",)],
    "flipped twice": [("CenterCrop", 35), (HORIZONTAL, 1.0), (HORIZONTAL, 1.0), ("ToTensor",)],
    "flipped when normalised": [
        ("CenterCrop", 35),
        ("ToTensor",),
        ("Normalize", MEAN, STD),
        (VERTICAL, 1.0),
    ],
    "cut and resized": [("CenterCrop", (24, 21)), ("Resize", 17), ("ToTensor",)],
    "padded": [("Resize", (20, 23)), ("Pad", (1, 2, 3, 4), (9, 50, 255)), ("ToTensor",)],
    "padded in pairs": [("Resize", (20, 23)), ("Pad", [3, 1]), ("ToTensor",)],
    "reflected": [("Resize", (20, 23)), ("Pad", (1, 2, 30, 50), 0, "reflect"), ("ToTensor",)],
    "symmetric": [("Resize", (20, 23)), ("Pad", (1, 2, 30, 50), 0, "symmetric"), ("ToTensor",)],
    "edges": [("Resize", (20, 23)), ("Pad", (1, 2, 30, 50), 0, "edge"), ("ToTensor",)],
    "padded when flipped": [
        ("Resize", (20, 23)),
        (HORIZONTAL, 1.0),
        ("Pad", (1, 2, 9, 4)),
        ("ToTensor",),
    ],
    "padded by nothing": [("Pad", 0, 7, "edge"), ("CenterCrop", (45, 33)), ("ToTensor",)],
    "flipped and padded by nothing": [
        (HORIZONTAL, 1.0),
        ("Pad", 0),
        ("CenterCrop", 44),
        ("ToTensor",),
    ],
    "padded and cut": [
        ("Resize", (20, 23)),
        ("Pad", (1, 2, 9, 4)),
        ("CenterCrop", 26),
        ("ToTensor",),
    ],
    "normalised twice": [
        ("Resize", 30),
        ("CenterCrop", 30),
        ("ToTensor",),
        ("Normalize", MEAN, STD),
        ("Normalize", [0.5], [0.25]),
    ],
}


def compose(library: str, operations: list[tuple[Any, ...]]) -> Any:
    module = torchvision_operations.load(library)
    return module.Compose([getattr(module, name)(*options) for name, *options in operations])


def apply(transform: Any, data: bytes) -> npt.NDArray[Any]:
    """Return what torchvision, or its stand-in, makes of an image."""
    return np.asarray(transform(pictures.Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", PIPELINES)
def test_geometry_is_torchvisions(name: str, library: str) -> None:
    """Each pipeline has the pixels of torchvision on images of all shapes, up to one level."""
    transform = compose(library, PIPELINES[name])
    ours = images.from_torchvision(transform)
    unit = np.array(1 if ours.dtype == "uint8" else ours.std).reshape(-1, 1, 1)
    unit = unit * (1 if ours.dtype == "uint8" else 255)
    for height, width in SIZES:
        if name.startswith("cut") and min(height, width) < 27:
            continue
        data = pictures.encode(pictures.paint(width, height, height), "PNG")
        theirs = apply(transform, data)
        made = ours(data, penstock.rng(0, 0, 0))
        assert made.shape == theirs.shape
        assert made.dtype == theirs.dtype
        difference = np.abs(made.astype(np.float64) - theirs) * unit
        assert difference.max() <= 1.01, (height, width)
        assert difference.mean() <= 0.5


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("padding", "mode", "needed"),
    [
        (None, "constant", False),
        (2, "constant", False),
        ((1, 3), "edge", False),
        ([2, 0, 1, 3], "reflect", False),
        ((0, 1, 2, 0), "symmetric", False),
        (None, "constant", True),
        ([1, 0, 0, 2], "constant", True),
        (None, "symmetric", True),
    ],
)
def test_random_crops_are_all_windows(padding: Any, mode: str, needed: bool, library: str) -> None:
    """Every draw is a window of the padded image, mirrored or not, and all come equally often."""
    size, height, width = (8, 9), 11, 7 if needed else 10
    options = {"pad_if_needed": needed, "padding_mode": mode, "fill": 7}
    module = torchvision_operations.load(library)
    operations = [module.RandomCrop(size, padding, **options), module.RandomHorizontalFlip()]
    ours = images.from_torchvision([*operations, module.PILToTensor()])
    pixels = pictures.paint(width, height, 3)
    data = pictures.encode(pixels, "PNG")
    left, top, right, bottom = (
        [0] if padding is None else torchvision_operations._sides(padding)
    ) * (4 if padding is None else 1)
    missing = [max(0, 8 - height - top - bottom), max(0, 9 - width - left - right)]
    widths = [(top + missing[0], bottom + missing[0]), (left + missing[1], right + missing[1])]
    fill: dict[str, Any] = {"constant_values": 7} if mode == "constant" else {}
    padded = np.pad(pixels, (*widths, (0, 0)), mode, **fill).transpose(2, 0, 1)  # type: ignore[call-overload]
    windows = {}
    for i in range(padded.shape[1] - 7):
        for j in range(padded.shape[2] - 8):
            window = padded[:, i : i + 8, j : j + 9]
            windows[window.tobytes()] = windows[window[:, :, ::-1].tobytes()] = (i, j)
    counts = dict.fromkeys(windows, 0)
    draws = 25 * len(windows)
    for sample in range(draws):
        counts[ours(data, penstock.rng(0, 0, sample)).tobytes()] += 1
    assert min(counts.values()) > 5
    assert max(counts.values()) < 60


@pytest.mark.parametrize("library", LIBRARIES)
def test_flips_before_a_crop_draw_as_behind_it(library: str) -> None:
    """The crop of a mirrored image is the mirrored crop at the mirrored place."""
    module = torchvision_operations.load(library)
    crop, flip = module.RandomCrop(8, (0, 0, 5, 0)), module.RandomHorizontalFlip(1.0)
    data = pictures.encode(np.full((8, 8, 3), 200, np.uint8), "PNG")
    first = images.from_torchvision([flip, crop, module.PILToTensor()])
    last = images.from_torchvision([crop, flip, module.PILToTensor()])
    for sample in range(40):
        rng = penstock.rng(0, 0, sample)
        # The padding is at the right of the mirrored image, or at the left of what is mirrored.
        assert (first(data, rng)[0, :, 0] == 200).all()
        assert (last(data, penstock.rng(0, 0, sample))[0, :, -1] == 200).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_random_resized_crop_is_the_cores(library: str) -> None:
    """RandomResizedCrop keeps its numbers, and its pixels are those of the core's own."""
    module = torchvision_operations.load(library)
    crop = module.RandomResizedCrop((20, 24), scale=(0.2, 0.9), ratio=(0.5, 2.0))
    operations = [crop, module.RandomHorizontalFlip(0.3), module.RandomVerticalFlip(0.2)]
    made = images.from_torchvision([*operations, module.ToTensor(), module.Normalize(MEAN, STD)])
    assert isinstance(made, images.RandomResizedCrop)
    same = images.RandomResizedCrop(
        (20, 24),
        (0.2, 0.9),
        (0.5, 2.0),
        0.3,
        flip_rows=0.2,
        layout="chw",
        dtype="float32",
        mean=MEAN,
        std=STD,
    )
    data = pictures.encode(pictures.paint(60, 50))
    for sample in range(30):
        ours, theirs = (one(data, penstock.rng(0, 0, sample)) for one in (made, same))
        assert (ours == theirs).all()


DTYPES: list[tuple[list[tuple[Any, ...]], str, float, float]] = [
    ([("ToTensor",)], "float32", 0, 1),
    ([("ToImage",)], "uint8", 0, 255),
    ([("PILToTensor",), ("ConvertImageDtype", "float32")], "float32", 0, 1),
    ([("ToImage",), ("ToDtype", "float32", True)], "float32", 0, 1),
    ([("ToImage",), ("ToDtype", "float32", False)], "float32", 0, 255),
    ([("ToImage",), ("ToDtype", "float16", True)], "float16", 0, 1),
    ([("ToImage",), ("ToDtype", "float32"), ("Normalize", [51.0], [102.0])], "float32", -0.5, 2),
    ([("ToTensor",), ("ToDtype", "uint8", True)], "uint8", 0, 255),
]


@pytest.mark.parametrize(("conversion", "dtype", "black", "white"), DTYPES)
def test_values_are_torchvisions(
    conversion: list[tuple[Any, ...]], dtype: str, black: float, white: float
) -> None:
    """Black and white become the values that each sequence of conversions gives them."""
    module = torchvision_operations.STANDINS
    named = [getattr(module, name)(*options) for name, *options in conversion]
    ours = images.from_torchvision([module.Resize((2, 3)), *named])
    for level, value in ((0, black), (255, white)):
        made = ours(pictures.encode(np.full((5, 4, 3), level, np.uint8), "PNG"))
        assert made.dtype == dtype
        assert made.shape == (3, 2, 3)
        assert np.abs(made - value).max() < 1e-6


REFUSED: list[tuple[list[tuple[Any, ...]], str]] = [
    ([("RandomResizedCrop", 8), ("ColorJitter", 0.4), ("ToTensor",)], "ColorJitter is not"),
    ([("CenterCrop", 8), ("Lambda", abs), ("ToTensor",)], "Lambda is not"),
    ([("CenterCrop", 8), ("Normalize", MEAN, STD), ("ToTensor",)], "Normalize takes float"),
    ([("CenterCrop", 8), ("ToDtype", "float32"), ("ToImage",)], "has no effect"),
    ([("Resize", 8), ("ToTensor",)], "many sizes"),
    ([("ToTensor",), ("Normalize", MEAN, STD)], "many sizes"),
    ([("CenterCrop", 20), ("RandomCrop", 8), ("ToTensor",)], "the core crops once"),
    ([("Resize", 20), ("CenterCrop", 9), ("Resize", 8), ("ToTensor",)], "resizes twice"),
    ([("RandomResizedCrop", 9), ("Resize", 8), ("ToTensor",)], "resizes twice"),
    ([("Resize", 20), ("RandomResizedCrop", 8), ("ToTensor",)], "behind Resize"),
    ([("CenterCrop", 8), ("Pad", 2), ("ToTensor",)], "Pad behind CenterCrop"),
    ([("Pad", 2), ("Resize", (8, 8)), ("ToTensor",)], "Resize behind padding"),
    ([("Pad", 2, 9), ("RandomCrop", 8, 2), ("ToTensor",)], "pads twice"),
    ([(HORIZONTAL,), ("CenterCrop", 8), (HORIZONTAL,), ("ToTensor",)], "leave one out"),
    ([("CenterCrop", 8), ("ToTensor",), ("ToTensor",)], "takes no tensor"),
    ([("CenterCrop", 8), ("ToImage",), ("ToDtype", "float64")], "float64 is not"),
    ([("CenterCrop", 8), ("ToImage",), ("ToDtype", {"others": None})], "give one dtype"),
    ([("ToTensor",), ("Pad", 2, 1.5), ("CenterCrop", 8), ("ToDtype", "uint8", True)], "no levels"),
    ([("CenterCrop", 8), ("ToTensor",), ("Normalize", [0, 1], [1, 1])], "2 numbers"),
    ([("Resize", 8, "bilinear", 8), ("CenterCrop", 8), ("ToTensor",)], "no size"),
    ([], "is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("operations", "words"), REFUSED)
def test_what_the_core_lacks_is_named(operations: list[tuple[Any, ...]], words: str) -> None:
    """Operations and sequences that the core lacks are one error, with a remedy."""
    module = torchvision_operations.STANDINS
    named = []
    for name, *options in operations:
        if name == "Resize" and len(options) > 1:
            options = [options[0], options[2]]
        named.append(getattr(module, name)(*options))
    with pytest.raises(UsageError, match=words) as raised:
        images.from_torchvision(module.Compose(named))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"interpolation": "bicubic"}, "interpolation='bicubic'"),
        ({"interpolation": 0}, "interpolation=0"),
        ({"antialias": False}, "antialias=False"),
    ],
)
def test_other_filters_are_named(option: dict[str, Any], words: str) -> None:
    """Another filter, or none against aliasing, is an error; Pillow's own choice is not."""
    module = torchvision_operations.STANDINS
    for operation in (module.Resize((8, 8), **option), module.RandomResizedCrop(8, **option)):
        with pytest.raises(UsageError, match=words):
            images.from_torchvision([operation, module.ToTensor()])
    for antialias in (None, "warn"):  # the defaults of versions before 0.17
        operation = module.Resize((8, 8), antialias=antialias)
        images.from_torchvision([operation, module.ToTensor()])
        with pytest.raises(UsageError, match="antialias"):
            images.from_torchvision([module.ToTensor(), operation])


def test_only_torchvisions_operations_are_read() -> None:
    """A class of another module, and a function, are named and not guessed."""

    class Resize:
        size = 8

    for operation, name in ((Resize(), "Resize"), (lambda image: image, "<lambda>"), (3, "int")):
        with pytest.raises(UsageError, match=f"{name} is no operation of torchvision"):
            images.from_torchvision([operation])


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_smaller_than_its_crop_is_an_error_at_its_step(tmp_path: Path, kind: str) -> None:
    """Without pad_if_needed a small image is a DecodeError that names it, and others are read."""
    module = torchvision_operations.STANDINS
    for number, side in enumerate((30, 12, 30)):
        place = tmp_path / "class"
        place.mkdir(exist_ok=True)
        data = pictures.encode(pictures.paint(side, 30), kind)
        (place / f"{number}.{kind.lower()}").write_bytes(data)
    crop = images.from_torchvision([module.RandomCrop(16), module.ToTensor()])
    with penstock.Loader(penstock.open(tmp_path), 1, shuffle="none", decode=crop) as loader:
        batches = iter(loader)
        assert next(batches)["image"].shape == (1, 3, 16, 16)
        with pytest.raises(DecodeError, match=r"1\.\w+.*12 x 30 pixels, less than the crop"):
            next(batches)
        assert next(batches)["image"].shape == (1, 3, 16, 16)
    with pytest.raises(DecodeError, match="12 x 30"):
        crop(
            data if side == 12 else pictures.encode(pictures.paint(12, 30), kind),
            penstock.rng(0, 0, 0),
        )


def test_windows_read_by_positions_are_the_same(tmp_path: Path) -> None:
    """With an index of positions windows have the same pixels, from fewer bytes."""
    pictures.write_folder(tmp_path, 12)
    crop = images.RandomCrop((24, 28), (40, 44), padding=(0, 3, 5, 0), padding_mode="reflect")
    batches: list[Any] = []
    for _ in range(2):
        with penstock.Loader(penstock.open(tmp_path), 4, seed=3, decode=crop) as loader:
            batches.append(np.concatenate([batch["image"] for batch in loader]))
        images.find_positions(penstock.open(tmp_path))
    assert (batches[0] == batches[1]).all()


def test_tensors_come_in_bfloat16(tmp_path: Path) -> None:
    """bfloat16 is a torch dtype: the float32 values, normalised in one pass and rounded once."""
    torch = pytest.importorskip("torch")
    from penstock.torch.loader import DataLoader

    pictures.write_folder(tmp_path, 6)
    module = torchvision_operations.STANDINS
    operations = [module.RandomCrop(20, 2), module.ToTensor(), module.Normalize(MEAN, STD)]
    tensors = []
    for more in ([], [module.ConvertImageDtype(torch.bfloat16)]):
        crop = images.from_torchvision([*operations, *more])
        dataset = penstock.open(tmp_path)
        loader = DataLoader(dataset, 6, decode=crop, as_tuple=("image", "label"))
        tensors += [pixels for pixels, _ in loader]
        loader.close()
    assert [one.dtype for one in tensors] == [torch.float32, torch.bfloat16]
    assert (tensors[0].to(torch.bfloat16) == tensors[1]).all()


def test_translated_transforms_are_pickled() -> None:
    """Worker processes get the same transform: padding, sequence and fill included."""
    module = torchvision_operations.STANDINS
    data = pictures.encode(pictures.paint(30, 26))
    for operations in (
        [module.RandomHorizontalFlip(1.0), module.RandomCrop(28, (0, 3, 9, 0), fill=9)],
        [module.ToTensor(), module.Normalize(MEAN, STD), module.Pad(4), module.CenterCrop(31)],
        [module.Resize(None, 23), module.CenterCrop(21)],
        [module.CenterCrop((20, 24)), module.Resize(11)],
    ):
        ours = images.from_torchvision([*operations, *[module.ToTensor()] * (len(operations) < 3)])
        copy = pickle.loads(pickle.dumps(ours))
        made, again = (one(data, penstock.rng(0, 0, 1)) for one in (ours, copy))
        assert (made == again).all()
        assert ours.flips_first == copy.flips_first


def test_arguments_of_random_crop() -> None:
    """Wrong padding, fill and size are errors with their name."""
    for options, words in (
        ({"padding": -1}, "padding is -1"),
        ({"padding": (1, 2, 3)}, r"padding is \(1, 2, 3\)"),
        ({"fill": 256}, "fill is 256"),
        ({"fill": 0.5}, "fill is 0.5"),
        ({"fill": (1, 2)}, "fill is"),
        ({"padding_mode": "wrap"}, "padding_mode is 'wrap'"),
        ({"resize": (1, 2, 3)}, "resize is"),
        ({"pad_small": 1}, "pad_small is 1"),
    ):
        with pytest.raises(UsageError, match=words):
            images.RandomCrop(8, **options)  # type: ignore[arg-type]
