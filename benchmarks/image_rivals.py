"""Other libraries' crops of photographs, each at its best setting and on one thread.

A rival is made of photographs (`images.Photographs`) and a scratch folder, and does one pass over
all of them when called: the same files in memory to the same crops, 224 x 224 and uint8, but where
its name says otherwise. A rival that cannot be had says why: `Absent`.
"""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from .images import Photographs

SIZE = 224
Pass = Callable[[], Any]


class Absent(Exception):
    """Why a rival does not run here."""


def load(module: str, reason: str = "") -> Any:
    """Import what a rival needs; Absent if that does not work."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise Absent(reason or f"{module} is not installed") from None
        raise Absent(f"{module} does not load: {error}") from None
    except (ImportError, OSError, RuntimeError) as error:
        raise Absent(f"{module} does not load: {str(error).splitlines()[0]}") from None


def list_crops(photographs: Photographs) -> Iterator[tuple[bytes, tuple[int, int, int, int], bool]]:
    """Yield each file, its box (left, top, width, height), and whether it is mirrored."""
    for data, (left, top, width, height, flips, *_) in zip(
        photographs.files, photographs.boxes, strict=True
    ):
        yield data, (left, top, width, height), bool(flips)


def finish_by_pillow(image: Image.Image, box: tuple[int, int, int, int], flip: bool) -> Any:
    left, top, width, height = box
    made = image.crop((left, top, left + width, top + height)).resize(
        (SIZE, SIZE), Image.Resampling.BILINEAR
    )
    if flip:
        made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(made)


def use_pillow(photographs: Photographs, scratch: Path) -> Pass:
    """Pillow, and a tensor of its pixels."""
    torch = load("torch")

    def run() -> None:
        for data, box, flip in list_crops(photographs):
            image = Image.open(io.BytesIO(data)).convert("RGB")
            torch.from_numpy(finish_by_pillow(image, box, flip).copy())

    return run


def use_simplejpeg(photographs: Photographs, scratch: Path) -> Pass:
    simplejpeg = load("simplejpeg")

    def run() -> None:
        for data, box, flip in list_crops(photographs):
            finish_by_pillow(Image.fromarray(simplejpeg.decode_jpeg(data)), box, flip)

    return run


def use_torch(photographs: Photographs, scratch: Path) -> Pass:
    """torch's antialiased resize of uint8, which is fastest with the channels last."""
    simplejpeg, torch = load("simplejpeg"), load("torch")
    torch.set_num_threads(1)

    def run() -> None:
        for data, (left, top, width, height), flip in list_crops(photographs):
            pixels = torch.from_numpy(simplejpeg.decode_jpeg(data))
            part = pixels[top : top + height, left : left + width].permute(2, 0, 1)[None]
            made = torch.nn.functional.interpolate(
                part.contiguous(memory_format=torch.channels_last),
                size=(SIZE, SIZE),
                mode="bilinear",
                antialias=True,
            )
            if flip:
                made = made.flip(-1)
            made.permute(0, 2, 3, 1).contiguous()

    return run


def use_torchvision(photographs: Photographs, scratch: Path) -> Pass:
    """torchvision's decoder and transforms v2."""
    torch = load("torch")
    load("torchvision", "there is no build of torchvision for this torch without CUDA")
    decoder = load("torchvision.io")
    functional = load("torchvision.transforms.v2.functional")
    torch.set_num_threads(1)
    files = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in photographs.files]

    def run() -> None:
        for values, (_, box, flip) in zip(files, list_crops(photographs), strict=True):
            left, top, width, height = box
            image = decoder.decode_jpeg(values, mode=decoder.ImageReadMode.RGB)
            made = functional.resized_crop(
                image, top, left, height, width, [SIZE, SIZE], antialias=True
            )
            if flip:
                functional.horizontal_flip(made)

    try:
        run()
    except (RuntimeError, OSError) as error:
        raise Absent(f"torchvision does not decode: {str(error).splitlines()[0]}") from None
    return run


def use_opencv(photographs: Photographs, scratch: Path) -> Pass:
    cv2 = load("cv2")
    cv2.setNumThreads(1)
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION

    def run() -> None:
        for data, (left, top, width, height), flip in list_crops(photographs):
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
            made = cv2.resize(pixels[top : top + height, left : left + width], (SIZE, SIZE))
            if flip:
                cv2.flip(made, 1)

    return run


def use_spdl(photographs: Photographs, scratch: Path) -> Pass:
    """SPDL's decoder and FFmpeg's filters: crop, area-averaging resize, mirror."""
    spdl = load("spdl.io")
    try:
        options = spdl.decode_config(decoder_options={"threads": "1"})
    except RuntimeError as error:
        raise Absent(f"spdl finds no FFmpeg: {str(error).splitlines()[0][:80]}") from None

    def run() -> None:
        for data, (left, top, width, height), flip in list_crops(photographs):
            filters = (
                f"crop={width}:{height}:{left}:{top}:exact=1,"
                f"scale={SIZE}:{SIZE}:flags=bilinear,{'hflip,' if flip else ''}format=rgb24"
            )
            buffer = spdl.load_image(data, filter_desc=filters, decode_config=options)
            made = spdl.to_numpy(buffer)
            assert made.shape == (SIZE, SIZE, 3), made.shape

    return run


