"""The work of the jobs: data, decoding, and how fast their models are.

Data are generated once and read through the emulated storage. Decoding is real work on the
processor; the model is a step that sleeps.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock
from benchmarks.corpus import Corpora, files_below, write_random

Sample = Mapping[str, Any]
Decode = Callable[[Sample], Any]

IMAGE_BYTES, IMAGE_COPIES = 86_000, 40
"""Size and copies of each photograph in the archive, so that epochs are long against the run."""
VOLUME_BYTES, VOLUMES = 1 << 19, 2_048
TOKENS, SEQUENCES = 2_048, 65_536
SPEECH_BYTES, UTTERANCES = 10 * 16_000 * 2, 4_096
"""Ten seconds of 16 kHz, 16 bits."""
SIDE = 224
FRAME, HOP, BANDS, BLOCK = 400, 160, 80, 64


@dataclass(frozen=True, slots=True)
class Job:
    """A training job on one accelerator.

    kind:     what it reads and how it decodes; see `KINDS`.
    step_ms:  of its model, for a batch that is there.
    """

    name: str
    kind: str
    batch: int
    step_ms: float

    @property
    def ceiling(self) -> float:
        """Samples/s of its model."""
        return 1e3 * self.batch / self.step_ms

    @property
    def step_bytes(self) -> int:
        return self.batch * KINDS[self.kind].bytes


@dataclass(frozen=True, slots=True)
class Kind:
    """The way its data are made, opened and decoded; `bytes`: of a sample, about."""

    bytes: int
    made: Callable[[Corpora], Path]
    open: Callable[[str], penstock.Dataset]
    decode: Decode | None


# -- data ------------------------------------------------------------------------------------------


def photographs(corpora: Corpora) -> Path:
    """JPEG files of 500 x 375 in a tar archive, each several times under other names."""
    source = corpora.images()

    def write(to: Path) -> None:
        files = [path for path in files_below(source) if path.is_file()]
        with tarfile.open(to, "w") as archive:
            for copy in range(IMAGE_COPIES):
                for path in files:
                    archive.add(path, f"{copy}{path.name}")

    return corpora.made(source.with_name(f"{source.name}-x{IMAGE_COPIES}.tar"), write)


def random_records(count: int, size: int) -> Callable[[Corpora], Path]:
    """Random records of one size in one file."""

    def made(corpora: Corpora) -> Path:
        path = corpora.folder / f"share-{size}-{count}-seed{corpora.seed}.bin"
        return corpora.made(path, lambda to: write_random(to, count * size, corpora.seed))

    return made


def records(size: int) -> Callable[[str], penstock.Dataset]:
    return lambda path: penstock.open(path, record_bytes=size, index="memory")


# -- decoding --------------------------------------------------------------------------------------


def cropped(pixels: NDArray[np.uint8], random: np.random.Generator, least: float) -> Any:
    """A random part of the image of at least that part of its area, resized."""
    from PIL import Image

    image = Image.fromarray(pixels)
    scale = float(np.sqrt(random.uniform(least, 1)))
    width, height = scale * image.width, scale * image.height
    left, top = random.uniform(0, image.width - width), random.uniform(0, image.height - height)
    box = (left, top, left + width, top + height)
    return image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)


def pixels_of(sample: Sample) -> NDArray[np.uint8]:
    import simplejpeg

    found: NDArray[np.uint8] = simplejpeg.decode_jpeg(sample["jpg"])
    return found


def decode_photograph(sample: Sample) -> dict[str, Any]:
    """Decode, crop at random, resize: what an image classifier is fed."""
    random = penstock.rng(0, sample["__epoch__"], sample["__id__"])
    image = np.asarray(cropped(pixels_of(sample), random, 0.3))
    return {"image": image, "id": sample["__id__"]}


def decode_views(sample: Sample) -> dict[str, Any]:
    """Two blurred crops and four more: what self-supervised training is fed."""
    from PIL import ImageFilter

    random = penstock.rng(0, sample["__epoch__"], sample["__id__"])
    pixels = pixels_of(sample)
    crops = [cropped(pixels, random, 0.3).filter(ImageFilter.GaussianBlur(1)) for _ in range(2)]
    crops += [cropped(pixels, random, 0.05) for _ in range(4)]
    return {"views": np.stack([np.asarray(crop) for crop in crops]), "id": sample["__id__"]}


def decode_volume(sample: Sample) -> dict[str, Any]:
    """Counts of a simulation to logarithms: a scientific job's input."""
    counts = np.frombuffer(sample["data"], np.uint16)
    return {"volume": np.log1p(counts, dtype=np.float32), "id": sample["__id__"]}


_window = np.hanning(FRAME).astype(np.float32)
_bands = np.linspace(0, FRAME // 2, BANDS, dtype=np.int64)


def decode_speech(sample: Sample) -> dict[str, Any]:
    """Logarithms of the power in bands, frame by frame."""
    wave = np.frombuffer(sample["data"], np.int16).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(wave, FRAME)[::HOP]
    bands = np.empty((len(frames), BANDS), np.float32)
    for at in range(0, len(frames), BLOCK):  # what fits into a processor's cache
        power = np.abs(np.fft.rfft(frames[at : at + BLOCK] * _window)) ** 2
        np.add.reduceat(power, _bands, axis=1, out=bands[at : at + BLOCK])
    return {"bands": np.log1p(bands), "id": sample["__id__"]}


def archive(path: str) -> penstock.Dataset:
    return penstock.open(path, index="memory")


KINDS = {
    "photos": Kind(IMAGE_BYTES, photographs, archive, decode_photograph),
    "views": Kind(IMAGE_BYTES, photographs, archive, decode_views),
    "volumes": Kind(
        VOLUME_BYTES, random_records(VOLUMES, VOLUME_BYTES), records(VOLUME_BYTES), decode_volume
    ),
    "speech": Kind(
        SPEECH_BYTES, random_records(UTTERANCES, SPEECH_BYTES), records(SPEECH_BYTES), decode_speech
    ),
    "tokens": Kind(2 * TOKENS, random_records(SEQUENCES, 2 * TOKENS), records(2 * TOKENS), None),
}
