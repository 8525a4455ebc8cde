"""Samples, as `decode` takes them: dicts of fields, with random numbers of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..order import rng


class LoadedSample(dict[str, Any]):
    """One sample: its fields, "__key__", "__id__", "__epoch__" and, where known, "label".

    A field is an array if the format knows dtype and shape, else `bytes`: a copy, which
    `json.loads`, `.decode()` and every decoder take; a memoryview without a copy for a `decode`
    with the mark of `takes_views`.

    `sample["__rng__"]` is a `numpy.random.Generator` whose numbers depend on the loader's seed,
    the epoch and the sample, and on nothing else: `penstock.rng(seed, epoch, id)`, made when it is
    first asked for, which takes some 20 us. In a mixture the sample's pass takes the place of the
    epoch. It is no key: `in`, `keys()` and copies do not have it.
    """

    __slots__ = ("_random", "stream")

    stream: tuple[int, int, int]
    """Seed, epoch and sample that decide the random numbers; set when the sample is made."""

    def __missing__(self, name: str) -> Any:
        if name == "__rng__":
            if not hasattr(self, "_random"):
                self._random: np.random.Generator = rng(*self.stream)
            return self._random
        if name in ("__epoch__", "__id__"):  # of a sample that `Dataset.__getitem__` has read
            return self.stream[1 if name == "__epoch__" else 2]
        raise KeyError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_sample, (*self.stream, dict(self))


def _rebuild_sample(seed: int, epoch: int, number: int, parts: dict[str, Any]) -> LoadedSample:
    sample = LoadedSample(parts)
    sample.stream = seed, epoch, number
    return sample
