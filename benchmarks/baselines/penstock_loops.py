"""penstock's crops of photographs and its JSON lines, as `benchmarks.images`, `image_folder` and
`text` do them: the same samples in each epoch, so that two builds can be compared by their sums."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.baselines.serve import Epochs, Rows, serve


def crop(options: argparse.Namespace) -> Epochs:
    """Crops of files in memory, by one thread, with the index of positions or without."""
    from benchmarks.images import Photographs
    from penstock.images.positions import NO_POSITIONS

    photographs = Photographs(Path(options.path), (0.08, 1.0), 300)
    known = photographs.positions.native if options.kind == "positions" else NO_POSITIONS

    def epochs() -> Iterator[Rows]:
        photographs.run(known)
        yield photographs.out.reshape(len(photographs.files), -1)

    return epochs


def read_folder(options: argparse.Namespace) -> Epochs:
    """The four lines that replace torch's DataLoader over ImageFolder."""
    import torch
    from benchmarks.image_folder import use_penstock

    torch.set_num_threads(1)
    begin: Any = use_penstock(Path(options.path))

    def epochs() -> Iterator[Rows]:
        loader = begin()
        loader.set_epoch(0)  # whose crops are the same
        for pixels, _ in loader:
            yield pixels.numpy().reshape(len(pixels), -1).view(np.uint8)

    return epochs


def read_texts(options: argparse.Namespace) -> Epochs:
    """Texts of lines in an exact shuffle; their lengths are summed."""
    dataset = penstock.open(options.path, fields="text", index="memory")
    loader = penstock.Loader(
        dataset, options.batch, rank=0, world_size=1, decode_threads=options.workers
    )

    def epochs() -> Iterator[Rows]:
        return (make_rows(map(len, batch["text"])) for batch in loader)

    return epochs


def index_lines(options: argparse.Namespace) -> Epochs:
    """Index of lines that nobody has saved; their places are summed."""

    def epochs() -> Iterator[Rows]:
        index = penstock.open(options.path, index="memory").index
        yield make_rows(index.extents(np.arange(len(index))).offset)

    return epochs


def make_rows(numbers: Iterable[int]) -> Rows:
    """Numbers as samples of eight bytes."""
    return np.fromiter(numbers, np.uint64).view(np.uint8).reshape(-1, 8)


LOOPS = {
    "crops": crop,
    "positions": crop,
    "folder": read_folder,
    "texts": read_texts,
    "lines": index_lines,
}


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    return LOOPS[options.kind](options), {"penstock": penstock.__version__}


if __name__ == "__main__":
    serve(make)
