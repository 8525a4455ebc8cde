"""Images of digits, drawn: small files in a folder for each class, and a model that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIDE = 11
CLASSES = 10
TRAIN_COUNT, TEST_COUNT = 2_000, 400

# Seven rows of five pixels each, the highest bit to the left.
_GLYPHS = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)
_HEADER = f"P5 {SIDE} {SIDE} 255\n".encode()  # a portable graymap, which every viewer opens


def write_digits(folder: Path) -> tuple[Path, Path]:
    """Draw the images as `train/3/00017.pgm` and `test/...`; return the two folders.

    Each is a digit at a random place, of random brightness, in noise.
    """
    random = np.random.default_rng(1)
    for split, count in (("train", TRAIN_COUNT), ("test", TEST_COUNT)):
        for digit in range(CLASSES):
            (folder / split / str(digit)).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            digit = number % CLASSES
            pixels = _draw_digit(digit, random)
            path = folder / split / str(digit) / f"{number:05}.pgm"
            path.write_bytes(_HEADER + pixels.tobytes())
    return folder / "train", folder / "test"


def _draw_digit(digit: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    rows = np.array(_GLYPHS[digit], np.uint8)[:, None]
    glyph = np.unpackbits(rows, axis=1)[:, 3:]
    pixels = random.normal(60, 20, (SIDE, SIDE))
    top, left = random.integers(1, 4, 2)
    pixels[top : top + 7, left : left + 5] += glyph * random.uniform(90, 160)
    return pixels.clip(0, 255).astype(np.uint8)


def decode_digit(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the bytes of a file into its pixels, its label and its name."""
    pixels = np.frombuffer(sample["data"], np.uint8, offset=len(_HEADER))
    return {
        "image": pixels.astype(np.float32) / 255,
        "label": sample["label"],
        "key": sample["__key__"],
    }


class Classifier:
    """A network of one hidden layer in numpy, trained by gradient descent with momentum.

    `weights` is its state: arrays by name, as a checkpoint saves them.
    """

    def __init__(self, seed: int = 0, hidden: int = 160) -> None:
        random = np.random.default_rng(seed)
        shapes = {"first": (SIDE * SIDE, hidden), "second": (hidden, CLASSES)}
        self.weights: dict[str, npt.NDArray[np.float32]] = {}
        for name, shape in shapes.items():
            drawn = random.normal(0, (2 / shape[0]) ** 0.5, shape)
            self.weights[name] = drawn.astype(np.float32)
            self.weights[f"{name}_bias"] = np.zeros(shape[1], np.float32)
        self.weights |= {f"{name}_speed": np.zeros_like(w) for name, w in self.weights.items()}

    def classify(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
        """Return the digit of each image."""
        digits: npt.NDArray[np.intp] = self._forward(images)[1].argmax(1)
        return digits

    def learn(self, images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> None:
        """Train on one batch."""
        hidden, scores = self._forward(images)
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1
        error = chances / len(labels)
        behind = (error @ self.weights["second"].T) * (hidden > 0)
        for name, inputs, outputs in (("first", images, behind), ("second", hidden, error)):
            self._move(name, inputs.T @ outputs)
            self._move(f"{name}_bias", outputs.sum(0))

    def _forward(
        self, images: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        weights = self.weights
        hidden = np.maximum(images @ weights["first"] + weights["first_bias"], 0)
        return hidden, hidden @ weights["second"] + weights["second_bias"]

    def _move(self, name: str, gradient: npt.NDArray[np.float32]) -> None:
        speed = self.weights[f"{name}_speed"]
        speed *= 0.9
        speed -= 0.1 * gradient
        self.weights[name] += speed