def use_dali(photographs: Photographs, scratch: Path) -> Pass:
    """DALI's processor path, one thread: it decodes the crops alone."""
    dali = load("nvidia.dali", "nvidia-dali-cuda120 is not installed")
    fn, types = load("nvidia.dali.fn"), load("nvidia.dali.types")
    boxes = np.array(photographs.boxes, np.int32)

    def feed(rows: Any) -> Any:
        rows = [np.ascontiguousarray(row) for row in rows]
        return fn.external_source(source=lambda: rows, batch=True)

    @dali.pipeline_def(batch_size=len(boxes), num_threads=1, device_id=None, prefetch_queue_depth=1)  # type: ignore[untyped-decorator, unused-ignore]
    def make() -> Any:
        part = fn.decoders.image_slice(
            feed([np.frombuffer(data, np.uint8) for data in photographs.files]),
            start=feed(boxes[:, [1, 0]]),
            shape=feed(boxes[:, [3, 2]]),
            axes=(0, 1),
            device="cpu",
            output_type=types.RGB,
            jpeg_fancy_upsampling=True,
            adjust_orientation=False,
        )
        made = fn.resize(part, size=(SIZE, SIZE), antialias=True, interp_type=types.INTERP_LINEAR)
        return fn.flip(made, horizontal=feed(boxes[:, 4] & 1))

    pipeline = make()
    pipeline.build()
    return pipeline.run  # type: ignore[no-any-return]


class _Decoded:
    """Pixels for FFCV's writer."""

    def __init__(self, files: list[bytes]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Any]:
        return (np.asarray(Image.open(io.BytesIO(self._files[number])).convert("RGB")),)


def use_ffcv(photographs: Photographs, scratch: Path) -> Pass:
    """FFCV over a file of its own, of quality 90: crops of its own of the same rule."""
    load("ffcv", "ffcv is not installed")
    fields, writer = load("ffcv.fields"), load("ffcv.writer")
    loader, decoders = load("ffcv.loader"), load("ffcv.fields.rgb_image")
    transforms = load("ffcv.transforms")
    path = str(scratch / "photographs.beton")
    field = fields.RGBImageField(write_mode="jpg", jpeg_quality=90)
    made = writer.DatasetWriter(path, {"image": field}, num_workers=1)
    made.from_indexed_dataset(_Decoded(photographs.files))
    steps = [
        decoders.RandomResizedCropRGBImageDecoder((SIZE, SIZE), (0.08, 1.0)),
        transforms.RandomHorizontalFlip(),
    ]
    batches = loader.Loader(
        path,
        batch_size=min(64, len(photographs.files)),
        num_workers=1,
        os_cache=True,
        order=loader.OrderOption.SEQUENTIAL,
        pipelines={"image": steps},
        drop_last=False,
    )

    def run() -> None:
        rows = sum(len(images) for (images,) in batches)
        assert rows == len(photographs.files), rows

    return run


def write_tar(photographs: Photographs, path: Path) -> None:
    """Write the files to a tar archive, in their order."""
    with tarfile.open(path, "w") as tar:
        for number, data in enumerate(photographs.files):
            info = tarfile.TarInfo(f"{number:05}.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def use_webdataset(photographs: Photographs, scratch: Path) -> Pass:
    """WebDataset over a tar archive, with Pillow, in the calling process."""
    webdataset = load("webdataset")
    path = scratch / "photographs.tar"
    write_tar(photographs, path)
    crops = [(box, flip) for _, box, flip in list_crops(photographs)]

    def crop(sample: Any) -> Any:
        return finish_by_pillow(sample["jpg"], *crops[int(sample["__key__"].split("/")[-1])])

    def run() -> None:
        samples = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
        rows = sum(1 for _ in samples.decode("pil").map(crop))
        assert rows == len(crops), rows

    return run


Rival = tuple[Callable[["Photographs", Path], Pass], float | None]
RIVALS: dict[str, Rival] = {
    "simplejpeg + Pillow": (use_simplejpeg, 2.2),
    "simplejpeg + torch uint8 antialias": (use_torch, 1.7),
    "torch + Pillow": (use_pillow, None),
    "torch + torchvision v2": (use_torchvision, None),
    "OpenCV, which does not antialias": (use_opencv, None),
    "SPDL": (use_spdl, None),
    "DALI, processor path": (use_dali, None),
    "WebDataset, from tar, Pillow": (use_webdataset, None),
}
"""Passes over the photographs, and what penstock without an index must reach."""
OWN_FORMAT: dict[str, Rival] = {"FFCV, its own format and draws": (use_ffcv, None)}
"""Passes over pictures at quality 90, which these libraries keep in files of their own."""
