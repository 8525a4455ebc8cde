"""penstock through its public interface, with its default budget."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import penstock
from benchmarks.baselines.serve import Epochs, serve


def decode_sample(sample: Mapping[str, Any]) -> np.ndarray:
    """The decode function of all contenders, applied to a sample's bytes."""
    from benchmarks.baselines.jpeg_decode import decode_jpeg

    return decode_jpeg(sample["data"])


def rows(batch: Any) -> np.ndarray:
    """A batch as the touch wants it: one sample a row, no copy."""
    data = batch if isinstance(batch, np.ndarray) else batch[next(iter(batch))]
    if hasattr(data, "offsets"):  # ragged; the corpora's files all have one size
        return data.values.reshape(len(data.offsets) - 1, -1)
    return data.reshape(len(data), -1)


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """One loader for all epochs; it counts them by itself."""
    fixed: dict[str, Any] = {}
    if options.kind == "records":
        fixed = {"record_bytes": options.record_bytes}
    elif options.kind == "tokens":
        window = options.record_bytes // 2
        fixed = {"dtype": "uint16", "window": window, "as_dtype": "int64"}
    extra: dict[str, Any] = {}
    if options.kind == "jpeg":
        extra["decode"] = decode_sample
    if options.direct != "auto":
        extra["budget"] = penstock.Budget(direct=options.direct)
    if options.requests is not None:
        extra["budget"] = penstock.Budget(requests=options.requests)
    loader = penstock.Loader(
        penstock.open(options.path, **fixed),
        batch_size=options.batch,
        seed=options.seed,
        drop_last=False,
        **extra,
    )

    def epochs() -> Iterator[np.ndarray]:
        return map(rows, loader)

    return epochs, {"penstock": penstock.__version__}


if __name__ == "__main__":
    serve(make)
