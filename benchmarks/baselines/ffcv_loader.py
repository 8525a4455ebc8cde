"""FFCV: its own container of bytes fields, its own exact shuffle (RANDOM), data in memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
from ffcv.fields.decoders import BytesDecoder
from ffcv.loader import Loader, OrderOption

from benchmarks.baselines.serve import Epochs, serve


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """The documented settings for data that fits into memory."""
    loader = Loader(
        options.path,
        batch_size=options.batch,
        num_workers=options.workers,
        os_cache=True,
        order=OrderOption.RANDOM,
        seed=options.seed,
        pipelines={"data": [BytesDecoder()]},
        batches_ahead=options.ahead,
        drop_last=False,
        recompile=False,
    )

    def epochs() -> Iterator[np.ndarray]:
        return (rows for (rows,) in loader)

    return epochs, {"ffcv": version("ffcv"), "numba": version("numba")}


if __name__ == "__main__":
    serve(make)
